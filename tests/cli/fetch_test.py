"""The files of a run: the pool keeps them, and the client that submitted it gets them."""
import json
import pathlib
import unittest

from programs import ENDLESS, LABELS, PoolTest, STEPS_PER_EPOCH, newest_checkpoint


class Fetch(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state")

    def fetch(self, run, out):
        *_, fetched = self.verb("fetch", run, "--out", out)
        self.assert_documented([fetched], {"fetched"})
        return fetched

    def test_what_is_fetched_is_as_if_it_was_trained_here(self):
        for name in ("a", "b"):
            self.agent(name)
        run = self.submit("--nodes", "2", "--set", "train.epochs=2")
        self.assert_finishes(run)
        way = f"modelet fetch {run} --out FOLDER"
        for event in self.verb("watch", run):
            for key in {"path", "checkpoint"} & set(event):
                self.assertEqual(event[key], way, "not the path of another machine")
        watched, listed = (self.modelet(*verb, "--scheduler", self.address) for verb in (("watch", run), ("list",)))
        self.assertIn(f"checkpoint:  {way}", watched.stderr)
        self.assertIn(f"modelet fetch {run}", listed.stdout)
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

    def test_two_runs_are_not_mixed(self):
        self.agent("a")
        out = self.folder / "first"
        first, again, other = (self.submit("--set", "train.epochs=1", "--set", f"train.seed={seed}") for seed in (1, 1, 2))
        for run in (first, again, other):
            self.assert_finishes(run)
        self.fetch(first, out)

        def files():
            return {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
        before = files()
        for run, name in ((again, "log.jsonl"), (other, "experiment.toml")):
            self.assert_refused(1, f"{out / name} is not that of run {run}: choose another folder",
                                "modelet", "fetch", run, "--out", out, "--scheduler", self.address)
        self.assertEqual(files(), before)

    def test_there_is_no_such_run(self):
        self.assert_refused(1, "there is no run 7", "modelet", "fetch", "7", "--out", "none", "--scheduler", self.address)
        self.assertFalse((self.folder / "none").exists())

    def test_report(self):
        """`modelet report` on a run that was fetched."""
        self.agent("a")
        run = self.submit("--set", "train.epochs=2")
        self.assert_finishes(run)
        out = self.folder / "reported"
        self.fetch(run, out)
        end = json.loads((out / "log.jsonl").read_text().splitlines()[-1])
        shown = self.modelet("report", out, "--text").stdout
        for text in (f"{2 * STEPS_PER_EPOCH} steps", f"{100 * end['p_at_1']:.1f} %", f"{LABELS} labels", end["checkpoint"].rsplit("/", 1)[1]):
            self.assertIn(text, shown)

    def fetch_without_weights(self, run):
        """Returns the folder of a run that has no checkpoint."""
        out = self.pool / f"fetched-{run}"
        self.assert_refused(1, ["no checkpoint in the scheduler's store", f"{out} has its experiment.toml and log.jsonl, but no weights"],
                            "modelet", "fetch", run, "--out", out, "--scheduler", self.address, "--json")
        self.assertEqual({file.name for file in out.iterdir()}, {"experiment.toml", "log.jsonl", ".lock"})
        return out

    def test_a_run_that_has_not_begun(self):
        run = self.submit("--wait", "--set", "train.epochs=1")
        out = self.fetch_without_weights(run)
        self.assertEqual((out / "log.jsonl").read_text(), "")
        self.assertIn("\nepochs = 1\n", (out / "experiment.toml").read_text())
        other = self.submit("--wait", "--set", "train.epochs=2")  # a typing error in the number
        self.assert_refused(1, f"experiment.toml is not that of run {other}", "modelet", "fetch", other, "--out", out, "--scheduler", self.address)
        self.assertIn("\nepochs = 1\n", (out / "experiment.toml").read_text())
        self.verb("stop", other)
        self.agent("a")
        self.assert_finishes(run)
        self.assertEqual(self.fetch(run, out)["checkpoint"], str(newest_checkpoint(out)))  # the same folder, later
        self.modelet("eval", out, "data/test.txt")

    def test_a_run_that_ended_before_its_first_checkpoint(self):
        """Its experiment and its events are what the client has that watched it."""
        agent = self.agent("a")
        watching = self.start("modelet", "submit", self.experiment, "--watch", "--json", "--scheduler", self.address, *ENDLESS, cwd=self.pool)
        watching.wait_for_step(5)
        agent.kill_all()
        (run,) = self.runs()
        self.wait_for(run, lambda status: status["state"] not in ("running", "forming"), "misses its node")
        self.verb("stop", run)
        self.assert_ends(watching, 130)
        out = self.fetch_without_weights(run)
        (watched,) = (self.pool / "runs").iterdir()
        self.assertEqual((out / "experiment.toml").read_text(), (watched / "experiment.toml").read_text())
        kept, seen = ([json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()] for folder in (out, watched))
        self.assertEqual(seen[0]["event"], "started")
        kept = kept[kept.index(seen[0]):]  # before that, the node fetched its data
        self.assertGreater(len(kept), 5)
        self.assertEqual(kept, [event for event in seen if event["event"] != "interrupted"])  # the client wrote that: no node could

    def test_a_client_that_goes_away_leaves_the_run_and_fetches_the_rest_later(self):
        self.agent("a")
        out = self.pool / "run"
        submit = self.start("modelet", "submit", self.experiment, "--out", out, "--json", "--scheduler", self.address, "--set", "train.epochs=20")
        submit.wait_for_step(5)
        (submitted,) = submit.events("submitted")
        submit.kill_all()
        run = submitted["run"]
        self.assert_finishes(run)
        self.assertEqual(self.fetch(run, out)["checkpoint"], str(newest_checkpoint(out)))
        self.assertEqual(newest_checkpoint(out).name, f"step-{20 * STEPS_PER_EPOCH:010}")
        self.assertEqual(json.loads((out / "log.jsonl").read_text().splitlines()[-1])["event"], "finished")

    def test_a_drained_node_gets_no_run(self):
        self.agent("a")
        (node,) = self.verb("drain", "a")
        self.assertTrue(node["draining"])
        run = self.submit("--wait", "--set", "train.epochs=1")
        self.assertEqual(self.runs()[run]["state"], "queued")
        (node,) = self.verb("drain", "a", "--undo")
        self.assertFalse(node["draining"])
        self.assert_finishes(run)


if __name__ == "__main__":
    unittest.main()
