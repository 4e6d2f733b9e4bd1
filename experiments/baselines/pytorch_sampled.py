#!/usr/bin/env python3
"""PyTorch on one machine, as fast as possible: sparse input -> ReLU -> softmax over the labels of the batch and shared uniform negatives.

This is the model that Modelet trains with sampling.mode = "uniform" and one hidden layer. What makes it fast on a CPU:
  - no autograd: the gradient of the loss is written down, so nothing is recorded, kept or copied for a backward pass;
  - embedding_bag in both directions: forward it sums the rows of a sample's features, backward the hidden gradients of a feature's samples;
  - output rows gathered once a step for the active labels; three GEMMs;
  - PyTorch's fused Adam on gathered rows, so that a step's cost does not depend on the number of labels or features;
  - ids of 32 bits, an epoch permuted (and sorted by feature within each batch) in one pass, the active set found without sorting;
  - freed memory is kept for the next step instead of going back to the system;
  - --compile: the update of rows by torch.compile; the rest gains nothing from it.
--full scores and updates all labels instead. The bias correction of Adam uses the step, not the number of updates of a row.

Reads XMC text (plain or .xz) once; no figure includes this. Standard output is one JSON object, progress goes to standard error.
`samples_per_second` counts the training steps after --warmup, with batch assembly and without evaluation; `train_seconds` counts all steps.
"""

import argparse
import ctypes
import json
import os
import pathlib
import resource
import sys
import time

import blas


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="XMC text, plain or .xz")
    parser.add_argument("--test", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--negatives", type=int, default=1024, help="uniform draws a step, shared by the batch")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--schedule", choices=["constant", "linear"], default="constant",
                        help="linear: the learning rate falls to a tenth over the run")
    parser.add_argument("--evaluate-every", type=int, metavar="STEPS", help="default: at the end of an epoch")
    parser.add_argument("--predictions", type=pathlib.Path, metavar="FOLDER",
                        help="write the best labels of the test rows to step-N.txt at each evaluation")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", choices=["softmax", "sigmoid"], default="softmax")
    parser.add_argument("--full", action="store_true", help="all labels take part in every step")
    parser.add_argument("--compile", action="store_true", help="with torch.compile; needs a C++ compiler, and seconds before the first step")
    parser.add_argument("--max-steps", type=int, help="stop training after so many steps")
    parser.add_argument("--blas", choices=["as-installed", "told-cpu"], default="told-cpu",
                        help="the BLAS finds out the CPU by itself, or is told what it can do where it does not see it (default)")
    parser.add_argument("--warmup", type=int, default=10, help="first steps left out of samples_per_second")
    return parser.parse_args()


