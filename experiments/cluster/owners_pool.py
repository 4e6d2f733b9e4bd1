"""A pool of owners in the namespaces of a cluster (docs/privacy.md): each agent has private data of its own."""

import cluster as clusters
import cluster_pool
import pools

NAME = "owner"  # of the data, at each of them
LIMIT = 3600.0  # seconds for a run


class OwnersPool(cluster_pool.ClusterPool):
    """`files`: the samples of each owner, in XMC text. `test`: public test data, which all agents may read."""

    def __init__(self, cluster, programs, folder, files, test):
        super().__init__(cluster, programs, folder, "--dead-after-seconds", "5")
        self.files, self.test = files, test
        self.preferences = folder / "preferences.toml"
        self.preferences.write_text("[private]\nrows = true\nleast_owners = 2\n", encoding="utf-8")

    def start_node(self, rank):
        self.start_agent(f"node{rank}", "--cores", "1", "--dedicated", "--data-address", self.cluster.address(rank), "--private",
                         f"{NAME}={self.files[rank]}", "--preferences", self.preferences, "--data-root", self.test.parent, *pools.SPEED)

    def submit_private(self, experiment, settings):
        return self.submit(experiment, len(self.files), [f"data.train=private:{NAME}", f"cluster.replicas={len(self.files)}",
                                                         f"data.test={self.test}", *settings])


def add_options(parser, rate="100mbit"):
    import measuring
    import pathlib
    parser.add_argument("experiment", type=pathlib.Path)
    parser.add_argument("--owners", required=True, help="their files, joined by commas (modelet data split)")
    parser.add_argument("--test", type=pathlib.Path, required=True, help="public test data")
    parser.add_argument("--rate", choices=list(clusters.LINKS), default=rate, help="of each owner's link (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="of all runs of Modelet")
    parser.add_argument("--programs", type=pathlib.Path, default=measuring.DEFAULT_MODELET.parent)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")


def prepared(arguments):
    """The owners' files and the test data by their whole paths."""
    import pathlib
    arguments.test = arguments.test.resolve()
    return [pathlib.Path(name).resolve(strict=True) for name in arguments.owners.split(",")]
