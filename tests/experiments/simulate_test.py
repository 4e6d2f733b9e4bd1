"""The simulator on plans made by hand, compared with sums by hand; with MODELET_PROGRAMS also on a plan of `modelet plan`."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/simulate"))
import curves
import dense
import simulate

FREE, INFINITE, Link = simulate.FREE, simulate.INFINITE, simulate.Link
PARTS = ("forward", "select", "output_forward", "backward", "update")
HIDDEN, OUTPUT = (1e-3, 0.0, 0.0, 0.0, 2e-3), (0.0, 0.5e-3, 4e-3, 0.0, 3e-3)
CORE = {"gflops": 50.0, "bf16_gflops": 50.0, "memory_gbps": 10.0}  # declared: nothing here depends on what this machine can do
COMPUTE = sum(HIDDEN) + sum(OUTPUT)


def plan_of(nodes=2, micro_batches=(256,), size=100_000, cores=4, speeds=(1.0,), hashed=False):
    """One hidden layer; every message of a whole batch has `size` bytes."""
    def layers(speed):
        return [dict(zip(PARTS, (seconds / speed for seconds in layer))) for layer in (HIDDEN, OUTPUT)]

    def exchange(kind, samples):
        count = size * samples // sum(micro_batches)
        return {"exchange": kind, "layer": 0, "samples": samples, "bytes": [[0 if a == b else count for b in range(nodes)] for a in range(nodes)]}

    described = [{"cores": cores, "layers": layers(speeds[i % len(speeds)]), "compute_seconds": COMPUTE / speeds[i % len(speeds)]} for i in range(nodes)]
    kinds = ("activations", "output") if nodes > 1 else ()
    return {"selects_by_activations": hashed, "nodes": described, "exchanges": [exchange(kind, samples) for kind in kinds for samples in micro_batches]}


def seconds(planned, link=INFINITE, cost=FREE, **more):
    return simulate.simulate(planned, link, cost, **more)["seconds_per_step"]


class Simulator(unittest.TestCase):
    def test_one_node_computes_and_nothing_else(self):
        self.assertAlmostEqual(seconds(plan_of(1), Link(1e6, 1.0), simulate.MessageCost()), COMPUTE)

    def test_on_an_infinite_link_a_step_takes_as_long_as_the_slowest_node(self):
        for cores in (1, 4):
            for micro_batches in ((256,), (128, 64, 64)):
                self.assertAlmostEqual(seconds(plan_of(3, micro_batches, cores=cores, speeds=(1.0, 0.5, 0.8))), COMPUTE / 0.5)

    def test_undivided_the_activations_are_hidden(self):
        link = Link(1e9, 2e-3)
        for size in (100_000, 1_000_000):
            wire, update = link.seconds(size) + 1e-3, OUTPUT[PARTS.index("update")]
            self.assertAlmostEqual(seconds(plan_of(size=size, hashed=True), link), COMPUTE + wire + max(0.0, wire - update),
                                   msg="the output layer is updated while the first activations travel")
            self.assertAlmostEqual(seconds(plan_of(size=size), link), COMPUTE + wire + max(0.0, wire - update - OUTPUT[PARTS.index("select")]),
                                   msg="rows are gathered meanwhile")

    def test_a_receiver_takes_one_message_after_the_other(self):
        link = Link(1e9, 0.0)
        messages = 3 * link.seconds(1_000_000)
        self.assertAlmostEqual(seconds(plan_of(4, size=1_000_000, hashed=True), link), COMPUTE + 2 * messages - OUTPUT[PARTS.index("update")])

    def test_the_number_of_micro_batches_is_chosen_as_a_run_does(self):
        link, cost = Link(1e9, 0.1e-3), simulate.MessageCost(each=0.2e-3)
        choices = [plan_of(micro_batches=micro_batches) for micro_batches in ((256,), (128, 128), (128, 64, 64), (128, 64, 32, 32))]
        self.assertEqual(seconds(plan_of() | {"choices": choices}, link, cost), min(seconds(choice, link, cost) for choice in choices))

    def test_micro_batches_hide_the_wire_unless_the_only_core_computes(self):
        link, micro_batches = Link(1e9, 0.1e-3), (128, 64, 64)
        whole = seconds(plan_of(), link)
        self.assertLess(seconds(plan_of(micro_batches=micro_batches), link), whole)
        self.assertGreater(seconds(plan_of(micro_batches=micro_batches, cores=1), link), seconds(plan_of(micro_batches=micro_batches), link))
        planned = plan_of(micro_batches=micro_batches)
        self.assertGreater(simulate.hidden_share(planned, link, simulate.simulate(planned, link, FREE), FREE), 0.5)

    def test_a_burst_passes_at_once(self):
        link = Link(1e8, 0.0)
        self.assertAlmostEqual(seconds(plan_of(), Link(1e8, 0.0, 10**9)), COMPUTE)
        self.assertLess(seconds(plan_of(), Link(1e8, 0.0, 50_000)), seconds(plan_of(), link))

    def test_slower_is_never_faster(self):
        for cores in (1, 4):
            planned = plan_of(4, (128, 64, 64), cores=cores, speeds=(1.0, 0.7))
            for slower in ([seconds(planned, Link(rate, 1e-3)) for rate in (1e10, 1e9, 1e8, 1e7)],
                           [seconds(planned, Link(1e9, trip)) for trip in (0.0, 1e-4, 1e-3, 1e-2)],
                           [seconds(planned, Link(1e9, 1e-3), simulate.MessageCost(each, 1e-9)) for each in (0.0, 1e-5, 1e-4, 1e-3)]):
                self.assertEqual(slower, sorted(slower))
                self.assertLess(slower[0], slower[-1])

    def test_all_time_of_a_node_is_accounted_for(self):
        planned, link = plan_of(3, (128, 64, 64), cores=1, speeds=(1.0, 0.6)), Link(1e9, 1e-3)
        found = simulate.simulate(planned, link, simulate.MessageCost())
        for node, described in enumerate(planned["nodes"]):
            spent = found["compute_seconds"][node] + found["message_seconds"][node] + found["wait_seconds"][node]
            self.assertAlmostEqual(spent, found["seconds_per_step"])
            self.assertAlmostEqual(found["compute_seconds"][node], described["compute_seconds"])
            sent = sum(sum(exchange["bytes"][node]) for exchange in planned["exchanges"])
            self.assertAlmostEqual(found["wire_seconds"][node], link.seconds(sent))

    def test_stragglers_cost_more_with_more_nodes(self):
        def with_jitter(nodes):
            return seconds(plan_of(nodes), jitter=0.1)

        self.assertAlmostEqual(with_jitter(2), COMPUTE * (1 + 0.1 * (1 + 1 / 2)))
        self.assertLess(with_jitter(2), with_jitter(16))

    def test_causes(self):
        self.assertGreater(simulate.explain(plan_of(), Link(1e9, 0.1))["latency"], 0.09)
        self.assertGreater(simulate.explain(plan_of(size=10**8), Link(1e9, 0.0))["wire"], 1.0)
        self.assertAlmostEqual(simulate.explain(plan_of(2, speeds=(1.0, 0.5)), INFINITE, FREE)["imbalance"], COMPUTE / 2)


class Dense(unittest.TestCase):
    def test_a_ring_of_four(self):
        self.assertEqual(dense.needs(1_000_000_000, 4, 1e9), {"memory_bytes": 16_000_000_000, "allreduce_bytes": 6e9, "allreduce_seconds": 48.0})


@unittest.skipUnless("MODELET_PROGRAMS" in os.environ, "MODELET_PROGRAMS is not set")
class OfAPlan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.modelet = pathlib.Path(os.environ["MODELET_PROGRAMS"]) / "modelet"
        subprocess.run([self.modelet, "data", "synth", folder.name, "--rows", "300", "--rows-test", "10", "--features", "500", "--labels", "2000",
                        "--features-per-row", "20"], check=True, stdout=subprocess.DEVNULL)
        self.settings = [f"data.train={folder.name}/train.mlt", f"data.test={folder.name}/test.mlt"]

    def plan(self, nodes, *settings):
        return simulate.plan(self.modelet, ROOT / "experiments/quickstart.toml", nodes, [*self.settings, *settings], cores=4, gflops=[50.0], memory_gbps=[20.0])

    def test_the_simulator_adds_up_to_the_plan(self):
        alone = self.plan(1)
        self.assertAlmostEqual(seconds(alone), alone["seconds_per_step"])
        for settings in ([], ["model.hidden=[64,32]", "optimizer.clip=1"], ["sampling.mode=lsh"]):
            planned = self.plan(3, *settings)
            for node, described in enumerate(planned["nodes"]):
                self.assertEqual(described["bytes_sent_per_step"], sum(sum(exchange["bytes"][node]) for exchange in planned["exchanges"]))
            found = simulate.simulate(planned, Link(1e9, 1e-3))
            self.assertGreater(found["seconds_per_step"], max(described["compute_seconds"] for described in planned["nodes"]))
            self.assertEqual(planned["selects_by_activations"], "sampling.mode=lsh" in settings)
            self.assertEqual([sum(exchange["exchange"] == "output" for exchange in choice["exchanges"]) for choice in planned["choices"]], [1, 2, 3, 4])
        self.assertNotIn("choices", self.plan(3, "exchange.micro_batches=2"))
        with self.assertRaisesRegex(RuntimeError, "cluster.replicas"):
            self.plan(2, "cluster.replicas=2")

    @unittest.mock.patch("curves.NODES", [1, 2, 4, 8])
    def test_curves(self):
        found = curves.curves(self.modelet, ROOT / "experiments/quickstart.toml", self.settings, core=CORE)
        self.assertEqual(len(found["points"]), len(curves.BATCHES) * len(curves.CORES) * len(curves.RATES) * len(curves.ROUND_TRIPS) * len(curves.NODES))
        self.assertTrue(all(limit["stopped"] for limit in found["limits"] if limit["round_trip"] == 20e-3), "so small a model cannot hide 20 ms")
        page = curves.html(found)
        self.assertEqual(page.count("<svg"), len(curves.BATCHES))
        self.assertIn("because of the latency of the rounds", page)


if __name__ == "__main__":
    unittest.main()
