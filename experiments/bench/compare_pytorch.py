#!/usr/bin/env python3
"""Modelet against PyTorch on the same data, model, batch, negatives, epochs and threads, alternating on one machine.

Both train one hidden layer and a softmax over (labels of the batch + uniform negatives shared by the batch).
Prints samples/s of each (median, min, max), the ratio of the medians and P@1 after the same epochs.
Modelet runs as one process.
Exit code 1: something is missing, a run failed, or the ratio is below --require.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

import measuring
import peers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--data", type=pathlib.Path, default=measuring.ROOT / "experiments/datasets/debian-deps",
                        help="folder with train.txt.xz and test.txt.xz (default: the set in the repository)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--negatives", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value",
                        help="passed on to modelet; what it changes is no longer the same job")
    parser.add_argument("--require", type=float, help="exit 1 below this ratio of the medians")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def run_pytorch(python, arguments, files):
    return peers.run_pytorch(python, files["train"], files["test"],
                             {name: getattr(arguments, name) for name in ("epochs", "batch", "hidden", "negatives", "lr", "threads")})


def write_experiment(path, arguments, files):
    """No evaluation and no checkpoint before the end, because the other side has none."""
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


def main():
    arguments = parse_arguments()
    files = {part: (arguments.data / f"{part}.txt.xz").resolve() for part in ("train", "test")}
    for file in files.values():
        if not file.is_file():
            sys.exit(f"{file} does not exist: name the data set's folder with --data")
    python = peers.python_with_torch()
    with tempfile.TemporaryDirectory(prefix="modelet-bench-") as folder:
        experiment = write_experiment(pathlib.Path(folder) / "compare.toml", arguments, files)
        runs = measuring.alternate({
            "Modelet": lambda: measuring.train(arguments.modelet, experiment, 1, arguments.set)[-1],
            "PyTorch": lambda: run_pytorch(python, arguments, files),
        }, arguments.repeats)

    pytorch = runs["PyTorch"][0]
    print(f"{arguments.data}: {arguments.epochs} epochs, batch {arguments.batch}, hidden {arguments.hidden}, "
          f"{arguments.negatives} shared negatives, {arguments.threads} threads; {pytorch['system']} on {pytorch['blas']}")
    summaries = measuring.print_rates(runs)
    ratio = summaries["Modelet"]["median"] / summaries["PyTorch"]["median"]
    passed = arguments.require is None or ratio >= arguments.require
    print(f"ratio of the medians: {ratio:.2f}" + ("" if passed else f", below the required {arguments.require}"))
    measuring.finish({"ratio": ratio, "threads": arguments.threads, "epochs": arguments.epochs, "batch": arguments.batch,
                      "hidden": arguments.hidden, "negatives": arguments.negatives, "set": arguments.set,
                      "summaries": summaries, "runs": runs}, arguments.json, passed)


if __name__ == "__main__":
    main()
