"""`modelet data`, `plan`, `version` and the help of every verb."""
import csv
import json
import lzma
import os
import re
import unittest

from programs import LABELS, ProgramTest, finished


class Data(ProgramTest):
    def described(self, path, *arguments):
        return json.loads(self.modelet("data", "describe", path, "--json", *arguments).stdout)

    def test_a_text_with_a_long_name(self):
        """Its entry in the cache has a longer name of its own."""
        path = self.folder / ("n" * 251 + ".txt")
        path.write_bytes((self.folder / "data/train.txt").read_bytes())
        self.modelet("data", "describe", path)

    def test_round_trip(self):
        """Text, its prepared form and compressed text are the same data."""
        text = self.described("data/train.txt")
        self.assertEqual([text[key] for key in ("format", "rows", "features", "labels")], ["xmc", 1600, 400, LABELS])
        lines = (self.folder / "data/train.txt").read_text().splitlines()[1:]
        self.assertEqual(text["nonzeros"], sum(line.count(":") for line in lines))
        self.assertAlmostEqual(text["labels_per_row"]["mean"], sum(1 + line.split(" ")[0].count(",") for line in lines) / 1600)
        counts = [entry["count"] for entry in text["label_statistics"]["most_frequent"]]
        self.assertEqual(counts, sorted(counts, reverse=True))

        self.modelet("data", "prepare", "data/train.txt", "train.mlt")
        prepared = self.described("train.mlt")
        self.assertEqual((prepared["format"], prepared["checksums"]), ("prepared", "ok"))
        self.assert_documented([text, prepared], {"Data file"})
        with lzma.open(self.folder / "train.txt.xz", "wb") as file:
            file.write((self.folder / "data/train.txt").read_bytes())
        for other in (prepared, self.described("train.txt.xz"), self.described("data/train.mlt")):
            for key in text.keys() - {"file", "format"}:
                self.assertEqual(other[key], text[key], key)
        self.assertEqual((self.folder / "train.mlt").read_bytes(), (self.folder / "data/train.mlt").read_bytes())
        self.assertIn("1600", self.modelet("data", "describe", "data/train.txt").stdout)

    def split(self, source, *arguments, owners):
        """The records of each owner's file, and whether a second time gives the same bytes."""
        folders = [self.folder / f"{self._testMethodName}-{number}" for number in (1, 2)]
        for folder in folders:
            self.modelet("data", "split", source, folder, "--owners", owners, "--force", *arguments)
        files = [sorted(folder.iterdir()) for folder in folders]
        self.assertEqual([file.read_bytes() for file in files[0]], [file.read_bytes() for file in files[1]])
        self.assertEqual(len(files[0]), owners)
        return files[0]

    def test_split_at_random(self):
        source = self.folder / "data/train.txt"
        rows = source.read_text().splitlines()[1:]
        files = self.split(source, owners=3)
        own = [file.read_text().splitlines() for file in files]
        self.assertEqual(sorted(line for lines in own for line in lines[1:]), sorted(rows))
        for file, lines in zip(files, own):
            self.assertEqual(lines[0], f"{len(lines) - 1} 400 {LABELS}")
            self.assertGreater(len(lines), 400)
            self.assertEqual(self.described(file)["rows"], len(lines) - 1)
        packed = self.folder / "train.txt.xz"
        packed.write_bytes(lzma.compress(source.read_bytes()))
        self.assertEqual([file.read_text().splitlines() for file in self.split(packed, owners=3)], own)
        other = self.split(source, "--seed", 2, owners=3)
        self.assertNotEqual(other[0].read_text().splitlines(), own[0])

    def test_split_by_labels(self):
        """The smaller alpha, the fewer owners have a label."""
        text = self.folder / "labelled.txt"
        text.write_text("".join(f"__label__{row % 20} w{row}\n" for row in range(4000)))
        def owners_of_a_label(alpha):
            files = self.split(text, "--by", f"dirichlet:{alpha}", owners=8)
            lines = [file.read_text().splitlines() for file in files]
            self.assertEqual(sum(map(len, lines)), 4000)
            return sum(len({line.split(" ")[0] for line in own if own}) for own in lines) / 20
        self.assertGreater(owners_of_a_label(100), 7.9)
        self.assertLess(owners_of_a_label(0.2), 7)

    def test_split_by_a_column(self):
        table = self.folder / "orders.csv"
        table.write_text('shop,title\n' + "".join(f'{"ABCDE"[row * row % 5]},"said ""{row}"", twice"\n' for row in range(500)))
        files = self.split(table, "--by", "column:shop", owners=2)
        tables = [list(csv.DictReader(file.open(newline=""))) for file in files]
        self.assertEqual(sorted(int(row["title"].split('"')[1]) for rows in tables for row in rows), list(range(500)))
        self.assertFalse({row["shop"] for row in tables[0]} & {row["shop"] for row in tables[1]})
        for text, arguments in (("no column 'shoop'; did you mean 'shop'", ("--by", "column:shoop")), ("write random", ("--by", "dirichlet:x")),
                                ("would get none", ("--by", "column:shop", "--owners", "9"))):
            self.assert_refused(2, text, "modelet", "data", "split", table, self.folder / "none", *arguments)
        self.assert_refused(2, "has no columns", "modelet", "data", "split", self.folder / "data/train.txt", self.folder / "none", "--by", "column:shop")

    def test_split_by_lines(self):
        """Lines of another file say which samples belong together."""
        source, groups = self.folder / "data/train.txt", self.folder / "groups.txt"
        samples = source.read_text().splitlines()[1:]
        group_of = [f"group {number * number % 7}" for number in range(len(samples))]
        groups.write_text("\n".join(group_of) + "\n")
        files = self.split(source, "--by", f"lines:{groups}", owners=3)
        own = [file.read_text().splitlines()[1:] for file in files]
        self.assertEqual(sorted(line for lines in own for line in lines), sorted(samples))
        groups_of = [{group for sample, group in zip(samples, group_of) if sample in set(lines)} for lines in own]
        self.assertEqual(sum(map(len, groups_of)), len(set(group_of)), "a group has one owner")
        for lines, text in ((group_of[:-1], "has more samples"), ([*group_of, "one"], "has more lines")):
            groups.write_text("\n".join(lines) + "\n")
            self.assert_refused(2, [str(groups), text, "a line for each sample"], "modelet", "data", "split", source, self.folder / "none", "--by",
                                f"lines:{groups}")

    def test_synth(self):
        """The seed determines every byte."""
        files = []
        for out, seed in (("s1", "5"), ("s2", "5"), ("s3", "6")):
            self.modelet("data", "synth", out, "--rows", "50", "--rows-test", "10", "--features", "300", "--labels", "9", "--seed",
                         seed)
            files.append((self.folder / out / "train.mlt").read_bytes())
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0], files[2])
        self.assertEqual(self.described("s1/test.mlt")["rows"], 10)

    def test_normalised_data_has_its_own_experiment(self):
        self.modelet("data", "prepare", "--normalize", "l2", "data/train.txt", "l2.mlt")
        self.assertEqual(self.described("l2.mlt")["normalize"], "l2")
        self.assert_refused(2, ["l2.mlt", "normali"], "modelet", "train", self.experiment, "--set", "data.train=l2.mlt")

    def test_like_takes_the_normalisation_too(self):
        self.modelet("data", "prepare", "--normalize", "l2", "data/train.txt", "like-train.mlt")
        scaled = ("--set", "data.train=like-train.mlt", "--set", "data.normalize=l2")
        for like, normalize in (("like-train.mlt", "l2"), ("data/train.mlt", "none")):
            for arguments in ((), ("--normalize", normalize)):
                self.modelet("data", "prepare", "--force", "--like", like, *arguments, "data/test.txt", "like-test.mlt")
                self.assertEqual(self.described("like-test.mlt")["normalize"], normalize)
        self.modelet("data", "prepare", "--force", "--like", "like-train.mlt", "data/test.txt", "like-test.mlt")
        end = finished(self.train("scaled", *scaled, "--set", "data.test=like-test.mlt", "--set", "train.epochs=1"))
        # A run takes the scaling from its experiment.
        self.modelet("data", "prepare", "--like", "scaled", "data/test.txt", "of-run.mlt")
        (line,) = self.modelet("eval", "scaled", "of-run.mlt", "--json").events()
        self.assertEqual(line["p_at_1"], end["p_at_1"])
        for like in ("like-train.mlt", "scaled"):
            self.assert_refused(2, [like, "l2", "--normalize"], "modelet", "data", "prepare", "--like", like, "--normalize", "none",
                                "data/test.txt", "x.mlt")
        self.assertFalse((self.folder / "x.mlt").exists())

    def test_nothing_is_replaced_unasked(self):
        text = (self.folder / "data/train.txt").read_bytes()
        for name in ("kept.txt", "same.txt"):
            (self.folder / name).write_bytes(text)
        prepare = ("modelet", "data", "prepare")
        for force in ((), ("--force",)):  # never over its own source
            self.assert_refused(2, ["kept.txt", "another file"], *prepare, *force, "kept.txt", "kept.txt")
            self.assert_refused(2, "kept.txt", *prepare, *force, "kept.txt", self.folder / "data/../kept.txt")
            self.assert_refused(2, "not a file", *prepare, *force, "kept.txt", "data")
            self.assert_refused(2, "not a file", *prepare, *force, "kept.txt", "/dev/null")
            self.assert_refused(2, "train.mlt", *prepare, *force, "--like", "data/train.mlt", "kept.txt", "data/train.mlt")
        self.assert_refused(2, ["same.txt", "--force"], *prepare, "kept.txt", "same.txt")
        self.assertEqual([(self.folder / name).read_bytes() for name in ("kept.txt", "same.txt")], [text, text])
        # Nor what another program writes at the same time.
        programs = [self.start(*prepare, "data/train.txt", "raced.mlt") for _ in range(3)]
        self.assertEqual(sorted(program.end() for program in programs), [0, 2, 2], [str(program) for program in programs])
        (line,) = self.modelet("data", "prepare", "--force", "--json", "kept.txt", "same.txt").events()
        self.assert_documented([line], {"prepared"})
        self.assertEqual((line["rows"], self.described("same.txt")["format"]), (1600, "prepared"))

        shape = ("--rows", "20", "--rows-test", "10", "--labels", "9")
        for kind, files in (((), ("train.mlt", "test.mlt")), (("--text",), ("train.txt", "test.txt")),
                            (("--preset", "clicks"), ("train.tsv", "test.tsv", "truth.json"))):
            arguments = ("data", "synth", "made", *kind, *(shape[:4] if "clicks" in kind else shape))
            for file in files:
                (self.folder / "made").mkdir(exist_ok=True)
                (self.folder / "made" / file).write_text("mine")
                self.assert_refused(2, [file, "--force"], "modelet", *arguments)
                self.assertEqual([path.name for path in (self.folder / "made").iterdir()], [file])
                (self.folder / "made" / file).unlink()
            (line,) = self.modelet(*arguments, "--json").events()
            self.assert_documented([line], {"made"})
            self.modelet(*arguments, "--force")
            for path in (self.folder / "made").iterdir():
                path.unlink()

    def test_pipes_are_refused_and_never_waited_for(self):
        os.mkfifo(self.folder / "pipe")
        for verb in (("data", "prepare", "pipe", "x.mlt"), ("data", "prepare", "data/train.txt", "pipe"), ("data", "describe", "pipe"),
                     ("data", "prepare", "--like", "pipe", "data/train.txt", "x.mlt"), ("bench", "data", "pipe"), ("train", "pipe"),
                     ("train", self.experiment, "--set", "data.train=pipe"), ("plan", self.experiment, "--set", "data.test=pipe")):
            with self.subTest(verb=verb):
                program = self.start("modelet", *verb)
                self.assertIn(program.end(30), (1, 2), program)
                self.assertIn("pipe", program.stderr)
                self.assertRegex(program.stderr, "is a pipe or a device|not a file|not a regular file")

    def test_a_header_that_cannot_be_right(self):
        wide = self.folder / "wide.txt"
        wide.write_text("1 5 2147483647\n0 1:1\n")
        self.assert_refused(1, ["wide.txt:1", "2147483647 labels"], "modelet", "data", "describe", wide)
        self.assert_refused(1, ["wide.txt:1", "2147483647 labels"], "modelet", "data", "prepare", wide, "wide.mlt")

    def test_errors(self):
        damaged = self.folder / "damaged.txt"
        damaged.write_text("2 10 10\n1 3:1\n1 10:1\n")
        self.assert_refused(1, "damaged.txt:3", "modelet", "data", "describe", damaged)
        self.assert_refused(1, "damaged.txt:3", "modelet", "data", "prepare", damaged, "damaged.mlt")
        self.assertFalse((self.folder / "damaged.mlt").exists())
        self.assert_refused(1, "nowhere.txt", "modelet", "data", "describe", "nowhere.txt")
        self.assert_refused(2, "prepared", "modelet", "data", "prepare", "data/train.mlt", "again.mlt")
        self.assert_refused(1, "no-folder", "modelet", "data", "prepare", "data/train.txt", "no-folder/train.mlt")
        self.assert_refused(2, "labels", "modelet", "data", "synth", "bad", "--labels", "-1")
        self.assert_refused(2, "noise", "modelet", "data", "synth", "bad", "--noise", "2")
        self.assert_refused(2, "family", "modelet", "data", "synth", "bad", "--family", "0")
        self.assert_refused(2, "family", "modelet", "data", "synth", "bad", "--shared", "1")


