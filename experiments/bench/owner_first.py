#!/usr/bin/env python3
"""Does the owner of a machine come first? Another process takes all cores of a machine that is lent to a pool, and gives them back.

    experiments/bench/owner_first.py PROGRAMS             folder of modelet, modelet-agent, modelet-scheduler
    experiments/bench/owner_first.py PROGRAMS --pairs 1 --seconds 8 --json owner.json

An agent that makes room (no --dedicated) lends all cores of this machine and trains. The owner computes for --seconds on all cores: in turn
while the agent is paused and while it works. These must hold:
- the agent takes less than 5 % of the machine from the sixth second on, and works again within 30 s after the owner has ended;
- the owner's process is less than 3 % slower than beside the paused agent (median of the pairs). Its "undisturbed" loss is printed too,
  but not judged: it takes each half second from the trial that was fastest there. The cores of a virtual machine are slower for seconds,
  whatever the agent does; but this measure leaves out trials in which the agent was slow to make room.
Then a second agent joins, which stands for another machine: it is --dedicated. A run works on both when the owner comes, for longer than
the patience of the first agent (8 s). The run must then go on without this agent, and finish.
Other processes of the machine disturb this: they count as owners too, and the agent makes room for them. What they used is printed. On a
machine that is never quiet, --tolerated-percent 100 shows what the agent's scheduling class does alone: it does not give up threads. In
the second part the owner then also says 'pause'.
Exit code 1: one of these does not hold.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import measuring
import pools

BACK_OFF_SECONDS, SHARE_BOUND = 5.0, 0.05
BACK_SECONDS = 30.0
LOSS_BOUND = 0.03
PATIENCE = 8  # seconds
LIMIT = 600.0  # seconds for a run
CORES = os.cpu_count()
WINDOW = 0.5  # seconds
OWNER = f"""
import sys, time
began, rounds = time.monotonic(), [0] * int(float(sys.argv[1]) / {WINDOW})
while (window := int((time.monotonic() - began) / {WINDOW})) < len(rounds):
    sum(range(20000))
    rounds[window] += 1
