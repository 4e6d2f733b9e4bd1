"""Trained models, loaded from the folder of a run or from a checkpoint."""
import dataclasses
import functools
import operator
import os
import shutil
import threading
import tomllib
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from modelet import _data, _modelet, _rows, onnx
from modelet._data import Floats, Matrix
from modelet._folders import Folder

Questions: TypeAlias = Sequence[str] | Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]] | Mapping[str, Sequence[Any]]
Rows: TypeAlias = "Matrix | Questions"
Labels: TypeAlias = Sequence[str | SupportsIndex] | npt.NDArray[np.integer[Any]]


# A forked child must not find a model in the middle of a call of another thread, which the child does not have.
_in_use: weakref.WeakSet["Model"] = weakref.WeakSet()
_paused: dict[int, list[_modelet.Model]] = {}  # by the thread that forks


def _pause_all() -> None:
    own = _paused.setdefault(threading.get_ident(), [])
    for model in sorted(_in_use, key=id):  # in one order: threads that fork at the same time wait for each other
        model._native.pause()
        own.append(model._native)


def _go_on() -> None:
    for model in _paused.pop(threading.get_ident(), []):
        model.go_on()


def _go_on_in_child() -> None:
    for models in _paused.values():  # those of other threads as well, which the child does not have
        for model in models:
            model.go_on()
    _paused.clear()


