#!/usr/bin/env python3
"""Do two builds learn the same, to the bit? Trains with both and compares the checkpoints' modelets.

    experiments/bench/same_results.py OLD NEW     folders of the programs modelet, modelet-agent, modelet-scheduler

quickstart.toml and bench/debian-deps-1024.toml, one epoch each: on one node, and on four agents with codec `none` and declared speeds, so that
both builds place the modelets alike. Both builds use one instruction set: $MODELET_SIMD, or the one that OLD chooses by itself.
Speed does not matter, so the machine may be busy.

Modelets are equal if their files are, byte for byte. One more difference is allowed: a build may keep rows of the input layer only for
features that occur (the array `features`). Then every row that both have must be equal in all arrays, and rows that only one has must
never have been updated (`optimizer.clock` is 0).
Exit code 0: all digests are equal; 1: some differ, or a run failed.
"""

import argparse
import hashlib
import json
import os
import pathlib
import struct
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


def learned(folder):
    """{name of a modelet's file: what same() compares} of the newest checkpoint of a run."""
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    if not checkpoints:
        sys.exit(f"{folder}: no checkpoint")
    return {path.name: summary(path) for path in sorted(checkpoints[-1].glob("*.safetensors"))}


def modelets(checkpoint):
    """{name of a modelet's file: SHA-256} of a checkpoint."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(checkpoint.glob("*.safetensors"))}


def summary(path):
    """The SHA-256 of a modelet's file and, in the input layer, {number of a row: (its updates, the digest of all that it has)}."""
    blob = path.read_bytes()
    digest = hashlib.sha256(blob).hexdigest()
    if not path.name.startswith("input."):
        return digest, {}
    (length,) = struct.unpack_from("<Q", blob)
    header, data = json.loads(blob[8:8 + length]), memoryview(blob)[8 + length:]
    arrays = {name: (entry["shape"][0], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}
    count, clocks = arrays["optimizer.clock"]
    features = struct.unpack(f"<{count - 1}I", arrays.pop("features")[1]) if "features" in arrays else range(count - 1)
    rows = {}
    for row, number in enumerate([*features, "bias"]):
        parts = [values[len(values) // count * row:len(values) // count * (row + 1)] for _, (_, values) in sorted(arrays.items())]
        rows[number] = struct.unpack_from("<I", clocks, 4 * row)[0], hashlib.sha256(b"".join(parts)).digest()
    return digest, rows


def same(old, new):
    """Whether two summaries say the same. Returns how many rows only one of them has, or None."""
    if old is None or new is None:
        return None
    if old[0] == new[0]:
        return 0
    if not old[1] or any(old[1][row] != new[1][row] for row in old[1].keys() & new[1].keys()):
        return None
    alone = [*(old[1].keys() - new[1].keys()), *(new[1].keys() - old[1].keys())]
    return len(alone) if alone and all((old[1] | new[1])[row][0] == 0 for row in alone) else None


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
    return learned(folder / "run")


def train_on_agents(programs, experiment, settings, folder):
    with pools.Pool(programs, folder, "--store", folder / "store") as pool:
        start_agents(pool, programs, folder)
        command = pool.client("submit", experiment, "--nodes", AGENTS, "--out", folder / "run", "--watch")
        measuring.run_json_lines(command + pools.as_options([*settings, *pools.EXACT]))
    return learned(folder / "run")


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
            rows = {file: same(found["old"].get(file), found["new"].get(file)) for file in found["old"] | found["new"]}
            different = sorted(file for file, alone in rows.items() if alone is None)
            equal = equal and not different
            alone = max((count for count in rows.values() if count), default=0)
            what = f"{len(rows)} modelets equal" + (f" ({alone} rows that were never updated are in one of them only)" if alone else "")
            print(f"{name}, {label}: " + (f"DIFFERENT: {', '.join(different)}" if different else what), flush=True)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
