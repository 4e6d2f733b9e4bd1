"""experiments/bench: P@k, tables and plots of the comparison with peers, what it keeps, and Modelet as a contestant on a made set; session
neighbours of experiments/baselines. Installs nothing."""
import collections
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "experiments/bench"
RECORDED = ROOT / "docs/studies/peers.json"
sys.path.insert(0, str(BENCH))
import measuring
import peers
import peers_report

MODELET = pathlib.Path(os.environ["MODELET_PROGRAMS"]) / "modelet"
RECIPE = """
[data]
train = "train.txt"
test = "test.txt"
[model]
hidden = [16]
[sampling]
mode = "full"
[train]
epochs = 2
batch = 64
learning_rate = 1e-2
"""


def brute_force(predictions, truth, cut):
    total = 0.0
    for best, labels in zip(predictions, truth):
        seen = []
        for label in best[:cut]:
            if label in labels and label not in seen:
                seen.append(label)
        total += len(seen) / cut
    return total / len(truth)


def record(contestant, points, repeat=1, data_set="tiny", **more):
    return {"set": data_set, "contestant": contestant, "title": peers.CONTESTANTS[contestant].title, "repeat": repeat, "threads": 2, "at": "2026-11-23 12:00:00",
            "fingerprint": "x", "points": [dict(zip(("train_seconds", "predict_seconds", "p_at_1", "p_at_3", "p_at_5"), point)) for point in points],
            "peak_rss_bytes": 5e8, "model_bytes": 2e7, "system": "x", "wall_seconds": 1.0, "others_share": 0.0, **more}


def neighbours_by_brute_force(sessions, before, settings):
    """Items with positive scores, best first. As experiments/baselines/session_neighbours.py, one pair of sessions at a time."""
    if settings["method"] == "own":
        return list(dict.fromkeys(reversed(before)))
    names = list(dict.fromkeys(item for session in sessions for item in session))
    last = {item: at for at, item in enumerate(before, 1)}
    weights = {}
    for number, session in enumerate(sessions):
        common = [item for item in last if item in session]
        if not common:
            continue
        weight = sum(math.exp((last[item] - len(before)) / settings["recency"]) if settings["method"] == "stan" else last[item] / len(before) for item in common)
        weights[number] = weight / math.sqrt(len(last) * len(session)), max(common, key=last.get)
    scores = collections.Counter()
    for number, (weight, star) in weights.items():
        session = sessions[number]
        at = max(place for place, item in enumerate(session) if item == star)
        for place, item in enumerate(session):
            if settings["method"] == "stan":
                scores[item] += weight * math.exp(-abs(place - at) / settings["spread"])
            else:
                rarity = math.log(len(sessions) / sum(item in each for each in sessions)) if settings["idf"] else 1
                scores[item] += weight * max(1 - 0.1 * (len(before) - last[star]), 0) * rarity
    return sorted((item for item in scores if scores[item] > 1e-12), key=lambda item: (-round(scores[item], 9), names.index(item)))


class SessionNeighbours(unittest.TestCase):
    def test_against_brute_force(self):
        rng = random.Random(3)
        items = [f"i{number}" for number in range(30)]
        sessions = [[rng.choice(items) for _ in range(rng.randrange(1, 9))] for _ in range(80)]  # fewer than the neighbours that are kept
        test = [([rng.choice([*items, "new"]) for _ in range(rng.randrange(1, 9))], rng.choice(items)) for _ in range(60)]
        with tempfile.TemporaryDirectory() as folder:
            train_file, test_file = pathlib.Path(folder) / "train.txt", pathlib.Path(folder) / "test.txt"
            train_file.write_text("".join(" ".join(session) + "\n" for session in sessions))
            test_file.write_text("".join(" ".join(before) + f"\t{target}\n" for before, target in test))
            lines = subprocess.run(["/usr/bin/python3", ROOT / "experiments/baselines/session_neighbours.py", "--train", train_file, "--test", test_file,
                                    "--k", "20"], check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout.splitlines()
        tested = [result for result in map(json.loads, lines) if result["event"] == "tested"]
        self.assertEqual([result["method"] for result in tested], ["own", "vsknn", "stan"])
        for settings in tested:
            hits = reciprocal = 0
            for before, target in test:
                best = neighbours_by_brute_force(sessions, [item for item in before if item in items], settings)[:20]
                if target in best:
                    hits += 1
                    reciprocal += 1 / (best.index(target) + 1)
            self.assertAlmostEqual(settings["recall_at_20"], hits / len(test), msg=str(settings))
            self.assertAlmostEqual(settings["mrr_at_20"], reciprocal / len(test), delta=1e-4, msg=str(settings))  # rounding may change the order of equal scores


class Precision(unittest.TestCase):
    def test_against_brute_force(self):
        rng = random.Random(7)
        names = [str(label) for label in range(12)]
        truth = [set(rng.sample(names, rng.randrange(6))) for _ in range(300)]
        predictions = [[rng.choice(names) for _ in range(rng.randrange(8))] for _ in truth]  # too few, too many, some twice
        found = measuring.precision(predictions, truth)
        self.assertEqual(list(found), ["p_at_1", "p_at_3", "p_at_5"])
        for cut in (1, 3, 5):
            self.assertAlmostEqual(found[f"p_at_{cut}"], brute_force(predictions, truth, cut), places=12)

    def test_a_lost_row_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "predictions for 1 rows, of 2"):
            measuring.precision([["1"]], [{"1"}, {"2"}])


