#!/usr/bin/python3
"""A cluster on one machine: network namespaces that a switch connects, links of a chosen rate, a CPU share for each node.

    sudo cluster.py run --nodes 2 --rate 1gbit -- ping -c 3 {scheduler}
    sudo cluster.py run --nodes 2 --rtt-ms 20 -- ping -c 3 {scheduler}
    sudo cluster.py run --nodes 4 --rate 100mbit --cpu 1,0.5 --head './serve {scheduler}' -- ./work --rank {rank} --at {address}
    sudo cluster.py check --rate 10gbit     measures what the shaped links really carry, and their round trip
    sudo cluster.py down                    removes what a killed run left behind

These words in a command are replaced: {rank} by 0, 1, ...; {nodes} by the number of nodes; {node} by the name node0, node1, ...;
{address} by the IPv4 address; {scheduler} by the address of the switch, where --head runs. In every node the network interface is
called eth0, and the host name is the address of the node.

The switch is a bridge in a namespace of its own. The machine's own network, firewall and addresses are not touched, and several
clusters can run at once. Both directions of the link of a node are shaped. Byte counts are those of the shaper, which include the
Ethernet, IP and TCP headers of every segment.

Needs root, and the Debian packages iproute2 and util-linux. Exit codes: 0 all commands ended with 0; 1 one did not; 2 wrong
arguments; 77 this machine cannot run a cluster, the last line says why; 130 interrupted.

For scripts: `with Cluster(nodes, rate) as cluster: cluster.start(rank, command)`. A process has one cluster at a time.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

EXIT_FAILED, EXIT_USAGE, EXIT_CANNOT_RUN, EXIT_INTERRUPTED = 1, 2, 77, 130
MAX_NODES, MAX_RTT_MS = 64, 1000
ROUND_TRIPS = 200  # that `check` measures
DEVICE = "eth0"  # of a node
SWITCH = -1  # used like a rank; a scheduler can run at the switch without a link of its own
NAMESPACES = pathlib.Path("/run/netns")
PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin"
NAMESPACE = re.compile(r"modelet-(\d+)-(node\d+|switch)")  # the number: process id of the owner
ADDRESS = "10.93.0.{}"  # the namespaces are connected to nothing else, so it cannot collide
SWITCH_HOST = 254
GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL
QUEUE_TIME = "50ms"  # a packet that would wait longer is dropped, as by a switch whose buffer is full
CLONE_NEWNET = 0x40000000

RELAY = "cluster-relay"  # relay.cc
INSTANT = "1000gbit"  # a frame takes as long as a shaper's clock can tell

BITS_PER_SECOND = {"100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10}


@dataclasses.dataclass(frozen=True)
class Shaping:
    """burst: KiB that pass at once after a pause. A small burst makes short messages as slow as on a wire. segment: bytes that TCP passes
    on at once; None: up to 64 KB. Segments longer than the burst must be split, and on busy cores the link then falls behind its rate.
    README.md has the measurements."""
    burst: int
    segment: int | None


LINKS = {"100mbit": Shaping(12, 6_000), "1gbit": Shaping(48, 16_000), "10gbit": Shaping(256, None), "none": None}


class CannotRun(Exception):
    """This machine or this user cannot start a cluster. The text says why."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP. It is no Exception, so that code which catches Exception does not swallow it."""


