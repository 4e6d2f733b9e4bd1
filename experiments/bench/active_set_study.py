#!/usr/bin/env python3
"""What a model learns with each way of choosing the active set, and how fast: P@k against training seconds.

Trains one experiment in every mode at the same share of active neurons, and draws the curves as SVG. The contestants
run in turn, and evaluations do not count as training. docs/studies/active-set.md discusses the figures.

All contestants use Adam's bias correction by the step (optimizer.row_clocks=false). Correction by the updates of each row would treat
rare rows differently in different modes, which would hide the effect of the active set.

    modelet data synth DATA --preset confusable
    experiments/bench/active_set_study.py DATA --name confusable --sparsity 0.1
"""

import argparse
import json
import pathlib
import sys

import measuring
import svg_plot

# A query to hash tables finds less than low-rank projections do. So more samples query, and more candidates are ranked.
TABLES = ["sampling.mode=lsh", "sampling.retrieval=tables", "sampling.query_every=4", "sampling.candidates=64"]
CONTESTANTS = {
    "full": ["sampling.mode=full"],
    "uniform": ["sampling.mode=uniform"],
    "lsh (previews)": ["sampling.mode=lsh", "sampling.retrieval=preview"],
    "lsh (simhash)": TABLES + ["sampling.family=simhash"],
    "lsh (dwta)": TABLES + ["sampling.family=dwta"],
    "lsh (minhash)": TABLES + ["sampling.family=minhash"],
    "lsh_per_sample": ["sampling.mode=lsh_per_sample", "sampling.candidates=64"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder with train.mlt and test.mlt, or train.txt.xz and test.txt.xz")
    parser.add_argument("--name", required=True, help="of the data set, for titles and file names")
    parser.add_argument("--sparsity", type=float, required=True, help="share of active neurons, in every mode but full")
    parser.add_argument("--only", action="append", choices=list(CONTESTANTS), help="these contestants (repeatable)")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--out", type=pathlib.Path, default=measuring.ROOT / "docs/studies")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def data_file(folder, part):
    for name in (f"{part}.mlt", f"{part}.txt.xz", f"{part}.txt"):
        if (folder / name).is_file():
            return folder / name
    sys.exit(f"{folder} has no {part}.mlt, {part}.txt.xz or {part}.txt")


def main():
    arguments = parse_arguments()
    experiment = {"data.train": data_file(arguments.data, "train"), "data.test": data_file(arguments.data, "test")}
    common = [f"{key}={value}" for key, value in experiment.items()]
    common += ["optimizer.row_clocks=false", f"sampling.sparsity={arguments.sparsity}", "train.keep_checkpoints=1", *arguments.set]
    results = {}
    print("| active set | P@1 | P@5 | seconds | samples/s |\n|---|---|---|---|---|")
    empty = arguments.out / "study.toml"
    arguments.out.mkdir(parents=True, exist_ok=True)
    empty.write_text('[data]\ntrain = "-"\ntest = "-"\n')
    try:
        for name in arguments.only or CONTESTANTS:
            events = measuring.train(arguments.modelet, empty, 1, common + CONTESTANTS[name])
            results[name] = [event for event in events if event["event"] == "epoch"]
            last = results[name][-1]
            print(f"| {name} | {100 * last['p_at_1']:.2f} | {100 * last['p_at_5']:.2f} | {last['train_seconds']:.1f} | "
                  f"{last['samples_per_second']:,.0f} |", flush=True)
    finally:
        empty.unlink()
    for key, title in (("p_at_1", "P@1"), ("p_at_5", "P@5")):
        curves = {name: [(epoch["train_seconds"], epoch[key]) for epoch in epochs] for name, epochs in results.items()}
        svg_plot.write(arguments.out / f"active-set-{arguments.name}-{key.replace('_', '-')}.svg",
                       f"{arguments.name}: {title}, {100 * arguments.sparsity:g} % of the neurons active",
                       "training seconds", title, curves)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
