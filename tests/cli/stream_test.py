"""predict and eval on a pipe: rows as they arrive, with and without labels, in every format; the formats of answers; probabilities."""
import json
import math
import os
import shutil
import subprocess
import unittest

from programs import LABELS, ProgramTest, finished, wait_until
from text_test import EXPERIMENT, samples

TEST = 100


class Streams(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = samples(TEST, "test")
        for name, rows in (("train", samples(600, "train")), ("test", cls.rows)):
            (cls.folder / f"{name}.txt").write_text("".join(f"__label__{topic} {' '.join(words)}\n" for topic, words in rows))
            (cls.folder / f"{name}.csv").write_text("topic,title,body\n" + "".join(
                f"my {topic},{' '.join(words[:2])},{' '.join(words[2:])}\n" for topic, words in rows))
            (cls.folder / f"{name}.tab").write_text("y,n,c\n" + "".join(
                f"{int(topic == 'fruit')},{len(words[0])},{words[1]}\n" for topic, words in rows))
            (cls.folder / f"{name}.criteo").write_text("".join(
                "\t".join([str(int(topic == "fruit")), str(len(words[0])), *[""] * 12, words[1], *[""] * 25]) + "\n" for topic, words in rows))
            (cls.folder / f"{name}.words").write_text("".join(f"{' '.join(words)}\n" for _, words in rows))
        cls.trained = set()

    def run_of(self, kind, *arguments):
        """Returns the folder of a run, which is trained once for all tests."""
        if kind not in self.trained:
            self.trained.add(kind)
            if kind == "xmc":
                self.train(kind)
            else:
                experiment = self.folder / f"{kind}.toml"
                text = EXPERIMENT.format(train=f"train.{kind}", test=f"test.{kind}", format={"txt": "text", "tab": "table"}.get(kind, kind))
                table = {"tab": 'columns = ["label:y", "num:n", "cat:c"]', "criteo": "hash_features = 1024"}
                if kind in table:
                    text = text.replace("[text]", f"[table]\n{table[kind]}\n\n[text]").replace("[model]", '[model]\nloss = "sigmoid"')
                experiment.write_text(text)
                finished(self.modelet("train", experiment, "--out", kind, "--json", *arguments))
        return self.folder / kind

    def piped(self, text, *arguments, **options):
        source = self.folder / "piped"
        source.write_bytes(text if isinstance(text, bytes) else text.encode())
        with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as cat:
            return self.modelet(*arguments, stdin=cat.stdout, **options)

    def cached(self):
        return sorted(os.listdir(self.folder / "cache"))

    def test_the_same_answers_as_for_a_file_and_nothing_in_the_cache(self):
        without = {"txt": lambda row: row.split(" ", 1)[1], "csv": lambda row: row.split(",", 1)[1], "tab": lambda row: row.split(",", 1)[1],
                   "criteo": lambda row: row.split("\t", 1)[1], "xmc": lambda row: row.split(" ", 1)[1]}
        for kind, cut in without.items():
            run = self.run_of(kind)
            test = self.folder / (f"test.{kind}" if kind != "xmc" else "data/test.txt")
            other = self.folder / f"other.{kind}"  # training has not read it
            other.write_text(test.read_text())
            cached, text = self.cached(), test.read_text()
            answers = self.modelet("predict", run, other, "--json").stdout
            figures = self.modelet("eval", run, other).stdout
            self.assertEqual(self.cached(), cached)
            lines = text.splitlines(keepends=True)
            bare = "".join(map(cut, lines if kind != "xmc" else lines[1:]))
            for what, rows in (("all", text), ("without labels", bare)):
                with self.subTest(kind=kind, what=what):
                    self.assertEqual(self.piped(rows, "predict", run, "-", "--json").stdout, answers)
            self.assertEqual(self.piped(text, "eval", run, "-").stdout, figures)
            self.assertEqual(self.cached(), cached)
            self.assertIn("none of its samples has a label", self.piped(bare, "eval", run, "-", code=1).stderr)
            if kind in ("txt", "xmc"):
                self.assertEqual(self.piped("", "predict", run, "-").stdout, "")

    def test_what_comes_after_a_line_of_running_text(self):
        """Running text has no labels to leave out. A file is divided into samples as in training; on a pipe, a line is a question."""
        run = self.run_of("words", "--set", "words.task=next")
        answers = self.modelet("predict", run, "test.words", "--json").stdout
        beginnings = [" ".join(words[:count]) for _, words in self.rows for count in range(1, len(words))]
        cached = self.cached()
        self.assertEqual(self.piped("\n".join(beginnings), "predict", run, "-", "--json").stdout, answers)
        text = (self.folder / "test.words").read_text()
        self.assertEqual(len(self.piped(text + "\nunknown\n", "predict", run, "-").stdout.splitlines()), TEST + 2)
        self.assertEqual(self.piped(text, "eval", run, "-").stdout, self.modelet("eval", run, "test.words").stdout)
        self.assertEqual(self.cached(), cached)
        self.assertIn("none of its samples has a label", self.piped("apple\nsaw\n", "eval", run, "-", code=1).stderr)

    def test_names_of_a_pipe(self):
        run = self.run_of("txt")
        answers = self.modelet("predict", run, "test.txt").stdout
        with open(self.folder / "test.txt", "rb") as source:
            self.assertEqual(self.modelet("predict", run, "/dev/stdin", stdin=source).stdout, answers)
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        program = self.start("modelet", "predict", run, fifo)
        fifo.write_text((self.folder / "test.txt").read_text())
        self.assert_ends(program, 0)
        self.assertEqual(program.stdout, answers)

    def test_a_row_is_answered_when_it_is_there(self):
        run = self.run_of("txt")
        end, write = os.pipe()
        program = self.start("modelet", "predict", run, "-", "--k", "1", stdin=end)
        os.close(end)
        for i, (row, topic) in enumerate((("apple pear", "fruit"), ("hammer saw", "tools"), ("baltic red", "seas")), 1):
            os.write(write, row.encode())
            os.write(write, b"\n")
            wait_until(lambda: program.stdout.count("\n") == i, lambda: f"answer {i} of {program}")
            self.assertEqual(program.stdout.splitlines()[-1].split(":")[0], topic)
        os.close(write)
        self.assert_ends(program, 0)

    def test_a_full_disk_ends_a_stream(self):
        run = self.run_of("txt")
        end, write = os.pipe()
        self.addCleanup(os.close, write)
        with open("/dev/full", "wb") as full:
            program = self.start("modelet", "predict", run, "-", stdin=end, stdout=full)
        os.close(end)
        os.write(write, b"apple pear\n")
        self.assert_ends(program, 1)  # the stream has not ended
        self.assertIn("standard output: No space left on device", program.stderr)

    def test_rows_before_a_bad_one_are_answered(self):
        run = self.run_of("xmc")
        program = self.piped("1:1 2:1\n3:1\n5:x\n7:1\n", "predict", run, "-", code=1)
        self.assertEqual(program.stdout.count("\n"), 2)
        self.assertIn("standard input:3: expected FEATURE:VALUE", program.stderr)
        self.assertIn("xz -dc |", self.piped(b"\xfd7zXZ\x00 packed", "predict", run, "-", code=1).stderr)
        self.assertIn("longer than 64 MiB", self.piped("1" * (65 << 20), "predict", run, "-", code=1).stderr)
        self.assertIn("--queries FILE", self.piped("1:1\n", "predict", run, "-", "--sparse", code=2).stderr)
        tuned = self.piped("1:1 2:1\n", "predict", run, "-", "--sparse", "--queries", "data/test.txt", "--k", "3").stdout
        self.assertEqual(len(tuned.split()), 3)

    def test_names_with_spaces(self):
        run = self.run_of("csv")
        rows = [line.split("\t") for line in self.modelet("predict", run, "test.csv", "--k", "2", "--format", "tsv").stdout.splitlines()]
        events = self.modelet("predict", run, "test.csv", "--k", "2", "--format", "json").events()
        self.assertEqual(rows[0], ["sample", "rank", "label", "name", "score"])
        self.assertEqual([(int(row[0]), int(row[2]), row[3]) for row in rows[1:]],
                         [(event["sample"], entry["label"], entry["name"]) for event in events for entry in event["labels"]])
        self.assertTrue(all(row[3].startswith("my ") for row in rows[1:]))
        names = self.folder / "names.txt"
        names.write_text("".join(f"a\tb\\{i}\n" for i in range(LABELS)))
        xmc = self.run_of("xmc")
        (_, row) = self.modelet("predict", xmc, "data/test.txt", "--limit", "1", "--k", "1", "--format", "tsv", "--labels", names).stdout.splitlines()
        self.assertEqual(row.split("\t")[3], f"a\\tb\\\\{row.split()[2]}")
        self.assert_refused(2, "--format", "modelet", "predict", xmc, "data/test.txt", "--format", "xml")

    @staticmethod
    def calibration_error(pairs):
        """The calibration error of pairs (probability, right): the mean distance in bins of equal width, weighted by their size."""
        bins = {}
        for p, right in pairs:
            bins.setdefault(min(int(p * 10), 9), []).append(p - right)
        return sum(abs(sum(bin_)) for bin_ in bins.values()) / len(pairs)

    def test_probabilities(self):
        """Probabilities that are fitted on held-out training samples fit test samples better than the softmax does."""
        experiment = ("--set", "data.validation=0.2", "--set", "train.patience=0", "--set", "train.epochs=12")
        self.train("sure", *experiment)
        run = self.folder / "sure"
        truth = [set(map(int, line.split(" ")[0].split(","))) for line in (self.folder / "data/test.txt").read_text().splitlines()[1:]]
        first = self.modelet("predict", run, "data/test.txt", "--proba", "--json", "--k", "100")
        self.assertIn("that training held out", first.stderr)
        events = first.events()
        calibrated, plain = [], []
        for labels, event in zip(truth, events):
            scores = [entry["score"] for entry in event["labels"]]
            total = sum(math.exp(score - scores[0]) for score in scores)
            probabilities = [entry["probability"] for entry in event["labels"]]
            self.assertEqual(probabilities, sorted(probabilities, reverse=True))
            self.assertTrue(all(0 <= p <= 1 for p in probabilities))
            for entry in event["labels"][:5]:
                right = entry["label"] in labels
                calibrated.append((entry["probability"], right))
                plain.append((math.exp(entry["score"] - scores[0]) / total, right))
        self.assertLess(self.calibration_error(calibrated), 0.05)
        self.assertLess(self.calibration_error(calibrated), 0.6 * self.calibration_error(plain))
        again = self.modelet("predict", run, "data/test.txt", "--proba", "--k", "1", "--limit", "1")
        self.assertEqual(again.stderr, "", "kept beside the checkpoint")
        self.assertAlmostEqual(float(again.stdout.split(":")[1]), events[0]["labels"][0]["probability"], places=4)
        (kept,) = run.glob("checkpoints/*/calibration.json")
        self.assertEqual(json.loads(kept.read_text())["rows"], 320)

    def test_what_probabilities_are_fitted_on(self):
        run = self.folder / "of-test"
        shutil.copytree(self.run_of("xmc"), run)
        self.assertIn("samples of " + str(self.folder / "data/test.txt"),
                      self.modelet("predict", run, "data/test.txt", "--proba", "--limit", "1").stderr)
        self.assertIn("data/train.txt", self.modelet("predict", run, "data/test.txt", "--proba", "--limit", "1", "--calibrate", "data/train.txt").stderr)
        few = self.folder / "few.txt"
        few.write_text("".join((self.folder / "data/train.txt").read_text().splitlines(keepends=True)[1:20]))
        few.write_text(f"19 400 {LABELS}\n" + few.read_text())
        self.assert_refused(2, ["few.txt", "at least 50"], "modelet", "predict", run, "data/test.txt", "--proba", "--calibrate", few)
        self.assert_refused(2, "--proba", "modelet", "predict", run, "data/test.txt", "--calibrate", few)
        # A sigmoid gives probabilities by itself, which are calibrated as well.
        for event in self.modelet("predict", self.run_of("tab"), "test.tab", "--proba", "--json", "--limit", "20").events():
            for entry in event["labels"]:
                self.assertTrue(0 < entry["probability"] < 1)


if __name__ == "__main__":
    unittest.main()
