"""What malicious users, agents and neighbours may try (docs/security.md), with the real programs."""
import contextlib
import ctypes
import json
import math
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import unittest

from programs import (ENDLESS, PROGRAMS, PoolTest, ProgramTest, connect, finished, is_shut, limits_of, newest_checkpoint, set_number,
                      wait_until)

NOBODY = 65534
SECRET = "hunter2"
ESCAPE = "\x1b"
MEBI = 1 << 20
# What a ZeroMQ client without keys sends first (ZMTP 3.0, RFC 23).
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(48)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"


def as_another_user(action):
    """Runs action() in a process of another user, and returns its result (as JSON). Needs root."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(action()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


class OfALocalPool(ProgramTest):
    """`train --nodes N`, and another user of the machine."""

    @unittest.skipIf(os.geteuid() != 0, "only root can be somebody else")
    def test_another_user_gets_nowhere(self):
        for folder in (self.folder, self.folder / "temporary"):  # only the pool's own folder protects it
            folder.chmod(0o755)
        training = self.start_training("run", *ENDLESS, "--nodes", "2")
        training.wait_for_step(3)
        (pool,) = (self.folder / "temporary").glob("modelet-pool-*")
        address = (pool / "endpoint").read_text().strip()
        sockets = [str(path) for path in pool.iterdir() if stat.S_ISSOCK(path.stat().st_mode)]
        self.assertEqual(len(sockets), 4, "two of each agent: for steps and for snapshots")
        files = [str(path) for path in pool.iterdir() if path.suffix == ".key"]
        self.assertEqual(len(files), 4)

        def attack():
            result = {}
            for path in sockets:
                with socket.socket(socket.AF_UNIX) as connection:
                    result[path] = connection.connect_ex(path)
            for path in [*files, str(pool), str(self.folder / "run/.pool")]:
                try:
                    os.listdir(path) if pathlib.Path(path).is_dir() else open(path).read()
                    result[path] = 0
                except OSError as error:
                    result[path] = error.errno
            with connect(address) as connection:
                connection.sendall(GREETING + READY + b"\0\x05hello")
                wait_until(lambda: is_shut(connection), "the scheduler ends the connection")
            return result
        denied = as_another_user(attack)
        self.assertEqual({path: os.strerror(error) for path, error in denied.items()}, {path: os.strerror(13) for path in denied})
        self.assert_refused(1, ["wants a key"], "modelet", "list", "--insecure", "--scheduler", address)
        training.wait_for_step(training.events("progress")[-1]["step"] + 3)
        training.signal(signal.SIGINT)
        self.assert_ends(training, 130)


class FilesOfAnAgent(PoolTest):
    """A user tries to read files that only the agent may read. Runs are submitted before the agent comes, and meanwhile the files at
    their paths change."""

    def setUp(self):
        super().setUp()
        self.root = self.pool / "root"
        self.root.mkdir()
        outside = self.pool / "outside"
        outside.mkdir()
        self.secret = outside / "shadow"
        self.secret.write_text(f"root:{SECRET}:0:0\ndaemon:{SECRET}:1:1\n")

    def queue(self, path, *settings):
        settings = [part for setting in ("train.epochs=1", f"data.train={path}", *settings) for part in ("--set", setting)]
        return self.submit("--nodes", "1", "--wait", *settings)

    def agent_with_root(self):
        elsewhere = self.pool / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "bait.txt").symlink_to("/etc/shadow")
        return self.start("modelet-agent", "--scheduler", self.address, "--name", "a", "--cores", "1", "--memory-mib", "1000", "--gflops", "10",
                          "--memory-gbps", "5", "--work-dir", self.pool / "a", "--data-root", self.root, "--data-root", self.folder / "data",
                          cwd=elsewhere)

    def test_nothing_of_them_is_told(self):
        def link(to):
            return lambda path: path.symlink_to(to)
        rows = (self.folder / "data/train.txt").read_text().splitlines()
        attacks = {
            "link": (link(self.secret), "--data-root"),
            "above": (link("../outside/shadow"), "--data-root"),
            "shadow": (link("/etc/shadow"), "--data-root"),
            "terminal": (link("/dev/ptmx"), "--data-root"),
            "zeros": (link("/dev/zero"), "--data-root"),
            "pipe": (os.mkfifo, "a regular file"),
            "folder": (os.mkdir, "a regular file"),
            # Below the root, so the agent reads the file; but its text is not sent.
            "text": (lambda path: shutil.copy(self.secret, path), "text.txt:1"),
            "row": (lambda path: path.write_text("\n".join([rows[0], f"{SECRET} 1:1"])), "row.txt:2"),
            "value": (lambda path: path.write_text("\n".join([rows[0], f"1 1:{SECRET}"])), "value.txt:2"),
        }
        runs = {}
        for name in attacks:
            path = self.root / f"{name}.txt"
            shutil.copy(self.folder / "data/train.txt", path)
            runs[name] = self.queue(path)
        attacks["columns"] = (lambda path: shutil.copy(self.secret, path), "there is no column '...'")
        table = "word,tag\n" + "".join(f"w{i},t{i}\n" for i in range(20))
        for path in (self.root / "columns.txt", self.root / "columns-test.txt"):
            path.write_text(table)
        runs["columns"] = self.queue(self.root / "columns.txt", f"data.test={self.root / 'columns-test.txt'}",
                                     "data.format=csv", "csv.labels=tag", 'csv.text=["word"]')
        shutil.copy(self.folder / "data/train.txt", self.folder / "bait.txt")
        # The agent's own working folder has another file of this name.
        runs["working folder"] = self.queue("/proc/self/cwd/bait.txt")
        for name, (put, _why) in attacks.items():
            path = self.root / f"{name}.txt"
            path.unlink()
            put(path)
        agent = self.agent_with_root()
        for name, run in runs.items():
            status = self.wait_for_end(run)
            self.assertEqual(status["state"], "failed", name)
            self.assertIn(attacks[name][1] if name in attacks else "--data-root", status["detail"], name)
            watched = self.start("modelet", "watch", run, "--scheduler", self.address, "--json")
            self.assertNotEqual(watched.end(), 0)
            for told in (json.dumps(status), watched.stdout, watched.stderr):
                self.assertNotIn(SECRET, told, name)
        self.assertNotIn(SECRET, self.scheduler.stderr)
        self.assertNotIn(SECRET, self.modelet("list", "--scheduler", self.address).stdout)
        self.assertTrue(agent.running())
        self.assert_finishes(self.submit("--set", "train.epochs=1"))

    def test_a_path_that_is_cut_inside_a_character(self):
        """The error names a path that is too long to be shown whole. For one of the paths the limit lies inside a character."""
        runs, paths = [], []
        for extra in range(2):
            folder = self.root
            while (left := 4029 - extra - len(os.fsencode(folder))) > 0:
                folder /= "ä" * min(100, left // 2) + "x" * (left % 2 if left < 200 else 0)
            folder.mkdir(parents=True)
            paths.append(pathlib.Path(shutil.copy(self.folder / "data/train.txt", folder / ("ü" * 30))))
            runs.append(self.queue(paths[-1]))
        for path in paths:
            path.unlink()
        self.agent_with_root()
        for run in runs:
            status = self.wait_for_end(run)
            self.assertEqual(status["state"], "failed")
            self.assertIn("ää", status["detail"])
            self.assertGreater(len(status["detail"].encode()), 4000)
            self.assertNotIn("\ufffd", status["detail"], "half a character")
        self.assertTrue(self.scheduler.running())
        self.assert_finishes(self.submit("--set", "train.epochs=1"))


class Neighbours(PoolTest):
    """Anybody who can connect to the port."""
    @property
    def scheduler_arguments(self):
        return ("--store", self.pool / "store")

    def peak_mebibytes(self):
        text = pathlib.Path(f"/proc/{self.scheduler.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text).group(1)) >> 10

    def test_a_message_without_an_end(self):
        before, parts = self.peak_mebibytes(), 0
        with connect(self.address) as connection:
            connection.sendall(GREETING + READY)
            heard = 0
            while heard <= len(GREETING):  # until the handshake is over
                heard += len(connection.recv(1000))
            part = b"\x03" + MEBI.to_bytes(8, "big") + bytes(MEBI)  # and more parts follow
            try:
                for parts in range(1000):
                    connection.sendall(part)
            except OSError:
                pass
        self.assertLess(parts, 900, "the scheduler ends the connection")
        self.assertLess(self.peak_mebibytes() - before, 300)
        self.assertEqual(self.verb("list"), [], "it serves others")

    def test_a_peer_cannot_choose_who_it_is(self):
        """ZeroMQ numbers connections from a number on that comes from rand(). A peer may choose its number, and two that have the same end the
        program."""
        libc = ctypes.CDLL(None)
        libc.srand(1)  # as in a program that does not seed it
        drawn = [libc.rand() for _ in range(20)]
        starts = [(low | high << 31) & 0xffffffff for low, high in zip(drawn, drawn[1:])]
        with contextlib.ExitStack() as connections:
            def join(more=b""):
                ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER" + more
                connection = connections.enter_context(connect(self.address))
                connection.sendall(GREETING + b"\x04" + bytes([len(ready)]) + ready)
                heard = b""
                while len(heard) <= len(GREETING):  # until the handshake is over
                    heard += (got := connection.recv(1000))
                    if not got:
                        break
            for start in starts:
                for number in (start + 8, start + 9):
                    join(b"\x08Identity\0\0\0\x05\0" + (number & 0xffffffff).to_bytes(4, "big"))
            self.assertEqual(self.verb("list"), [])
            for _ in range(12):
                join()
            self.assertEqual(self.verb("list"), [])
        self.assertTrue(self.scheduler.running())

    def test_nobody_writes_the_log_of_others(self):
        forged = f"{ESCAPE}[2J\nnode 'root' joined"
        for arguments in (["modelet-agent", "--name", forged, "--gflops", "1", "--memory-gbps", "1", "--work-dir", self.pool / "x"],
                          ["modelet", "submit", self.experiment, "--name", forged]):
            program = self.start(*arguments, "--scheduler", self.address)
            self.assertNotEqual(program.end(), 0, program)
            for text in (program.stdout, program.stderr):
                self.assertNotIn(ESCAPE, text)
        self.assertNotIn(ESCAPE, self.scheduler.stderr)
        self.assertNotIn("\nnode 'root' joined", self.scheduler.stderr)

    def test_numbers_of_a_checkpoint_end_no_agent(self):
        finished(self.train("trained", "--set", "train.epochs=1"))
        checkpoint = newest_checkpoint(self.folder / "trained")
        set_number(checkpoint, "output", "bias", 1, math.inf)
        agents = [self.agent(name) for name in "ab"]
        run = self.submit("--nodes", "2", "--resume", checkpoint, "--set", "train.epochs=2")
        ended = self.wait_for_end(run)
        self.assertEqual(ended["state"], "failed")
        self.assertIn("tensor '", ended["detail"])
        self.assertTrue(all(agent.running() for agent in agents), agents)
        self.assertEqual(sorted(self.nodes()), ["a", "b"])

    def test_nobody_claims_more_than_a_machine_has(self):
        self.agent("a", *(word for name in ("--gflops", "--bf16-gflops", "--memory-gbps") for word in (name, "1e6")))
        node = self.nodes()["a"]
        self.assertLessEqual(node["gflops"], 1000)
        self.assertLessEqual(node["memory_gbps"], 100)


class LimitsOfTheProcesses(PoolTest):
    """The last lines of defence are limits of the kernel."""
    scheduler_arguments = ("--memory-mib", "2000")

    def setUp(self):
        # The programs start with fewer descriptors than they may have.
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 1000), before[1]))
        super().setUp()

    def test_memory_of_the_scheduler(self):
        self.assertEqual(limits_of(self.scheduler.pid)["Max address space"][0], str(2000 * MEBI))

    def test_descriptors(self):
        for program in (self.scheduler, self.agent("a")):
            soft, hard = limits_of(program.pid)["Max open files"]
            self.assertEqual(int(soft), min(int(hard), 65_536), program.name)
            self.assertGreater(int(soft), 1000, "else this test shows nothing")


class AsThePageSays(ProgramTest):
    """The commands of docs/pool.md in their order, with addresses and folders of the test."""

    def test_a_pool_with_keys(self):
        text = (pathlib.Path(__file__).parents[2] / "docs/pool.md").read_text(encoding="utf-8")
        (block,) = (block for block in text.split("```") if "modelet keygen scheduler.key" in block)
        commands = [line.split(" #")[0].strip() for line in block.splitlines() if line]
        self.assertEqual([command.split()[0] for command in commands],
                         ["modelet", "modelet-scheduler", "modelet", "modelet-scheduler", "modelet-agent", "modelet"])
        (self.folder / "big.toml").write_text(self.experiment.read_text().replace("epochs = 5", "epochs = 1"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        places = {"192.168.1.5:5570": address, "192.168.1.7": "127.0.0.1"}
        environment = {**self.environment, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "MODELET_SCHEDULER": f"tcp://{address}",
                       "MODELET_KEY": "alice.key"}

        def shell(command):
            done = subprocess.run(["sh", "-c", command], cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
            return done.stdout

        def told(verb):
            return list(map(json.loads, shell(f"modelet {verb} --json").splitlines()))
        started = []
        for command in commands:
            for name, value in places.items():
                command = command.replace(name, value)
            if command.startswith("modelet-scheduler --listen"):
                started.append(self.start(*shlex.split(command)))
                wait_until((self.folder / "pool/allowed").exists, lambda: f"it keeps an allow-list: {started[-1]}")
            elif command.startswith("modelet-agent join"):
                shell(f"{command} --config {self.folder / 'agent.toml'} --no-start".replace("WORD", word))
                started.append(self.start("modelet-agent", "--config", self.folder / "agent.toml", "--work-dir", self.folder / "work"))
            elif command.startswith("modelet-scheduler invite"):
                word = shell(command).strip()
            else:
                printed = shell(command)
                if "keygen scheduler.key" in command:
                    places["--scheduler-key S"] = f"--scheduler-key {printed.strip()}"
                    environment["MODELET_SCHEDULER_KEY"] = printed.strip()
            if command.startswith("modelet-agent"):
                wait_until(lambda: told("nodes"), lambda: f"it registers: {started[-1]}")
        (run,) = told("list")
        self.assertEqual((run["state"], run["submitter"], run["detail"]), ("finished", "alice", ""))
        self.assertTrue((self.folder / "runs/big/checkpoints").is_dir())


if __name__ == "__main__":
    unittest.main()
