#!/usr/bin/env python3
"""Do two builds learn the same, to the bit? Trains with both and compares the digests of the checkpoints' modelets.

    experiments/bench/same_results.py OLD NEW     folders of the programs modelet, modelet-agent, modelet-scheduler

quickstart.toml and bench/debian-deps-1024.toml, one epoch each: on one node, and on four agents with codec `none` and declared speeds, so that
both builds place the modelets alike. Both builds use one instruction set: $MODELET_SIMD, or the one that OLD chooses by itself.
Speed does not matter, so the machine may be busy.
Exit code 0: all digests are equal; 1: some differ, or a run failed.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

import measuring
import pools

EXPERIMENTS = ["quickstart", "bench/debian-deps-1024"]
AGENTS = 4


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
    return modelets(checkpoints[-1])


def modelets(checkpoint):
    """{name of a modelet's file: SHA-256} of a checkpoint."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(checkpoint.glob("*.safetensors"))}


def start_agents(pool, programs, folder):
    options = agent_options(programs, folder)
    for i in range(1, AGENTS + 1):
        pool.start_agent(f"node-{i}", "--cores", "1", *pools.SPEED, *options)


def agent_options(programs, folder):
    """Options that say where a submitted run may read and write, and that the machine belongs to the pool; only for builds whose agents
    have them."""
    shown = subprocess.run([str(programs / "modelet-agent"), "--help"], stdout=subprocess.PIPE, text=True).stdout
    roots = [word for root in (measuring.ROOT / "experiments", folder) for word in ("--data-root", root)] if "--data-root" in shown else []
    roots += ["--out-root", folder] if "--out-root" in shown else []
    return roots + ["--dedicated"] * ("--dedicated" in shown)


def train_alone(programs, experiment, settings, folder):
    measuring.run_train(programs / "modelet", experiment, 1, [*settings, "train.threads=1"], folder / "run")
    return digests(folder / "run")


def train_on_agents(programs, experiment, settings, folder):
    with pools.Pool(programs, folder) as pool:
        start_agents(pool, programs, folder)
        command = pool.client("submit", experiment, "--nodes", AGENTS, "--out", folder / "run", "--watch")
        measuring.run_json_lines(command + pools.as_options([*settings, *pools.EXACT]))
    return digests(folder / "run")


def main():
    arguments = parse_arguments()
    builds = {"old": arguments.old.resolve(), "new": arguments.new.resolve()}
    for programs in builds.values():
        measuring.require_modelet(programs / "modelet")
    pools.fix_instruction_set(builds["old"])
    equal = True
    for name in arguments.experiment:
        for label, train in (("1 node", train_alone), (f"{AGENTS} nodes, codec none", train_on_agents)):
            found = {}
            for build, programs in builds.items():
                with tempfile.TemporaryDirectory(prefix="modelet-same-") as folder:
                    os.environ["MODELET_CACHE"] = folder + "/cache"  # the builds share no prepared files
                    settings = ["train.epochs=1", "train.patience=0", *arguments.set]
                    found[build] = train(programs, measuring.ROOT / "experiments" / f"{name}.toml", settings, pathlib.Path(folder))
            different = [file for file in found["old"] | found["new"] if found["old"].get(file) != found["new"].get(file)]
            equal = equal and not different
            print(f"{name}, {label}: " + (f"{len(found['old'])} modelets equal" if not different else f"DIFFERENT: {', '.join(sorted(different))}"),
                  flush=True)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
