"""Arrays of the right type reach the engine as they are."""
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

import modelet
from conftest import words
from modelet import _data, _modelet

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
