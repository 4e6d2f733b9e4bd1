"""How machines enter a pool with keys: by an invitation, or because an administrator lets them in. And who does not."""
import os
import re
import signal
import unittest

from programs import PoolWithInvitations, connect, is_shut, wait_until


class Entering(PoolWithInvitations):
    def test_one_word_makes_a_machine_an_agent(self):
        word = self.invite()
        self.assertRegex(word, r"^modelet1-[A-Za-z0-9_-]{100,300}$")
        done = self.run_program(*self.join_arguments(word, "alpha"))
        self.assertIn("Start it: modelet-agent --config", done.stdout)
        self.agent("alpha")
        wait_until(lambda: self.states() == {"alpha": "free"}, lambda: f"it registers: {self.nodes()}")
        node = self.nodes()["alpha"]
        self.assertGreater(node["disk_free_bytes"], 0)
        self.assertIn("no run", node["why"])
        key = (self.pool / "alpha/agent.key")
        self.assertEqual(key.stat().st_mode & 0o777, 0o600)
        self.assertIn(f"agent {self.modelet('key', key).stdout.strip()} alpha", (self.state / "allowed").read_text())
        # It works for a run.
        run = self.verb("submit", self.experiment, "--nodes", "1", "--out", self.pool / "run", "--set", "train.epochs=1", key="alice")
        self.assertEqual(run.events()[-1]["event"], "finished")
        # A restarted scheduler knows it.
        self.scheduler.signal(signal.SIGTERM)
        self.assert_ends(self.scheduler, 0)
        self.config.write_text(self.config.read_text().replace("tcp://127.0.0.1:*", self.address))
        self.start_scheduler()
        wait_until(lambda: self.states() == {"alpha": "free"}, lambda: f"it registers again: {self.nodes()}")

    def test_joining_again_changes_nothing_and_keeps_other_options(self):
        word = self.invite("--uses", "1")
        config = self.pool / "alpha/agent.toml"
        config.parent.mkdir()
        config.write_text('# the owner\'s\ncores = 3\nname = "former"\n  scheduler="tcp://10.0.0.1:1"\n')
        for _ in range(2):  # the second time takes no use: the key is known
            self.run_program(*self.join_arguments(word, "alpha"))
        text = config.read_text()
        self.assertIn("# the owner's\ncores = 3\n", text)
        self.assertEqual(len(re.findall("^ *(?:name|scheduler) *=", text, re.M)), 2, text)
        self.assertIn("name = 'alpha'", text.replace('"', "'"))
        self.assertEqual((self.state / "allowed").read_text().count("agent "), 1)

    @unittest.skipUnless(os.geteuid() == 0, "only root gives files to other users")
    def test_root_gives_the_key_to_the_user_of_the_agent(self):
        word = self.invite()
        key = self.pool / "alpha/agent.key"
        for _ in range(2):  # root can go on reading it
            self.run_program(*self.join_arguments(word, "alpha"), "--user", "nobody")
            self.assertEqual((key.owner(), key.stat().st_mode & 0o777), ("nobody", 0o600))
        self.assertIn(self.modelet("key", key).stdout.strip(), (self.state / "allowed").read_text())
        self.assertEqual((self.pool / "alpha/agent.toml").stat().st_mode & 0o444, 0o444)  # it has no secret
        self.run_program(*self.join_arguments(word, "beta"), "--user", "nobody-of-this-name")
        self.assertEqual((self.pool / "beta/agent.key").owner(), "root")

    def test_invitations_that_are_worth_nothing(self):
        once = self.invite("--uses", "1")
        self.run_program(*self.join_arguments(once, "alpha"))
        self.assert_refused(1, "used as often as it may be", *self.join_arguments(once, "beta"))
        expired = self.invite("--hours", "0")
        self.assert_refused(1, "has expired", *self.join_arguments(expired, "gamma"))
        for wrong in (once[:-1], once[:40], once[:60] + ("A" if once[60] != "A" else "B") + once[61:]):
            self.assert_refused(2, "cut off or misspelt", *self.join_arguments(wrong, "delta"))
        self.assert_refused(2, "no invitation", *self.join_arguments("hello", "delta"))
        withdrawn = self.invite()
        for file in (self.state / "invitations").iterdir():
            file.unlink()
        self.assert_refused(1, "no such invitation", *self.join_arguments(withdrawn, "epsilon"))
        self.assertEqual(self.nodes(), {})
        self.assertFalse((self.pool / "beta/agent.toml").exists())

    def test_a_taken_name_is_refused(self):
        word = self.invite()
        self.run_program(*self.join_arguments(word, "alpha"))
        (self.pool / "alpha").rename(self.pool / "other")
        self.assert_refused(1, "--name", *self.join_arguments(word, "alpha"))
        self.assert_refused(1, "--name", *self.join_arguments(word, "alice"))

    def test_an_unknown_agent_waits_until_it_is_let_in(self):
        agent = self.stranger("beta")
        wait_until(lambda: self.states() == {"beta": "pending"}, lambda: f"it waits: {agent}")
        node = self.nodes("--pending")["beta"]
        public = self.modelet("key", self.pool / "beta/agent.key").stdout.strip()
        self.assertEqual(node["key"], public)
        self.assertIn("modelet approve beta", node["why"])
        self.assertIn(public[:16], self.modelet("nodes", "--pending", "--scheduler", self.address, "--key", self.pool / "root.key",
                                               "--scheduler-key", self.public["scheduler"]).stdout)
        self.verb("approve", "beta", key="alice", code=1)
        self.verb("approve", "gamma", code=1)
        self.assertEqual(self.states(), {"beta": "pending"})
        wait_until(lambda: node["state_seconds"] > 5 or self.nodes()["beta"]["state_seconds"] > 5, "it keeps waiting")
        self.assertTrue(agent.running())
        self.assertEqual(agent.stderr.count("This agent waits"), 1, agent.stderr)
        self.verb("approve", "beta")
        wait_until(lambda: self.states() == {"beta": "free"}, lambda: f"it is let in: {agent}")

    def test_a_line_in_the_list_lets_a_waiting_agent_in(self):
        agent = self.stranger("beta")
        wait_until(lambda: self.states() == {"beta": "pending"}, lambda: f"it waits: {agent}")
        with open(self.state / "allowed", "a") as allowed:
            allowed.write(f"agent {self.modelet('key', self.pool / 'beta/agent.key').stdout.strip()} lab\nnonsense\n")
        wait_until(lambda: self.states() == {"beta": "free"}, lambda: f"it is let in: {agent}")
        self.assertIn("this line does not count", self.scheduler.stderr)

    def test_a_killed_agent_is_shown_as_lost(self):
        self.run_program(*self.join_arguments(self.invite(), "alpha"))
        agent = self.agent("alpha")
        wait_until(lambda: self.states() == {"alpha": "free"}, "it registers")
        agent.signal(signal.SIGKILL)
        wait_until(lambda: self.states() == {"alpha": "lost"}, lambda: f"it is lost: {self.nodes()}")
        self.assertIn("stopped answering", self.nodes()["alpha"]["why"])
        self.agent("alpha")
        wait_until(lambda: self.states() == {"alpha": "free"}, "it is back")

    def test_strangers_may_only_wait(self):
        self.modelet("keygen", self.pool / "mallory.key")
        for verb in (("nodes",), ("list",), ("stop", "1"), ("approve", "mallory"), ("submit", self.experiment)):
            self.assert_refused(1, "allow-list", "modelet", *verb, "--scheduler", self.address, "--key", self.pool / "mallory.key",
                                "--scheduler-key", self.public["scheduler"])
        silent = [connect(self.address) for _ in range(200)]
        try:
            wait_until(lambda: sum(map(is_shut, silent)) >= 100, "most silent connections are shut")
            self.assertEqual(self.nodes(), {})
        finally:
            for connection in silent:
                connection.close()

    def test_an_invitation_needs_a_state(self):
        self.assert_refused(2, "--state", "modelet-scheduler", "invite", "--key", self.pool / "scheduler.key")
        self.assert_refused(2, "--address", "modelet-scheduler", "invite", "--config", self.config)


if __name__ == "__main__":
    unittest.main()
