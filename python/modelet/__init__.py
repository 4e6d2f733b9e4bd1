"""Modelet: very wide neural networks on ordinary CPU machines.

    classifier = modelet.fit(X, Y)                      # a scikit-learn classifier, trained on scipy or numpy arrays
    run = modelet.train("experiment.toml", nodes=4)     # an experiment file, on one or more nodes of this machine
    model = modelet.load("runs/quickstart")             # a trained model: the best labels, scores, embeddings, ONNX
    modelet.ray.train("experiment.toml", num_nodes=8)   # the same on the machines of a Ray cluster

docs/python.md is the manual.
"""
from modelet._classifier import Classifier, fit
from modelet._model import Model, load
from modelet._modelet import Error, UsageError, __version__
from modelet._train import Run, train

__all__ = ["Classifier", "Error", "Model", "Run", "UsageError", "__version__", "fit", "load", "train"]


def __getattr__(name):
    if name == "ray":  # only who asks for it needs Ray
        import importlib

        return importlib.import_module("modelet.ray")
    raise AttributeError(f"module 'modelet' has no attribute '{name}'")
