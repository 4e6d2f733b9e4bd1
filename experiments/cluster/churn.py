#!/usr/bin/python3
"""How much of its speed does a run keep while its nodes come and go? Runs a pool in network namespaces, with a fault every few seconds.

    sudo churn.py ../amazon-670k-shape.toml --set data.train=... --set data.test=...        ten minutes, 4 nodes, 1 Gbit/s
    sudo churn.py ../amazon-670k-shape.toml --epochs 80 --minutes 12 --require ...          needs some 50,000 test samples: with 2,000,
                                                                                            chance alone can exceed the bound of P@1
    sudo churn.py ../quickstart.toml --minutes 2 --json churn.json
    sudo churn.py ../quickstart.toml --epochs 400 --set exchange.codec=none --set exchange.gradient_codec=none     what is learned

First comes a reference: the same experiment, undisturbed and without snapshots, for --reference-steps steps. With --epochs it has as many
epochs as the disturbed run, which then ends by itself, and what the two have learned is compared. Then comes the run. Every 5
to 10 seconds one of these faults begins, at a node or the scheduler, and once a minute one of the losses. A fault may outlast the next one,
which then hits another node. Every two minutes a new node joins the run; it is drained half a minute later.

    reset        the node's connections are closed                    stall        the node stands still for a second or two
    cut          its cable is out for a second or two                 deaf         what it sends is lost for a second or two
    full disk    its disk is full for five seconds                    scheduler    the scheduler stands still, or is killed and started again
    joined       a node that the pool has not known joins the run
    losses:      killed (kill -9), drained (SIGTERM), frozen (SIGSTOP for 20 s), cut off (20 s without a cable). The node comes back 5 to 15 s later.

Prints the goodput, which is the steps of the run in its wall time compared with the reference; where the rest of the time went; the bytes
that are not those of steps (snapshots, recovery) as a share of the links; memory and descriptors of the scheduler and the agents over
time; the use of the nodes' disks.
With --epochs: losses and P@1 of both runs. Bounds: copies of snapshots take at most 10 % of the links; memory and descriptors of each process
that lived for six minutes are flat in the last half of its life, up to 1 MiB; with --epochs, P@1 is the same up to 0.3 points, and the losses up to 0.3 %.
Exit code 1: the run did not go on, or did not finish, or with --require a bound is missed. Needs root (cluster.py says what else).
"""

import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "experiments/bench"))
import cluster as clusters
import cluster_pool
import measuring
import pools

DISK_BYTES = 4 << 30  # of a node's work folder
LOG_EVERY = 10  # steps between events
LONG_GAP = 5  # times the usual time between two events
SHORT = (1.0, 2.0)  # seconds of a disturbance after which no node counts as lost
LONGEST_RUN = 3600.0  # seconds
LOST = 20.0  # seconds of a disturbance after which a node counts as lost
STAYS = 30.0  # seconds for which a newcomer works
FAULT_EVERY, LOSS_EVERY, JOIN_EVERY = (5.0, 10.0), 60.0, 120.0  # seconds
SNAPSHOT_BOUND = 0.10  # of the links, for copies of snapshots
SETTLED = 180.0  # seconds after which a process has what it needs; until then it grows
LEARNED_BOUND = 0.003  # of P@1, and of the losses at the same steps in the median
GROWTH_NOTED = 1 << 20  # bytes: the heap of a small process grows by less when it connects again
GROWTH_BOUND = 1.25  # from one quarter of a life to the next: a leak since the start grows by 1.4 in the last half, medians of samples vary by less
# A scheduler keeps up to 256 entries of its store open for ten minutes (comm/content/transfer/data_core.h): fewer descriptors show no leak.
SCHEDULER_DESCRIPTORS = 300


