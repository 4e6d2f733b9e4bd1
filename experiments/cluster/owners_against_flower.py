#!/usr/bin/python3
"""Seconds and bytes until owners whose samples stay apart reach a P@1: Flower, and Modelet with both kinds of cluster.privacy, in one go.

    modelet data split train.txt.xz owners --owners 4
    sudo owners_against_flower.py ../quickstart.toml --owners owners/owner-0.txt,... --test test.txt --until 0.6 --python VENV/bin/python

Each owner has a namespace and a link of its own. All have the same network, batches, learning rate and local steps (../baselines/flower.py
is quickstart's network in PyTorch), and are evaluated every --evaluate-every rounds. Seconds are those of steps and rounds, without
evaluations. Bytes are what all owners have sent and received, as their links count them, until they reached the P@1: of Modelet with all that
its pool says meanwhile. --python runs Flower and needs what ../baselines/requirements-flower.txt says.
Exit codes: 0 all reached it and the bounds hold (a tenth of Flower's bytes with rows, a third with sums, fewer seconds), 1 not,
77 this machine cannot run a cluster.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "experiments/bench"))
import cluster as clusters
import owners_pool
import pools

BOUNDS = {"rows": 1 / 10, "sums": 1 / 3}  # of Flower's bytes


def train(arguments, files, privacy):
    """Modelet until the P@1 is reached."""
    with clusters.Cluster(len(files), arguments.rate) as cluster, tempfile.TemporaryDirectory(prefix="modelet-owners-") as folder, \
            owners_pool.OwnersPool(cluster, arguments.programs, pathlib.Path(folder), files, arguments.test) as pool:
        for rank in range(len(files)):
            pool.start_node(rank)
        epoch = arguments.evaluate_every * arguments.local_steps
        run = pool.submit_private(arguments.experiment, [
            f"cluster.privacy={privacy}", f"exchange.local_steps={arguments.local_steps}", f"train.batch={arguments.batch}",
            f"train.learning_rate={arguments.lr}", f"cluster.epoch_steps={epoch}",
            f"train.epochs={arguments.rounds // arguments.evaluate_every}", "train.threads=1", "train.patience=0", *arguments.set])
        watcher = pool.watch(run)
        watcher.wait_for_step(1, owners_pool.LIMIT)
        result = {"system": f"modelet, {privacy}", "evaluations": []}
        end = time.monotonic() + owners_pool.LIMIT
        while time.monotonic() < end:
            for event in watcher.events("epoch")[len(result["evaluations"]):]:
                result["evaluations"].append({"round": event["step"] // arguments.local_steps, "seconds": event["train_seconds"],
                                              "p_at_1": event["p_at_1"], "bytes": sum(cluster.sent_bytes()) + sum(cluster.received_bytes())})
                print(json.dumps({"privacy": privacy, **result["evaluations"][-1]}), file=sys.stderr, flush=True)
            if any(each["p_at_1"] >= arguments.until for each in result["evaluations"]) or watcher.has_ended():
                break
            time.sleep(0.2)
        return result


def flower(arguments, files):
    command = [arguments.python, ROOT / "experiments/baselines/flower.py", "--owners", ",".join(map(str, files)), "--test", arguments.test, "--until",
               arguments.until, "--rounds", arguments.rounds, "--evaluate-every", arguments.evaluate_every, "--local-steps", arguments.local_steps,
               "--batch", arguments.batch, "--lr", arguments.lr, "--rate", arguments.rate]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode not in (0, 1) or not lines:
        sys.exit(f"flower.py: exit code {done.returncode}")
    result = json.loads(lines[-1])
    of_links = sum(result["sent_bytes"]) + sum(result["received_bytes"])
    for each in result["evaluations"]:  # links are counted at the end
        each["bytes"] = of_links * each["round"] // result["evaluations"][-1]["round"]
    return result


def reached(result, until):
    return next((each for each in result["evaluations"] if each["p_at_1"] >= until), None)


def missed_bounds(rows):
    """`rows`: system -> the evaluation that reached the P@1, or None."""
    peer = rows["flower"]
    missed = [f"{system} did not reach the P@1" for system, row in rows.items() if row is None]
    for privacy, share in BOUNDS.items():
        own = rows[privacy]
        if own is None or peer is None:
            continue
        if own["bytes"] > share * peer["bytes"]:
            missed.append(f"{privacy}: {own['bytes'] / peer['bytes']:.2f} of Flower's bytes, more than {share:.2f}")
        if own["seconds"] >= peer["seconds"]:
            missed.append(f"{privacy}: {own['seconds'] / peer['seconds']:.2f} of Flower's seconds")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    owners_pool.add_options(parser)
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable), help="that has flwr and torch")
    parser.add_argument("--until", type=float, required=True, metavar="P@1")
    parser.add_argument("--rounds", type=int, default=100, help="most rounds (default: %(default)s)")
    parser.add_argument("--evaluate-every", type=int, default=5, metavar="ROUNDS")
    parser.add_argument("--local-steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64, help="of an owner")
    parser.add_argument("--lr", type=float, default=4e-3)
    arguments = parser.parse_args()
    files = owners_pool.prepared(arguments)
    try:
        results = {privacy: train(arguments, files, privacy) for privacy in BOUNDS}
        results["flower"] = flower(arguments, files)
    except clusters.CannotRun as error:
        print(f"owners_against_flower.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    rows = {system: reached(result, arguments.until) for system, result in results.items()}
    print("| system | rounds | seconds | MB of all links | P@1 |\n|---|---|---|---|---|")
    for system, row in rows.items():
        print(f"| {system} | " + (f"{row['round']} | {row['seconds']:.0f} | {row['bytes'] / 1e6:.0f} | {row['p_at_1']:.4f} |" if row else "| | | |"))
    missed = missed_bounds(rows)
    print("\n".join(missed) or "all bounds hold")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
