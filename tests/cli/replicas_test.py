"""Several copies of the model, each on nodes of its own: what they learn, how they stop, and what happens if one loses a node."""
import os
import signal
import unittest

from programs import ENDLESS, STEPS_PER_EPOCH, ProgramTest, checkpoint_files, finished, losses, newest_checkpoint, wait_until

LOCAL_STEPS = 4


def replicas(count, *settings):
    """Settings with which a step has as many samples as a step of one model."""
    options = []
    for setting in (f"cluster.replicas={count}", f"train.batch={64 // count}", f"exchange.local_steps={LOCAL_STEPS}", *settings):
        options += ["--set", setting]
    return options


class Replicas(ProgramTest):
    def test_learn_as_one_model_does(self):
        one = finished(self.train("one"))
        for count in (2, 4):
            rate = 1e-2 * count**0.5  # docs/decisions/0016-replicas.md
            run = self.train(f"replicas-{count}", "--nodes", "4", *replicas(count, f"train.learning_rate={rate}"))
            (started,) = run.events("started")
            self.assertEqual((started["nodes"], started["replicas"]), (4, count))
            last = finished(run)
            self.assertEqual(last["steps"], 5 * STEPS_PER_EPOCH)
            self.assertAlmostEqual(last["p_at_1"], one["p_at_1"], delta=0.05)
            self.assertGreater(last["bytes_sent_per_node_per_step"], 0)
            self.assertEqual(sorted(node["node"] for node in run.events("progress")[0]["nodes"]), [f"node-{i}" for i in (1, 2, 3, 4)])
            # Together they have written an ordinary checkpoint of one model.
            alone = self.train(f"alone-{count}", "--resume", self.folder / f"replicas-{count}")
            self.assertEqual(finished(alone)["p_at_1"], last["p_at_1"])

    def test_a_checkpoint_goes_on_to_the_bit(self):
        settings = replicas(2, "train.epochs=2", "train.checkpoint_every=0")
        whole = self.train("whole", "--nodes", "4", *settings)
        first = self.folder / "whole/checkpoints" / f"step-{STEPS_PER_EPOCH:010}"
        rest = self.train("rest", "--nodes", "4", "--resume", first, *settings)
        self.assertEqual(losses(rest), {step: loss for step, loss in losses(whole).items() if step > STEPS_PER_EPOCH})
        self.assertEqual(checkpoint_files(finished(rest)["checkpoint"]), checkpoint_files(finished(whole)["checkpoint"]))

    def test_run_apart_and_settle_all_the_same(self):
        """Reporting the loss makes replicas wait for each other. What they learn must not depend on that."""
        settings = replicas(2, "train.epochs=2", "train.checkpoint_every=0")
        together = self.train("together", "--nodes", "4", *settings)
        apart = self.train("apart", "--nodes", "4", *settings, "--set", "train.log_every=1000")
        self.assertEqual([event["step"] for event in apart.events("progress") if "nodes" in event], [2 * STEPS_PER_EPOCH])
        for one, other in zip(apart.events("epoch"), together.events("epoch"), strict=True):
            self.assertEqual((one["loss"], one["p_at_1"], one["p_at_5"]), (other["loss"], other["p_at_1"], other["p_at_5"]))
        for step in (STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH):
            checkpoint = f"checkpoints/step-{step:010}"
            self.assertEqual(checkpoint_files(self.folder / "apart" / checkpoint),
                             checkpoint_files(self.folder / "together" / checkpoint))
        # The evaluated model is the one that was written.
        alone = self.train("alone", "--resume", self.folder / "apart", "--set", "train.epochs=2")
        self.assertEqual(finished(alone)["p_at_1"], finished(apart)["p_at_1"])

    def test_stop(self):
        run = self.start_training("stopped", "--nodes", "4", *ENDLESS, *replicas(2))
        run.wait_for_step(10)
        run.signal(signal.SIGINT)
        self.assert_ends(run, 130)
        last = run.events()[-1]
        self.assertEqual(last["event"], "interrupted")
        self.assertEqual(last["step"] % LOCAL_STEPS, 0, "where replicas meet")
        epochs = last["step"] // STEPS_PER_EPOCH + 2
        for nodes, count in ((1, 1), (2, 2)):
            rest = self.train(f"stopped-{nodes}", "--nodes", str(nodes), "--resume", self.folder / "stopped",
                              *replicas(count, f"train.epochs={epochs}"))
            self.assertEqual(min(losses(rest)), last["step"] + 1)

    def test_a_killed_agent_is_named_and_the_run_goes_on(self):
        run = self.start_training("killed", "--nodes", "4", *ENDLESS, *replicas(2, "train.checkpoint_every=20"))
        run.wait_for_step(25)
        agents = sorted(pid for pid, name in run.children().items() if name == "modelet-agent")
        os.kill(agents[-1], signal.SIGKILL)
        regrouped = wait_until(lambda: run.events("regrouped"), lambda: f"it goes on: {run}")[0]
        self.assertRegex(regrouped["why"], r"node 'node-[1234]' [^;]* at step [1-9]\d*")
        wait_until(lambda: run.events()[-1]["event"] == "progress" and run.events()[-1]["step"] > regrouped["step"] + 30, lambda: f"it trains: {run}")
        run.signal(signal.SIGINT)
        self.assert_ends(run, 130)
        last = run.events()[-1]
        self.assertEqual(last["event"], "interrupted")
        self.assertEqual(last["checkpoint"], str(newest_checkpoint(self.folder / "killed")))

    def test_groups_must_be_equal(self):
        for nodes in ("1", "3"):
            self.assert_refused(2, ["cluster.replicas", "--nodes"], "modelet", "train", self.experiment, "--out", self.folder / "refused",
                                "--nodes", nodes, "--set", "cluster.replicas=2")
        self.assertFalse((self.folder / "refused").exists())
        self.assert_refused(2, "cluster.replicas", "modelet", "plan", self.experiment, "--nodes", "3", "--cores", "1", "--gflops", "10",
                            "--memory-gbps", "10", "--set", "cluster.replicas=2")
        plan = self.modelet("plan", self.experiment, "--nodes", "4", "--cores", "1", "--gflops", "10", "--memory-gbps", "10",
                            "--set", "cluster.replicas=2")
        self.assertIn("as 2 replicas", plan.stdout)


if __name__ == "__main__":
    unittest.main()
