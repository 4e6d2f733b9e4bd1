"""Arrays of scipy and numpy as samples of the engine. Arrays that have the right type are not copied."""
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from modelet import _modelet

# What users may give. In quotes, because scipy before 1.11 has no sparray.
Matrix: TypeAlias = "npt.ArrayLike | sp.sparray | sp.spmatrix"
Floats: TypeAlias = npt.NDArray[np.float32]


def csr(given: Any) -> Any:
    """Returns a Matrix as CSR with sorted indices and without duplicates. The matrix of the caller is not changed."""
    matrix = given.tocsr() if sp.issparse(given) else _csr_of_dense(np.atleast_2d(np.asarray(given)))
    if not matrix.has_canonical_format:
        matrix = matrix.copy() if matrix is given else matrix
        matrix.sum_duplicates()
    return matrix


def _csr_of_dense(X: npt.NDArray[Any]) -> Any:
    """As sp.csr_array(X), which takes seven times the memory of X on its way. Values without zeros are used in place."""
    there = X != 0
    index = sp.get_index_dtype(maxval=X.size)  # one type for both, else scipy copies one of them
    columns = np.broadcast_to(np.arange(X.shape[1], dtype=index), X.shape)
    offsets = np.concatenate([[0], np.cumsum(np.count_nonzero(there, axis=1))], dtype=index)
    return sp.csr_array((X.ravel() if there.all() else X[there], columns[there], offsets), shape=X.shape)


def _ids(indices: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    if indices.dtype != np.int32 and indices.size > 0 and (indices.min() < 0 or indices.max() >= 2**31):
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise _modelet.UsageError(f"the matrix has an entry in the column {wrong}, which no matrix has")
    return indices.view(np.uint32) if indices.dtype == np.int32 else indices.astype(np.uint32)


def _offsets(indptr: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return indptr.view(np.uint64) if indptr.dtype == np.int64 else indptr.astype(np.uint64)


def indicator(Y: Matrix) -> Any:
    """Returns a matrix of 0 and 1 in which every stored entry is a label."""
    Y = csr(Y)
    if (Y.data == 0).any():
        Y = Y.copy()
        Y.eliminate_zeros()
    return Y


def is_indicator(Y: Any) -> bool:
    """Whether an array of numpy or a matrix of scipy has the values 0 and 1 only."""
    values = Y.data if sp.issparse(Y) else Y
    return bool(((values == 0) | (values == 1)).all())


def samples(X: Matrix, Y: Any = None, labels: int = 0) -> _modelet.Samples:
    """Y is an indicator(), or the label of each row, or None: no row has labels. `labels` is the number of labels of the model."""
    X = csr(X)
    rows, features = X.shape
    if Y is None:
        offsets, ids = np.zeros(rows + 1, np.uint64), np.zeros(0, np.uint32)
    elif sp.issparse(Y):
        offsets, ids, labels = _offsets(Y.indptr), _ids(Y.indices), Y.shape[1]
    else:
        offsets, ids = np.arange(rows + 1, dtype=np.uint64), np.asarray(Y, np.uint32)
    return _modelet.Samples(features, labels, _offsets(X.indptr), _ids(X.indices),
                            X.data.astype(np.float32, copy=False), offsets, ids)
