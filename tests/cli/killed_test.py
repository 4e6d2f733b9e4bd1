"""A killed test leaves no process behind: neither the scheduler nor the agents of a pool on this machine."""
import os
import pathlib
import signal
import subprocess
import sys
import unittest

from programs import ENDLESS, ProgramTest, processes_of_session, wait_until

# Stands for a test that is killed. Arguments: a folder, then those of the program.
STARTER = """
import os, pathlib, signal, sys
from programs import Program
print(Program(sys.argv[2:], pathlib.Path(sys.argv[1]), os.environ, "child", sys.argv[1]).pid, flush=True)
signal.pause()
"""


class KilledTest(ProgramTest):
    def test_what_a_killed_test_started_ends(self):
        starter = subprocess.Popen([sys.executable, "-B", "-c", STARTER, self.folder, "modelet", "train", self.experiment, "--nodes", "2",
                                    "--out", self.folder / "run", "--json", *ENDLESS],
                                   cwd=pathlib.Path(__file__).parent, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(starter.stdout.close)
        self.addCleanup(starter.wait)
        self.addCleanup(starter.kill)
        session = int(starter.stdout.readline())
        self.addCleanup(self.kill_session, session)
        wait_until(lambda: '"event":"progress"' in (self.folder / "child.out").read_text(), "training begins")
        self.assertEqual(sorted(processes_of_session(session).values()),
                         ["modelet", "modelet-agent", "modelet-agent", "modelet-scheduler"])

        starter.send_signal(signal.SIGKILL)
        wait_until(lambda: not processes_of_session(session), lambda: f"all ended: {processes_of_session(session)}")

    def test_agents_do_not_train_on_without_their_pool(self):
        """When `modelet` is killed, the kernel tells each agent once or more often, so here it is told once."""
        run = self.start_training("alone", *ENDLESS, "--nodes", "2")
        run.wait_for_step(5)
        run.signal(signal.SIGSTOP)  # does not start the scheduler again
        for victim, number in (("modelet-scheduler", signal.SIGKILL), ("modelet-agent", signal.SIGTERM)):
            for pid, name in run.children().items():
                if name == victim:
                    os.kill(pid, number)
        # Half of the time for which an agent of another pool works on.
        wait_until(lambda: not run.children(), lambda: f"all ended: {run.children()}", limit=30)

    def kill_session(self, session):
        for pid in processes_of_session(session):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
