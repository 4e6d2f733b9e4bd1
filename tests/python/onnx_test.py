"""Models as ONNX files give the same scores in onnxruntime."""
import numpy as np
import onnxruntime
import pytest
import scipy.sparse as sp

import modelet
from conftest import words
from modelet import onnx as modelet_onnx


def in_onnxruntime(path, inputs):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)


SETTINGS = [{}, {"model.hidden": [32, 16]}, {"model.precision": "bf16", "data.normalize": "none"},
            {"model.centroids": True, "sampling.prior": 1, "model.loss": "softmax", "sampling.mode": "uniform", "sampling.uniform": 16},
            {"model.centroids": True, "model.classifiers": 2, "model.loss": "sigmoid", "model.rare_trust": 0.3},
            {"model.centroids": True, "data.normalize": "none"},
            {"model.loss": "sigmoid", "modelets.output_modelets": 1, "modelets.hidden_columns": 16},
            {"model.loss": "sigmoid", "model.towers": 3, "model.centroids": True},
            {"model.loss": "sigmoid", "model.towers": 3, "model.tower_common": 5, "model.centroids": True, "model.classifiers": 1},
            {"model.loss": "sigmoid", "model.towers": 2, "model.divisions": 2, "model.tower_labels": "spread", "model.hidden": [32, 16]},
            {"sampling.mode": "lsh", "sampling.top": 4}, {"sampling.mode": "lsh", "sampling.retrieval": "tables", "sampling.top": 4}]


@pytest.mark.parametrize("settings", SETTINGS)
def test_scores_are_those_of_the_model(settings, many_labels, tmp_path):
    X, Y, test_X, _ = many_labels
    # Where the processor multiplies pairs of bf16, a model in bf16 rounds activations to them.
    tolerance = 5e-3 if settings.get("model.precision") == "bf16" else 1e-4
    classifier = modelet.fit(X, Y, epochs=2, threads=1, random_state=0, settings=settings)
    rows = sp.vstack([test_X, sp.csr_array((2, X.shape[1]), dtype=np.float32), 3.5 * test_X[:1]], format="csr")
    expected = classifier.decision_function(rows)
    path = str(tmp_path / "model.onnx")
    classifier.to_onnx(path)
    np.testing.assert_allclose(in_onnxruntime(path, modelet_onnx.inputs(rows))[0], expected, rtol=tolerance, atol=tolerance)
    classifier.to_onnx(path, input="dense")
    np.testing.assert_allclose(in_onnxruntime(path, {"X": rows.toarray()})[0], expected, rtol=tolerance, atol=tolerance)
    classifier.to_onnx(path, k=3)
    labels, scores = in_onnxruntime(path, modelet_onnx.inputs(rows))
    best, best_scores = classifier.predict_top(rows, 3)
    np.testing.assert_allclose(scores, best_scores, rtol=tolerance, atol=tolerance)
    clear = np.abs(np.diff(np.sort(expected, axis=1)[:, -4:], axis=1)).min(axis=1) > 10 * tolerance
    assert clear.any()
    np.testing.assert_array_equal(labels[clear], best[clear])


@pytest.mark.parametrize("centroids", [False, True])
def test_rows_whose_squares_are_no_floats(centroids, many_labels, tmp_path):
    X, Y, test_X, _ = many_labels
    classifier = modelet.fit(X, Y, epochs=2, threads=1, random_state=0, normalize="l2", settings={"model.centroids": centroids})
    rows = sp.vstack([factor * test_X[:3] for factor in (1e20, 1e-23, 1e-30)], format="csr").astype(np.float32)
    expected = np.tile(classifier.decision_function(test_X[:3]), (3, 1))
    path = str(tmp_path / "model.onnx")
    for graph, inputs in (("sparse", modelet_onnx.inputs(rows)), ("dense", {"X": rows.toarray()})):
        classifier.to_onnx(path, input=graph)
        np.testing.assert_allclose(in_onnxruntime(path, inputs)[0], expected, rtol=1e-4, atol=1e-4)


def test_centroids_of_rare_labels_count_as_they_are_scored(tmp_path):
    X, Y = words(120, 60, seed=9)  # about four samples a label
    classifier = modelet.fit(X, Y, epochs=2, threads=1, random_state=0,
                             settings={"model.loss": "sigmoid", "model.centroids": True, "model.centroid_share": 0.5, "model.rare_trust": 0.3})
    path = str(tmp_path / "model.onnx")
    classifier.to_onnx(path)
    np.testing.assert_allclose(in_onnxruntime(path, modelet_onnx.inputs(X))[0], classifier.decision_function(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"model.centroids": True, "model.hidden": [16]}])
