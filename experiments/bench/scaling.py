#!/usr/bin/env python3
"""Speed-up of more nodes of one thread each, or of more threads, over one node of one thread, on one machine, in alternating runs.

The nodes are real processes that talk over ZeroMQ (`modelet train --nodes N`). Each node, or thread, needs a core of its own: with
fewer cores the figure would say nothing, and the script refuses.
Exit code 1: refused, a run failed, or the speed-up is below --require.
"""

import argparse
import os
import pathlib
import sys

import measuring


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path, nargs="?", default=measuring.ROOT / "experiments/bench/debian-deps-128.toml")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--nodes", type=int, default=2, help="of one thread each (default 2)")
    many.add_argument("--threads", type=int, help="of one node, instead of more nodes")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--require", type=float, help="exit 1 below this speed-up")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    nodes, threads = (1, arguments.threads) if arguments.threads else (arguments.nodes, 1)
    cores, wanted = len(os.sched_getaffinity(0)), nodes * threads
    if cores < wanted:
        sys.exit(f"{nodes} node(s) x {threads} thread(s) need {wanted} cores, this process may use {cores}")
    settings = [f"train.epochs={arguments.epochs}", "train.evaluate_every=0",
                "train.checkpoint_every=1000000000", *arguments.set]

    def contestant(nodes, threads):
        return lambda: measuring.train(arguments.modelet, arguments.experiment, nodes,
                                       [*settings, f"train.threads={threads}"])[-1]

    one, many = "1 node x 1 thread", f"{nodes} node(s) x {threads} thread(s)"
    runs = measuring.alternate({one: contestant(1, 1), many: contestant(nodes, threads)}, arguments.repeats)
    print(f"{arguments.experiment}: {arguments.epochs} epochs")
    summaries = measuring.print_rates(runs)
    speedup = summaries[many]["median"] / summaries[one]["median"]
    passed = arguments.require is None or speedup >= arguments.require
    print(f"speed-up: {speedup:.2f}, efficiency {speedup / wanted:.0%}"
          + ("" if passed else f"; below the required {arguments.require}"))
    measuring.finish({"speedup": speedup, "nodes": nodes, "threads": threads, "epochs": arguments.epochs, "set": arguments.set,
                      "summaries": summaries, "runs": runs}, arguments.json, passed)


if __name__ == "__main__":
    main()
