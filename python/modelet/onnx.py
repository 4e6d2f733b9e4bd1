"""Models as ONNX files, for runtimes that know nothing of Modelet.

The graph takes sparse rows by their non-zeros, or a dense matrix:

    input="sparse"   row [n], feature [n] (int64), value [n] (float) of each non-zero, in any order, and rows [1]
                     (int64): how many rows there are. inputs(X) makes them of a CSR matrix. It gathers one row of
                     the first layer's weights for each non-zero and adds those of a row up: the work of a sparse
                     product, without the memory of a dense matrix.
    input="dense"    X [rows, features] (float): one product. For hundreds of features, not for a million.

Outputs: scores [rows, labels] (logits) or, with k, the best of them: labels [rows, k] (int64) and scores [rows, k].
The rows' normalisation is part of the graph. Words become features outside of it: Model.encode().
"""
import numpy as np
import scipy.sparse as sp

from modelet import _data, _modelet

_OPSET = 18  # ScatterND with "add", as ScatterElements, and ReduceL2 with axes as an input
_LARGEST_FILE = 1 << 30  # bytes of weights; more lie in a file beside (a protobuf has at most 2 GiB)


def inputs(X):
    """The inputs of a graph with input="sparse", for the rows of X."""
    X = _data._csr(X)
    return {"row": np.repeat(np.arange(X.shape[0], dtype=np.int64), np.diff(X.indptr)),
            "feature": X.indices.astype(np.int64), "value": X.data.astype(np.float32, copy=False),
            "rows": np.array([X.shape[0]], np.int64)}


def export(model, path, *, input="sparse", k=None):
    """Writes a modelet.Model to `path`. Needs the package onnx."""
    import onnx

    if input not in ("sparse", "dense"):
        raise ValueError(f"input is {input!r}; it is 'sparse' or 'dense'")
    layers = model.layers()
    _require_complete(model, layers)
    graph = _Graph(model, layers)
    hidden = graph.sparse_input() if input == "sparse" else graph.dense_input()
    outputs = graph.output(hidden, k)
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "modelet", graph.inputs, outputs, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)], producer_name="modelet", ir_version=8)
    large = sum(weights.nbytes for weights, _ in layers) > _LARGEST_FILE
    onnx.save(proto, path, save_as_external_data=large)
    onnx.checker.check_model(path)


def _normalises(model):
    return 'normalize = "l2"' in model.experiment


def _require_complete(model, layers):
    """The weights must be all there is to the model: a part that this module does not know would be missing."""
    random = np.random.default_rng(0)
    shape = (4, model.features)
    columns = random.integers(model.features, size=(4, min(8, model.features)))
    rows = np.repeat(np.arange(4), columns.shape[1])
    X = sp.csr_array((np.ones(columns.size, np.float32), (rows, columns.ravel())), shape=shape)
    if _normalises(model):
        X = X.multiply(1 / np.sqrt(X.multiply(X).sum(axis=1))[:, None]).tocsr()
    hidden = np.maximum(X @ layers[0][0] + layers[0][1], 0)
    for weights, bias in layers[1:-1]:
        hidden = np.maximum(hidden @ weights.T + bias, 0)
    expected = hidden @ layers[-1][0].T + layers[-1][1]
    scores = model.scores(X)
    if not np.allclose(scores, expected, rtol=1e-3, atol=1e-3 * np.abs(scores).max()):
        raise _modelet.Error("this model scores with more than its layers, which an ONNX file of this version cannot say")


class _Graph:
    """Nodes, constants and inputs while they are put together."""

    def __init__(self, model, layers):
        self.nodes, self.constants, self.inputs = [], [], []
        self._layers, self._normalise = layers, _normalises(model)
        self._labels = model.labels

    def _node(self, kind, arguments, **attributes):
        from onnx import helper

        outputs = [f"{kind}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, arguments, outputs, **attributes))
        return outputs[0]

    def _constant(self, value, name=None):
        from onnx import numpy_helper

        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _input(self, name, kind, shape):
        from onnx import helper

        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def _rate(self, norm):
        """1 / norm, and 1 where it is 0: rows of zeros stay."""
        one, zero = self._constant(np.float32(1)), self._constant(np.float32(0))
        return self._node("Div", [one, self._node("Where", [self._node("Greater", [norm, zero]), norm, one])])

    def sparse_input(self):
        from onnx import TensorProto as T

        row, feature = self._input("row", T.INT64, ["n"]), self._input("feature", T.INT64, ["n"])
        value, rows = self._input("value", T.FLOAT, ["n"]), self._input("rows", T.INT64, [1])
        if self._normalise:
            squares = self._node("ScatterElements", [self._node("ConstantOfShape", [rows]), row,
                                                     self._node("Mul", [value, value])], axis=0, reduction="add")
            rate = self._rate(self._node("Sqrt", [squares]))
            value = self._node("Mul", [value, self._node("Gather", [rate, row])])
        weights, bias = self._layers[0]
        last = self._constant(np.array([-1], np.int64))
        taken = self._node("Gather", [self._constant(weights, "weights_0"), feature])
        parts = self._node("Mul", [taken, self._node("Unsqueeze", [value, last])])
        shape = self._node("Concat", [rows, self._constant(np.array([weights.shape[1]], np.int64))], axis=0)
        sums = self._node("ScatterND", [self._node("ConstantOfShape", [shape]), self._node("Unsqueeze", [row, last]), parts],
                          reduction="add")
        return self._node("Relu", [self._node("Add", [sums, self._constant(bias, "bias_0")])])

    def dense_input(self):
        from onnx import TensorProto as T

        weights, bias = self._layers[0]
        X = self._input("X", T.FLOAT, ["rows", weights.shape[0]])
        if self._normalise:
            norm = self._node("ReduceL2", [X, self._constant(np.array([1], np.int64))], keepdims=1)
            X = self._node("Mul", [X, self._rate(norm)])
        product = self._node("MatMul", [X, self._constant(weights, "weights_0")])
        return self._node("Relu", [self._node("Add", [product, self._constant(bias, "bias_0")])])

    def output(self, hidden, k):
        from onnx import TensorProto as T
        from onnx import helper

        for number, (weights, bias) in enumerate(self._layers[1:], 1):
            names = [self._constant(weights, f"weights_{number}"), self._constant(bias, f"bias_{number}")]
            hidden = self._node("Gemm", [hidden, *names], transB=1)
            if number + 1 < len(self._layers):
                hidden = self._node("Relu", [hidden])
        if k is None:
            self.nodes.append(helper.make_node("Identity", [hidden], ["scores"]))
            return [helper.make_tensor_value_info("scores", T.FLOAT, ["rows", self._labels])]
        k = min(k, self._labels)
        self.nodes.append(helper.make_node("TopK", [hidden, self._constant(np.array([k], np.int64))], ["scores", "labels"]))
        return [helper.make_tensor_value_info("labels", T.INT64, ["rows", k]),
                helper.make_tensor_value_info("scores", T.FLOAT, ["rows", k])]
