"""Training of an experiment file with the program `modelet train`, which comes with this package."""
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from modelet import _keys, _modelet, _programs
from modelet._folders import Folder
from modelet._model import Model
from modelet._progress import Callbacks, Event, Listeners, Progress

Experiment: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]

_USAGE, _INTERRUPTED = 2, 130  # exit codes (docs/guide.md)
NEEDS_OUT = "an experiment without a file has no name: give `out`, the run's folder"


class Run:
    """A finished run: its folder, and the event that says how good it is."""

    def __init__(self, folder: str | os.PathLike[str], finished: Event) -> None:
        self.folder = Path(folder)
        self.finished = finished

    def __repr__(self) -> str:
        return f"modelet.Run({str(self.folder)!r})"

    def load(self, threads: int = 0) -> Model:
        """Loads the best model of the run."""
        return Model(self.folder, threads)


def raise_for(code: int, errors: str) -> NoReturn:
    """Raises the exception that fits the exit code of a program and its standard error."""
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("Run with --help")]
    message = [number for number, line in enumerate(lines) if line.startswith("modelet: ")]
    text = "\n".join(lines[message[-1] if message else -1:]).removeprefix("modelet: ").strip()
    text = text or f"the program ended with exit code {code}"
    if code == _INTERRUPTED:
        raise KeyboardInterrupt(text)
    raise (_modelet.UsageError if code == _USAGE else _modelet.Error)(text)


def experiment_arguments(experiment: Experiment, settings: Mapping[str, Any] | None, folder: Path) -> list[str]:
    """The arguments of a program for an experiment, which is a file or a dict of keys (paths start at the current folder)."""
    keys = _keys.flat(settings)
    if isinstance(experiment, Mapping):
        keys = {**_keys.flat(experiment), **keys}
        experiment = folder / "experiment.toml"
        experiment.write_text("")
    arguments = [os.fspath(experiment)]
    for assignment in _keys.assignments(keys):
        arguments += ["--set", assignment]
    return arguments


def follow(command: Sequence[str], listeners: Listeners, stop: int = signal.SIGINT) -> None:
    """Runs a program that prints events. Ctrl-C sends the program one signal, and its last events are still passed on."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        # The program has a session of its own, so that a Ctrl-C in the terminal reaches only this process, and the program gets
        # it once.
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as program:
            output = program.stdout
            assert output is not None  # a pipe
            try:
                for line in output:
                    listeners(json.loads(line))
            except BaseException:  # Ctrl-C, or a callback's exception
                program.send_signal(stop)
                output.read()
                program.wait()
                raise
        errors.seek(0)
        if program.returncode != 0:
            raise_for(program.returncode, errors.read())


def train(experiment: Experiment, nodes: int = 1, *, owners: Sequence[str | os.PathLike[str]] = (),
          settings: Mapping[str, Any] | None = None, out: str | os.PathLike[str] | None = None,
          resume: str | os.PathLike[str] | None = None, callbacks: Callbacks = None, progress: Progress = "auto") -> Run:
    """Trains an experiment on this machine and returns its Run.

    experiment     a file (docs/experiment.md), or a dict of its keys: {"data.train": "train.txt", ...}
    nodes          more than 1: a scheduler and that many agents, as processes of their own
    owners         files of training data, in place of data.train: each is read by an agent of its own and stays there
                   (docs/privacy.md)
    settings       keys that replace those of the experiment
    out            the run's folder; None: runs/NAME-TIME
    resume         the folder of a run, or a checkpoint, to continue from
    callbacks, progress   as in modelet.Classifier

    Ctrl-C or an exception of a callback ends the run after the step, with a checkpoint.
    """
    with Folder() as folder, Listeners(callbacks, progress) as listeners:
        command = [_programs.path("modelet"), "train", *experiment_arguments(experiment, settings, folder.path),
                   "--nodes", str(nodes), "--json"]
        if owners:
            command += ["--owners", ",".join(os.fspath(owner) for owner in owners)]
        if isinstance(experiment, Mapping) and out is None and resume is None:
            raise _modelet.UsageError(NEEDS_OUT)
        if out is not None:
            command += ["--out", os.fspath(out)]
        if resume is not None:
            command += ["--resume", os.fspath(resume)]
        follow(command, listeners)
    finished = listeners.last["finished"]
    checkpoint = Path(finished["checkpoint"])
    return Run(out if out is not None else checkpoint.parent.parent, finished)
