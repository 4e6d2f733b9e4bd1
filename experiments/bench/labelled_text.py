#!/usr/bin/env python3
"""Modelet against fastText on labelled text, from the same raw files to a trained model: seconds, P@1, P@5.

    experiments/datasets/make_debian_text.py --out experiments/datasets/debian-text
    experiments/bench/labelled_text.py

Seconds are the wall time of the whole program: reading and counting the text, training, writing the model. Modelet begins with an empty
cache, and its time includes one evaluation and one checkpoint, both at the end. The contestants run in turn, --repeats times, and
medians are compared. fastText runs with two settings (README.md has those that were tried): the fast one and the most accurate one.
Exit code 1: something is missing, a run failed, or a ratio is below --require.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import measuring
import peers

FASTTEXT = {
    "fastText, fast": "-dim 64 -wordNgrams 2 -minCount 2 -epoch 10 -lr 1.0",
    "fastText, accurate": "-dim 64 -wordNgrams 2 -epoch 25 -lr 0.5",
}
LABEL = "__label__"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--text", type=pathlib.Path, default=measuring.ROOT / "experiments/datasets/debian-text",
                        help="folder with train.txt and test.txt (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--require", type=float, default=0, help="exit 1 if fastText takes fewer times as long (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="file for every run's figures")
    return parser.parse_args()


def run_modelet(arguments):
    settings = [f"data.train={arguments.text / 'train.txt'}", f"data.test={arguments.text / 'test.txt'}",
                f"train.threads={arguments.threads}", "train.evaluate_every=0", "train.checkpoint_every=1000000000", *arguments.set]
    with tempfile.TemporaryDirectory(prefix="modelet-bench-") as cache:
        os.environ["MODELET_CACHE"] = cache
        started = time.monotonic()
        event = measuring.train(arguments.modelet, measuring.ROOT / "experiments/sections.toml", 1, settings)[-1]
        return event | {"wall_seconds": time.monotonic() - started}


def run_fasttext(arguments, settings):
    with tempfile.TemporaryDirectory(prefix="modelet-bench-") as folder:
        model = pathlib.Path(folder) / "model"
        started = time.monotonic()
        subprocess.run([peers.fasttext_program(), "supervised", "-input", arguments.text / "train.txt", "-output", model, *settings.split(),
                        "-thread", str(arguments.threads), "-verbose", "0"], check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        lines = subprocess.run([peers.fasttext_program(), "predict", model.with_suffix(".bin"), arguments.text / "test.txt", "5"],
                               check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    with open(arguments.text / "test.txt", encoding="utf-8") as test:
        truth = [{word for word in line.split() if word.startswith(LABEL)} for line in test]
    if len(lines) != len(truth):
        sys.exit(f"fasttext predict gave {len(lines)} lines for {len(truth)} test rows")
    hits = [[label in labels for label in line.split()] for line, labels in zip(lines, truth)]
    return {"train_seconds": seconds, "wall_seconds": seconds, "p_at_1": sum(any(row[:1]) for row in hits) / len(truth),
            "p_at_5": sum(map(sum, hits)) / 5 / len(truth)}


def main():
    arguments = parse_arguments()
    if not peers.fasttext_program():
        sys.exit(f"fasttext is not installed: {peers.NO_FASTTEXT}")
    if not (arguments.text / "test.txt").exists():
        sys.exit(f"{arguments.text} has no text. Make it: experiments/datasets/make_debian_text.py --out {arguments.text}")
    contestants = {"Modelet": lambda: run_modelet(arguments)}
    for name, settings in FASTTEXT.items():
        contestants[name] = lambda settings=settings: run_fasttext(arguments, settings)
    runs = measuring.alternate(contestants, arguments.repeats)

    def median(name, key):
        return statistics.median(event[key] for event in runs[name])

    print(f"{arguments.text}, {arguments.threads} threads, medians of {arguments.repeats}")
    print(f"{'':<22}{'seconds':>10}{'training':>10}{'P@1':>9}{'P@5':>9}{'times as long':>15}")
    ratios = {name: median(name, "wall_seconds") / median("Modelet", "wall_seconds") for name in runs}
    for name, ratio in ratios.items():
        print(f"{name:<22}{median(name, 'wall_seconds'):>10.2f}{median(name, 'train_seconds'):>10.2f}"
              f"{median(name, 'p_at_1'):>9.4f}{median(name, 'p_at_5'):>9.4f}{ratio:>15.2f}")
    measuring.warn_if_busy(runs)
    measuring.finish({"threads": arguments.threads, "set": arguments.set, "ratios": ratios, "runs": runs}, arguments.json,
                     min(ratios[name] for name in FASTTEXT) >= arguments.require)


if __name__ == "__main__":
    main()
