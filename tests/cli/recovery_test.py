"""Runs that outlive their nodes and their scheduler: in a pool with keys."""
import os
import shutil
import signal
import socket
import time
import unittest

from programs import ENDED, ProgramTest, checkpoint_files, newest_checkpoint, wait_until

# Deterministic, because no codec rounds and speeds are declared (agent()). Long enough to be disturbed.
STEPS = ("--set", "train.epochs=40", "--set", "train.evaluate_every=0", "--set", "cluster.snapshot_every=20", "--set", "exchange.codec=none",
         "--set", "exchange.gradient_codec=none", "--set", "exchange.timeout_seconds=60")

# Five times as many steps: what is done to such a run happens before its end on a busy machine too.
LONG = ("--set", "train.epochs=200")


class RecoveryTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.pool = self.folder / self._testMethodName
        self.pool.mkdir()
        self.public = {name: self.modelet("keygen", self.pool / f"{name}.key").stdout.strip() for name in ("scheduler", "agent", "user", "admin")}
        (self.pool / "allowed").write_text(f"agent {self.public['agent']} office\nuser {self.public['user']} alice\nadmin {self.public['admin']} root\n")
        self.endpoint, self.state = self.pool / "endpoint", self.pool / "state"
        with socket.create_server(("127.0.0.1", 0)) as free:  # for the store; the same port after a restart
            self.data_port = free.getsockname()[1]
        self.start_scheduler("tcp://127.0.0.1:*")
        self.agents = {}

    def start_scheduler(self, listen, heartbeat=0.2, dead_after=5):
        self.endpoint.unlink(missing_ok=True)
        config = self.pool / "scheduler.toml"
        config.write_text(f'listen = "{listen}"\nendpoint_file = "{self.endpoint}"\nheartbeat_seconds = {heartbeat}\ndead_after_seconds = {dead_after}\n'
                          f'state = "{self.state}"\ndata_port = {self.data_port}\nkey = "{self.pool / "scheduler.key"}"\nallow_list = "{self.pool / "allowed"}"\n')
        self.scheduler = self.start("modelet-scheduler", "--config", config)
        wait_until(self.endpoint.exists, lambda: f"scheduler started: {self.scheduler}")
        self.address = self.endpoint.read_text().strip()

    def own(self, key):
        return ("--scheduler", self.address, "--key", self.pool / f"{key}.key", "--scheduler-key", self.public["scheduler"])

    def agent(self, name, *more):
        self.agents[name] = self.start("modelet-agent", *self.own("agent"), "--name", name, "--cores", "1", "--memory-mib", "1000", "--gflops", "10",
                                       "--memory-gbps", "5", "--work-dir", self.pool / name, "--data-root", self.folder,
                                       "--leave-seconds", "100", *more)
        wait_until(lambda: name in self.nodes(), lambda: f"agent registers: {self.agents[name]}")

    def verb(self, *arguments):
        return self.modelet(*arguments, *self.own("user"), "--json").events()

    def nodes(self):
        return {node["name"]: node for node in self.verb("nodes")}

    def submit(self, nodes, *more):
        answers = self.verb("submit", self.experiment, "--nodes", str(nodes), *STEPS, *more)
        return next(answer["run"] for answer in answers if answer["event"] == "submitted")

    def status(self, run):
        return {status["run"]: status for status in self.verb("list")}[run]

    def wait_for_step(self, run, step):
        wait_until(lambda: self.status(run)["step"] >= step, lambda: f"run {run} does step {step}: {self.status(run)}\n{self.logs()}")

    def logs(self):
        return "\n".join(f"--- {program}" for program in (self.scheduler, *self.agents.values()))

    def members(self, run):
        return sorted(name for name, node in self.nodes().items() if node["run"] == run)

    def assert_finishes(self, run):
        wait_until(lambda: self.status(run)["state"] in ENDED, lambda: f"run {run} ends: {self.status(run)}\n{self.logs()}")
        self.assertEqual(self.status(run)["state"], "finished", self.logs())

    def final_files(self, run):
        """{name: bytes} of the files of modelets after the last step, which are on the nodes."""
        files = {}
        for name in self.agents:
            for folder in (self.pool / name / "runs").glob(f"*-{run}"):
                last = newest_checkpoint(folder)
                if last.name == f"step-{40 * 25:010}":
                    files.update(checkpoint_files(last))
        return files

    def begin(self, nodes, *more):
        """Returns a run that has done 100 steps, and the names of its nodes, which a slow machine might say only after the run's end."""
        run = self.submit(nodes, *more)
        members = []

        def has_its_nodes():
            members[:] = self.members(run)  # asked once, because the run may end before a second answer
            return len(members) == nodes

        wait_until(has_its_nodes, lambda: f"has its nodes: {self.status(run)}\n{self.logs()}")
        self.wait_for_step(run, 100)
        return run, members

    def kill(self, name):
        os.kill(self.agents[name].pid, signal.SIGKILL)

    def test_a_spare_takes_the_place_of_a_lost_node_and_learns_the_same(self):
        for name in ("a", "b"):
            self.agent(name)
        undisturbed = self.submit(2)
        self.assert_finishes(undisturbed)
        self.agent("c")
        run, members = self.begin(2)
        self.kill(members[0])
        self.assert_finishes(run)
        self.assertEqual(self.final_files(run), self.final_files(undisturbed))

    def test_a_run_goes_on_with_the_nodes_that_are_left(self):
        for name in ("a", "b", "c"):
            self.agent(name)
        run = self.submit(3, *LONG)
        self.wait_for_step(run, 100)
        self.kill("b")
        self.assert_finishes(run)
        self.assertEqual(self.status(run)["recoveries"], 1)

    def test_two_nodes_are_lost_at_once(self):
        for name in ("a", "b", "c", "d"):
            self.agent(name)
        run, _ = self.begin(4, "--set", "train.epochs=100000")
        lost = self.status(run)["nodes"][:2]  # neighbours, whose files are with the others
        for name in lost:
            self.kill(name)
        wait_until(lambda: len(self.members(run)) == 2 and not set(lost) & set(self.members(run)),
                   lambda: f"goes on without {lost}: {self.status(run)}\n{self.logs()}")
        stable = self.status(run)["stable_step"]
        wait_until(lambda: self.status(run)["stable_step"] > stable, lambda: f"gets on: {self.status(run)}\n{self.logs()}")
        self.assertGreaterEqual(self.status(run)["recoveries"], 1)
        self.verb("stop", run)
        wait_until(lambda: self.status(run)["state"] == "stopped", lambda: f"it stops: {self.status(run)}\n{self.logs()}")

    def assert_costs_no_step(self, leave, *more):
        """`leave(name)` makes a member leave its run, for which a spare node is there."""
        for name in ("a", "b", "c"):
            self.agent(name, *(word.format(self.pool / name) for word in more))
        run, (leaves, _) = self.begin(2, "--set", "train.epochs=100000")
        watcher = self.start("modelet", "watch", run, *self.own("user"), "--json")
        wait_until(watcher.events, lambda: f"watches: {watcher}")
        leave(leaves)
        wait_until(lambda: watcher.events("regrouped"), lambda: f"goes on without {leaves}: {self.status(run)}\n{self.logs()}")
        events = watcher.events()
        (regrouped,) = [i for i, event in enumerate(events) if event["event"] == "regrouped"]
        self.wait_for_step(run, events[regrouped]["step"] + 20)
        self.verb("stop", run)
        watcher.end()
        self.assertEqual(self.status(run)["state"], "stopped", self.logs())
        before = [event["step"] for event in events[:regrouped] if event["event"] == "progress"]
        self.assertEqual(events[regrouped]["step"], before[-1])
        self.assertNotIn(leaves, events[regrouped]["nodes"])
        self.assertEqual(self.status(run)["recoveries"], 0)
        return leaves

    def assert_has_left(self, name):
        self.assertEqual(self.agents[name].end(), 0, str(self.agents[name]))
        self.assertNotIn(name, self.nodes())

    def test_an_agent_that_is_asked_to_leave_costs_no_step(self):
        self.assert_has_left(self.assert_costs_no_step(lambda name: self.agents[name].signal(signal.SIGTERM)))

    def test_a_machine_that_is_about_to_go_away_costs_no_step(self):
        def give_notice(name):
            (self.pool / "notice").write_text("100")
            (self.pool / "notice").rename(self.pool / f"{name}.notice")  # with its content at once

        self.assert_has_left(self.assert_costs_no_step(give_notice, "--notice", "file:{}.notice"))

    def test_a_drained_node_costs_no_step(self):
        drained = self.assert_costs_no_step(lambda name: self.modelet("drain", name, *self.own("admin")))
        self.assertEqual((self.nodes()[drained]["run"], self.agents[drained].running()), (0, True))

    def test_a_run_is_there_to_be_fetched_as_soon_as_it_has_finished(self):
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        self.start_scheduler(self.address, heartbeat=2)  # it looks for silent agents once a second
        self.agent("a")
        run = self.submit(1)
        watcher = self.start("modelet", "watch", run, *self.own("user"), "--json")
        self.assertEqual(watcher.end(), 0, str(watcher))
        fetched = self.verb("fetch", run, "--out", self.pool / "fetched")
        self.assertEqual(fetched[-1]["checkpoint"], str(newest_checkpoint(self.pool / "fetched")))

    def test_a_node_that_sleeps_does_no_harm(self):
        for name in ("a", "b", "c"):
            self.agent(name)
        run, (sleeps, _) = self.begin(2)
        self.agents[sleeps].signal(signal.SIGSTOP)
        wait_until(lambda: sleeps not in self.members(run), lambda: f"goes on without it: {self.status(run)}\n{self.logs()}")
        self.agents[sleeps].signal(signal.SIGCONT)
        self.assert_finishes(run)
        wait_until(lambda: sleeps in self.nodes(), "it is back")

    def test_a_node_that_sleeps_for_a_moment_is_found_again(self):
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        self.start_scheduler(self.address, dead_after=300)
        for name in ("a", "b"):
            self.agent(name)
        for _ in range(12):
            run, sleeper, seconds = self.sleep_until_missed()
            self.assert_finishes(run)
            if self.status(run)["recoveries"] == 0:
                self.assertIn(f"run {run}: node '{sleeper}' is not missed any more", self.scheduler.stderr)
                return
            # A node that sleeps for longer than 4 s may lose its connection to the scheduler. Where the whole machine stood still, it did.
            self.assertGreater(seconds, 4, self.logs())
        self.fail(f"this machine stands still for seconds again and again:\n{self.logs()}")

    def sleep_until_missed(self):
        """A node of a run sleeps until the other one misses it. Returns the run, the node, and the seconds until it was found, or lost."""
        run, (sleeper, other) = self.begin(2)
        began = time.monotonic()
        self.agents[sleeper].signal(signal.SIGSTOP)
        wait_until(lambda: f"run {run}: node '{other}' misses node '{sleeper}'" in self.scheduler.stderr, lambda: f"it is missed:\n{self.logs()}")
        self.agents[sleeper].signal(signal.SIGCONT)
        wait_until(lambda: f"run {run}: node '{sleeper}' is not missed any more" in self.scheduler.stderr or self.status(run)["recoveries"] > 0,
                   lambda: f"it is found:\n{self.logs()}")
        return run, sleeper, time.monotonic() - began

    def test_agents_find_a_store_that_has_moved(self):
        self.data_port = 0
        for _ in range(2):  # the second scheduler has another port than the first was configured with
            self.scheduler.signal(signal.SIGKILL)
            self.scheduler.end()
            self.start_scheduler(self.address)
        self.agent("a")
        run = self.submit(1, "--set", "train.epochs=100000")
        self.wait_for_step(run, 50)
        stable = self.status(run)["stable_step"]
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        port = int((self.pool / "state/data_port").read_text())
        with socket.create_server(("127.0.0.1", port)):
            self.start_scheduler(self.address)
        self.assertNotEqual(int((self.pool / "state/data_port").read_text()), port)
        wait_until(lambda: self.status(run)["stable_step"] > stable + 20, lambda: f"snapshots get there: {self.status(run)}\n{self.logs()}")
        self.verb("stop", run)
        wait_until(lambda: self.status(run)["state"] == "stopped", lambda: f"it stops: {self.status(run)}\n{self.logs()}")

    def test_a_scheduler_that_is_killed_and_started_again_takes_the_run_over(self):
        for name in ("a", "b"):
            self.agent(name)
        run = self.submit(2)
        self.wait_for_step(run, 100)
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        self.start_scheduler(self.address)
        self.assert_finishes(run)
        for agent in self.agents.values():
            self.assertNotIn("aborted", agent.stderr)

    def test_a_scheduler_goes_on_elsewhere_with_nothing_but_its_ledger(self):
        for name in ("a", "b"):
            self.agent(name)
        run, _ = self.begin(2)
        queued = self.submit(2)
        self.scheduler.signal(signal.SIGKILL)
        self.scheduler.end()
        self.state = self.pool / "elsewhere"
        self.state.mkdir(mode=0o700)
        for file in (self.pool / "state").glob("ledger.sqlite*"):
            shutil.copy(file, self.state)
        self.start_scheduler(self.address)
        self.assertEqual(self.status(queued)["state"], "queued")
        self.assert_finishes(run)
        self.assertEqual(self.status(run)["recoveries"], 0)
        self.verb("fetch", run, "--out", self.pool / "fetched")
        self.verb("stop", queued)
        self.assertGreater(self.submit(1), queued)


if __name__ == "__main__":
    unittest.main()