print(*rounds)
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path, metavar="PROGRAMS")
    parser.add_argument("--pairs", type=int, default=6, help="of the owner's work beside a paused agent and beside one that works (default: 6)")
    parser.add_argument("--seconds", type=float, default=20.0, help="that the owner computes each time (default: 20)")
    parser.add_argument("--quiet-seconds", type=float, default=300.0, help="to wait for the agent to work before a trial: others may use the machine")
    parser.add_argument("--tolerated-percent", type=int, default=10, help="of the cores that others may use before the agent makes room (default: 10, as without)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


class Lent:
    """The agent that makes room, as seen from outside the pool."""

    def __init__(self, pool, name, patience, tolerated_percent):
        self.pool, self.name = pool, name
        preferences = pool.folder / "lend.toml"
        preferences.write_text(f"[back_off]\npatience_seconds = {patience}\ntolerated_percent = {tolerated_percent}\n", encoding="utf-8")
        pool.start_agent(name, "--cores", CORES, "--preferences", preferences, *pools.SPEED)

    def ask(self, *words):
        """Asks the owner's socket, without the scheduler and without keys."""
        done = subprocess.run([str(word) for word in (self.pool.programs / "modelet-agent", *words, "--work-dir", self.pool.folder / self.name,
                                                      "--name", self.name, "--json")], stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(done.stdout)

    def works(self):
        status = self.ask("--status")
        return status["state"] == "working" and status["threads"] > 0

    def wait_for_work(self, seconds):
        """Waits until the agent does steps. Returns how many seconds that took."""
        began = time.monotonic()
        pools.wait_until(self.works, lambda: f"the agent works: {self.ask('--status')}; other processes may use the machine", seconds, 0.2)
        return time.monotonic() - began


class Owner:
    """Computes on all cores."""

    def __init__(self, seconds):
        self._processes = [subprocess.Popen([sys.executable, "-c", OWNER, str(seconds)], stdout=subprocess.PIPE, text=True) for _ in range(CORES)]

    def computing(self):
        return any(process.poll() is None for process in self._processes)

    def rounds(self):
        """Waits for the end. Returns the rounds of all cores in each window of time."""
        done = [[int(rounds) for rounds in process.communicate()[0].split()] for process in self._processes]
        return [sum(window) for window in zip(*done)]


def trial(lent, seconds):
    """Lets the owner compute. Returns its rounds, the agent's share of the machine in each half second, and what others used."""
    owner_used = -measuring.children_seconds()
    others, owner, began = measuring.OthersShare(), Owner(seconds), time.monotonic()
    shares, last, at = [], measuring.cpu_seconds(lent.pool.processes[lent.name].pid), began
    used = -last
    while owner.computing():
        time.sleep(0.5)
        now, spent = time.monotonic(), measuring.cpu_seconds(lent.pool.processes[lent.name].pid)
        shares.append((now - began, (spent - last) / (now - at) / CORES))
        last, at = spent, now
    rounds, lasted = owner.rounds(), time.monotonic() - began
    owner_used += measuring.children_seconds()
    # others_share counts the agent, which has not ended, among the others.
    return {"rounds": rounds, "owner_seconds": owner_used, "agent_seconds": used + last, "shares": shares,
            "others_share": round(max(0.0, others.until_now() - (used + last) / lasted / CORES), 3)}


def pair(lent, seconds, quiet_seconds, paused_first):
    """Runs both trials, in alternating order."""
    row = {}
    for kind in ("paused", "working") if paused_first else ("working", "paused"):
        if kind == "paused":
            lent.ask("pause")
            pools.wait_until(lambda: lent.ask("--status")["threads"] == 0, "the agent pauses")
            time.sleep(1)
            row[kind] = trial(lent, seconds)
            lent.ask("resume")
        else:
            lent.wait_for_work(quiet_seconds)
            row[kind] = trial(lent, seconds)
            row["back_seconds"] = lent.wait_for_work(quiet_seconds)
    late = [share for at, share in row["working"]["shares"] if at >= BACK_OFF_SECONDS + 0.5]
    row["late_share"] = statistics.mean(late) if late else None
    row["loss"] = 1 - sum(row["working"]["rounds"]) / sum(row["paused"]["rounds"])
    return row


def with_a_second_node(lent, pauses, quiet_seconds, wrong):
    """Starts a run on both agents, then the owner comes. Returns what happened according to the events of the run."""
    pool, settings = lent.pool, ["train.epochs=4", "train.log_every=1", "train.evaluate_every=0", *pools.EXACT]
    pools.wait_until(lambda: lent.name in pool.nodes() and lent.ask("--status")["threads"] > 0, "the agent is free to work", quiet_seconds, 0.5)
    pool.start_agent("second", "--cores", "1", "--dedicated", *pools.SPEED)
    run = pool.submit(measuring.ROOT / "experiments/quickstart.toml", 2, settings)
    watcher = pool.watch(run)
    watcher.wait_for_step(20, quiet_seconds)
    came = time.time()
    if pauses:
        lent.ask("pause")
    Owner(BACK_OFF_SECONDS + PATIENCE + 15).rounds()
    if pauses:
        lent.ask("resume")
    went, began = time.time(), time.monotonic()
    pools.wait_until(lambda: lent.ask("--status")["state"] != "away" and lent.name in pool.nodes(), "the agent comes back to the pool", quiet_seconds, 0.2)
    back = time.monotonic() - began
    if back > BACK_SECONDS:
        wrong.append(f"the agent came back to the pool after {back:.0f} s")
    if watcher.end(LIMIT) != 0:
        wrong.append(f"the run on two nodes ended with {watcher.events()[-1:]}")
    events = watcher.events()
    regrouped = [event for event in events if event["event"] == "regrouped" and came < pools.seconds_of(event) < went]
    if not regrouped or regrouped[0]["nodes"] != ["second"]:
        wrong.append("the run did not go on without the owner's machine")
        return {}
    steps = [event for event in pools.steps_of(events) if pools.seconds_of(regrouped[0]) < pools.seconds_of(event) < went]
    if not steps:
        wrong.append("no step was done without the owner's machine")
    return {"back_in_the_pool_seconds": back, "regrouped_after_seconds": pools.seconds_of(regrouped[0]) - came, "steps_without": len(steps), "why": regrouped[0]["why"]}


def undisturbed_rounds(rows, kind):
    """The owner's rounds, summed over the windows of a trial. Each window is taken from the trial that was fastest there."""
    return sum(max(window) for window in zip(*(row[kind]["rounds"] for row in rows)))


def judge(rows, wrong):
    late = [row["late_share"] for row in rows]
    taken = [row["working"]["agent_seconds"] / row["working"]["owner_seconds"] for row in rows]
    loss, undisturbed = statistics.median(row["loss"] for row in rows), 1 - undisturbed_rounds(rows, "working") / undisturbed_rounds(rows, "paused")
    back = max(row["back_seconds"] for row in rows)
    print(f"the agent's share of the machine after {BACK_OFF_SECONDS:.0f} s: {max(late):.1%} at most (bound {SHARE_BOUND:.0%}); "
          f"works again after {back:.1f} s at most (bound {BACK_SECONDS:.0f} s); the owner loses {loss:.1%} (median; bound {LOSS_BOUND:.0%}; "
          f"pairs {', '.join(format(row['loss'], '.1%') for row in rows)}), undisturbed {undisturbed:.1%}; "
          f"the agent used {max(taken):.1%} of the CPU time that the owner had, at most")
    if max(late) >= SHARE_BOUND:
        wrong.append("the agent does not make room")
    if back > BACK_SECONDS:
        wrong.append("the agent does not come back in time")
    if loss >= LOSS_BOUND:
        wrong.append("the owner's process is slower")
    busiest = max(row[kind]["others_share"] for row in rows for kind in ("paused", "working"))
    if busiest > measuring.BUSY_SHARE:
        print(f"The machine was not quiet: other processes used up to {busiest:.0%} of it. Do not quote these figures.")


def main():
    arguments = parse_arguments()
    if arguments.seconds <= BACK_OFF_SECONDS + 1:
        sys.exit(f"--seconds must be more than {BACK_OFF_SECONDS + 1:.0f}: the agent has {BACK_OFF_SECONDS:.0f} to make room")
    os.environ.pop("MODELET_DEDICATED", None)
    programs, rows, wrong = arguments.programs.resolve(), [], []
    measuring.require_modelet(programs / "modelet")
    with tempfile.TemporaryDirectory(prefix="modelet-owner-") as name:
        folder = pathlib.Path(name)
        os.environ["MODELET_CACHE"] = name + "/cache"
        with pools.Pool(programs, folder, *pools.lasting(folder)) as pool:
            lent = Lent(pool, "lent", int(arguments.seconds) + 30, arguments.tolerated_percent)
            endless = pool.submit(measuring.ROOT / "experiments/quickstart.toml", 1, ["train.epochs=100000", "train.evaluate_every=0"])
            lent.wait_for_work(arguments.quiet_seconds)
            for i in range(arguments.pairs):
                rows.append(pair(lent, arguments.seconds, arguments.quiet_seconds, i % 2 == 0))
                print(f"{i + 1}/{arguments.pairs}: shares of the agent " + " ".join(f"{share:.2f}" for _, share in rows[-1]["working"]["shares"])
                      + f"; back after {rows[-1]['back_seconds']:.1f} s; the owner loses {rows[-1]['loss']:.1%}; load {os.getloadavg()[0]:.1f}", flush=True)
            judge(rows, wrong)
            pool.verb("stop", endless)
            pool.wait_for_end(endless, LIMIT)
            pool.end("lent")
            second = with_a_second_node(Lent(pool, "lent", PATIENCE, arguments.tolerated_percent), arguments.tolerated_percent >= 100,
                                        arguments.quiet_seconds, wrong)
            if second:
                print(f"with a second node: the run goes on {second['regrouped_after_seconds']:.1f} s after the owner came, "
                      f"{second['steps_without']} steps before the owner went; {second['why']}; back in the pool after {second['back_in_the_pool_seconds']:.1f} s")
    for text in wrong:
        print(f"WRONG: {text}")
    measuring.finish({"pairs": rows, "with_a_second_node": second, "wrong": wrong}, arguments.json, not wrong)


if __name__ == "__main__":
    main()
