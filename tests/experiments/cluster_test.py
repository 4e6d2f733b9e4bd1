"""experiments/cluster: nodes reach each other at the shaped rate, commands see their node, and nothing is left behind."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/cluster"))
import cluster as clusters
import train_modelet

SCRIPT = ROOT / "experiments/cluster/cluster.py"
PROGRAMS = pathlib.Path(os.environ["MODELET_PROGRAMS"])
PAYLOAD = 3_000_000  # bytes: 0.24 s at 100 Mbit/s


def script(*words):
    return [sys.executable, "-B", str(SCRIPT), *map(str, words)]


def run(*words):
    return subprocess.run(script(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)


def namespaces_of(owner):
    return [entry.name for entry in clusters.NAMESPACES.glob(f"modelet-{owner}-*")]


def shaped_rates(cluster):
    """The rates of all shapers, as the kernel tells them."""
    places = [place for rank in range(cluster.size) for place in ((cluster.namespace(rank), clusters.DEVICE), (cluster.namespace(clusters.SWITCH), f"port{rank}"))]
    shown = [clusters.tool("tc", "-n", namespace, "-j", "qdisc", "show", "dev", device) for namespace, device in places]
    return [json.loads(text)[0]["options"]["rate"] for text in shown]


def wait_until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out: {what}")
        time.sleep(0.02)


class InThisProcess(unittest.TestCase):
    def test_both_directions_are_shaped_and_counted(self):
        with clusters.Cluster(2, "100mbit") as cluster:
            for source, target in ((0, 1), (0, clusters.SWITCH), (clusters.SWITCH, 1)):
                with self.subTest(source=source, target=target):
                    before = cluster.sent_bytes() + cluster.received_bytes()
                    rate = cluster.measure_rate(source, target, PAYLOAD)
                    self.assertLess(rate, 1.1e8, "an unshaped link is a hundred times faster")
                    sent_0, sent_1, received_0, received_1 = (after - past for after, past in zip(
                        cluster.sent_bytes() + cluster.received_bytes(), before))
                    # 66 bytes of headers for each 1448 bytes of payload. Packets that are sent again count too.
                    for count, concerned in ((sent_0, source == 0), (received_1, target == 1)):
                        if concerned:
                            self.assertGreater(count, PAYLOAD * 1.04)
                            self.assertLess(count, PAYLOAD * 1.3)
                    for count in (sent_1, received_0):  # acknowledgements
                        self.assertLess(count, PAYLOAD / 5)
        self.assertEqual(namespaces_of(os.getpid()), [])

    def test_links_are_shaped_at_the_same_time(self):
        """If two nodes send to one, the link of the receiver is the limit."""
        with clusters.Cluster(3, "100mbit") as cluster:
            rates = []
            threads = [threading.Thread(target=lambda source=source: rates.append(cluster.measure_rate(source, 2, PAYLOAD)))
                       for source in (0, 1)]
            started = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(rates), 2)
            self.assertLess(2 * 8 * PAYLOAD / (time.monotonic() - started), 1.1e8)

    def test_links_can_be_made_to_take_no_time_for_a_while(self):
        with clusters.Cluster(2, "100mbit") as cluster:
            usual = shaped_rates(cluster)
            self.assertEqual(usual, [100e6 / 8] * 4, "bytes a second, both directions of two links")
            cluster.hurry(True)
            self.assertGreater(min(shaped_rates(cluster)), 100 * max(usual))
            cluster.measure_rate(0, 1, PAYLOAD)  # the link works
            cluster.hurry(False)
            self.assertEqual(shaped_rates(cluster), usual)
            self.assertLess(cluster.measure_rate(0, 1, PAYLOAD), 1.1e8)

    def test_round_trips(self):
        with clusters.Cluster(2, "100mbit", rtt_ms=8, programs=PROGRAMS) as cluster:
            for target, least in ((1, 8e-3), (clusters.SWITCH, 4e-3)):  # no packet is early
                self.assertGreaterEqual(cluster.measure_round_trips(0, target, 10)[0], least)
            sent = os.urandom(PAYLOAD)  # whose checksums nobody computes on the way
            with cluster.connection(1, 0) as (sender, receiver):
                writing = threading.Thread(target=lambda: (sender.sendall(sent), sender.shutdown(socket.SHUT_WR)))
                writing.start()
                with receiver.makefile("rb") as file:
                    self.assertEqual(file.read(), sent)
                writing.join()
            self.assertGreater(cluster.sent_bytes()[1], PAYLOAD * 1.04)
            self.assertLess(cluster.measure_rate(0, 1, PAYLOAD), 1.1e8)
            relays = [int(pid) for pid in clusters.tool("ip", "netns", "pids", cluster.namespace(clusters.SWITCH)).split()]
        self.assertEqual(len(relays), 1)
        self.assertFalse(clusters.is_alive(relays[0]))
        self.assertEqual(namespaces_of(os.getpid()), [])

    def test_a_relay_that_does_not_start(self):
        with self.assertRaisesRegex(clusters.CannotRun, "cluster-relay"):
            clusters.Cluster(1, rtt_ms=1, programs=pathlib.Path("/nowhere")).__enter__()
        self.assertEqual(namespaces_of(os.getpid()), [])

    def test_cpu_share(self):
        try:
            cluster = clusters.Cluster(3, "none", cpu=[0.25, 0.5, 1], pin=True).__enter__()
        except clusters.CannotRun as error:
            self.skipTest(str(error))
        try:
            limits = {rank: [word for file in ("cpu.max", "cpu.cfs_quota_us") if (group.path / file).exists()
                             for word in (group.path / file).read_text().split()[:1]] for rank, group in cluster.groups.items()}
            self.assertEqual(limits, {0: ["2500"], 1: ["5000"]}, "microseconds of a period of 10,000; all of its core needs no quota")
            process = cluster.start(1, ["cat", "/proc/self/cgroup", "/proc/self/status"], stdout=subprocess.PIPE, text=True)
            shown = process.communicate(timeout=20)[0]
            self.assertIn(cluster.groups[1].path.name, shown)
            core = cluster.cores[1 % len(cluster.cores)]
            self.assertIn(f"Cpus_allowed_list:\t{core}\n", shown)
            groups = [group.path for group in cluster.groups.values()]
        finally:
            cluster.__exit__()
        self.assertFalse(any(path.exists() for path in groups))

    def test_an_error_removes_everything(self):
        with self.assertRaisesRegex(ValueError, "of the caller"):
            with clusters.Cluster(1, "none") as cluster:
                process = cluster.start(0, ["setsid", "sleep", "1000"])
                raise ValueError("of the caller")
        self.assertIsNotNone(process.wait(10))
        self.assertEqual(namespaces_of(os.getpid()), [])

    def test_without_root(self):
        with mock.patch("os.geteuid", return_value=1000), self.assertRaisesRegex(clusters.CannotRun, "need root"):
            clusters.Cluster(1).__enter__()


class CommandLine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_placeholders_head_and_logs(self):
        command = "import socket, time\nfor _ in range(200):\n try: c = socket.create_connection(('{scheduler}', 4000)); break\n" \
                  " except OSError: time.sleep(0.05)\nprint('{rank}/{nodes}', '{node}', c.getsockname()[0] == '{address}' == socket.gethostname(), '{other}')"
        head = f"{sys.executable} -c 'import socket; s = socket.create_server((\"\", 4000)); a = [s.accept() for _ in range(3)]'"
        done = run("run", "--nodes", 2, "--rate", "none", "--logs", self.folder, "--json", self.folder / "result.json", "--head", head,
                   "--", sys.executable, "-c", command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(self.folder / f"node{rank}.log").read_text() for rank in (0, 1)],
                         ["0/2 node0 True {other}\n", "1/2 node1 True {other}\n"])
        result = json.loads((self.folder / "result.json").read_text())
        for node in result["nodes"]:
            self.assertEqual(node["exit_code"], 0)
            self.assertGreater(node["sent_bytes"], 100)
            self.assertGreater(node["received_bytes"], 100)

    def test_a_failure_ends_the_others(self):
        done = run("run", "--nodes", 2, "--rate", "none", "--", "sh", "-c", "test {rank} = 1 || exec sleep 1000; exit 3")
        self.assertEqual(done.returncode, clusters.EXIT_FAILED)
        self.assertRegex(done.stderr, r"node0: exit code -15, [^\n]*\nnode1: exit code 3,")
        self.assertEqual(run("run", "--timeout", 0.2, "--", "sleep", 1000).returncode, clusters.EXIT_FAILED)

    def test_usage(self):
        for words, text in ((["run", "--nodes", 0, "--", "true"], "between 1 and 64"), (["run"], "no command"),
                            (["run", "--rate", "5gbit", "--", "true"], "invalid choice"),
                            (["run", "--rtt-ms", -1, "--", "true"], "between 0 and 1000"),
                            (["run", "--cpu", "0.01", "--", "true"], "cores are between")):
            with self.subTest(words=words):
                done = run(*words)
                self.assertEqual(done.returncode, clusters.EXIT_USAGE)
                self.assertIn(text, done.stderr)

    def start_sleepers(self):
        """Starts a cluster whose nodes sleep, in sessions of their own. Returns (tool, pids of the sleepers)."""
        process = subprocess.Popen(script("run", "--nodes", 2, "--", "sh", "-c", f"setsid sleep 1000 & echo $! >{self.folder}/{{rank}}.pid; wait"),
                                   stderr=subprocess.PIPE, text=True)
        files = [self.folder / f"{rank}.pid" for rank in (0, 1)]
        wait_until(lambda: all(file.exists() and file.read_text().strip() for file in files), "the nodes run")
        self.assertEqual(len(namespaces_of(process.pid)), 3)
        return process, [int(file.read_text()) for file in files]

    def assert_nothing_left(self, owner, pids):
        self.assertEqual(namespaces_of(owner), [])
        for pid in pids:
            stat = pathlib.Path(f"/proc/{pid}/stat")
            wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z", f"process {pid} ends")

    def test_signals_remove_everything(self):
        for signum in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signum=signum):
                process, pids = self.start_sleepers()
                process.send_signal(signum)
                _, errors = process.communicate(timeout=30)
                self.assertEqual(process.returncode, clusters.EXIT_INTERRUPTED)
                self.assertIn("everything removed", errors)
                self.assert_nothing_left(process.pid, pids)
                for file in self.folder.glob("*.pid"):
                    file.unlink()

    def test_down_removes_what_a_killed_tool_left(self):
        process, pids = self.start_sleepers()
        process.kill()
        wait_until(lambda: not clusters.is_alive(process.pid), "the tool is dead, though nobody has waited for it")
        self.assertEqual(len(namespaces_of(process.pid)), 3)
        with clusters.Cluster(1, "none"):  # belongs to a living process, so it stays
            self.assertEqual(run("down").returncode, 0)
            self.assertEqual(len(namespaces_of(os.getpid())), 2)
        self.assert_nothing_left(process.pid, pids)
        process.communicate()


class Modelet(unittest.TestCase):
    def test_two_nodes_train(self):
        with tempfile.TemporaryDirectory() as folder, clusters.Cluster(2, "100mbit") as cluster:
            data = pathlib.Path(folder)
            subprocess.run([PROGRAMS / "modelet", "data", "synth", data, "--rows", "4000", "--rows-test", "500", "--labels", "1000"],
                           check=True, stdout=subprocess.DEVNULL)
            experiment = data / "small.toml"
            experiment.write_text('[data]\ntrain = "train.mlt"\ntest = "test.mlt"\n[train]\nbatch = 64\nepochs = 2\nevaluate_every = 0\n'
                                  'checkpoint_every = 1000000\n')
            result = train_modelet.train(cluster, PROGRAMS, experiment)
            self.assertEqual(result["finished"]["steps"], 126)
            self.assertEqual(result["steps"], 126 - train_modelet.LOG_EVERY)
            # Compares the whole run, because the counters are read when an event arrives and not when it happens. At the link
            # there are also headers, the evaluation, and what was learned, on its way to the scheduler's store.
            exchanged = 126 * result["own_meter_bytes"]
            for sent in cluster.sent_bytes():
                self.assertGreater(sent, exchanged)
                self.assertLess(sent, 5 * exchanged + 1.2 * result["fetched_bytes"])
            self.assertEqual(len(result["compute_seconds"]), 2)
            for computing, _coding, waiting in zip(result["compute_seconds"], result["codec_seconds"], result["wait_seconds"], strict=True):
                self.assertGreater(min(computing, waiting), 0)
            with self.assertRaisesRegex(train_modelet.RunFailed, "no_such_key"):
                train_modelet.train(cluster, PROGRAMS, experiment, ["train.no_such_key=1"])


if __name__ == "__main__":
    try:
        with clusters.Cluster(1, "100mbit"):
            pass
    except clusters.CannotRun as reason:
        print(f"skipped: {reason}")
        sys.exit(clusters.EXIT_CANNOT_RUN)
    unittest.main()
