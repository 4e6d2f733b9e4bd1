"""Runs of towers on a pool: each tower is a task of its own (docs/pool.md)."""
import json
import pathlib
import signal
import unittest

from programs import PoolTest, ProgramTest, finished, newest_checkpoint, wait_until

TOWERS = ("--set", "model.towers=4", "--set", "model.loss=sigmoid", "--set", "train.epochs=3")
# Long enough to lose a node on a busy machine too.
LONG = (*TOWERS, "--set", "train.epochs=300", "--set", "train.evaluate_every=0", "--set", "cluster.snapshot_every=20")


def weights(model):
    """{path in the checkpoint: bytes} of all towers, and of the division of the labels."""
    files = {str(file.relative_to(model)): file.read_bytes() for file in pathlib.Path(model).rglob("*.safetensors")}
    assert len(files) > 4, files.keys()
    return files


class TasksHere(ProgramTest):
    def test_nodes_make_the_model_of_one_process(self):
        one = finished(self.train("one", *TOWERS))
        two = self.train("two", *TOWERS, "--nodes", "2")
        self.assertEqual(finished(two)["p_at_1"], one["p_at_1"])
        self.assertEqual(weights(finished(two)["checkpoint"]), weights(one["checkpoint"]))
        tasks = [event for event in two.events("task") if event["state"] == "finished"]
        self.assertEqual(sorted(event["task"] for event in tasks), [0, 1, 2, 3])
        self.assertEqual([event["tasks_done"] for event in tasks], [1, 2, 3, 4])
        self.assertFalse((self.folder / "two/towers").exists())
        self.assert_no_pool_folders()

    def test_what_was_stopped_goes_on(self):
        whole = finished(self.train("whole", *TOWERS))
        for where in ((), ("--nodes", "2")):
            name = f"stopped{len(where)}"
            training = self.start_training(name, *TOWERS, "--nodes", "2")
            wait_until(lambda: any(event["state"] == "finished" for event in training.events("task")), lambda: f"a task is done: {training}")
            training.signal(signal.SIGINT)
            if training.end() == 0:
                continue  # it was done before
            self.assertIn("--resume", training.stderr)
            rest = self.train(name, *TOWERS, *where, "--resume", self.folder / name)
            self.assertEqual(weights(finished(rest)["checkpoint"]), weights(whole["checkpoint"]))

    def test_a_model_is_trained_further(self):
        more = (*TOWERS, "--set", "train.epochs=5")
        first = self.train("trained", *TOWERS)
        one = finished(self.train("further", *more, "--resume", finished(first)["checkpoint"]))
        two = self.train("trained", *more, "--nodes", "2", "--resume", self.folder / "trained")
        self.assertEqual(finished(two)["p_at_1"], one["p_at_1"])
        self.assertEqual(weights(finished(two)["checkpoint"]), weights(one["checkpoint"]))
        self.assertEqual(finished(two)["steps"], one["steps"])
        self.assertFalse((self.folder / "trained/towers").exists())
        self.assert_refused(2, "another number of towers", "modelet", "train", self.experiment, *more, "--set", "model.towers=2",
                            "--nodes", "2", "--out", self.folder / "other", "--resume", self.folder / "trained")


class TasksThere(PoolTest):
    @property
    def scheduler_arguments(self):
        return ("--state", self.pool / "state")

    def test_a_lost_node_costs_its_own_task(self):
        agents = {name: self.agent(name) for name in ("a", "b")}
        run = self.submit(*LONG)

        def tasks():
            return [each for each in self.runs().values() if each["parent"] == run]
        wait_until(lambda: [each["stable_step"] > 0 for each in tasks()] == [True, True], lambda: f"both have a snapshot: {self.runs()}")
        self.assert_documented(self.runs().values(), {"Run"})
        lost = next(each for each in tasks() if each["nodes"] == ["b"])
        agents["b"].signal(signal.SIGKILL)
        self.agent("c")
        out = self.folder / "lost"
        self.assert_refused(1, "are not done", "modelet", "fetch", str(run), "--out", out, "--scheduler", self.address)
        self.assert_finishes(run)
        started = [json.loads(line)["task"] for line in self.modelet("logs", str(run), "--scheduler", self.address).stdout.splitlines()
                   if '"started"' in line and '"task"' in line]
        self.assertEqual(set(started), {0, 1, 2, 3})
        self.assertGreater(started.count(lost["task"]), 1, "it went on elsewhere")
        *_, fetched = self.verb("fetch", run, "--out", out)
        self.assertEqual(fetched["checkpoint"], str(newest_checkpoint(out)))
        one = finished(self.train("alone", *LONG))
        self.assertEqual(weights(newest_checkpoint(out)), weights(one["checkpoint"]))

    def test_only_the_whole_run_can_be_stopped(self):
        self.agent("a")
        run = self.submit(*TOWERS)
        task = wait_until(lambda: next((each for each in self.runs().values() if each["parent"] == run), None), lambda: "a task runs")
        self.assert_refused(1, f"only the whole run can be stopped: modelet stop {run}", "modelet", "stop", str(task["run"]),
                            "--scheduler", self.address)
        self.assert_finishes(run)


if __name__ == "__main__":
    unittest.main(verbosity=2)
