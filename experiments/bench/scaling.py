#!/usr/bin/env python3
"""Speed-up of more nodes of one thread each over one node of one thread, on one machine, in alternating runs.

The nodes are real processes that talk over ZeroMQ (`modelet train --nodes N`). Each needs a core of its own: with
fewer cores than nodes the figure would say nothing, and the script refuses.
Exit code 1: refused, a run failed, or the speed-up is below --require.
"""

import argparse
import os
import pathlib
import sys

import measuring


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path, nargs="?", default=measuring.ROOT / "experiments/debian-deps.toml")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--require", type=float, help="exit 1 below this speed-up")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    cores = len(os.sched_getaffinity(0))
    if cores < arguments.nodes:
        sys.exit(f"{arguments.nodes} nodes need {arguments.nodes} cores, this process may use {cores}")
    settings = ["train.threads=1", f"train.epochs={arguments.epochs}", "train.evaluate_every=0",
                "train.checkpoint_every=1000000000", *arguments.set]

    def contestant(nodes):
        return lambda: measuring.train(arguments.modelet, arguments.experiment, nodes, settings)[-1]

    one, many = "1 node x 1 thread", f"{arguments.nodes} nodes x 1 thread"
    runs = measuring.alternate({one: contestant(1), many: contestant(arguments.nodes)}, arguments.repeats)
    print(f"{arguments.experiment}: {arguments.epochs} epochs")
    summaries = measuring.print_rates(runs)
    speedup = summaries[many]["median"] / summaries[one]["median"]
    passed = arguments.require is None or speedup >= arguments.require
    print(f"speed-up: {speedup:.2f}, efficiency {speedup / arguments.nodes:.0%}"
          + ("" if passed else f"; below the required {arguments.require}"))
    measuring.finish({"speedup": speedup, "nodes": arguments.nodes, "epochs": arguments.epochs, "set": arguments.set,
                      "summaries": summaries, "runs": runs}, arguments.json, passed)


if __name__ == "__main__":
    main()