class Faults:
    """Begins a fault every few seconds, until stop(), on a node that has none. A fault may last longer than the time to the next one."""

    def __init__(self, pool, chance):
        self.pool, self.cluster, self.chance = pool, pool.cluster, chance
        self._nodes = [f"node{rank}" for rank in range(self.cluster.size - 1)]
        self._newcomer = f"node{self.cluster.size - 1}"
        self.done = []  # (time, kind, node)
        self._busy = {}  # node, or "scheduler" -> its fault
        self._ended = threading.Event()
        # Processes that a thread has started end with it. So the threads stay.
        self._threads = concurrent.futures.ThreadPoolExecutor(pool.cluster.size + 2)
        self._work = None

    def start(self):
        self._work = self._threads.submit(self._begin_faults)

    def stop(self):
        self._ended.set()
        concurrent.futures.wait([self._work])  # it begins no more
        for fault in concurrent.futures.wait(list(self._busy.values())).done:
            fault.result()  # raises what went wrong

    def _wait(self, seconds):
        return self._ended.wait(seconds)

    def _begin_faults(self):
        next_loss, next_join = time.monotonic() + LOSS_EVERY / 2, time.monotonic() + JOIN_EVERY / 2
        while not self._wait(self.chance.uniform(*FAULT_EVERY)):
            free = [name for name in self._nodes if self._is_free(name)]
            loss = time.monotonic() >= next_loss and bool(free)
            join = not loss and time.monotonic() >= next_join and self._is_free(self._newcomer)
            if join:
                kind, name = "joined", self._newcomer
            else:
                kinds = ("killed", "drained", "frozen", "cut off") if loss else ("reset", "stall", "cut", "deaf", "full disk", "scheduler")
                kind = self.chance.choice(kinds if free else ("scheduler",))
                name = kind if kind == "scheduler" else self.chance.choice(free)
            if not self._is_free(name):
                continue
            next_loss += LOSS_EVERY if loss else 0
            next_join += JOIN_EVERY if join else 0
            self.done.append((time.time(), kind, name))
            self._busy[name] = self._threads.submit(getattr(self, "_" + kind.replace(" ", "_")), 0 if name == kind else int(name.removeprefix("node")))

    def _is_free(self, name):
        fault = self._busy.get(name)
        if fault is None or not fault.done():
            return fault is None
        fault.result()
        return True

    def _process(self, name):
        return self.pool.processes[name]

    def _freeze(self, name, seconds):
        self._process(name).send_signal(signal.SIGSTOP)
        self._wait(seconds)
        self._process(name).send_signal(signal.SIGCONT)

    def _reset(self, rank):
        subprocess.run(self.cluster.command(rank, ["ss", "--kill", "--tcp", "--numeric"]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def _stall(self, rank):
        self._freeze(f"node{rank}", self.chance.uniform(*SHORT))

    def _cut(self, rank, seconds=None):
        self.cluster.set_link(rank, False)
        self._wait(seconds or self.chance.uniform(*SHORT))
        self.cluster.set_link(rank, True)

    def _deaf(self, rank):
        self.cluster.set_deaf(rank, True)
        self._wait(self.chance.uniform(*SHORT))
        self.cluster.set_deaf(rank, False)

    def _full_disk(self, rank):
        filler = self.pool.folder / f"node{rank}" / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=1M"], stderr=subprocess.DEVNULL, check=False)
        self._wait(5.0)
        filler.unlink(missing_ok=True)

    def _scheduler(self, _):
        if self.chance.random() < 0.5:
            return self._freeze("scheduler", self.chance.uniform(*SHORT))
        self.pool.kill("scheduler")
        self.pool.start_scheduler()
        return None

    def _joined(self, rank):
        self.pool.start_node(rank)
        self._wait(STAYS)
        self.pool.end(f"node{rank}")

    def _come_back(self, rank):
        self._wait(self.chance.uniform(5, 15))
        self.pool.start_node(rank)

    def _killed(self, rank):
        self.pool.kill(f"node{rank}")
        self._come_back(rank)

    def _drained(self, rank):
        self.pool.end(f"node{rank}")
        self._come_back(rank)

    def _frozen(self, rank):
        self._freeze(f"node{rank}", LOST)

    def _cut_off(self, rank):
        self._cut(rank, LOST)


class Usage:
    """Records memory, descriptors and disks of the processes of the pool every ten seconds. Memory: without pages of files, such as the
    training data, which the machine keeps only while it has room."""

    def __init__(self, pool):
        self.rows, self._pool, self._ended = [], pool, threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self):
        self._ended.set()
        self._thread.join()

    def _disk_bytes(self, name):
        """The bytes on the disk of a node, without the file that fills it as a fault."""
        folder = self._pool.folder / name
        if not folder.is_mount():
            return 0
        filler = folder / "filler"
        return shutil.disk_usage(folder).used - (filler.stat().st_size if filler.exists() else 0)

    def _work(self):
        while not self._ended.wait(10.0):
            for name, process in list(self._pool.processes.items()):
                try:
                    resident, shared = map(int, pathlib.Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1:3])
                    self.rows.append({"time": time.time(), "process": name, "id": process.pid, "own_bytes": (resident - shared) * os.sysconf("SC_PAGE_SIZE"),
                                      "descriptors": len(os.listdir(f"/proc/{process.pid}/fd")), "disk_bytes": self._disk_bytes(name)})
                except (OSError, ValueError):
                    pass  # it has just ended


