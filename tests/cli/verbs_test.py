"""What holds for every verb: its exit codes, and its place in the manual page and in the completions of shells."""
import re
import resource
import shutil
import signal
import subprocess
import unittest

from programs import ENDLESS, PROGRAMS, PoolTest, ProgramTest, newest_checkpoint, wait_until

OF_KEPT_RUNS = [("fetch",), ("logs",), ("drain",), ("trace",)]  # fetch_test.py and trace_test.py test them, serve_test.py tests serve
OF_LABELS = [("learn",), *(("labels", verb) for verb in ("add", "remove", "rename"))]  # labels_test.py
ALL_PROGRAMS = ("modelet", "modelet-agent", "modelet-scheduler")


def said(*arguments):
    return subprocess.run([PROGRAMS / arguments[0], *arguments[1:]], check=True, capture_output=True, text=True).stdout


def verbs_below(*path):
    """The verbs and their sub-verbs as tuples of words, from the help."""
    sections = re.split(r"\n(?:Subcommands|SUBCOMMANDS):\n", said("modelet", *path, "--help"))
    names = re.findall(r"^  (\w+) ", sections[1].split("\n\n")[0], re.MULTILINE) if len(sections) > 1 else []
    verbs = []
    for name in names:
        verbs += verbs_below(*path, name) or [(*path, name)]
    return verbs


def options_of(program, *verb):
    """The options in the help: ["--set", ...]."""
    return re.findall(r"^  (?:-\w,)?(--[\w-]+)", said(program, *verb, "--help"), re.MULTILINE)


# Of no scheduler.
INVITATION = "modelet1-gGpw1RVIDaW11vDwT0FWXeQjDmsbLKA2P2eVjna6cQVDszVYTfH6yGKyR9ZditWmqKTUhXRjcDovLzE5Mi4xNjguMS41OjU1NzAD7Blq"