def keep_memory():
    """Keeps freed memory in the process. Otherwise glibc would give large blocks back, and the system would clear their pages in each
    step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # None with another C library
    if mallopt:
        m_trim_threshold, m_mmap_max = -1, -4
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


arguments = parse_arguments()
keep_memory()
os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # PyTorch then asks for large pages, because gathered rows lie far apart
os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.update(blas.environment(arguments.threads, arguments.blas == "told-cpu"))
if arguments.blas == "told-cpu":
    blas.tell_mkl()
import common  # loads torch
import xmc
from common import F, np, torch

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
CUTS = (1, 3, 5)


# ---- batches -------------------------------------------------------------------------------------------------------

class Epochs:
    """The samples, in a new order in each epoch. A batch consists of slices of arrays that are made in one pass for the whole epoch."""

    def __init__(self, x, y, batch, rng):
        self.x, self.y, self.batch, self.rng = x, y, batch, rng
        x.ids = x.ids.astype(np.int32)
        by_feature = np.argsort(x.ids, kind="stable")
        self.row = np.repeat(np.arange(len(x), dtype=np.int32), np.diff(x.offsets))[by_feature]
        self.feature, self.value = x.ids[by_feature], x.values[by_feature]

    def shuffle(self):
        order = self.rng.permutation(len(self.x))
        self.rows, self.labels = self.x.permuted(order), self.y.permuted(order)
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        place = place[self.row]
        batch_of = place // self.batch
        # The sort is stable, so that a batch stays sorted by feature. It sorts 16-bit keys if possible, because numpy sorts these by
        # radix.
        by_batch = np.argsort(batch_of.astype(np.uint16) if len(order) <= self.batch << 16 else batch_of, kind="stable")
        batch_of, feature = batch_of[by_batch], self.feature[by_batch]
        self.sample, self.weight = (place % self.batch)[by_batch], self.value[by_batch]
        first = np.flatnonzero(np.r_[True, (feature[1:] != feature[:-1]) | (batch_of[1:] != batch_of[:-1])])
        self.unique, self.unique_batch = feature[first].astype(np.int64), batch_of[first]
        self.unique_end = np.r_[first, len(feature)]

    def batch_rows(self, begin):
        """Returns for the rows [begin, end) of the epoch: (inputs of the bags of samples, features that occur, inputs of the bags of
        features, labels)."""
        end = min(begin + self.batch, len(self.x))
        first, last = self.rows.offsets[[begin, end]]
        samples = bags(self.rows.ids[first:last], self.rows.offsets[begin:end + 1], self.rows.values[first:last])
        from_unique, to_unique = np.searchsorted(self.unique_batch, [begin // self.batch, begin // self.batch + 1])
        features = bags(self.sample[first:last], self.unique_end[from_unique:to_unique + 1], self.weight[first:last])
        return samples, torch.from_numpy(self.unique[from_unique:to_unique]), features, self.labels.row_ids(begin, end)


def bags(ids, offsets, values):
    """The arguments of F.embedding_bag besides the matrix: the rows `ids`, weighted by `values`, are added up from offset to offset."""
    return torch.from_numpy(ids), torch.from_numpy((offsets - offsets[0]).astype(np.int32)), torch.from_numpy(values)


def bag_sums(matrix, ids, offsets, values):
    return F.embedding_bag(ids, matrix, offsets, mode="sum", per_sample_weights=values, include_last_offset=True)


class ActiveSet:
    """The labels of a batch and uniform draws, without repeats."""

    def __init__(self, labels, negatives, rng):
        self.labels, self.negatives, self.rng = labels, negatives, rng
        self.place = np.empty(labels, np.int64)  # only entries that the current step has written are read

    def draw(self, positives):
        """Returns (the active labels, index of each of `positives` among them)."""
        wanted = np.concatenate([positives, self.rng.integers(self.labels, size=self.negatives)])
        count = np.arange(len(wanted))
        self.place[wanted] = count  # one of several equal labels wins
        active = wanted[self.place[wanted] == count]
        self.place[active] = count[:len(active)]
        return torch.from_numpy(active), self.place[positives]


# ---- model ---------------------------------------------------------------------------------------------------------

# PyTorch 1.13 has a function of this name, but not for the CPU.
HAS_FUSED_ADAM = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)


def adam(weight, mean, square, gradient, step, rate):
    """Updates in place. The fused kernel is the one that torch.optim.Adam(fused=True) calls."""
    if HAS_FUSED_ADAM:
        torch._fused_adam_([weight], [gradient], [mean], [square], [], [torch.tensor(float(step))], lr=rate, beta1=BETA1, beta2=BETA2,
                           weight_decay=0.0, eps=EPSILON, amsgrad=False, maximize=False)
        return
    mean.lerp_(gradient, 1 - BETA1)
    square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    weight.addcdiv_(mean, (square / (1 - BETA2**step)).sqrt_().add_(EPSILON), value=-rate / (1 - BETA1**step))


def adam_rows(weight, mean, square, rows, gradient, step, rate):
    """The same on the given rows. No row may occur twice."""
    own = [table.index_select(0, rows) for table in (weight, mean, square)]
    adam(*own, gradient, step, rate)
    for table, values in zip((weight, mean, square), own):
        table.index_copy_(0, rows, values)


def compiled_adam_rows():
    """The same by torch.compile: one pass reads, one pass writes. The bias corrections are passed as numbers, so that not every element
    computes them."""
    def change(weight, mean, square, rows, gradient, rate, epsilon):
        new_mean = BETA1 * mean[rows] + (1 - BETA1) * gradient
        new_square = BETA2 * square[rows] + (1 - BETA2) * gradient * gradient
        weight[rows] = weight[rows] - rate * new_mean / (new_square.sqrt() + epsilon)
        mean[rows] = new_mean
        square[rows] = new_square

    compiled = torch.compile(change, dynamic=True)

    def update(weight, mean, square, rows, gradient, step, rate):
        correction = (1 - BETA2**step)**0.5
        compiled(weight, mean, square, rows, gradient, torch.tensor(rate * correction / (1 - BETA1**step)), torch.tensor(EPSILON * correction))

    return update


def loss_gradient(logits, sample, position, share, softmax):
    """Returns (loss of the batch, its gradient with respect to the logits, times the number of samples). (sample, position) are the
    true labels. With the softmax, each of them has the weight `share`."""
    if softmax:
        gradient = torch.softmax(logits, 1)
        loss = -(gradient[sample, position].log() * share).sum()
    else:
        gradient = torch.sigmoid(logits)
        loss = F.softplus(logits).sum() - logits[sample, position].sum()
    gradient[sample, position] -= share
    return loss / len(logits), gradient


class Table:
    """A matrix of which a step updates some rows, or all."""

    def __init__(self, rows, width, spread):
        # zero_() writes the zeros now. torch.zeros would leave that to the first step that touches a page.
        self.weight, self.mean, self.square = (torch.empty(rows, width).zero_() for _ in range(3))
        if spread:
            self.weight.normal_(std=spread)

    def update(self, rows, gradient, step, rate):
        """rows None: updates all rows."""
        state = self.weight, self.mean, self.square
        if rows is None:
            adam(*state, gradient, step, rate)
        else:
            update_rows(*state, rows, gradient, step, rate)


class Model:
    def __init__(self, features, hidden, labels, softmax, initial_bias):
        self.softmax = softmax
        self.input, self.input_bias = Table(features, hidden, hidden**-0.5), Table(1, hidden, 0)
        self.output, self.output_bias = Table(labels, hidden, hidden**-0.5), Table(labels, 1, 0)
        self.output_bias.weight.fill_(initial_bias)

    def hidden(self, samples):
        return bag_sums(self.input.weight, *samples).add_(self.input_bias.weight).relu_()

    def top(self, samples, k):
        return torch.addmm(self.output_bias.weight[:, 0], self.hidden(samples), self.output.weight.t()).topk(k, dim=1).indices

    def train(self, samples, unique, features, active, sample, position, share, step, rate):
        """Runs one step and returns the loss. active None: all labels."""
        hidden = self.hidden(samples)
        rows, bias = self.output.weight, self.output_bias.weight
        if active is not None:
            rows, bias = rows.index_select(0, active), bias.index_select(0, active)
        loss, gradient = loss_gradient(torch.addmm(bias[:, 0], hidden, rows.t()), sample, position, share, self.softmax)
        down = (gradient @ rows).mul_(hidden > 0).div_(len(hidden))
        gradient = gradient.t()
        self.output.update(active, gradient @ hidden.div_(len(hidden)), step, rate)
        self.output_bias.update(active, gradient.mean(1, keepdim=True), step, rate)
        self.input.update(unique, bag_sums(down, *features), step, rate)
        self.input_bias.update(None, down.sum(0, keepdim=True), step, rate)
        return loss


update_rows = compiled_adam_rows() if arguments.compile else adam_rows


# ---- evaluation ----------------------------------------------------------------------------------------------------

def best_labels(model, x, k, batch=512):
    for begin in range(0, len(x), batch):
        end = min(begin + batch, len(x))
        first, last = x.offsets[[begin, end]]
        yield model.top(bags(x.ids[first:last], x.offsets[begin:end + 1], x.values[first:last]), k).numpy()


def evaluate(model, x, y, labels, file):
    """Returns {"p_at_1": ..., "predict_seconds": ...}. Writes the predictions to `file`, if it is given."""
    started = time.perf_counter()
    best = np.concatenate(list(best_labels(model, x, max(CUTS))))
    seconds = time.perf_counter() - started
    if file:
        xmc.write_predictions(file, best)
    hits = common.count_hits(best, y, 0, labels, CUTS)
    return {"predict_seconds": round(seconds, 4), **{f"p_at_{cut}": round(float(count) / cut / len(x), 5) for cut, count in zip(CUTS, hits)}}


def main():
    x, y, features, labels = xmc.read(arguments.train)
    test_x, test_y, _, _ = xmc.read(arguments.test)
    test_x.ids = test_x.ids.astype(np.int32)
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    softmax = arguments.loss == "softmax"
    # If the bias is the mean log-prior of a label, the sigmoid loss starts from "hardly any label applies".
    model = Model(features, arguments.hidden, labels, softmax, 0.0 if softmax else float(np.log(len(y.ids) / len(y) / labels)))
    epochs, active_set = Epochs(x, y, arguments.batch, rng), ActiveSet(labels, arguments.negatives, rng)
    steps_per_epoch = -(-len(x) // arguments.batch)
    total = arguments.max_steps or steps_per_epoch * arguments.epochs
    evaluate_every = arguments.evaluate_every or steps_per_epoch
    clock, samples, losses, evaluations = common.Clock(), 0, [], []
    warm_samples = warm_seconds = 0
    for step in range(1, total + 1):
        clock.start()
        begin = (step - 1) % steps_per_epoch * arguments.batch
        if begin == 0:
            epochs.shuffle()
        rate = common.scheduled_rate(arguments.schedule, arguments.lr, step - 1, total)
        bags_of_samples, unique, bags_of_features, (positives, sample, counts) = epochs.batch_rows(begin)
        active, position = (None, positives) if arguments.full else active_set.draw(positives)
        share = 1.0 / counts[sample] if softmax else np.ones(len(sample))
        losses.append(model.train(bags_of_samples, unique, bags_of_features, active, torch.from_numpy(sample), torch.from_numpy(position),
                                  torch.from_numpy(share.astype(np.float32)), step, rate))
        clock.stop()
        samples += len(counts)
        if step == arguments.warmup:
            warm_samples, warm_seconds = samples, clock.seconds
        if step % evaluate_every == 0 or step == total:
            file = arguments.predictions and arguments.predictions / f"step-{step}.txt"
            evaluations.append({"step": step, "loss": round(float(torch.stack(losses).mean()), 5), "samples": samples,
                                "train_seconds": round(clock.seconds, 4), **evaluate(model, test_x, test_y, labels, file)})
            losses.clear()
            print(json.dumps(evaluations[-1]), file=sys.stderr, flush=True)

    last = evaluations[-1]
    weights = (model.input, model.input_bias, model.output, model.output_bias)
    print(json.dumps({
        "event": "finished", "system": f"PyTorch {torch.__version__}", "blas": blas.in_use(torch),
        "threads": arguments.threads, "steps": total, "model_bytes": sum(4 * table.weight.numel() for table in weights),
        "samples_per_second": round((samples - warm_samples) / (clock.seconds - warm_seconds), 1) if samples > warm_samples else None,
        "train_seconds": last["train_seconds"], "p_at_1": last["p_at_1"], "p_at_3": last["p_at_3"],
        "p_at_5": last["p_at_5"], "evaluations": evaluations,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
