"""Arrays of the right type reach the engine as they are, and only columns that samples use take memory."""
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import modelet
from conftest import words
from modelet import _data, _modelet
from modelet import onnx as modelet_onnx
from onnx_test import in_onnxruntime

ROWS, FEATURES, PER_ROW = 20_000, 320, 128
MIB = 1 << 20


@pytest.fixture(scope="module")
def classifier():
    X, Y = words(300, FEATURES // 8, seed=1)
    return modelet.fit(X, Y, epochs=1, threads=1, random_state=0, normalize="none")


@pytest.fixture(scope="module")
def large():
    """20 MiB of CSR with indices of 32 bits."""
    random = np.random.default_rng(0)
    columns = np.sort(random.permuted(np.tile(np.arange(FEATURES, dtype=np.int32), (ROWS, 1)), axis=1)[:, :PER_ROW], axis=1)
    X = sp.csr_array((random.random(ROWS * PER_ROW, dtype=np.float32), columns.ravel(),
                      np.arange(0, ROWS * PER_ROW + 1, PER_ROW, dtype=np.int32)), shape=(ROWS, FEATURES))
    assert X.has_canonical_format and X.indices.dtype == np.int32 and X.data.nbytes + X.indices.nbytes > 19 * MIB
    return X


def peak(call):
    """The most memory of numpy's arrays that a call takes."""
    call()  # what is made once
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


DECLARED = 1 << 20  # columns, as a hashing vectoriser has them


def wide(X):
    """The same columns, far apart among DECLARED."""
    return sp.csr_array((X.data, X.indices.astype(np.int64) * 811 + 5, X.indptr), shape=(X.shape[0], DECLARED))


def folder_bytes(folder):
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def test_columns_that_no_sample_uses_take_nothing(tmp_path):
    """Neither in the model, nor in its file, nor in an ONNX file; and columns that only questions use add nothing."""
    X, Y = words(400, 20, seed=3)
    model = modelet.fit(wide(X), Y, epochs=3, threads=1, random_state=0, settings={"model.centroids": True})
    model.model_.save(tmp_path / "model")
    rows = len(np.unique(X.indices))
    width = len(model.model_.layers()[0][1])
    np.testing.assert_array_equal(model.model_.row_features(), np.unique(wide(X).indices))
    assert model.model_.layers()[0][0].shape == (rows, width)
    assert folder_bytes(tmp_path / "model") < 3 * 4 * width * (rows + 50) + (1 << 19)
    unseen = sp.csr_array(([5.0], ([0], [DECLARED - 1])), shape=X.shape[:1] + (DECLARED,), dtype=np.float32)
    assert (model.model_.embed(wide(X) + unseen)[1:] == model.model_.embed(wide(X))[1:]).all()
    graph, with_unseen = str(tmp_path / "model.onnx"), wide(X[:4]) + unseen[:4]
    model.to_onnx(graph)
    assert Path(graph).stat().st_size < folder_bytes(tmp_path / "model") + (1 << 19)
    given = in_onnxruntime(graph, modelet_onnx.inputs(with_unseen))[0]
    np.testing.assert_allclose(given, model.decision_function(with_unseen), rtol=1e-4, atol=1e-4)
    model.to_onnx(graph, input="dense")
    given = in_onnxruntime(graph, {"X": with_unseen.toarray()})[0]
    np.testing.assert_allclose(given, model.decision_function(with_unseen), rtol=1e-4, atol=1e-4)


def test_columns_may_come_into_use_later():
    X, Y = words(400, 20, seed=3)
    old = np.asarray(Y[:, 10:].sum(axis=1)).ravel() == 0
    model = modelet.Classifier(epochs=3, threads=1, random_state=0).partial_fit(wide(X[old]), Y[old])
    before = model.model_.row_features()
    model.partial_fit(wide(X), Y)
    after = model.model_.row_features()
    assert set(before) < set(after) and len(after) == len(np.unique(X.indices))
    best = model.predict_top(wide(X), 1)[0].ravel()
    assert np.mean(Y.toarray()[np.arange(len(best)), best]) > 0.8


@pytest.mark.parametrize("ask", ["predict", "predict_top"])
def test_predictions_do_not_copy_a_csr_matrix(classifier, large, ask, monkeypatch):
    given = []

    class Samples(_modelet.Samples):
        def __init__(self, features, labels, offsets, ids, values, label_offsets, label_ids):
            given.append((ids, values))
            super().__init__(features, labels, offsets, ids, values, label_offsets, label_ids)

    monkeypatch.setattr(_modelet, "Samples", Samples)
    model = classifier.model_ if ask == "predict" else classifier
    getattr(model, ask)(large, 1)
    ((ids, values),) = given
    assert np.shares_memory(ids, large.indices) and np.shares_memory(values, large.data)


def test_what_predictions_take_does_not_grow_with_the_entries(classifier, large):
    answers = ROWS * (8 + 4)  # a label and a score
    offsets = (ROWS + 1) * 8
    assert peak(lambda: classifier.model_.predict(large, 1)) < answers + 2 * offsets + MIB
    # With indices of 64 bits or numbers of 64 bits there is a copy, which this test would see.
    wide = sp.csr_array((large.data, large.indices.astype(np.int64), large.indptr.astype(np.int64)), shape=large.shape)
    assert peak(lambda: classifier.model_.predict(wide, 1)) > 9 * MIB
    assert peak(lambda: classifier.model_.predict(large.astype(np.float64), 1)) > 9 * MIB


def test_a_dense_array_gets_only_places(classifier, large):
    """Of a dense array, indices are made, and bytes that tell which values are there; without zeros its values are used in place."""
    X = np.random.default_rng(0).random((ROWS, FEATURES), dtype=np.float32) + 1
    matrix = _data.csr(X)
    assert np.shares_memory(matrix.data, X) and matrix.indices.dtype == np.int32
    answers, offsets = ROWS * (8 + 4), (ROWS + 1) * 8
    assert peak(lambda: classifier.model_.predict(X, 1)) < X.size * (4 + 1) + answers + 4 * offsets + MIB
    X[::3, ::2] = 0
    np.testing.assert_array_equal(_data.csr(X).toarray(), X)
    expected = sp.csr_array(X)
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(_data.csr(X), part), getattr(expected, part))


def test_training_does_not_copy_either(classifier, large):
    y = np.arange(ROWS) % 16
    train = modelet.Classifier(epochs=1, hidden=[16], batch=512, threads=1, random_state=0, normalize="none", loss="softmax",
                               settings={"model.centroids": False})
    y_bytes = ROWS * 8
    assert peak(lambda: train.fit(large, y)) < 8 * y_bytes + 2 * MIB
