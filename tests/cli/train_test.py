"""`modelet train`: the contract of its output, that it learns, and that nodes and codecs do not change what is learned."""
import collections
import json
import re
import signal
import subprocess
import unittest
import urllib.error
import urllib.request

from programs import ENDLESS, LABELS, PROGRAMS, STEPS_PER_EPOCH, ProgramTest, finished, losses, wait_until


class Train(ProgramTest):
    def constant_predictor(self):
        """The P@1 of always answering with the most frequent label of the training data."""
        def label_lists(name):
            lines = (self.folder / "data" / name).read_text().splitlines()[1:]
            return [line.split(" ")[0].split(",") for line in lines]
        counts = collections.Counter(label for labels in label_lists("train.txt") for label in labels)
        best = counts.most_common(1)[0][0]
        test = label_lists("test.txt")
        return sum(best in labels for labels in test) / len(test)

    def test_output_is_the_contract(self):
        run = self.train("contract", "--set", "train.evaluate_every=2")
        events = run.events()
        self.assertEqual(len(events), len(run.stdout.splitlines()), "standard output is JSON Lines and nothing else")
        steps = 5 * STEPS_PER_EPOCH
        self.assertEqual([event["event"] for event in events if event["event"] != "progress"],
                         ["started"] + 4 * ["epoch"] + ["checkpoint", "epoch", "finished"])
        started = events[0]
        self.assertEqual((started["run"], started["steps"], started["nodes"], started["threads"], started["labels"]),
                         ("small", steps, 1, 1, LABELS))
        self.assertEqual([event["step"] for event in run.events("progress")], list(range(1, steps + 1)))
        for event in run.events("progress") + run.events("epoch"):
            self.assertIsInstance(event["loss"], float)
        self.assertEqual([("p_at_1" in event) for event in run.events("epoch")], [False, True, False, True, True])

        last = events[-1]
        figures = {f"{name}_at_{k}" for name in ("p", "ndcg", "recall", "mrr", "psp") for k in (1, 3, 5)}
        self.assertEqual(set(last), {"event", "time", "train_seconds", "samples_per_second", "steps", "bytes_sent_per_node_per_step",
                                     "peak_rss_bytes", "checkpoint"} | figures)
        self.assertEqual(last["steps"], steps)
        self.assertEqual(last["bytes_sent_per_node_per_step"], 0)
        for key in ("train_seconds", "samples_per_second", "peak_rss_bytes"):
            self.assertGreater(last[key], 0)
        self.assertEqual(last["checkpoint"], str(self.folder / f"contract/checkpoints/step-{steps:010}"))
        self.assertEqual(last["p_at_1"], run.events("epoch")[-1]["p_at_1"])

        log = (self.folder / "contract/log.jsonl").read_text()
        self.assertEqual([json.loads(line) for line in log.splitlines()], events)
        self.assertIn('mode = "uniform"', (self.folder / "contract/experiment.toml").read_text())
        self.assertIn(str(self.folder / "contract"), run.stderr)
        for line in run.stderr.splitlines():
            self.assertFalse(line.startswith("{"), line)

        constant = self.constant_predictor()
        self.assertGreater(last["p_at_1"], constant + 0.2)
        self.assertGreater(last["p_at_1"], 2 * constant)
        self.assertLess(run.events("epoch")[-1]["loss"], 0.7 * run.events("epoch")[0]["loss"])

    def test_a_model_is_in_memory_once(self):
        """Also while a checkpoint is written, and while the best one is read again at the end."""
        subprocess.run([PROGRAMS / "modelet", "data", "synth", "many", "--text", "--rows", "600", "--rows-test", "50", "--features", "300",
                        "--labels", "40000", "--features-per-row", "15", "--labels-per-row", "2"],
                       cwd=self.folder, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        peak = {}
        for width in (16, 384):
            run = self.train(f"width-{width}", "--set", "data.train=many/train.txt", "--set", "data.test=many/test.txt", "--set", "train.epochs=2",
                             "--set", "data.validation=0.1", "--set", "train.patience=5", "--set", f"model.hidden=[{width}]",
                             "--set", "modelets.output_modelets=1")
            peak[width] = finished(run)["peak_rss_bytes"]
        parameters = 3 * 4 * (384 - 16) * 40000  # a weight, and two numbers of its optimiser
        self.assertLess(peak[384] - peak[16], 1.3 * parameters)

    def test_unused_features_take_nothing(self):
        lines = (self.folder / "data/train.txt").read_text().splitlines()
        rows, _, labels = lines[0].split()
        test = (self.folder / "data/test.txt").read_text().splitlines()
        for name, text in (("train.txt", lines), ("test.txt", test)):
            first = text[0].split()
            (self.folder / f"vast-{name}").write_text("\n".join([f"{first[0]} {20 << 20} {first[2]}", *text[1:]]) + "\n")
        few = self.train("few")
        vast = self.train("vast", "--set", "data.train=vast-train.txt", "--set", "data.test=vast-test.txt")
        self.assertEqual(losses(vast), losses(few))
        self.assertEqual(finished(vast)["p_at_1"], finished(few)["p_at_1"])
        self.assertLess(finished(vast)["peak_rss_bytes"], finished(few)["peak_rss_bytes"] + (16 << 20))
        size = {name: sum(path.stat().st_size for path in (self.folder / name / "checkpoints").rglob("*.*")) for name in ("few", "vast")}
        self.assertLess(size["vast"], 1.1 * size["few"])
        self.assertEqual(self.modelet("predict", "vast", "vast-test.txt").stdout, self.modelet("predict", "few", "data/test.txt").stdout)

    def test_dashboard(self):
        """The page of a run, for who has its address, on a free port or on a given one."""
        run = self.start_training("shown", *ENDLESS, "--dashboard")
        address, token = wait_until(lambda: re.search(r"page of the run: (http://127\.0\.0\.1:\d+)/\?token=(\w{64})#/runs/1\n", run.stderr),
                                    lambda: f"it names its page: {run}").groups()

        def got(path, token=token):
            request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        run.wait_for_step(3)
        (status,) = got("/api/pool")["runs"]
        self.assertEqual((status["run"], status["name"], status["state"]), (1, "small", "running"))
        self.assertGreaterEqual(status["step"], 3)
        events = got("/api/runs/1/events")["events"]
        self.assertEqual(events, run.events()[:len(events)])
        details = got("/api/runs/1")
        self.assertIn("[train]", details["experiment"])
        (placed,) = details["placement"]
        self.assertGreater(placed["modelets"], 0)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            got("/api/pool", "0" * 64)
        self.assertEqual(refused.exception.code, 401)
        port = address.rsplit(":", 1)[1]
        self.assert_refused(1, [f"127.0.0.1:{port}", "in use"], "modelet", "train", self.experiment, "--out", "second", f"--dashboard=127.0.0.1:{port}")
        self.assert_refused(2, "--dashboard", "modelet", "train", self.experiment, "--out", "third", "--dashboard=nowhere")
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), 130, run)

    def test_threads(self):
        for threads in ("1", "2"):
            self.assertEqual(self.train(f"threads-{threads}", "--threads", threads, "--set", "train.epochs=1").events("started")[0]["threads"], int(threads))
        self.assert_refused(2, "--threads", "modelet", "train", self.experiment, "--threads", "1025")

    def test_every_field_is_documented(self):
        run = self.train("documented", "--set", "train.epochs=2", "--set", "train.evaluate_every=0")
        pool = self.train("documented-2", "--set", "train.epochs=2", "--set", "train.evaluate_every=0", "--nodes", "2")
        self.modelet("data", "synth", "few", "--rows", "200", "--rows-test", "50", "--features", "100", "--labels", "5")
        clicks = self.train("documented-few", "--set", "data.train=few/train.mlt", "--set", "data.test=few/test.mlt", "--set",
                            "model.loss=sigmoid", "--set", "modelets.output_modelets=1", "--set", "train.epochs=1")
        held_out = self.train("documented-validation", "--set", "train.epochs=2", "--set", "data.validation=0.2")
        bounded = self.train("documented-bounded", "--set", "train.epochs=1", "--nodes", "2", "--set", "cluster.replicas=2", "--set",
                             "cluster.largest_change=0.0001", "--set", "train.log_every=1")
        self.assert_documented(run.events() + pool.events() + clicks.events() + held_out.events() + bounded.events(),
                               {"started", "progress", "epoch", "checkpoint", "finished"})
        for event in pool.events("progress"):
            self.assertEqual([set(node) for node in event["nodes"]],
                             [{"node", "compute_seconds", "codec_seconds", "wait_seconds"}] * 2)
        for nodes in ("1", "2"):
            name = f"documented-interrupted-{nodes}"
            stopped = self.start_training(name, *ENDLESS, "--nodes", nodes)
            stopped.wait_for_step(1)
            stopped.signal(signal.SIGINT)
            self.assert_ends(stopped, 130)
            self.assert_documented(stopped.events("interrupted"), {"interrupted"})
            failed = self.train(name, "--resume", self.folder / name, "--set", "train.seed=5", "--nodes", nodes, code=2)
            self.assert_documented(failed.events(), {"failed"})
        evaluated = [event for name, data in (("documented", "data/test.txt"), ("documented-few", "few/test.mlt"))
                     for event in self.modelet("eval", self.folder / name, data, "--json").events()]
        self.assert_documented(evaluated, {"evaluated"})
        names = self.folder / "names.txt"
        names.write_text("".join(f"label {i}\n" for i in range(LABELS)))
        predicted = self.modelet("predict", self.folder / "documented", "data/test.txt", "--json", "--labels", names, "--limit", "3").events()
        self.assert_documented(predicted, {"Prediction"})
        self.assertEqual({key for line in predicted for entry in line["labels"] for key in entry}, {"label", "score", "name"})

    def test_for_people(self):
        """Without --json all output is for people, on standard error."""
        run = self.modelet("train", self.experiment, "--set", "train.epochs=1")
        self.assertEqual(run.stdout, "")
        for text in ("run folder: ", "epoch 1/1", "P@1 ", "checkpoint: ", "finished"):
            self.assertIn(text, run.stderr)
        (out,) = (self.folder / "runs").iterdir()  # runs/NAME-TIME in the current folder
        self.assertTrue(out.name.startswith("small-"))
        self.assertTrue((out / "log.jsonl").exists())

    def test_runs_that_start_in_the_same_second_have_folders_of_their_own(self):
        runs = [self.start("modelet", "train", self.experiment, "--set", "train.epochs=1", "--set", f"train.seed={seed}",
                           cwd=self.folder / "output") for seed in range(4)]
        for run in runs:
            self.assert_ends(run, 0)
        self.assertEqual(len(list((self.folder / "output/runs").glob("small-*/checkpoints"))), 4)

    def test_a_run_that_does_not_begin_leaves_no_folder(self):
        here = self.folder / "nothing"
        here.mkdir()
        self.modelet("train", self.experiment, "--set", "data.train=none.txt", cwd=here, code=1)
        self.assertEqual(list(here.iterdir()), [])

    def test_the_written_experiment_repeats_the_run(self):
        first = self.train("first", "--set", "train.epochs=1", "--set", "train.seed=7")
        again = self.modelet("train", self.folder / "first/experiment.toml", "--out", self.folder / "again", "--json")
        self.assertEqual(losses(again), losses(first))


