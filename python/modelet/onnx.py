"""Exports models as ONNX files, for runtimes that know nothing of Modelet.

The graph takes sparse rows by their non-zeros, or a dense matrix:

    input="sparse"   row [n], feature [n] (int64) and value [n] (float) of each non-zero, in any order, and rows [1]
                     (int64), the number of rows. inputs(X) makes them from a CSR matrix. The graph gathers one row of
                     the first layer's weights for each non-zero, and adds up those of each input row. This is the
                     work of a sparse product, without the memory of a dense matrix.
    input="dense"    X [rows, features] (float): one product. For hundreds of features, not for a million.

If the model has a direct path, the graph looks up the pairs of feature and label for each non-zero, and adds their
values to the scores. With input="dense" the pairs are a matrix [features, labels], if that is not too large.

Outputs: scores [rows, labels] (logits) or, with k, the best of them: labels [rows, k] (int64) and scores [rows, k].
The graph also normalises the rows. Words must be encoded before: Model.encode().
"""
import os
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from modelet import _data, _modelet
from modelet._data import Floats, Matrix

Layers = list[tuple[Floats, Floats]]
Pairs = tuple[Any, Any]  # CSR matrices


class Described(Protocol):
    """What a graph is built of; a modelet.Model."""

    @property
    def features(self) -> int: ...
    @property
    def labels(self) -> int: ...
    @property
    def experiment(self) -> str: ...
    def terms(self) -> list[str]: ...
    @property
    def towers(self) -> int: ...
    def shares(self) -> Floats: ...
    def tower_labels(self, tower: int) -> npt.NDArray[np.int64]: ...
    def layers(self, tower: int = 0) -> Layers: ...
    def row_features(self) -> npt.NDArray[np.int64]: ...
    def pairs(self) -> Pairs | None: ...


_TERMS = {"network", "centroids", "classifiers", "own items"}  # of scores: all but the network are in pairs()
_OPSET = 18  # ScatterElements with "add"
_SMALLEST_LENGTH = 1e-36  # of a row; a shorter one counts as zero (shard/data/read/sample.h)
_LARGEST_DENSE = 1 << 28  # elements of the direct path as a matrix
_PAGE = 512  # features whose rows are looked up together
_LARGEST_FILE = 1 << 30  # bytes of constants; more go into a second file, PATH.data (a protobuf has at most 2 GiB)


