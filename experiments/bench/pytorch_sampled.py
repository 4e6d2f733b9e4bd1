#!/usr/bin/env python3
"""The PyTorch baseline: sparse input -> ReLU -> softmax over the labels of the batch and shared uniform negatives.

The model Modelet trains with sampling.mode = "uniform" and one hidden layer, of PyTorch's own layers and optimisers, arranged
for speed on a CPU:
  - EmbeddingBag(mode="sum", sparse=True) with the feature values as per-sample weights;
  - output rows and biases gathered once a step for (labels of the batch + negatives), one GEMM for all logits;
  - SparseAdam on everything that is indexed, so that a step's cost does not depend on the number of labels or features;
  - the samples of an epoch are permuted in one vectorised pass, a batch is a slice.
--full scores and updates all labels instead (dense Adam on the output layer).

Reads XMC text (plain or .xz) once, which no figure includes. Standard output is one JSON object, progress goes to
standard error.
`samples_per_second` counts the training steps after --warmup, with batch assembly, without evaluation.
"""

import argparse
import ctypes
import json
import lzma
import os
import pathlib
import re
import sys
import time


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
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", choices=["softmax", "sigmoid"], default="softmax")
    parser.add_argument("--full", action="store_true", help="all labels take part in every step")
    parser.add_argument("--max-steps", type=int, help="stop training after so many steps")
    parser.add_argument("--warmup", type=int, default=10, help="first steps left out of samples_per_second")
    return parser.parse_args()


def prepare_environment(threads):
    """Before torch is loaded: its OpenMP and BLAS read these once."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    # OpenBLAS may not know a newer CPU, or be told less by the environment: AVX2 kernels run at half the speed of AVX-512's.
    flags = re.search(r"^flags.*$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if flags and {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= set(flags.group().split()):
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"


arguments = parse_arguments()
prepare_environment(arguments.threads)
try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"{error}. Debian: apt install python3-torch python3-numpy libopenblas0-openmp, and run with /usr/bin/python3")


def blas_in_use():
    """What torch's matrix products run on: "MKL", "OpenBLAS SkylakeX", or the file name of another library."""
    if torch.backends.mkl.is_available():
        return "MKL"
    maps = pathlib.Path("/proc/self/maps").read_text()
    paths = set(re.findall(r"/\S*/lib(?:open)?(?:blas|blis)[^/\s]*", maps))
    paths = sorted(paths, key=lambda path: "/libopenblas" not in path)
    if not paths:
        return "unknown"
    if "/libopenblas" not in paths[0]:
        return pathlib.Path(paths[0]).name
    core = ctypes.CDLL(paths[0]).openblas_get_corename
    core.restype = ctypes.c_char_p
    return f"OpenBLAS {core().decode()}"


# ---- data ----------------------------------------------------------------------------------------------------------

class Csr:
    """Rows of ids: row i is ids[offsets[i]:offsets[i + 1]]; `values` belongs to ids, or is None."""

    def __init__(self, counts, ids, values=None):
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.ids, self.values = ids, values

    def permuted(self, order):
        counts = np.diff(self.offsets)[order]
        starts = np.cumsum(counts) - counts
        source = np.repeat(self.offsets[order] - starts, counts) + np.arange(len(self.ids))
        return Csr(counts, self.ids[source], None if self.values is None else self.values[source])


def read_xmc(path):
    """(features of each row, labels of each row, number of features, number of labels)"""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt") as file:
        rows, features, labels = map(int, file.readline().split())
        lines = file.read().splitlines()
    if len(lines) != rows:
        sys.exit(f"{path}: the header promises {rows} rows, the file has {len(lines)}")
    label_texts, _, feature_texts = zip(*(line.partition(" ") for line in lines))
    pairs = np.fromstring(" ".join(feature_texts).replace(":", " "), sep=" ").reshape(-1, 2)
    label_ids = np.fromstring(" ".join(text.replace(",", " ") for text in label_texts), dtype=np.int64, sep=" ")
    x = Csr([text.count(":") for text in feature_texts], pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.float32))
    y = Csr([text.count(",") + 1 if text else 0 for text in label_texts], label_ids)
    return x, y, features, labels


# ---- model ---------------------------------------------------------------------------------------------------------

class Model(torch.nn.Module):
    """`output_bias`: initial value. With a label's mean log-prior the sigmoid loss starts from "hardly any applies"."""

    def __init__(self, features, hidden, labels, sparse_output, output_bias):
        super().__init__()
        self.input = torch.nn.EmbeddingBag(features, hidden, mode="sum", sparse=True, include_last_offset=True)
        self.input_bias = torch.nn.Parameter(torch.zeros(hidden))
        self.output = torch.nn.Embedding(labels, hidden, sparse=sparse_output)
        self.output_bias = torch.nn.Embedding(labels, 1, sparse=sparse_output)
        for weight in (self.input.weight, self.output.weight):
            torch.nn.init.normal_(weight, std=hidden**-0.5)
        torch.nn.init.constant_(self.output_bias.weight, output_bias)

    def hidden(self, ids, offsets, values):
        return F.relu(self.input(ids, offsets, per_sample_weights=values) + self.input_bias)

    def logits(self, h, active):
        """[B, d] -> [B, A]; all labels where `active` is None."""
        if active is None:
            return torch.addmm(self.output_bias.weight[:, 0], h, self.output.weight.t())
        return torch.addmm(self.output_bias(active)[:, 0], h, self.output(active).t())


