"""Runs that do not reach their end: Ctrl-C, killed agents, a killed scheduler, a killed `modelet`. They can always be continued
from the last checkpoint, and no process stays."""
import itertools
import json
import os
import pathlib
import signal
import unittest

from programs import (ENDLESS, LABELS, PROGRAMS, STEPS_PER_EPOCH, ProgramTest, checkpoint_files, finished, losses, newest_checkpoint, processes_of_session,
                      wait_until)


class Stopped(ProgramTest):
    def interrupted(self, out, *arguments, number=signal.SIGINT):
        """Starts a training, sends it a signal, and returns the step at which it stopped."""
        run = self.start_training(out, *ENDLESS, *arguments)
        run.wait_for_step(10)
        run.signal(number)
        self.assert_ends(run, 130)
        self.assertIn("stopping after this step, with a checkpoint", run.stderr)
        self.assert_no_pool_folders()
        last = run.events()[-1]
        self.assertEqual(last["event"], "interrupted")
        self.assertEqual(last["step"], run.events("progress")[-1]["step"])
        self.assertIn("--resume", run.stderr)
        self.assertEqual(newest_checkpoint(self.folder / out).name, f"step-{last['step']:010}")
        return run, last["step"]

    def test_a_terminal_that_is_closed(self):
        for nodes in ("1", "2"):
            self.interrupted(f"hung-up-{nodes}", "--nodes", nodes, number=signal.SIGHUP)

    def test_a_reader_that_goes_away(self):
        for nodes in ("1", "2"):
            out = self.folder / f"unread-{nodes}"
            reader, writer = os.pipe()
            run = self.start_training(out.name, *ENDLESS, "--nodes", nodes, stdout=writer)
            os.close(writer)
            with open(reader, encoding="utf-8") as lines:
                self.assertEqual(json.loads(lines.readline())["event"], "started")
            self.assert_ends(run, 1)
            self.assertIn("standard output: Broken pipe", run.stderr)
            self.assertIn(f"continue with --resume {newest_checkpoint(out)}", run.stderr)
            last = json.loads((out / "log.jsonl").read_text().splitlines()[-1])
            self.assertEqual((last["event"], last["checkpoint"]), ("interrupted", str(newest_checkpoint(out))))

    def until_after(self, step):
        """A number of epochs such that at least one epoch ends after `step`."""
        epochs = step // STEPS_PER_EPOCH + 2
        return ("--set", f"train.epochs={epochs}")

    def test_resume_is_the_uninterrupted_run(self):
        run, step = self.interrupted("stopped")
        resumed = self.train("stopped", "--resume", self.folder / "stopped", *self.until_after(step))
        whole = self.train("whole", *self.until_after(step))
        self.assertEqual({**losses(run), **losses(resumed)}, losses(whole))
        self.assertEqual(min(losses(resumed)), step + 1)
        self.assertEqual(resumed.events("started")[0]["step"], step)
        for key in ("p_at_1", "p_at_3", "p_at_5", "steps"):
            self.assertEqual(finished(resumed)[key], finished(whole)[key])
        self.assertEqual(checkpoint_files(finished(resumed)["checkpoint"]), checkpoint_files(finished(whole)["checkpoint"]))
        log = [json.loads(line) for line in (self.folder / "stopped/log.jsonl").read_text().splitlines()]
        self.assertEqual(log, run.events() + resumed.events(), "one log of the whole run")

    def test_resume_with_hash_tables(self):
        tables = ("--set", "sampling.mode=lsh", "--set", "sampling.uniform=16", "--set", "sampling.rehash_every=7")
        run, step = self.interrupted("stopped-lsh", *tables)
        resumed = self.train("stopped-lsh", "--resume", self.folder / "stopped-lsh", *tables, *self.until_after(step))
        whole = self.train("whole-lsh", *tables, *self.until_after(step))
        self.assertEqual({**losses(run), **losses(resumed)}, losses(whole))
        self.assertEqual(checkpoint_files(finished(resumed)["checkpoint"]), checkpoint_files(finished(whole)["checkpoint"]))

    def test_two_nodes(self):
        # Sums of two nodes are rounded otherwise. How many steps there are until the run stops depends on the machine, and with
        # large steps the difference grows.
        small_steps = ("--set", "train.learning_rate=1e-4")
        exact = ("--set", "exchange.codec=none", *small_steps)
        run, step = self.interrupted("stopped-2", "--nodes", "2", *exact)
        whole = self.train("whole-2", *small_steps, *self.until_after(step))
        for nodes in ("2", "1"):
            # A folder of its own, so that both continue from the same checkpoint.
            resumed = self.train(f"resumed-on-{nodes}", "--resume", self.folder / "stopped-2", "--nodes", nodes, *exact,
                                 *self.until_after(step))
            joined = {**losses(run), **losses(resumed)}
            self.assertEqual(set(joined), set(losses(whole)))
            for at, loss in losses(whole).items():
                self.assertAlmostEqual(joined[at] / loss, 1, delta=1e-3, msg=f"step {at} on {nodes}")
            self.assertAlmostEqual(finished(resumed)["p_at_1"], finished(whole)["p_at_1"], delta=0.01)

    def test_another_run_is_not_continued(self):
        run, _ = self.interrupted("stopped-other")
        out = self.folder / "stopped-other"

        def record():
            return {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
        before = record()
        self.modelet("data", "synth", "narrow", "--rows", "1600", "--rows-test", "10", "--features", "390", "--labels", str(LABELS))
        narrow = "data.train=narrow/train.mlt", "data.test=narrow/test.mlt"
        self.modelet("data", "synth", "like", "--text", "--rows", "1600", "--rows-test", "1000", "--features", "400", "--labels",
                     str(LABELS), "--features-per-row", "20", "--labels-per-row", "2", "--seed", "9")
        like = "data.train=like/train.txt", "data.test=like/test.txt"
        for settings, text in ((["train.seed=99"], "train.seed"), (["model.hidden=[32]"], "model.hidden"),
                               (["model.hidden=[64,32]"], "model.hidden"), (["modelets.output_modelets=5"], "[modelets]"),
                               (["optimizer.kind=sgd"], "optimizer.kind"), (narrow, "features"),
                               (like, "another set of training samples")):
            for folder in (self.folder / "other", out):
                for nodes in ("1", "2"):
                    changed = [word for setting in settings for word in ("--set", setting)]
                    run = self.train(folder.name, "--resume", out, *changed, "--nodes", nodes, code=2)
                    (last,) = run.events()
                    self.assertEqual((set(last), last["event"]), ({"event", "error", "time"}, "failed"))
                    for said in (last["error"], run.stderr):
                        self.assertIn(text, said)
        self.assertFalse((self.folder / "other").exists())
        self.assertEqual(record(), before, "what is refused leaves the run as it was")

    def test_a_folder_holds_one_run(self):
        self.train("one-run", "--set", "train.epochs=2", "--set", "train.checkpoint_every=0")
        out = self.folder / "one-run"
        first, second = (out / "checkpoints" / f"step-{epoch * STEPS_PER_EPOCH:010}" for epoch in (1, 2))
        before = (out / "log.jsonl").read_bytes()
        self.assert_refused(2, [str(out), "--out", f"--resume {out}"], "modelet", "train", self.experiment, "--out", out)
        for arguments in (["--out", out], []):
            self.assert_refused(2, [str(out), str(second), "--out"], "modelet", "train", self.experiment, *arguments, "--resume", first)
        self.train("another-run", "--set", "train.epochs=1")
        self.assert_refused(2, [str(self.folder / "another-run"), "another"], "modelet", "train", self.experiment, "--out",
                            self.folder / "another-run", "--resume", second)
        self.assertEqual((out / "log.jsonl").read_bytes(), before)
        branch = self.train("branch", "--resume", first, "--set", "train.epochs=2")
        self.assertEqual(min(losses(branch)), STEPS_PER_EPOCH + 1)
        self.train("one-run", "--resume", second, "--set", "train.epochs=3")
        for nodes in ("1", "2"):
            run = self.train("shorter", "--resume", second, "--set", "train.epochs=1", "--nodes", nodes, code=2)
            self.assertIn("ends after 25: raise train.epochs", run.stderr)

    def test_two_runs_at_once(self):
        out = self.folder / "at-once"
        first = self.start_training("at-once", *ENDLESS)
        first.wait_for_step(1)
        for nodes in ("1", "2"):
            refused = self.modelet("train", self.experiment, "--out", out, "--nodes", nodes, code=2)
            self.assertIn(f"{out}: another run trains", refused.stderr)
        first.signal(signal.SIGINT)
        self.assert_ends(first, 130)
        self.assertEqual([json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()], first.events())

    def test_a_checkpoint_that_cannot_be_written(self):
        """The run goes on without it. When it is stopped, it tries once, and says which one it can be continued from."""
        out = self.folder / "unwritable"
        run = self.start_training("unwritable", *ENDLESS, "--set", "train.checkpoint_every=20")
        run.wait_for_step(25)
        for attempt in itertools.count():
            (out / "checkpoints").rename(out / f"elsewhere-{attempt}")
            try:
                (out / "checkpoints").write_text("a file where the checkpoints should be")
                break
            except IsADirectoryError:  # the run was faster and has made a new folder
                pass
        wait_until(lambda: "the run goes on without this checkpoint" in run.stderr, "a warning")
        run.signal(signal.SIGINT)
        self.assert_ends(run, 1)
        self.assertEqual(run.events()[-1]["event"], "failed")
        for text in (str(out / "checkpoints"), "stopped while it waited", f"continue with --resume {out}"):
            self.assertIn(text, run.stderr)

    def test_a_full_disk(self):
        """A limit of the size of files stands for it. The run says at once which file cannot be written, and ends without waiting for
        room for its checkpoint."""
        self.train("fills-the-cache", "--set", "train.epochs=1")
        out = self.folder / "full"
        run = self.start("/bin/sh", "-c", 'ulimit -f 128; exec "$@" > /dev/null', "-", PROGRAMS / "modelet", "train", self.experiment, "--out", out,
                         "--json", *ENDLESS)
        self.assert_ends(run, 1, limit=60)
        log = (out / "log.jsonl").read_text()
        self.assertTrue(log.endswith("}\n"), "what was whole stays whole")
        for line in log.splitlines():
            json.loads(line)
        self.assertIn(f"{out}/log.jsonl: File too large: raise the limit of the size of files (ulimit -f)", run.stderr)
        self.assertIn("events are lost from here on", run.stderr)

    def test_interrupted_early(self):
        """Interrupted before the first step: no message of the C++ runtime, and no process is left."""
        for nodes in ("1", "2"):
            run = self.start_training(f"early-{nodes}", *ENDLESS, "--nodes", nodes)
            wait_until(lambda: "run folder" in run.stderr and (nodes == "1" or "starting" in run.stderr), "started")
            run.signal(signal.SIGINT)
            self.assertIn(run.end(), (130, -signal.SIGINT), str(run))
            wait_until(lambda: not processes_of_session(run.pid), "all gone")
            self.assertNotIn("terminate called", run.stderr)


class Killed(ProgramTest):
    def killed(self, out, victim, *arguments):
        """Starts a training on several nodes, and kills one of its processes after a checkpoint."""
        run = self.start_training(out, *ENDLESS, "--set", "train.checkpoint_every=20", *arguments)
        run.wait_for_step(25)
        wait_until(lambda: run.events("checkpoint"), lambda: f"a checkpoint is in the run's folder: {run}")
        if victim is None:
            run.signal(signal.SIGKILL)
            return run
        pids = [pid for pid, name in run.children().items() if name == victim]
        self.assertTrue(pids, run.children())
        os.kill(sorted(pids)[-1], signal.SIGKILL)
        return run

    def assert_resumes(self, out, *arguments):
        step = int(newest_checkpoint(self.folder / out).name.removeprefix("step-"))
        epochs = step // STEPS_PER_EPOCH + 1
        resumed = self.train(out + "-resumed-" + "-".join(arguments), "--resume", self.folder / out, "--set",
                             f"train.epochs={epochs}", *arguments)
        self.assertEqual(min(losses(resumed)), step + 1)
        self.assertEqual(finished(resumed)["steps"], epochs * STEPS_PER_EPOCH)

    def test_agent(self):
        """The run continues from its newest snapshot, says which node it has lost, and can be stopped and resumed."""
        run = self.killed("agent", "modelet-agent", "--nodes", "3")
        first = wait_until(lambda: run.events("regrouped"), lambda: f"it goes on: {run}")[0]
        lost = r"node 'node-[123]' [^;]* at step [1-9]\d*"
        self.assertRegex(first["why"], lost)
        self.assertGreaterEqual(first["step"], 20, "of a snapshot")
        wait_until(lambda: run.events()[-1]["event"] == "progress" and run.events()[-1]["step"] > first["step"] + 50, lambda: f"it trains: {run}")
        run.signal(signal.SIGINT)
        self.assert_ends(run, 130)
        self.assert_no_pool_folders()
        self.assertEqual(list((self.folder / "agent").glob(".*")), [self.folder / "agent/.lock"])
        last = run.events()[-1]
        self.assertEqual(last["event"], "interrupted")
        self.assertEqual(last["checkpoint"], str(newest_checkpoint(self.folder / "agent")))
        self.assertRegex(run.stderr, lost)
        self.assertIn(f"--resume {newest_checkpoint(self.folder / 'agent')}", run.stderr)
        self.assert_resumes("agent")
        self.assert_resumes("agent", "--nodes", "2")

    def test_scheduler(self):
        """The scheduler is started again, and the run goes on as if nothing had happened."""
        run = self.killed("scheduler", "modelet-scheduler", "--nodes", "2")
        step = run.events("progress")[-1]["step"]
        run.wait_for_step(step + 50)
        run.signal(signal.SIGINT)
        self.assert_ends(run, 130)
        steps = [event["step"] for event in run.events("progress")]
        self.assertEqual(steps, sorted(set(steps)), "each step once")
        self.assertEqual(newest_checkpoint(self.folder / "scheduler").name, f"step-{run.events()[-1]['step']:010}")
        self.assert_resumes("scheduler", "--nodes", "2")

    def test_modelet_itself(self):
        run = self.killed("itself", None, "--nodes", "2")
        self.assertEqual(run.end(), -signal.SIGKILL)
        wait_until(lambda: not processes_of_session(run.pid), lambda: f"the others end: {processes_of_session(run.pid)}")


if __name__ == "__main__":
    unittest.main()
