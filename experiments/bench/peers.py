"""The contestants of a comparison: Modelet and the systems that a practitioner would use instead, each with one call and its settings.

A Contestant trains on a set, predicts its test part and returns points of P@k against seconds of training. Systems that reach
several points on the way, or are trained several times, return all of them. P@k is computed here, by the same function for all, from the
labels that each system predicts. Systems that install_peers.sh has not installed are left out, and their names are printed.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import measuring

BASELINES = measuring.ROOT / "experiments/baselines"
BASELINE = BASELINES / "pytorch_sampled.py"
LABEL_TREES = BASELINES / "label_trees.py"
INSTALLER = pathlib.Path(__file__).with_name("install_peers.sh")  # has the versions
INSTALLED = measuring.ROOT / "build/peers"  # by install_peers.sh
INSTALL = "experiments/bench/install_peers.sh installs it"
NO_FASTTEXT = f"{INSTALL}, or Debian's package fasttext"
# Two ways in which a user meets PyTorch's BLAS: it detects the CPU, or is told what it can do. Values: --blas.
WAYS_OF_BLAS = {"as installed": "as-installed", "told its CPU": "told-cpu"}
TOP = max(measuring.CUTS)
LEAST_RATE_OF_FASTTEXT = 0.1
BUDGETS = (5, 10, 20, 30)  # seconds
# Arrays of a checkpoint that predicting needs; the others are the optimiser's.
WEIGHTS = ("weight", "bias", "label_counts", "scales.weight", "pairs.offsets", "pairs.features", "pairs.positives", "pairs.sums", "pairs.weights",
           "pairs.classifiers", "pairs.classifier_bias")


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A folder with train.txt and test.txt in XMC text, plain or .xz."""
    name: str
    folder: pathlib.Path

    def file(self, part):
        """The file of "train" or "test"; None if it is not there."""
        return next((file for file in (self.folder / f"{part}.txt", self.folder / f"{part}.txt.xz") if file.is_file()), None)

    def recipe(self, suffix=""):
        """The experiment that was tuned for the set, in the repository or beside the data; None if there is none."""
        name = f"{self.name}{suffix}.toml"
        return next((file for file in (measuring.ROOT / "experiments" / name, self.folder / name) if file.is_file()), None)


@dataclasses.dataclass(frozen=True)
class Job:
    """What a contestant works on. `scratch` is an empty folder that is removed afterwards; `log` is kept."""
    data: DataSet
    train: pathlib.Path  # XMC text, plain
    test: pathlib.Path
    truth: list  # set of labels of each test row
    threads: int
    seed: int  # of Modelet
    modelet: pathlib.Path
    settings: list  # keys for Modelet's experiments
    scratch: pathlib.Path
    log: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Contestant:
    title: str
    run: object  # Job -> {"points": [...], "peak_rss_bytes", "model_bytes", "system"}
    missing: object  # DataSet -> why it cannot take part, or None
    files: object  # (DataSet, program modelet) -> files that decide what it does
    options: dict = dataclasses.field(default_factory=dict)

    def fingerprint(self, data, modelet, settings, threads):
        """A digest of everything that determines the outcome. If it changes, the result is no longer valid."""
        files = self.files(data, modelet)
        sizes = [data.file(part).stat().st_size for part in ("train", "test")]
        digest = hashlib.sha256(json.dumps([self.options, threads, sizes, settings if modelet in files else []]).encode())
        for file in files:
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def point(job, predictions, train_seconds, predict_seconds, **more):
    return {"train_seconds": round(train_seconds, 3), "predict_seconds": round(predict_seconds, 3), **more,
            **{name: round(value, 5) for name, value in measuring.precision(predictions, job.truth).items()}}


# ---- Modelet -------------------------------------------------------------------------------------------------------