def reference(pool, experiment, nodes, settings, steps, epochs):
    """Returns the seconds of an undisturbed step, the bytes that cross the link of a node in it and, with `epochs`, the events of the whole run."""
    run = pool.submit(experiment, nodes, [*settings, "cluster.snapshot_every=1000000", f"train.epochs={epochs or 1000}"])
    watcher = pool.watch(run)
    watcher.wait_for_step(LOG_EVERY, 600)
    first, sent = watcher.step(), pool.cluster.sent_bytes()
    watcher.wait_for_step(first + steps, 600)
    last, sent_then = watcher.step(), pool.cluster.sent_bytes()
    seconds = {event["step"]: event["train_seconds"] for event in watcher.events("progress")}
    if not epochs:
        pool.verb("stop", run)
    watcher.end(LONGEST_RUN if epochs else 120)
    if epochs and pool.runs()[run]["state"] != "finished":
        sys.exit(f"the undisturbed run did not finish: {pool.runs()[run]}\n{pool.logs()}")
    return {"seconds": (seconds[last] - seconds[first]) / (last - first), "bytes": sum(after - before for before, after in zip(sent, sent_then)) / (last - first)}, watcher.events()


def compare(undisturbed, disturbed):
    """What two runs of the same length have learned: P@1 of both, and how far their losses at the same steps are apart, as shares.

    A loss is a mean over the steps since the event before it. After a loss of a node these are other steps, so only events are compared that
    follow an event with the step before them in both runs."""
    def losses(events):
        progress = [event for event in events if event["event"] == "progress" and event.get("loss") is not None]
        return {event["step"]: event["loss"] for before, event in zip(progress, progress[1:]) if event["step"] == before["step"] + LOG_EVERY}

    one, other = losses(undisturbed), losses(disturbed)
    apart = sorted(abs(other[step] - one[step]) / one[step] for step in one.keys() & other.keys())
    if not apart:
        sys.exit("the runs have no losses at the same steps: give more --epochs")
    return {"p_at_1": [next(event["p_at_1"] for event in events if event["event"] == "finished") for events in (undisturbed, disturbed)],
            "losses_compared": len(apart), "loss_apart_median": apart[len(apart) // 2], "loss_apart_most": apart[-1]}


def last_step(watcher, after=0.0):
    """The last reported step; None if none was reported after that time."""
    steps = [event["step"] for event in watcher.events("progress") if pools.seconds_of(event) > after]
    return steps[-1] if steps else None


def where_time_went(events, usual):
    """Returns from the events of a run what the seconds were spent on, and how many steps were done twice. `usual`: seconds of a step."""
    progress, spent, repeated, reached = [], {"standing still": 0.0, "slower steps": 0.0}, 0, 0
    for event in events:
        if event["event"] == "regrouped":
            repeated += max(0, reached - event["step"])
            reached = event["step"]
        elif event["event"] == "progress":
            progress.append(event)
            reached = event["step"]
    for before, event in zip(progress, progress[1:]):
        gap, steps = pools.seconds_of(event) - pools.seconds_of(before), event["step"] - before["step"]
        over = gap - max(steps, 0) * usual
        spent["standing still" if gap > LONG_GAP * LOG_EVERY * usual else "slower steps"] += max(0.0, over)
    spent["steps done again"] = repeated * usual
    return spent, repeated


def lives(rows, seconds):
    """Yields the name and the rows of each process that lived for so many seconds."""
    found = {}
    for row in rows:
        found.setdefault((row["process"], row["id"]), []).append(row)
    for (name, _), life in sorted(found.items()):
        if life[-1]["time"] - life[0]["time"] >= seconds:
            yield name, life


def flatness(rows):
    """For each process that lived for two minutes: (least, most) of each usage in each half of its life.

    A node holds more modelets while others are away, so single samples mean little.
    """
    for name, life in lives(rows, 120):
        middle = len(life) // 2
        yield name, {key: [(min(row[key] for row in half), max(row[key] for row in half)) for half in (life[:middle], life[middle:])]
                     for key in ("own_bytes", "descriptors", "disk_bytes")}


def missed_bounds(found):
    """Returns which bounds a disturbed run misses. Memory and descriptors are flat if their median in the last quarter of a life is at most
    GROWTH_BOUND times that in the quarter before."""
    missed, share = [], found["snapshot_share_of_links"]
    if share > SNAPSHOT_BOUND:
        missed.append(f"copies of snapshots take {share:.2%} of the links, more than {SNAPSHOT_BOUND:.0%}")
    if learned := found.get("learned"):
        one, other = learned["p_at_1"]
        if round(abs(one - other), 6) > LEARNED_BOUND or learned["loss_apart_median"] > LEARNED_BOUND:
            missed.append(f"the disturbed run has learned something else: P@1 {other:.4f} instead of {one:.4f}, losses {learned['loss_apart_median']:.1e} apart")
    long = list(lives(found["usage"], 2 * SETTLED))
    if not long:
        missed.append(f"no process lived for {2 * SETTLED:.0f} s, so memory and descriptors cannot be judged: give more --minutes")
    for name, life in long:
        middle, last = len(life) // 2, len(life) * 3 // 4
        for key, what in (("own_bytes", "bytes of memory"), ("descriptors", "descriptors")):
            before, after = (statistics.median(row[key] for row in quarter) for quarter in (life[middle:last], life[last:]))
            is_few = after - before < GROWTH_NOTED if key == "own_bytes" else name == "scheduler" and after <= SCHEDULER_DESCRIPTORS
            if after > GROWTH_BOUND * before and not is_few:
                missed.append(f"{name}: {after:,.0f} {what} in the last quarter of its life, {before:,.0f} in the quarter before")
    return missed


def copied_bytes(folder, begun, ended):
    """An upper bound of the bytes of snapshots that were sent to holders and the store: as many as these reported to lack."""
    told, total = re.compile(r"(\S+) .*info data (\S+) of (\d+) bytes: (\d+) of (\d+) chunks"), 0.0
    for log in folder.glob("*.log"):
        lacked = {}  # chunks that each file lacks; fewer than before: an interrupted copy continues
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            found = told.match(line)
            if not found or not begun <= datetime.datetime.fromisoformat(found[1]).timestamp() <= ended:
                continue
            size, missing, chunks = map(int, found.groups()[2:])
            if missing >= lacked.get(found[2], 0):
                total += size * missing / chunks
            lacked[found[2]] = missing
    return total


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path)
    clusters.add_cluster_options(parser)
    parser.set_defaults(nodes=4)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="a key of the experiment")
    parser.add_argument("--minutes", type=float, default=10.0, help="with faults (default: 10)")
    parser.add_argument("--epochs", type=int, default=0, help="of both runs, which end by themselves, and must have more than --reference-steps steps; faults cease when the disturbed one has ended, or after --minutes")
    parser.add_argument("--reference-steps", type=int, default=500, help="undisturbed (default: 500)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--require", action="store_true", help="exit 1 if a bound is missed")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def churn(pool, arguments, settings):
    usual, undisturbed = reference(pool, arguments.experiment, arguments.nodes, settings, arguments.reference_steps, arguments.epochs)
    print(f"undisturbed: {1e3 * usual['seconds']:.2f} ms a step, {usual['bytes'] / arguments.nodes:,.0f} bytes of a node", flush=True)
    run = pool.submit(arguments.experiment, arguments.nodes, [*settings, f"cluster.max_nodes={arguments.nodes + 1}", f"train.epochs={arguments.epochs or 10000}"])
    watcher = pool.watch(run)
    watcher.wait_for_step(LOG_EVERY, 600)
    usage, faults = Usage(pool), Faults(pool, random.Random(arguments.seed))
    begun, sent, first = time.time(), pool.cluster.sent_bytes(), watcher.step()
    faults.start()
    try:
        while time.time() < begun + 60 * arguments.minutes:
            time.sleep(1.0)
            state = pool.runs()[run]["state"]
            if arguments.epochs and state == "finished":
                break
            if state in pools.ENDED:
                sys.exit(f"the run has ended: {pool.runs()[run]}\n{watcher.events()[-2:]}\n{pool.logs()}")
    finally:
        faults.stop()
        usage.stop()
    # Steps are final once the run has continued from them. A group that was formed anew may be behind what was reported before.
    faults_end = time.time()
    if arguments.epochs:
        watcher.end(LONGEST_RUN)
        if pool.runs()[run]["state"] != "finished":
            sys.exit(f"the run did not finish: {pool.runs()[run]}\n{pool.logs()}")
    else:
        pools.wait_until(lambda: last_step(watcher, after=faults_end), lambda: f"run {run} goes on after the faults\n{pool.logs()}", 120, 0.5)
    last, sent_then = last_step(watcher), pool.cluster.sent_bytes()
    seconds = max(pools.seconds_of(event) for event in watcher.events("progress")) - begun  # without the evaluation at the end
    events = [event for event in watcher.events() if begun <= pools.seconds_of(event) <= begun + seconds]
    if not arguments.epochs:
        pool.verb("stop", run)
        watcher.end(120)
    spent, repeated = where_time_went(events, usual["seconds"])
    done = last - first + repeated
    other = sum(after - before for before, after in zip(sent, sent_then)) - done * usual["bytes"]
    capacity = arguments.nodes * seconds * clusters.BITS_PER_SECOND.get(pool.cluster.rate, float("inf")) / 8
    return {"reference": usual, "seconds": seconds, "steps_kept": last - first, "steps_repeated": repeated, "goodput": (last - first) * usual["seconds"] / seconds,
            "spent_seconds": spent, "other_share_of_links": max(0.0, other) / capacity,
            "snapshot_share_of_links": copied_bytes(pool.folder, begun, begun + seconds) / capacity, "regrouped": dict(collections.Counter(re.sub(r"'[^']*'|\d[\d.]*", "_", event["why"]) for event in events if event["event"] == "regrouped")),
            "faults": faults.done, "usage": usage.rows, "learned": compare(undisturbed, watcher.events()) if arguments.epochs else None}


