"""A run whose files the pool keeps: the client that submitted it gets them, without a folder that the nodes share."""
import json
import unittest

from programs import PoolTest, newest_checkpoint


class Fetch(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state")

    def submit_without_folder(self, *arguments):
        *_, answer = self.verb("submit", self.experiment, *arguments)
        return answer["run"]

    def fetch(self, run, out):
        *_, fetched = self.verb("fetch", run, "--out", out)
        self.assert_documented([fetched], {"fetched"})
        return fetched

    def test_what_is_fetched_is_as_if_it_was_trained_here(self):
        for name in ("a", "b"):
            self.agent(name)
        run = self.submit_without_folder("--nodes", "2", "--set", "train.epochs=2")
        self.assert_finishes(run)
        out = self.folder / "fetched"
        fetched = self.fetch(run, out)
        self.assertEqual(fetched["run"], run)
        self.assertEqual(fetched["checkpoint"], str(newest_checkpoint(out)))
        self.assertFalse((out / ".fetching").exists())
        events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        self.assertEqual(events[-1]["event"], "finished")
        self.assertEqual(events[-1]["checkpoint"], fetched["checkpoint"])
        self.assertIn("[modelets]", (out / "experiment.toml").read_text())
        before = (out / "log.jsonl").read_text()
        self.fetch(run, out)
        self.assertEqual((out / "log.jsonl").read_text(), before)
        self.modelet("eval", out, "data/test.txt")
        self.modelet("train", self.experiment, "--resume", out, "--set", "train.epochs=3")
        self.assertEqual(newest_checkpoint(out).name, "step-0000000075")

    def test_refusals(self):
        self.assert_refused(1, "run", "modelet", "fetch", "7", "--out", "none", "--scheduler", self.address)
        run = self.submit_without_folder("--wait")
        self.assert_refused(1, "no checkpoint in the scheduler's store yet", "modelet", "fetch", run, "--out", "none", "--scheduler", self.address)

    def test_a_drained_node_gets_no_run(self):
        self.agent("a")
        (node,) = self.verb("drain", "a")
        self.assertTrue(node["draining"])
        run = self.submit("run", "--wait", "--set", "train.epochs=1")
        self.assertEqual(self.runs()[run]["state"], "queued")
        (node,) = self.verb("drain", "a", "--undo")
        self.assertFalse(node["draining"])
        self.assert_finishes(run)


if __name__ == "__main__":
    unittest.main()
