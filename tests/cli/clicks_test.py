"""A click log from its generator to a trained model: one output, and most rows without a label."""
import json
import math
import pathlib
import subprocess
import unittest

from programs import PROGRAMS, ProgramTest, finished, losses

EXPERIMENT = pathlib.Path(__file__).parents[2] / "experiments/clicks.toml"


class Clicks(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.synth = subprocess.run([PROGRAMS / "modelet", "data", "synth", "log", "--preset", "clicks", "--rows", "40000", "--rows-test", "8000"],
                                   cwd=cls.folder, env=cls.environment, check=True, capture_output=True, text=True).stdout

    def train_clicks(self, out, *arguments):
        settings = ["data.train=log/train.tsv", "data.test=log/test.tsv", "table.hash_features=16384", "table.bins=8", "model.hidden=[32,16]",
                    "train.epochs=1", "train.batch=256", "train.learning_rate=2e-3", "train.threads=1", "train.log_every=1"]
        return self.modelet("train", EXPERIMENT, "--out", out, "--json", *(word for s in settings for word in ("--set", s)), *arguments)

    def test_log_and_truth(self):
        truth = json.loads((self.folder / "log/truth.json").read_text())
        for figure in (truth["auc"], truth["additive_auc"], truth["log_loss"]):
            self.assertIn(f"{figure:.4f}", self.synth)
        rows = (self.folder / "log/test.tsv").read_text().splitlines()
        self.assertEqual({row.count("\t") for row in rows}, {39})
        self.assertAlmostEqual(sum(row[0] == "1" for row in rows) / len(rows), truth["click_rate"])
        self.assert_refused(2, "--labels does not go with --preset clicks", "modelet", "data", "synth", "bad", "--preset", "clicks",
                            "--labels", "3")

    def test_training(self):
        """It learns; two nodes learn the same, although one has no output; `eval` reads the log as training did."""
        truth = json.loads((self.folder / "log/truth.json").read_text())
        one = self.train_clicks("one")
        end = finished(one)
        self.assertGreater(end["auc"], 0.62)
        self.assertLess(end["auc"], truth["auc"])
        rate = truth["click_rate"]
        # Better than always predicting the share of clicks. Log-loss is over all rows, with and without clicks.
        constant = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        self.assertLess(truth["log_loss"], end["log_loss"])
        self.assertLess(end["log_loss"], constant)
        # The output starts at the log-odds of the share of clicks.
        self.assertLess(abs(losses(one)[1] - constant), 0.1)

        two = self.train_clicks("two", "--nodes", "2", "--set", "exchange.codec=none")
        for step, loss in losses(one).items():
            self.assertAlmostEqual(loss, losses(two)[step], delta=1e-4 * abs(loss), msg=f"step {step}")
        self.assertAlmostEqual(finished(two)["auc"], end["auc"], delta=1e-4)

        (evaluated,) = self.modelet("eval", "two", "log/test.tsv", "--json").events()
        self.assertAlmostEqual(evaluated["auc"], finished(two)["auc"], places=5)
        self.assertAlmostEqual(evaluated["log_loss"], finished(two)["log_loss"], places=5)
        self.assertIn("click", self.modelet("predict", "two", "log/test.tsv", "--k", "1", "--limit", "3").stdout)

    def test_damaged_log(self):
        rows = (self.folder / "log/train.tsv").read_text().splitlines()[:5]
        damaged = self.folder / "damaged.tsv"
        for row, text in (("2" + rows[2][1:], "damaged.tsv:3: column 'click': a label must be 0 or 1"),
                          (rows[2] + "\tmore", "damaged.tsv:3: expected 40 fields"),
                          (rows[2].split("\t", 2)[0] + "\tten\t" + rows[2].split("\t", 2)[2],
                           "damaged.tsv:3: column 'i1': expected a number")):
            damaged.write_text("\n".join([*rows[:2], row, *rows[3:]]))
            self.assert_refused(1, text, "modelet", "data", "describe", damaged, "--set", "data.format=criteo")
        self.assert_refused(2, "table.columns 'cot:a' has the unknown kind 'cot'; did you mean 'cat'?", "modelet", "train", EXPERIMENT,
                            "--set", "table.columns=['label:x','cot:a']")


if __name__ == "__main__":
    unittest.main()
