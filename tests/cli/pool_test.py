"""A pool by hand: scheduler and agents started separately, and the verbs submit, list, watch, stop, nodes."""
import json
import os
import re
import shutil
import signal
import socket
import tempfile
import unittest

from programs import ENDLESS, STEPS_PER_EPOCH, PoolTest, ProgramTest, finished, losses, newest_checkpoint, wait_until


class Pool(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--store", self.pool / "store")

    def test_the_verbs(self):
        self.agent("a")
        self.assertEqual(list(self.nodes()), ["a"])
        self.assert_refused(1, ["wants 2 nodes, the pool has 1", "--wait"], "modelet", "submit", self.experiment, "--nodes", "2",
                            "--scheduler", self.address)
        run = self.submit("--nodes", "2", "--wait", *ENDLESS)
        waiting = self.runs()[run]
        self.assertEqual((waiting["name"], waiting["state"], waiting["step"]), ("small", "queued", 0))
        self.assertIn("waits for 2 nodes", waiting["detail"])
        self.agent("b")  # joins later; now the run can start
        status = self.wait_for_step(run, 5)
        self.assertEqual((status["state"], status["nodes"]), ("running", ["a", "b"]))
        wait_until(lambda: all(node["run"] == run for node in self.nodes().values()), "both work for it")
        self.assert_documented(self.runs().values(), {"Run"})
        self.assert_documented(self.nodes().values(), {"Node"})

        watcher = self.start("modelet", "watch", str(run), "--scheduler", self.address, "--json")
        watcher.wait_for_step(20)
        watcher.signal(signal.SIGINT)  # stops watching only
        self.assert_ends(watcher, 130)
        self.assertIn("goes on", watcher.stderr)
        self.assertEqual(self.runs()[run]["state"], "running")

        (answer,) = self.verb("stop", run)
        self.assertIn(answer["state"], ("stopping", "stopped"))
        stopped = self.wait_for_end(run)
        self.assertEqual(stopped["state"], "stopped")
        out = self.pool / "run"
        self.verb("fetch", run, "--out", out)
        self.assertEqual(newest_checkpoint(out).name, f"step-{stopped['step']:010}")
        watched = self.modelet("watch", run, "--scheduler", self.address, "--json", code=130)
        self.assertEqual(watched.events()[-1]["event"], "interrupted", "the past of the run")

        # The run continues from there, and is watched to its end.
        epochs = stopped["step"] // STEPS_PER_EPOCH + 1
        submit = self.modelet("submit", self.experiment, "--out", out, "--resume", out, "--set", f"train.epochs={epochs}", "--json",
                              "--scheduler", self.address)
        self.assertEqual(newest_checkpoint(out).name, f"step-{epochs * STEPS_PER_EPOCH:010}")
        self.assertEqual(finished(submit)["steps"], epochs * STEPS_PER_EPOCH)
        # Nothing is left to do, and the model is there all the same.
        again = self.modelet("submit", self.experiment, "--out", self.pool / "again", "--resume", out, "--set", f"train.epochs={epochs}",
                             "--json", "--scheduler", self.address)
        self.assertEqual(finished(again)["steps"], epochs * STEPS_PER_EPOCH)
        self.assertEqual(newest_checkpoint(self.pool / "again").name, newest_checkpoint(out).name)
        self.assertEqual([run["state"] for run in self.runs().values()], ["stopped", "finished", "finished"])
        for verb, texts in [(["list"], ["small", "stopped", "finished"]), (["nodes"], ["GFLOP/s", "free", " a ", " b "]),
                            (["stop", run], [f"run {run} stopped"])]:
            shown = self.modelet(*verb, "--scheduler", self.address).stdout
            for text in texts:
                self.assertIn(text.strip(), shown)
        self.assert_refused(1, "no run 77", "modelet", "watch", "77", "--scheduler", self.address)
        self.assert_refused(1, "no run 77", "modelet", "stop", "77", "--scheduler", self.address)

    def restart_scheduler(self, *arguments):
        self.scheduler.signal(signal.SIGTERM)
        self.scheduler.end()
        self.scheduler = self.start("modelet-scheduler", "--listen", self.address, *self.scheduler_arguments, *arguments)
        wait_until(lambda: "listening" in self.scheduler.stderr, "scheduler started")

    def paced_agent(self, name, paces, gflops, *arguments):
        """An agent that trains for real and reports made-up times: `paces` seconds for each modelet of a node, for every node."""
        before = len(self.present_nodes())
        agent = self.start(os.environ["MODELET_PACED_AGENT"], "--scheduler", self.address, "--name", name, "--gflops", gflops, "--memory-gbps",
                           gflops / 2, "--work-dir", self.pool / name, "--pace", json.dumps(paces), *arguments)
        wait_until(lambda: len(self.present_nodes()) > before, lambda: f"agent registers: {agent}")

    def test_a_node_slower_than_it_says(self):
        """b promises three times what it can do, and gets so many modelets until this shows. The losses are those of one node."""
        # Once Adam has converged, it makes differences of 1e-8 grow to 1e-3, whether modelets move or not. Plain gradient descent
        # does not.
        settings = [word for key in ("train.epochs=10", "train.evaluate_every=0", "train.log_every=10", "model.hidden=[256]",
                                     "exchange.codec=none", "optimizer.kind=sgd", "train.learning_rate=0.1")
                    for word in ("--set", key)]
        self.restart_scheduler("--replan-after-seconds", "0")  # a few reports are enough
        paces = {"a": 0.01, "b": 0.01}
        for name, gflops in [("a", 10), ("b", 30)]:
            self.paced_agent(name, paces, gflops, "--hold-after", "3")
        run = self.modelet("submit", self.experiment, "--out", self.pool / "run", "--json", "--scheduler", self.address, *settings)
        replanned = run.events("replanned")
        self.assert_documented(replanned, {"replanned"})
        self.assertEqual(replanned[0]["node"], "b")
        self.assertGreater(replanned[0]["slower"], 1.15)
        self.assertGreater(replanned[0]["moved_modelets"], 0)
        self.assertEqual([event["step"] for event in run.events("started")], [0] + [event["step"] for event in replanned])
        self.assertEqual(run.events("interrupted"), [])
        journal = [json.loads(line)["event"] for line in (self.pool / "run/log.jsonl").read_text().splitlines()]
        self.assertEqual((journal[0], journal.count("started"), journal[-1]), ("started", 1 + len(replanned), "finished"))
        self.assertIn("learning_rate = 0.1", (self.pool / "run/experiment.toml").read_text())
        (status,) = self.runs().values()
        self.assertEqual((status["state"], status["replans"]), ("finished", len(replanned)))

        # An event has the mean over its steps. Steps before a new start are missing from it.
        incomplete = {10 * (event["step"] // 10 + 1) for event in replanned}
        alone = losses(self.train("alone", *settings))
        together = losses(run)
        self.assertEqual(set(together), set(alone))
        for step in set(alone) - incomplete:
            self.assertAlmostEqual(together[step] / alone[step], 1, delta=1e-4, msg=f"step {step}")

    def test_a_node_alone_that_is_not_what_it_says(self):
        """b promises far more than it can do and gets everything until this shows. Then a, which promises less, helps or takes over."""
        self.restart_scheduler("--replan-after-seconds", "0")
        paces = {"a": 0.001, "b": 0.1}
        self.paced_agent("a", paces, gflops=1)
        self.paced_agent("b", paces, gflops=1000)
        run = self.submit(*ENDLESS, "--set", "model.hidden=[256]")
        self.wait_for(run, lambda status: status["replans"] > 0 and status["state"] == "running" and "a" in status["nodes"], "gets help")
        log = self.scheduler.stderr  # the list of runs may come too late to show the first placement
        prepared = re.findall(r"run \d+: node '(.)' is ready", log)
        self.assertEqual(prepared[0], "b")
        self.assertRegex(log, r"node 'b' takes .* slower than planned")
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")

    def test_an_agent_that_leaves_saves_the_run(self):
        leaver = self.agent("a")
        self.agent("b")
        run = self.submit(*ENDLESS)
        self.wait_for_step(run, 5)
        leaver.signal(signal.SIGTERM)
        self.assert_ends(leaver, 0)
        wait_until(lambda: self.runs()[run]["nodes"] == ["b"], lambda: f"b goes on alone: {self.runs()[run]}")
        self.wait_for_step(run, self.runs()[run]["step"] + 5)
        self.assertEqual(self.runs()[run]["recoveries"], 0)
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        wait_until(lambda: [node["run"] for node in self.nodes().values()] == [0], "the other one is free")
        out = self.pool / "run"
        self.verb("fetch", run, "--out", out)
        step = int(newest_checkpoint(out).name.removeprefix("step-"))
        self.assertGreaterEqual(step, 5)
        self.assert_finishes(self.submit("--resume", out, "--set", f"train.epochs={step // STEPS_PER_EPOCH + 1}"))

    def test_a_dead_agent(self):
        victim = self.agent("a")
        self.agent("b")
        run = self.submit(*ENDLESS)
        self.wait_for_step(run, 5)
        victim.signal(signal.SIGKILL)
        wait_until(lambda: {name: node["run"] for name, node in self.nodes().items()} == {"a": 0, "b": run} and self.nodes()["a"]["state"] == "lost" and self.runs()[run]["state"] == "running",
                   lambda: f"b goes on alone: {self.runs()[run]}")
        self.assertEqual(self.runs()[run]["recoveries"], 1)
        self.wait_for_step(run, self.runs()[run]["step"] + 5)
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        wait_until(lambda: {name: node["run"] for name, node in self.nodes().items()} == {"a": 0, "b": 0}, "b is free")

    def test_two_runs_at_once(self):
        for name in "abcd":
            self.agent(name)
        first = self.submit("--nodes", "2", "--name", "first", *ENDLESS)
        second = self.submit("--nodes", "2", "--name", "second", *ENDLESS)
        self.wait_for_step(first, 5)
        self.wait_for_step(second, 5)
        runs = self.runs()
        self.assertEqual([runs[first]["state"], runs[second]["state"]], ["running", "running"])
        self.assertEqual(sorted(runs[first]["nodes"] + runs[second]["nodes"]), list("abcd"))
        third = self.submit("--nodes", "3", "--set", "train.epochs=1")
        self.assertIn("waits for 3 nodes", self.runs()[third]["detail"])
        self.verb("stop", first)
        self.verb("stop", second)
        self.assertEqual(self.wait_for_end(third)["state"], "finished")
        self.assertEqual([self.runs()[run]["state"] for run in (first, second)], ["stopped", "stopped"])

    def test_agents_outlive_the_scheduler(self):
        agent = self.agent("a")
        run = self.submit(*ENDLESS)
        self.wait_for_step(run, 5)
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        wait_until(lambda: f"nobody answers at {self.address}" in agent.stderr, lambda: f"the agent says that it waits: {agent}")
        self.scheduler = self.start("modelet-scheduler", "--listen", self.address)
        wait_until(lambda: list(self.nodes()) == ["a"], "the agent is back")
        # A scheduler without --state is another pool, which does not know the run.
        wait_until(lambda: "the scheduler has lost this run" in agent.stderr, lambda: f"the run ends: {agent}")
        again = self.submit("--set", "train.epochs=1")
        self.assert_finishes(again)

    def test_folders_of_runs(self):
        """Each run has a folder of its own, although a new scheduler numbers runs from 1 again. A resumed run has its own, too."""
        work = self.pool / "a/runs"

        def submit(epochs, *arguments):
            self.assert_finishes(self.submit("--set", f"train.epochs={epochs}", *arguments))
            return {folder for folder in work.iterdir() if (folder / "checkpoints").exists()}
        self.agent("a")
        first = submit(1)
        self.scheduler.signal(signal.SIGTERM)
        self.assert_ends(self.scheduler, 0)
        self.scheduler = self.start("modelet-scheduler", "--listen", self.address, *self.scheduler_arguments)
        wait_until(lambda: list(self.nodes()) == ["a"], "the agent is back")
        both = submit(1)
        self.assertEqual((len(first), len(both)), (1, 2))
        (run,) = first
        (resumed,) = submit(2, "--resume", run) - both
        self.assertEqual(newest_checkpoint(resumed).name, f"step-{2 * STEPS_PER_EPOCH:010}")

    def test_names_are_unique(self):
        first = self.agent("a")
        run = self.submit(*ENDLESS)
        self.wait_for_step(run, 5)
        second = self.start("modelet-agent", "--config", self.pool / "a.toml")
        self.assert_ends(second, 1)
        self.assertIn("an agent named 'a' is at work already", second.stderr)
        self.assertTrue(first.running())
        self.assertEqual(self.runs()[run]["state"], "running")
        # A killed agent can be replaced at once, because its connection ended with it.
        first.signal(signal.SIGKILL)
        first.end()
        self.start("modelet-agent", "--config", self.pool / "a.toml")
        self.wait_for(run, lambda status: (status["state"], status["recoveries"]) == ("running", 1), "goes on with the new one")
        self.verb("stop", run)
        self.assertEqual(self.wait_for_end(run)["state"], "stopped")
        wait_until(lambda: [node["run"] for node in self.nodes().values()] == [0], "the new one is in")


class PoolWithoutStore(PoolTest):
    """The nodes read the data at its path, and keep the files of runs among themselves."""

    def test_files_are_neither_sent_nor_fetched(self):
        self.train("trained", "--set", "train.epochs=1")
        for arguments in (("--out", self.pool / "run"), ("--resume", self.folder / "trained")):
            self.assert_refused(2, [f"{arguments[0]}: this scheduler keeps no files", "--state or --store"], "modelet", "submit", self.experiment,
                                *arguments, "--scheduler", self.address)
        self.assertEqual(self.runs(), {})

    def test_agents_outlive_a_failing_run(self):
        agents = [self.agent("a"), self.agent("b")]
        blocked = [self.pool / name / "runs" for name in "ab"]
        for file in blocked:
            file.write_text("a file where the run's folder should be")
        run = self.submit("--set", "train.epochs=1")
        status = self.wait_for_end(run)
        self.assertEqual(status["state"], "failed")
        self.assertRegex(status["detail"], r"node '[ab]' failed at step \d+: .*making the run's folder")
        for file in blocked:
            file.unlink()
        vanishing = self.folder / "data/vanishing.txt"
        vanishing.write_bytes((self.folder / "data/train.txt").read_bytes())
        queued = self.submit("--nodes", "3", "--wait", "--set", f"data.train={vanishing}")
        vanishing.unlink()
        self.agent("c")
        status = self.wait_for_end(queued)
        self.assertEqual(status["state"], "failed")
        self.assertIn("vanishing.txt", status["detail"])
        again = self.submit("--set", "train.epochs=1", "--nodes", "2")
        self.assert_finishes(again)
        for agent in agents:
            self.assertTrue(agent.running())

    def test_runs_use_only_what_the_agents_owner_allows(self):
        """The agent refuses data elsewhere, and is free again."""
        self.agent("a")
        with tempfile.TemporaryDirectory(prefix="modelet-cli-elsewhere-") as elsewhere:
            shutil.copy(self.folder / "data/train.txt", elsewhere)
            run = self.submit("--set", f"data.train={elsewhere}/train.txt")
            status = self.wait_for_end(run)
            self.assertEqual(status["state"], "failed")
            self.assertIn(f"data.train '{elsewhere}/train.txt'", status["detail"])
            self.assertIn("--data-root", status["detail"])
        self.assert_finishes(self.submit())


class Refusals(ProgramTest):
    def test_without_keys_only_if_asked_for(self):
        """This holds on loopback too, because every user of the machine can reach it."""
        for address in ("tcp://0.0.0.0:*", "tcp://127.0.0.1:*"):
            config = self.folder / "open.toml"
            config.write_text(f'listen = "{address}"\n')
            for arguments in (["--listen", address], ["--config", config]):
                self.assert_refused(2, [address, "--insecure"], "modelet-scheduler", *arguments)
        for address in ("tcp://192.0.2.7:5570", "tcp://127.0.0.1:5570"):
            self.assert_refused(2, [address, "--insecure"], "modelet-agent", "--scheduler", address, "--gflops", "1", "--memory-gbps", "1")
            for verb in (["list"], ["nodes"], ["watch", "1"], ["stop", "1"], ["submit", self.experiment]):
                self.assert_refused(2, [address, "--insecure"], "modelet", *verb, "--scheduler", address)

    def test_wrong_addresses(self):
        for wrong, why in (("127.0.0.1:5570", "tcp://"), ("tcp://127.0.0.1:99999", "65535"), ("tcp://127.0.0.1", "port"),
                           ("tcp://::1:5570", "brackets")):
            self.assert_refused(2, [f"'{wrong}'", why], "modelet-scheduler", "--listen", wrong)
            self.assert_refused(2, [f"'{wrong}'", why], "modelet", "list", "--scheduler", wrong)
        self.assert_refused(2, ["tcp://no-such-device:*", "of this machine"], "modelet-scheduler", "--insecure", "--listen", "tcp://no-such-device:*")
        self.assert_refused(2, ["192.0.2.7", "of this machine"], "modelet-agent", "--data-address", "192.0.2.7", "--insecure",
                            "--gflops", "1", "--memory-gbps", "1")

    def test_an_agent_waits_until_the_scheduler_has_an_address(self):
        """The network, or its names, may come up later than the agent."""
        for address in ("tcp://office-17.invalid:5570", "tcp://255.255.255.255:5570"):
            agent = self.start("modelet-agent", "--scheduler", address, "--insecure", "--gflops", "1", "--memory-gbps", "1", "--work-dir", self.folder / "w")
            wait_until(lambda: "keeps trying" in agent.stderr or not agent.running(), "it says so")
            self.assertIn(f"no way from this machine to {address}", agent.stderr)
            agent.signal(15)
            self.assert_ends(agent, 0)

    def test_a_working_folder_that_cannot_be(self):
        for wrong in (self.experiment, self.experiment / "below-a-file"):
            self.assert_refused(2, [str(wrong), "--work-dir"], "modelet-agent", "--insecure", "--work-dir", wrong, "--gflops", "1", "--memory-gbps", "1")

    def test_a_working_folder_by_default(self):
        """That of a systemd unit, or one among the states of this user's programs, by the agent's name."""
        home, state, unit = (self.folder / name for name in ("home", "state", "unit"))
        given = ((home / ".local/state/modelet/idle", {"HOME": home}), (state / "modelet/idle", {"HOME": home, "XDG_STATE_HOME": state}),
                 (unit, {"HOME": home, "XDG_STATE_HOME": state, "STATE_DIRECTORY": f"{unit}:{state}"}))
        agent = ("modelet-agent", "--insecure", "--scheduler", "tcp://127.0.0.1:1", "--name", "idle", "--gflops", "1", "--memory-gbps", "1")
        outer = {key: value for key, value in self.environment.items() if key not in ("HOME", "XDG_STATE_HOME", "STATE_DIRECTORY")}
        for folder, variables in given:
            self.environment = {**outer, **{key: str(value) for key, value in variables.items()}}
            started = self.start(*agent)
            wait_until(folder.is_dir, lambda: f"{folder} is made: {started}")
            self.assertEqual(folder.stat().st_mode & 0o077, 0)
            started.signal(signal.SIGTERM)
            self.assertIn(started.end(), (0, -signal.SIGTERM))
        self.environment = outer
        self.assert_refused(2, ["--work-dir", "HOME"], *agent)

    def test_configuration(self):
        config = self.folder / "agent.toml"
        config.write_text('# comment\nscheduller = "tcp://127.0.0.1:1"\n')
        self.assert_refused(2, [f"{config}:2", "did you mean 'scheduler'"], "modelet-agent", "--config", config)
        config.write_text("cores = -3\n")
        self.assert_refused(2, [f"{config}:1", "cores"], "modelet-agent", "--config", config)
        self.assert_refused(2, "missing.toml", "modelet-scheduler", "--config", "missing.toml")

    def test_address_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            self.assert_refused(1, [address, "in use"], "modelet-scheduler", "--insecure", "--listen", address)
            # Something that is not a scheduler.
            self.assert_refused(1, address, "modelet", "list", "--insecure", "--scheduler", address)

    def test_submission(self):
        """If the scheduler refuses a submission, the user is told why before any node works on it."""
        endpoint = self.folder / "endpoint"
        self.start("modelet-scheduler", "--insecure", "--listen", "tcp://127.0.0.1:*", "--endpoint-file", endpoint)
        wait_until(endpoint.exists, "scheduler started")
        address = endpoint.read_text().strip()

        def submit(*arguments, code, texts):
            self.assert_refused(code, texts, "modelet", "submit", self.experiment, *arguments, "--insecure", "--scheduler", address)
        submit("--name", "../up", code=1, texts=["refuses", "letters"])
        submit(code=1, texts=["wants 1 node, the pool has 0", "--wait"])
        submit("--set", "modelets.hidden_columns=16", "--set", "model.hidden=[65536, 65536, 65536, 65536, 65536]", code=1,
               texts=["modelets, more than the limit of"])
        self.train("taken", "--set", "train.epochs=1")
        submit("--out", self.folder / "taken", code=2, texts=["taken", "holds a run already", "--resume"])
        submit("--resume", self.folder / "nowhere", code=2, texts=["nowhere", "no such folder"])
        submit("--resume", self.folder / "data", code=2, texts=["no complete checkpoint here"])


if __name__ == "__main__":
    unittest.main()