class Nodes(ProgramTest):
    """Two and four nodes learn what one node learns."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runs = {}

    def trained(self, nodes, codec):
        name = f"{nodes}-{codec}"
        if name not in self.runs:
            self.runs[name] = self.train(name, "--nodes", nodes, "--set", f"exchange.codec={codec}")
            self.assert_no_pool_folders()
        return self.runs[name]

    def test_exact_codec(self):
        one = self.trained(1, "none")
        for nodes in (2, 4):
            run = self.trained(nodes, "none")
            self.assertEqual(run.events("started")[0]["nodes"], nodes)
            for step in range(1, 101):
                self.assertAlmostEqual(losses(run)[step] / losses(one)[step], 1, delta=1e-3, msg=f"{nodes} nodes, step {step}")
            self.assertAlmostEqual(finished(run)["p_at_1"], finished(one)["p_at_1"], delta=0.005)
            self.assertGreater(finished(run)["bytes_sent_per_node_per_step"], 0)
            self.assertEqual(set(finished(run)), set(finished(one)))
            log = (self.folder / f"{nodes}-none/log.jsonl").read_text()
            self.assertEqual([json.loads(line) for line in log.splitlines()], run.events())

    def test_lossy_codecs(self):
        exact = finished(self.trained(2, "none"))
        sent = [exact["bytes_sent_per_node_per_step"]]
        for codec in ("bf16", "int8"):
            run = finished(self.trained(2, codec))
            self.assertAlmostEqual(run["p_at_1"], finished(self.trained(1, "none"))["p_at_1"], delta=0.01, msg=codec)
            sent.append(run["bytes_sent_per_node_per_step"])
        none, bf16, int8 = sent
        self.assertLess(bf16, 0.75 * none)
        self.assertLess(int8, 0.75 * bf16)
        self.assertGreater(int8, 0)


if __name__ == "__main__":
    unittest.main()
