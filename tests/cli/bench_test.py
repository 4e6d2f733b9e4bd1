"""`modelet bench`: what is printed, and that the figures are consistent with each other. No speed is asserted."""
import unittest

from programs import ProgramTest

OUTPUT_KERNELS = {"logits", "hidden gradient", "gradient rows", "softmax", "sigmoid", "gather rows", "lazy Adam"}
KERNELS = {(kernel, precision) for kernel in OUTPUT_KERNELS for precision in ("fp32", "bf16")} | {
    ("embedding bag", "fp32"), ("embedding bag gradient", "fp32")}


class Kernels(ProgramTest):
    def test_lines(self):
        run = self.modelet("bench", "kernels", "--threads", "2", "--seconds", "0.001", "--json")
        lines = run.events()
        self.assert_documented(lines, {"machine", "kernel", "step"})
        limits = {line["threads"]: line for line in run.events("machine")}
        self.assertEqual(list(limits), [1, 2])
        measured = [(line["kernel"], line["precision"], line["width"], line["threads"]) for line in run.events("kernel")]
        self.assertEqual(set(measured), {(*kernel, width, threads) for kernel in KERNELS for width in (128, 512) for threads in (1, 2)})
        self.assertEqual(len(measured), len(set(measured)))
        for line in run.events("kernel"):
            self.assertGreater(line["rate"], 0)
            self.assertAlmostEqual(line["share_of_limit"], line["rate"] / line["limit"])
            machine = limits[line["threads"]]
            if line["unit"] == "GFLOP/s":
                self.assertIn(line["limit"], [machine[key] for key in ("gflops", "bf16_gflops")])
            else:
                self.assertEqual(line["unit"], "GB/s")
                self.assertIn(line["limit"], [machine[key] for key in ("read_gbps", "copy_gbps", "update_gbps")])

        steps = run.events("step")
        self.assertEqual([(line["width"], line["precision"], line["threads"]) for line in steps],
                         [(width, precision, threads) for width in (128, 512) for precision in ("fp32", "bf16") for threads in (1, 2)])
        for line in steps:
            self.assertAlmostEqual(line["limit"], sum(line[part] for part in ("products", "sums", "reading", "changing")))
            self.assertAlmostEqual(line["share_of_limit"], line["limit"] / line["milliseconds"])
            products = 3 * 2 * 256 * 4000 * line["width"]  # batch, active neurons
            peak = limits[line["threads"]]["gflops" if line["precision"] == "fp32" else "bf16_gflops"]
            self.assertAlmostEqual(line["products"] / (products / peak / 1e6), 1, places=2)

    def test_table(self):
        shown = self.modelet("bench", "kernels", "--threads", "1", "--seconds", "0.001").stdout
        for kernel, precision in KERNELS:
            self.assertEqual(shown.count(f"\n  {kernel}, {precision}  "), 2, shown)
        for precision in ("fp32", "bf16"):
            self.assertEqual(shown.count(f"\n  step, {precision}  "), 2, shown)
        self.assertNotIn("2 threads", shown)

    def test_errors(self):
        self.assert_refused(2, "--seconds", "modelet", "bench", "kernels", "--seconds", "0")
        self.assert_refused(2, "--threads", "modelet", "bench", "kernels", "--threads", "-1")
        self.assert_refused(2, "kernels", "modelet", "bench", "kernel")


class Data(ProgramTest):
    def passes(self, path):
        run = self.modelet("bench", "data", path, "--seconds", "0.001", "--json")
        self.assert_documented(run.events(), {"data"})
        return {line["pass"]: line for line in run.events()}

    def test_passes(self):
        text = self.passes("data/train.txt")
        self.assertEqual(list(text), ["lines", "parse", "scan", "batches"])
        size = (self.folder / "data/train.txt").stat().st_size
        self.assertAlmostEqual(text["lines"]["megabytes_per_second"] * text["lines"]["seconds"], size / 1e6)
        self.assertAlmostEqual(text["lines"]["rows_per_second"] * text["lines"]["seconds"], 1601)  # with the header
        self.assertAlmostEqual(text["parse"]["rows_per_second"] * text["parse"]["seconds"], 1600)
        self.assertEqual(list(self.passes("data/train.mlt")), ["scan", "batches"])
        self.assertIn("parse", self.modelet("bench", "data", "data/train.txt", "--seconds", "0.001").stdout)

    def test_formats(self):
        """Formats that need an encoder are fitted and read, with the options of --set."""
        (self.folder / "labelled.txt").write_text("__label__a some words here\n__label__b other words\n" * 50)
        (self.folder / "words.txt").write_text("one two three four one two\n" * 50)
        (self.folder / "labelled.csv").write_text("tag,words\n" + "a,some words\nb,other words\n" * 50)
        (self.folder / "table.csv").write_text("y,c,n\n" + "1,u,3\n0,v,4\n" * 50)
        for name, settings in [
                ("labelled.txt", ["data.format=text", "text.word_ngrams=2"]), ("labelled.txt", []), ("words.txt", ["data.format=words", "words.subsample=0"]),
                ("labelled.csv", ["data.format=csv", "csv.labels=tag", 'csv.text=["words"]']),
                ("table.csv", ["data.format=table", 'table.columns=["label:y", "cat:c", "log:n"]'])]:
            run = self.modelet("bench", "data", name, "--seconds", "0.001", "--json", *(part for s in settings for part in ("--set", s)))
            self.assert_documented(run.events(), {"data"})
            passes = {line["pass"]: line for line in run.events()}
            self.assertEqual(list(passes), ["lines", "fit", "parse", "scan", "batches"])
            size = (self.folder / name).stat().st_size
            for of_text in ("lines", "fit", "parse"):
                self.assertAlmostEqual(passes[of_text]["megabytes_per_second"] * passes[of_text]["seconds"], size / 1e6)
            samples = 50 * 6 if name == "words.txt" else 100
            self.assertAlmostEqual(passes["parse"]["rows_per_second"] * passes["parse"]["seconds"], samples)
        self.assert_refused(2, "text.word_ngram", "modelet", "bench", "data", "labelled.txt", "--set", "text.word_ngram=2")

    def test_errors(self):
        damaged = self.folder / "damaged.txt"
        damaged.write_text("2 10 10\n1 3:1\n1 10:1\n")
        self.assert_refused(1, "damaged.txt:3", "modelet", "bench", "data", damaged)
        self.assert_refused(1, "nowhere.txt", "modelet", "bench", "data", "nowhere.txt")
        self.assert_refused(2, "--batch", "modelet", "bench", "data", "data/train.txt", "--batch", "0")


if __name__ == "__main__":
    unittest.main()
