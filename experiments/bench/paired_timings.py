#!/usr/bin/env python3
"""Is one build as fast as another? Trains with both in turn, A B B A ..., and prints the ratio of their speeds, pair by pair.

    experiments/bench/paired_timings.py OLD NEW     folders of the programs modelet, modelet-agent, modelet-scheduler

quickstart.toml and Amazon-670K's shape on four agents, debian-deps-fast.toml and Amazon-670K's shape with one and two threads: training alone,
without evaluation and checkpoint. Two ratios of speeds are printed for each, NEW / OLD; above 1 is faster.

undisturbed  Both builds do the same steps. For each window of steps (from one line of progress to the next), the shortest time of any
             run of a build counts. This is the figure to quote: on a machine whose host has other guests, one run can take twice
             as long as the next, but undisturbed windows agree within a per cent or two.
pairs        The median of the ratios of the pairs, and all ratios. They show how disturbed the runs were.

Exit code 1: a run failed, or an undisturbed ratio is below --require.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys

import measuring

# name: experiment, nodes, threads a node, epochs
CASES = {
    "quickstart, 4 nodes": ("quickstart", 4, 1, 3),
    "debian-deps-fast, 1 thread": ("debian-deps-fast", 1, 1, 3),
    "debian-deps-fast, 2 threads": ("debian-deps-fast", 1, 2, 6),
    "Amazon-670K's shape, 1 thread": ("amazon-670k-shape", 1, 1, 1),
    "Amazon-670K's shape, 2 threads": ("amazon-670k-shape", 1, 2, 1),
    "Amazon-670K's shape, 4 nodes": ("amazon-670k-shape", 4, 1, 1),
}
AMAZON = {"rows": 100000, "rows-test": 2000}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, metavar="OLD")
    parser.add_argument("new", type=pathlib.Path, metavar="NEW")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one (default: all)")
    parser.add_argument("--pairs", type=int, default=6, help="of runs a case (default: 6)")
    parser.add_argument("--cache", type=pathlib.Path, default=measuring.ROOT / "build/bench", help="folder for synthetic data (default: build/bench)")
    parser.add_argument("--require", type=float, help="exit 1 below this undisturbed ratio, for instance 0.98")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    arguments.case = arguments.case or list(CASES)
    return arguments


def amazon_data(modelet, cache):
    """The settings that name the synthetic data. Each build prepares its own once, because formats differ."""
    folder = cache / "amazon-670k-shape"
    if not (folder / "test.mlt").is_file():
        sizes = [part for name, value in AMAZON.items() for part in (f"--{name}", str(value))]
        subprocess.run([modelet, "data", "synth", folder, "--preset", "amazon-670k", *sizes], check=True, stdout=subprocess.DEVNULL)
    return [f"data.train={folder}/train.mlt", f"data.test={folder}/test.mlt"]


def windows(events):
    """{"step-step": seconds of training} from each progress event to the next."""
    seconds, before = {}, {"step": 0, "train_seconds": 0.0}
    for event in events:
        if event["event"] == "progress":
            seconds[f"{before['step']}-{event['step']}"] = event["train_seconds"] - before["train_seconds"]
            before = event
    return seconds


def undisturbed_seconds(runs, steps):
    """Seconds of training in the windows `steps`. Each window is taken from the run that was fastest there."""
    return sum(min(run[window] for run in runs) for window in steps)


def main():
    arguments = parse_arguments()
    for programs in (arguments.old, arguments.new):
        measuring.require_modelet(programs / "modelet")
    rows, passed = [], True
    for case in arguments.case:
        name, nodes, threads, epochs = CASES[case]
        settings = [f"train.epochs={epochs}", f"train.threads={threads}", "train.evaluate_every=0", "train.checkpoint_every=1000000000"]

        def contestant(side, programs):
            data = amazon_data(programs / "modelet", arguments.cache / side) if name.startswith("amazon") else []

            def run():
                events = measuring.train(programs / "modelet", measuring.ROOT / "experiments" / f"{name}.toml", nodes, [*settings, *data])
                return events[-1] | {"windows": windows(events)}
            return run

        sides = {side: contestant(side, programs) for side, programs in (("old", arguments.old), ("new", arguments.new))}
        runs = {side: [] for side in sides}
        for pair in range(arguments.pairs):
            turn = sides if pair % 2 == 0 else dict(reversed(sides.items()))
            for side, events in measuring.alternate(turn, 1).items():
                runs[side] += events
        times = {side: [event["windows"] for event in runs[side]] for side in sides}
        shared = set.intersection(*(set(run) for side in sides for run in times[side]))
        if not shared:
            sys.exit(f"{case}: the builds have no window of steps in common")
        ratio = undisturbed_seconds(times["old"], shared) / undisturbed_seconds(times["new"], shared)
        pairs = sorted(new["samples_per_second"] / old["samples_per_second"] for old, new in zip(runs["old"], runs["new"]))
        slow = arguments.require is not None and ratio < arguments.require
        passed = passed and not slow
        print(f"{case}: undisturbed {ratio:.3f}{f', BELOW {arguments.require}' if slow else ''}; "
              f"pairs {statistics.median(pairs):.3f} ({', '.join(f'{pair:.3f}' for pair in pairs)})", flush=True)
        measuring.warn_if_busy(runs)
        rows.append({"case": case, "undisturbed": ratio, "pairs": pairs, "windows": len(shared), "runs": runs})
    measuring.finish({"cases": rows}, arguments.json, passed)


if __name__ == "__main__":
    main()