os.register_at_fork(before=_pause_all, after_in_parent=_go_on, after_in_child=_go_on_in_child)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the score of a label consists of: score = rest + sum(shares). Features with a positive share speak for it."""
    label: int
    score: float
    rest: float  # what the label has without any feature
    features: npt.NDArray[np.uint32]  # of the row, the largest share by size first
    values: Floats  # as the model sees them
    shares: npt.NDArray[np.float64]


_EVENTS = "histories.jsonl"  # of the checkpoint


class Model:
    """A trained model. `rows` is a CSR matrix or an array of features; for a model of text or csv, a list of texts; for a model
    of csv or a table, a data frame, a dict {column: values}, a list of dicts {column: value}, or a list of lists with a value
    for each of the `columns`. Rows are read, encoded and normalised as in training. None and NaN are missing values.

    Any thread may use it; calls take turns.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 0) -> None:
        self._open(os.fspath(path), threads)

    def _open(self, path: str, threads: int) -> None:
        self._native = _modelet.Model(path, threads)
        _in_use.add(self)
        self._threads = threads

    def __repr__(self) -> str:
        return f"modelet.Model({str(self.folder)!r}, features={self.features}, labels={self.labels}, step={self.step})"

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint, which has the weights as safetensors files."""
        return Path(self._native.folder)

    @property
    def experiment(self) -> str:
        """The experiment that it was trained with, as TOML."""
        return self._native.experiment

    @property
    def step(self) -> int:
        return self._native.step

    @property
    def features(self) -> int:
        return self._native.features

    @property
    def labels(self) -> int:
        return self._native.labels

    @property
    def label_names(self) -> list[str]:
        """The name of each label: from its text or from data.labels; empty if there are none. Bytes that are not UTF-8
        are surrogate escapes, as in os.fsdecode()."""
        return self._native.label_names

    @property
    def columns(self) -> list[str]:
        """The columns of a row without labels, if the model was trained on csv or a table; else an empty list."""
        return self._native.columns

    def predict(self, rows: Rows, k: int = 5, *, among: Labels | None = None, threshold: float | None = None
                ) -> tuple[npt.NDArray[np.int64], Floats]:
        """The k best labels of each row: labels [rows, k] (numbers) and scores [rows, k], best first.

        among: only these labels, by names or numbers, are answers; if they are fewer than k, so are the columns.
        threshold: places of labels with a lower score have the label -1 and the score -inf.
        """
        chosen = None if among is None else self._numbers(among)
        k = min(k, self.labels if chosen is None else len(set(chosen)))
        found, scores = self._native.best(self._samples(rows), k, chosen)
        if threshold is not None:
            low = scores < threshold
            found[low], scores[low] = -1, -np.inf
        return found, scores

    def explain(self, rows: Rows, labels: Labels | None = None) -> list[Explanation]:
        """Why each row gets its best label or, with `labels`, the label that is given for it (names or numbers, one a row)."""
        samples, numbers = self._questions(rows, labels)
        return [Explanation(label, *parts) for label, parts in zip(numbers, self._native.explain(samples, numbers), strict=True)]

    def examples(self, rows: Rows, labels: Labels | None = None, k: int = 3) -> list[tuple[npt.NDArray[np.int64], Floats]]:
        """The training samples that speak most for each row's best label or, with `labels`, for the label that is given for it: of
        those with the label the k most like the row, as their places in the training data, from 0, and their cosines. The
        training data must still be where it was."""
        samples, numbers = self._questions(rows, labels)
        return [(places.astype(np.int64), cosines) for places, cosines in self._native.examples(samples, numbers, k)]

    def _questions(self, rows: Rows, labels: Labels | None) -> tuple[_modelet.Samples, list[int]]:
        """Samples, and a label for each: its best one, if none are given."""
        samples = self._samples(rows)
        if labels is None:
            return samples, [int(label) for label in self._native.best(samples, 1, None)[0][:, 0]]
        return samples, self._numbers(labels)

    def _numbers(self, labels: Labels) -> list[int]:
        """Of labels given by names or numbers."""
        if isinstance(labels, str):
            raise _modelet.UsageError(f"{labels!r} is one name, and a list of labels is expected")
        numbers = []
        for label in labels:
            number = self._number_of(label) if isinstance(label, str) else operator.index(label)
            if not 0 <= number < self.labels:
                raise _modelet.UsageError(f"there is no label {number}; the model has {self.labels}")
            numbers.append(number)
        return numbers

    def _number_of(self, name: str) -> int:
        if name not in self._by_name:
            known = f"not among the names of the {self.labels} labels" if self._by_name else "no number, and labels have no names in this model"
            raise _modelet.UsageError(f"{name!r} is {known}")
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> dict[str, int]:
        return {name: number for number, name in reversed(list(enumerate(self.label_names)))}

    def scores(self, rows: Rows) -> Floats:
        """The scores (logits) of all labels [rows, labels]."""
        return self._native.scores(self._samples(rows))

    def embed(self, rows: Rows) -> Floats:
        """The activations of the last hidden layer [rows, width]."""
        return self._native.hidden(self._samples(rows))

    def label_embeddings(self) -> Floats:
        """The weights of each label [labels, width], in a model of towers those in the label's first tower. Labels that
        occur with the same rows lie close together; those of different towers cannot be compared."""
        of_towers = [self.layers(tower)[-1][0] for tower in range(self.towers)]
        weights = np.empty((self.labels, of_towers[0].shape[1]), np.float32)
        for tower in reversed(range(self.towers)):
            weights[self.tower_labels(tower)] = of_towers[tower]
        return weights

    def terms(self) -> list[str]:
        """What the scores of labels are sums of: "network", which layers() gives, and the terms that pairs() gives."""
        return self._native.terms

    @property
    def towers(self) -> int:
        """The networks of the model: one or, if its labels are divided into towers, one for each tower of each division."""
        return self._native.towers

    def shares(self) -> Floats:
        """The share [labels] of a tower in the score of a label that it has: a label in several towers has the mean of its scores."""
        return self._native.shares()

    def tower_labels(self, tower: int) -> npt.NDArray[np.int64]:
        """The labels of a tower, ascending."""
        return self._native.tower_labels(range(self.towers)[tower]).astype(np.int64)

    def layers(self, tower: int = 0) -> list[tuple[Floats, Floats]]:
        """The weights and biases of each layer of a tower. Weights are [rows, width] in the first layer, with a row for each of
        row_features(), and [neurons, inputs] in the others. The last layer has a neuron for each of tower_labels()."""
        return self._native.layers(range(self.towers)[tower])

    def row_features(self) -> npt.NDArray[np.int64]:
        """The features that have weights in the first layer, ascending: those that occur in the training data. Others add nothing."""
        return self._native.row_features().astype(np.int64)

    def pairs(self) -> tuple[Any, Any] | None:
        """What a direct path from features to labels adds to the scores: two CSR matrices [features, labels] with entries in
        the same places, one for rows scaled to length one and one for rows as they are. None without a direct path."""
        pairs = self._native.pairs()
        if pairs is None:
            return None
        feature, label, of_unit, of_value = pairs
        places = feature.astype(np.int64), label.astype(np.int64)
        return tuple(sp.coo_array((part, places), shape=(self.features, self.labels)).tocsr() for part in (of_unit, of_value))

    def words(self) -> list[str]:
        """The vocabulary of a model of running text, the most frequent word first."""
        return self._native.words()

    @overload
    def neighbours(self, label: str, k: int = 10) -> list[tuple[str, float]]: ...

    @overload
    def neighbours(self, label: SupportsIndex, k: int = 10) -> list[tuple[int, float]]: ...

    def neighbours(self, label: str | SupportsIndex, k: int = 10) -> list[tuple[str, float]] | list[tuple[int, float]]:
        """The k labels nearest to a label, with their cosines, nearest first. They are named as `label` is: by names or numbers.

        Labels are compared by their label_embeddings(). In a model of running text, whose labels are words, they are compared
        by what the first layer has learned of the words.
        """
        if not isinstance(label, str):
            return self._nearest(operator.index(label), k)
        names = self.label_names
        return [(names[number], cosine) for number, cosine in self._nearest(self._number_of(label), k)]

    def _nearest(self, label: int, k: int) -> list[tuple[int, float]]:
        if not 0 <= label < self.labels:
            raise _modelet.UsageError(f"there is no label {label}; the model has {self.labels}")
        if tomllib.loads(self._native.reading)["data"]["format"] == "words":
            return self._native.nearest_words(label, k)
        cosines = self._label_directions @ self._label_directions[label]
        order = np.argsort(-cosines, kind="stable")
        return [(int(number), float(cosines[number])) for number in order[order != label][:k]]

    @functools.cached_property
    def _label_directions(self) -> Floats:
        """The label_embeddings(), scaled to length one."""
        vectors = self.label_embeddings()
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny))

    def read(self, path: str | os.PathLike[str]) -> tuple[Any, Any]:
        """Reads a text or prepared file like those of the training. Returns features (as the model sees them) and labels, both CSR."""
        return self._matrices(self._native.read(os.fspath(path)))

    def update(self, path: str | os.PathLike[str]) -> int:
        """Adds the records of a table, a file like the training data, to the histories of their entities (docs/columns.md), which
        answers know from now on. They are kept beside the model. Returns how many were new."""
        return self._native.add_events(os.fspath(path))[0]

    def encode(self, rows: Questions | npt.ArrayLike) -> Any:
        """The features, as the model sees them (CSR), of texts or rows of columns."""
        return self._matrices(_rows.encode(self._native, _rows.listed(rows)))[0]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Copies the checkpoint to a new folder, which modelet.load() and the programs can read."""
        shutil.copytree(self._kept_folder(), folder)
        if events := self._native.events():
            (Path(folder) / _EVENTS).write_bytes(events)

    def to_onnx(self, path: str | os.PathLike[str], *, input: str = "sparse", k: int | None = None) -> None:
        """Writes the model as an ONNX file; see modelet.onnx.export."""
        onnx.export(self, path, input=input, k=k)

    def _kept_folder(self) -> Path:
        if not self.folder.is_dir():
            raise _modelet.Error(f"{self.folder}: the files of this model are gone. Those of a model that was fitted or unpickled "
                                 "belong to the process that did it, and go with the model there: pickle or save it before")
        return self.folder

    def _matrices(self, arrays: tuple[npt.NDArray[Any], ...]) -> tuple[Any, Any]:
        offsets, ids, values, label_offsets, label_ids = arrays
        rows = len(offsets) - 1
        X = sp.csr_array((values, ids.astype(np.int64), offsets.astype(np.int64)), shape=(rows, self.features))
        ones = np.ones(len(label_ids), np.int8)
        Y = sp.csr_array((ones, label_ids.astype(np.int64), label_offsets.astype(np.int64)), shape=(rows, self.labels))
        return X, Y

    def _samples(self, rows: Rows) -> _modelet.Samples:
        rows = _rows.listed(rows)
        if isinstance(rows, (list, tuple)) and not rows:
            rows = sp.csr_array((0, self.features), dtype=np.float32)
        elif _rows.are_questions(self._native, rows):
            rows = self.encode(rows)
        return _data.samples(rows, labels=self.labels)

    # A pickle contains the files of the checkpoint.
    def __getstate__(self) -> dict[str, Any]:
        files = {file.name: file.read_bytes() for file in sorted(self._kept_folder().iterdir()) if file.is_file()}
        if events := self._native.events():
            files[_EVENTS] = events
        return {"files": files, "threads": self._threads}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = Folder()
        for name, content in state["files"].items():
            (own.path / name).write_bytes(content)
        self._open(str(own.path), state["threads"])
        self._own = own  # removed with the model


def load(path: str | os.PathLike[str], threads: int = 0) -> Model:
    """Opens the folder of a run (its best checkpoint), or a checkpoint. threads 0: all cores."""
    return Model(path, threads)
