"""A scheduler with --state: what it knows is in a folder that only it uses."""
import unittest

from programs import PoolTest, wait_until


class Folder(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state")

    def assert_state_refused(self, code, texts, state, *arguments):
        self.assert_refused(code, [str(state), *texts], "modelet-scheduler", "--listen", "tcp://127.0.0.1:*", "--state", state, *arguments)

    def test_is_made_for_its_owner_with_a_store(self):
        state = self.pool / "state"
        wait_until((state / "store").is_dir, "the store is made")
        for path in (state, state / "ledger.sqlite", state / "store"):
            self.assertEqual(path.stat().st_mode & 0o77, 0, path)

    def test_has_one_scheduler_at_a_time(self):
        self.assert_state_refused(1, ["ledger.sqlite: another process uses it"], self.pool / "state")
        self.scheduler.kill_all()
        again = self.start("modelet-scheduler", "--listen", self.address, "--state", self.pool / "state")
        wait_until(lambda: "listening" in again.stderr, lambda: f"it starts: {again}")

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


if __name__ == "__main__":
    unittest.main()
