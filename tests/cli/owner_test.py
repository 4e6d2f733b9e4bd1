"""The owner of a machine comes first: the agent's socket for its owner, preferences, and notices that the machine goes away."""
import json
import unittest

from programs import ENDLESS, PoolTest, limits_of, wait_until

MEBI = 1 << 20


class Owner(PoolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        del cls.environment["MODELET_DEDICATED"]

    def lent_agent(self, name, *arguments, preferences=""):
        """An agent that obeys its owner, and ignores the other work of this machine."""
        file = self.pool / "lend.toml"
        file.write_text(preferences + "[back_off]\ntolerated_percent = 100\npatience_seconds = 86400\n")
        return self.agent(name, "--preferences", file, *arguments)

    def ask(self, *words):
        asked = self.run_program("modelet-agent", *words, "--work-dir", self.pool / "a", "--name", "a", "--json")
        return json.loads(asked.stdout)

    def stands_still(self):
        before = self.ask("--status")
        wait_until(lambda: self.ask("--status")["seconds"] > before["seconds"] + 2, "two heartbeats")
        return self.ask("--status")["step"] == before["step"]

    def test_a_run_waits_while_its_owner_wants_the_machine(self):
        self.lent_agent("a")
        run = self.submit("run", *ENDLESS)
        self.wait_for_step(run, 5)
        wait_until(lambda: self.ask("--status")["steps"] > 0, "it has counted steps")
        self.assertEqual(self.ask("--status")["state"], "working")
        paused = self.ask("pause", "60")
        self.assertEqual((paused["state"], paused["threads"], paused["reason"]), ("suspended", 0, "paused by the owner"))
        wait_until(self.stands_still, "no step is done")
        # Suspended for longer than a silent agent counts as alive (3 s).
        wait_until(lambda: self.ask("--status")["seconds"] > paused["seconds"] + 6, "suspended for a while")
        self.assertEqual(self.runs()[run]["state"], "running")
        still = self.ask("resume")
        self.assertEqual((still["state"], still["threads"]), ("working", 1))
        self.wait_for_step(run, still["step"] + 5)
        self.assertIn("working, 1 of 1 threads",
                      self.run_program("modelet-agent", "--status", "--work-dir", self.pool / "a", "--name", "a").stdout)
        # A run that was asked to stop works on until its checkpoint.
        self.ask("pause")
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")

    def test_a_drained_agent_leaves_and_comes_back(self):
        agent = self.lent_agent("a", "--leave-seconds", "5")
        self.ask("drain")
        wait_until(lambda: not self.nodes(), "it leaves the pool")
        wait_until(lambda: self.ask("--status")["state"] == "away", "it says so")
        self.ask("resume")
        wait_until(lambda: "a" in self.nodes(), "it comes back")
        self.ask("drain")
        wait_until(lambda: self.ask("--status")["state"] == "away", "it leaves again")
        agent.signal(15)
        self.assert_ends(agent, 0)

    def test_no_more_is_offered_than_is_lent(self):
        # More than the configuration file of the agent says, and than the preferences lend.
        arguments = ("--cores", "4", "--memory-mib", "3000")
        agent = self.lent_agent("a", *arguments, preferences="cores = 2\nmemory_mib = 600\nlink_mbps = 8.0\n")
        node = self.nodes()["a"]
        self.assertEqual((node["cores"], node["memory_bytes"]), (2, 600 * MEBI))
        self.assertEqual(self.ask("--status")["most_threads"], 2)
        # docs/owners.md: a quarter more, 512 MiB, and 16 MiB for each core.
        self.assertEqual(limits_of(agent.pid)["Max data size"][0], str((600 + 150 + 512 + 2 * 16) * MEBI))

    def test_notices(self):
        notice = self.pool / "goes"
        agent = self.lent_agent("a", "--notice", f"file:{notice}")
        (self.pool / "notice").write_text("5")
        (self.pool / "notice").rename(notice)  # with its content at once
        self.assert_ends(agent, 0)
        self.assertIn("this machine goes away in 5 s", agent.stderr)
        wait_until(lambda: not self.nodes(), "it has left the pool")
        self.assert_refused(2, "aws, gcp, azure", "modelet-agent", "--notice", "nobody", "--gflops", "1", "--memory-gbps", "1",
                            "--work-dir", self.pool / "x", "--scheduler", self.address)

    def test_what_is_wrong_is_said(self):
        self.assert_refused(1, "no agent listens here", "modelet-agent", "--status", "--work-dir", self.pool)
        self.assert_refused(2, "", "modelet-agent", "pause", "soon")
        file = self.pool / "wrong.toml"
        file.write_text("core = 1\n")
        self.assert_refused(2, [f"{file}:1", "did you mean 'cores'"], "modelet-agent", "--preferences", file, "--work-dir",
                            self.pool / "x", "--gflops", "1", "--memory-gbps", "1")
        agent = self.lent_agent("a", "--dedicated")
        self.assert_refused(1, "no agent listens here", "modelet-agent", "drain", "--work-dir", self.pool / "a", "--name", "a")
        agent.signal(15)
        self.assert_ends(agent, 0)


if __name__ == "__main__":
    unittest.main()