class Report(unittest.TestCase):
    def test_medians_and_the_best_point(self):
        runs = [record("parabel", [(seconds, 1, 0.5, 0.4, 0.3)], repeat) for repeat, seconds in enumerate((30, 50, 31), 1)]
        runs += [record("fasttext", [(1, 0.1, 0.2, 0.1, 0.1), (2, 0.1, 0.4, 0.2, 0.15), (4, 0.1, 0.3, 0.2, 0.1)])]
        lines = peers_report.table({"records": runs}, "tiny")
        self.assertEqual(lines[2:], ["| Parabel (Omikuji, 3 trees) | 50.0 | 40.0 | 30.0 | 31.0 s | 1.0 s | 500 MB | 20 MB |",
                                     "| fastText, hierarchical softmax | 40.0 | 20.0 | 15.0 | 2.0 s | 0.1 s | 500 MB | 20 MB |"])
        chart = peers_report.plot({"records": runs}, "tiny", 1)
        self.assertEqual(chart.count(f'r="3" fill="{peers_report.COLOURS["fasttext"]}"'), 3)
        self.assertEqual(chart.count(f'r="3" fill="{peers_report.COLOURS["parabel"]}"'), 1)

    def test_bounds(self):
        runs = [record("parabel", [(30, 1, 0.5, 0.4, 0.3)], data_set="debian-deps"), record("modelet", [(61, 1, 0.5, 0.41, 0.29)], data_set="debian-deps"),
                record("modelet-recipe", [(90, 1, 0.506, 0.4, 0.304)], data_set="debian-deps")]
        reached = {what: reached for what, _, _, reached in peers_report.bounds({"records": runs})}
        self.assertEqual(reached, {"debian-deps: P@1 of two paths against parabel": True, "debian-deps: P@3 of two paths against parabel": True,
                                   "debian-deps: P@5 of two paths against parabel": False,
                                   "debian-deps: two paths take so many times the seconds of Parabel (Omikuji, 3 trees)": False,
                                   "debian-deps: P@1 of the recipe": True, "debian-deps: P@5 of the recipe": False})

    def test_every_label_tree_is_a_bound(self):
        runs = [record("modelet", [(61, 1, 0.5, 0.41, 0.29)]), record("bonsai", [(90, 1, 0.49, 0.4, 0.3)])]
        reached = {what: reached for what, _, _, reached in peers_report.bounds({"records": runs})}
        self.assertEqual(reached, {"tiny: P@1 of two paths against bonsai": True, "tiny: P@3 of two paths against bonsai": True, "tiny: P@5 of two paths against bonsai": False})

    def test_failures_and_a_busy_machine_are_told(self):
        failed = {name: value for name, value in record("pecos", []).items() if name != "points"} | {"error": "out of memory"}
        text = peers_report.text({"records": [failed, record("parabel", [(30, 1, 0.5, 0.4, 0.3)], others_share=0.7)], "notes": ["A note."]})
        self.assertIn("XR-Linear (PECOS) on tiny failed: out of memory", text)
        self.assertIn("in 1 of 1 runs other processes used more than 10% of it, at most 70%", text)
        self.assertTrue(text.endswith("A note."))

    def test_every_contestant_has_a_colour(self):
        self.assertEqual(set(peers_report.COLOURS), set(peers.CONTESTANTS))
        self.assertEqual(len(set(peers_report.COLOURS.values())), len(peers_report.COLOURS))

    def test_recorded_results(self):
        """The document has the tables that follow from its results, and the plots can be drawn."""
        results = json.loads(RECORDED.read_text(encoding="utf-8"))
        page = RECORDED.with_suffix(".md").read_text(encoding="utf-8")
        for data_set in peers_report.sets(results):
            self.assertIn("\n".join(peers_report.table(results, data_set)), page)
        with tempfile.TemporaryDirectory() as folder:
            for file in peers_report.write_plots(results, pathlib.Path(folder)):
                self.assertEqual(file.read_text(encoding="utf-8"), RECORDED.with_name(f"peers-{file.name}").read_text(encoding="utf-8"), file.name)