def show(found):
    kinds = [kind for _, kind, _ in found["faults"]]
    print(f"{found['seconds']:.0f} s, {len(kinds)} faults (" + ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) +
          f"), {sum(found['regrouped'].values())} new groups: " + "; ".join(f"{count} times '{why}'" for why, count in found["regrouped"].items()))
    print(f"goodput {found['goodput']:.1%}: {found['steps_kept']} steps kept, {found['steps_repeated']} done again")
    print("the rest: " + ", ".join(f"{seconds:.0f} s {what}" for what, seconds in found["spent_seconds"].items()))
    print(f"bytes that are not those of steps: {found['other_share_of_links']:.2%} of the links, if each step sent what an undisturbed one sends; "
          f"copies of snapshots: {found['snapshot_share_of_links']:.2%} at most")
    if learned := found["learned"]:
        print("P@1 undisturbed {:.4f}, disturbed {:.4f}".format(*learned["p_at_1"]) + f"; losses at {learned['losses_compared']} steps are {learned['loss_apart_median']:.2e} "
              f"apart (median, as a share), at most {learned['loss_apart_most']:.2e}")
    for name, usage in flatness(found["usage"]):
        (memory, disk), descriptors = ([[f"{least / 1e6:.0f} to {most / 1e6:.0f} MB" for least, most in usage[key]] for key in ("own_bytes", "disk_bytes")],
                                       usage["descriptors"])
        print(f"{name}: {memory[0]}, {descriptors[0][0]} to {descriptors[0][1]} descriptors, {disk[0]} on its disk in the first half of its life; "
              f"{memory[1]}, {descriptors[1][0]} to {descriptors[1][1]}, {disk[1]} in the second")


