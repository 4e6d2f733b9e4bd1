"""A classifier with the conventions of scikit-learn, for one label a sample or many."""
import os
import tempfile

import numpy as np
import scipy.sparse as sp
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from modelet import _data, _keys, _modelet, _recipe
from modelet._model import Model
from modelet._progress import Listeners

_SCORES_AT_ONCE = 1 << 25  # floats that predict() has in memory


class Classifier(ClassifierMixin, BaseEstimator):
    """Trains a network on this machine. `y` is one label a sample (1-d) or an indicator matrix, dense or CSR.

    Parameters that are None are chosen from the shape of the data.

    hidden         width of each hidden layer, multiples of 16
    loss           "softmax" or "sigmoid"
    epochs, batch, learning_rate
    normalize      "l2": each sample's features are scaled to length one; "none"
    validation     share of the samples that is held out to choose the best epoch
    threshold      probability from which on predict() names a label of an indicator matrix
    settings       any other keys of an experiment (docs/experiment.md), {"train.patience": 2}
    threads        0: all cores
    random_state   seed; the same seed gives the same model, with any number of threads
    callbacks      a function, or several, that get each event of the training as a dict (docs/events.md); what
                   they raise ends the training
    progress       True, False, or "auto": a bar in a terminal or notebook, if tqdm is installed
    """

    def __init__(self, *, hidden=None, loss=None, epochs=None, batch=None, learning_rate=None, normalize=None,
                 validation=0.0, threshold=None, settings=None, threads=0, random_state=None, callbacks=None,
                 progress="auto"):
        self.hidden = hidden
        self.loss = loss
        self.epochs = epochs
        self.batch = batch
        self.learning_rate = learning_rate
        self.normalize = normalize
        self.validation = validation
        self.threshold = threshold
        self.settings = settings
        self.threads = threads
        self.random_state = random_state
        self.callbacks = callbacks
        self.progress = progress

    # ---- Training

    def fit(self, X, y):
        """Trains anew. Ctrl-C ends the training after the step and goes on as KeyboardInterrupt."""
        X, y = self._validate(X, y, reset=True)
        self._set_classes(y, None)
        targets = self._targets(y)
        self._choose_keys(X, targets)
        self._train(X, targets, resume="")
        return self

    def partial_fit(self, X, y, classes=None):
        """Learns from more samples, `epochs` (1 if None) times each. The first call needs all classes, or an indicator.

        The model goes to disk and back in each call: give it thousands of samples at once.
        """
        first = not hasattr(self, "model_")
        X, y = self._validate(X, y, reset=first)
        if first:
            self._set_classes(y, classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes!r} are not those of the first call: {self.classes_!r}")
        targets = self._targets(y)
        if first:
            self._choose_keys(X, targets)
        self._train(X, targets, resume="" if first else str(self.model_.folder),
                    also={"train.epochs": self.epochs or 1, "train.schedule": "constant", "data.validation": 0})
        return self

    def _validate(self, X, y, reset):
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float32, multi_output=True, reset=reset)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind == "multiclass-multioutput":
            raise ValueError("y has several columns of classes; an indicator matrix (0 and 1) or one label a sample is needed")
        if kind != "multilabel-indicator":
            y = column_or_1d(y, warn=True)
        return X, y

    def _set_classes(self, y, classes):
        self._multilabel = y.ndim == 2
        self._sparse_output = sp.issparse(y)
        if self._multilabel:
            self.classes_ = np.arange(y.shape[1])
        else:
            self.classes_ = np.unique(y if classes is None else classes)
        if len(self.classes_) < 2 and not self._multilabel:
            raise ValueError(f"Classifier needs samples of at least 2 classes; these have one class: {self.classes_[0]!r}")

    def _targets(self, y):
        """What the engine learns: an indicator in CSR, or the number of each sample's class."""
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

    def _choose_keys(self, X, targets):
        entries = targets.nnz if self._multilabel else len(targets)
        labels = len(self.classes_)
        nonzeros = X.nnz if sp.issparse(X) else np.count_nonzero(X)
        keys = _recipe.choose(rows=X.shape[0], features=X.shape[1], labels=labels, nonzeros=int(nonzeros),
                              one_label=not self._multilabel)
        chosen = {"model.hidden": self.hidden and list(self.hidden), "model.loss": self.loss, "train.epochs": self.epochs,
                  "train.batch": self.batch, "train.learning_rate": self.learning_rate, "data.normalize": self.normalize,
                  "data.validation": self.validation}
        keys.update({name: value for name, value in chosen.items() if value is not None})
        keys.update({"train.keep_checkpoints": 1, "train.checkpoint_every": 1 << 30})
        keys.update(_keys.flat(self.settings))
        keys["train.seed"] = int(check_random_state(self.random_state).randint(1 << 31))
        self.keys_ = keys
        # A label of a sample with n labels gets 1/n of a softmax: half of that is nearer to it than to nothing.
        mean = max(1.0, entries / X.shape[0])
        self.threshold_ = self.threshold if self.threshold is not None else 0.5 / (mean if keys["model.loss"] == "softmax" else 1)

    def _train(self, X, targets, resume, also=None):
        keys = {"data.train": os.devnull, "data.test": os.devnull, **self.keys_, "train.threads": self.threads, **(also or {})}
        folder = tempfile.TemporaryDirectory(prefix="modelet-")
        with Listeners(self.callbacks, self.progress) as listeners:
            _modelet.train(_keys.assignments(keys), _data.samples(X, targets, len(self.classes_)), None,
                           folder.name, resume, listeners)
        self.training_ = listeners.last.get("finished", {})
        self.model_ = Model(folder.name, self.threads)
        self.model_._own = folder  # removed with the model

    # ---- Answers

    def decision_function(self, X):
        """The scores of the labels [rows, labels]; of two classes [rows], positive for the second."""
        scores = self._scores(self._rows(X))
        return scores[:, 1] - scores[:, 0] if self._two_classes() else scores

    def predict_proba(self, X):
        """The probabilities of the labels [rows, labels]. With one label a sample, and with the softmax loss, they add up to 1."""
        return self._probabilities(self._scores(self._rows(X)))

    def predict(self, X):
        """The class of each row; of an indicator matrix all labels that are at least as probable as `threshold_`."""
        X = self._rows(X)
        if not self._multilabel:
            best, _ = self.model_.predict(X, 1)
            return self.classes_[best[:, 0]]
        at_once = max(1, _SCORES_AT_ONCE // len(self.classes_))
        parts = []
        for first in range(0, X.shape[0], at_once):
            probable = self._probabilities(self._scores(X[first : first + at_once])) >= self.threshold_
            parts.append(sp.csr_array(probable.astype(np.int64)) if self._sparse_output else probable.astype(np.int64))
        return sp.vstack(parts, format="csr") if self._sparse_output else np.concatenate(parts)

    def predict_top(self, X, k=5):
        """The k best labels of each row and their scores, best first: for outputs too wide for one number a label."""
        best, scores = self.model_.predict(self._rows(X), k)
        return self.classes_[best], scores

    def to_onnx(self, path, **options):
        """Writes the model as an ONNX file; see modelet.onnx.export. The scores are those of the labels in `classes_`."""
        check_is_fitted(self, "model_")
        self.model_.to_onnx(path, **options)

    def _rows(self, X):
        check_is_fitted(self, "model_")
        return validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)

    def _scores(self, X):
        return self.model_.scores(X)

    def _two_classes(self):
        return not self._multilabel and len(self.classes_) == 2

    def _probabilities(self, scores):
        scores = scores.astype(np.float64)  # in single precision, large scores would all have the probability 1
        if self.keys_["model.loss"] == "softmax":
            return softmax(scores, axis=1)
        one_by_one = expit(scores)
        return one_by_one if self._multilabel else one_by_one / one_by_one.sum(axis=1, keepdims=True)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def fit(X, Y, **parameters):
    """A trained Classifier. The parameters are those of Classifier."""
    return Classifier(**parameters).fit(X, Y)
