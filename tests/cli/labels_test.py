"""modelet labels: labels that a trained model gets, loses, or that get another name."""
import unittest

from programs import ProgramTest


class LabelsTest(ProgramTest):
    def best_of(self, text, *arguments):
        """Names of the best labels of a text, best first."""
        questions = self.folder / "questions.txt"
        questions.write_text(text + "\n")
        return self.modelet("predict", self.folder / "run", questions, "--k", "3", *arguments).stdout.split()

    def test_of_a_model_of_words(self):
        lines = ["__label__games tile board players\n", "__label__tea green leaves hot water\n", "__label__cars four wheels engine\n"]
        (self.folder / "train.txt").write_text("".join(lines * 30))
        self.modelet("train", self.folder / "train.txt", self.folder / "train.txt", "--out", self.folder / "run", "--json")
        (self.folder / "new.txt").write_text("__label__pottery board water\n" * 5 + "__label__tea green\n")
        added = self.modelet("labels", "add", self.folder / "run", self.folder / "new.txt", "--json").events()
        self.assert_documented(added, {"labels"})
        self.assertEqual((added[0]["what"], added[0]["changed"], added[0]["labels"]), ("added", 1, 4))
        self.assertIn("pottery", self.best_of("board water")[0])
        self.assertIn("tea", self.best_of("green leaves")[0])
        self.assert_refused(2, "has no label that the model", "modelet", "labels", "add", self.folder / "run", self.folder / "new.txt")

        (self.folder / "right.txt").write_text("__label__cars green engine\n" * 3)
        corrected = self.modelet("learn", self.folder / "run", self.folder / "right.txt", "--json").events()
        self.assert_documented(corrected, {"labels"})
        self.assertEqual((corrected[0]["what"], corrected[0]["changed"], corrected[0]["samples"]), ("corrected", 1, 3))
        self.assertIn("cars", self.best_of("green engine")[0])
        self.assertIn("tea", self.best_of("green leaves")[0])
        (self.folder / "strange.txt").write_text("__label__boats green engine\n")
        self.assert_refused(2, "has no label that the model", "modelet", "learn", self.folder / "run", self.folder / "strange.txt")
        (self.folder / "train.txt").unlink()
        self.assert_refused(2, "would forget", "modelet", "learn", self.folder / "run", self.folder / "right.txt")

        self.modelet("labels", "rename", self.folder / "run", "pottery", "ceramics")
        self.assertIn("ceramics", self.best_of("board water")[0])
        self.modelet("labels", "remove", self.folder / "run", "tea")
        self.assertNotIn("tea", " ".join(self.best_of("green leaves")))
        self.assert_refused(2, "'tea' was removed already", "modelet", "labels", "remove", self.folder / "run", "tea")
        (self.folder / "train.txt").write_text("".join(lines * 30))
        (self.folder / "gone.txt").write_text("__label__tea green\n__label__cars engine\n")
        self.assert_refused(2, "has samples of the label 'tea', which was removed", "modelet", "learn", self.folder / "run", self.folder / "gone.txt")
        self.assert_refused(2, "'teas'", "modelet", "labels", "remove", self.folder / "run", "teas")

    def test_what_cannot_be_changed(self):
        (self.folder / "words.txt").write_text("a b c d e f\n" * 50)
        self.modelet("train", self.experiment, "--out", self.folder / "words", "--set", "data.format=words", "--set", f"data.train={self.folder / 'words.txt'}",
                     "--set", f"data.test={self.folder / 'words.txt'}", "--set", "words.min_count=1", "--set", "words.subsample=0",
                     "--set", "train.epochs=1", "--set", "sampling.mode=full")
        self.assert_refused(2, "of running text", "modelet", "labels", "add", self.folder / "words", self.folder / "words.txt")


if __name__ == "__main__":
    unittest.main()