def main():
    arguments = parse_arguments()
    measuring.require_modelet(arguments.programs / "modelet")
    settings = [*arguments.set, f"train.log_every={LOG_EVERY}", "train.evaluate_every=0", "train.checkpoint_every=100000", "train.patience=0"]
    others = measuring.OthersShare()
    try:
        with tempfile.TemporaryDirectory(prefix="modelet-churn-") as name, clusters.Cluster.wanted(arguments, arguments.nodes + 1) as cluster:
            os.environ["MODELET_CACHE"] = name + "/cache"
            folder, disks = pathlib.Path(name), []
            try:
                for rank in range(arguments.nodes + 1):
                    disks.append(folder / f"node{rank}")
                    disks[-1].mkdir()
                    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "modelet-churn", disks[-1]], check=True)
                with cluster_pool.ClusterPool(cluster, arguments.programs, folder, "--state", folder / "state", "--data-port", cluster_pool.PORT + 1) as pool:
                    for rank in range(arguments.nodes):
                        pool.start_node(rank)
                    found = churn(pool, arguments, settings)
            finally:
                for disk in disks:
                    subprocess.run(["umount", "--lazy", disk], check=False)
    except clusters.CannotRun as error:
        print(f"churn.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    except clusters.Interrupted:
        return clusters.EXIT_INTERRUPTED
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(found)
    print(f"others used {others.until_now():.0%} of the machine")
    missed = missed_bounds(found)
    print(f"MISSED: {'; '.join(missed)}" if missed else "bounds: reached")
    return 1 if arguments.require and missed else 0


if __name__ == "__main__":
    sys.exit(main())