def run_modelet(job, what):
    """Runs `modelet train` and `modelet predict`. Training lasts from the start of the program until its model is on disk. Trials of
    settings, held-out evaluations and checkpoints before that count. Reading text does not count, because the text is prepared before.
    Prediction is the time of the whole program."""
    out = job.scratch / "run"
    for file in (job.train, job.test):  # prepares the text
        measuring.run_measured([job.modelet, "data", "describe", file], job.log)
    settings = [f"train.threads={job.threads}", f"train.seed={job.seed}", *job.settings]
    started = datetime.datetime.now(datetime.timezone.utc)
    output, _, train_memory = measuring.run_measured(
        [job.modelet, "train", *what, "--out", out, "--json", *(word for setting in settings for word in ("--set", setting))], job.log)
    job.log.with_suffix(".jsonl").write_text(output, encoding="utf-8")
    events = [json.loads(line) for line in output.splitlines()]
    # Classifiers are fitted between the last step and the checkpoint.
    last = "checkpoint" if any(event["event"] == "checkpoint" for event in events) else "progress"
    trained = max(datetime.datetime.fromisoformat(event["time"]) for event in events if event["event"] == last)
    output, predict_seconds, predict_memory = measuring.run_measured(
        [job.modelet, "predict", out, job.test, "--k", TOP, "--threads", job.threads, "--json"], job.log.with_suffix(".predict.log"))
    predictions = [[str(label["label"]) for label in json.loads(line)["labels"]] for line in output.splitlines()]
    return {"points": [point(job, predictions, (trained - started).total_seconds(), predict_seconds, steps_seconds=events[-1]["train_seconds"])],
            "peak_rss_bytes": max(train_memory, predict_memory), "model_bytes": weight_bytes(pathlib.Path(events[-1]["checkpoint"])),
            "system": "Modelet"}


def weight_bytes(checkpoint):
    """The bytes of the weights and biases of a checkpoint, without the optimiser state (docs/checkpoint_format.md)."""
    total = 0
    for file in checkpoint.glob("*.safetensors"):
        with open(file, "rb") as opened:
            arrays = json.loads(opened.read(struct.unpack("<Q", opened.read(8))[0]))
        for name in WEIGHTS:
            begin, end = arrays.get(name, {"data_offsets": (0, 0)})["data_offsets"]
            total += end - begin
    return total


def run_two_paths(job):
    return run_modelet(job, [job.train, job.test])


