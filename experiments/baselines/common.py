"""What the distributed PyTorch baselines share: the model, the loss, optimisers, precision, a clock.

The model is Modelet's with one hidden layer: sparse input -> ReLU -> softmax over all labels, or over an active set.
"""

import sys
import time

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"{error}. Debian: apt install python3-torch python3-numpy libopenblas0-openmp, and run with /usr/bin/python3")
import xmc


# ---- model ---------------------------------------------------------------------------------------------------------

class InputLayer(torch.nn.Module):
    """Sums the rows of the features of a sample, then ReLU. `total_hidden`: width of the whole layer, if this is only a part of it."""

    def __init__(self, features, hidden, sparse, total_hidden=None):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(features, hidden, mode="sum", sparse=sparse, include_last_offset=True)
        self.bias = torch.nn.Parameter(torch.zeros(hidden))
        torch.nn.init.normal_(self.bag.weight, std=(total_hidden or hidden)**-0.5)

    def forward(self, ids, offsets, values):
        return F.relu(self.bag(ids, offsets, per_sample_weights=values) + self.bias)


class OutputLayer(torch.nn.Module):
    def __init__(self, labels, hidden, sparse):
        super().__init__()
        self.weight = torch.nn.Embedding(labels, hidden, sparse=sparse)
        self.bias = torch.nn.Embedding(labels, 1, sparse=sparse)
        torch.nn.init.normal_(self.weight.weight, std=hidden**-0.5)
        torch.nn.init.zeros_(self.bias.weight)

    def forward(self, h, active):
        """[B, d] -> [B, A]; all labels if `active` is None."""
        if active is None:
            return torch.addmm(self.bias.weight[:, 0], h, self.weight.weight.t())
        return torch.addmm(self.bias(active)[:, 0], h, self.weight(active).t())


class Model(torch.nn.Module):
    """sparse_input, sparse_output: whether the gradient of the layer lists the changed rows; otherwise it is as large as the layer."""

    def __init__(self, features, hidden, labels, sparse_input=True, sparse_output=True):
        super().__init__()
        self.input = InputLayer(features, hidden, sparse_input)
        self.output = OutputLayer(labels, hidden, sparse_output)
        self.labels = labels

    def forward(self, inputs, active):
        return self.output(self.input(*inputs), active)


def active_set(labels, width, negatives, rng):
    """The labels of the batch and uniform draws. Returns (ids in ascending order, position of each of `labels` among them)."""
    active, inverse = np.unique(np.concatenate([labels, rng.integers(width, size=negatives)]), return_inverse=True)
    return torch.from_numpy(active), inverse[:len(labels)]


def bags(x, begin, end):
    """(ids, offsets, values) of the rows [begin, end) as tensors, for EmbeddingBag."""
    first, last = x.offsets[begin], x.offsets[end]
    return torch.from_numpy(x.ids[first:last]), torch.from_numpy(x.offsets[begin:end + 1] - first), torch.from_numpy(x.values[first:last])


def batch_loss(model, x, y, begin, end, negatives, rng):
    """The softmax loss of the rows [begin, end). negatives None: over all labels. `model` may be wrapped, as by DistributedDataParallel."""
    labels, sample, counts = y.row_ids(begin, end)
    width = getattr(model, "module", model).labels
    active, position = (None, labels) if negatives is None else active_set(labels, width, negatives, rng)
    logits = model(bags(x, begin, end), active)
    sample, position, counts = map(torch.from_numpy, (sample, position, counts))
    return -(F.log_softmax(logits, dim=1)[sample, position] / counts[sample]).sum() / len(counts)


def count_hits(best, y, begin, width, cuts):
    """`best` [B, k] has the best labels of the rows from `begin` on. Returns for each c in cuts how many of the first c labels are
    correct, summed over the rows."""
    labels, row, _ = y.row_ids(begin, begin + len(best))
    hits = np.isin(np.arange(len(best))[:, None] * width + best, row * width + labels).sum(axis=0)
    return np.array([hits[:cut].sum() for cut in cuts])


@torch.no_grad()
def precision(top, x, y, width, cuts=(1, 3, 5), batch=512):
    """Returns {"p_at_1": ...}, the mean over all rows. top(inputs, k) returns the best k of all labels, [B, k]."""
    hits = sum(count_hits(top(bags(x, begin, min(begin + batch, len(x))), max(cuts)).numpy(), y, begin, width, cuts)
               for begin in range(0, len(x), batch))
    return {f"p_at_{cut}": round(float(count) / cut / len(x), 5) for cut, count in zip(cuts, hits)}


def top_labels(model):
    return lambda inputs, k: model(inputs, None).topk(k, dim=1).indices


# ---- training ------------------------------------------------------------------------------------------------------

def optimizers(sparse, dense, lr):
    """SparseAdam for sparse gradients, Adam for dense ones. Either list may be empty."""
    made = [torch.optim.SparseAdam(sparse, lr=lr)] if sparse else []
    return made + ([torch.optim.Adam(dense, lr=lr, foreach=True)] if dense else [])


def set_rate(made, rate):
    for optimizer in made:
        for group in optimizer.param_groups:
            group["lr"] = rate


def scheduled_rate(schedule, rate, step, total):
    """The schedule "linear" falls to a tenth over the run."""
    return rate * (1 - 0.9 * step / total if schedule == "linear" else 1)


class Clock:
    """Measures seconds of training: it runs from start() to stop()."""

    def __init__(self):
        self.seconds, self.started = 0.0, None

    def start(self):
        self.started = time.perf_counter()

    def stop(self):
        self.seconds += time.perf_counter() - self.started