def mean_loss(kind, logits, sample, position, counts):
    """(sample, position): indices of the positives in logits [B, A]; counts: labels of each sample."""
    if kind == "sigmoid":
        return (F.softplus(logits).sum() - logits[sample, position].sum()) / len(counts)
    share = 1.0 / counts[sample]
    return -(F.log_softmax(logits, dim=1)[sample, position] * share).sum() / len(counts)


def csr_slice(csr, begin, end):
    first, last = csr.offsets[begin], csr.offsets[end]
    values = None if csr.values is None else torch.from_numpy(csr.values[first:last])
    return torch.from_numpy(csr.ids[first:last]), torch.from_numpy(csr.offsets[begin:end + 1] - first), values


def train_step(model, optimizers, x, y, begin, end, rng):
    ids, offsets, values = csr_slice(x, begin, end)
    labels = y.ids[y.offsets[begin]:y.offsets[end]]
    counts = np.diff(y.offsets[begin:end + 1])
    if arguments.full:
        active, position = None, labels
    else:
        draws = rng.integers(model.output.num_embeddings, size=arguments.negatives)
        active, inverse = np.unique(np.concatenate([labels, draws]), return_inverse=True)
        active, position = torch.from_numpy(active), inverse[:len(labels)]
    sample = torch.from_numpy(np.repeat(np.arange(end - begin), counts))

    logits = model.logits(model.hidden(ids, offsets, values), active)
    loss = mean_loss(arguments.loss, logits, sample, torch.from_numpy(position), torch.from_numpy(counts))
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss


@torch.no_grad()
def precision(model, x, y, cuts=(1, 3, 5), batch=512):
    """Precision at each cut, mean over all rows, every label scored."""
    rows = len(x.offsets) - 1
    hits = np.zeros(max(cuts))
    width = model.output.num_embeddings
    truth = np.repeat(np.arange(rows), np.diff(y.offsets)) * width + y.ids  # one key for each (row, label)
    for begin in range(0, rows, batch):
        end = min(begin + batch, rows)
        best = model.logits(model.hidden(*csr_slice(x, begin, end)), None).topk(max(cuts), dim=1).indices.numpy()
        keys = np.arange(begin, end)[:, None] * width + best
        hits += np.isin(keys, truth[y.offsets[begin]:y.offsets[end]]).sum(axis=0)
    return {f"p_at_{cut}": round(hits[:cut].sum() / cut / rows, 5) for cut in cuts}


# ---- run -----------------------------------------------------------------------------------------------------------

def make_optimizers(model):
    indexed = [model.input.weight]
    others = [model.input_bias]
    (others if arguments.full else indexed).extend([model.output.weight, model.output_bias.weight])
    return [torch.optim.SparseAdam(indexed, lr=arguments.lr),
            torch.optim.Adam(others, lr=arguments.lr, foreach=True)]


def scheduled_lr(step, total):
    return arguments.lr * (1 - 0.9 * step / total if arguments.schedule == "linear" else 1)


class Clock:
    """Seconds of training: runs from start() to stop()."""

    def __init__(self):
        self.seconds, self.started = 0.0, None

    def start(self):
        self.started = time.perf_counter()

    def stop(self):
        self.seconds += time.perf_counter() - self.started


def main():
    x, y, features, labels = read_xmc(arguments.train)
    test_x, test_y, _, _ = read_xmc(arguments.test)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    rows = len(x.offsets) - 1
    output_bias = np.log(len(y.ids) / rows / labels) if arguments.loss == "sigmoid" else 0.0
    model = Model(features, arguments.hidden, labels, not arguments.full, output_bias)
    optimizers = make_optimizers(model)

    steps_per_epoch = -(-rows // arguments.batch)
    total = arguments.max_steps or steps_per_epoch * arguments.epochs
    evaluate_every = arguments.evaluate_every or steps_per_epoch
    clock, samples, losses, evaluations = Clock(), 0, [], []
    warm_samples = warm_seconds = 0
    for step in range(total):
        clock.start()
        if step % steps_per_epoch == 0:
            order = rng.permutation(rows)
            shuffled_x, shuffled_y = x.permuted(order), y.permuted(order)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = scheduled_lr(step, total)
        begin = step % steps_per_epoch * arguments.batch
        end = min(begin + arguments.batch, rows)
        losses.append(train_step(model, optimizers, shuffled_x, shuffled_y, begin, end, rng).item())
        clock.stop()
        samples += end - begin
        steps = step + 1
        if steps == arguments.warmup:
            warm_samples, warm_seconds = samples, clock.seconds
        if steps % evaluate_every == 0 or steps == total:
            evaluations.append({"step": steps, "loss": round(float(np.mean(losses)), 5), "samples": samples,
                                "train_seconds": round(clock.seconds, 4), **precision(model, test_x, test_y)})
            losses.clear()
            print(json.dumps(evaluations[-1]), file=sys.stderr, flush=True)

    last = evaluations[-1]
    print(json.dumps({
        "event": "finished", "system": f"PyTorch {torch.__version__}", "blas": blas_in_use(),
        "threads": arguments.threads, "steps": total,
        "samples_per_second": round((samples - warm_samples) / (clock.seconds - warm_seconds), 1) if samples > warm_samples else None,
        "train_seconds": last["train_seconds"], "p_at_1": last["p_at_1"], "p_at_3": last["p_at_3"],
        "p_at_5": last["p_at_5"], "evaluations": evaluations}))


if __name__ == "__main__":
    main()