class FastText(unittest.TestCase):
    PROGRAM = """#!/bin/sh
case "$*" in
  predict*) echo __label__1; echo __label__2 ;;
  *"-lr 1.0"*) echo "Encountered NaN." >&2; exit 1 ;;
  *) while [ "$1" != -output ]; do shift; done; touch "$2.bin" ;;
esac
"""

    def test_half_the_learning_rate_where_it_fails(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program = folder / "fasttext"
            program.write_text(self.PROGRAM)
            program.chmod(0o755)
            text = folder / "text"
            text.write_text("2 3 3\n1 0:1\n2 1:1\n")
            job = peers.Job(None, text, text, [{"1"}, {"2"}], 1, 1, None, [], folder, folder / "log")
            with unittest.mock.patch("peers.fasttext_program", lambda: program):
                (point,) = peers.run_fasttext(job, {"loss": "hs", "dim": 2, "lr": 1.0, "epoch": [4]})["points"]
        self.assertEqual((point["lr"], point["p_at_1"]), (0.5, 1.0))


class Comparison(unittest.TestCase):
    """The program itself, on a data set that is made here."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        subprocess.run([MODELET, "data", "synth", cls.folder / "made", "--rows", "600", "--rows-test", "200", "--features", "200", "--labels", "60", "--text"],
                       check=True, stdout=subprocess.DEVNULL)
        (cls.folder / "made/made.toml").write_text(RECIPE)

    def command(self, out, *more):
        return [sys.executable, "-B", BENCH / "against_peers.py", "--data", self.folder, "--sets", "made", "--peers", "modelet-recipe,modelet-fast", "--threads", "1",
                "--modelet", MODELET, "--out", out, *more]

    def compare(self, out, *more, code=0):
        done = subprocess.run(self.command(out, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300,
                              env=os.environ | {"MODELET_CACHE": str(self.folder / "cache")})
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_a_made_set(self):
        out = self.folder / "out"
        done = self.compare(out)
        self.assertIn("Modelet, in the least time on made is left out: there is no made-fast.toml", done.stderr)
        (kept,) = json.loads((out / "against_peers.json").read_text())["records"]
        (point,) = kept["points"]
        self.assertGreater(kept["model_bytes"], 4 * 16 * (200 + 60), "fp32 weights of both layers")
        self.assertLess(kept["model_bytes"], 2 * 4 * 16 * (200 + 60), "without the optimiser's state")
        own = [json.loads(line) for line in (out / "logs/made-modelet-recipe.jsonl").read_text().splitlines()][-1]
        self.assertAlmostEqual(point["p_at_5"], own["p_at_5"], places=4, msg="Modelet's own figure and the one of its predictions")
        self.assertGreaterEqual(point["train_seconds"], own["train_seconds"] - 1e-3)
        self.assertIn("| Modelet, tuned recipe | ", done.stdout)
        self.assertEqual(sorted(file.name for file in out.glob("*.svg")), ["made-p1.svg", "made-p5.svg"])

        self.assertIn("kept from", self.compare(out).stderr, "a result is not measured twice")
        self.assertNotIn("kept from", self.compare(out, "--set", "train.epochs=1").stderr, "but with other settings it is another one")

    def test_a_failure_is_kept_and_told(self):
        done = self.compare(self.folder / "failed", "--set", "train.epochs=0", code=1)
        self.assertRegex(done.stdout, r"Modelet, tuned recipe on made failed: modelet ended with exit code 2: .*train.epochs")

    def test_interrupted(self):
        running = subprocess.Popen(self.command(self.folder / "interrupted", "--set", "train.epochs=100000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True, env=os.environ | {"MODELET_CACHE": str(self.folder / "cache")})
        while not (self.folder / "interrupted/logs/made-modelet-recipe.log").exists():  # one of the programs runs
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)  # what Ctrl-C does
        _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 130, said)
        self.assertIn("call it again to go on", said)
        with self.assertRaises(ProcessLookupError, msg="a program has outlived the comparison"):
            os.killpg(running.pid, 0)


if __name__ == "__main__":
    unittest.main()
