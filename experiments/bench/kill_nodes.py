#!/usr/bin/env python3
"""Does a run outlive its nodes? Kills an agent of a run at a random step, many times; the run must end by itself and have learned the same.

    experiments/bench/kill_nodes.py PROGRAMS                    folder of modelet, modelet-agent, modelet-scheduler
    experiments/bench/kill_nodes.py PROGRAMS --runs 6 --set train.epochs=2 --json killed.json

quickstart.toml on four agents of this machine with keys: no folder is shared, codec `none`, declared speeds, one instruction set. First
comes an undisturbed run. Then come --runs runs: an agent that works for the run is killed with SIGKILL at a random step, and started
again when the run has ended. In the second half of the runs a fifth agent is free. These must hold:
- every run finishes without any help;
- with a spare node the final modelets equal those of the undisturbed run, bit by bit; without one, P@1 is within 0.3 point of it;
- a run continues from the newest snapshot, and repeats at most one interval (cluster.snapshot_every).
The seconds from the kill to the next step are printed too: at most 3 in the median and 10 in each run. They depend on the machine, so they
are judged only with --require. They would depend on --dead-after-seconds only if the connection outlived the agent, but here the kernel
closes it.
Exit code 1: one of these does not hold, or with --require a bound is missed.
"""

import argparse
import os
import pathlib
import random
import statistics
import sys
import tempfile

import measuring
import pools
import same_results

AGENTS = 4
SPARE = "node-5"
PRECISION_BOUND = 0.003  # of P@1 as a fraction
MEDIAN_BOUND, BOUND = 3.0, 10.0  # seconds from the kill to the next step: of half of the runs, of each
LIMIT = 900.0  # seconds for a run


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path, metavar="PROGRAMS")
    parser.add_argument("--runs", type=int, default=20, help="disturbed runs (default: 20)")
    parser.add_argument("--spare", choices=("half", "always", "never"), default="half", help="in which runs a fifth agent is free (default: half)")
    parser.add_argument("--snapshot-every", type=int, default=120, help="steps (default: 120)")
    parser.add_argument("--seed", type=int, default=1, help="of steps and nodes")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet (default: train.epochs=1)")
    parser.add_argument("--require", action="store_true", help="exit 1 if a bound is missed")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def train(pool, settings, disturb=None):
    """Runs from submission to end. Returns the run, its events, and the result of `disturb`, which is called with the watcher."""
    run = pool.submit(measuring.ROOT / "experiments/quickstart.toml", AGENTS, settings)
    watcher = pool.watch(run)
    returned = disturb(watcher) if disturb else None
    code = watcher.end(LIMIT)
    events = watcher.events()
    if code != 0 or events[-1]["event"] != "finished":
        sys.exit(f"run {run} did not finish (exit code {code}): {events[-1:]}\n{pool.logs()}")
    return run, events, returned


def kill_one(pool, watcher, step, chance):
    """Kills a node of the run after `step`. Returns its name, the time, and the step of the newest snapshot that other nodes held."""
    watcher.wait_for_step(1, LIMIT)
    name = chance.choice(pool.members(watcher.run))
    watcher.wait_for_step(step, LIMIT)
    killed = pool.kill(name)
    return name, killed, pool.runs()[watcher.run]["stable_step"]


