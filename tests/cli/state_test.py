"""A scheduler with --state: its knowledge is in a folder that no other scheduler may use."""
import json
import os
import signal
import socket
import time
import unittest

from programs import ENDLESS, STEPS_PER_EPOCH, TIME, PoolTest, wait_until


class StatePool(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state")

    def start_again(self):
        """Kills the scheduler, and starts it again with what it has written down."""
        self.scheduler.kill_all()
        self.scheduler = self.start("modelet-scheduler", "--config", self.pool / "scheduler.toml", "--listen", self.address, *self.scheduler_arguments)
        wait_until(lambda: "listening" in self.scheduler.stderr, lambda: f"it starts: {self.scheduler}")


class Folder(StatePool):
    def assert_state_refused(self, code, texts, state, *arguments):
        self.assert_refused(code, [str(state), *texts], "modelet-scheduler", "--listen", "tcp://127.0.0.1:*", "--state", state, *arguments)

    def test_is_made_for_its_owner_with_a_store(self):
        state = self.pool / "state"
        wait_until((state / "store").is_dir, "the store is made")
        for path in (state, state / "ledger.sqlite", state / "store"):
            self.assertEqual(path.stat().st_mode & 0o77, 0, path)

    def test_has_one_scheduler_at_a_time(self):
        self.assert_state_refused(1, ["ledger.sqlite: another process uses it"], self.pool / "state")
        self.start_again()

    def test_has_the_port_for_data_where_it_was_if_it_can(self):
        port = int(wait_until(lambda: (self.pool / "state/data_port").exists() and (self.pool / "state/data_port").read_text(), "it is written"))
        self.start_again()
        self.assertEqual(int((self.pool / "state/data_port").read_text()), port)
        self.scheduler.kill_all()
        with socket.create_server(("127.0.0.1", port)):
            self.start_again()
            self.assertIn("another port for data", self.scheduler.stderr)
            self.assertNotEqual(int((self.pool / "state/data_port").read_text()), port)

    def test_is_refused_if_it_cannot_be_used(self):
        for mode in (0o750, 0o705):
            open_folder = self.pool / f"open-{mode:o}"
            open_folder.mkdir()
            open_folder.chmod(mode)
            self.assert_state_refused(2, ["others may enter", "chmod 700"], open_folder)
            self.assertEqual(list(open_folder.iterdir()), [])
        (self.pool / "file").write_text("")
        self.assert_state_refused(1, ["(making the folder of --state)"], self.pool / "file")
        damaged = self.pool / "damaged"
        damaged.mkdir(mode=0o700)
        (damaged / "ledger.sqlite").write_text("x" * 10000)
        self.assert_state_refused(1, ["ledger.sqlite: is damaged", "move it away"], damaged)


class Runs(StatePool):
    def test_that_wait_are_not_forgotten(self):
        first = self.submit("--wait")
        before = self.runs()
        self.start_again()
        after = self.runs()
        self.assertEqual({run: status["name"] for run, status in after.items()}, {first: "small"})
        for field in ("state", "submitted", "submitter"):
            self.assertEqual(after[first][field], before[first][field])
        self.assertRegex(after[first]["submitted"], TIME)
        self.assertEqual(self.submit("--wait"), first + 1)
        self.agent("a")
        for run in (first, first + 1):
            self.assert_finishes(run)
        self.start_again()
        self.assertEqual([status["state"] for status in self.runs().values()], ["finished"] * 2)

    def test_have_logs_of_their_nodes_and_of_all_events(self):
        epochs = 600  # so many that it is not over before a node is killed, also where every program starts slowly
        self.agent("a")
        b = self.agent("b")
        run = self.submit("--nodes", "2", "--set", f"train.epochs={epochs}", "--set", "exchange.timeout_seconds=60")
        self.wait_for_step(run, 20)
        def log(*arguments):
            return self.modelet("logs", run, *arguments, "--scheduler", self.address).stdout.splitlines()
        for node in ("a", "b"):
            wait_until(lambda: self.start("modelet", "logs", run, node, "--scheduler", self.address).end() == 0, "its log arrives")
        b.kill_all()
        self.start_again()
        status = self.wait_for_end(run)
        self.assertEqual(status["state"], "finished", "on the other node, from the newest snapshot")
        for node in ("a", "b"):
            self.assertRegex(log(node)[0], rf"^\d{{4}}-\d\d-\d\dT\S+Z info run {run} 'small', epoch 1: rank \d of 2")
        self.assert_refused(1, ["'c' has logged nothing", "a, b"], "modelet", "logs", run, "c", "--scheduler", self.address)
        steps = [event["step"] for event in map(json.loads, log()) if event["event"] == "progress"]
        self.assertEqual(sorted(set(steps)), list(range(1, epochs * STEPS_PER_EPOCH + 1)), "none is missing")
        self.assertEqual(sum(after <= before for before, after in zip(steps, steps[1:])), 1, "only the loss makes it repeat some")

    def follow(self, run, **streams):
        return self.start("modelet", "logs", run, "--follow", "--scheduler", self.address, **streams)

    def test_are_followed_while_the_scheduler_is_away(self):
        self.agent("a")
        run = self.submit(*ENDLESS)
        follower = self.follow(run)
        follower.wait_for_step(5)
        self.scheduler.kill_all()
        time.sleep(12)  # longer than a client waits for an ordinary answer
        self.start_again()
        before = follower.events("progress")[-1]["step"]
        follower.wait_for_step(before + 5)
        self.verb("stop", run)
        self.assert_ends(follower, 0)
        steps = [event["step"] for event in follower.events("progress")]
        self.assertEqual(steps, sorted(set(steps)), "no event twice")

    def test_are_followed_no_longer_than_somebody_reads(self):
        self.agent("a")
        running, waiting = self.submit(*ENDLESS), self.submit("--wait", "--nodes", "2")
        self.wait_for_step(running, 5)
        for run in (running, waiting):  # one that writes to its log, and one that has nothing to write
            reader, writer = os.pipe()
            follower = self.follow(run, stdout=writer)
            os.close(writer)
            if run == running:
                os.read(reader, 1)
            os.close(reader)
            self.assert_ends(follower, -signal.SIGPIPE)
            self.assertEqual(follower.stderr, "")

    def test_do_not_forget_who_is_drained(self):
        self.agent("a")
        self.verb("drain", "a")
        self.start_again()
        wait_until(lambda: self.nodes().get("a", {}).get("draining"), "it is back, and still drained")
        self.verb("drain", "a", "--undo")
        self.start_again()
        wait_until(lambda: self.nodes().get("a", {}).get("draining") is False, "it is back, and may work")

    def test_are_watched_no_longer_than_there_is_patience(self):
        self.agent("a")
        run = self.submit(*ENDLESS)
        watch = self.start("modelet", "watch", run, "--scheduler", self.address, "--json", "--patience-seconds", "10")
        watch.wait_for_step(1)
        self.scheduler.kill_all()
        self.assert_ends(watch, 1)
        self.assertIn(f"modelet watch {run} --scheduler {self.address} follows it", watch.stderr)


class Nodes(StatePool):
    def lost(self):
        return {name: node for name, node in self.nodes().items() if node["state"] == "lost"}

    def test_that_were_lost_are_not_forgotten(self):
        first, second = self.agent("a"), self.agent("b")
        self.agent("c")
        first.kill_all()
        wait_until(self.lost, lambda: f"a is lost: {self.nodes()}")
        before = self.lost()["a"]
        self.scheduler.kill_all()
        second.kill_all()  # nobody sees it
        self.start_again()
        wait_until(lambda: "b" in self.lost(), lambda: f"b is lost: {self.nodes()}")
        after = self.nodes()
        self.assertEqual({name: node["state"] for name, node in after.items()}, {"a": "lost", "b": "lost", "c": "free"})
        self.assertGreater(after["a"]["state_seconds"], before["state_seconds"])
        for field in ("why", "cores", "memory_bytes", "gflops", "version"):
            self.assertEqual(after["a"][field], before[field])
        self.assertIn("did not come back after the scheduler was restarted", after["b"]["why"])


class Undisturbed(StatePool):
    """Runs whose nodes may take their time to come back to a scheduler that was started again."""
    @property
    def scheduler_arguments(self):
        return (*super().scheduler_arguments, "--dead-after-seconds", "60")

    def watched_over_a_restart(self, *options):
        run = self.submit("--set", "train.epochs=40", *options)
        watch = self.start("modelet", "watch", run, "--scheduler", self.address, "--json")
        watch.wait_for_step(5)
        self.start_again()
        self.assert_ends(watch, 0)
        return run, watch

    def test_go_on_without_the_scheduler_and_are_watched_to_their_end(self):
        self.agent("a")
        self.agent("b")
        run, watch = self.watched_over_a_restart("--nodes", "2")
        steps = [event["step"] for event in watch.events("progress")]
        self.assertEqual(steps, sorted(set(steps)), "each once")
        self.assertEqual(steps[-1], 40 * STEPS_PER_EPOCH)
        self.assertEqual(watch.events()[-1]["event"], "finished")
        status = self.runs()[run]
        self.assertEqual((status["epoch"], status["recoveries"]), (1, 0), "it was not begun anew")

    def test_have_more_events_than_a_watcher_is_told(self):
        self.agent("a")
        run, watch = self.watched_over_a_restart("--set", "train.evaluate_every=0")
        told = [event["step"] for event in watch.events("progress")]
        self.assertEqual(told, list(range(told[0], 40 * STEPS_PER_EPOCH + 1)), "all since it began to watch, each once")
        log = [json.loads(line) for line in self.modelet("logs", run, "--scheduler", self.address).stdout.splitlines()]
        self.assertEqual(log[-1]["event"], "finished")
        self.assertEqual([event["step"] for event in log if event["event"] == "progress"], list(range(1, 40 * STEPS_PER_EPOCH + 1)), "all, each once")


if __name__ == "__main__":
    unittest.main()
