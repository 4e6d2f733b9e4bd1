"""The comparison with Horovod: its plans, what it keeps, and what it reports, also about parts that failed. Runs no baseline."""
import itertools
import json
import pathlib
import re
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/baselines"))
import compare_horovod
import compare_report
import curves
import launch
import svg_plot


def result(seconds, sent, **more):
    return {"seconds_per_step": seconds, "sent_bytes": [sent] * 4, "wait_seconds": [None], "peak_rss_bytes": [1000], "curve": [], "p_at_1": None, **more}


class FakeRunner:
    def __init__(self, cache, results):
        self.cache, self.results, self.calls = cache, results, 0

    def fingerprint(self, part):
        return "programs of today"

    def run(self, part):
        self.calls += 1
        outcome = self.results(part)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def simulation():
    """What curves.curves() would return if two nodes were 1.5 times as fast as one, on any link."""
    points, limits = [], []
    for batch, cores, rate, round_trip in itertools.product(curves.BATCHES, curves.CORES, curves.RATES, curves.ROUND_TRIPS):
        where = {"batch": batch, "cores": cores, "rate": rate, "round_trip": round_trip}
        points += [where | {"nodes": nodes, "seconds_per_step": 0.01 / speedup, "speedup": speedup} for nodes, speedup in ((1, 1.0), (2, 1.5))]
        limits.append(points[-1] | {"stopped": False, "cause": "wire", "causes": {"wire": 1e-3}})
    return {"core": {"gflops": 50.0, "memory_gbps": 10.0}, "jitter": 0.03, "points": points, "limits": limits}


def outcome(part):
    if part["system"] == "link":
        return {"payload_bits_per_second": 9e8}
    if part["system"] == "simulator":
        return simulation()
    if part["data"] == "own cores":
        return result({(1,): 0.010, (0.5,): 0.020, (1, 1): 0.006, (1, 0.5): 0.008}[tuple(part["cores"])], 50_000.0)
    if part["data"] == "billion":
        return result(0.03, 500_000.0, parameters=1_000_000_000)
    if part["system"] in ("PyTorch full", "Modelet full"):
        return {"p_at_1": 0.5, "train_seconds": 10.0, "blas": "?"}
    if part["system"] == "Modelet":
        with_keys = part.get("mode") == compare_report.WITH_KEYS
        return result(0.0125 if with_keys else 0.01, 50_000.0, p_at_1=0.6, curve=[(1.0, 0.6), (2.0, 0.7)])
    if part.get("mode") == "fp16":
        return launch.BaselineFailed("rank 2 of horovod ended with exit code 1: <out of memory>")
    learned = {"p_at_1": 0.65, "curve": [(50.0, 0.6), (100.0, 0.65)]} if part["data"] == "debian-deps" else {}
    return result({"dense": 10.0, "sparse": 6.0}.get(part.get("mode"), 8.0), 625e6 if part.get("mode") == "dense" else 500e6, **learned)


