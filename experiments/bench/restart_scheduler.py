#!/usr/bin/env python3
"""Does a pool outlive its scheduler? Kills it with SIGKILL and starts it again, many times, while a run trains and others are queued.

    experiments/bench/restart_scheduler.py PROGRAMS             folder of modelet, modelet-agent, modelet-scheduler
    experiments/bench/restart_scheduler.py PROGRAMS --restarts 3 --set train.epochs=10

quickstart.toml on two agents of this machine with keys; the scheduler keeps its state (--state). One run trains, three are queued. The scheduler
is killed, stays away for --away seconds and comes back, --restarts times, spread over the first run. These must hold:
- after each restart the pool lists the same runs, with the same numbers, and the same one trains;
- steps go on while the scheduler is away, and no step is done twice: the group is not formed anew;
- a `modelet watch` that runs all the time reports every step once, in order;
- all runs finish, in order of submission, with all their steps, and a run submitted after that has the next number.
Exit code 1: one of these does not hold.
"""

import argparse
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

import measuring
import pools

AGENTS = 2
QUEUED = 3
LIMIT = 1800.0  # seconds for a run


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path, metavar="PROGRAMS")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--away", type=float, default=3.0, help="seconds between the kill and the start (default: 3)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="of the first run (default: train.epochs=100)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def check_lists(pool, before, wrong):
    """Checks that the runs are the same as before: none lost, doubled, renumbered or moved."""
    lines = pool.verb("list")
    numbers = [line["run"] for line in lines]
    if len(numbers) != len(set(numbers)) or set(numbers) != set(before):
        wrong.append(f"runs {sorted(before)} became {sorted(numbers)}")
    for line in lines:
        was = before.get(line["run"], line)
        for field in ("name", "submitter", "state", "epoch"):
            if line[field] != was[field]:
                wrong.append(f"{field} of run {line['run']}: {was[field]} became {line[field]}")


def restart(pool, watcher, away, wrong):
    """Kills and restarts the scheduler once. Returns the times, and the steps around them."""
    before = pool.runs()
    killed = pool.kill("scheduler")
    time.sleep(away)
    started = time.time()
    pool.start_scheduler()
    check_lists(pool, before, wrong)
    return {"killed": killed, "started": started, "answered": time.time(), "load": os.getloadavg()[0]}


def steps_while_away(events, disturbance):
    """The steps of the run between the kill and the start, by the clock of the node that did them."""
    return [event["step"] for event in pools.steps_of(events) if disturbance["killed"] < pools.seconds_of(event) < disturbance["started"]]


def check_watched(events, disturbances, wrong):
    steps = [event["step"] for event in pools.steps_of(events)]
    if steps != list(range(1, events[-1]["steps"] + 1)):
        missing = sorted(set(range(1, events[-1]["steps"] + 1)) - set(steps))
        wrong.append(f"watched: {len(steps)} of {events[-1]['steps']} steps, {len(steps) - len(set(steps))} of them twice, {len(missing)} missing: {missing[:9]}")
    kinds = [event["event"] for event in events]
    for kind, often in (("started", 1), ("regrouped", 0), ("finished", 1)):
        if kinds.count(kind) != often:
            wrong.append(f"watched: {kinds.count(kind)} times '{kind}'")
    for disturbance in disturbances:
        if not disturbance["steps_while_away"]:
            wrong.append("no step while the scheduler was away")


def main():
    arguments = parse_arguments()
    programs = arguments.programs.resolve()
    measuring.require_modelet(programs / "modelet")
    settings = ["train.patience=0", "train.evaluate_every=0", "train.log_every=1", *pools.EXACT]
    short = [*settings, "train.epochs=1"]
    wrong, disturbances, chance = [], [], random.Random(1)
    with tempfile.TemporaryDirectory(prefix="modelet-restart-") as name:
        folder = pathlib.Path(name)
        os.environ["MODELET_CACHE"] = name + "/cache"
        with pools.Pool(programs, folder, *pools.lasting(folder)) as pool:
            for i in range(1, AGENTS + 1):
                pool.start_agent(f"node-{i}", "--cores", "1", "--dedicated", *pools.SPEED)
            experiment = measuring.ROOT / "experiments/quickstart.toml"
            first = pool.submit(experiment, AGENTS, [*settings, "train.epochs=100", *arguments.set])
            queued = [pool.submit(experiment, AGENTS, short) for _ in range(QUEUED)]
            watcher = pool.watch(first)
            watcher.wait_for_step(1, LIMIT)
            total = pools.steps_of(watcher.events())[0]["steps"]
            for i in range(arguments.restarts):
                watcher.wait_for_step(total * 8 * i // (10 * arguments.restarts) + chance.randrange(1, 20), LIMIT)
                disturbances.append(restart(pool, watcher, arguments.away, wrong))
                print(f"{i + 1}/{arguments.restarts}: answered {disturbances[-1]['answered'] - disturbances[-1]['started']:.2f} s after its start, "
                      f"load {disturbances[-1]['load']:.1f}", flush=True)
            if watcher.end(LIMIT) != 0:
                wrong.append(f"the watcher of run {first} failed")
            events = watcher.events()
            for run in (first, *queued):
                status = pool.wait_for_end(run, LIMIT)
                if status["state"] != "finished":
                    wrong.append(f"run {run} {status['state']}: {status['detail']}")
            check_order(pool, queued, wrong)
            last = pool.submit(experiment, AGENTS, short)
            if last != max(queued) + 1:
                wrong.append(f"the run after {max(queued)} is {last}")
    for disturbance in disturbances:
        disturbance["steps_while_away"] = len(steps_while_away(events, disturbance))
    check_watched(events, disturbances, wrong)
    steps = [disturbance["steps_while_away"] for disturbance in disturbances]
    print(f"{total} steps, {len(disturbances)} restarts; steps while the scheduler was away for {arguments.away:.0f} s: "
          f"{min(steps)} to {max(steps)}, median {statistics.median(steps):.0f}")
    print(f"load of the machine {min(row['load'] for row in disturbances):.1f} to {max(row['load'] for row in disturbances):.1f}, {os.cpu_count()} cores")
    for text in wrong:
        print(f"WRONG: {text}")
    measuring.finish({"settings": settings, "disturbances": disturbances, "wrong": wrong}, arguments.json, not wrong)


def check_order(pool, queued, wrong):
    """Checks that each queued run has trained once, after the one before it."""
    ends = []
    for run in queued:
        watcher = pool.watch(run)
        watcher.end(pools.PATIENCE)
        events = watcher.events()
        steps = [event["step"] for event in pools.steps_of(events)]
        if not steps or steps != sorted(set(steps)) or events[-1]["event"] != "finished" or steps[-1] != events[-1]["steps"]:
            wrong.append(f"run {run}: steps {steps[:3]} ... {steps[-3:]}, last event {events[-1]['event']}")
            continue
        started = pools.seconds_of(pools.steps_of(events)[0])
        if ends and started < ends[-1]:
            wrong.append(f"run {run} did a step before run {run - 1} had ended")
        ends.append(pools.seconds_of(events[-1]))


if __name__ == "__main__":
    main()