def test_a_large_model_has_its_weights_in_a_second_file(settings, many_labels, tmp_path, monkeypatch):
    X, Y, test_X, _ = many_labels
    classifier = modelet.fit(X, Y, epochs=2, threads=1, random_state=0, settings=settings)
    layers = sum(weights.nbytes for weights, _ in classifier.model_.layers())
    monkeypatch.setattr(modelet_onnx, "_LARGEST_FILE", layers if "model.centroids" in settings else layers - 1)  # what pairs take counts as well
    path = tmp_path / "model.onnx"
    for _ in range(2):  # the second time it is replaced
        classifier.to_onnx(str(path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < layers
    np.testing.assert_allclose(in_onnxruntime(str(path), modelet_onnx.inputs(test_X))[0], classifier.decision_function(test_X), rtol=1e-4, atol=1e-4)


def same_scores(model, X, path):
    model.to_onnx(path)
    np.testing.assert_allclose(in_onnxruntime(path, modelet_onnx.inputs(X))[0], model.scores(X), rtol=1e-4, atol=1e-4)


def test_a_model_of_words(tmp_path):
    (tmp_path / "words.txt").write_text("one two three\nfour five six\n" * 200)
    keys = {"data": {"train": str(tmp_path / "words.txt"), "test": str(tmp_path / "words.txt"), "format": "words"}, "words": {"min_count": 1, "subsample": 0},
            "sampling.mode": "full", "train": {"epochs": 2, "batch": 64, "threads": 1}, "model.hidden": [16], "modelets.hidden_columns": 16}
    model = modelet.train(keys, out=tmp_path / "run").load()
    same_scores(model, model.read(tmp_path / "words.txt")[0][:50], str(tmp_path / "model.onnx"))


def test_a_model_that_does_not_suggest_what_is_there(tmp_path):
    """model.exclude_own: features are items, as labels are."""
    random = np.random.default_rng(0)
    lines = [f"{items[0]} " + " ".join(f"{item}:1" for item in sorted(items[1:])) for items in (random.choice(40, 5, replace=False) for _ in range(400))]
    (tmp_path / "items.txt").write_text("400 40 40\n" + "\n".join(lines) + "\n")
    keys = {"data": {"train": str(tmp_path / "items.txt"), "test": str(tmp_path / "items.txt")}, "model": {"centroids": True, "exclude_own": True, "hidden": [16]},
            "sampling.mode": "full", "train": {"epochs": 2, "batch": 64, "threads": 1}, "modelets.hidden_columns": 16}
    model = modelet.train(keys, out=tmp_path / "run").load()
    same_scores(model, model.read(tmp_path / "items.txt")[0][:50], str(tmp_path / "model.onnx"))


class WithPairs:
    """A model with a direct path in addition to its layers."""

    def __init__(self, model):
        self._model = model
        random = np.random.default_rng(0)
        unit = sp.random_array((model.features, model.labels), density=0.02, format="csr", dtype=np.float32, random_state=random)
        value = unit.copy()
        value.data = random.normal(size=unit.nnz).astype(np.float32)
        self._pairs = unit, value

    def __getattr__(self, name):
        return getattr(self._model, name)

    def pairs(self):
        return self._pairs

    def scores(self, rows):
        X = rows.toarray().astype(np.float64)
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        unit = X / np.where(lengths > 0, lengths, 1)
        own = unit if 'normalize = "l2"' in self._model.experiment else X
        return self._model.scores(rows) + unit @ self._pairs[0].toarray() + own @ self._pairs[1].toarray()


@pytest.mark.parametrize("normalize", ["l2", "none"])
def test_a_direct_path(normalize, many_labels, tmp_path):
    X, Y, test_X, _ = many_labels
    layers_alone = {"model.centroids": False}
    model = WithPairs(modelet.fit(X, Y, epochs=1, threads=1, random_state=0, normalize=normalize, settings=layers_alone).model_)
    rows = sp.vstack([test_X, sp.csr_array((2, X.shape[1]), dtype=np.float32)], format="csr")
    path = str(tmp_path / "model.onnx")
    modelet_onnx.export(model, path)
    np.testing.assert_allclose(in_onnxruntime(path, modelet_onnx.inputs(rows))[0], model.scores(rows), rtol=1e-4, atol=1e-4)
    modelet_onnx.export(model, path, input="dense")
    np.testing.assert_allclose(in_onnxruntime(path, {"X": rows.toarray()})[0], model.scores(rows), rtol=1e-4, atol=1e-4)


def test_what_it_refuses(many_labels, tmp_path):
    X, Y, _, _ = many_labels
    model = modelet.fit(X, Y, epochs=1, threads=1, random_state=0).model_
    with pytest.raises(ValueError, match="sparse"):
        model.to_onnx(str(tmp_path / "model.onnx"), input="csr")

    class More:  # a model with a term that only a later release knows
        def __getattr__(self, name):
            return getattr(model, name)

        def terms(self):
            return [*model.terms(), "tides"]

    with pytest.raises(modelet.Error, match="tides"):
        modelet_onnx.export(More(), str(tmp_path / "model.onnx"))
