"""Labels that a trained model gets, loses, or that get another name, and corrections, without a training (docs/guide.md).

    modelet.labels.add("runs/shop", "new-products.txt")
    modelet.labels.remove("runs/shop", ["Blue Kettle"])
    modelet.labels.learn("runs/shop", "corrections.txt")
    model = modelet.load("runs/shop")

Each change is a new checkpoint of the run. A model that is loaded already stays as it was; load the run again.
"""
import os
from collections.abc import Sequence
from typing import TypeAlias

from modelet import _programs
from modelet._progress import Event, Listeners
from modelet._train import Run, follow

Folder: TypeAlias = str | os.PathLike[str] | Run


def add(run: Folder, samples: str | os.PathLike[str], *, names: str | os.PathLike[str] | None = None,
        background: str | os.PathLike[str] | None = None, fit: bool = True, threads: int = 0) -> Event:
    """Adds the labels of `samples`, a text in the format of the training data, that the model does not have.

    One sample for each new label is enough. `names` is a file with the names of new labels, for XMC text whose labels have names.
    `background` is a file of samples to tell the new labels from (default: the training data). Without `fit`, new labels are
    known by their mean sample only. Returns what was done (the event "labels", docs/events.md). Raises UsageError if there is no
    new label.
    """
    options = [word for name, file in (("--names", names), ("--background", background)) if file is not None for word in (name, os.fspath(file))]
    return _run(["labels", "add"], run, threads, [os.fspath(samples)], *options, *([] if fit else ["--no-fit"]))


def learn(run: Folder, samples: str | os.PathLike[str], *, background: str | os.PathLike[str] | None = None, threads: int = 0) -> Event:
    """Corrects the model with `samples` of labels that it has; only these labels change. `background` is a file of samples as in
    training, so that nothing is forgotten (default: the training data). Returns the event "labels". Raises UsageError if the
    samples have no label that the model has."""
    options = [] if background is None else ["--background", os.fspath(background)]
    return _run(["learn"], run, threads, [os.fspath(samples)], *options)


def remove(run: Folder, labels: Sequence[str | int], *, threads: int = 0) -> Event:
    """Removes labels, given by their names or, if they have none, their numbers. They are never again answers; the numbers of
    others stay. Raises UsageError if one is unknown."""
    if isinstance(labels, str):
        raise TypeError("labels is a list of labels, not one text")
    return _run(["labels", "remove"], run, threads, list(map(str, labels)))


def rename(run: Folder, label: str, to: str, *, threads: int = 0) -> Event:
    """Gives a label another name. Raises UsageError if there is no such label, or another one has the name."""
    return _run(["labels", "rename"], run, threads, [label, to])


def _run(verb: Sequence[str], run: Folder, threads: int, words: Sequence[str], *options: str) -> Event:
    folder = run.folder if isinstance(run, Run) else run
    with Listeners(None, False) as listeners:
        follow([_programs.path("modelet"), *verb, "--json", "--threads", str(threads), *options, "--", os.fspath(folder), *words], listeners)
    return listeners.last["labels"]
