"""`modelet eval` and `modelet predict` on checkpoints of one and of four nodes, with and without hash tables."""
import shutil
import unittest

from programs import LABELS, ProgramTest, checkpoint_files, finished

TEST_ROWS = 1000


class Model(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runs = {}

    def trained(self, name, *arguments):
        """The run's folder and its last event; trained once for all tests."""
        if name not in self.runs:
            self.runs[name] = finished(self.train(name, *arguments))
        return self.folder / name, self.runs[name]

    def dense(self):
        return self.trained("dense")

    def hashed(self):
        return self.trained("hashed", "--set", "sampling.mode=lsh", "--set", "sampling.uniform=64", "--set", "sampling.bits=4",
                            "--set", "sampling.rehash_every=10")

    def evaluated(self, run, *arguments):
        (line,) = self.modelet("eval", run, "data/test.txt", "--json", *arguments).events()
        self.assertEqual((line["event"], line["samples"]), ("evaluated", TEST_ROWS))
        return line

    def predicted(self, run, *arguments):
        return self.modelet("predict", run, "data/test.txt", "--json", *arguments).events()

    def test_eval_is_what_training_said(self):
        run, end = self.dense()
        for path in (run, end["checkpoint"]):
            line = self.evaluated(path)
            for key in ("p_at_1", "p_at_3", "p_at_5"):
                self.assertAlmostEqual(line[key], end[key], places=12)
            self.assertEqual(line["step"], end["steps"])
        line = self.evaluated(run, "--k", "5,2", "--threads", "2")
        self.assertEqual({key for key in line if key.startswith("p_at_")}, {"p_at_2", "p_at_5"})
        self.assertAlmostEqual(line["p_at_5"], end["p_at_5"], places=12)
        prepared = self.modelet("eval", run, "data/test.mlt", "--json").events()[0]
        self.assertEqual(prepared["p_at_1"], end["p_at_1"])
        people = self.modelet("eval", run, "data/test.txt")
        self.assertIn(f"P@1   {end['p_at_1']:.4f}", people.stdout)

    def test_checkpoint_of_four_nodes(self):
        run, end = self.trained("four", "--nodes", "4")
        line = self.evaluated(run)
        for key in ("p_at_1", "p_at_3", "p_at_5"):
            self.assertAlmostEqual(line[key], end[key], delta=2 / TEST_ROWS)
        _, one = self.dense()
        self.assertEqual(set(checkpoint_files(end["checkpoint"])), set(checkpoint_files(one["checkpoint"])))

    def test_sparse(self):
        run, end = self.hashed()
        self.assertAlmostEqual(self.evaluated(run)["p_at_1"], end["p_at_1"], places=12)
        self.assertAlmostEqual(self.evaluated(run, "--sparse")["p_at_1"], end["p_at_1"], delta=0.05)
        self.assert_refused(2, ["hash tables", "--sparse"], "modelet", "eval", self.dense()[0], "data/test.txt", "--sparse")
        self.assert_refused(2, ["hash tables", "--sparse"], "modelet", "predict", self.dense()[0], "data/test.txt", "--sparse")

    def test_predict(self):
        run, end = self.dense()
        lines = self.predicted(run)
        self.assertEqual([line["sample"] for line in lines], list(range(TEST_ROWS)))
        for line in lines:
            scores = [entry["score"] for entry in line["labels"]]
            self.assertEqual(len(scores), 5)
            self.assertEqual(scores, sorted(scores, reverse=True))
        truth = [line.split(" ")[0].split(",") for line in (self.folder / "data/test.txt").read_text().splitlines()[1:]]
        hits = sum(str(line["labels"][0]["label"]) in labels for line, labels in zip(lines, truth))
        self.assertAlmostEqual(hits / TEST_ROWS, end["p_at_1"], places=12)

        some = self.predicted(run, "--k", "2", "--limit", "300")
        self.assertEqual([line["labels"] for line in some], [line["labels"][:2] for line in lines[:300]])
        self.assertEqual(len(self.predicted(run, "--k", "1000", "--limit", "1")[0]["labels"]), LABELS)

    def test_label_names(self):
        run, _ = self.dense()
        names = self.folder / "names.txt"
        names.write_text("".join(f"label {i} <ä>\n" for i in range(LABELS)))
        (line,) = self.predicted(run, "--limit", "1", "--labels", names)
        for entry in line["labels"]:
            self.assertEqual(entry["name"], f"label {entry['label']} <ä>")
        people = self.modelet("predict", run, "data/test.txt", "--limit", "3", "--k", "2", "--labels", names)
        self.assertEqual(len(people.stdout.splitlines()), 3)
        self.assertIn(line["labels"][0]["name"], people.stdout.splitlines()[0])
        names.write_bytes(b"".join(b"label %d \xe4\n" % i for i in range(LABELS)))
        (line,) = self.predicted(run, "--limit", "1", "--labels", names)
        for entry in line["labels"]:
            self.assertEqual(entry["name"], f"label {entry['label']} \ufffd", "not UTF-8, but JSON all the same")
        names.write_text("too few\n")
        self.assert_refused(1, "names.txt", "modelet", "predict", run, "data/test.txt", "--labels", names)

    def test_other_data(self):
        run, _ = self.dense()
        other = self.folder / "other.txt"
        other.write_text("1 400 7\n0 1:1\n")
        self.assert_refused(2, [str(other), "7 labels", str(LABELS)], "modelet", "eval", run, other)

    def test_damaged_checkpoint(self):
        run, _ = self.dense()
        checkpoint = self.folder / "damaged"
        shutil.copytree(self.runs["dense"]["checkpoint"], checkpoint)
        victim = sorted(checkpoint.glob("output.*.safetensors"))[2]
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 0x10
        victim.write_bytes(content)
        for verb in ("eval", "predict"):
            self.assert_refused(1, victim.name, "modelet", verb, checkpoint, "data/test.txt")
        self.assert_refused(1, victim.name, "modelet", "train", self.experiment, "--out", self.folder / "from-damaged", "--resume",
                            checkpoint)
        victim.write_bytes(content[:-1])
        self.assert_refused(1, victim.name, "modelet", "eval", checkpoint, "data/test.txt")
        victim.unlink()
        self.assert_refused(1, victim.name, "modelet", "eval", checkpoint, "data/test.txt")
        index = checkpoint / "index.json"
        index.write_text(index.read_text()[:-200])
        self.assert_refused(1, str(checkpoint), "modelet", "eval", checkpoint, "data/test.txt")


if __name__ == "__main__":
    unittest.main()
