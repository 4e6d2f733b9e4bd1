#!/usr/bin/env python3
"""Modelet against PyTorch on the same data, model, batch, negatives, epochs and threads, alternating on one machine.

    compare_pytorch.py                  debian-deps, 1,024 negatives
    compare_pytorch.py --amazon-670k    synthetic data of Amazon-670K's shape, 3,350 negatives (experiments/amazon-670k-shape.toml)

Both train one hidden layer and a softmax over the labels of the batch and uniform negatives that the batch shares. PyTorch runs in
every way that may be its fastest: with a BLAS that detects the CPU or is told it, with and without torch.compile.
Prints samples/s of each (median, min, max), P@1 after the same epochs, and the ratio of the medians to the fastest PyTorch.
Modelet runs as one process.
Exit code 1: something is missing, a run failed, or the ratio is below --require.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

import measuring
import peers

AMAZON = measuring.ROOT / "experiments/amazon-670k-shape.toml"
AMAZON_ROWS = {"rows": 100000, "rows-test": 2000}
COMPILING = {"": [], ", torch.compile": ["--compile"]}
JOB = ("epochs", "batch", "hidden", "negatives", "lr")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--amazon-670k", action="store_true", help="the job of Amazon-670K's shape; the options of the job do not count")
    parser.add_argument("--data", type=pathlib.Path, default=measuring.ROOT / "experiments/datasets/debian-deps",
                        help="folder with train.txt.xz and test.txt.xz (default: the set in the repository)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--negatives", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cache", type=pathlib.Path, default=measuring.ROOT / "build/bench",
                        help="folder for synthetic data, 260 MB (default: build/bench)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value",
                        help="passed on to modelet; what it changes is no longer the same job")
    parser.add_argument("--require", type=float, help="exit 1 below this ratio of the medians")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def write_experiment(path, arguments, files):
    """Writes an experiment without evaluation and checkpoint before the end, because PyTorch has none."""
    path.write_text(f"""\
[data]
train = {json.dumps(str(files['train']))}
test = {json.dumps(str(files['test']))}
[model]
hidden = [{arguments.hidden}]
loss = "softmax"
[modelets]
hidden_columns = {arguments.hidden}
[sampling]
mode = "uniform"
uniform = {arguments.negatives}
[optimizer]
kind = "adam"
[train]
epochs = {arguments.epochs}
batch = {arguments.batch}
learning_rate = {arguments.lr!r}
threads = {arguments.threads}
evaluate_every = 0
checkpoint_every = 1000000000
""")
    return path


def own_job(arguments, folder):
    """Returns (what is compared, files for PyTorch, its options, experiment for Modelet, its keys)."""
    files = {part: (arguments.data / f"{part}.txt.xz").resolve() for part in ("train", "test")}
    for file in files.values():
        if not file.is_file():
            sys.exit(f"{file} does not exist: name the data set's folder with --data")
    return (str(arguments.data), files, {name: getattr(arguments, name) for name in JOB},
            write_experiment(folder / "compare.toml", arguments, files), arguments.set)


def amazon_job(arguments, _):
    """Returns the same as own_job(). Synthetic data is made once, as prepared files for Modelet and as text for PyTorch."""
    data = arguments.cache / "amazon-670k-shape-{rows}-{rows-test}".format(**AMAZON_ROWS)
    if not (data / "complete").exists():
        sizes = [part for option, value in AMAZON_ROWS.items() for part in (f"--{option}", str(value))]
        subprocess.run([arguments.modelet, "data", "synth", "--force", data, "--preset", "amazon-670k", "--text", *sizes],
                       check=True, stdout=subprocess.DEVNULL)
        (data / "complete").touch()
    keys = tomllib.loads(AMAZON.read_text())
    job = {"hidden": keys["model"]["hidden"][0], "loss": keys["model"]["loss"], "negatives": keys["sampling"]["uniform"],
           "batch": keys["train"]["batch"], "epochs": keys["train"]["epochs"], "lr": keys["train"]["learning_rate"]}
    settings = [f"data.train={data / 'train.mlt'}", f"data.test={data / 'test.mlt'}", f"train.threads={arguments.threads}",
                "train.checkpoint_every=1000000000", f"modelets.hidden_columns={job['hidden']}", *arguments.set]
    return f"Amazon-670K's shape, {AMAZON_ROWS['rows']:,} samples", {part: data / f"{part}.txt" for part in ("train", "test")}, job, AMAZON, settings


def main():
    arguments = parse_arguments()
    measuring.require_modelet(arguments.modelet)
    python = peers.require_torch()
    with tempfile.TemporaryDirectory(prefix="modelet-bench-") as folder:
        what, files, job, experiment, settings = (amazon_job if arguments.amazon_670k else own_job)(arguments, pathlib.Path(folder))
        contestants = {"Modelet": lambda: measuring.train(arguments.modelet, experiment, 1, settings)[-1]}
        for (way, blas), (compiled, flags) in itertools.product(peers.WAYS_OF_BLAS.items(), COMPILING.items()):
            contestants[f"PyTorch, {way}{compiled}"] = functools.partial(
                peers.run_pytorch, python, files["train"], files["test"], job | {"threads": arguments.threads, "blas": blas}, flags)
        runs = measuring.alternate(contestants, arguments.repeats)

    pytorch = {name: events[0] for name, events in runs.items() if name != "Modelet"}
    print(f"{what}: " + ", ".join(f"{name} {value}" for name, value in job.items()) + f", {arguments.threads} threads; "
          + ", ".join(sorted({f"{event['system']} on {event['blas']}" for event in pytorch.values()})))
    summaries = measuring.print_rates(runs)
    fastest = max(pytorch, key=lambda name: summaries[name]["median"])
    ratio = summaries["Modelet"]["median"] / summaries[fastest]["median"]
    passed = arguments.require is None or ratio >= arguments.require
    print(f"ratio of the medians, to {fastest}: {ratio:.2f}" + ("" if passed else f", below the required {arguments.require}"))
    measuring.finish({"what": what, "ratio": ratio, "fastest": fastest, "threads": arguments.threads, "job": job, "set": arguments.set,
                      "summaries": summaries, "runs": runs}, arguments.json, passed)


if __name__ == "__main__":
    main()
