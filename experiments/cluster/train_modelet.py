#!/usr/bin/python3
"""Trains an experiment with Modelet on a cluster on this machine: a scheduler at the switch, an agent in every node.

    sudo train_modelet.py ../quickstart.toml --nodes 4 --rate 100mbit
    sudo train_modelet.py ../quickstart.toml --nodes 2 --cpu 1,0.5 --set train.epochs=1 --json
    sudo train_modelet.py ../amazon-670k-shape.toml --nodes 2 --compare-keys        the cost of encryption for a step
    sudo train_modelet.py ../amazon-670k-shape.toml --nodes 4 --set train.epochs=20 --compare-links    the hidden share of the wire's time
    sudo train_modelet.py ../amazon-670k-shape.toml --nodes 4 --set train.epochs=30 --compare-build OLD/build/release/bin     what snapshots cost a step
    sudo train_modelet.py ../debian-deps.toml --nodes 8 --cpu 0.2 --set model.towers=8 --set "model.hidden=[192]" --compare-one-node    what eight nodes bring

Seconds and bytes are those between the first and the last "progress" event: starting, the first steps and evaluation are not included.
Needs root (cluster.py says what else). Exit codes: 0 done, 1 the run failed, 77 this machine cannot run a cluster, 130 interrupted.

For scripts: train().
"""

import argparse
import itertools
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "experiments/bench"))
import cluster as clusters
import measuring

PORT = 5570
START_SECONDS = 60.0  # within which all agents register
LOG_EVERY = 20  # steps between events: the first steps, left out of the figures
EVENTS_OF_TURN, FEWEST_TURNS = 5, 5  # of --compare-links


class RunFailed(Exception):
    """The text says what happened."""


def train(cluster, programs, experiment, settings=(), threads=1, keys=False, watch=None, curve_test=None, snapshots=False):
    """Trains on all nodes of a cluster with `threads` threads each. programs: the folder of modelet, modelet-agent and modelet-scheduler.
    keys: all connections are encrypted and authenticated, with keys made for this run. watch: called with each "progress" event when it
    comes. curve_test: a test file on which P@1 is measured every LOG_EVERY steps, with the checkpoints of a second run with the same
    seed. Without it the curve has a point for each epoch. snapshots: the nodes make snapshots as often as they find good, and else none.

    Returns {"seconds_per_step", "samples_per_second", "sent_bytes": of each node and step, as the shapers counted,
    "own_meter_bytes": payload of a node and step, by Modelet's own meter, "compute_seconds", "codec_seconds", "wait_seconds": of
    each node in a step, where there are several, "steps": measured ones, "curve": [(train_seconds, P@1), ...],
    "seconds_at_step": training seconds of each "progress" event, "finished": the run's last event}.
    """
    with tempfile.TemporaryDirectory(prefix="modelet-cluster-") as folder:
        return _Run(cluster, pathlib.Path(programs).resolve(), pathlib.Path(folder), keys, snapshots).train(experiment, settings, threads, watch or (lambda event: None), curve_test)


