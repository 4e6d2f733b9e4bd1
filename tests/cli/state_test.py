"""A scheduler with --state: what it knows is in a folder that only it uses."""
import unittest

from programs import ENDLESS, STEPS_PER_EPOCH, TIME, PoolTest, wait_until


class StatePool(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state")

    def start_again(self):
        """Kills the scheduler, and starts it with what it has written down."""
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
        first = self.submit("first", "--wait")
        before = self.runs()
        self.start_again()
        after = self.runs()
        self.assertEqual({run: status["name"] for run, status in after.items()}, {first: "small"})
        for field in ("state", "submitted", "submitter"):
            self.assertEqual(after[first][field], before[first][field])
        self.assertRegex(after[first]["submitted"], TIME)
        self.assertEqual(self.submit("second", "--wait"), first + 1)
        self.agent("a")
        for run in (first, first + 1):
            self.assert_finishes(run)
        self.start_again()
        self.assertEqual([status["state"] for status in self.runs().values()], ["finished"] * 2)

    def test_go_on_without_the_scheduler_and_are_watched_to_their_end(self):
        self.agent("a")
        self.agent("b")
        run = self.submit("run", "--nodes", "2", "--set", "train.epochs=40")
        watch = self.start("modelet", "watch", run, "--scheduler", self.address, "--json")
        watch.wait_for_step(5)
        self.start_again()
        self.assert_ends(watch, 0)
        steps = [event["step"] for event in watch.events("progress")]
        self.assertEqual(steps, sorted(set(steps)), "each once")
        self.assertEqual(steps[-1], 40 * STEPS_PER_EPOCH)
        self.assertEqual(watch.events()[-1]["event"], "finished")
        status = self.runs()[run]
        self.assertEqual((status["epoch"], status["recoveries"]), (1, 0), "it was not begun anew")

    def test_are_watched_no_longer_than_there_is_patience(self):
        self.agent("a")
        run = self.submit("run", *ENDLESS)
        watch = self.start("modelet", "watch", run, "--scheduler", self.address, "--json", "--patience-seconds", "1")
        watch.wait_for_step(1)
        self.scheduler.kill_all()
        self.assert_ends(watch, 1)
        self.assertIn(f"modelet watch {run} --scheduler {self.address} follows it", watch.stderr)


if __name__ == "__main__":
    unittest.main()
