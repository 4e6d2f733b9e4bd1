"""A pool of Modelet in the namespaces of a cluster, for drivers that disturb it: pools.py, with each process in its place."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import cluster as clusters
import pools

PORT = 5570  # of the scheduler


class ClusterPool(pools.Pool):
    """A pool whose scheduler and user are at the switch of a cluster, and whose agents are in its nodes."""

    listen = f"tcp://{clusters.ADDRESS.format(clusters.SWITCH_HOST)}:{PORT}"

    def __init__(self, cluster, *arguments):
        super().__init__(*arguments)
        self.cluster = cluster

    def placed(self, name, words):
        return self.cluster.command(int(name.removeprefix("node")) if name.startswith("node") else clusters.SWITCH, words)

    def start_node(self, rank):
        self.start_agent(f"node{rank}", "--cores", "1", "--dedicated", "--data-address", self.cluster.address(rank), *pools.SPEED)
