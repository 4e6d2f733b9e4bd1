#!/usr/bin/env python3
"""Do two builds learn the same, to the bit? Trains with both and compares the digests of the checkpoints' modelets.

    experiments/bench/same_results.py OLD NEW     folders of the programs modelet, modelet-agent, modelet-scheduler

quickstart.toml and debian-deps.toml, one epoch each: on one node, and on four agents with codec `none` and declared speeds, so that
both builds place the modelets alike. Both builds run with one instruction set: $MODELET_SIMD, or what OLD takes by itself.
Speed plays no part: a busy machine does not matter.
Exit code 0: all digests are equal; 1: some differ, or a run failed.
"""

import argparse
import contextlib
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import measuring

EXPERIMENTS = ["quickstart", "debian-deps"]
AGENTS = 4
SPEED = ["--gflops", "50", "--bf16-gflops", "50", "--memory-gbps", "10", "--memory-mib", "2048"]
START_SECONDS = 60.0
EXACT = ["exchange.codec=none", "exchange.gradient_codec=none"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, metavar="OLD")
    parser.add_argument("new", type=pathlib.Path, metavar="NEW")
    parser.add_argument("--experiment", action="append", help=f"name of a file in experiments/ (default: {', '.join(EXPERIMENTS)})")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    arguments = parser.parse_args()
    arguments.experiment = arguments.experiment or EXPERIMENTS
    return arguments


def digests(folder):
    """{name of a modelet's file: SHA-256} of the newest checkpoint of a run."""
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    if not checkpoints:
        sys.exit(f"{folder}: no checkpoint")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(checkpoints[-1].glob("*.safetensors"))}


@contextlib.contextmanager
def pool(programs, folder):
    """A scheduler and agents with declared speeds; yields what `modelet` verbs need to reach it."""
    def key(name):
        return subprocess.run([programs / "modelet", "keygen", folder / f"{name}.key"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    agents = {f"node-{i}": key(f"node-{i}") for i in range(1, AGENTS + 1)}
    user, scheduler = key("user"), key("scheduler")
    (folder / "allowed").write_text("".join(f"agent {public} {name}\n" for name, public in agents.items()) + f"user {user} script\n", encoding="utf-8")
    processes = []

    def start(name, *words):
        with open(folder / f"{name}.log", "wb") as log:
            processes.append(subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def client(*words):
        return [programs / "modelet", *words, "--scheduler", endpoint, "--key", folder / "user.key", "--scheduler-key", scheduler]

    def wait_for(condition, what):
        end = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > end or any(process.poll() is not None for process in processes):
                sys.exit(f"{what} did not start:\n" + "".join(log.read_text()[-2000:] for log in sorted(folder.glob("*.log"))))
            time.sleep(0.1)

    def registered():
        found = subprocess.run([str(word) for word in client("nodes", "--json")], stdout=subprocess.PIPE, text=True)
        return found.returncode == 0 and found.stdout.count('"node-') >= AGENTS

    try:
        start("scheduler", programs / "modelet-scheduler", "--listen", "tcp://127.0.0.1:*", "--endpoint-file", folder / "endpoint",
              "--key", folder / "scheduler.key", "--allow-list", folder / "allowed")
        wait_for((folder / "endpoint").exists, "the scheduler")
        endpoint = (folder / "endpoint").read_text(encoding="utf-8").strip()
        for name in agents:
            start(name, programs / "modelet-agent", "--scheduler", endpoint, "--name", name, "--cores", "1", *SPEED, "--work-dir", folder,
                  "--key", folder / f"{name}.key", "--scheduler-key", scheduler, *agent_options(programs, folder))
        wait_for(registered, "the agents")
        yield client
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def agent_options(programs, folder):
    """Where a submitted run may read and write, and that the machine is the pool's: for builds whose agents ask for it."""
    shown = subprocess.run([str(programs / "modelet-agent"), "--help"], stdout=subprocess.PIPE, text=True).stdout
    roots = ["--data-root", str(measuring.ROOT / "experiments"), "--data-root", str(folder)] if "--data-root" in shown else []
    return roots + ["--dedicated"] * ("--dedicated" in shown)


def train_alone(programs, experiment, settings, folder):
    measuring.run_train(programs / "modelet", experiment, 1, [*settings, "train.threads=1"], folder / "run")
    return digests(folder / "run")


def train_on_agents(programs, experiment, settings, folder):
    with pool(programs, folder) as client:
        command = client("submit", experiment, "--nodes", AGENTS, "--out", folder / "run", "--watch", "--json")
        measuring.run_json_lines(command + [part for setting in [*settings, *EXACT] for part in ("--set", setting)])
    return digests(folder / "run")


def main():
    arguments = parse_arguments()
    builds = {"old": arguments.old.resolve(), "new": arguments.new.resolve()}
    for programs in builds.values():
        measuring.require_modelet(programs / "modelet")
    if "MODELET_SIMD" not in os.environ:
        shown = subprocess.run([str(builds["old"] / "modelet"), "version"], check=True, stdout=subprocess.PIPE, text=True).stdout
        os.environ["MODELET_SIMD"] = shown.strip().rpartition("(")[2].rstrip(")")
    print(f"instruction set {os.environ['MODELET_SIMD']}")
    equal = True
    for name in arguments.experiment:
        for label, train in (("1 node", train_alone), (f"{AGENTS} nodes, codec none", train_on_agents)):
            found = {}
            for build, programs in builds.items():
                with tempfile.TemporaryDirectory(prefix="modelet-same-") as folder:
                    os.environ["MODELET_CACHE"] = folder + "/cache"  # prepared files of one build are not the other's
                    settings = ["train.epochs=1", "train.patience=0", *arguments.set]
                    found[build] = train(programs, measuring.ROOT / "experiments" / f"{name}.toml", settings, pathlib.Path(folder))
            different = [file for file in found["old"] | found["new"] if found["old"].get(file) != found["new"].get(file)]
            equal = equal and not different
            print(f"{name}, {label}: " + (f"{len(found['old'])} modelets equal" if not different else f"DIFFERENT: {', '.join(sorted(different))}"),
                  flush=True)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
