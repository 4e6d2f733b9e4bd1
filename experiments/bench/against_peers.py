#!/usr/bin/env python3
"""Modelet against PyTorch (sampled and full softmax) and fastText, in one run on one machine: ratios and plots.

  debian-deps   real data: seconds of training until P@1 is 0.645 (against PyTorch) and 0.632 (against fastText)
  amazon-670k   synthetic data of Amazon-670K's shape: samples/s and P@1 after the same samples

PyTorch takes part in every way that a user may meet it, and each has a line and a ratio of its own:
  as installed    OpenBLAS detects the CPU; if it does not know it, it uses slower kernels
  told its CPU    OPENBLAS_CORETYPE says that there is AVX-512 (only where there is)
and on debian-deps with
  usual settings  learning rate 1e-3, constant, as compare_pytorch.py has it
  best settings   the fastest to the target among those tried (README.md)

Contestants run in turn, --repeats times, and medians are compared. On Amazon-670K's shape all have the same settings except for
the learning rate. Seconds are of training alone: no evaluation, no checkpoint, no reading of data, and for fastText no parsing of text.
Exit code 1: something is missing, a run failed, or --require is given and a bound (BOUNDS) is missed.
"""

import argparse
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import tomllib

import measuring
import peers
import svg_plot

PARTS = ["debian-deps", "amazon-670k"]
BOUNDS = {"sampled": 12.0, "fasttext": 5.0, "rate": 15.0}  # how many times as fast
TARGET_PYTORCH, TARGET_FASTTEXT = 0.645, 0.632  # P@1
STEPS_PER_POINT = 30  # six points of a curve an epoch

PYTORCH_SAMPLED = {
    "usual settings": {"batch": 256, "negatives": 1024, "lr": 1e-3, "epochs": 8, "evaluate_every": 2 * STEPS_PER_POINT},
    "best settings": {"batch": 256, "negatives": 1024, "lr": 2e-2, "schedule": "linear", "epochs": 1},
}
# The fastest to TARGET_* of the settings tried; README.md has the list.
PYTORCH_FULL = {"batch": 256, "lr": 5e-3, "schedule": "linear", "epochs": 2}
FASTTEXT_RATE = 1.0
FASTTEXT_EPOCHS = [3, 4, 5, 6, 8]
AMAZON_PYTORCH_RATE = 1e-2
HIDDEN = 128
NAME_WIDTH = 46  # of contestants in tables

AMAZON = {"rows": 100000, "rows-test": 2000}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one (default: both)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-full", action="store_true", help="leave out PyTorch's full softmax, which takes minutes")
    parser.add_argument("--cache", type=pathlib.Path, default=measuring.ROOT / "build/bench",
                        help="folder for synthetic data (260 MB), plots and results (default: build/bench)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--require", action="store_true", help="exit 1 if a bound is missed")
    return parser.parse_args()


# ---- curves --------------------------------------------------------------------------------------------------------
# A curve is [(seconds of training, P@1), ...] in the order of time.

def seconds_to(curve, target):
    """When P@1 first reaches `target`, between two points on their line; None if never."""
    before = None
    for seconds, precision in curve:
        if precision >= target:
            if before is None:
                return seconds
            share = (target - before[1]) / (precision - before[1])
            return before[0] + share * (seconds - before[0])
        before = (seconds, precision)
    return None


def median_curve(curves):
    """Of curves with the same number of points."""
    return [tuple(map(statistics.median, zip(*points))) for points in zip(*curves)]


def median_seconds(curves, target):
    times = [seconds_to(curve, target) for curve in curves]
    return None if None in times else statistics.median(times)


# ---- debian-deps ---------------------------------------------------------------------------------------------------

def modelet_settings(arguments):
    return [f"train.threads={arguments.threads}", "train.evaluate_every=0", f"train.log_every={STEPS_PER_POINT}",
            "train.checkpoint_every=1000000000", *arguments.set]


