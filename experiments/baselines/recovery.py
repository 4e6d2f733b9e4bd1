#!/usr/bin/python3
"""Seconds until training goes on after a node is lost: Modelet and Horovod's elastic mode, in the same namespaces, after the same loss.

    sudo experiments/baselines/recovery.py ../quickstart.toml --train ../datasets/debian-deps/train.txt.xz
    sudo experiments/baselines/recovery.py ... --losses killed --repeats 5 --json recovery.json

Four nodes at 1 Gbit/s train the experiment's model: Modelet the experiment as it is, Horovod the same hidden layer and batch with a dense softmax
(--rows of the data). One node is lost, and is free again afterwards:
    killed   SIGKILL to its process, whose connections the kernel closes
    cut      its cable is pulled, so the others notice nothing at first. Horovod's driver is told at once that the host is gone, as a good
             discovery script would do
The time until the next step is from the loss to the end of the first step that the others do without the node. The usual time of a step
is printed beside it. Horovod goes on from its last commit in memory (--commit-every), Modelet from its newest snapshot.
Needs install_horovod.sh. Exit codes: 0 done, 1 a system did not go on, 77 this machine cannot run a cluster, 130 interrupted.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent / "cluster"), str(HERE.parent / "bench")]
import blas
import cluster as clusters
import cluster_pool
import launch
import measuring
import pools

LIMIT = 180.0  # seconds within which training must start, or go on
LOSSES = ("killed", "cut")


class DidNotGoOn(Exception):
    pass


class ElasticHorovod:
    """A run of elastic Horovod on all nodes of a cluster. It is a context manager, whose end ends the run."""

    def __init__(self, cluster, python, words, folder):
        self._processes, self._events = {}, []
        names = [f"node{rank}" for rank in range(cluster.size)]
        commands = {name: cluster.command(rank, [python, HERE / "horovod_elastic.py", *words]) for rank, name in enumerate(names)}
        self._log = folder / "horovod.log"
        with open(self._log, "wb") as log:
            self._driver = cluster.start(clusters.SWITCH, [python, HERE / "elastic_driver.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                         env=os.environ | blas.environment(1) | {"PYTHONDONTWRITEBYTECODE": "1"})
        self._tell({"commands": {name: list(map(str, words)) for name, words in commands.items()}, "least": cluster.size - 1, "address": cluster.scheduler})
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        clusters.stop([self._driver])
        for process in self._processes.values():
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                pass
        self._driver.stdin.close()
        self._reader.join()

    def _tell(self, value):
        self._driver.stdin.write(json.dumps(value) + "\n")
        self._driver.stdin.flush()

    def _read(self):
        for line in self._driver.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if "process" in event:
                self._processes[event["host"]] = event["process"]
            else:
                self._events.append(event)

    def _steps(self, ranks, after):
        return [event for event in list(self._events) if event["ranks"] == ranks and event["time"] > after]

    def _wait_for(self, ranks, after, count, what):
        end = time.monotonic() + LIMIT
        while len(steps := self._steps(ranks, after)) < count:
            if time.monotonic() > end or self._driver.poll() is not None:
                raise DidNotGoOn(f"Horovod: {what} did not happen: {self._log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.01)
        return steps

    def lose(self, cluster, rank, loss, steps):
        """Waits for `steps` steps of all ranks, then loses a node. Returns (seconds of a step before, seconds until the next step)."""
        before = [event for event in self._wait_for(cluster.size, 0, cluster.size * steps, "its first steps") if event["rank"] == 0]
        usual = (before[-1]["time"] - before[1]["time"]) / (len(before) - 2)
        lost = time.time()
        if loss == "killed":
            os.kill(self._processes[f"node{rank}"], 9)
        else:
            cluster.set_link(rank, False)
        self._tell([f"node{other}" for other in range(cluster.size) if other != rank])
        return usual, min(event["time"] for event in self._wait_for(cluster.size - 1, lost, 1, "a step of the others")) - lost


def lose_of_modelet(pool, experiment, settings, rank, loss, steps):
    run = pool.submit(experiment, pool.cluster.size, settings)
    watcher = pool.watch(run)
    watcher.wait_for_step(steps, LIMIT)
    seconds = {event["step"]: event["train_seconds"] for event in watcher.events("progress")}
    usual = (seconds[max(seconds)] - seconds[1]) / (max(seconds) - 1)
    if loss == "killed":
        lost = pool.kill(f"node{rank}")
    else:
        lost = time.time()
        pool.cluster.set_link(rank, False)
    follows = pools.wait_until(lambda: steps_of_new_group(watcher.events()), lambda: f"run {run} goes on\n{pool.logs()}", LIMIT, 0.02)
    pool.verb("stop", run)
    watcher.end(LIMIT)
    if loss == "killed":
        pool.start_node(rank)
    else:
        pool.cluster.set_link(rank, True)
    pools.wait_until(lambda: sum(node["run"] == 0 for node in pool.nodes().values()) == pool.cluster.size, lambda: f"all nodes are free: {pool.nodes()}", LIMIT, 0.2)
    return usual, pools.seconds_of(follows[0]) - lost


def steps_of_new_group(events):
    new = [i for i, event in enumerate(events) if event["event"] == "regrouped"]
    return pools.steps_of(events[new[0]:]) if new else []


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path)
    clusters.add_cluster_options(parser)
    parser.set_defaults(nodes=4)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the experiment's data as XMC text, for Horovod")
    parser.add_argument("--rows", type=int, default=4096, help="of it (default: 4096)")
    parser.add_argument("--hidden", type=int, default=128, help="the experiment's (default: 128)")
    parser.add_argument("--python", type=pathlib.Path, default=launch.DEFAULT_PYTHON, help="with Horovod (default: build/horovod-venv)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="a key of the experiment")
    parser.add_argument("--losses", type=lambda text: text.split(","), default=list(LOSSES), help="default: killed,cut")
    parser.add_argument("--repeats", type=int, default=3, help="of each loss (default: 3)")
    parser.add_argument("--steps", type=int, default=12, help="before the loss, of Horovod (default: 12)")
    parser.add_argument("--commit-every", type=int, default=5, help="steps between Horovod's copies in memory (default: 5)")
    parser.add_argument("--snapshot-every", type=int, default=60, help="steps between Modelet's snapshots (default: 60)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    if unknown := [loss for loss in arguments.losses if loss not in LOSSES]:
        parser.error(f"--losses: no such loss: {', '.join(unknown)}")
    return arguments


def horovod_losses(cluster, arguments, folder):
    words = ["--mode", "dense", "--train", arguments.train.resolve(), "--rows", arguments.rows, "--hidden", arguments.hidden, "--steps", 100_000,
             "--commit-every", arguments.commit_every]
    for loss in arguments.losses:
        for i in range(arguments.repeats):
            with ElasticHorovod(cluster, arguments.python, words, folder) as run:
                yield loss, run.lose(cluster, 1 + i % (cluster.size - 1), loss, arguments.steps)
            if loss == "cut":
                cluster.set_link(1 + i % (cluster.size - 1), True)


def modelet_losses(cluster, arguments, folder):
    settings = [*arguments.set, "train.log_every=1", "train.epochs=1000", "train.evaluate_every=0", "train.patience=0", f"cluster.snapshot_every={arguments.snapshot_every}"]
    with cluster_pool.ClusterPool(cluster, arguments.programs, folder, "--state", folder / "state", "--data-port", cluster_pool.PORT + 1) as pool:
        for rank in range(cluster.size):
            pool.start_node(rank)
        for loss in arguments.losses:
            for i in range(arguments.repeats):
                yield loss, lose_of_modelet(pool, arguments.experiment, settings, 1 + i % (cluster.size - 1), loss, 2 * arguments.snapshot_every)


def main():
    arguments = parse_arguments()
    measuring.require_modelet(arguments.programs / "modelet")
    rows, others = [], measuring.OthersShare()
    try:
        with tempfile.TemporaryDirectory(prefix="modelet-recovery-") as name, clusters.Cluster.wanted(arguments) as cluster:
            os.environ["MODELET_CACHE"] = name + "/cache"
            for system, losses in (("Modelet", modelet_losses), ("Horovod", horovod_losses)):
                folder = pathlib.Path(name) / system
                folder.mkdir()
                for loss, (usual, seconds) in losses(cluster, arguments, folder):
                    rows.append({"system": system, "loss": loss, "step_seconds": usual, "seconds_to_next_step": seconds})
                    print(f"{system}, a node {loss}: {seconds:.2f} s to the next step; a step took {usual:.3f} s", flush=True)
    except DidNotGoOn as error:
        print(f"recovery.py: {error}", file=sys.stderr)
        return clusters.EXIT_FAILED
    except clusters.CannotRun as error:
        print(f"recovery.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    except clusters.Interrupted:
        return clusters.EXIT_INTERRUPTED
    for loss in arguments.losses:
        medians = {system: statistics.median(row["seconds_to_next_step"] for row in rows if row["system"] == system and row["loss"] == loss) for system in ("Modelet", "Horovod")}
        print(f"{loss}: Modelet {medians['Modelet']:.2f} s, Horovod {medians['Horovod']:.2f} s (medians of {arguments.repeats}): {medians['Horovod'] / medians['Modelet']:.1f}x")
    print(f"others used {others.until_now():.0%} of the machine")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
