"""The other side of a comparison: PyTorch (pytorch_sampled.py) and fastText, each as Debian packages it."""

import pathlib
import shutil
import subprocess
import sys
import time

import measuring

BASELINE = measuring.ROOT / "experiments/baselines/pytorch_sampled.py"
# Two ways in which a user meets PyTorch's BLAS: OpenBLAS detects the CPU, or is told of its AVX-512. Values: --blas.
WAYS_OF_BLAS = {"as installed": "as-installed", "told its CPU": "told-cpu"}
INSTALL_PYTORCH = "Debian: apt install python3-torch python3-numpy libopenblas0-openmp"
INSTALL_FASTTEXT = "Debian: apt install fasttext"


# ---- PyTorch -------------------------------------------------------------------------------------------------------

def python_with_torch():
    """Debian's interpreter has its packages; the first `python3` on PATH may be another one."""
    for python in ("/usr/bin/python3", "python3"):
        try:
            found = subprocess.run([python, "-c", "import torch, numpy"], stderr=subprocess.DEVNULL).returncode == 0
        except OSError:
            found = False
        if found:
            return python
    sys.exit(f"no Python with torch and numpy found. {INSTALL_PYTORCH}")


def run_pytorch(python, train, test, options, flags=()):
    """The "finished" event of pytorch_sampled.py; `options` are its options with values ("max_steps": 100)."""
    valued = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
    event = measuring.run_json_lines([python, BASELINE, "--train", train, "--test", test, *valued, *flags])[-1]
    if event["blas"].startswith("libblas"):
        sys.exit(f"PyTorch runs on {event['blas']}, the reference BLAS, several times slower than it can be: "
                 f"a comparison would say nothing. {INSTALL_PYTORCH}")
    return event


# ---- fastText ------------------------------------------------------------------------------------------------------

class FastText:
    """Hierarchical softmax on the words "f<feature>" of a row; fastText knows no weights of words.

    `folder` holds its text and its models. fastText parses the text again in every epoch. So that this does not count against it, training
    time is the wall time of `fasttext supervised` minus that of the same run with vectors of length one, which reads and counts the same
    words and walks the same trees.
    """

    def __init__(self, train, test, folder, threads):
        if not shutil.which("fasttext"):
            sys.exit(f"fasttext is not installed. {INSTALL_FASTTEXT}")
        self.folder, self.threads = folder, threads
        self.train = self._write(train, "train.txt")
        self.test = self._write(test, "test.txt", with_labels=False)
        self.truth = [labels for labels, _ in measuring.xmc_rows(test)]

    def _write(self, source, name, with_labels=True):
        path = self.folder / f"fasttext-{name}"
        with open(path, "w", encoding="ascii") as file:
            for labels, features in measuring.xmc_rows(source):
                words = [f"__label__{label}" for label in labels] if with_labels else []
                file.write(" ".join(words + [f"f{feature}" for feature, _ in features]) + "\n")
        return path

    def _supervised(self, dim, epochs, rate):
        """Seconds of one training."""
        started = time.monotonic()
        subprocess.run(["fasttext", "supervised", "-input", self.train, "-output", self.folder / f"fasttext-{dim}", "-dim", str(dim),
                        "-loss", "hs", "-epoch", str(epochs), "-lr", str(rate), "-thread", str(self.threads), "-verbose", "0"],
                       check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - started

    def _precision(self, dim):
        """P@1 over all test rows. A row without a known word is a miss."""
        lines = subprocess.run(["fasttext", "predict", self.folder / f"fasttext-{dim}.bin", self.test, "1"],
                               check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        if len(lines) != len(self.truth):
            sys.exit(f"fasttext predict gave {len(lines)} lines for {len(self.truth)} test rows")
        hits = sum(line.removeprefix("__label__") in labels for line, labels in zip(lines, self.truth))
        return hits / len(self.truth)

    def run(self, dim, epochs, rate):
        """One training with `rate` falling to zero over `epochs`, as an event with its one point of the curve."""
        seconds = self._supervised(dim, epochs, rate)
        precision = self._precision(dim)
        parsing = self._supervised(1, epochs, rate)
        return {"epochs": epochs, "learning_rate": rate, "wall_seconds": seconds, "parsing_seconds": parsing,
                "train_seconds": seconds - parsing, "p_at_1": precision}
