"""A classifier with the conventions of scikit-learn, for one or many labels for each sample."""
import contextlib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import expit, log_expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

try:
    from sklearn.utils.validation import validate_data
except ImportError as error:
    raise ImportError("modelet.fit and modelet.Classifier need scikit-learn 1.6 or newer: pip install 'scikit-learn>=1.6'") from error

from modelet import _data, _keys, _modelet
from modelet._model import Model
from modelet._data import Matrix
from modelet._folders import Folder
from modelet._progress import Callbacks, Listeners, Progress

if TYPE_CHECKING:
    from modelet.table import TableClassifier

SCORES_AT_ONCE = 1 << 25  # floats that predict() has in memory
_NEVER = 1_000_000_000  # steps


class Classifier(ClassifierMixin, BaseEstimator):
    """Trains a network on this machine. `y` has one label for each sample (1-d), or is an indicator matrix, dense or CSR.

    Parameters that are None are chosen for the data in the way of `modelet train TRAIN TEST` (docs/guide.md): by rules for
    data of this shape and, if there are enough samples, by short trials on some of them.

    hidden         width of each hidden layer, multiples of 16
    loss           "softmax" or "sigmoid"
    epochs, batch, learning_rate
    normalize      "l2": each sample's features are scaled to length one; "none"
    validation     share of the samples that are held out to choose the best epoch
    threshold      with an indicator matrix, predict() returns the labels with at least this probability
    settings       any other keys of an experiment (docs/experiment.md), such as {"train.patience": 2}
    time_budget    seconds that fit() may take to choose and to train; it then chooses the best model that fits into them
    threads        0: all cores
    random_state   seed; the same seed gives the same model, with any number of threads
    callbacks      one or several functions that get each event of the training as a dict (docs/events.md); an
                   exception that they raise ends the training
    progress       True, False, or "auto": a bar in a terminal or notebook, if tqdm is installed
    """

    def __init__(self, *, hidden: Sequence[int] | None = None, loss: str | None = None, epochs: int | None = None,
                 batch: int | None = None, learning_rate: float | None = None, normalize: str | None = None,
                 validation: float = 0.0, threshold: float | None = None, settings: Mapping[str, Any] | None = None,
                 time_budget: float | None = None, threads: int = 0,
                 random_state: int | np.random.RandomState | None = None, callbacks: Callbacks = None,
                 progress: Progress = "auto") -> None:
        self.hidden = hidden
        self.loss = loss
        self.epochs = epochs
        self.batch = batch
        self.learning_rate = learning_rate
        self.normalize = normalize
        self.validation = validation
        self.threshold = threshold
        self.settings = settings
        self.time_budget = time_budget
        self.threads = threads
        self.random_state = random_state
        self.callbacks = callbacks
        self.progress = progress

    # ---- Training

    def fit(self, X: Matrix, y: Matrix) -> Self:
        """Trains a new model. Ctrl-C ends the training after the step, and then raises KeyboardInterrupt."""
        with self._as_before_if_it_fails():
            X, y = self._validate(X, y, reset=True)
            self._set_classes(y, None)
            self._learn(X, self._targets(y), given=self._given(), seconds=self.time_budget)
        return self

    def partial_fit(self, X: Matrix, y: Matrix, classes: npt.ArrayLike | None = None) -> Self:
        """Learns from more samples, each `epochs` times (once if None), after fit() or other calls. Without fit(), the first call
        needs all classes, or an indicator matrix.

        Samples that were given before count again. Each call writes the model to disk and reads it again, so pass thousands of
        samples at once.
        """
        with self._as_before_if_it_fails():
            self._learn_more(X, y, classes)
        return self

    def _learn_more(self, X: Matrix, y: Matrix, classes: npt.ArrayLike | None) -> None:
        first = not hasattr(self, "model_")
        X, y = self._validate(X, y, reset=first)
        if first:
            self._set_classes(y, classes)
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes={classes!r} are not those of the first call: {self.classes_!r}")
        targets = self._targets(y)
        epochs = _keys.flat(self.settings).get("train.epochs", self.epochs or 1)
        in_parts = {"train.epochs": epochs, "train.schedule": "constant", "train.patience": 0, "data.validation": 0}
        if first:
            self._learn(X, targets, given={**self._given(), **in_parts})
        else:
            self._train(X, targets, {**self.keys_, **in_parts}, resume=str(self.model_._kept_folder()))

    @contextlib.contextmanager
    def _as_before_if_it_fails(self) -> Iterator[None]:
        """An error, Ctrl-C or the exception of a callback leaves the estimator with its former model."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _validate(self, X: Matrix, y: Matrix, reset: bool) -> tuple[Any, Any]:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float32, multi_output=True, reset=reset)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind == "multiclass-multioutput":
            raise ValueError("y has several columns of classes; an indicator matrix (0 and 1) or one label a sample is needed")
        if kind != "multilabel-indicator":
            y = column_or_1d(y, warn=True)
        elif not _data.is_indicator(y):  # scikit-learn's kind is that of any two values
            raise ValueError("an indicator matrix has the values 0 and 1 only")
        return X, y

    def _set_classes(self, y: Any, classes: npt.ArrayLike | None) -> None:
        self._multilabel = y.ndim == 2
        self._sparse_output = sp.issparse(y)
        if self._multilabel:
            self.classes_ = np.arange(y.shape[1])
        else:
            self.classes_ = np.unique(y if classes is None else classes)
        if len(self.classes_) < 2 and not self._multilabel:
            raise ValueError(f"Classifier needs samples of at least 2 classes; these have one class: {self.classes_[0]!r}")

    def _targets(self, y: Any) -> Any:
        """The targets for the engine: an indicator matrix in CSR, or the number of the class of each sample."""
        if (y.ndim == 2) != self._multilabel:
            raise ValueError("y was " + ("an indicator matrix" if self._multilabel else "one label a sample") + " before")
        if self._multilabel:
            if y.shape[1] != len(self.classes_):
                raise ValueError(f"y has {y.shape[1]} labels, before it had {len(self.classes_)}")
            return _data.indicator(y)
        numbers = np.searchsorted(self.classes_, y)
        numbers[numbers == len(self.classes_)] = 0
        unknown = self.classes_[numbers] != y
        if unknown.any():
            raise ValueError(f"y has classes that are not among `classes`: {np.unique(np.asarray(y)[unknown])!r}")
        return numbers

    def _given(self) -> dict[str, Any]:
        """The keys that follow from the parameters. Nothing except the final model is written."""
        parameters = {"model.hidden": None if self.hidden is None else list(self.hidden), "model.loss": self.loss,
                      "train.epochs": self.epochs, "train.batch": self.batch, "train.learning_rate": self.learning_rate,
                      "data.normalize": self.normalize, "data.validation": self.validation or None}
        return {"data.train": os.devnull, "data.test": os.devnull, "train.keep_checkpoints": 1, "train.checkpoint_every": _NEVER,
                "train.threads": self.threads, "train.seed": int(check_random_state(self.random_state).randint(1 << 31)),
                **{key: value for key, value in parameters.items() if value is not None}, **_keys.flat(self.settings)}

    def _learn(self, X: Any, targets: Any, given: dict[str, Any], seconds: float | None = None) -> None:
        """Trains a new model, and chooses the keys that are not given."""
        if seconds is not None and not seconds > 0:
            raise ValueError(f"time_budget is {seconds!r}; it is a number of seconds above 0")
        with Listeners(self.callbacks, progress=False) as listeners:
            chosen = _modelet.choose(_keys.assignments(given), self._samples(X, targets), seconds, listeners)
        self.recipe_ = listeners.last["recipe"]
        self.keys_ = _keys.flat(tomllib.loads(chosen))
        # With a softmax, each of the n labels of a sample should get 1/n. A probability of at least half of that is nearer to 1/n
        # than to 0.
        mean = max(1.0, self.recipe_["data"]["labels_per_row"])
        self.threshold_ = self.threshold if self.threshold is not None else 0.5 / (mean if self._is_softmax() else 1)
        self._train(X, targets, self.keys_, resume="")

    def _train(self, X: Any, targets: Any, keys: dict[str, Any], resume: str) -> None:
        folder = Folder()
        with Listeners(self.callbacks, self.progress) as listeners:
            threads = _keys.flat(self.settings).get("train.threads", self.threads)
            _modelet.train(_keys.assignments({**keys, "train.threads": threads}), self._samples(X, targets), None, str(folder.path),
                           resume, listeners)
        self.training_ = listeners.last.get("finished", {})
        self.model_ = Model(folder.path, self.threads)
        self.model_._own = folder  # removed with the model

    def _samples(self, X: Any, targets: Any) -> _modelet.Samples:
        return _data.samples(X, targets, len(self.classes_))

    def _is_softmax(self) -> bool:
        return bool(self.keys_["model.loss"] == "softmax")

    # ---- Answers

    def decision_function(self, X: Matrix) -> npt.NDArray[np.float32]:
        """The scores of the labels [rows, labels]. With two classes: [rows], positive for the second class."""
        scores = self._scores(self._rows(X))
        return scores[:, 1] - scores[:, 0] if self._two_classes() else scores

    def predict_proba(self, X: Matrix) -> npt.NDArray[np.float64]:
        """The probabilities of the labels [rows, labels]. With one label for each sample, or with the softmax loss, they add up to 1."""
        return self._probabilities(self._scores(self._rows(X)))

    def predict(self, X: Matrix) -> Any:
        """The class of each row. With an indicator matrix, all labels that are at least as probable as `threshold_`."""
        X = self._rows(X)
        if not self._multilabel:
            best, _ = self.model_.predict(X, 1)
            return self.classes_[best[:, 0]]
        at_once = max(1, SCORES_AT_ONCE // len(self.classes_))
        parts = []
        for first in range(0, X.shape[0], at_once):
            probable = self._probabilities(self._scores(X[first : first + at_once])) >= self.threshold_
            parts.append(sp.csr_array(probable.astype(np.int64)) if self._sparse_output else probable.astype(np.int64))
        return sp.vstack(parts, format="csr") if self._sparse_output else np.concatenate(parts)

    def predict_top(self, X: Matrix, k: int = 5) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """The k best labels of each row and their scores, best first. For outputs that are too wide for a number for each label."""
        best, scores = self.model_.predict(self._rows(X), k)
        return self.classes_[best], scores

    def to_onnx(self, path: str | os.PathLike[str], *, input: str = "sparse", k: int | None = None) -> None:
        """Writes the model as an ONNX file; see modelet.onnx.export. The scores are those of the labels in `classes_`."""
        check_is_fitted(self, "model_")
        self.model_.to_onnx(path, input=input, k=k)

    def _rows(self, X: Matrix) -> Any:
        check_is_fitted(self, "model_")
        return validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)

    def _scores(self, X: Any) -> npt.NDArray[np.float32]:
        return self.model_.scores(X)

    def _two_classes(self) -> bool:
        return not self._multilabel and len(self.classes_) == 2

    def _probabilities(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return probabilities(scores, self._is_softmax(), self._multilabel)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def probabilities(scores: npt.NDArray[np.float32], is_softmax: bool, several: bool) -> npt.NDArray[np.float64]:
    """Of the labels [rows, labels]. `several`: a row may have several labels."""
    wide = scores.astype(np.float64)  # in single precision, large scores would all have the probability 1
    if is_softmax:
        return np.asarray(softmax(wide, axis=1))
    if several:
        return np.asarray(expit(wide))
    return np.asarray(softmax(log_expit(wide), axis=1))  # in logarithms, because all may round to 0


@overload
def fit(X: Matrix, Y: Matrix, **parameters: Any) -> Classifier: ...


@overload
def fit(X: Any, *, target: str, test: Any = None, **parameters: Any) -> "TableClassifier": ...


def fit(X: Any, Y: Any = None, *, target: str | None = None, test: Any = None, **parameters: Any) -> "Classifier | TableClassifier":
    """Returns a trained Classifier; with `target`, the column of labels of a table X (docs/columns.md), a TableClassifier. The
    parameters are those of the class."""
    if target is None:
        return Classifier(**parameters).fit(X, Y)
    if Y is not None:
        raise TypeError("labels are given twice: as Y, and as the column `target` of a table")
    from modelet.table import TableClassifier

    return TableClassifier(target, **parameters).fit(X, test)
