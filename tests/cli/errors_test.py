"""Mistakes of users: exit code 2 (or 1 for bad files), a message that says what is wrong, where, and what to do; never a run folder."""
import socket
import subprocess
import unittest

from programs import LABELS, PROGRAMS, ProgramTest


class TrainErrors(ProgramTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "never"

    def refused(self, code, texts, *arguments, experiment=None):
        self.assert_refused(code, texts, "modelet", "train", experiment or self.experiment, "--out", self.out, *arguments)
        self.assertFalse(self.out.exists(), "nothing has begun")

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_experiment(self):
        text = self.experiment.read_text()
        line = text.splitlines().index("learning_rate = 1e-2") + 1
        bad = self.write("bad.toml", text.replace("learning_rate", "learning_rat"))
        self.refused(2, [f"{bad}:{line}", "learning_rat", "did you mean", "learning_rate"], experiment=bad)
        bad = self.write("bad.toml", text.replace("batch = 64", "batch = 0"))
        self.refused(2, [str(bad), "train.batch", "1 to "], experiment=bad)
        bad = self.write("bad.toml", text.replace("batch = 64", "batch = "))
        self.refused(2, f"{bad}:", experiment=bad)
        bad = self.write("bad.toml", text.replace('test = "data/test.txt"\n', ""))
        self.refused(2, [str(bad), "data.test"], experiment=bad)
        self.refused(2, "missing.toml", experiment="missing.toml")

    def test_what_is_no_toml(self):
        """What people write instead gets the rule, and the place of the mistake."""
        for number, text in enumerate(('{"data": {"train": "a"}}', "[data]\ntrain = a.txt", "[data]\ntrain = 'a'\n[model]\ncentroids = True")):
            bad = self.write(f"bad{number}.toml", text)
            self.refused(2, [f"{bad}:{len(text.splitlines())}:", "an experiment is TOML"], experiment=bad)
        (self.folder / "bad.toml").write_bytes("[data]\n".encode("utf-16"))
        self.refused(2, ["bad.toml:1:", "UTF-8"], experiment=self.folder / "bad.toml")

    def test_options_and_variables(self):
        """A misspelt option gets the nearest one, and a wrong value the variable that it may come from."""
        self.refused(2, ["--node", "did you mean '--nodes'"], "--node", "2")
        self.refused(2, ["--node", "did you mean '--nodes'"], "--node=2")
        modelet = PROGRAMS / "modelet"
        for variable, value, verb in (("MODELET_SIMD", "foo", "version"), ("MODELET_INSECURE", "maybe", "list"), ("MODELET_SCHEDULER", "foo", "list"),
                                      ("MODELET_KEY", "/nowhere", "list"), ("MODELET_SCHEDULER_KEY", "foo", "list"), ("MODELET_LOG", "loud", "list")):
            with self.subTest(variable=variable):
                self.assert_refused(2, variable, "/usr/bin/env", f"{variable}={value}", modelet, verb)

    def test_overrides(self):
        self.refused(2, ["model.hiden", "did you mean", "model.hidden"], "--set", "model.hiden=[32]")
        self.refused(2, ["train.epochs"], "--set", "train.epochs")
        self.refused(2, ["train.epochs"], "--set", "train.epochs=many")
        self.refused(2, ["train.epochs"], "--set", "train.epochs=-1")
        self.refused(2, ["sampling.mode", "lsh_per_sample"], "--set", "sampling.mode=lhs")
        self.refused(2, ["int7", "bf16", "int8"], "--set", "exchange.codec=int7")
        self.refused(2, ["int7", "bf16", "int8"], "--set", "exchange.codec=int7", "--nodes", "2")
        self.refused(2, ["model.hidden", "100", "96", "112"], "--set", "model.hidden=[100]")

    def test_memory(self):
        """The message says what does not fit and what to do, and not the name of a C++ exception."""
        self.assert_refused(1, ["memory is too small", "part of the model takes", "more nodes"], "/bin/sh", "-c",
                            "ulimit -v 600000; exec " + " ".join(map(str, [PROGRAMS / "modelet", "train", self.experiment, "--out", self.out,
                                                                           "--set", "model.hidden=[16384,16384]"])))

    def test_limits_of_memory(self):
        """What does not fit is refused before the work, with the figure, the limit's name and what helps."""
        many = ["--set", "model.hidden=[16384,16384]"]
        for limit, name in (("-v", "RLIMIT_AS (ulimit -v)"), ("-d", "RLIMIT_DATA (ulimit -d)")):
            self.assert_refused(1, [name, "MiB", "model.hidden"], "/bin/sh", "-c",
                                f"ulimit {limit} 600000; exec " + " ".join(map(str, [PROGRAMS / "modelet", "train", self.experiment, "--out", self.out, *many])))

    def test_nodes(self):
        for nodes in ("0", "-1", "two", "1000000"):
            self.refused(2, "--nodes", "--nodes", nodes)

    def test_data(self):
        self.refused(1, ["no-such-file.txt", "data.train"], "--set", "data.train=no-such-file.txt")
        self.refused(1, ["no-such-file.txt", "data.test"], "--set", "data.test=no-such-file.txt")
        self.refused(1, ["is a folder", "data.train"], "--set", f"data.train={self.folder}")
        table = self.write("table.csv", "title;tag\nfoo;a\nbar;b\n")
        csv = [f"data.train={table}", f"data.test={table}", "data.format=csv", "csv.labels=tag", "csv.text=title"]
        as_options = lambda settings: [argument for setting in settings for argument in ("--set", setting)]
        self.refused(2, [str(table), "csv.text", "'title'", "is csv.delimiter right?"], *as_options(csv))
        self.refused(1, [str(table), "no feature occurs", "text.min_count = 9"], *as_options([*csv, "csv.delimiter=semicolon", "text.min_count=9"]))
        self.refused(2, [str(table), "fewer than two words", "words.min_count"], *as_options([*csv, "data.format=words"]))
        lines = (self.folder / "data/test.txt").read_text().splitlines()
        rows, features, labels = lines[0].split()
        other = self.write("other.txt", "\n".join([f"{rows} {features} {int(labels) + 1}", *lines[1:]]) + "\n")
        self.refused(2, ["labels", str(int(labels) + 1), labels], "--set", f"data.test={other}")

    def test_data_that_says_nothing(self):
        for text, why in (("2 3 0\n 1:1\n 2:1\n", "label"), ("2 3 2\n 1:1\n 2:1\n", "label"), ("2 0 2\n0\n1\n", "features")):
            empty = self.write("nothing.txt", text)
            for nodes in ("1", "2"):
                self.refused(1, [str(empty), why], "--set", f"data.train={empty}", "--set", f"data.test={empty}", "--nodes", nodes)

    def test_damaged_text(self):
        lines = (self.folder / "data/train.txt").read_text().splitlines()
        def damaged(line, text):
            return self.write("damaged.txt", "\n".join([*lines[:line - 1], text, *lines[line:]]) + "\n")
        for line, text in [(7, "1 3:nan"), (8, "1 3:0.5 3"), (9, "1 4000000:1"), (10, "100000 3:1"), (11, "x 3:1")]:
            self.refused(1, f"damaged.txt:{line}", "--set", f"data.train={damaged(line, text)}")
        truncated = self.write("truncated.txt", "\n".join(lines[:100]) + "\n")
        self.refused(1, ["truncated.txt", "99", "1600"], "--set", f"data.train={truncated}")
        self.refused(1, "empty.txt", "--set", f"data.train={self.write('empty.txt', '')}")

    def test_damaged_prepared_file(self):
        content = bytearray((self.folder / "data/train.mlt").read_bytes())
        damaged = self.folder / "damaged.mlt"
        for place in (len(content) // 2, 20):
            content[place] ^= 1
            damaged.write_bytes(content)
            self.refused(1, "damaged.mlt", "--set", f"data.train={damaged}")
            content[place] ^= 1
        damaged.write_bytes(content[:-100])
        self.refused(1, "damaged.mlt", "--set", f"data.train={damaged}")

    def test_folders(self):
        (self.folder / "a-file").write_text("")
        self.out = self.folder / "a-file/run"
        self.refused(1, str(self.folder / "a-file"))
        self.out = self.folder / "never"
        self.refused(2, ["no-run", "checkpoint"], "--resume", "no-run")
        (self.folder / "empty-run").mkdir()
        self.refused(2, ["empty-run", "checkpoint"], "--resume", "empty-run")


class OtherErrors(ProgramTest):
    def test_verbs(self):
        self.assert_refused(2, ["'trian'", "did you mean 'train'"], "modelet", "trian")
        self.assert_refused(2, ["'descrbe'", "did you mean 'describe'"], "modelet", "data", "descrbe", "x")
        self.assert_refused(2, "subcommand", "modelet")
        self.assert_refused(2, "--jsn", "modelet", "train", self.experiment, "--jsn")
        self.assert_refused(2, "experiment", "modelet", "train")
        self.assert_refused(2, "subcommand", "modelet", "data")

    def test_eval(self):
        self.assert_refused(2, "nowhere", "modelet", "eval", "nowhere", "data/test.txt")
        self.assert_refused(2, ["checkpoint", "data"], "modelet", "eval", "data", "data/test.txt")

        for verb in ("eval", "predict"):
            self.assert_refused(2, "--threads", "modelet", verb, "data", "data/test.txt", "--threads", "-1")
        self.assert_refused(2, "--limit", "modelet", "predict", "data", "data/test.txt", "--limit", "-3")
        for k in ("0", "", "1,x", "-1"):
            self.assert_refused(2, "--k", "modelet", "eval", "data", "data/test.txt", "--k", k)

    def test_versions(self):
        spoken = [self.run_program(program, "--version").stdout.split() for program in ("modelet", "modelet-scheduler", "modelet-agent")]
        self.assertEqual([words[0] for words in spoken], ["modelet", "modelet-scheduler", "modelet-agent"])
        self.assertEqual([words[1:] for words in spoken], [self.modelet("version").stdout.split()[1:2]] * 3)

    def test_numbers(self):
        for program, *arguments in (("modelet-agent", "--memory-mib"), ("modelet-scheduler", "--dead-after-seconds"),
                                    ("modelet", "plan", self.experiment, "--gflops"), ("modelet", "tune", self.experiment, "--slowdown"),
                                    ("modelet", "bench", "kernels", "--seconds"), ("modelet", "watch"), ("modelet", "stop")):
            for wrong in ("nan", "-1"):
                self.assert_refused(2, wrong, program, *arguments, wrong)

    def test_codec(self):
        for verb in ("plan", "submit"):
            self.assert_refused(2, ["int7", "bf16", "int8"], "modelet", verb, self.experiment, "--set", "exchange.codec=int7")

    def test_instruction_set(self):
        self.environment = {**self.environment, "MODELET_SIMD": "MMX"}
        self.assert_refused(2, ["MMX"], "modelet", "version")
        self.assert_refused(2, ["MMX"], "modelet", "train", self.experiment)

    def test_log_level(self):
        self.environment = {**self.environment, "MODELET_LOG": "verbose"}
        for program in (("modelet", "version"), ("modelet-scheduler",), ("modelet-agent",)):
            self.assert_refused(2, ["MODELET_LOG", "'verbose'", "warning"], *program)

    def test_a_full_disk(self):
        """If the results could not be written, the program fails."""
        with open("/dev/full", "w") as full:
            for verb in (["version"], ["data", "describe", "data/test.txt"],
                         ["train", self.experiment, "--out", self.folder / "full", "--json"]):
                ended = subprocess.run([PROGRAMS / "modelet", *verb], cwd=self.folder, env=self.environment, stdout=full,
                                       stderr=subprocess.PIPE, text=True)
                self.assertEqual(ended.returncode, 1, ended)
                self.assertIn("standard output", ended.stderr)

    def test_pool_verbs_without_a_pool(self):
        nobody = "tcp://127.0.0.1:1"
        verbs = (["list"], ["nodes"], ["watch", "1"], ["stop", "1"], ["submit", self.experiment])
        for program in [self.start("modelet", *verb, "--insecure", "--scheduler", nobody) for verb in verbs]:
            self.assert_refuses(program, 1, [nobody, "modelet-scheduler"])
        self.assert_refused(2, ["'nonsense'", "tcp://"], "modelet", "list", "--scheduler", "nonsense")


class Limits(ProgramTest):
    """What the work needs is looked for before it begins."""

    def limited(self, files, program, *arguments, text="open files"):
        self.assert_refused(1, [f"this process may have {files}", text, "ulimit"], "/bin/sh", "-c", f'ulimit -n {files}; exec "$@"', "-",
                            PROGRAMS / program, *arguments)

    def test_few_descriptors(self):
        out = self.folder / "few"
        for files in (16, 32, 64):
            self.limited(files, "modelet", "train", self.experiment, "--out", out, "--nodes", "4", text="--nodes 4: the scheduler needs")
            self.limited(files, "modelet-scheduler", "--insecure", "--listen", "tcp://127.0.0.1:*")
            self.limited(files, "modelet-agent", "--insecure", "--work-dir", out)
        self.limited(16, "modelet", "list", "--insecure", text="a connection needs")
        self.assertFalse(out.exists())

    def test_as_many_descriptors_as_are_needed(self):
        run = self.run_program("/bin/sh", "-c", 'ulimit -n 160; exec "$@"', "-", PROGRAMS / "modelet", "train", self.experiment, "--out",
                               self.folder / "enough", "--nodes", "4", "--set", "train.epochs=2", "--json")
        self.assertEqual(run.events()[-1]["event"], "finished")

    def test_names_of_labels(self):
        names = self.folder / "names.txt"
        out = self.folder / "unnamed"
        for nodes in ("1", "2"):
            train = "modelet", "train", self.experiment, "--out", out, "--nodes", nodes, "--set", f'data.labels="{names}"'
            names.unlink(missing_ok=True)
            self.assert_refused(1, [str(names), "data.labels"], *train)
            for count in (LABELS - 1, LABELS + 1):
                names.write_text("".join(f"label {label}\n" for label in range(count)))
                self.assert_refused(2, [str(names), f"{LABELS} labels", "--set data.labels=PATH"], *train)
            names.write_bytes(b"\xfd7zXZ\x00 damaged")
            self.assert_refused(2, [str(names), "--set data.labels=PATH"], *train)
        self.assertFalse(out.exists())

    def test_a_folder_that_cannot_be_written(self):
        for nodes in ("1", "2"):
            self.assert_refused(1, ["/proc/run"], "modelet", "train", self.experiment, "--out", "/proc/run", "--nodes", nodes)
            self.assert_refused(1, ["small.toml: is not a folder"], "modelet", "train", self.experiment, "--out", self.experiment / "run",
                                "--nodes", nodes)

    def test_an_address_that_is_taken(self):
        """Said before the model is loaded."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            (self.folder / "no-model").mkdir()
            self.assert_refused(1, [f"{address}: cannot listen there"], "modelet", "serve", self.folder / "no-model", "--listen", address)


if __name__ == "__main__":
    unittest.main()
