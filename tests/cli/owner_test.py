"""The owner of a machine comes first: the agent's socket for its owner, preferences, and notices that the machine goes away."""
import datetime
import http.server
import json
import os
import threading
import unittest

from programs import ENDLESS, STEPS_PER_EPOCH, PoolTest, limits_of, wait_until

MEBI = 1 << 20


class Metadata:
    """Stands in for the metadata service of a cloud. `answer(method, path, headers)` returns the text of the answer; None: not
    found."""

    def __init__(self, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer_it(self):
                text = answer(self.command, self.path, self.headers)
                self.send_response(404 if text is None else 200)
                self.send_header("Content-Length", str(len(text or "")))
                self.end_headers()
                self.wfile.write((text or "").encode())
            do_GET = do_PUT = answer_it

            def log_message(self, *_arguments):
                pass
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class OwnerTest(PoolTest):
    @property
    def scheduler_arguments(self):  # the scheduler keeps the files of a run, so a node that holds them may leave
        return ("--store", self.pool / "store")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        del cls.environment["MODELET_DEDICATED"]

    def lent_agent(self, name, *arguments, preferences=""):
        """An agent that obeys its owner, and ignores the other work of this machine."""
        file = self.pool / "lend.toml"
        file.write_text(preferences + "[back_off]\ntolerated_percent = 100\nmemory_pressure_percent = 100\npatience_seconds = 86400\n")
        return self.agent(name, "--preferences", file, *arguments)

    def ask(self, *words, of="a"):
        asked = self.run_program("modelet-agent", *words, "--work-dir", self.pool / of, "--name", of, "--json")
        return json.loads(asked.stdout)


class Owner(OwnerTest):
    def stands_still(self):
        before = self.ask("--status")
        wait_until(lambda: self.ask("--status")["seconds"] > before["seconds"] + 2, "two heartbeats")
        return self.ask("--status")["step"] == before["step"]

    def test_a_run_waits_while_its_owner_wants_the_machine(self):
        self.lent_agent("a")
        run = self.submit(*ENDLESS)
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

    def test_steps_before_a_checkpoint_do_not_count(self):
        self.lent_agent("a")
        out = self.pool / "run"
        for number, arguments in ((1, ()), (2, ("--resume", out))):
            self.verb("submit", self.experiment, "--out", out, *arguments, "--set", f"train.epochs={2 * number}")
            wait_until(lambda: self.ask("--status")["run"] == 0, "it is free")
            status = self.ask("--status")
            self.assertEqual((status["runs"], status["steps"]), (number, 2 * number * STEPS_PER_EPOCH))

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

    def test_a_signal_is_obeyed_while_an_agent_leaves_for_its_owner(self):
        """The agent has left, but still waits for the answer to its last question about a notice."""
        asked = self.pool / "asked"
        agent = self.lent_agent("a", "--notice", f"command:touch {asked}; sleep 1.5; exit 1")
        asked.unlink(missing_ok=True)
        wait_until(asked.exists, "it asks")
        self.ask("drain")
        wait_until(lambda: "left the pool" in agent.stderr, lambda: f"it leaves: {agent}")
        agent.signal(15)
        self.assert_ends(agent, 0)

    def test_who_comes_back_offers_what_there_is_or_half(self):
        self.lent_agent("a", "--memory-mib", "50000000", "--leave-seconds", "5")  # more than any machine has
        self.assertEqual(self.nodes()["a"]["memory_bytes"], 50_000_000 * MEBI)
        self.ask("drain")
        wait_until(lambda: self.ask("--status")["state"] == "away", "it leaves the pool")
        self.ask("resume")
        wait_until(lambda: "a" in self.nodes(), "it comes back")
        self.assertEqual(self.nodes()["a"]["memory_bytes"], 25_000_000 * MEBI)

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

    def metadata(self, answer):
        metadata = Metadata(answer)
        self.addCleanup(metadata.close)
        return metadata.address

    def assert_goes(self, agent, run, reason):
        self.assert_ends(agent, 0)
        self.assertRegex(agent.stderr, f"this machine goes away in [0-9]+ s: {reason}")
        self.wait_for(run, lambda status: status["state"] in ("queued", "waiting"), "waits for another node")
        self.assertEqual(self.nodes(), {})

    def test_a_notice_of_aws(self):
        """Version 2 of the instance metadata: nothing is told without a token."""
        asked, goes = [], threading.Event()

        def answer(method, path, headers):
            asked.append((method, path))
            if (method, path) == ("PUT", "/latest/api/token"):
                return "a-token" if headers["X-aws-ec2-metadata-token-ttl-seconds"] else None
            if path != "/latest/meta-data/spot/instance-action" or headers["X-aws-ec2-metadata-token"] != "a-token" or not goes.is_set():
                return None
            end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=2)
            return json.dumps({"action": "terminate", "time": f"{end:%Y-%m-%dT%H:%M:%SZ}"})
        agent = self.lent_agent("a", "--notice", "aws", "--notice-address", self.metadata(answer))
        run = self.submit("--wait", *ENDLESS)
        self.wait_for_step(run, 5)
        wait_until(lambda: ("GET", "/latest/meta-data/spot/instance-action") in asked, "it has asked")
        self.assertTrue(agent.running(), "AWS has said that there is no notice")
        goes.set()
        self.assert_goes(agent, run, "AWS takes this spot machine: terminate")

    def test_a_notice_of_google(self):
        goes = threading.Event()

        def answer(_method, path, headers):
            if path != "/computeMetadata/v1/instance/preempted" or headers["Metadata-Flavor"] != "Google":
                return None
            return "TRUE" if goes.is_set() else "FALSE"
        agent = self.lent_agent("a", "--notice", "gcp", "--notice-address", self.metadata(answer))
        run = self.submit("--wait", *ENDLESS)
        self.wait_for_step(run, 5)
        goes.set()
        self.assert_goes(agent, run, "Google Cloud takes this spot machine")

    def test_a_notice_of_azure(self):
        events = {"Events": []}

        def answer(_method, path, headers):
            if headers["Metadata"] != "true":
                return None
            if path.startswith("/metadata/instance/compute/name?"):
                return "this-machine"
            return json.dumps(events) if path.startswith("/metadata/scheduledevents?") else None
        agent = self.lent_agent("a", "--notice", "azure", "--notice-address", self.metadata(answer))
        run = self.submit("--wait", *ENDLESS)
        self.wait_for_step(run, 5)
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=30)
        events["Events"] = [{"EventType": "Preempt", "Resources": ["this-machine"], "NotBefore": f"{end:%a, %d %b %Y %H:%M:%S GMT}"}]
        self.assert_goes(agent, run, "Azure takes this machine: Preempt")

    def test_what_is_wrong_is_said(self):
        self.assert_refused(1, "no agent listens here", "modelet-agent", "--status", "--work-dir", self.pool)
        self.assert_refused(2, "", "modelet-agent", "pause", "soon")
        self.assert_refused(2, "--status and 'pause' are two requests", "modelet-agent", "pause", "--status", "--work-dir", self.pool)
        file = self.pool / "wrong.toml"
        file.write_text("core = 1\n")
        self.assert_refused(2, [f"{file}:1", "did you mean 'cores'"], "modelet-agent", "--preferences", file, "--work-dir",
                            self.pool / "x", "--gflops", "1", "--memory-gbps", "1")
        agent = self.lent_agent("a", "--dedicated")
        self.assert_refused(1, "no agent listens here", "modelet-agent", "drain", "--work-dir", self.pool / "a", "--name", "a")
        agent.signal(15)
        self.assert_ends(agent, 0)


class OwnerOfOneNode(OwnerTest):
    """The run has other nodes as well. The scheduler keeps its snapshots."""
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state", "--dead-after-seconds", "20")  # no node is lost because this machine is busy

    def test_a_paused_agent_leaves_the_other_nodes_of_its_run_their_work(self):
        self.lent_agent("a")
        self.lent_agent("b")
        run = self.submit("--nodes", "2", *ENDLESS, "--set", "cluster.snapshot_every=1000000")  # only those that are needed are made
        self.wait_for_step(run, 5)
        wait_until(lambda: self.ask("--status", of="b")["state"] == "working", "it works")
        self.ask("pause", of="b")
        before = self.runs()[run]
        wait_until(lambda: self.ask("--status", of="b")["state"] == "away", "it leaves the pool")
        after = self.wait_for(run, lambda status: status["state"] == "running" and status["step"] > before["step"] + 5, "goes on")
        self.assertEqual((after["nodes"], after["recoveries"]), (["a"], 0))
        self.assertGreaterEqual(after["stable_step"], before["step"], "no step was lost")
        self.ask("resume", of="b")
        wait_until(lambda: "b" in self.nodes(), "it comes back")
        self.verb("stop", run)


if __name__ == "__main__":
    unittest.main()
