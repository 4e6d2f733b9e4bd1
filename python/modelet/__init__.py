"""Modelet: very wide neural networks on ordinary CPU machines.

    classifier = modelet.fit(X, Y)                      # a scikit-learn classifier, trained on scipy or numpy arrays
    classifier = modelet.fit(frame, target="product")   # of a table of mixed columns: pandas, polars, pyarrow, a file
    run = modelet.train("experiment.toml", nodes=4)     # an experiment file, on one or more nodes of this machine
    model = modelet.load("runs/quickstart")             # a trained model: the best labels, scores, embeddings, ONNX
    run = modelet.ray.train("experiment.toml", num_nodes=8, out="runs/on-ray")    # on the machines of a Ray cluster

docs/python.md is the manual.
"""
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelet import labels, onnx, ray, table
    from modelet._classifier import Classifier, fit
    from modelet._model import Model, load
    from modelet._modelet import Error, UsageError
    from modelet._train import Run, train
    from modelet.table import TableClassifier

    __version__: str

__all__ = ["Classifier", "Error", "Model", "Run", "TableClassifier", "UsageError", "__version__", "fit", "load", "train"]

# The module of each name. A module is imported when a name of it is used, so the programs start at once, and only users of Ray
# need Ray.
_MODULES = {"Classifier": "_classifier", "fit": "_classifier", "Model": "_model", "load": "_model", "Error": "_modelet",
            "UsageError": "_modelet", "__version__": "_modelet", "Run": "_train", "train": "_train", "TableClassifier": "table"}
_SUBMODULES = ("labels", "onnx", "ray", "table")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"modelet.{name}")
    if name in _MODULES:
        value = getattr(importlib.import_module(f"modelet.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'modelet' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
