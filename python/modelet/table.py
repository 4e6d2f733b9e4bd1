"""Classifiers of tables whose columns are of any kind: data frames of pandas and polars, tables of pyarrow, files.

    classifier = modelet.fit(orders, target="product")      # the columns' types are guessed, as by modelet train FILE --target
    classifier.predict(new_orders)
    modelet.table.write(orders, "orders.jsonl")             # as JSON Lines, which the programs read
    python3 -m modelet.table orders.parquet orders.jsonl    # the same of a file of Parquet

A frame goes as JSON Lines through the encoder that reads files, so both get the same model and the same answers (docs/columns.md).
"""
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from modelet import _keys, _modelet, _programs, _rows
from modelet._classifier import SCORES_AT_ONCE, probabilities
from modelet._folders import Folder
from modelet._model import Model
from modelet._progress import Callbacks, Listeners, Progress
from modelet._train import follow

# A frame of pandas or polars, a table of pyarrow, {column: values}, or the path of a file: of Parquet, or as the programs read it.
Table: TypeAlias = Any

_AT_ONCE = 10000  # rows
_SUFFIX = ".jsonl"


class TableClassifier:
    """Predicts the column `target` of a table from its other columns.

    target         name of the column of labels; a cell may have one label or a list of them
    settings       keys of an experiment that are not to be chosen, such as {"columns.zip": "category"} (docs/columns.md)
    time_budget    seconds that fit() may take to choose and to train
    out            folder of the run, which stays; None: a temporary one, which goes with the classifier
    threads        0: all cores
    random_state   seed; the same seed gives the same model
    callbacks, progress   as in modelet.Classifier

    After fit(): `classes_` are the labels, `model_` is the modelet.Model, `recipe_` says what was chosen, and `training_` how good
    the model is on the test data (the events recipe and finished, docs/events.md).
    """

    def __init__(self, target: str, *, settings: Mapping[str, Any] | None = None, time_budget: float | None = None,
                 out: str | os.PathLike[str] | None = None, threads: int = 0, random_state: int | None = None,
                 callbacks: Callbacks = None, progress: Progress = "auto") -> None:
        self.target = target
        self.settings = settings
        self.time_budget = time_budget
        self.out = out
        self.threads = threads
        self.random_state = random_state
        self.callbacks = callbacks
        self.progress = progress

    def fit(self, table: Table, test: Table | None = None) -> Self:
        """Trains a new model. Without `test`, a tenth of the rows is held out as test data. Ctrl-C ends the training after the step,
        and raises KeyboardInterrupt."""
        if not isinstance(self.target, str):
            raise TypeError(f"target is {self.target!r}; it is the name of a column")
        own = None
        if self.out is None:
            own = Folder()
            run = own.path / "run"
        else:
            run = Path(self.out)
        given = {"train.threads": self.threads, **({} if self.random_state is None else {"train.seed": self.random_state})}
        command = [_programs.path("modelet"), "train"]
        parts = [_Part(table, "the table", run / "data" / ("table" if test is None else "train"), self.target)]
        if test is not None:
            parts.append(_Part(test, "the test table", run / "data" / "test", self.target))
        command += [os.fspath(part.path) for part in parts]
        command += ["--target", self.target, "--json", "--out", os.fspath(run)]
        if self.time_budget is not None:
            command += ["--time-budget", f"{self.time_budget}s"]
        for assignment in _keys.assignments({**given, **_keys.flat(self.settings)}):
            command += ["--set", assignment]
        with Listeners(self.callbacks, self.progress) as listeners:
            try:
                follow(command, listeners)
            except (_modelet.Error, _modelet.UsageError) as error:
                raise type(error)(_with_rows(str(error), parts, run / "data")) from None
        if test is None and parts[0].is_written:
            parts[0].path.unlink()  # its rows are in the two files of the run now
        self.model_ = Model(run, self.threads)
        if own is not None:
            self.model_._own = own  # removed with the model
        self.recipe_ = listeners.last["recipe"]
        self.training_ = listeners.last["finished"]
        self.classes_ = _classes(self.model_.label_names, parts[0].kinds)
        labels = max(1.0, self.recipe_["data"]["labels_per_row"])
        self._several = bool(labels > 1)
        self._softmax = any(chosen["key"] == "model.loss" and chosen["value"] == "softmax" for chosen in self.recipe_["chosen"])
        self.threshold_ = 0.5 / (labels if self._softmax else 1)
        return self

    def update(self, table: Table) -> int:
        """Adds rows with labels to the histories of their entities (docs/columns.md), which answers know from now on; a row is never
        described by itself or its future. Returns how many were new."""
        if not hasattr(self, "model_"):
            raise _modelet.UsageError("this TableClassifier has no model yet: call fit()")
        with Folder() as folder:
            part = _Part(table, "the table", folder.path / "table", self.target)
            if part.is_written and part.path.stat().st_size == 0:
                return 0
            try:
                return self.model_.update(part.path)
            except (_modelet.Error, _modelet.UsageError) as error:
                raise type(error)(_with_rows(str(error), [part], folder.path)) from None

    def predict(self, table: Table) -> npt.NDArray[Any]:
        """The label of each row; if rows had several in training, a list of those that are at least as probable as `threshold_`."""
        X, _ = self._encode(table)
        if not self._several:
            return np.asarray(self.classes_[self.model_.predict(X, 1)[0][:, 0]])
        found = np.empty(X.shape[0], object)
        at_once = max(1, SCORES_AT_ONCE // len(self.classes_))
        for first in range(0, X.shape[0], at_once):
            for row, values in enumerate(self._probabilities(X[first : first + at_once]), first):
                found[row] = self.classes_[values >= self.threshold_].tolist()
        return found

    def predict_top(self, table: Table, k: int = 5) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The k best labels of each row and their scores, best first."""
        best, scores = self.model_.predict(self._encode(table)[0], k)
        return self.classes_[best], scores

    def predict_proba(self, table: Table) -> npt.NDArray[np.float64]:
        """The probabilities of the labels [rows, labels], in the order of `classes_`."""
        return self._probabilities(self._encode(table)[0])

    def score(self, table: Table, y: Any = None) -> float:
        """The share of the rows whose best label is right: the one, or one of those, in the column `target`, or in `y`."""
        X, Y = self._encode(table, self.target if y is None else y)
        best = self.model_.predict(X, 1)[0][:, 0]
        return float(np.mean(np.asarray(Y[np.arange(X.shape[0]), best]) > 0)) if X.shape[0] else float("nan")

    def _probabilities(self, X: Any) -> npt.NDArray[np.float64]:
        return probabilities(self.model_.scores(X), self._softmax, self._several)

    def _encode(self, table: Table, labels: Any = None) -> tuple[Any, Any]:
        """The features of a table and, if asked, its labels: given, or those of a column."""
        if not hasattr(self, "model_"):
            raise _modelet.UsageError("this TableClassifier has no model yet: call fit()")
        extra = {} if labels is None or isinstance(labels, str) else {self.target: labels}
        needed = [*self.model_.columns, *([labels] if isinstance(labels, str) else [])]
        with Folder() as folder:
            part = _Part(table, "the table", folder.path / "table", self.target, needed, extra)
            if part.is_written and part.path.stat().st_size == 0:  # no rows, which a file must have
                return sp.csr_array((0, self.model_.features)), sp.csr_array((0, self.model_.labels))
            try:
                return self.model_.read(part.path)
            except (_modelet.Error, _modelet.UsageError) as error:
                raise type(error)(_with_rows(str(error), [part], folder.path)) from None


def write(table: Table, path: str | os.PathLike[str]) -> None:
    """Writes a frame, a table of pyarrow, {column: values} or a file of Parquet as JSON Lines."""
    with open(path, "xb") as file:
        for line in _lines(table, "the table", []):
            file.write(line)


class _Part:
    """A table that a program reads from a file: its own, or one that is written here."""

    def __init__(self, table: Table, name: str, path: Path, target: str, needed: Sequence[str] = (), extra: Mapping[str, Any] = {}) -> None:
        self.kinds: set[type] = set()  # of the labels
        self.name = name
        self.is_written = not _is_path(table) or _is_parquet(table) or bool(extra)
        self.path = path.with_name(path.name + _SUFFIX) if self.is_written else Path(table).absolute()
        if not self.is_written:
            return
        if _is_path(table):
            self.name = os.fspath(table)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "xb") as file:
            for line in _lines(table, self.name, needed, extra, target, self.kinds):
                file.write(line)


def _is_path(table: Table) -> bool:
    return isinstance(table, (str, os.PathLike))


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        return file.read(5) == b"PAR1\x15"  # a number follows, in the encoding of Thrift


def _frames(table: Table, name: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Names and values of the columns of so many rows at a time."""
    if _is_path(table):
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise ImportError("files of Parquet are read with pyarrow: pip install 'modelet[tables]'") from error
        try:
            for batch in parquet.ParquetFile(table).iter_batches(_AT_ONCE):
                yield from _frames(pa.Table.from_batches([batch]), name)
        except pa.ArrowInvalid as error:
            raise _modelet.Error(f"{os.fspath(table)}: {error}") from None
    elif isinstance(table, Mapping):
        yield list(table), list(table.values())
    elif hasattr(table, "collect_schema") and hasattr(table, "collect"):
        raise TypeError(f"{name} is lazy: give its collect()")
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        names = list(getattr(table, "column_names", table.columns))
        if len(set(names)) < len(names):
            raise _modelet.UsageError(f"{name} has two columns of one name: {', '.join(map(repr, names))}")
        for first in range(0, max(1, len(table)), _AT_ONCE):
            rows = table.slice(first, _AT_ONCE) if hasattr(table, "slice") else table.iloc[first : first + _AT_ONCE]
            yield names, [rows[column] for column in names]
    else:
        raise TypeError(f"{name} is {type(table).__name__}; give a data frame, a table of pyarrow, a dict of columns or the path of a file")


def _lines(table: Table, name: str, needed: Sequence[str], extra: Mapping[str, Any] = {}, target: str | None = None,
           kinds: set[type] | None = None) -> Iterator[bytes]:
    """A table as JSON Lines. `needed`: columns that it must have. `extra`: columns beside its own, or instead of them."""
    first = 0
    for names, columns in _frames(table, name):
        for column in names:
            if not isinstance(column, str):
                raise TypeError(f"{name}: {column!r} is no name of a column, which is a text")
        for column in needed:
            if column not in names and column not in extra:
                raise _modelet.UsageError(f"{name} has no column {column!r}; it has {', '.join(map(repr, names))}")
        cells = {column: _rows.column_values(values) for column, values in zip(names, columns)}
        count = len(next(iter(cells.values()), []))
        for column, values in extra.items():
            cells[column] = _rows.column_values(values[first : first + count])
        for column, given in cells.items():
            if len(given) != count:
                raise _modelet.UsageError(f"{name}: columns differ in length: {column!r} has {len(given)}, {next(iter(cells))!r} {count}")
            cells[column] = _cells(given, f"{name}, row", first, column)
            if kinds is not None and column == target:
                kinds.update(kind for value in given for kind in _kinds(value))
        for row in zip(*cells.values()):
            yield json.dumps(dict(zip(cells, row)), ensure_ascii=False).encode(errors="surrogateescape") + b"\n"
        first += count


def _cells(values: Sequence[Any], where: str, first: int, column: str) -> list[Any]:
    cells = []
    for row, value in enumerate(values, first):
        try:
            cells.append(value if type(value) is str else _rows.cell(value))
        except TypeError as error:
            raise _modelet.UsageError(f"{where} {row}: column {column!r}: {error}") from None
    return cells


def _kinds(value: Any) -> Iterator[type]:
    parts = _rows.parts(value)
    for part in [value] if parts is None else parts:
        if not _rows.is_missing(part):
            yield next((kind for kinds, kind in (((bool, np.bool_), bool), ((int, np.integer), int), ((float, np.floating), float))
                        if isinstance(part, kinds)), str)


def _classes(names: Sequence[str], kinds: set[type]) -> npt.NDArray[Any]:
    """Names of labels as values like those of the target."""
    if kinds == {bool}:
        return np.array([name == "True" for name in names])
    if kinds == {int}:
        return np.array([int(name) for name in names])
    if kinds and kinds <= {int, float}:
        return np.array([float(name) for name in names])
    return np.array(names, object)


def _with_rows(message: str, parts: Sequence[_Part], data: Path) -> str:
    """A message about lines of files that were written here, with rows instead. Rows count from 0."""
    for part in parts:
        if not part.is_written:
            continue
        for path in {part.path, data / ("train" + _SUFFIX), data / ("test" + _SUFFIX)} - {other.path for other in parts if other is not part}:
            place = re.compile(re.escape(os.fspath(path)) + r":(\d+)")
            message = place.sub(lambda found: f"{part.name}, row {_row_of(path, int(found[1]), part.path)}", message)
            message = message.replace(os.fspath(path), part.name)
    return message


def _row_of(path: Path, line: int, table: Path) -> int:
    """The row of a table whose line is also this one of a file of some of its rows."""
    if path == table:
        return line - 1
    with open(path, "rb") as file:
        wanted = next(text for number, text in enumerate(file, 1) if number == line)
    with open(table, "rb") as file:
        return next(row for row, text in enumerate(file) if text == wanted)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python3 -m modelet.table TABLE.parquet OUT.jsonl")
    write(*sys.argv[1:])
