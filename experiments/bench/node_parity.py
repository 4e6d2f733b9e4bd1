#!/usr/bin/env python3
"""Does the number of nodes change what is learned? Trains one experiment on 1, 2 and 4 nodes and compares with 1 node.

exact codec: the loss of each of the first 100 steps within a relative 1e-3, P@1 at the end within 0.5 point;
int8: P@1 within 0.5 point (its losses are shown).
Exit code 1: a bound is violated or a run failed.
"""

import argparse
import math
import pathlib
import sys

import measuring

STEPS = 100
LOSS_BOUND = 1e-3       # relative
PRECISION_BOUND = 0.005  # of P@1 as a fraction
RUNS = [(1, "none"), (2, "none"), (4, "none"), (2, "int8"), (4, "int8")]  # one node sends nothing, so its codec does not matter


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path, nargs="?", default=measuring.ROOT / "experiments/quickstart.toml")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def first_losses(events):
    """The losses of the first steps, in order. train.log_every=1 reports one for each step."""
    losses = {event["step"]: event["loss"] for event in events if event.get("event") == "progress"}
    steps = sorted(losses)[:STEPS]
    if len(steps) < STEPS or steps[-1] - steps[0] != STEPS - 1:
        sys.exit(f"{len(losses)} steps reported a loss; the first {STEPS} in a row are needed. "
                 "Train longer (--set train.epochs=N)?")
    for step in steps:
        if not isinstance(losses[step], float) or not math.isfinite(losses[step]):  # JSON writers turn NaN into null
            sys.exit(f"step {step} reported the loss {losses[step]}")
    return [losses[step] for step in steps]


def main():
    arguments = parse_arguments()
    reference, rows = None, []
    print(f"{'nodes':>5} {'codec':<6} {'P@1':>8} {'difference':>11} {'largest relative difference of a loss':>39}")
    for nodes, codec in RUNS:
        settings = ["train.log_every=1", *arguments.set, f"exchange.codec={codec}"]
        events = measuring.train(arguments.modelet, arguments.experiment, nodes, settings)
        losses, precision = first_losses(events), events[-1]["p_at_1"]
        reference = reference or (losses, precision)
        loss_difference = max(abs(a - b) / abs(b) for a, b in zip(losses, reference[0]))
        precision_difference = precision - reference[1]
        passed = abs(precision_difference) <= PRECISION_BOUND and (codec != "none" or loss_difference <= LOSS_BOUND)
        rows.append({"nodes": nodes, "codec": codec, "p_at_1": precision, "p_at_1_difference": precision_difference,
                     "loss_difference": loss_difference, "passed": passed, "losses": losses})
        print(f"{nodes:>5} {codec:<6} {precision:>8.4f} {precision_difference:>+11.4f} {loss_difference:>39.2e}"
              + ("" if passed else "  VIOLATED"), flush=True)
    measuring.finish({"experiment": str(arguments.experiment), "set": arguments.set, "runs": rows}, arguments.json,
                     all(row["passed"] for row in rows))


if __name__ == "__main__":
    main()
