"""`modelet train TRAIN TEST`: keys that are not given are chosen for the data, reported, and written to a file that repeats the run."""
import json
import shutil
import subprocess
import unittest

from programs import PROGRAMS, ProgramTest, checkpoint_files, finished, newest_checkpoint

FEW_EPOCHS = ("--set", "train.epochs=2")


class Recipe(ProgramTest):
    def choose(self, out, *arguments, train="data/train.txt", test="data/test.txt", **options):
        return self.modelet("train", train, test, "--out", self.folder / out, "--json", *arguments, **options)

    def chosen(self, program):
        """{key: value} of the choice, as text."""
        (recipe,) = program.events("recipe")
        return {setting["key"]: setting["value"] for setting in recipe["chosen"]}

    def test_two_paths_are_enough_and_the_file_repeats_the_run(self):
        subprocess.run([PROGRAMS / "modelet", "data", "synth", "larger", "--text", "--rows", "5000", "--rows-test", "500", "--features", "500",
                        "--labels", "100", "--features-per-row", "15", "--labels-per-row", "2"],
                       cwd=self.folder, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        first = self.choose("first", "--set", "train.seed=3", "--set", "train.batch=16", train="larger/train.txt", test="larger/test.txt")
        (recipe,) = first.events("recipe")
        self.assert_documented([recipe], ["recipe"])
        self.assertEqual(first.events("started")[0]["run"], "larger")
        self.assertEqual(recipe["given"], ["data.test", "data.train", "train.batch", "train.seed"])
        self.assertGreater(len(recipe["trials"]), 1)
        self.assertEqual(recipe["trials"][0]["name"], "the rules' recipe")
        for text in ("model.loss", "given, and left as they are: data.test, data.train, train.batch, train.seed", "trial 1 of"):
            self.assertIn(text, first.stderr)
        for setting in recipe["chosen"]:
            self.assertTrue(setting["reason"], setting)
            self.assertIn(setting["reason"], first.stderr)

        file = self.folder / "first/experiment.toml"
        self.assertIn("seed = 3  # given\n", file.read_text())
        again = self.modelet("train", file, "--out", self.folder / "again", "--json")
        self.assertEqual(again.events("recipe"), [])
        self.assertEqual(checkpoint_files(newest_checkpoint(self.folder / "again")), checkpoint_files(newest_checkpoint(self.folder / "first")))
        self.assertEqual(finished(again)["p_at_1"], finished(first)["p_at_1"])
        self.assertGreater(finished(first)["p_at_1"], 0.3)  # a guess is right in one of twenty

        untried = self.choose("untried", "--set", "train.seed=3", "--set", "train.batch=16", "--trial-share", "0", train="larger/train.txt", test="larger/test.txt")
        self.assertEqual(untried.events("recipe")[0]["trials"], [])

    def test_paths_with_characters_of_toml(self):
        for out, name in enumerate(('a "quoted" folder', "back\\slash", "'single'")):
            with self.subTest(name=name):
                folder = self.folder / name
                folder.mkdir()
                for file in ("train.txt", "test.txt"):
                    shutil.copy(self.folder / "data" / file, folder)
                program = self.choose(f"toml-{out}", *FEW_EPOCHS, train=folder / "train.txt", test=folder / "test.txt")
                self.assertGreater(finished(program)["steps"], 0)

    def test_the_test_data_decides_nothing(self):
        other = self.folder / "other-test.txt"
        lines = (self.folder / "data/test.txt").read_text().splitlines()
        features = [line.split(" ", 1)[1] for line in lines[1:]]
        other.write_text("\n".join([lines[0]] + [f"0 {text}" for text in features]) + "\n")
        usual, with_other = self.choose("usual", *FEW_EPOCHS), self.choose("other", *FEW_EPOCHS, test=other)
        self.assertEqual(self.chosen(usual), self.chosen(with_other))
        self.assertEqual(checkpoint_files(newest_checkpoint(self.folder / "usual")), checkpoint_files(newest_checkpoint(self.folder / "other")))

    def test_given_keys_stay(self):
        program = self.choose("given", *FEW_EPOCHS, "--set", "model.hidden=[48]", "--set", "sampling.mode=uniform", "--set", "sampling.uniform=77")
        self.assertFalse({"model.hidden", "train.epochs", "sampling.mode", "sampling.uniform"} & set(self.chosen(program)))
        text = (self.folder / "given/experiment.toml").read_text()
        for line in ("hidden = [48]  # given\n", "uniform = 77  # given\n", "epochs = 2  # given\n"):
            self.assertIn(line, text)
        self.assertEqual(program.events("started")[0]["epochs"], 2)

    def test_settings_may_come_before_paths(self):
        paths = ["data/train.txt", "data/test.txt"]
        setting = ["--set", "train.epochs=1"]
        for number, arguments in enumerate((setting + paths, [paths[0], *setting, paths[1]])):
            program = self.modelet("train", *arguments, "--out", self.folder / f"order-{number}", "--json")
            self.assertEqual(program.events("started")[0]["epochs"], 1)

    def test_a_file_that_leaves_keys_open(self):
        partly = self.folder / "partly.toml"
        partly.write_text('[data]\ntrain = "data/train.txt"\ntest = "data/test.txt"\n[train]\nepochs = 2\n')
        program = self.modelet("train", partly, "--choose", "--out", self.folder / "partly", "--json")
        self.assertEqual(program.events("recipe")[0]["given"], ["data.test", "data.train", "train.epochs"])
        self.assertEqual(program.events("started")[0]["run"], "partly")
        plain = self.modelet("train", partly, "--out", self.folder / "plain", "--json")
        self.assertEqual(plain.events("recipe"), [])
        self.assertIn("\nhidden = [128]\n", (self.folder / "plain/experiment.toml").read_text())

    def test_text_counts_and_few_samples(self):
        """Words, tables of words, and counts whose rows have no common length; each with too few samples to hold some out."""
        words = [("red", "apple cherry rose"), ("blue", "sky sea ice"), ("green", "grass leaf frog")]
        rows = [(label, text.split()[i % 3], text.split()[(i + 1) % 3]) for i in range(30) for label, text in words]
        files = {"words.txt": "".join(f"__label__{label} {a} {b}\n" for label, a, b in rows),
                 "words.csv": "label,text\n" + "".join(f"{label},{a} {b}\n" for label, a, b in rows),
                 "counts.txt": f"{len(rows)} 9 3\n" + "".join(f"{i % 3} {3 * (i % 3) + i % 2}:{100 + i} {3 * (i % 3) + 2}:7\n" for i in range(len(rows)))}
        for name, text in files.items():
            with self.subTest(file=name):
                (self.folder / name).write_text(text)
                program = self.choose(name.replace(".", "-"), train=name, test=name)
                self.assertEqual(self.chosen(program)["model.loss"], "softmax")
                self.assertEqual(self.chosen(program)["data.normalize"], "l2")
                self.assertEqual(program.events("recipe")[0]["trials"], [])
                self.assertGreater(finished(program)["p_at_1"], 0.9)

    def test_a_time_budget_is_passed_on(self):
        program = self.choose("budget", *FEW_EPOCHS, "--time-budget", "1h")
        recipe = program.events("recipe")[0]
        self.assertGreater(recipe["estimated_seconds"], 0)
        self.assertLess(recipe["estimated_seconds"], 3600)
        usual = self.choose("no-budget")
        short = self.choose("short", "--time-budget", "0.000000001s")
        self.assertIn("too short", json.dumps(short.events("recipe")[0]["notes"]))
        self.assertLess(short.events("started")[0]["steps"], usual.events("started")[0]["steps"])

    def test_it_fits_into_the_limits_of_the_process(self):
        """A choice that would fit into the machine's memory, but not into what the process may have."""
        subprocess.run([PROGRAMS / "modelet", "data", "synth", "many", "--text", "--rows", "3000", "--rows-test", "50", "--features", "30000",
                        "--labels", "30000", "--features-per-row", "15", "--labels-per-row", "2"],
                       cwd=self.folder, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        settings = ("--set", "train.epochs=1", "--set", "model.centroids=false", "--set", "model.precision=fp32",
                    "--set", "optimizer.kind=adam", "--set", "model.towers=1", "--trial-share", "0", "--threads", "1")
        width = {}
        for name, limit in (("free", ":"), ("address-space", "ulimit -v 250000"), ("data", "ulimit -d 250000")):
            program = self.run_program("/bin/sh", "-c", f'{limit} && exec "$@"', "sh", PROGRAMS / "modelet", "train", "many/train.txt",
                                       "many/test.txt", "--out", self.folder / name, "--json", *settings)
            width[name] = json.loads(self.chosen(program)["model.hidden"])[0]
            self.assertEqual(program.events("started")[0]["threads"], 1)
        self.assertLess(width["address-space"], width["free"])
        self.assertLess(width["data"], width["free"])

    def test_errors(self):
        for wrong in ("5", "m", "-5m", "0s", "5 m", "5min", "nans", "2000h", "1e9h"):
            self.assert_refused(2, ["--time-budget", wrong, "5m"], "modelet", "train", "data/train.txt", "data/test.txt", f"--time-budget={wrong}")
        self.assert_refused(2, "--trial-share", "modelet", "train", "data/train.txt", "data/test.txt", "--trial-share=-1")
        self.assert_refused(2, "nowhere.txt", "modelet", "train", "data/train.txt", "nowhere.txt")
        self.assert_refused(2, ["data/train.txt", "name test data as well"], "modelet", "train", "data/train.txt")
        self.assert_refused(2, "unknown key", "modelet", "train", "data/train.txt", "data/test.txt", "--set", "train.epoch=3")
        self.assert_refused(2, "leave out --nodes 2", "modelet", "train", "data/train.txt", "data/test.txt", "--time-budget", "1m", "--nodes", "2")
        self.choose("resumed", *FEW_EPOCHS)
        self.assert_refused(2, ["experiment.toml", "--resume"], "modelet", "train", "data/train.txt", "data/test.txt", "--resume", "resumed")


if __name__ == "__main__":
    unittest.main()
