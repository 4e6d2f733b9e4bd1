"""`modelet eval` and `modelet predict` on checkpoints of one and of four nodes, with and without hash tables."""
import collections
import json
import math
import os
import pathlib
import shutil
import sys
import unittest

from programs import LABELS, PROGRAMS, ProgramTest, checkpoint_files, finished, newest_checkpoint, set_number

TEST_ROWS = 1000


class Model(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runs = {}

    def trained(self, name, *arguments):
        """Returns the folder of a run and its last event. The run is trained once for all tests."""
        if name not in self.runs:
            self.runs[name] = finished(self.train(name, *arguments))
        return self.folder / name, self.runs[name]

    def dense(self):
        return self.trained("dense")

    def hashed(self):
        return self.trained("hashed", "--set", "sampling.mode=lsh", "--set", "sampling.uniform=64", "--set", "sampling.bits=4",
                            "--set", "sampling.rehash_every=10")

    def evaluated(self, run, *arguments):
        (line,) = self.modelet("eval", run, "data/test.txt", "--json", *arguments).events()
        self.assertEqual((line["event"], line["samples"]), ("evaluated", TEST_ROWS))
        return line

    def predicted(self, run, *arguments, data="data/test.txt"):
        return self.modelet("predict", run, data, "--json", *arguments).events()

    def test_eval_is_what_training_said(self):
        run, end = self.dense()
        for path in (run, end["checkpoint"]):
            line = self.evaluated(path)
            for key in ("p_at_1", "p_at_3", "p_at_5"):
                self.assertAlmostEqual(line[key], end[key], places=12)
            self.assertEqual(line["step"], end["steps"])
        line = self.evaluated(run, "--k", "5,2", "--threads", "2")
        self.assertEqual({key for key in line if key.startswith("p_at_")}, {"p_at_2", "p_at_5"})
        self.assertAlmostEqual(line["p_at_5"], end["p_at_5"], places=12)
        prepared = self.modelet("eval", run, "data/test.mlt", "--json").events()[0]
        self.assertEqual(prepared["p_at_1"], end["p_at_1"])
        people = self.modelet("eval", run, "data/test.txt")
        self.assertIn(f"P@1        {end['p_at_1']:.4f}\n", people.stdout)

    def test_without_a_home(self):
        """A cache that cannot be had is done without, and one line says so."""
        run, end = self.dense()
        for number, home in enumerate(("-uHOME", "HOME=/proc/none")):  # root, too, cannot write to /proc
            def modelet(*arguments):
                program = self.run_program("/usr/bin/env", "-uMODELET_CACHE", "-uXDG_CACHE_HOME", home, PROGRAMS / "modelet", *arguments)
                self.assertEqual(program.stderr.count("prepared text is not kept"), 1, str(program))
                return program.events()
            (line,) = modelet("eval", run, "data/test.txt", "--json")
            self.assertEqual(line["p_at_1"], end["p_at_1"])
            self.assertEqual(modelet("predict", run, "data/test.txt", "--json"), self.predicted(run))
            trained = modelet("train", self.experiment, "--out", self.folder / f"homeless-{number}", "--json")
            self.assertEqual(trained[-1]["p_at_1"], end["p_at_1"])

    def test_arrays_are_documented(self):
        """The table of docs/checkpoint_format.md has every array of a checkpoint, with its type, and no others."""
        source = pathlib.Path(__file__).parents[2]
        document = {}
        for line in (source / "docs/checkpoint_format.md").read_text(encoding="utf-8").splitlines():
            cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
            if line.startswith("| `") and len(cells) == 5:
                document[cells[0]] = cells[1].split(", ")
        lsh = ("--set", "sampling.mode=lsh", "--set", "sampling.uniform=64", "--set", "model.hidden=[64,32]", "--set", "train.epochs=1")
        tables = ("--set", "sampling.retrieval=tables", "--set", "sampling.bits=4", "--set", "sampling.rehash_every=7")
        seen = set()
        direct = ("--set", "model.centroids=true", "--set", "model.exclude_own=true", "--set", "model.classifiers=1")
        self.modelet("data", "synth", "rare", "--rows", "50", "--rows-test", "20", "--features", "5000", "--labels", "5")
        rare = ("--set", "data.train=rare/train.mlt", "--set", "data.test=rare/test.mlt", "--set", "modelets.output_modelets=1", "--set", "train.epochs=1")
        for name, settings in (("previews", (*lsh, *direct)), ("tables", (*lsh, *tables)),
                               ("tables-bf16", (*lsh, *tables, "--set", "model.precision=bf16")), ("rare", rare),
                               ("mean", ("--nodes", "2", "--set", "cluster.replicas=2", "--set", "cluster.rule=adam", "--set", "train.epochs=1"))):
            _, end = self.trained(f"documented-{name}", *settings)
            (report,) = (json.loads(line) for line in self.run_program(sys.executable, source / "experiments/python/read_checkpoint.py",
                                                                       end["checkpoint"], "--json").stdout.splitlines())
            for layer in report["layers"]:
                for modelet in layer["modelets"]:
                    for array, what in modelet["arrays"].items():
                        self.assertIn(what["dtype"], document.get(array, ()), array)
                        seen.add(array)
        self.assertEqual(seen, set(document))

    def test_report(self):
        """As text and as a page; of runs that have not finished, were continued at their end, or whose data is away."""
        names = self.folder / "label-names.txt"
        hostile = "</script><b>"
        names.write_text(f"{hostile}\n" + "".join(f"label {i}\n" for i in range(1, LABELS)))
        settings = ("--set", f"data.labels={names}", "--set", "train.epochs=1")
        run, end = self.trained("reported", *settings)
        shown = self.modelet("report", run, "--text").stdout
        for text in (f"P@1                    {100 * end['p_at_1']:.1f} %", f"{end['steps']} steps", "samples/s", "predicted  ", "  true       "):
            self.assertIn(text, shown)
        self.assertNotIn("all-reduce", shown)
        self.assertIn("a dense all-reduce", self.modelet("report", self.trained("four", "--nodes", "4")[0], "--text").stdout)

        self.assertEqual(self.modelet("report", run).stdout, f"{run / 'report.html'}\n")
        page = (run / "report.html").read_text()
        self.assertNotIn(hostile, page)
        report = json.loads(page.split('<script type="application/json" id="report">')[1].split("</script>")[0])
        self.assertEqual(report["events"][-1]["p_at_1"], end["p_at_1"])
        judged = report["judged"]
        self.assertEqual(judged["samples"], TEST_ROWS)  # each has a label
        self.assertAlmostEqual(1 - judged["wrong_samples"] / TEST_ROWS, end["p_at_1"], delta=1e-9)
        self.assertEqual([label["recall"] for label in judged["hardest"]], sorted(label["recall"] for label in judged["hardest"]))
        for sample in judged["wrong"]:
            self.assertFalse(sample["predicted"][0]["right"])
            truth = {label["label"] for label in sample["truth"]}
            for label in sample["predicted"]:
                self.assertEqual(label["right"], label["label"] in truth)
                self.assertEqual(label["name"], hostile if label["label"] == 0 else f"label {label['label']}")
        self.assertEqual(sum(layer["neurons"] for layer in report["layers"] if layer["layer"] == "output"), LABELS)

        other = self.folder / "other.html"
        self.modelet("report", run, "--out", other, "--samples", "2")
        self.assert_refused(2, [f"{other}: exists already", "--force"], "modelet", "report", run, "--out", other)
        self.modelet("report", run, "--out", other, "--force")
        self.assert_refused(2, "log.jsonl: no such file; name the folder of a run", "modelet", "report", self.folder / "data")

        log = run / "log.jsonl"
        events = log.read_text()
        log.write_text(events + next(line for line in events.splitlines(True) if '"started"' in line))
        self.assert_refused(1, "has not finished; continue it with", "modelet", "report", run, "--text")
        self.modelet("report", run)  # as far as it is
        log.write_text(events + "nonsense\n")
        self.assert_refused(1, f"log.jsonl:{len(events.splitlines()) + 1}: no event of a run", "modelet", "report", run)
        log.write_text(events + '{"event":"prog')  # the run was killed while it wrote
        self.modelet("report", run, "--text")
        log.write_text(events)
        self.train("reported", *settings, "--resume", run)
        self.assertNotIn("samples/s", self.modelet("report", run, "--text").stdout)

    def test_report_without_test_data(self):
        run, _ = self.trained("alone", "--set", "train.epochs=1")
        test = self.folder / "data/test.txt"
        away = test.rename(self.folder / "data/away.txt")
        try:
            report = self.modelet("report", run, "--text")
            self.assertIn("P@1", report.stdout)
            self.assertIn("what the model says of it is not in the report", report.stderr)
            self.modelet("report", run)
            self.assertIn("what the model says of it is not in the report", (run / "report.html").read_text())
        finally:
            away.rename(test)

    def test_checkpoint_of_four_nodes(self):
        run, end = self.trained("four", "--nodes", "4")
        line = self.evaluated(run)
        for key in ("p_at_1", "p_at_3", "p_at_5"):
            self.assertAlmostEqual(line[key], end[key], delta=2 / TEST_ROWS)
        _, one = self.dense()
        self.assertEqual(set(checkpoint_files(end["checkpoint"])), set(checkpoint_files(one["checkpoint"])))

    def test_sparse(self):
        run, end = self.hashed()
        self.assertAlmostEqual(self.evaluated(run)["p_at_1"], end["p_at_1"], places=12)
        for run, end in (self.hashed(), self.dense()):
            self.assertAlmostEqual(self.evaluated(run, "--sparse")["p_at_1"], end["p_at_1"], delta=0.01)
        lines = self.predicted(run, "--sparse", "--limit", "200")
        dense = self.predicted(run, "--limit", "200")
        agreed = sum(a["labels"][0]["label"] == b["labels"][0]["label"] for a, b in zip(lines, dense))
        self.assertGreaterEqual(agreed, 198)
        few = self.folder / "few.txt"
        few.write_text("1 400 200\n0 1:1\n")
        self.assert_refused(2, ["--sparse", "at least"], "modelet", "eval", run, few, "--sparse")

    def test_bench_inference(self):
        run, _ = self.dense()
        (line,) = self.modelet("bench", "inference", run, "data/test.txt", "--queries", "200", "--json").events()
        self.assert_documented([line], {"inference"})
        self.assertEqual((line["event"], line["queries"], line["labels"]), ("inference", 200, LABELS))
        self.assertGreaterEqual(line["agreement"], 0.97)
        for way in ("dense", "sparse"):
            self.assertLessEqual(line[f"{way}_p50_us"], line[f"{way}_p99_us"])
        text = self.modelet("bench", "inference", run, "data/test.txt", "--queries", "50").stdout
        for part in ("p50 us", "P@1", "always scored"):
            self.assertIn(part, text)
        self.assert_refused(2, "DATA", "modelet", "bench", "inference", run)

    def test_predict(self):
        run, end = self.dense()
        lines = self.predicted(run)
        self.assertEqual([line["sample"] for line in lines], list(range(TEST_ROWS)))
        for line in lines:
            scores = [entry["score"] for entry in line["labels"]]
            self.assertEqual(len(scores), 5)
            self.assertEqual(scores, sorted(scores, reverse=True))
        truth = [line.split(" ")[0].split(",") for line in (self.folder / "data/test.txt").read_text().splitlines()[1:]]
        hits = sum(str(line["labels"][0]["label"]) in labels for line, labels in zip(lines, truth))
        self.assertAlmostEqual(hits / TEST_ROWS, end["p_at_1"], places=12)

        some = self.predicted(run, "--k", "2", "--limit", "300")
        self.assertEqual([line["labels"] for line in some], [line["labels"][:2] for line in lines[:300]])
        self.assertEqual(len(self.predicted(run, "--k", "1000", "--limit", "1")[0]["labels"]), LABELS)

    def test_among_and_threshold(self):
        run, _ = self.dense()
        everything = self.predicted(run, "--k", "1000", "--limit", "50")
        chosen = range(0, LABELS, 7)
        among = self.folder / "among.txt"
        among.write_text("".join(f"{label}\n" for label in chosen))
        for line, all_of_sample in zip(self.predicted(run, "--among", among, "--limit", "50"), everything, strict=True):
            expected = [entry for entry in all_of_sample["labels"] if entry["label"] in chosen][:5]
            self.assertEqual([entry["label"] for entry in line["labels"]], [entry["label"] for entry in expected])
        (self.folder / "question.txt").write_text("5:1\n")
        with (self.folder / "question.txt").open() as question:
            stream = self.modelet("predict", run, "-", "--json", "--among", among, stdin=question).events()
        self.assertTrue(all(entry["label"] in chosen for entry in stream[0]["labels"]))
        threshold = everything[0]["labels"][2]["score"]
        for line, all_of_sample in zip(self.predicted(run, "--threshold", threshold, "--limit", "50"), everything, strict=True):
            self.assertEqual(line["labels"], [entry for entry in all_of_sample["labels"][:5] if entry["score"] >= threshold])
        among.write_text(f"{LABELS}\n")
        self.assert_refused(1, "among.txt:1: there is no label", "modelet", "predict", run, "data/test.txt", "--among", among)

    def test_explain(self):
        run, _ = self.dense()
        for line in self.predicted(run, "--explain", "3", "--k", "2", "--limit", "20"):
            for entry in line["labels"]:
                why = entry["because"]
                self.assertLessEqual(len(why["features"]), 3)
                total = sum(feature["share"] for feature in why["features"]) + why["other_features"] + why["rest"]
                self.assertAlmostEqual(total, entry["score"], delta=0.02)  # batches may be multiplied in bf16
        people = self.modelet("predict", run, "data/test.txt", "--limit", "1", "--k", "1", "--explain", "2").stdout
        self.assertRegex(people, r"(?s)  \d+: score .* =\n +[+-].*feature \d+ \(.*without any feature\n")
        self.assert_refused(2, "--format text or json", "modelet", "predict", run, "data/test.txt", "--explain", "2", "--format", "tsv")
        # Training samples with the label that are most like the sample, which here is one of them.
        lines = (self.folder / "data/train.txt").read_text().splitlines()[1:]
        labels = [{int(label) for label in line.partition(" ")[0].split(",") if label} for line in lines]
        for line in self.predicted(run, "--explain", "1", "--examples", "4", "--k", "2", "--limit", "20", data="data/train.txt"):
            for entry in line["labels"]:
                examples = entry["because"]["examples"]
                self.assertEqual(examples, sorted(examples, key=lambda each: (-each["cosine"], each["sample"])))
                self.assertTrue(all(entry["label"] in labels[each["sample"]] for each in examples))
                if entry["label"] in labels[line["sample"]]:
                    self.assertEqual(examples[0]["sample"], line["sample"])
                    self.assertAlmostEqual(examples[0]["cosine"], 1, places=5)
        people = self.modelet("predict", run, "data/train.txt", "--limit", "1", "--k", "1", "--explain", "2", "--examples", "1").stdout
        self.assertRegex(people, r"like the training sample \d+ \(cosine \d")
        self.assert_refused(2, "--explain", "modelet", "predict", run, "data/train.txt", "--examples", "2")

    def test_figures_of_the_predictions(self):
        """Compares eval with the definitions in docs/metrics.md, computed from the output of predict and the text files."""
        run, end = self.dense()

        def labels_of(file):
            lines = (self.folder / "data" / file).read_text().splitlines()[1:]
            return [{int(label) for label in line.partition(" ")[0].split(",") if label} for line in lines]

        train, truth = labels_of("train.txt"), labels_of("test.txt")
        counts = collections.Counter(label for labels in train for label in labels)
        predicted = [[entry["label"] for entry in line["labels"]] for line in self.predicted(run)]
        line = self.evaluated(run, "--propensity", "0.6,2.6")
        for a, b, figures in ((0.55, 1.5, end), (0.6, 2.6, line)):
            weight = [1 + (math.log(len(train)) - 1) * (b + 1) ** a * (counts[label] + b) ** -a for label in range(LABELS)]
            for k in (1, 3, 5):
                psp = best_psp = ndcg = recall = mrr = 0
                for labels, best in zip(truth, predicted):
                    hits = [rank for rank, label in enumerate(best[:k]) if label in labels]
                    psp += sum(weight[best[rank]] for rank in hits)
                    best_psp += sum(sorted((weight[label] for label in labels), reverse=True)[:k])
                    ndcg += sum(1 / math.log2(rank + 2) for rank in hits) / sum(1 / math.log2(i + 2) for i in range(min(k, len(labels))))
                    recall += len(hits) / len(labels)
                    mrr += 1 / (hits[0] + 1) if hits else 0
                self.assertAlmostEqual(figures[f"ndcg_at_{k}"], ndcg / TEST_ROWS, places=9)
                self.assertAlmostEqual(figures[f"recall_at_{k}"], recall / TEST_ROWS, places=9)
                self.assertAlmostEqual(figures[f"mrr_at_{k}"], mrr / TEST_ROWS, places=9)
                self.assertAlmostEqual(figures[f"psp_at_{k}"], psp / best_psp, places=6)

    def test_chosen_metrics(self):
        run, end = self.dense()
        line = self.evaluated(run, "--metrics", "psp,p", "--k", "3")
        self.assertEqual(set(line), {"event", "step", "samples", "samples_per_second", "p_at_3", "psp_at_3"})
        self.assertEqual(line["psp_at_3"], end["psp_at_3"])
        self.assertEqual(self.modelet("eval", run, "data/test.txt", "--metrics", "ndcg", "--k", "1").stdout, f"nDCG@1     {end['ndcg_at_1']:.4f}\n")
        self.assert_refused(2, ["auc", "sigmoid", "64 labels"], "modelet", "eval", run, "data/test.txt", "--metrics", "auc")
        self.assert_refused(2, "--metrics", "modelet", "eval", run, "data/test.txt", "--metrics", "accuracy")
        self.assert_refused(2, "--propensity", "modelet", "eval", run, "data/test.txt", "--propensity", "-1,2")

    def test_auc_and_log_loss(self):
        """Few labels and sigmoid: two nodes give the same figures, which equal those of the predicted scores."""
        self.modelet("data", "synth", "clicks", "--rows", "800", "--rows-test", "300", "--features", "400", "--labels", "3", "--labels-per-row",
                     "1", "--text")
        options = ("--set", "data.train=clicks/train.mlt", "--set", "data.test=clicks/test.mlt", "--set", "model.loss=sigmoid", "--set",
                   "modelets.output_modelets=2", "--set", "train.epochs=2")
        run, end = self.trained("clicks", *options)
        _, pair = self.trained("clicks-2", *options, "--nodes", "2")
        truth = [{int(label) for label in line.partition(" ")[0].split(",")}
                 for line in (self.folder / "clicks/test.txt").read_text().splitlines()[1:]]
        pairs = [(entry["score"], entry["label"] in truth[line["sample"]])
                 for line in self.modelet("predict", run, "clicks/test.txt", "--json").events() for entry in line["labels"]]
        self.assertEqual(len(pairs), 3 * len(truth))
        right = [score for score, is_label in pairs if is_label]
        wrong = [score for score, is_label in pairs if not is_label]
        auc = sum((r > w) + 0.5 * (r == w) for r in right for w in wrong) / (len(right) * len(wrong))
        log_loss = sum(math.log1p(math.exp(-score if is_label else score)) for score, is_label in pairs) / len(pairs)
        (line,) = self.modelet("eval", run, "clicks/test.txt", "--json").events()
        for figures in (line, end):
            self.assertAlmostEqual(figures["auc"], auc, places=9)
            self.assertAlmostEqual(figures["log_loss"], log_loss, places=6)
        self.assertGreater(auc, 0.6)
        self.assertAlmostEqual(pair["auc"], auc, places=3)
        self.assertAlmostEqual(pair["log_loss"], log_loss, places=3)
        self.assertIn("AUC ", self.modelet("eval", run, "clicks/test.txt").stdout)
        self.assertNotIn("auc", self.modelet("eval", run, "clicks/test.txt", "--json", "--metrics", "p").events()[0])

    def test_label_names(self):
        run, _ = self.dense()
        names = self.folder / "names.txt"
        names.write_text("".join(f"label {i} <ä>\n" for i in range(LABELS)))
        (line,) = self.predicted(run, "--limit", "1", "--labels", names)
        for entry in line["labels"]:
            self.assertEqual(entry["name"], f"label {entry['label']} <ä>")
        people = self.modelet("predict", run, "data/test.txt", "--limit", "3", "--k", "2", "--labels", names)
        self.assertEqual(len(people.stdout.splitlines()), 3)
        self.assertIn(line["labels"][0]["name"], people.stdout.splitlines()[0])
        names.write_bytes(b"".join(b"label %d \xe4\n" % i for i in range(LABELS)))
        (line,) = self.predicted(run, "--limit", "1", "--labels", names)
        for entry in line["labels"]:
            self.assertEqual(entry["name"], f"label {entry['label']} \ufffd", "not UTF-8, but JSON all the same")
        names.write_text("too few\n")
        self.assert_refused(1, "names.txt", "modelet", "predict", run, "data/test.txt", "--labels", names)

    def test_label_names_of_the_experiment(self):
        """A checkpoint can be used where the experiment's file of names is not."""
        names = self.folder / "names-of-run.txt"
        names.write_text("".join(f"label {i}\n" for i in range(LABELS)))
        run, _ = self.trained("named", "--set", "train.epochs=1", "--set", f"data.labels={names}")
        (line,) = self.predicted(run, "--limit", "1")
        self.assertEqual(line["labels"][0]["name"], f"label {line['labels'][0]['label']}")
        names.rename(self.folder / "moved.txt")
        self.assertEqual(self.predicted(run, "--limit", "1"), [line], "the run has a copy")
        (run / "labels.txt").unlink()
        program = self.modelet("predict", run, "data/test.txt", "--json", "--limit", "1")
        self.assertNotIn("name", program.events()[0]["labels"][0])
        for text in (f"{names}: no such file", "--labels FILE"):
            self.assertIn(text, program.stderr)
        self.assert_refused(1, "names-of-run.txt: No such file", "modelet", "predict", run, "data/test.txt", "--labels", names)
        self.assertEqual(self.predicted(run, "--limit", "1", "--labels", "moved.txt"), [line])

    def test_a_model_chooses_no_files(self):
        """It may be a stranger's: neither its experiment nor a link in its folder leads to names elsewhere."""
        names = self.folder / "private.txt"
        names.write_text("".join(f"private {i}\n" for i in range(LABELS)))
        trained, _ = self.trained("strange", "--set", "train.epochs=1", "--set", f"data.labels={names}")
        run = self.folder / "from-a-stranger"
        shutil.copytree(trained, run)
        (run / "labels.txt").unlink()
        (run / "linked").symlink_to(self.folder)
        for copy in (None, names, run / "linked/private.txt", "/dev/zero"):
            if copy is not None:
                (run / "labels.txt").symlink_to(copy)
            program = self.modelet("predict", run, "data/test.txt", "--json", "--limit", "1")
            self.assertNotIn("private", program.stdout)
            self.assertIn(f"{names}: is not in the model's folder", program.stderr)
            self.assertIn("--labels FILE", program.stderr)
            (run / "labels.txt").unlink(missing_ok=True)
        checkpoint = newest_checkpoint(run)
        index = json.loads((checkpoint / "index.json").read_text())
        for line in (f'labels = "{checkpoint}/../../../private.txt"', 'labels = "../../linked/private.txt"', 'labels = "names.txt"'):
            index["experiment"] = "\n".join(line if each.startswith("labels = ") else each for each in index["experiment"].splitlines())
            (checkpoint / "index.json").write_text(json.dumps(index))
            self.assertNotIn("private", self.modelet("predict", run, "data/test.txt", "--json", "--limit", "1").stdout)
        shutil.copy(names, checkpoint / "names.txt")
        self.assertIn("private", self.modelet("predict", run, "data/test.txt", "--json", "--limit", "1").stdout)

    def test_test_data_of_the_run(self):
        """Probabilities are calibrated on it only if the model knows what is in it."""
        test = self.folder / "known.txt"
        shutil.copy(self.folder / "data/test.txt", test)
        run, _ = self.trained("calibrated", "--set", "train.epochs=1", "--set", f"data.test={test}")
        self.assertIn("probability", self.predicted(run, "--proba", "--limit", "1")[0]["labels"][0])
        (newest_checkpoint(run) / "calibration.json").unlink()
        lines = test.read_text().splitlines(True)
        test.write_text("".join([lines[0], *lines[2:], lines[1]]))
        self.assert_refused(2, ["known.txt: these are not the samples", "--calibrate FILE"], "modelet", "predict", run, "data/test.txt", "--proba")
        test.write_text(lines[0] + "0 1:private\n")  # a stranger's model may name any file
        program = self.modelet("predict", run, "data/test.txt", "--proba", code=1)
        self.assertIn("known.txt:2: ", program.stderr)
        self.assertNotIn("private", program.stderr)

    def test_numbers_that_are_not_finite(self):
        """A checkpoint of a stranger, with right checksums."""
        dense, _ = self.dense()
        for layer, array, place, value in (("output", "bias", 3, math.inf), ("input", "weight", 70, math.nan),
                                           ("output", "optimizer.second", 5, -math.inf)):
            run = self.folder / f"infinite-{array}"
            shutil.copytree(dense, run)
            for checkpoint in (run / "checkpoints").iterdir():
                victim = set_number(checkpoint, layer, array, place, value)
            for verb in ("eval", "predict"):
                self.assert_refused(1, [victim.name, f"tensor '{array}': ", f"{value} at [", "must be finite"], "modelet", verb, run, "data/test.txt")
            self.assert_refused(1, f"tensor '{array}'", "modelet", "train", self.experiment, "--out", self.folder / "from-infinite", "--resume",
                                checkpoint, "--set", "train.epochs=9")
        # Finite weights may lead to logits that are not.
        run = self.folder / "huge"
        shutil.copytree(dense, run)
        for checkpoint in (run / "checkpoints").iterdir():
            for place in range(200):
                set_number(checkpoint, "output", "weight", place, 3e38 * (-1) ** place)
                set_number(checkpoint, "input", "weight", place, 3e38)
        self.assertEqual(len(self.predicted(run)), TEST_ROWS)
        self.evaluated(run)

    def test_other_data(self):
        run, _ = self.dense()
        other = self.folder / "other.txt"
        other.write_text("1 400 7\n0 1:1\n")
        self.assert_refused(2, [str(other), "7 labels", str(LABELS)], "modelet", "eval", run, other)
        os.mkfifo(self.folder / "pipe")
        self.assert_refused(1, ["pipe", "is a pipe or a device"], "modelet", "predict", run, "data/test.txt", "--labels", "pipe")

    def test_damaged_checkpoint(self):
        run, _ = self.dense()
        checkpoint = self.folder / "damaged"
        shutil.copytree(self.runs["dense"]["checkpoint"], checkpoint)
        victim = sorted(checkpoint.glob("output.*.safetensors"))[2]
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 0x10
        victim.write_bytes(content)
        for verb in ("eval", "predict"):
            self.assert_refused(1, victim.name, "modelet", verb, checkpoint, "data/test.txt")
        self.assert_refused(1, victim.name, "modelet", "train", self.experiment, "--out", self.folder / "from-damaged", "--resume",
                            checkpoint)
        victim.write_bytes(content[:-1])
        self.assert_refused(1, victim.name, "modelet", "eval", checkpoint, "data/test.txt")
        victim.unlink()
        self.assert_refused(1, victim.name, "modelet", "eval", checkpoint, "data/test.txt")
        index = checkpoint / "index.json"
        index.write_text(index.read_text()[:-200])
        self.assert_refused(1, str(checkpoint), "modelet", "eval", checkpoint, "data/test.txt")


if __name__ == "__main__":
    unittest.main()
