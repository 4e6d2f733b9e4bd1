"""experiments: what the studies of private data conclude, from figures made by hand and a program that stands for modelet."""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "experiments/bench"), str(ROOT / "experiments/cluster")]
import membership_attack
import owners_against_flower
import owners_away

# A model that has learned the samples whose first label is 0: it is sure of their labels, and of others it has no opinion. Of the labels
# it names two.
PROGRAM = """#!/usr/bin/env python3
import json, os, sys
verb, *rest = sys.argv[1:]
if verb == "train":
    os.makedirs(rest[rest.index("--out") + 1])
    print(json.dumps({"event": "finished", "p_at_1": 0.5}))
if verb == "predict":
    samples = open(rest[1]).read().splitlines()[1:][:int(rest[rest.index("--limit") + 1])]
    for sample in samples:
        label = int(sample.split(" ")[0].split(",")[0])
        print(json.dumps({"labels": [{"label": label, "score": 3.0 if label == 0 else 0.0}, {"label": 9, "score": -2.0}]}))
"""


class MembershipAttack(unittest.TestCase):
    def test_area_under_curve(self):
        area = membership_attack.area_under_curve
        self.assertEqual(area([1, 2], [3, 4]), 1)
        self.assertEqual(area([3, 4], [1, 2]), 0)
        self.assertEqual(area([1, 1], [1, 1]), 0.5)
        self.assertEqual(area([1, 3], [2, 4]), 3 / 4)
        self.assertEqual(area([1, 2], [2, 3]), (1 + 1 + 0.5 + 1) / 4)
        members, others = [1, 5, 2, 2, 7], [3, 2, 9]
        pairs = [(member < other) + (member == other) / 2 for member in members for other in others]
        self.assertAlmostEqual(area(members, others), sum(pairs) / len(pairs))

    def test_log_sigmoid(self):
        for score in (-3.0, 0.0, 2.0):
            self.assertAlmostEqual(membership_attack.log_sigmoid(score), math.log(1 / (1 + math.exp(-score))))
        self.assertEqual(membership_attack.log_sigmoid(-1e4), -1e4)

    def test_from_files_to_a_line(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program = folder / "modelet"
            for file, samples in {"a.txt": ["0 1:1", "0,5 2:1"], "b.txt": ["3 1:1"], "others.txt": ["2 1:1", "3 2:1"]}.items():
                (folder / file).write_text("\n".join([f"{len(samples)} 4 10", *samples]) + "\n")
            command = [sys.executable, ROOT / "experiments/bench/membership_attack.py", folder / "experiment.toml", "--owners",
                       f"{folder / 'a.txt'},{folder / 'b.txt'}", "--others", folder / "others.txt", "--modelet", program, "--folder", folder,
                       "--json", folder / "lines", "--noise", "2"]
            program.write_text(PROGRAM)
            program.chmod(0o755)
            subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
            lines = [json.loads(line) for line in (folder / "lines").read_text().splitlines()]
        self.assertEqual([line["run"] for line in lines], ["all samples in one place", "masked sums", "masked sums, noise 2"])
        sure, none, least = (math.log1p(math.exp(-score)) for score in (3, 0, -2))
        for line in lines:
            self.assertEqual(line["area_under_curve"], 0.5, "the label that it does not name makes one of the two members the last of all")
            self.assertAlmostEqual(line["loss_of_members"], (sure + (sure + least) / 2) / 2)
            self.assertAlmostEqual(line["loss_of_others"], none)

    def test_all_samples_in_one_file(self):
        with tempfile.TemporaryDirectory() as name:
            files = [pathlib.Path(name) / each for each in ("a", "b")]
            files[0].write_text("2 4 10\n0 1:1\n1 2:1\n")
            files[1].write_text("1 4 10\n2 3:1\n")
            membership_attack.pool(files, files[0].with_name("all"))
            self.assertEqual(files[0].with_name("all").read_text(), "3 4 10\n0 1:1\n1 2:1\n2 3:1\n")


class AgainstFlower(unittest.TestCase):
    @staticmethod
    def row(seconds, size):
        return {"seconds": seconds, "bytes": size}

    def test_bounds(self):
        missed = owners_against_flower.missed_bounds
        peer = self.row(100, 3000)
        self.assertEqual(missed({"flower": peer, "rows": self.row(99, 300), "sums": self.row(99, 1000)}), [])
        self.assertEqual(missed({"flower": peer, "rows": self.row(99, 330), "sums": self.row(100, 1000)}),
                         ["rows: 0.11 of Flower's bytes, more than 0.10", "sums: 1.00 of Flower's seconds"])
        self.assertEqual(missed({"flower": None, "rows": self.row(1, 1), "sums": None}),
                         ["flower did not reach the P@1", "sums did not reach the P@1"])

    def test_the_first_evaluation_counts(self):
        evaluations = [{"p_at_1": 0.4}, {"p_at_1": 0.6, "round": 10}, {"p_at_1": 0.7, "round": 20}]
        self.assertEqual(owners_against_flower.reached({"evaluations": evaluations}, 0.6)["round"], 10)
        self.assertIsNone(owners_against_flower.reached({"evaluations": evaluations}, 0.8))


class Away(unittest.TestCase):
    def test_what_must_hold(self):
        undisturbed = {"steps": 900, "p_at_1": 0.66}
        self.assertEqual(owners_away.what_is_wrong(undisturbed, {"steps": 900, "p_at_1": 0.6551}), [])
        self.assertEqual(owners_away.what_is_wrong(undisturbed, {"steps": 899, "p_at_1": 0.6549}),
                         ["899 steps, not 900", "P@1 0.6549, not 0.6600"])


if __name__ == "__main__":
    unittest.main()
