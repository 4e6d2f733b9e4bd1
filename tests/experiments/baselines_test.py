"""experiments/baselines: two ranks learn what one process learns. Runs real PyTorch processes on a cluster, which needs root."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/baselines"))
import launch
from launch import clusters

PYTHON = "/usr/bin/python3"  # only Debian's Python sees Debian's torch
FEATURES, LABELS, HIDDEN, BATCH, STEPS = 500, 400, 16, 64, 60


class Baselines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.data = pathlib.Path(cls.temporary.name)
        subprocess.run([pathlib.Path(os.environ["MODELET_PROGRAMS"]) / "modelet", "data", "synth", cls.data, "--rows", str(STEPS * BATCH), "--rows-test", "500",
                        "--features", str(FEATURES), "--labels", str(LABELS), "--text"], check=True, stdout=subprocess.DEVNULL)

    def options(self, *more):
        return ["--train", self.data / "train.txt", "--test", self.data / "test.txt", "--hidden", HIDDEN, "--batch", BATCH, "--lr", 1e-2, *more]

    def alone(self, *more):
        words = [str(word) for word in [*self.options("--epochs", 1, "--threads", 1), *more]]
        done = subprocess.run([PYTHON, "-B", ROOT / "experiments/baselines/pytorch_sampled.py", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, check=True, timeout=60)
        found = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(found["steps"], STEPS)
        return found["p_at_1"], found["evaluations"][-1]["loss"]

    def together(self, family, *more):
        with clusters.Cluster(2, "none") as cluster:
            found = launch.launch(cluster, PYTHON, family, self.options("--steps", STEPS, *more), seconds=60)
        return found["curve"][-1]["p_at_1"], found["curve"][-1]["loss"], found["sent_bytes"]

    def test_sharded(self):
        """The results differ no more than with other draws and other initial weights. A softmax with the wrong normaliser would learn
        nothing."""
        precision, loss = self.alone("--negatives", 100)
        shared_precision, shared_loss, sent = self.together("sharded", "--negatives", 100)
        self.assertAlmostEqual(shared_loss / loss, 1.0, delta=0.04)
        self.assertAlmostEqual(shared_precision, precision, delta=0.1)
        for count in sent:  # half of the hidden layer, of its gradient, and three numbers of each sample, in fp32
            self.assertGreater(count, 4 * BATCH * (HIDDEN + 3))
            self.assertLess(count, 2.5 * 4 * BATCH * (HIDDEN + 3))

    def test_data_parallel(self):
        precision, loss = self.alone("--full")
        for mode in ("dense", "sparse"):
            with self.subTest(mode=mode):
                shared_precision, shared_loss, sent = self.together("ddp", "--mode", mode)
                self.assertAlmostEqual(shared_loss / loss, 1.0, delta=0.04)
                self.assertAlmostEqual(shared_precision, precision, delta=0.1)
                if mode == "dense":  # two ranks: half of all parameters in each of two rounds
                    self.assertGreater(min(sent), 4 * HIDDEN * (FEATURES + LABELS))

    def test_a_failure_is_told(self):
        with self.assertRaisesRegex(launch.BaselineFailed, r"(?s)rank \d of sharded ended with exit code 1: .*no-such-file"):
            self.together("sharded", "--train", self.data / "no-such-file")
        with clusters.Cluster(2, "none") as cluster, self.assertRaisesRegex(launch.BaselineFailed, "rank 0 of sharded was still running after 0.1 s"):
            launch.launch(cluster, PYTHON, "sharded", self.options("--steps", 1_000_000), seconds=0.1)


def why_not():
    if subprocess.run([PYTHON, "-c", "import torch, numpy"], stderr=subprocess.DEVNULL).returncode:
        return f"{PYTHON} has no torch (Debian: apt install python3-torch python3-numpy)"
    try:
        with clusters.Cluster(1, "none"):
            return None
    except clusters.CannotRun as reason:
        return str(reason)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(clusters.EXIT_CANNOT_RUN)
    unittest.main()