def disturbed(pool, settings, total, chance):
    """Runs once, kills a node meanwhile, and returns the figures."""
    step = chance.randrange(1, total * 9 // 10)  # not so late that the run has ended
    others = measuring.OthersShare()
    run, events, (victim, killed, stable) = train(pool, settings, lambda watcher: kill_one(pool, watcher, step, chance))
    regrouped = [i for i, event in enumerate(events) if event["event"] == "regrouped"]
    if len(regrouped) != 1:
        return {"run": run, "killed": victim, "at_step": step, "regrouped": len(regrouped), "load": os.getloadavg()[0], "events": events}
    reached = max((event["step"] for event in pools.steps_of(events[:regrouped[0]])), default=0)
    follows = pools.steps_of(events[regrouped[0]:])
    return {"run": run, "killed": victim, "at_step": step, "regrouped": 1, "nodes": events[regrouped[0]]["nodes"], "reached": reached,
            "from_step": events[regrouped[0]]["step"], "stable_at_kill": stable, "repeated": reached - events[regrouped[0]]["step"],
            "seconds_to_next_step": pools.seconds_of(follows[0]) - killed, "p_at_1": events[-1]["p_at_1"],
            "load": os.getloadavg()[0], "others_share": others.until_now()}


def judge(row, undisturbed, digests, arguments):
    """Returns what is wrong with a disturbed run."""
    wrong = []
    if row["regrouped"] != 1:
        return [f"its group was formed anew {row['regrouped']} times"]
    if row["repeated"] > arguments.snapshot_every or row["from_step"] < row["stable_at_kill"]:
        wrong.append(f"{row['repeated']} steps were repeated; the newest snapshot that other nodes had was that of step {row['stable_at_kill']}")
    if row["spare"]:
        different = [name for name in digests | row["digests"] if digests.get(name) != row["digests"].get(name)]
        if different:
            wrong.append(f"{len(different)} of {len(digests)} modelets differ from the undisturbed run's")
    elif abs(row["p_at_1"] - undisturbed["p_at_1"]) > PRECISION_BOUND:
        wrong.append(f"P@1 {row['p_at_1']:.4f}, not {undisturbed['p_at_1']:.4f}")
    return wrong


def missed_bounds(rows):
    """Returns which bounds of the seconds from the kill to the next step the runs miss."""
    seconds = [row["seconds_to_next_step"] for row in rows if row["regrouped"] == 1]
    if not seconds:
        return ["no run has a next step"]
    return [f"{found:.2f} s to the next step ({what}), more than {bound:.0f}"
            for what, found, bound in (("median", statistics.median(seconds), MEDIAN_BOUND), ("max", max(seconds), BOUND)) if found > bound]


def main():
    arguments = parse_arguments()
    programs = arguments.programs.resolve()
    measuring.require_modelet(programs / "modelet")
    pools.fix_instruction_set(programs)
    settings = ["train.epochs=1", "train.patience=0", *arguments.set, *pools.EXACT, f"cluster.snapshot_every={arguments.snapshot_every}", "train.log_every=1"]
    chance, rows = random.Random(arguments.seed), []
    with tempfile.TemporaryDirectory(prefix="modelet-kill-") as name:
        folder = pathlib.Path(name)
        os.environ["MODELET_CACHE"] = name + "/cache"
        with pools.Pool(programs, folder, *pools.lasting(folder)) as pool:
            def start(agent):
                pool.start_agent(agent, "--cores", "1", "--dedicated", *pools.SPEED)
            for i in range(1, AGENTS + 1):
                start(f"node-{i}")
            run, events, _ = train(pool, settings)
            undisturbed, digests = events[-1], same_results.modelets(pool.fetch(run))
            total = undisturbed["steps"]
            print(f"undisturbed: {total} steps, {len(digests)} modelets, P@1 {undisturbed['p_at_1']:.4f}", flush=True)
            for i in range(arguments.runs):
                spare = i >= {"half": arguments.runs // 2, "always": 0, "never": arguments.runs}[arguments.spare]
                if spare and SPARE not in pool.processes:
                    start(SPARE)
                row = {"spare": spare, **disturbed(pool, settings, total, chance)}
                row["digests"] = same_results.modelets(pool.fetch(row["run"]))
                row["wrong"] = judge(row, undisturbed, digests, arguments)
                rows.append(row)
                print(f"{i + 1}/{arguments.runs} {'with' if spare else 'without'} a spare: {row['killed']} killed at step {row['at_step']}, "
                      f"{row.get('repeated', '?')} steps repeated, {row.get('seconds_to_next_step', float('nan')):.2f} s to the next step, "
                      f"P@1 {row.get('p_at_1', float('nan')):.4f}" + (f"  WRONG: {'; '.join(row['wrong'])}" if row["wrong"] else ""), flush=True)
                start(row["killed"])
    summary(rows)
    missed = missed_bounds(rows)
    print(f"MISSED: {'; '.join(missed)}" if missed else "bounds of the seconds to the next step: reached")
    measuring.finish({"settings": settings, "undisturbed": undisturbed, "digests": digests, "runs": rows}, arguments.json,
                     not any(row["wrong"] for row in rows) and not (arguments.require and missed))


def summary(rows):
    counted = [row for row in rows if row["regrouped"] == 1]
    for spare in (False, True):
        seconds = [row["seconds_to_next_step"] for row in counted if row["spare"] == spare]
        repeated = [row["repeated"] for row in counted if row["spare"] == spare]
        if seconds:
            print(f"{'with' if spare else 'without'} a spare, {len(seconds)} runs: from the kill to the next step {statistics.median(seconds):.2f} s (median), "
                  f"{max(seconds):.2f} s (max); steps repeated {statistics.median(repeated):.0f} (median), {max(repeated)} (max)")
    good = sum(not row["wrong"] for row in rows)
    print(f"{good} of {len(rows)} runs as they must be; load of the machine {min(row['load'] for row in counted):.1f} to "
          f"{max(row['load'] for row in counted):.1f}, {os.cpu_count()} cores" if counted else "no run was regrouped")


if __name__ == "__main__":
    main()
