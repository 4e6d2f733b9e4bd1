"""Scheduler and agent as services: what a service manager hears, the exit code that a batch system wants, folders that are made."""
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import unittest

from programs import ENDLESS, PROGRAMS, PoolTest, wait_until


class Manager:
    """Stands in for systemd: the socket of $NOTIFY_SOCKET."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="modelet-notify-")
        self.address = str(pathlib.Path(self._folder.name) / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)
        self._heard = []

    def heard(self):
        """All that has been said so far."""
        try:
            while True:
                self._heard.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return list(self._heard)

    def close(self):
        self._socket.close()
        self._folder.cleanup()


class Service(PoolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # What this test's own program may have from a service manager is not for the programs under test.
        cls.environment.pop("NOTIFY_SOCKET", None)

    def setUp(self):
        super().setUp()
        self.manager = Manager()
        self.addCleanup(self.manager.close)

    def watched(self, *arguments):
        """Starts a program as this test's service manager would."""
        self.environment["NOTIFY_SOCKET"] = self.manager.address
        try:
            return self.start(*arguments)
        finally:
            del self.environment["NOTIFY_SOCKET"]

    def hears(self, text):
        wait_until(lambda: text in self.manager.heard(), lambda: f"{text} is heard: {self.manager.heard()}")

    def agent_arguments(self, name, scheduler, folder=None):
        return ("modelet-agent", "--scheduler", scheduler, "--name", name, "--cores", "1", "--memory-mib", "1000", "--gflops", "10",
                "--memory-gbps", "5", "--work-dir", folder or self.pool / name, "--data-root", self.folder)

    def first_log_line(self, is_journal):
        """What a scheduler logs first into a file that is the journal or another one."""
        with tempfile.NamedTemporaryFile() as file:
            info = os.stat(file.name)
            stream = f"{info.st_dev}:{info.st_ino + (0 if is_journal else 1)}"
            scheduler = subprocess.Popen([PROGRAMS / "modelet-scheduler", "--listen", "tcp://127.0.0.1:*", "--insecure"], cwd=self.pool,
                                         stderr=file, stdout=subprocess.DEVNULL, env=self.environment | {"JOURNAL_STREAM": stream})
            try:
                return wait_until(lambda: pathlib.Path(file.name).read_text().splitlines()[:1], lambda: "a scheduler logs something")[0]
            finally:
                scheduler.kill()
                scheduler.wait()

    def test_the_journal_alone_says_when_a_line_was_logged(self):
        self.assertRegex(self.first_log_line(is_journal=True), "^scheduler ")
        self.assertRegex(self.first_log_line(is_journal=False), r"^20\d\d-\d\d-\d\dT[0-9:.]+ scheduler ")

    def test_an_agent_is_ready_when_its_scheduler_knows_it(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"tcp://127.0.0.1:{port}"
        agent = self.watched(*self.agent_arguments("a", address))
        self.hears(f"STATUS=looks for the scheduler at {address}")
        wait_until(lambda: "nobody answers" in agent.stderr, lambda: f"it has asked in vain for a while: {agent}")
        self.assertNotIn("READY=1", self.manager.heard())
        self.assertTrue(agent.running())

        endpoint = self.pool / "second"
        self.start("modelet-scheduler", "--listen", address, "--endpoint-file", endpoint)
        self.hears("READY=1")
        self.hears("STATUS=free: waits for a run")
        agent.signal(signal.SIGTERM)
        self.assert_ends(agent, 0)
        self.hears("STOPPING=1")

    def test_an_agent_says_for_which_run_it_works(self):
        agent = self.watched(*self.agent_arguments("a", self.address))
        self.hears("READY=1")
        run = self.submit(*ENDLESS)
        self.hears(f"STATUS=works for run {run}")
        self.scheduler.signal(signal.SIGKILL)
        self.hears(f"STATUS=looks for the scheduler at {self.address}")
        self.assertTrue(agent.running())

    def test_an_agent_that_its_owner_keeps_away_is_ready(self):
        del self.environment["MODELET_DEDICATED"]
        self.addCleanup(self.environment.__setitem__, "MODELET_DEDICATED", "1")
        first = self.start(*self.agent_arguments("a", self.address))
        wait_until(lambda: "a" in self.nodes(), lambda: f"agent registers: {first}")
        self.run_program("modelet-agent", "drain", "--work-dir", self.pool / "a", "--name", "a")
        wait_until(lambda: "away from the pool" in first.stderr, lambda: f"it leaves: {first}")
        first.signal(signal.SIGTERM)
        self.assert_ends(first, 0)
        self.watched(*self.agent_arguments("a", self.address))
        self.hears("READY=1")
        self.assertTrue(any(text.startswith("STATUS=away from the pool: ") for text in self.manager.heard()), self.manager.heard())
        self.assertNotIn("a", self.nodes())

    def test_a_scheduler_is_ready_when_it_listens(self):
        endpoint = self.pool / "second"
        scheduler = self.watched("modelet-scheduler", "--listen", "tcp://127.0.0.1:*", "--endpoint-file", endpoint)
        self.hears("READY=1")
        self.hears(f"STATUS=listens at {endpoint.read_text().strip()}")
        scheduler.signal(signal.SIGTERM)
        self.assert_ends(scheduler, 0)
        self.hears("STOPPING=1")

    def test_a_batch_system_sees_who_was_asked_to_end(self):
        for arguments, code in ((("--exit-code-when-asked", "75"), 75), ((), 0)):
            agent = self.start(*self.agent_arguments("a", self.address), *arguments)
            wait_until(lambda: "a" in self.nodes(), lambda: f"agent registers: {agent}")
            agent.signal(signal.SIGTERM)
            self.assert_ends(agent, code)
        # What fails keeps its own code.
        self.assert_refused(2, "/proc/nobody", *self.agent_arguments("a", self.address, "/proc/nobody/may/write"),
                            "--exit-code-when-asked", "75")

    def test_the_folder_of_an_agent_is_made(self):
        folder = self.pool / "not/there/yet"
        agent = self.start(*self.agent_arguments("a", self.address, folder))
        wait_until(lambda: "a" in self.nodes(), lambda: f"agent registers: {agent}")
        self.assertEqual(os.stat(folder).st_mode & 0o077, 0, "only its user may read what runs write")


if __name__ == "__main__":
    unittest.main()
