"""A pool with keys, end to end: peers that are let in can work; the others are told why they are refused, and the log says so as well."""
import re
import signal
import unittest

from programs import ENDED, ENDLESS, ProgramTest, STEPS_PER_EPOCH, connect, is_shut, wait_until


class PoolWithKeys(ProgramTest):
    def setUp(self):
        super().setUp()
        self.pool = self.folder / self._testMethodName
        self.pool.mkdir()
        self.allowed = self.pool / "allowed"
        self.public = {key: self.modelet("keygen", self.pool / f"{key}.key", *enrolment).stdout.strip() for key, enrolment in (
            ("agent", ("--allow-list", self.allowed, "--role", "agent", "--name", "office")),
            ("user", ("--allow-list", self.allowed, "--role", "user", "--name", "alice")), ("scheduler", ()), ("stranger", ()), ("admin", ()))}
        endpoint = self.pool / "endpoint"
        config = self.pool / "scheduler.toml"
        config.write_text(f'listen = "tcp://127.0.0.1:*"\nendpoint_file = "{endpoint}"\nheartbeat_seconds = 0.2\ndead_after_seconds = 3\n'
                          'names_per_key = 2\n'
                          f'key = "{self.pool / "scheduler.key"}"\nallow_list = "{self.allowed}"\n')
        self.scheduler = self.start("modelet-scheduler", "--config", config)
        wait_until(endpoint.exists, lambda: f"scheduler started: {self.scheduler}")
        self.address = endpoint.read_text().strip()

    def start_with_state(self):
        self.scheduler.signal(signal.SIGTERM)
        self.assert_ends(self.scheduler, 0)
        (self.pool / "endpoint").unlink()
        self.scheduler = self.start("modelet-scheduler", "--config", self.pool / "scheduler.toml", "--state", self.pool / "state")
        wait_until((self.pool / "endpoint").exists, lambda: f"scheduler started: {self.scheduler}")
        self.address = (self.pool / "endpoint").read_text().strip()

    def allow(self, *lines):
        self.allowed.write_text("".join(f"{role} {self.public[key]} {name}\n" for role, key, name in lines))

    def test_a_public_key_is_shown(self):
        file = self.pool / "agent.key"
        secret = re.search('secret = "(.*)"', file.read_text())[1]
        alone = self.pool / "agent.pub"
        alone.write_text(self.public["agent"] + "\n")
        told = self.pool / "agent.toml"
        told.write_text(f'public = "{self.public["agent"]}"\n')
        for shown in (file, alone, told):
            self.assertEqual(self.modelet("key", shown).stdout, self.public["agent"] + "\n")
        wrong = self.pool / "wrong.key"
        wrong.touch(mode=0o600)
        for text in ("", f'secret = "{secret}"', f'public = "{self.public["user"]}"\nsecret = "{secret}"', f'secret = "{secret}', 'public = "1"'):
            wrong.write_text(text)
            self.assertNotIn(secret, self.assert_refused(2, str(wrong), "modelet", "key", wrong).stderr)
        file.chmod(0o644)
        self.assert_refused(2, "chmod 600", "modelet", "key", file)
        self.assert_refused(1, "nowhere.key", "modelet", "key", "nowhere.key")

    def own(self, key):
        return ("--key", self.pool / f"{key}.key", "--scheduler-key", self.public["scheduler"])

    def ended(self, run, key="user"):
        def status():
            return next((status for status in self.verb("list", key=key).events() if status["run"] == run and status["state"] in ENDED), None)
        return wait_until(status, f"run {run} ends")

    def agent(self, name, *keys):
        return self.start("modelet-agent", "--scheduler", self.address, "--name", name, "--cores", "1", "--memory-mib", "1000", "--gflops", "10",
                          "--memory-gbps", "5", "--work-dir", self.pool / name, "--data-root", self.folder, *keys)

    def verb(self, *arguments, key="user", **options):
        return self.modelet(*arguments, "--scheduler", self.address, *self.own(key), "--json", **options)

    def nodes(self):
        return sorted(node["name"] for node in self.verb("nodes").events() if node["state"] not in ("lost", "pending"))

    def wait_for_log(self, text):
        wait_until(lambda: text in self.scheduler.stderr, lambda: f"'{text}' in the log of {self.scheduler}")

    def wait_for_word(self, program, *texts):
        """Waits for these texts, which the program says before it ends or while it tries again."""
        wait_until(lambda: all(text in program.stderr for text in texts), lambda: f"{texts} said by {program}")

    def test_agents_and_a_user_with_keys_train(self):
        self.start_with_state()
        for name in ("a", "b"):
            self.agent(name, *self.own("agent"))  # one key for both: a launcher starts many
        wait_until(lambda: self.nodes() == ["a", "b"], "both agents register")
        done = self.verb("submit", self.experiment, "--nodes", "2", "--out", self.pool / "run", "--set", "train.epochs=2")
        end = done.events()[-1]
        self.assertEqual((end["event"], end["steps"]), ("finished", 2 * STEPS_PER_EPOCH))
        self.assertGreater(end["bytes_sent_per_node_per_step"], 0)
        # The same two nodes without keys learn the same: encryption changes no number.
        plain = self.modelet("train", self.experiment, "--nodes", "2", "--out", self.pool / "plain", "--set", "train.epochs=2", "--json")
        self.assertEqual([event["loss"] for event in done.events("progress")], [event["loss"] for event in plain.events("progress")])

    def test_who_is_not_listed_is_told_what_to_do(self):
        agent = self.agent("c", *self.own("stranger"))
        self.wait_for_word(agent, f"does not know this agent's key {self.public['stranger'][:16]}", f"'agent {self.public['stranger']} c'")
        self.wait_for_log(f"an agent waits to be let in: 'c', key {self.public['stranger'][:16]}")
        self.assertEqual(self.nodes(), [])
        self.verb("nodes", key="stranger", code=1)
        # Following the advice of the message helps, without restarting the scheduler.
        self.allow(("agent", "stranger", "office-2"), ("user", "user", "alice"))
        wait_until(lambda: self.nodes() == ["c"], lambda: f"the agent registers: {agent}")

    def test_who_has_no_key_is_told(self):
        agent = self.agent("c", "--insecure")
        self.wait_for_word(agent, "wants a key", "--key FILE")
        self.wait_for_log("uses no keys")
        self.assert_refused(1, ["wants a key"], "modelet", "nodes", "--insecure", "--scheduler", self.address)
        self.assertEqual(self.nodes(), [])

    def test_each_role_is_refused_what_the_other_may(self):
        agent = self.agent("c", *self.own("user"))
        self.wait_for_word(agent, "the key 'alice' is a user's, which may not be an agent")
        self.wait_for_log("alice")
        self.assertEqual(self.nodes(), [])
        for verb in (("nodes",), ("list",), ("stop", "1"), ("submit", self.experiment, "--out", self.pool / "run")):
            self.assert_refused(1, ["the key 'office' is an agent's, which may not submit, list, watch or stop"],
                                "modelet", *verb, "--scheduler", self.address, *self.own("agent"))
        self.assertFalse((self.pool / "run").exists())
        drain = ("drain", "c", "--scheduler", self.address)
        self.assert_refused(1, ["only an administrator's key may drain a node"], "modelet", *drain, *self.own("user"))
        self.assertIn("administrator", self.modelet("drain", "--help").stdout)

    def test_silent_connections_keep_nobody_out(self):
        silent = [connect(self.address) for _ in range(300)]
        try:
            self.assertEqual(self.nodes(), [])
            wait_until(lambda: sum(map(is_shut, silent)) >= 200, "most of them are shut")
            self.wait_for_log("connections from its address that sent nothing")
            self.assertEqual(self.nodes(), [])
        finally:
            for connection in silent:
                connection.close()

    def test_a_name_belongs_to_its_key(self):
        self.allow(("agent", "agent", "office"), ("agent", "stranger", "lab"), ("user", "user", "alice"))
        first = self.agent("a", *self.own("agent"))
        wait_until(lambda: self.nodes() == ["a"], "it registers")
        for _ in range(2):
            other = self.agent("a", *self.own("stranger"))
            self.wait_for_word(other, "another key has the name 'a'")
            self.assert_ends(other, 1)
            if first.running():  # the name stays with its key after the agent has gone
                self.assertEqual(self.nodes(), ["a"])
                first.signal(signal.SIGTERM)
                self.assert_ends(first, 0)
        for name in ("a", "b"):
            self.agent(name, *self.own("agent"))
        wait_until(lambda: self.nodes() == ["a", "b"], "both register")
        third = self.agent("c", *self.own("agent"))
        self.wait_for_word(third, "2 agents with the key 'office' are in the pool, as many as may be")
        self.assertEqual(self.nodes(), ["a", "b"])

    def test_a_run_belongs_to_its_user(self):
        self.start_with_state()
        self.allow(("agent", "agent", "office"), ("user", "user", "alice"), ("user", "stranger", "bob"), ("admin", "admin", "root"))
        self.agent("a", *self.own("agent"))
        wait_until(lambda: self.nodes() == ["a"], "the agent registers")
        *_, answer = self.verb("submit", self.experiment, *ENDLESS).events()
        run = str(answer["run"])

        def seen_by(key):
            (status,) = self.verb("list", key=key).events()
            return status
        wait_until(lambda: seen_by("user")["step"] > 5, "the run trains")
        for verb in (("stop",), ("watch",), ("fetch", "--out", self.pool / "stolen")):
            self.assert_refused(1, [f"run {run} belongs to the key 'alice', and this is 'bob'"], "modelet", *verb, run, "--scheduler", self.address,
                                *self.own("stranger"))
        self.assertEqual((seen_by("stranger")["submitter"], seen_by("stranger")["state"]), ("alice", "running"))
        self.verb("stop", run, key="admin")
        wait_until(lambda: seen_by("user")["state"] == "stopped", "the administrator stops it")
        self.assertIn("checkpoint written", seen_by("user")["detail"])
        epochs = seen_by("user")["step"] // STEPS_PER_EPOCH + 1
        self.assertEqual(seen_by("stranger")["detail"], "")
        of_agent = self.pool / "a" / "runs"
        self.assertEqual([str(path) for path in (of_agent, *of_agent.rglob("*")) if path.stat().st_mode & 0o077], [])
        out = self.pool / "run"
        self.verb("fetch", run, "--out", out)
        wait_until(lambda: self.verb("nodes").events()[0]["run"] == 0, "the agent is free")
        self.assertEqual(self.verb("submit", self.experiment, "--resume", out, "--out", out, "--set", f"train.epochs={epochs}").events()[-1]["event"], "finished")

    def test_nobody_learns_what_others_have_in_the_store(self):
        self.start_with_state()
        self.allow(("user", "user", "alice"), ("user", "stranger", "mallory"))

        def sent_by(key):
            done = self.verb("submit", self.experiment, "--nodes", "1", "--wait", key=key)
            return [event["data"] for event in done.events("sending") if event["bytes"] == event["total_bytes"]]
        everything = sent_by("user")
        self.assertEqual(len(everything), 2, "training and test data")
        self.assertEqual(sent_by("user"), [])
        self.assertEqual(sent_by("stranger"), everything)
        self.start_with_state()
        self.assertEqual(sent_by("user"), [], "what a key has sent is known after a restart")


if __name__ == "__main__":
    unittest.main()