class _Run:
    def __init__(self, cluster, programs, folder, keys, snapshots):
        self.cluster, self.programs, self.folder, self.snapshots = cluster, programs, folder, snapshots
        self.endpoint = f"tcp://{cluster.scheduler}:{PORT}"
        self.processes = {}
        self.listen_options, self.agent_options, self.user_options = ["--insecure"], ["--insecure"], ["--insecure"]
        if keys:
            self._make_keys()
        elif not self._knows("--insecure", "modelet", "submit"):
            self.user_options = []
        self.listen_options += ["--state", folder / "state", "--data-port", PORT + 1]

    def _make_keys(self):
        public = {name: subprocess.run([self.programs / "modelet", "keygen", self.folder / f"{name}.key"], check=True, stdout=subprocess.PIPE,
                                       text=True).stdout.strip() for name in ("scheduler", "agent", "user")}
        allowed = self.folder / "allowed"
        allowed.write_text(f"agent {public['agent']} nodes\nuser {public['user']} script\n", encoding="utf-8")
        self.listen_options = ["--key", self.folder / "scheduler.key", "--allow-list", allowed]
        self.agent_options, self.user_options = (["--key", self.folder / f"{name}.key", "--scheduler-key", public["scheduler"]]
                                                 for name in ("agent", "user"))

    def train(self, experiment, settings, threads, watch, curve_test):
        try:
            self._start_pool(threads)
            found = self._measure(experiment, settings, watch)
            if curve_test:
                found["curve"] = self._curve(experiment, settings, curve_test, found)
            return found
        finally:
            clusters.stop(self.processes.values())

    def _start(self, name, rank, program, *words):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = self.cluster.start(rank, [self.programs / program, *words], stdout=log, stderr=log)

    def _start_pool(self, threads):
        self._start("scheduler", clusters.SWITCH, "modelet-scheduler", "--listen", self.endpoint, *self.listen_options)
        # Agents that measure at the same time on shared cores would find different speeds for equal nodes.
        speed = [] if self.cluster.cpu else ["--gflops", 10, "--memory-gbps", 5]
        for rank in range(self.cluster.size):
            self._start(f"node{rank}", rank, "modelet-agent", "--scheduler", self.endpoint, "--data-address", "{address}", "--name", "{node}",
                        "--cores", threads, "--work-dir", self.folder / f"work{rank}", *self._leave(), *self.agent_options, *speed)
        deadline = time.monotonic() + START_SECONDS
        while self._registered() < self.cluster.size:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RunFailed(f"{name} ended with exit code {process.returncode}: {self._tail(name)}")
            if time.monotonic() > deadline:
                raise RunFailed(f"not all agents registered within {START_SECONDS:.0f} s: {self._tail('node0')}")
            time.sleep(0.5)  # each question is a process, which should not disturb the measurements of the agents

    def _leave(self):
        """What an agent needs to use the machine as a run wants it. Earlier builds need no leave."""
        return [word for option in (["--data-root", "/"], ["--out-root", "/"], ["--dedicated"]) if self._knows(option[0], "modelet-agent") for word in option]

    def _knows(self, option, *program):
        """Whether a program of this build, which may be an earlier one, has an option."""
        name, *verb = program
        return option in subprocess.run([self.programs / name, *verb, "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout

    def _registered(self):
        nodes = self.cluster.start(clusters.SWITCH, [self.programs / "modelet", "nodes", "--scheduler", self.endpoint, *self.user_options, "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return len(nodes.communicate()[0].splitlines())

    def _tail(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace").strip()[-500:]

    def _events(self, experiment, settings, out):
        """Submits a run with the folder `out`, and yields its events as they come, up to "finished"."""
        command = [self.programs / "modelet", "submit", experiment.resolve(), "--scheduler", self.endpoint, *self.user_options, "--nodes",
                   self.cluster.size, "--out", self.folder / out, "--watch", "--json"]
        for setting in (f"train.log_every={LOG_EVERY}", *([] if self.snapshots else ["cluster.snapshot_every=1000000"]), *settings):
            command += ["--set", setting]
        with open(self.folder / "submit.log", "wb") as log:
            submit = self.processes["submit"] = self.cluster.start(clusters.SWITCH, command, stdout=subprocess.PIPE, stderr=log, text=True)
        finished = False
        with submit.stdout as lines:
            for event in map(json.loads, lines):
                finished = finished or event["event"] == "finished"
                yield event
        if submit.wait() or not finished:
            raise RunFailed(f"modelet submit ended with exit code {submit.returncode}: {self._tail('submit')}")

    def seconds_of_tasks(self, experiment, settings, threads):
        """From the first task of a run of towers that begins to the last one that is done."""
        try:
            self._start_pool(threads)
            times = [(time.monotonic(), event) for event in self._events(experiment, settings, "run") if event["event"] == "task"]
            if not times:
                raise RunFailed("the run has no tasks; set model.towers")
            return max(at for at, event in times if event["tasks_done"] == event["tasks"]) - times[0][0]
        finally:
            clusters.stop(self.processes.values())

    def _curve(self, experiment, settings, test, measured):
        """Returns [(train_seconds of the measured run, P@1), ...]. Checkpoints take time, so they come from a second run, which learns
        the same."""
        paths = {event["step"]: event["path"] for event in self._events(
            experiment, [*settings, f"train.checkpoint_every={LOG_EVERY}", "train.keep_checkpoints=1000"], "run-of-curve") if event["event"] == "checkpoint"}
        precisions = {step: measuring.evaluate(self.programs / "modelet", path, test) for step, path in sorted(paths.items())}
        if abs(precisions[max(precisions)] - measured["finished"]["p_at_1"]) > 1e-9:
            raise RunFailed(f"two runs with the same seed differ: P@1 {measured['finished']['p_at_1']} and {precisions[max(precisions)]}")
        return [(seconds, precisions[step]) for step, seconds in measured["seconds_at_step"].items() if step in precisions]

    def _measure(self, experiment, settings, watch):
        finished, curve, progress, sent = None, [], [], []
        for event in self._events(experiment, settings, "run"):
            if event["event"] == "progress" and (event["step"] % LOG_EVERY == 0 or event["step"] == event["steps"]):  # others only show that it lives
                progress.append(event)
                watch(event)
                if len(progress) == 1 or event["step"] == event["steps"]:
                    sent.append(self.cluster.sent_bytes())
            elif event["event"] == "epoch" and "p_at_1" in event:
                curve.append((event["train_seconds"], event["p_at_1"]))
            elif event["event"] == "finished":
                finished = event
        first, last = progress[0], progress[-1]
        steps = last["step"] - first["step"]
        if steps <= 0:
            raise RunFailed(f"the run has no more than {LOG_EVERY} steps, none of which is measured")
        return {"steps": steps, "seconds_per_step": (last["train_seconds"] - first["train_seconds"]) / steps,
                "samples_per_second": finished["samples_per_second"], "own_meter_bytes": finished["bytes_sent_per_node_per_step"],
                "sent_bytes": [(after - before) / steps for before, after in zip(sent[0], sent[-1])],
                "seconds_at_step": {event["step"]: event["train_seconds"] for event in progress},
                "fetched_bytes": sum(file.stat().st_size for file in (self.folder / "run").rglob("*") if file.is_file()),
                **where_time_went(progress), "curve": curve, "finished": finished}


def where_time_went(progress):
    """The times of each node in a step, as means over the steps after the first event. An event has the means since the previous event."""
    def mean(field, rank):
        seconds = sum(event["nodes"][rank][field] * (event["step"] - before["step"]) for before, event in zip(progress, progress[1:]))
        return seconds / (progress[-1]["step"] - progress[0]["step"])

    ranks = range(len(progress[-1].get("nodes", [])))
    return {field: [mean(field, rank) for rank in ranks] for field in ("compute_seconds", "codec_seconds", "wait_seconds")}


def in_turn(pair, values):
    """Runs each pair in the opposite order of the previous one, so that disturbances affect both."""
    return values if pair % 2 == 0 else values[::-1]


def compare_links(arguments):
    """Runs once, with links of the given rate and links that take no time in turns. The difference of their step times is the part of the
    wire's time that is not hidden. The shapers work in both cases. Two separate runs would differ by more than that."""
    others, seconds, first = measuring.OthersShare(), {False: [], True: []}, None
    with clusters.Cluster.wanted(arguments) as cluster:
        events = itertools.count()

        def change_links(event):
            nonlocal first
            turn, number = divmod(next(events), EVENTS_OF_TURN)
            hurry = turn % 2 == 1
            if number == 0:
                cluster.hurry(hurry)
            elif number == 1:  # the links have changed before this event
                first = event
            elif number == EVENTS_OF_TURN - 1:
                seconds[hurry].append((event["train_seconds"] - first["train_seconds"]) / (event["step"] - first["step"]))

        found = train(cluster, arguments.programs, arguments.experiment, arguments.set, arguments.threads, watch=change_links)
    exposed = [at_rate - at_once for at_rate, at_once in zip(seconds[False], seconds[True])]
    if len(exposed) < FEWEST_TURNS:
        raise RunFailed(f"{len(exposed)} turns are too few: --set train.epochs=... for {2 * EVENTS_OF_TURN * LOG_EVERY * FEWEST_TURNS} steps or more")
    wire = 8 * max(found["sent_bytes"]) / clusters.BITS_PER_SECOND[arguments.rate]
    mean, error = statistics.fmean(exposed), statistics.stdev(exposed) / math.sqrt(len(exposed))
    result = {"rate": arguments.rate, "turns": len(exposed), "seconds_per_step": statistics.fmean(seconds[False]),
              "seconds_per_step_at_once": statistics.fmean(seconds[True]), "wire_seconds": wire, "exposed_seconds": mean, "standard_error": error,
              "hidden": 1 - mean / wire, "others_share": others.until_now()}
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{arguments.rate} {1e3 * result['seconds_per_step']:.3f} ms/step, links that take no time {1e3 * result['seconds_per_step_at_once']:.3f}; "
              f"{1e3 * mean:+.3f} ms, standard error {1e3 * error:.3f} over {len(exposed)} turns of {(EVENTS_OF_TURN - 2) * LOG_EVERY} steps each, of {1e3 * wire:.3f} ms that the wire works: "
              f"{result['hidden']:.0%} hidden (+- {error / wire:.0%}); others used {result['others_share']:.0%} of the machine")
    return 0


def compare_one_node(arguments):
    """The tasks of a run of towers on all nodes, and on one of them alone, in turn."""
    others, ratios = measuring.OthersShare(), []

    def seconds(nodes):
        with clusters.Cluster.wanted(arguments, nodes) as cluster, tempfile.TemporaryDirectory(prefix="modelet-cluster-") as folder:
            return _Run(cluster, arguments.programs.resolve(), pathlib.Path(folder), False, True).seconds_of_tasks(arguments.experiment, arguments.set, arguments.threads)

    for pair in range(arguments.pairs):
        of = {nodes: seconds(nodes) for nodes in in_turn(pair, (1, arguments.nodes))}
        ratios.append(of[1] / of[arguments.nodes])
        print(f"one node {of[1]:.1f} s, {arguments.nodes} nodes {of[arguments.nodes]:.1f} s: {ratios[-1]:.2f} times", flush=True)
    print(f"median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}; others used {others.until_now():.0%} of the machine")
    return 0


def compare(cluster, arguments, before, after):
    """Trains in turn in two ways, which are {"name": what to call it, and parameters of train()}, and prints the ratios of their step times."""
    others, ratios = measuring.OthersShare(), []

    def seconds_per_step(name, programs=arguments.programs, **more):
        return train(cluster, programs, arguments.experiment, arguments.set, arguments.threads, **more)["seconds_per_step"]

    for pair in range(arguments.pairs):
        seconds = {way["name"]: seconds_per_step(**way) for way in in_turn(pair, (before, after))}
        ratios.append(seconds[after["name"]] / seconds[before["name"]])
        print(", ".join(f"{way['name']} {1e3 * seconds[way['name']]:.2f} ms/step" for way in (before, after)) + f": {ratios[-1]:.3f} times", flush=True)
    print(f"median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}; others used {others.until_now():.0%} of the machine")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path)
    clusters.add_cluster_options(parser)
    parser.add_argument("--threads", type=int, default=1, help="of a node (default: 1)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="a key of the experiment")
    variant = parser.add_mutually_exclusive_group()
    variant.add_argument("--keys", action="store_true", help="encrypted and authenticated, with keys made for this run")
    variant.add_argument("--compare-keys", action="store_true", help="runs without and with keys in turn, and prints the ratios of their step times")
    variant.add_argument("--compare-build", type=pathlib.Path, metavar="FOLDER",
                         help="the programs of another build without snapshots, and those of this one with them, in turn; "
                         "paths in --set must be absolute")
    variant.add_argument("--compare-links", action="store_true", help="links of --rate and links that take no time in turn, in one run: how much of the wire's time is hidden")
    variant.add_argument("--compare-one-node", action="store_true", help="the tasks of a run of towers on one node and on all of them, in turn")
    parser.add_argument("--pairs", type=int, default=5, help="of runs that are compared (default: 5)")
    parser.add_argument("--json", action="store_true", help="the result as one line of JSON")
    arguments = parser.parse_args()
    if not (arguments.programs / "modelet").is_file():
        parser.error(f"{arguments.programs} has no modelet; build it (cmake --preset release && cmake --build --preset release) or say --programs")
    if arguments.compare_links and arguments.rate == "none":
        parser.error("--compare-links needs a --rate to compare with links that take no time")
    try:
        if arguments.compare_links:
            return compare_links(arguments)
        if arguments.compare_one_node:
            return compare_one_node(arguments)
        with clusters.Cluster.wanted(arguments) as cluster:
            if arguments.compare_keys:
                return compare(cluster, arguments, {"name": "without keys"}, {"name": "with keys", "keys": True})
            if arguments.compare_build:
                return compare(cluster, arguments, {"name": "other build", "programs": arguments.compare_build}, {"name": "this one", "snapshots": True})
            result = train(cluster, arguments.programs, arguments.experiment, arguments.set, arguments.threads, arguments.keys)
    except RunFailed as error:
        print(f"train_modelet.py: {error}", file=sys.stderr)
        return clusters.EXIT_FAILED
    except clusters.CannotRun as error:
        print(f"train_modelet.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    except clusters.Interrupted:
        return clusters.EXIT_INTERRUPTED
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{1e3 * result['seconds_per_step']:.2f} ms/step, {result['samples_per_second']:,.0f} samples/s, P@1 {result['finished']['p_at_1']:.4f}; "
              f"{result['own_meter_bytes']:,} bytes sent by a node in a step, by Modelet's meter")
        for rank, split in enumerate(zip(result["compute_seconds"], result["codec_seconds"], result["wait_seconds"])):
            computing, coding, waiting = (1e3 * seconds for seconds in split)
            print(f"node{rank}: computing {computing:.2f} ms, coding {coding:.2f} ms, waiting {waiting:.2f} ms, {result['sent_bytes'][rank]:,.0f} bytes at its link")
    return 0


if __name__ == "__main__":
    sys.exit(main())