def tool(*words):
    """Runs ip, tc or the like and returns its standard output. If it fails, CannotRun has its error text."""
    command = [str(word) for word in words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, start_new_session=True)
    if done.returncode:
        raise CannotRun(f"{shlex.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def require_root_and_tools():
    if os.geteuid() != 0:
        raise CannotRun("network namespaces and traffic shaping need root: run it with sudo")
    missing = [name for name in ("ip", "tc", "nsenter", "unshare", "taskset") if not shutil.which(name)]
    if missing:
        raise CannotRun(f"not installed: {', '.join(missing)}. Debian: apt install iproute2 util-linux")


def sent_bytes(device=DEVICE, namespace=None):
    """Bytes that a shaped device has sent so far. Without a namespace, the device is one in the namespace of this process: a node asks
    about itself."""
    within = ["-n", namespace] if namespace else []
    return json.loads(tool("tc", *within, "-s", "-j", "qdisc", "show", "dev", device))[0]["bytes"]


# ---- CPU shares ----------------------------------------------------------------------------------------------------

class CpuGroup:
    """A group of processes that together get a share of the cores. Uses cgroup v2, or the cpu controller of v1."""

    V2, V1 = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/cpu")
    PERIOD_US = 10_000  # short, so that a node is slow instead of standing still for tenths of a second
    LEAST = 0.1  # the kernel's smallest quota is 1 ms

    @classmethod
    def root(cls):
        """The folder where groups are made; None if the controller is missing."""
        controllers = cls.V2 / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            return cls.V2
        return cls.V1 if (cls.V1 / "cgroup.procs").exists() else None

    def __init__(self, name, cores):
        root = self.root()
        if root is None:
            raise CannotRun("a CPU share needs the cpu controller of cgroups, which is not mounted below /sys/fs/cgroup")
        self.path = root / name
        quota = round(cores * self.PERIOD_US)
        try:
            if root == self.V2:
                (root / "cgroup.subtree_control").write_text("+cpu")
                self.path.mkdir()
                (self.path / "cpu.max").write_text(f"{quota} {self.PERIOD_US}")
            else:
                self.path.mkdir()
                (self.path / "cpu.cfs_period_us").write_text(str(self.PERIOD_US))
                (self.path / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            raise CannotRun(f"a CPU share cannot be set: {error}") from error

    def join_and_run(self):
        """The words to put before a command."""
        return ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self.path / "cgroup.procs")]

    @classmethod
    def remove_all(cls, prefix):
        root = cls.root()
        for path in root.glob(f"{prefix}*") if root else []:
            for _ in range(50):  # a group is busy until its last process has been reaped
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)


# ---- removing ------------------------------------------------------------------------------------------------------

def owners():
    """The process ids of the owners of existing clusters."""
    names = (NAMESPACE.fullmatch(entry.name) for entry in NAMESPACES.glob("modelet-*"))
    return {int(name[1]) for name in names if name}


def remove(owner):
    """Ends every process in the namespaces of a cluster, and removes the namespaces. Also works on the remains of a cluster."""
    namespaces = [entry.name for entry in NAMESPACES.glob(f"modelet-{owner}-*") if NAMESPACE.fullmatch(entry.name)]

    def processes():
        pids = {int(pid) for name in namespaces for pid in tool("ip", "netns", "pids", name).split()}
        return pids - {os.getpid()}  # Cluster.socket() may have been interrupted

    def send(signum):
        for pid in processes():
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                pass

    send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    while processes():
        send(signal.SIGKILL)
        time.sleep(0.05)
    for name in namespaces:
        tool("ip", "netns", "delete", name)
    CpuGroup.remove_all(f"modelet-{owner}-")


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def remove_leftovers():
    """Removes the clusters whose owner is dead. Returns the process ids of these owners."""
    left = {owner for owner in owners() if not is_alive(owner)}
    for owner in left:
        remove(owner)
    return left


# ---- a cluster -----------------------------------------------------------------------------------------------------