def run_budgets(job, seconds):
    """A point for each time budget, which is that of the whole program."""
    runs = []
    for budget in seconds:
        shutil.rmtree(job.scratch / "run", ignore_errors=True)
        runs.append(run_modelet(job, [job.train, job.test, "--time-budget", f"{budget}s"]))
    return runs[-1] | {"points": [point for run in runs for point in run["points"]], "peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs)}


def run_recipe(job, suffix):
    return run_modelet(job, [job.data.recipe(suffix), "--set", f"data.train={job.train}", "--set", f"data.test={job.test}"])


def modelet_by_recipe(title, suffix):
    return Contestant(title, functools.partial(run_recipe, suffix=suffix),
                      lambda data: None if data.recipe(suffix) else f"there is no {data.name}{suffix}.toml",
                      lambda data, modelet: [modelet, data.recipe(suffix)])


# ---- label trees ---------------------------------------------------------------------------------------------------

def run_label_tree(job, system):
    predictions = job.scratch / "predictions.txt"
    output, _, memory = measuring.run_measured(
        [INSTALLED / "trees/bin/python", "-B", LABEL_TREES, system, "--train", job.train, "--test", job.test, "--threads", job.threads,
         "--model", job.scratch / "model", "--predictions", predictions], job.log)
    event = json.loads(output)
    return {"points": [point(job, measuring.read_predictions(predictions), event["train_seconds"], event["predict_seconds"])],
            "peak_rss_bytes": memory, "model_bytes": event["model_bytes"], "system": event["system"]}


@functools.cache
def has_package(environment, package):
    """Whether a virtual environment of install_peers.sh has a package."""
    python = INSTALLED / environment / "bin/python"
    return python.exists() and subprocess.run([python, "-c", f"import {package}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def label_tree(title, system, package):
    return Contestant(title, functools.partial(run_label_tree, system=system),
                      lambda _: None if has_package("trees", package) else f"{package} is not installed: {INSTALL}",
                      lambda *_: [LABEL_TREES, BASELINES / "xmc.py", INSTALLER])


# ---- PyTorch -------------------------------------------------------------------------------------------------------

@functools.cache
def python_with_torch():
    """The Python of install_peers.sh, or else another that has torch: Debian's, or the first on PATH. None if there is none."""
    for python in (INSTALLED / "torch/bin/python", "/usr/bin/python3", "python3"):
        try:
            if subprocess.run([python, "-c", "import torch, numpy"], stderr=subprocess.DEVNULL).returncode == 0:
                return python
        except OSError:
            pass
    return None


def require_torch():
    return python_with_torch() or sys.exit(f"no Python with torch and numpy found: {INSTALL}")


def pytorch_command(python, train, test, options, flags=()):
    """`options` are the options of pytorch_sampled.py with values ("max_steps": 100)."""
    return [python, "-B", BASELINE, "--train", train, "--test", test,
            *(part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)), *flags]


def run_pytorch(python, train, test, options, flags=()):
    """The "finished" event of pytorch_sampled.py."""
    event = measuring.run_json_lines(pytorch_command(python, train, test, options, flags))[-1]
    if event["blas"].startswith("libblas"):
        sys.exit(f"PyTorch runs on {event['blas']}, the reference BLAS, several times slower than it can be: "
                 f"a comparison would say nothing. {INSTALL}, or Debian's libopenblas0-openmp")
    return event


def run_pytorch_curve(job, options):
    """Returns a point for each epoch. The clock stands still during predictions."""
    output, _, memory = measuring.run_measured(
        pytorch_command(python_with_torch(), job.train, job.test, options | {"threads": job.threads, "predictions": job.scratch}), job.log)
    event = json.loads(output)
    return {"points": [point(job, measuring.read_predictions(job.scratch / f"step-{found['step']}.txt"), found["train_seconds"], found["predict_seconds"])
                       for found in event["evaluations"]],
            "peak_rss_bytes": memory, "model_bytes": event["model_bytes"], "system": f"{event['system']} on {event['blas']}"}


def pytorch(title, options):
    return Contestant(title, functools.partial(run_pytorch_curve, options=options),
                      lambda _: None if python_with_torch() else f"torch is not installed: {INSTALL}",
                      lambda *_: [BASELINE, *(BASELINES / name for name in ("xmc.py", "common.py", "blas.py")), INSTALLER], options)


# ---- fastText ------------------------------------------------------------------------------------------------------

def fasttext_program():
    """The program of install_peers.sh, compiled for this machine, or else the one on PATH. None if there is none."""
    compiled = INSTALLED / "fasttext"
    return compiled if compiled.exists() else shutil.which("fasttext")


class FastText:
    """Gives fastText the words "f<feature>" of each row, because fastText has no weights of words.

    fastText parses the text again in every epoch. To exclude this, training time is the wall time of `fasttext supervised` minus
    that of the same run with vectors of length one, which reads and counts the same words and walks the same trees.
    """

    def __init__(self, job):
        self.job, self.program = job, fasttext_program()
        self.train, self.test = job.scratch / "train.txt", job.scratch / "test.txt"
        self._write(job.train, self.train, with_labels=True)
        self._write(job.test, self.test, with_labels=False)

    def _write(self, source, path, with_labels):
        with open(path, "w", encoding="ascii") as file:
            for labels, features in measuring.xmc_rows(source):
                words = [f"__label__{label}" for label in labels] if with_labels else []
                file.write(" ".join(words + [f"f{feature}" for feature, _ in features]) + "\n")

    def _model(self, dim):
        return self.job.scratch / f"model-{dim}.bin"

    def _supervised(self, options, dim):
        """Trains once. Returns (seconds, peak bytes)."""
        words = [word for name, value in (options | {"dim": dim, "thread": self.job.threads, "verbose": 0}).items() for word in (f"-{name}", value)]
        return measuring.run_measured([self.program, "supervised", "-input", self.train, "-output", self._model(dim).with_suffix(""), *words],
                                      self.job.log)[1:]

    def _trained(self, options):
        """Trains with the options' learning rate, or with half of it as often as fastText ends because of values that are no numbers.
        Returns (options, seconds, peak bytes) of the training that succeeded."""
        while True:
            try:
                return options, *self._supervised(options, options["dim"])
            except measuring.ProgramFailed:
                if "NaN" not in self.job.log.read_text(encoding="utf-8") or options["lr"] < LEAST_RATE_OF_FASTTEXT:
                    raise
                options = options | {"lr": options["lr"] / 2}

    def run(self, options):
        """Trains once, with a learning rate that falls to zero, and returns a point."""
        options, seconds, memory = self._trained(options)
        output, predict_seconds, _ = measuring.run_measured([self.program, "predict", self._model(options["dim"]), self.test, TOP], self.job.log)
        parsing, _ = self._supervised(options, 1)
        predictions = [[word.removeprefix("__label__") for word in line.split()] for line in output.splitlines()]
        return point(self.job, predictions, seconds - parsing, predict_seconds, parsing_seconds=parsing, lr=options["lr"]), memory


def run_fasttext(job, options):
    fasttext = FastText(job)
    found = [fasttext.run(options | {"epoch": epochs}) for epochs in options["epoch"]]
    return {"points": [point for point, _ in found], "peak_rss_bytes": max(memory for _, memory in found),
            "model_bytes": fasttext._model(options["dim"]).stat().st_size, "system": f"fastText ({pathlib.Path(fasttext.program).name})"}


def fasttext_contestant(title, options):
    return Contestant(title, functools.partial(run_fasttext, options=options),
                      lambda _: None if fasttext_program() else f"fasttext is not installed: {NO_FASTTEXT}",
                      lambda *_: [pathlib.Path(fasttext_program())], options)


# README.md lists the settings that were tried for systems without defaults for such data.
CONTESTANTS = {
    "modelet": Contestant("Modelet, two paths", run_two_paths, lambda _: None, lambda _, modelet: [modelet]),
    "modelet-budgets": Contestant("Modelet, time budgets", functools.partial(run_budgets, seconds=BUDGETS), lambda _: None, lambda _, modelet: [modelet],
                                  {"seconds": BUDGETS}),
    "modelet-recipe": modelet_by_recipe("Modelet, tuned recipe", ""),
    "modelet-fast": modelet_by_recipe("Modelet, in the least time", "-fast"),
    "parabel": label_tree("Parabel (Omikuji, 3 trees)", "parabel", "omikuji"),
    "bonsai": label_tree("Bonsai (Omikuji, 3 trees)", "bonsai", "omikuji"),
    "pecos": label_tree("XR-Linear (PECOS)", "pecos", "pecos.xmc.xlinear"),
    "napkinxc": label_tree("PLT (napkinXC)", "napkinxc", "napkinxc"),
    "pytorch": pytorch("PyTorch, sampled sigmoid", {"hidden": 256, "loss": "sigmoid", "negatives": 1024, "batch": 256, "lr": 2e-3, "epochs": 10}),
    "pytorch-fast": pytorch("PyTorch, in the least time", {"hidden": 128, "loss": "softmax", "negatives": 1024, "batch": 256, "lr": 2e-2,
                                                           "schedule": "linear", "epochs": 1}),
    "fasttext": fasttext_contestant("fastText, hierarchical softmax", {"loss": "hs", "dim": 128, "lr": 1.0, "epoch": [4, 8, 15]}),
}