class ExitCodes(PoolTest):
    """0 done, 1 failed while running, 2 bad arguments, 130 interrupted (base/error.h)."""

    def assert_all_end(self, code, calls, but=()):
        """Runs {verb: its arguments} side by side. All verbs must be among them, except those in `but`."""
        self.assertEqual(set(calls), set(verbs_below()) - set(but))
        started = [self.start("modelet", *verb, *arguments) for verb, arguments in calls.items()]
        for program in started:
            with self.subTest(program=program.name):
                self.assertEqual(program.end(), code, program)
                self.assertNotIn("terminate called", program.stderr)
                if code != 0:
                    self.assertRegex(program.stderr, r"\S")

    def test_of_every_verb(self):
        words = self.folder / "words.txt"
        words.write_text("a b c d e f\n" * 50)
        self.train("done", "--set", "train.epochs=1")
        self.modelet("train", self.experiment, "--out", "words", "--set", "data.format=words", "--set", f"data.train={words}",
                     "--set", f"data.test={words}", "--set", "words.min_count=1", "--set", "words.subsample=0", "--set", "train.epochs=1", "--set", "sampling.mode=full")
        damaged = self.folder / "damaged"
        shutil.copytree(newest_checkpoint(self.folder / "done"), damaged)
        (damaged / "index.json").write_text("{")
        (self.folder / "a-file").write_text("")
        (self.folder / "nodes.csv").write_text("id,friends,label\nx,y,1\ny,,0\n")
        self.modelet("keygen", "made.key")
        pool = ("--scheduler", self.address)
        nobody = ("--scheduler", "tcp://127.0.0.1:1")
        missing = ("--set", "data.train=nowhere.txt")
        self.agent("a")
        submitted = self.submit("--set", "train.epochs=1")
        self.wait_for_end(submitted)
        last = [submitted, *pool]
        self.assert_all_end(0, {
            ("train",): [self.experiment, "--set", "train.epochs=1"], ("tune",): [self.experiment, "--steps", "5"],
            ("eval",): ["done", "data/test.txt"], ("predict",): ["done", "data/test.txt"],
            ("plan",): [self.experiment, "--gflops", "1", "--memory-gbps", "1"], ("neighbours",): ["words", "a"],
            ("data", "prepare"): ["data/train.txt", "new.mlt"], ("data", "describe"): ["data/train.txt"],
            ("data", "split"): ["data/train.txt", "parts"], ("data", "graph"): ["nodes.csv", "graph.csv", "--neighbours", "friends", "--target", "label"], ("data", "synth"): ["new", "--rows", "10", "--rows-test", "5"], ("submit",): [self.experiment, *ENDLESS, *pool],
            ("list",): pool, ("nodes",): pool, ("top",): pool, ("watch",): last, ("stop",): last,
            ("keygen",): ["new.key"], ("key",): ["made.key"], ("doctor",): pool,
            ("launch", "slurm"): ["--invitation", INVITATION, "--print"],
            ("bench", "data"): ["data/train.txt", "--seconds", "0.001"],
            ("bench", "inference"): ["done", "data/test.txt", "--queries", "50"], ("report",): ["done"], ("version",): []}, but=[*OF_LABELS, ("bench", "kernels"), ("serve",), ("approve",), ("launch", "ssh"), *OF_KEPT_RUNS])  # kernels take long; bench_test.py has them
        self.assert_all_end(1, {
            ("train",): [self.experiment, *missing], ("tune",): [self.experiment, *missing],
            ("eval",): [damaged, "data/test.txt"], ("predict",): [damaged, "data/test.txt"], ("serve",): [damaged],
            ("plan",): [self.experiment, "--memory-gib", "0.0001", "--gflops", "1", "--memory-gbps", "1"], ("neighbours",): [damaged, "a"],
            ("data", "prepare"): ["nowhere.txt", "newer.mlt"], ("data", "describe"): ["nowhere.txt"],
            ("data", "split"): ["nowhere.txt", "parts"], ("data", "graph"): ["nowhere.csv", "none.csv", "--neighbours", "friends", "--target", "label"], ("data", "synth"): ["a-file/new"], ("submit",): [self.experiment, *nobody],
            ("list",): nobody, ("nodes",): nobody, ("top",): nobody, ("watch",): ["100", *pool], ("stop",): ["100", *pool],
            ("fetch",): ["100", "--out", "none", *pool], ("logs",): ["100", *pool], ("trace",): ["100", *pool], ("drain",): ["nobody", *pool],
            ("approve",): ["nobody", *pool], ("doctor",): nobody,
            ("keygen",): ["no-folder/new.key"], ("key",): ["data/train.txt"], ("bench", "data"): ["nowhere.txt"],
            ("report",): ["done", "--out", "no-folder/x.html"], ("bench", "inference"): [damaged, "data/test.txt"]}, but=[*OF_LABELS, ("bench", "kernels"), ("version",), ("launch", "ssh"), ("launch", "slurm")])  # operate_test.py has them
        self.assert_all_end(2, {verb: ["--no-such-option"] for verb in verbs_below()})
        self.assert_all_end(0, {verb: ["--help"] for verb in verbs_below()})

    def test_of_answers_that_cannot_be_written(self):
        for verb in (("version",), ("man",), ("--help",), ("data", "--help")):
            with open("/dev/full", "w") as full:
                program = subprocess.run([PROGRAMS / "modelet", *verb], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(program.returncode, 1, verb)
            self.assertIn("standard output", program.stderr)

    def test_of_too_little_memory(self):
        limit = 1 << 30
        program = subprocess.run([PROGRAMS / "modelet", "data", "synth", "vast", "--labels", "2147483646"], cwd=self.folder, text=True,
                                 capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(program.returncode, 1)
        self.assertIn("modelet: out of memory", program.stderr)

    def test_of_what_is_interrupted(self):
        run = self.start_training("interrupted", *ENDLESS)
        run.wait_for_step(1)
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), 130, run)
        self.agent("a")
        submit = self.start("modelet", "submit", self.experiment, "--watch", "--json", "--scheduler", self.address, *ENDLESS)
        submit.wait_for_step(1)
        watch = self.start("modelet", "watch", next(iter(self.runs())), "--json", "--scheduler", self.address)
        watch.wait_for_step(1)
        for program in (watch, submit):
            program.signal(signal.SIGINT)
            self.assertEqual(program.end(), 130, program)

    def test_of_daemons(self):
        for program in ("modelet-agent", "modelet-scheduler"):
            self.assert_refused(2, "--no-such-option", program, "--no-such-option")
            self.run_program(program, "--help")
            daemon = self.start(program, *(("--listen", "tcp://127.0.0.1:*", "--endpoint-file", self.pool / "started")
                                           if program == "modelet-scheduler" else
                                           ("--scheduler", self.address, "--gflops", "1", "--memory-gbps", "1")))
            wait_until((self.pool / "started").exists if program == "modelet-scheduler" else self.nodes, "it starts")
            daemon.signal(signal.SIGTERM)
            self.assertEqual(daemon.end(), 0, daemon)
        self.assert_refused(1, "no-folder", "modelet-scheduler", "--listen", "tcp://127.0.0.1:*", "--endpoint-file", "no-folder/x")