class Cluster:
    """A context manager that starts the nodes. At its end, also after an error, SIGINT, SIGTERM or SIGHUP (raised as Interrupted), it ends
    all processes in the nodes and removes everything. Main thread only.

    rate: a key of LINKS. cpu: the number of cores that each node may use, repeated in turn (None: all). pin: node i runs on core i
    modulo the number of cores. rtt_ms: what the links add to a round trip from node to node; half of it to one between a node and the
    switch. Other than 0 it needs the program cluster-relay in the folder `programs`.
    """

    def __init__(self, nodes, rate="1gbit", cpu=None, pin=False, rtt_ms=0.0, programs=PROGRAMS):
        self.size, self.rate, self.cpu, self.rtt_ms, self.programs = nodes, rate, cpu, rtt_ms, programs
        self.cores = sorted(os.sched_getaffinity(0)) if pin else None
        self.groups = {}  # groups of the nodes that get less than they could use
        self.scheduler = ADDRESS.format(SWITCH_HOST)
        self._handlers = {}

    @classmethod
    def wanted(cls, arguments, nodes=None):
        """As the options of add_cluster_options() say, except for the number of nodes, if it is given."""
        return cls(nodes or arguments.nodes, arguments.rate, arguments.cpu, arguments.pin, arguments.rtt_ms, arguments.programs)

    def namespace(self, rank):
        return f"modelet-{os.getpid()}-{'switch' if rank == SWITCH else f'node{rank}'}"

    def address(self, rank):
        return self.scheduler if rank == SWITCH else ADDRESS.format(rank + 1)

    def __enter__(self):
        def interrupt(signum, _frame):
            raise Interrupted(signal.Signals(signum).name)

        self._handlers = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            self._bring_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for signum in self._handlers:
            signal.signal(signum, signal.SIG_IGN)  # the cluster is being removed; a second Ctrl-C must not interrupt that
        try:
            remove(os.getpid())
        finally:
            for signum, handler in self._handlers.items():
                signal.signal(signum, handler)

    def _bring_up(self):
        require_root_and_tools()
        switch = self.namespace(SWITCH)
        tool("ip", "netns", "add", switch)
        tool("ip", "-n", switch, "link", "set", "lo", "up")
        tool("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        tool("ip", "-n", switch, "address", "add", f"{self.scheduler}/24", "dev", "switch")
        tool("ip", "-n", switch, "link", "set", "switch", "up")
        for rank in range(self.size):
            self._add_node(rank, switch)
        if self.rtt_ms:
            links = [f"{NAMESPACES / self.namespace(rank)}:{DEVICE}:port{rank}" for rank in range(self.size)]
            delay = round(1000 * self.rtt_ms / 4)  # from node to node and back, a packet passes four times through a link
            tool("nsenter", f"--net={NAMESPACES / switch}", self.programs / RELAY, delay, *links)  # goes on in the background
        if self.cpu:
            # Even a quota of all cores that a node could use would stop the node now and then (measured: a tenth slower), so it gets
            # none.
            could_use = 1 if self.cores else len(os.sched_getaffinity(0))
            shares = {rank: self.cpu[rank % len(self.cpu)] for rank in range(self.size)}
            self.groups = {rank: CpuGroup(self.namespace(rank), share) for rank, share in shares.items() if share < could_use}

    def _add_node(self, rank, switch):
        node, port = self.namespace(rank), f"port{rank}"
        tool("ip", "netns", "add", node)
        tool("ip", "-n", node, "link", "set", "lo", "up")
        if self.rtt_ms:
            for namespace, device in ((node, DEVICE), (switch, port)):
                tool("ip", "-n", namespace, "tuntap", "add", "dev", device, "mode", "tap", "vnet_hdr")
        else:
            tool("ip", "-n", node, "link", "add", DEVICE, "type", "veth", "peer", "name", port, "netns", switch)
        for namespace, device in ((node, DEVICE), (switch, port)):
            tool("ip", "-n", namespace, "link", "set", device, "addrgenmode", "none")  # no IPv6 traffic
            self._shape(namespace, device)
            tool("ip", "-n", namespace, "link", "set", device, "up")
        tool("ip", "-n", node, "address", "add", f"{self.address(rank)}/24", "dev", DEVICE)
        tool("ip", "-n", switch, "link", "set", port, "master", "switch")

    def _shape(self, namespace, device):
        link = LINKS[self.rate]
        if link and link.segment:
            tool("ip", "-n", namespace, "link", "set", device, "gso_max_size", str(link.segment))
        shaper = self._shaper(self.rate) if link else ["pfifo", "limit", 10_000]
        tool("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *shaper)

    def _shaper(self, rate):
        return ["tbf", "rate", rate, "burst", f"{LINKS[self.rate].burst}kb", "latency", QUEUE_TIME]

    def hurry(self, on):
        """Makes the shapers of all links pass everything at once, or at their rate again. Otherwise they work as before, and round trips stay."""
        for rank in range(self.size):
            for namespace, device in ((self.namespace(rank), DEVICE), (self.namespace(SWITCH), f"port{rank}")):
                tool("tc", "-n", namespace, "qdisc", "change", "dev", device, "root", *self._shaper(INSTANT if on else self.rate))

    def command(self, rank, command):
        """The words that run a command in a node or at the switch. Placeholders in the command are replaced."""
        words = ["nsenter", f"--net={NAMESPACES / self.namespace(rank)}"]  # unlike `ip netns exec`, this leaves /sys as it is
        if rank != SWITCH:
            # The host name is the address, so programs that look themselves up find the right one.
            words += ["unshare", "--uts", "sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"', self.address(rank)]
            words += ["taskset", "--cpu-list", str(self.cores[rank % len(self.cores)])] if self.cores else []
            words += self.groups[rank].join_and_run() if rank in self.groups else []
        return words + self.fill_in(rank, command)

    def start(self, rank, command, **options):
        """Starts a command in a node or at the switch. The options are those of Popen."""
        return subprocess.Popen(self.command(rank, command), start_new_session=True, **options)

    def set_link(self, rank, up):
        """Pulls the cable of a node, or puts it in again."""
        tool("ip", "-n", self.namespace(SWITCH), "link", "set", f"port{rank}", "up" if up else "down")

    def set_deaf(self, rank, deaf):
        """Makes everything that a node sends get lost, or ends that. The node still receives: its link works in one direction."""
        peers = [self.address(other) for other in (SWITCH, *range(self.size)) if other != rank]
        for peer in peers:
            nowhere = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"] if deaf else []
            tool("ip", "-n", self.namespace(rank), "neigh", "replace" if deaf else "del", peer, *nowhere, "dev", DEVICE)

    def fill_in(self, rank, command):
        values = {"{rank}": rank, "{nodes}": self.size, "{node}": f"node{rank}", "{address}": self.address(rank),
                  "{scheduler}": self.scheduler}
        return [re.sub("|".join(map(re.escape, values)), lambda found: str(values[found[0]]), str(word)) for word in command]

    def sent_bytes(self):
        """The bytes that each node has sent so far."""
        return [sent_bytes(DEVICE, self.namespace(rank)) for rank in range(self.size)]

    def received_bytes(self):
        return [sent_bytes(f"port{rank}", self.namespace(SWITCH)) for rank in range(self.size)]

    def socket(self, rank):
        """A TCP socket in a node, for use by this process. A socket stays in the namespace where it was made."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/net", "rb") as home, open(NAMESPACES / self.namespace(rank), "rb") as there:
            if libc.setns(there.fileno(), CLONE_NEWNET):
                raise CannotRun(f"setns: {os.strerror(ctypes.get_errno())}")
            try:
                return socket.socket()
            finally:
                libc.setns(home.fileno(), CLONE_NEWNET)

    @contextlib.contextmanager
    def connection(self, source, target):
        """The two ends of a TCP connection from one node to another, for use by this process."""
        with self.socket(target) as listener, self.socket(source) as sender:
            listener.bind((self.address(target), 0))
            listener.listen(1)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
            with receiver:
                yield sender, receiver

    def measure_rate(self, source, target, count):
        """Sends `count` bytes of TCP payload from one node to another and returns the bits per second."""
        with self.connection(source, target) as (sender, receiver):
            started = time.monotonic()
            writing = threading.Thread(target=lambda: (sender.sendall(bytes(count)), sender.shutdown(socket.SHUT_WR)))
            writing.start()
            buffer = bytearray(1 << 20)
            while receiver.recv_into(buffer):
                pass
            seconds = time.monotonic() - started
            writing.join()
        return 8 * count / seconds

    def measure_round_trips(self, source, target, count):
        """Returns the seconds that a byte takes from one node to another and back over TCP, `count` times, ascending."""
        seconds = []
        with self.connection(source, target) as (sender, receiver):
            for _ in range(count):
                started = time.monotonic()
                for here, there in ((sender, receiver), (receiver, sender)):
                    here.sendall(b"x")
                    there.recv(1)
                seconds.append(time.monotonic() - started)
        return sorted(seconds)


def stop(processes):
    """Sends SIGTERM, and SIGKILL after a while, to each process with all of its children."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signum)
        deadline = time.monotonic() + GRACE_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass


def wait(processes, seconds=None):
    """Waits until all processes have ended. If one fails, or the time is up, the others are stopped. Returns the processes that failed by
    themselves, and those that were still running when the time was up."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        running = [process for process in processes if process.poll() is None]
        failed = [process for process in processes if process.returncode]
        late = bool(running) and deadline is not None and time.monotonic() > deadline
        if failed or late:
            stop(running)
            return failed, running if late else []
        if not running:
            return [], []
        time.sleep(0.02)


# ---- command line --------------------------------------------------------------------------------------------------

def cpu_list(text):
    shares = [float(word) for word in text.split(",")]
    if not all(CpuGroup.LEAST <= share <= os.cpu_count() for share in shares):
        raise argparse.ArgumentTypeError(f"cores are between {CpuGroup.LEAST} and {os.cpu_count()}")
    return shares


def node_count(text):
    if not 1 <= int(text) <= MAX_NODES:
        raise argparse.ArgumentTypeError(f"between 1 and {MAX_NODES}")
    return int(text)


def round_trip(text):
    if not 0 <= float(text) <= MAX_RTT_MS:
        raise argparse.ArgumentTypeError(f"between 0 and {MAX_RTT_MS}")
    return float(text)


def add_link_options(parser):
    parser.add_argument("--rate", choices=list(LINKS), default="1gbit", help="of each node's link, in both directions (default: 1gbit)")
    parser.add_argument("--rtt-ms", type=round_trip, default=0.0, metavar="MS", help="that the links add to a round trip between two nodes (default: nothing)")
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS, help="folder of modelet and cluster-relay (default: build/release/bin)")


def add_cluster_options(parser):
    parser.add_argument("--nodes", type=node_count, default=2, help="default: 2")
    add_link_options(parser)
    parser.add_argument("--cpu", type=cpu_list, metavar="CORES,...",
                        help="cores a node may use, 0.5 for half of one; fewer numbers than nodes are repeated (default: all)")
    parser.add_argument("--pin", action="store_true", help="node i runs on core i, modulo the number of cores")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="a command in every node, then everything is removed")
    add_cluster_options(run)
    run.add_argument("--head", metavar="COMMAND", help="runs at the switch, and is stopped when the nodes' commands have ended")
    run.add_argument("--logs", type=pathlib.Path, metavar="FOLDER", help="output goes to FOLDER/nodeN.log and head.log (default: to the terminal)")
    run.add_argument("--timeout", type=float, metavar="SECONDS", help="then everything is stopped, exit code 1")
    run.add_argument("--json", type=pathlib.Path, metavar="FILE", help="exit codes, seconds and bytes")
    run.add_argument("command", nargs=argparse.REMAINDER, help="after --: what every node runs; SIGTERM ends the others when one fails")
    check = verbs.add_parser("check", help="measures the links: each of two nodes to the other")
    add_link_options(check)
    down = verbs.add_parser("down", help="removes clusters whose owner is dead")
    down.add_argument("--all", action="store_true", help="those in use, too")
    arguments = parser.parse_args()
    if arguments.verb == "run":
        arguments.command = arguments.command[arguments.command[:1] == ["--"]:]
        if not arguments.command:
            run.error("no command given; it stands after --")
    return arguments


def run_commands(cluster, arguments):
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)

    def start(rank, name, command):
        if not arguments.logs:
            return cluster.start(rank, command)
        with open(arguments.logs / f"{name}.log", "wb") as log:
            return cluster.start(rank, command, stdout=log, stderr=subprocess.STDOUT)

    head = start(SWITCH, "head", shlex.split(arguments.head)) if arguments.head else None
    started = time.monotonic()
    processes = [start(rank, f"node{rank}", arguments.command) for rank in range(cluster.size)]
    failed, late = wait(processes, arguments.timeout)
    seconds = time.monotonic() - started
    if head:
        stop([head])
    nodes = [{"node": f"node{rank}", "exit_code": processes[rank].returncode, "sent_bytes": sent, "received_bytes": received}
             for rank, (sent, received) in enumerate(zip(cluster.sent_bytes(), cluster.received_bytes()))]
    for node in nodes:
        print(f"{node['node']}: exit code {node['exit_code']}, sent {node['sent_bytes']:,} bytes, received {node['received_bytes']:,}", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rate": cluster.rate, "seconds": seconds, "nodes": nodes}, indent=1) + "\n", encoding="utf-8")
    if late:
        print(f"cluster.py: stopped after {arguments.timeout:g} s", file=sys.stderr)
    return EXIT_FAILED if failed or late else 0


def check_rates(cluster):
    count = int(BITS_PER_SECOND.get(cluster.rate, 1e10) / 8)  # a second's worth
    for source, target in ((0, 1), (1, 0)):
        rate = cluster.measure_rate(source, target, count)
        trips = cluster.measure_round_trips(source, target, ROUND_TRIPS)
        print(f"{cluster.rate}, node{source} to node{target}: {rate / 1e6:,.0f} Mbit/s of TCP payload; round trip {1e3 * trips[len(trips) // 2]:.3f} ms, "
              f"nine of ten {1e3 * trips[len(trips) // 20]:.3f} to {1e3 * trips[-len(trips) // 20]:.3f} ms")
    return 0


def main():
    arguments = parse_arguments()
    try:
        if arguments.verb == "down":
            require_root_and_tools()
            removed = owners() if arguments.all else remove_leftovers()
            for owner in removed if arguments.all else []:
                remove(owner)
            print(f"{len(removed)} cluster(s) removed")
            return 0
        if arguments.verb == "check":
            with Cluster(2, arguments.rate, rtt_ms=arguments.rtt_ms, programs=arguments.programs) as cluster:
                return check_rates(cluster)
        with Cluster.wanted(arguments) as cluster:
            return run_commands(cluster, arguments)
    except CannotRun as error:
        print(f"cluster.py: {error}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    except Interrupted as signal_name:
        print(f"cluster.py: {signal_name}: all processes ended, everything removed", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
