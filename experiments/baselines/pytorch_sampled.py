#!/usr/bin/env python3
"""The PyTorch baseline: sparse input -> ReLU -> softmax over the labels of the batch and shared uniform negatives.

This is the model that Modelet trains with sampling.mode = "uniform" and one hidden layer, built from PyTorch's own layers and
optimisers and arranged for speed on a CPU:
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
import json
import os
import pathlib
import sys

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
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", choices=["softmax", "sigmoid"], default="softmax")
    parser.add_argument("--full", action="store_true", help="all labels take part in every step")
    parser.add_argument("--max-steps", type=int, help="stop training after so many steps")
    parser.add_argument("--blas", choices=["as-installed", "told-cpu"], default="told-cpu",
                        help="OpenBLAS finds out the CPU by itself, or is told where there is AVX-512 (default)")
    parser.add_argument("--warmup", type=int, default=10, help="first steps left out of samples_per_second")
    return parser.parse_args()


arguments = parse_arguments()
os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.update(blas.environment(arguments.threads, arguments.blas == "told-cpu"))
import common  # loads torch
from common import np, torch


def make_optimizers(model):
    sparse, dense = [model.input.bag.weight], [model.input.bias]
    (dense if arguments.full else sparse).extend(model.output.parameters())
    return common.optimizers(sparse, dense, arguments.lr)


def main():
    x, y, features, labels = common.read_xmc(arguments.train)
    test_x, test_y, _, _ = common.read_xmc(arguments.test)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    initial_bias = np.log(len(y.ids) / len(y) / labels) if arguments.loss == "sigmoid" else 0.0
    model = common.Model(features, arguments.hidden, labels, sparse_output=not arguments.full, initial_bias=initial_bias)
    optimizers = make_optimizers(model)
    negatives = None if arguments.full else arguments.negatives

    steps_per_epoch = -(-len(x) // arguments.batch)
    total = arguments.max_steps or steps_per_epoch * arguments.epochs
    evaluate_every = arguments.evaluate_every or steps_per_epoch
    clock, samples, losses, evaluations = common.Clock(), 0, [], []
    warm_samples = warm_seconds = 0
    for step in range(total):
        clock.start()
        if step % steps_per_epoch == 0:
            order = rng.permutation(len(x))
            shuffled_x, shuffled_y = x.permuted(order), y.permuted(order)
        common.set_rate(optimizers, common.scheduled_rate(arguments.schedule, arguments.lr, step, total))
        begin = step % steps_per_epoch * arguments.batch
        end = min(begin + arguments.batch, len(x))
        loss = common.batch_loss(model, arguments.loss, shuffled_x, shuffled_y, begin, end, negatives, rng)
        model.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        clock.stop()
        samples += end - begin
        steps = step + 1
        if steps == arguments.warmup:
            warm_samples, warm_seconds = samples, clock.seconds
        if steps % evaluate_every == 0 or steps == total:
            evaluations.append({"step": steps, "loss": round(float(np.mean(losses)), 5), "samples": samples,
                                "train_seconds": round(clock.seconds, 4),
                                **common.precision(common.top_labels(model), test_x, test_y, labels)})
            losses.clear()
            print(json.dumps(evaluations[-1]), file=sys.stderr, flush=True)

    last = evaluations[-1]
    print(json.dumps({
        "event": "finished", "system": f"PyTorch {torch.__version__}", "blas": blas.in_use(torch),
        "threads": arguments.threads, "steps": total,
        "samples_per_second": round((samples - warm_samples) / (clock.seconds - warm_seconds), 1) if samples > warm_samples else None,
        "train_seconds": last["train_seconds"], "p_at_1": last["p_at_1"], "p_at_3": last["p_at_3"],
        "p_at_5": last["p_at_5"], "evaluations": evaluations}))


if __name__ == "__main__":
    main()
