"""modelet tune: what it measures, where it writes the result, and that training uses it unless the user says otherwise."""
import json
import unittest

from programs import ProgramTest


class Tune(ProgramTest):
    def setUp(self):
        super().setUp()
        self.tuned = self.folder / "small.tuned.toml"
        self.addCleanup(lambda: self.tuned.unlink(missing_ok=True))

    def test_chooses_and_training_takes_it(self):
        lines = [json.loads(line) for line in self.modelet(
            "tune", self.experiment, "--steps", "20", "--slowdown", "1e2", "--json",
            "--set", "sampling.common=16").stdout.splitlines()]
        trials, chosen = lines[:-1], lines[-1]
        self.assertEqual({line["event"] for line in trials}, {"trial"})
        previews = [trial for trial in trials if trial["retrieval"] == "preview"]
        tables = [trial for trial in trials if trial["retrieval"] == "tables"]
        self.assertEqual({trial["family"] for trial in tables}, {"dwta", "simhash", "minhash"})
        self.assertGreater(max(trial["recall"] for trial in previews), 0)
        self.assertEqual(chosen["event"], "tuned")
        self.assertEqual((len(previews) > 0, len(tables)), (True, 54))
        self.assertEqual(len(trials), len(previews) + len(tables))
        most = max(trial["recall"] for trial in trials)
        self.assertGreater(most, 0)
        fast = [trial for trial in trials if trial["slowdown"] <= 100]
        self.assert_documented(lines, ["trial", "tuned"])
        self.assertEqual(chosen["recall"], max(trial["recall"] for trial in fast))
        text = self.tuned.read_text()
        for key in ("rank", "tables", "bits", "bucket", "candidates"):
            self.assertIn(f"\n{key} = {chosen[key]}\n", text)
        program = self.train("tuned", "--set", "sampling.mode=lsh", "--set", "sampling.tables=3", "--set", "train.epochs=1")
        self.assertIn("small.tuned.toml", program.stderr)
        used = (self.folder / "tuned/experiment.toml").read_text()
        self.assertIn(f"\nbits = {chosen['bits']}\n", used)
        self.assertIn("\ntables = 3\n", used)

    def test_the_fastest_if_none_is_fast_enough(self):
        lines = [json.loads(line) for line in self.modelet(
            "tune", self.experiment, "--steps", "5", "--slowdown", "0", "--json", "--set", "sampling.common=16").stdout.splitlines()]
        self.assertEqual(lines[-1]["slowdown"], min(trial["slowdown"] for trial in lines[:-1]))

    def test_text(self):
        """Data that an encoder reads."""
        words = [f"__label__{i % 20} word{i % 20} word{i % 7} word{i % 11}\n" for i in range(400)]
        for name in ("train", "test"):
            (self.folder / f"labelled-{name}.txt").write_text("".join(words))
        self.modelet("tune", self.experiment, "--steps", "5", "--set", "data.train=labelled-train.txt", "--set", "data.test=labelled-test.txt")
        self.assertTrue(self.tuned.exists())

    def test_another_tuning_before_a_resume(self):
        """A run keeps its hash tables: a resume after another tuning is refused with the names of the keys, and --set brings the old
        values back."""
        def tuned(tables, bits):
            self.tuned.write_text(f"[sampling]\ntables = {tables}\nbits = {bits}\n")
        lsh = ("--set", "sampling.mode=lsh", "--set", "sampling.retrieval=tables")
        tuned(4, 5)
        first = self.train("run", *lsh, "--set", "train.epochs=1").events("finished")[0]
        resume = (*lsh, "--set", "train.epochs=2", "--resume", self.folder / "run")
        for tables, bits, key in ((6, 5, "sampling.tables"), (4, 6, "sampling.bits")):
            tuned(tables, bits)
            self.assertIn(f"another {key}", self.train("run", *resume, code=2).stderr)
        program = self.train("run", *resume, "--set", "sampling.bits=5")
        self.assertEqual(program.events("finished")[0]["steps"], 2 * first["steps"])

    def test_errors(self):
        self.assert_refused(2, "--slowdown", "modelet", "tune", self.experiment, "--slowdown", "-1")
        self.assert_refused(2, "--steps", "modelet", "tune", self.experiment, "--steps", "0")
        self.assert_refused(1, ["no-such-file", "data.train"], "modelet", "tune", self.experiment, "--set",
                            "data.train=no-such-file.txt")
        self.tuned.write_text("[train]\nepochs = 3\n")
        self.assert_refused(2, ["small.tuned.toml", "[sampling]", "modelet tune"], "modelet", "train", self.experiment)


if __name__ == "__main__":
    unittest.main()