class Comparison(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def report_of(self, plan, runner=None):
        runner = runner or FakeRunner(self.folder, outcome)
        return {"short": False, "machine": {"cores": 2, "cpu": "x"}, "records": [compare_horovod.execute(runner, part) for part in plan]}

    def test_headline(self):
        for plan in (compare_horovod.short_plan(), compare_horovod.full_plan()):
            found = compare_report.headline(self.report_of(plan))
            fastest, dense = found["horovod_fastest"], found["horovod_dense"]
            self.assertEqual(fastest["title"], "Horovod sparse")
            self.assertAlmostEqual(fastest["times"], 600)
            self.assertAlmostEqual(fastest["wire_seconds"], 4.0, msg="500 MB at 1 Gbit/s")
            self.assertAlmostEqual(fastest["wire_times"], 400)
            self.assertAlmostEqual(dense["byte_times"], 12500)
            self.assertEqual([row["seconds"] for row in found["rows"]], sorted(row["seconds"] for row in found["rows"]))
            with_keys = found["rows"][0]
            self.assertEqual(with_keys["title"], "Modelet with keys")
            self.assertAlmostEqual(with_keys["times"], 1.25)
        self.assertIsNone(compare_report.headline(self.report_of([compare_horovod.horovod("dense")])))

    def test_what_failed_is_in_the_report(self):
        report = self.report_of(compare_horovod.full_plan())
        compare_report.write(report, self.folder / "out")
        page = (self.folder / "out/report.html").read_text()
        self.assertIn("Horovod fp16, 4 node(s), 1gbit, amazon 670,091 labels: BaselineFailed: rank 2 of horovod ended with exit code 1: &lt;out of memory&gt;", page)
        self.assertEqual(page.count("<svg"), 5 + len(curves.BATCHES))
        self.assertIn("<td>1 + 1, 1gbit</td><td>6 ms</td><td>1.67</td><td>5 ms</td><td>83%</td>", page)
        self.assertIn("<td>1 + 0.5, 1gbit</td><td>8 ms</td><td>1.25</td><td>6.67 ms</td><td>83%</td>", page)
        self.assertRegex(page, r"computed: what its bytes alone take, Adam in fp32</td><td>48 s</td><td>6 GB</td><td>16 GB</td>")
        self.assertIn("still scales at 2 nodes", page)
        self.assertIn("<td>Horovod dense, 4 node(s), 1gbit, debian-deps</td><td>95 s</td><td>0.6500</td>", page)
        self.assertNotIn("http:", page.replace("http://www.w3.org/2000/svg", ""), "the report fetches nothing")
        written = json.loads((self.folder / "out/report.json").read_text())
        self.assertEqual(len(written["records"]), len(report["records"]))
        self.assertEqual(written["headline"]["horovod_fastest"]["title"], "Horovod sparse")
        nothing = {"short": True, "machine": {"cores": 2}, "records": []}
        compare_report.write(nothing, self.folder / "empty")
        self.assertIn("missing or failed", (self.folder / "empty/report.html").read_text())

    def charts(self, page):
        """The charts of a page: title -> SVG text."""
        return {re.search(r'font-weight="bold">([^<]*)<', chart)[1]: chart for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL)}

    def page(self, report):
        compare_report.write(report, self.folder / "page")
        return (self.folder / "page/report.html").read_text()

    def test_a_system_has_one_colour_and_its_own_curve_in_every_chart(self):
        charts = self.charts(self.page(self.report_of(compare_horovod.full_plan())))
        seen = {}
        for title, chart in charts.items():
            if "Predicted" in title:
                continue
            for colour, name in re.findall(r'fill="(#\w+)">([^<]*)<', chart):
                system = next(system for system in compare_report.COLOURS if name.startswith(system))
                seen.setdefault(system, set()).add(colour)
            self.assertIn(">Modelet<", chart, title)
            self.assertEqual(chart.count(f'stroke="{compare_report.COLOURS["Modelet"]}" stroke-width="2" stroke-dasharray=""'), 2, f"{title}: a curve and its line in the legend")
        self.assertEqual(seen, {system: {colour} for system, colour in compare_report.COLOURS.items() if system in seen})
        self.assertLessEqual({"Modelet", "Horovod", "sharded by hand"}, set(seen))

    def test_a_single_point_is_drawn(self):
        report = self.report_of([compare_horovod.debian("Modelet"), compare_horovod.debian("Horovod", mode="dense")])
        report["records"][0]["result"]["curve"] = [(1.0, 0.65)]
        chart = self.charts(self.page(report))["debian-deps, 4 nodes, 1 Gbit/s"]
        self.assertIn(">Modelet<", chart)
        self.assertEqual(chart.count(f'r="3" fill="{compare_report.COLOURS["Modelet"]}"'), 1)

    def test_names_in_a_legend_are_not_clipped(self):
        long = "a system whose name is rather long, with a mode"
        for name in ("x", long):
            chart = svg_plot.render("t", "x", "y", {name: [(1, 1), (2, 3)]})
            width = int(re.search(r'viewBox="0 0 (\d+) ', chart)[1])
            left = float(re.search(rf'<text x="([\d.]+)" y="[\d.]+" text-anchor="start" fill="#\w+">{name}<', chart)[1])
            self.assertGreaterEqual(width, left + 7 * len(name), "a character of 13 pixels is 7 wide on average")

    def test_tables_are_sorted_by_number(self):
        widths = [int(cell.replace(",", "")) for cell in re.findall(r"<td>([\d,]+) labels</td>", self.page(self.report_of(compare_horovod.full_plan())))]
        self.assertEqual(widths, sorted(widths))
        self.assertGreater(len(set(widths)), 3)

    def test_how_much_others_disturbed_is_said(self):
        report = self.report_of(compare_horovod.short_plan())
        for record, share in zip(report["records"], itertools.chain([0.3, 0.11], itertools.repeat(0.0))):
            record["others_share"] = share
        page = self.page(report | {"notes": ["Recorded <yesterday>."]})
        self.assertIn(f"in 2 of {len(report['records'])} parts other processes used more than 10% of it, at most 30%", page)
        self.assertIn("Recorded &lt;yesterday&gt;.", page)

    def test_the_recorded_report_can_be_written_again(self):
        recorded = json.loads((ROOT / "docs/studies/horovod-report.json").read_text())
        self.assertEqual(self.page(recorded), (ROOT / "docs/studies/horovod-report.html").read_text())

    def test_finished_parts_are_kept_and_failed_ones_are_not(self):
        runner = FakeRunner(self.folder, outcome)
        part, failing = compare_horovod.horovod("dense"), compare_horovod.horovod("fp16")
        record = compare_horovod.execute(runner, part)
        kept = compare_horovod.cache_file(runner, part)
        self.assertEqual(json.loads(kept.read_text()), record)
        self.assertIn("error", compare_horovod.execute(runner, failing))
        self.assertFalse(compare_horovod.cache_file(runner, failing).exists())
        runner.fingerprint = lambda part: "programs of tomorrow"
        self.assertNotEqual(compare_horovod.cache_file(runner, part), kept)

    def test_one_part_that_cannot_run_is_not_the_end(self):
        for trouble in (RuntimeError("modelet plan: no such file"), compare_horovod.clusters.CannotRun("no controller")):
            record = compare_horovod.execute(FakeRunner(self.folder, lambda part: trouble), compare_horovod.own_cores()[0])
            self.assertIn(str(trouble), record["error"])
        with self.assertRaises(compare_horovod.clusters.CannotRun):
            compare_horovod.execute(FakeRunner(self.folder, lambda part: trouble), compare_horovod.billion())

    def test_fingerprint(self):
        """The fingerprints of Modelet's parts depend on its programs and settings, those of the other parts on the scripts."""
        for name in ("modelet", "modelet-agent", "modelet-scheduler"):
            (self.folder / name).write_text("build 1")
        arguments = types.SimpleNamespace(programs=self.folder, python=None, cache=self.folder, set=[])
        for part in compare_horovod.short_plan() + compare_horovod.full_plan():
            self.assertTrue(compare_horovod.Runner(arguments).fingerprint(part))
        parts = [compare_horovod.shape("Modelet"), compare_horovod.horovod("dense"), *compare_horovod.links()[:1]]
        before = [compare_horovod.Runner(arguments).fingerprint(part) for part in parts]
        (self.folder / "modelet-agent").write_text("build 2")
        rebuilt = [compare_horovod.Runner(arguments).fingerprint(part) for part in parts]
        arguments.set = ["exchange.codec=int8"]
        changed = [compare_horovod.Runner(arguments).fingerprint(part) for part in parts]
        self.assertEqual(len({before[0], rebuilt[0], changed[0]}), 3)
        self.assertEqual(before[1:], rebuilt[1:])
        self.assertEqual(before[1:], changed[1:])

    def test_seconds_to_a_precision(self):
        curve = [(10.0, 0.4), (20.0, 0.6), (30.0, 0.5)]
        self.assertAlmostEqual(compare_report.seconds_to(curve, 0.5), 15.0)
        self.assertAlmostEqual(compare_report.seconds_to(curve, 0.2), 10.0, msg="what was before is not known")
        self.assertIsNone(compare_report.seconds_to(curve, 0.61))


if __name__ == "__main__":
    unittest.main()
