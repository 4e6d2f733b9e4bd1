"""modelet train --trace: where the time of steps goes, as a Chrome trace."""
import json
import unittest

from programs import ENDLESS, PoolTest, ProgramTest


def slices(file, rank):
    """[(name, begin, length)] of a rank, in microseconds."""
    return [(event["name"], event["ts"], event["dur"]) for event in json.loads(file.read_text())["traceEvents"]
            if event["ph"] == "X" and event["tid"] == rank]


class TraceTest(ProgramTest):
    def assert_adds_up(self, file, rank, steps):
        found = slices(file, rank)
        whole = [each for each in found if each[0].startswith("step ")]
        self.assertEqual(len(whole), steps)
        for name, begin, length in whole:
            phases = [each for each in found if not each[0].startswith("step ") and begin <= each[1] < begin + length]
            self.assertGreaterEqual({each[0] for each in phases}, {"batch", "input", "select", "forward", "collect", "backward", "update output"})
            self.assertAlmostEqual(sum(each[2] for each in phases), length, delta=len(phases), msg=name)  # each is rounded
        numbers = [int(name.split()[1]) for name, _, _ in whole]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + steps)))
        return numbers


class LocalTraceTest(TraceTest):
    def test_in_this_process(self):
        file = self.folder / "local.json"
        trained = self.train("local", "--trace", file, "--trace-steps", "20", "--set", "train.epochs=1")
        self.assert_adds_up(file, 0, 20)
        self.assertIn("20 steps of 1 ranks", trained.stderr)
        self.assertEqual(trained.events("trace"), [])  # long, and in the file
        self.assertNotIn('"trace"', (self.folder / "local" / "log.jsonl").read_text())

    def test_a_run_that_is_shorter_than_its_trace(self):
        file = self.folder / "short.json"
        self.train("short", "--trace", file, "--trace-steps", "1000", "--set", "train.epochs=1")
        self.assertGreater(len([name for name, _, _ in slices(file, 0) if name.startswith("step ")]), 20)

    def test_not_with_several_processes(self):
        self.assert_refused(2, "--trace is for one process", "modelet", "train", self.experiment, "--nodes", "2", "--trace", self.folder / "x.json")


class PoolTraceTest(TraceTest, PoolTest):
    def test_of_a_run_of_a_pool(self):
        for name in "ab":
            self.agent(name)
        run = self.submit("--nodes", "2", *ENDLESS)
        self.wait_for_step(run, 5)
        file = self.folder / "pool.json"
        *_notes, traced = self.verb("trace", run, "--steps", "20", "--out", file)
        self.assert_documented([traced], {"traced"})
        self.assertEqual((traced["run"], traced["ranks"], traced["steps"]), (run, 2, 20))
        self.assertEqual(self.assert_adds_up(file, 0, 20), self.assert_adds_up(file, 1, 20))  # the same steps
        self.assertNotIn('"trace"', str(self.verb("logs", run)))
        self.verb("stop", run)
        self.wait_for_end(run)
        self.assert_refused(1, "only a run that trains has steps", "modelet", "trace", run, "--scheduler", self.address)


if __name__ == "__main__":
    unittest.main()