def modelet_precisions(arguments, experiment, test):
    """P@1 by step, of the checkpoints of one run. It holds for every run: the same seed gives the same weights."""
    with tempfile.TemporaryDirectory(prefix="modelet-bench-") as out:
        settings = modelet_settings(arguments) + [f"train.checkpoint_every={STEPS_PER_POINT}", "train.keep_checkpoints=1000"]
        events = measuring.run_train(arguments.modelet, experiment, 1, settings, out)
        return {event["step"]: measuring.evaluate(arguments.modelet, event["path"], test)
                for event in events if event["event"] == "checkpoint"}


def run_modelet(arguments, experiment, precisions):
    events = measuring.train(arguments.modelet, experiment, 1, modelet_settings(arguments))
    finished = dict(events[-1])
    if abs(finished["p_at_1"] - precisions[finished["steps"]]) > 1e-9:
        sys.exit(f"two runs of {experiment} differ: P@1 {finished['p_at_1']} and {precisions[finished['steps']]}")
    finished["curve"] = [(event["train_seconds"], precisions[event["step"]])
                         for event in events if event["event"] == "progress"]
    return finished


def run_pytorch(python, files, options, flags=()):
    event = peers.run_pytorch(python, files["train"], files["test"],
                              {"hidden": HIDDEN, "evaluate_every": STEPS_PER_POINT, **options}, flags)
    event["curve"] = [(point["train_seconds"], point["p_at_1"]) for point in event["evaluations"]]
    return event


def run_fasttext(fasttext):
    """One point of the curve is one training: its learning rate falls to zero at the end."""
    points = [fasttext.run(HIDDEN, epochs, FASTTEXT_RATE) for epochs in FASTTEXT_EPOCHS]
    return {**points[-1], "points": points, "curve": [(point["train_seconds"], point["p_at_1"]) for point in points]}


def debian_deps(arguments, python):
    experiment = measuring.ROOT / "experiments/debian-deps-fast.toml"
    files = {part: measuring.ROOT / f"experiments/datasets/debian-deps/{part}.txt.xz" for part in ("train", "test")}
    precisions = modelet_precisions(arguments, experiment, files["test"])
    threads = {"threads": arguments.threads}
    contestants = {"Modelet": lambda: run_modelet(arguments, experiment, precisions)}
    for settings, options in PYTORCH_SAMPLED.items():
        for way, blas in peers.WAYS_OF_BLAS.items():
            contestants[f"PyTorch sampled, {settings}, {way}"] = functools.partial(
                run_pytorch, python, files, options | threads | {"blas": blas})
    pytorch = list(contestants)[1:]
    with tempfile.TemporaryDirectory(prefix="modelet-bench-") as folder:
        fasttext = peers.FastText(files["train"], files["test"], pathlib.Path(folder), arguments.threads)
        contestants["fastText hs"] = lambda: run_fasttext(fasttext)
        runs = measuring.alternate(contestants, arguments.repeats)
    if not arguments.no_full:
        runs |= measuring.alternate(
            {"PyTorch full": lambda: run_pytorch(python, files, PYTORCH_FULL | threads, ["--full"])}, 1)

    curves = {name: [event["curve"] for event in events] for name, events in runs.items()}
    print(f"\ndebian-deps, {arguments.threads} threads, {runs[pytorch[0]][0]['system']}; "
          f"seconds of training to P@1, medians of {arguments.repeats}")
    print(f"{'':<{NAME_WIDTH}}{TARGET_FASTTEXT:>10}{TARGET_PYTORCH:>10}{'best P@1':>10}  BLAS")
    times = {}
    for name, of_name in curves.items():
        times[name] = {target: median_seconds(of_name, target) for target in (TARGET_FASTTEXT, TARGET_PYTORCH)}
        shown = "".join(f"{'never' if seconds is None else f'{seconds:.2f}':>10}" for seconds in times[name].values())
        best = max(precision for curve in of_name for _, precision in curve)
        print(f"{name:<{NAME_WIDTH}}{shown}{best:>10.4f}  {runs[name][0].get('blas', '-')}")
    measuring.warn_if_busy(runs)
    plot = arguments.cache / "debian-deps.svg"
    svg_plot.write(plot, f"debian-deps, {arguments.threads} threads", "seconds of training", "P@1",
                   {name: median_curve(of_name) for name, of_name in curves.items()}, (TARGET_FASTTEXT, TARGET_PYTORCH))
    print(f"plot: {plot}")

    def ratio(peer, target):
        ours, theirs = times["Modelet"][target], times[peer][target]
        return None if ours is None or theirs is None else theirs / ours

    return runs, [
        *((f"times as fast as {name} to P@1 {TARGET_PYTORCH}", ratio(name, TARGET_PYTORCH), BOUNDS["sampled"]) for name in pytorch),
        (f"times as fast as fastText to P@1 {TARGET_FASTTEXT}", ratio("fastText hs", TARGET_FASTTEXT), BOUNDS["fasttext"]),
    ]