class Plan(ProgramTest):
    def test_table(self):
        shown = self.modelet("plan", self.experiment, "--nodes", "3").stdout
        for node in ("node-0", "node-1", "node-2"):
            self.assertIn(node, shown)
        parameters = 400 * 64 + 64 + LABELS * 64 + LABELS
        self.assertIn(str(parameters), re.sub(r"[,' ]", "", shown))

    def test_a_model_that_does_not_fit(self):
        program = self.assert_refused(1, ["memory", "node"], "modelet", "plan", self.experiment, "--memory-gib", "0.0001")
        self.assertRegex(program.stderr, r"[\d.]+ [KMG]iB are missing")
        self.assert_refused(2, "--nodes", "modelet", "plan", self.experiment, "--nodes", "0")
        self.assert_refused(2, "--memory-gib", "modelet", "plan", self.experiment, "--memory-gib", "-1")
        for option in ("--gflops", "--bf16-gflops", "--memory-gbps"):
            for wrong in ("0", "nan", "10,-1", "fast"):
                self.assert_refused(2, option, "modelet", "plan", self.experiment, option, wrong)


class Help(ProgramTest):
    def test_version(self):
        self.assertRegex(self.modelet("version").stdout, r"^modelet \d+\.\d+\.\d+ \(\w+\)\n$")

    def test_every_verb_has_an_example(self):
        def subcommands(text):
            section = re.split(r"\n(?:Subcommands|SUBCOMMANDS):\n", text)
            return re.findall(r"^  (\w+) ", section[1].split("\n\n")[0], re.MULTILINE) if len(section) > 1 else []
        verbs = [[verb] for verb in subcommands(self.modelet("--help").stdout)]
        self.assertGreaterEqual({verb for (verb,) in verbs}, {"train", "eval", "predict", "plan", "data", "submit", "list", "watch",
                                                             "stop", "nodes", "version"})
        for group in ("data", "bench"):
            verbs.remove([group])
            verbs += [[group, verb] for verb in subcommands(self.modelet(group, "--help").stdout)]
        self.assertIn(["data", "synth"], verbs)
        self.assertIn(["bench", "kernels"], verbs)
        for verb in verbs:
            shown = self.modelet(*verb, "--help").stdout
            self.assertRegex(shown, r"Examples?:\s", verb)
            self.assertIn("modelet " + " ".join(verb), shown.split("Example")[1], verb)
        for program in ("modelet-scheduler", "modelet-agent"):
            self.assertRegex(self.run_program(program, "--help").stdout, r"Examples?:\s")


if __name__ == "__main__":
    unittest.main()
