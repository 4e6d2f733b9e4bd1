#!/usr/bin/python3
"""Runs a baseline on a cluster on this machine (experiments/cluster): one worker a node, as horovodrun or torchrun would start it.

    sudo launch.py horovod --mode dense --nodes 4 --rate 1gbit -- --train train.txt --rows 2048 --steps 5
    sudo launch.py ddp --mode sparse --nodes 2 -- --train train.txt --steps 20
    sudo launch.py sharded --nodes 4 --rate 100mbit -- --train train.txt --test test.txt --steps 391 --negatives 3350 --lr 1e-2

Words after -- go to the workers; distributed.py lists their options. The result is one line of JSON: the seconds of a step, the bytes
that each node sent in a step, the seconds of a step that each rank waited for others, and P@k. Horovod needs install_horovod.sh first.
Exit codes: 0 done, 1 the run failed, 77 this machine cannot run a cluster, 130 interrupted.

For scripts: launch().
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))
import cluster as clusters

import blas

FAMILIES = {"horovod": "horovod_train.py", "ddp": "ddp_train.py", "sharded": "sharded_train.py"}
PORT = 29500  # of torch's rendezvous, on rank 0
DEFAULT_PYTHON = HERE.parents[1] / "build/horovod-venv/bin/python"


class BaselineFailed(Exception):
    """The text names the ranks that failed, with the end of their output."""


def launch(cluster, python, family, words, threads=1, seconds=None):
    """Trains. words: options of the workers. python: an interpreter with torch and, if it is needed, Horovod.

    Returns the "finished" event of rank 0. Fields that differ between ranks are lists: "sent_bytes", "wait_seconds", "cpu_seconds",
    "peak_rss_bytes".
    """
    with tempfile.TemporaryDirectory(prefix="modelet-baseline-") as folder:
        processes = []
        try:
            return _launch(cluster, python, family, words, threads, seconds, pathlib.Path(folder), processes)
        finally:
            clusters.stop(processes)


def _launch(cluster, python, family, words, threads, seconds, folder, processes):
    common = os.environ | blas.environment(threads) | {"PYTHONDONTWRITEBYTECODE": "1"}
    if family == "horovod":
        names = [f"node{rank}" for rank in range(cluster.size)]
        server = cluster.start(clusters.SWITCH, [python, HERE / "rendezvous.py", *names], stdout=subprocess.PIPE, text=True)
        processes.append(server)
        with server.stdout as lines:
            port = lines.readline().strip()
        if not port:
            raise BaselineFailed("Horovod's rendezvous server did not start; run install_horovod.sh")
    workers = []
    for rank in range(cluster.size):
        variables = horovod_variables(cluster, rank, port) if family == "horovod" else torch_variables(cluster, rank)
        command = [python, HERE / FAMILIES[family], *words, "--threads", threads]
        with open(folder / f"{rank}.out", "wb") as out, open(folder / f"{rank}.err", "wb") as errors:
            workers.append(cluster.start(rank, command, env=common | variables, stdout=out, stderr=errors))
        processes.append(workers[-1])
    failed, late = clusters.wait(workers, seconds)
    if failed or late:
        raise BaselineFailed("; ".join(_why(folder, family, rank, worker, seconds if worker in late else None)
                                       for rank, worker in enumerate(workers) if worker in failed + late))
    events = [json.loads((folder / f"{rank}.out").read_text().splitlines()[-1]) for rank in range(cluster.size)]
    differing = ("sent_bytes", "wait_seconds", "cpu_seconds", "peak_rss_bytes")
    return events[0] | {name: [event[name] for event in events] for name in differing}


def _why(folder, family, rank, worker, seconds):
    what = f"was still running after {seconds:g} s" if seconds else f"ended with exit code {worker.returncode}"
    said = (folder / f"{rank}.err").read_text(errors="replace").strip()
    return f"rank {rank} of {family} {what}: {said[-600:]}"


def horovod_variables(cluster, rank, port):
    """What horovodrun passes to a worker."""
    return {"HOROVOD_HOSTNAME": f"node{rank}", "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(cluster.size), "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": str(rank), "HOROVOD_CROSS_SIZE": str(cluster.size),
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": clusters.DEVICE,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": cluster.scheduler, "HOROVOD_GLOO_RENDEZVOUS_PORT": port}


def torch_variables(cluster, rank):
    """What torchrun passes to a worker."""
    return {"RANK": str(rank), "WORLD_SIZE": str(cluster.size), "MASTER_ADDR": cluster.address(0), "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": clusters.DEVICE}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--mode", help="of the data-parallel ones: dense, fp16, sparse, sampled; Horovod's also sparse-fp16 and sparse-as-dense")
    clusters.add_cluster_options(parser)
    parser.add_argument("--threads", type=int, default=1, help="of a worker (default: 1)")
    parser.add_argument("--python", type=pathlib.Path, default=DEFAULT_PYTHON, help="with torch and Horovod (default: build/horovod-venv)")
    own, words = (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]) if "--" in sys.argv else (sys.argv[1:], [])
    arguments = parser.parse_args(own)
    if arguments.mode:
        words += ["--mode", arguments.mode]
    try:
        with clusters.Cluster.wanted(arguments) as cluster:
            print(json.dumps(launch(cluster, arguments.python, arguments.family, words, arguments.threads)))
    except BaselineFailed as error:
        print(f"launch.py: {error}", file=sys.stderr)
        return clusters.EXIT_FAILED
    except clusters.CannotRun as error:
        print(f"launch.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    except clusters.Interrupted:
        return clusters.EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