def inputs(X: Matrix) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a graph with input="sparse", for the rows of X."""
    rows = _data.csr(X)
    return {"row": np.repeat(np.arange(rows.shape[0], dtype=np.int64), np.diff(rows.indptr)),
            "feature": rows.indices.astype(np.int64), "value": rows.data.astype(np.float32, copy=False),
            "rows": np.array([rows.shape[0]], np.int64)}


def export(model: Described, path: str | os.PathLike[str], *, input: str = "sparse", k: int | None = None) -> None:
    """Writes a model to `path`. Needs the package onnx."""
    import onnx

    if input not in ("sparse", "dense"):
        raise ValueError(f"input is {input!r}; it is 'sparse' or 'dense'")
    if unknown := [term for term in model.terms() if term not in _TERMS]:
        raise _modelet.Error(f"an ONNX file of this version cannot say what this model scores with: {', '.join(unknown)}")
    parts = _Parts(model)
    pairs = parts.pairs
    if input == "dense" and pairs is not None and len(parts.features) * model.labels > _LARGEST_DENSE:
        raise _modelet.UsageError("the direct path of this model is too large for a dense matrix: take input='sparse'")
    graph = _Graph(model, parts)
    scores = graph.scores(graph.sparse_input() if input == "sparse" else graph.dense_input())
    if pairs is not None:
        scores = graph.sparse_pairs(scores, pairs) if input == "sparse" else graph.dense_pairs(scores, pairs)
    outputs = graph.output(scores, k)
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "modelet", graph.inputs, outputs, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)], producer_name="modelet", ir_version=8)
    large = sum(len(constant.raw_data) for constant in graph.constants) > _LARGEST_FILE
    data = os.fspath(path) + ".data"
    if large and os.path.exists(data):
        os.remove(data)  # onnx would append to it
    onnx.save(proto, path, save_as_external_data=large, location=os.path.basename(data))
    onnx.checker.check_model(path)


class _Parts:
    """The weights of a model, with rows only for features that say something."""

    def __init__(self, model: Described) -> None:
        towers = [model.layers(tower) for tower in range(model.towers)]
        # The first layers of all towers are one layer, each with its columns.
        weights, bias = np.hstack([layers[0][0] for layers in towers]), np.concatenate([layers[0][1] for layers in towers])
        self.first, self.towers = (weights, bias), [layers[1:] for layers in towers]
        self.tower_labels = [model.tower_labels(tower) for tower in range(model.towers)]
        self.pairs = model.pairs()
        self.features = own = model.row_features()
        if self.pairs is not None:
            of_unit, of_value = self.pairs
            self.features = np.union1d(own, np.flatnonzero(np.diff(of_unit.indptr)))  # of items that only labels have
            self.pairs = of_unit[self.features], of_value[self.features]
        if len(self.features) > len(own):
            spread = np.zeros((len(self.features), weights.shape[1]), np.float32)
            spread[np.searchsorted(self.features, own)] = weights
            self.first = spread, bias

    def pages(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the page of each _PAGE features begins, and the rows of the pages; features without a row have len(features)."""
        pages, page_of = np.unique(self.features // _PAGE, return_inverse=True)
        rows = np.full((len(pages) + 1) * _PAGE, len(self.features), np.int64)
        rows[(page_of.ravel() + 1) * _PAGE + self.features % _PAGE] = np.arange(len(self.features))
        begin = np.zeros(int(self.features[-1]) // _PAGE + 2, np.int64)
        begin[pages] = (np.arange(len(pages)) + 1) * _PAGE
        return begin, rows


class _Graph:
    """The nodes, constants and inputs of a graph that is being built."""

    def __init__(self, model: Described, parts: _Parts) -> None:
        self.nodes: list[Any] = []  # of onnx: nodes, tensors, descriptions of inputs
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self._parts, self._pairs = parts, parts.pairs
        self._normalise = 'normalize = "l2"' in model.experiment
        self._features, self._labels = model.features, model.labels
        self._towers, self._shares = model.towers, model.shares()

    def _node(self, kind: str, arguments: list[str], **attributes: Any) -> str:
        from onnx import helper

        outputs = [f"{kind}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, arguments, outputs, **attributes))
        return outputs[0]

    def _constant(self, value: Any, name: str | None = None) -> str:
        from onnx import numpy_helper

        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _input(self, name: str, kind: int, shape: list[str | int]) -> str:
        from onnx import helper

        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def _cast(self, value: str, kind: int) -> str:
        return self._node("Cast", [value], to=kind)

    def _rate(self, squares: str) -> str:
        """1 / length of rows, from their sums of squares; 1 for rows of zeros, which stay."""
        one, length = self._constant(np.float64(1)), self._node("Sqrt", [squares])
        long = self._node("GreaterOrEqual", [length, self._constant(np.float64(_SMALLEST_LENGTH))])
        return self._node("Div", [one, self._node("Where", [long, length, one])])

    def _integers(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def sparse_input(self) -> str:
        """Adds the sparse inputs. Returns the activations of the first layer [rows, width]."""
        from onnx import TensorProto as T
        from onnx import numpy_helper

        self._row, self._feature = self._input("row", T.INT64, ["n"]), self._input("feature", T.INT64, ["n"])
        self._value, rows = self._input("value", T.FLOAT, ["n"]), self._input("rows", T.INT64, [1])
        self._of_unit = self._value  # of rows of length one
        if self._normalise or self._pairs is not None:
            exact = self._cast(self._value, T.DOUBLE)  # squares of very large and very small floats are no floats
            zeros = self._node("ConstantOfShape", [rows], value=numpy_helper.from_array(np.zeros(1)))
            squares = self._node("ScatterElements", [zeros, self._row, self._node("Mul", [exact, exact])], axis=0, reduction="add")
            rate = self._node("Gather", [self._rate(squares), self._row])
            self._of_unit = self._cast(self._node("Mul", [exact, rate]), T.FLOAT)
        if self._normalise:
            self._value = self._of_unit
        weights, bias = self._parts.first
        if len(self._parts.features) < self._features:
            self._feature = self._rows_of(self._feature)
            weights = np.vstack([weights, np.zeros((1, weights.shape[1]), np.float32)])  # for features without a row
        taken = self._node("Gather", [self._constant(weights, "weights_0"), self._feature])
        parts = self._node("Mul", [taken, self._node("Unsqueeze", [self._value, self._integers(-1)])])
        shape = self._node("Concat", [rows, self._integers(weights.shape[1])], axis=0)
        # Not ScatterND, whose threads overwrite each other's sums in onnxruntime.
        places = self._node("Expand", [self._node("Unsqueeze", [self._row, self._integers(-1)]), self._node("Shape", [parts])])
        sums = self._node("ScatterElements", [self._node("ConstantOfShape", [shape]), places, parts], axis=0, reduction="add")
        return self._node("Relu", [self._node("Add", [sums, self._constant(bias, "bias_0")])])

    def dense_input(self) -> str:
        """The same for a dense input."""
        from onnx import TensorProto as T

        weights, bias = self._parts.first
        self._X = self._unit_X = self._input("X", T.FLOAT, ["rows", self._features])
        if self._normalise or self._pairs is not None:
            exact = self._cast(self._X, T.DOUBLE)
            squares = self._node("ReduceSum", [self._node("Mul", [exact, exact]), self._integers(1)], keepdims=1)
            self._unit_X = self._cast(self._node("Mul", [exact, self._rate(squares)]), T.FLOAT)
        if self._normalise:
            self._X = self._unit_X
        if len(self._parts.features) < self._features:
            ids = self._constant(self._parts.features)
            same = self._unit_X == self._X
            self._unit_X = self._node("Gather", [self._unit_X, ids], axis=1)
            self._X = self._unit_X if same else self._node("Gather", [self._X, ids], axis=1)
        product = self._node("MatMul", [self._X, self._constant(weights, "weights_0")])
        return self._node("Relu", [self._node("Add", [product, self._constant(bias, "bias_0")])])

    def _rows_of(self, feature: str) -> str:
        begin, rows = self._parts.pages()
        page = self._constant(np.int64(_PAGE))
        last = self._constant(np.int64(len(begin) - 1))  # a page without rows
        place = self._node("Gather", [self._constant(begin), self._node("Min", [self._node("Div", [feature, page]), last])])
        return self._node("Gather", [self._constant(rows), self._node("Add", [place, self._node("Mod", [feature, page])])])

    def scores(self, hidden: str) -> str:
        if self._towers == 1:
            return self._logits(hidden, 0)
        width = self._parts.first[1].shape[0] // self._towers
        axis, logits = self._integers(1), []
        for tower in range(self._towers):
            columns = self._integers(tower * width), self._integers((tower + 1) * width)
            logits.append(self._logits(self._node("Slice", [hidden, *columns, axis]), tower))
        found, owners = self._node("Concat", logits, axis=1), np.concatenate(self._parts.tower_labels)
        order, first = np.argsort(owners, kind="stable"), np.searchsorted(np.sort(owners), np.arange(self._labels))
        count = np.bincount(owners, minlength=self._labels)
        sums = self._node("Gather", [found, self._constant(order[first])], axis=1)
        for further in range(1, count.max()):  # labels that are in several towers
            labels = np.flatnonzero(count > further)
            added = self._node("Gather", [found, self._constant(order[first[labels] + further])], axis=1)
            if len(labels) < self._labels:
                wide = np.full(self._labels, len(labels))
                wide[labels] = np.arange(len(labels))
                padded = self._node("Pad", [added, self._integers(0, 0, 0, 1)])
                added = self._node("Gather", [padded, self._constant(wide)], axis=1)
            sums = self._node("Add", [sums, added])
        return self._node("Mul", [sums, self._constant(self._shares)])

    def _logits(self, hidden: str, tower: int) -> str:
        layers = self._parts.towers[tower]
        for number, (weights, bias) in enumerate(layers, 1):
            names = [self._constant(value, f"{kind}_{number}" + (f"_tower_{tower}" if self._towers > 1 else ""))
                     for kind, value in (("weights", weights), ("bias", bias))]
            hidden = self._node("Gemm", [hidden, *names], transB=1)
            if number < len(layers):
                hidden = self._node("Relu", [hidden])
        return hidden

    def dense_pairs(self, scores: str, pairs: Pairs) -> str:
        of_unit, of_value = (self._constant(part.toarray()) for part in pairs)
        scores = self._node("Add", [scores, self._node("MatMul", [self._unit_X, of_unit])])
        return self._node("Add", [scores, self._node("MatMul", [self._X, of_value])])

    def sparse_pairs(self, scores: str, pairs: Pairs) -> str:
        """Each non-zero becomes as many entries as its feature has pairs. `owner` is the non-zero that an entry belongs to."""
        from onnx import numpy_helper

        of_unit, of_value = pairs  # with the same places
        offsets = self._constant(np.append(of_unit.indptr, of_unit.indptr[-1]).astype(np.int64))  # one more, without pairs
        one, zero, axis = self._integers(1), self._constant(np.int64(0)), self._constant(np.int64(0))
        begin = self._node("Gather", [offsets, self._feature])
        count = self._node("Sub", [self._node("Gather", [offsets, self._node("Add", [self._feature, one])]), begin])
        start = self._node("CumSum", [count, axis], exclusive=1)
        total = self._node("ReduceSum", [count], keepdims=1)
        ones = self._node("ConstantOfShape", [self._node("Shape", [count])], value=numpy_helper.from_array(np.ones(1, np.int64)))
        none = self._node("ConstantOfShape", [self._node("Add", [total, one])], value=numpy_helper.from_array(np.zeros(1, np.int64)))
        marks = self._node("ScatterElements", [none, start, ones], axis=0, reduction="add")
        so_far = self._node("Slice", [self._node("CumSum", [marks, axis]), self._integers(0), total])
        owner = self._node("Sub", [so_far, one])
        within = self._node("Sub", [self._node("Range", [zero, self._node("Squeeze", [total]), self._constant(np.int64(1))]),
                                    self._node("Gather", [start, owner])])
        pair = self._node("Add", [within, self._node("Gather", [begin, owner])])

        def part(matrix: Any, value: str) -> str:
            return self._node("Mul", [self._node("Gather", [self._constant(matrix.data), pair]), self._node("Gather", [value, owner])])

        added = self._node("Add", [part(of_unit, self._of_unit), part(of_value, self._value)])
        label = self._node("Gather", [self._constant(of_unit.indices.astype(np.int64)), pair])
        row = self._node("Mul", [self._node("Gather", [self._row, owner]), self._integers(self._labels)])
        flat = self._node("ScatterElements", [self._node("Reshape", [scores, self._integers(-1)]), self._node("Add", [row, label]), added],
                          axis=0, reduction="add")
        return self._node("Reshape", [flat, self._integers(-1, self._labels)])

    def output(self, scores: str, k: int | None) -> list[Any]:
        from onnx import TensorProto as T
        from onnx import helper

        if k is None:
            self.nodes.append(helper.make_node("Identity", [scores], ["scores"]))
            return [helper.make_tensor_value_info("scores", T.FLOAT, ["rows", self._labels])]
        k = min(k, self._labels)
        self.nodes.append(helper.make_node("TopK", [scores, self._integers(k)], ["scores", "labels"]))
        return [helper.make_tensor_value_info("labels", T.INT64, ["rows", k]),
                helper.make_tensor_value_info("scores", T.FLOAT, ["rows", k])]