class Manuals(ProgramTest):
    def test_pages_have_every_verb_and_option(self):
        for program in ALL_PROGRAMS:
            page = said(program, "man")
            self.assertTrue(page.startswith(f".TH {program} 1 "), page[:50])
            plain = page.replace("\\-", "-")
            for verb in verbs_below() if program == "modelet" else [()]:
                section = plain.split(f".SS {' '.join(verb)}\n")[1].split(".SS ")[0] if verb else plain
                for option in options_of(program, *verb):
                    self.assertIn(option, section, (program, verb))
                self.assertIn("Example", section)
            if shutil.which("groff"):
                rendered = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=page, capture_output=True, text=True)
                self.assertEqual((rendered.returncode, rendered.stderr), (0, ""))

    def completed(self, program, *words):
        """What bash offers as completions of the last word."""
        script = said(program, "completion", "bash")
        call = 'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_${1//-/_}"; printf "%s\\n" "${COMPREPLY[@]}"'
        shown = subprocess.run(["bash", "-c", call, "bash", script, program, *words], check=True, capture_output=True, text=True)
        self.assertEqual(shown.stderr, "")
        return shown.stdout.split()

    def test_bash(self):
        self.assertEqual(set(self.completed("modelet", "")), {verb[0] for verb in verbs_below()})
        self.assertEqual(self.completed("modelet", "pre"), ["predict"])
        self.assertEqual(self.completed("modelet", "data", "d"), ["describe"])
        self.assertEqual(self.completed("modelet", "data", "prepare", "--normalize", ""), ["none", "l2"])
        self.assertEqual(self.completed("modelet", "train", "--set", "a.b=c", "--no"), ["--nodes"])
        self.assertEqual(self.completed("modelet", "train", ""), [], "files, which readline knows")
        for verb in verbs_below():
            self.assertEqual(set(self.completed("modelet", *verb, "--")), set(options_of("modelet", *verb)), verb)
        for program in ALL_PROGRAMS[1:]:
            self.assertEqual(set(self.completed(program, "--")), set(options_of(program)))

    def test_other_shells(self):
        for shell, check in (("zsh", ("zsh", "-n")), ("fish", ("fish", "--no-execute"))):
            for program in ALL_PROGRAMS:
                script = said(program, "completion", shell)
                for verb in verbs_below() if program == "modelet" else [()]:
                    for option in options_of(program, *verb):
                        self.assertIn(f" -l {option[2:]} " if shell == "fish" else f"{option}[", script)
                if shutil.which(shell):
                    path = self.folder / f"{program}.{shell}"
                    path.write_text(script)
                    subprocess.run([*check, path], check=True)
        self.assert_refused(2, ["tcsh", "bash, zsh and fish"], "modelet", "completion", "tcsh")
        self.assert_refused(2, "bash, zsh and fish", "modelet-agent", "completion")


if __name__ == "__main__":
    unittest.main()
