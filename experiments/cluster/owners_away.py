#!/usr/bin/python3
"""Do owners learn the same when some of them are killed, late and back? Private data in network namespaces, with a fault every few seconds.

    modelet data split train.txt.xz owners --owners 4
    sudo owners_away.py ../quickstart.toml --owners owners/owner-0.txt,... --test test.txt --epochs 40 --minutes 10

First comes an undisturbed run. Then comes the same run again, in which for so many minutes every 10 to 30 seconds an owner
    killed    is killed (kill -9), and started again 5 to 20 seconds later,
    late      stands still (SIGSTOP) for 2 to 15 seconds,
    cut off   has no cable for 2 to 15 seconds,
and never more than one at a time, so that the others may go on (cluster.least_owners). Then the run is left alone. These must hold: the
run ends by itself; it has done as many steps; P@1 is within half a point of the undisturbed run's (choose enough test samples: of 10,000
the standard error is half a point).
Exit codes: 0 they hold, 1 they do not, 77 this machine cannot run a cluster.
"""

import argparse
import collections
import json
import pathlib
import random
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "experiments/bench"))
import cluster as clusters
import owners_pool

PRECISION_BOUND = 0.005  # of P@1
PAUSE, BACK_AFTER, LATE = (10.0, 30.0), (5.0, 20.0), (2.0, 15.0)  # seconds
KINDS = ("killed", "late", "cut off")


def train(arguments, files, disturb=None):
    """Returns the last event of a run, how often its group was formed anew, and what `disturb` returns."""
    with clusters.Cluster(len(files), arguments.rate) as cluster, tempfile.TemporaryDirectory(prefix="modelet-owners-") as folder, \
            owners_pool.OwnersPool(cluster, arguments.programs, pathlib.Path(folder), files, arguments.test) as pool:
        for rank in range(len(files)):
            pool.start_node(rank)
        run = pool.submit_private(arguments.experiment, [
            f"cluster.epoch_steps={arguments.epoch_steps}", f"train.epochs={arguments.epochs}", f"cluster.least_owners={len(files) - 1}",
            f"cluster.snapshot_every={arguments.snapshot_every}", "train.evaluate_every=0", "train.threads=1", "train.patience=0",
            *arguments.set])
        watcher = pool.watch(run)
        watcher.wait_for_step(1, owners_pool.LIMIT)
        faults = disturb(pool, watcher) if disturb else None
        code = watcher.end(owners_pool.LIMIT)
        events = watcher.events()
        if code != 0 or events[-1]["event"] != "finished":
            sys.exit(f"run {run} did not finish (exit code {code}): {events[-1:]}\n{pool.logs()}")
        return events[-1], len(watcher.events("regrouped")), faults


def disturbing(arguments):
    """A function that disturbs a run."""
    chance = random.Random(arguments.seed)

    def disturb(pool, watcher):
        done = collections.Counter()
        end = time.monotonic() + 60 * arguments.minutes
        while time.monotonic() < end and not watcher.has_ended():
            time.sleep(chance.uniform(*PAUSE))
            kind, rank = chance.choice(KINDS), chance.randrange(pool.cluster.size)
            name = f"node{rank}"
            print(f"{time.strftime('%H:%M:%S')} step {watcher.step()}: {name} {kind}", file=sys.stderr, flush=True)
            done[kind] += 1
            if kind == "killed":
                pool.kill(name)
                time.sleep(chance.uniform(*BACK_AFTER))
                pool.start_node(rank)
            elif kind == "late":
                pool.processes[name].send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(*LATE))
                pool.processes[name].send_signal(signal.SIGCONT)
            else:
                pool.cluster.set_link(rank, False)
                time.sleep(chance.uniform(*LATE))
                pool.cluster.set_link(rank, True)
        return dict(done)
    return disturb


def what_is_wrong(undisturbed, disturbed):
    """Of the last events of both runs."""
    wrong = []
    if disturbed["steps"] != undisturbed["steps"]:
        wrong.append(f"{disturbed['steps']} steps, not {undisturbed['steps']}")
    if abs(disturbed["p_at_1"] - undisturbed["p_at_1"]) > PRECISION_BOUND:
        wrong.append(f"P@1 {disturbed['p_at_1']:.4f}, not {undisturbed['p_at_1']:.4f}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    owners_pool.add_options(parser)
    parser.add_argument("--minutes", type=float, default=10, help="of faults (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--epoch-steps", type=int, default=180)
    parser.add_argument("--snapshot-every", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    arguments = parser.parse_args()
    files = owners_pool.prepared(arguments)
    try:
        undisturbed, _, _ = train(arguments, files)
        disturbed, regrouped, faults = train(arguments, files, disturbing(arguments))
    except clusters.CannotRun as error:
        print(f"owners_away.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    print(f"undisturbed: {undisturbed['steps']} steps, P@1 {undisturbed['p_at_1']:.4f}")
    print(f"disturbed:   {disturbed['steps']} steps, P@1 {disturbed['p_at_1']:.4f}; {faults}, the group was formed anew {regrouped} times")
    wrong = what_is_wrong(undisturbed, disturbed)
    print("\n".join(wrong) or "all bounds hold")
    if arguments.json:
        arguments.json.write_text(json.dumps({"undisturbed": undisturbed, "disturbed": disturbed, "faults": faults, "regrouped": regrouped}) + "\n",
                                  encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