# ---- Amazon-670K's shape -------------------------------------------------------------------------------------------

def amazon_data(arguments):
    """Folder with the set as prepared files and as text; made once."""
    folder = arguments.cache / "amazon-670k-shape-{rows}-{rows-test}".format(**AMAZON)
    if not (folder / "complete").exists():
        sizes = [part for option, value in AMAZON.items() for part in (f"--{option}", str(value))]
        subprocess.run([arguments.modelet, "data", "synth", "--force", folder, "--preset", "amazon-670k", "--text", *sizes],
                       check=True, stdout=subprocess.DEVNULL)
        (folder / "complete").touch()
    return folder


def pytorch_options(experiment):
    """The options of pytorch_sampled.py that give it the job of an experiment file, except for the learning rate."""
    keys = tomllib.loads(experiment.read_text())
    return {"hidden": keys["model"]["hidden"][0], "loss": keys["model"]["loss"], "negatives": keys["sampling"]["uniform"],
            "batch": keys["train"]["batch"], "epochs": keys["train"]["epochs"]}


def amazon_670k(arguments, python):
    data = amazon_data(arguments)
    experiment = measuring.ROOT / "experiments/amazon-670k-shape.toml"
    job = pytorch_options(experiment)
    settings = [f"data.train={data / 'train.mlt'}", f"data.test={data / 'test.mlt'}", f"train.threads={arguments.threads}",
                "train.checkpoint_every=1000000000", "modelets.hidden_columns=128", *arguments.set]
    contestants = {"Modelet": lambda: measuring.train(arguments.modelet, experiment, 1, settings)[-1]}
    for way, blas in peers.WAYS_OF_BLAS.items():
        contestants[f"PyTorch sampled, {way}"] = functools.partial(
            peers.run_pytorch, python, data / "train.txt", data / "test.txt",
            job | {"lr": AMAZON_PYTORCH_RATE, "threads": arguments.threads, "blas": blas})
    runs = measuring.alternate(contestants, arguments.repeats)
    print(f"\nAmazon-670K's shape, {AMAZON['rows']:,} samples, {job['negatives']} negatives, {arguments.threads} threads")
    summaries = measuring.print_rates(runs)
    ours = summaries.pop("Modelet")
    return runs, [line for name, theirs in summaries.items() for line in (
        (f"times the samples/s of {name} ({runs[name][0]['blas']}) at Amazon-670K's shape", ours["median"] / theirs["median"],
         BOUNDS["rate"]),
        (f"times the P@1 of {name} after the same samples", ours["p_at_1"] / theirs["p_at_1"], 1.0))]


def main():
    arguments = parse_arguments()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    python = peers.python_with_torch()
    runs, ratios = {}, []
    for part, function in zip(PARTS, (debian_deps, amazon_670k)):
        if not arguments.part or part in arguments.part:
            runs[part], of_part = function(arguments, python)
            ratios += of_part
    print()
    passed = True
    for what, ratio, bound in ratios:
        reached = ratio is not None and ratio >= bound
        passed = passed and reached
        print(f"{'never' if ratio is None else f'{ratio:.2f}':>7} {what}: {'reached' if reached else 'MISSED'} (bound {bound:g})")
    measuring.finish({"ratios": [{"what": what, "ratio": ratio, "bound": bound} for what, ratio, bound in ratios],
                      "threads": arguments.threads, "set": arguments.set, "runs": runs},
                     arguments.cache / "against_peers.json", passed or not arguments.require)


if __name__ == "__main__":
    main()
