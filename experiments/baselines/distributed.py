"""What the distributed baselines share: options, and the training loop with its measurements. launch.py starts them, one process a node.

The seed gives every rank the same data in the same order. A step takes the rows [begin, end), the global batch. A family is an object
that says what a rank does with them:
    name                              the name of the system, with its version
    rank, size
    step(x, y, begin, end, rate)      trains; returns (loss, seconds of waiting for others, or None if not known)
    precision(x, y)                   {"p_at_1": ...} of the whole model; all ranks call it
    barrier()                         returns when all ranks have called it
"""

import argparse
import json
import pathlib
import resource
import sys
import time

import blas
import common
import xmc
from common import np, torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
import cluster as clusters


def options(description, modes=()):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if modes:
        parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="XMC text, plain or .xz")
    parser.add_argument("--test", type=pathlib.Path, help="default: no evaluation")
    parser.add_argument("--rows", type=int, help="of --train, the first ones (default: all)")
    parser.add_argument("--steps", type=int, required=True, help="warm-up included")
    parser.add_argument("--warmup", type=int, default=2, help="first steps, left out of seconds and bytes of a step (default: 2)")
    parser.add_argument("--evaluate-every", type=int, metavar="STEPS", help="default: at the end")
    parser.add_argument("--batch", type=int, default=256, help="of all ranks together (default: 256)")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--negatives", type=int, default=1024, help="uniform draws a step, where labels are sampled (default: 1024)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--schedule", choices=["constant", "linear"], default="constant", help="linear: falls to a tenth over the run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def parse_arguments(description, modes=()):
    return options(description, modes).parse_args()


class Snapshot:
    """The counters of this process: seconds in steps, of waiting, and of all cores; bytes that its node has sent."""

    def __init__(self, clock, waited):
        self.seconds, self.waited, self.cpu = clock.seconds, waited, time.process_time()
        self.sent = clusters.sent_bytes()

    def per_step(self, earlier, steps):
        waited = None if self.waited is None else (self.waited - earlier.waited) / steps
        return {"seconds_per_step": (self.seconds - earlier.seconds) / steps, "wait_seconds": waited,
                "cpu_seconds": (self.cpu - earlier.cpu) / steps, "sent_bytes": (self.sent - earlier.sent) / steps}


def run(arguments, make_family):
    """make_family(features, labels) makes the family. Rank 0 prints the points of its curve, and every rank a "finished" line, as JSON."""
    if not 0 < arguments.warmup < arguments.steps:
        sys.exit(f"--warmup {arguments.warmup} of --steps {arguments.steps}: at least one step for each")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    x, y, features, labels = xmc.read(arguments.train, arguments.rows)
    test = xmc.read(arguments.test)[:2] if arguments.test else None
    steps_per_epoch = len(x) // arguments.batch
    if steps_per_epoch == 0:
        sys.exit(f"{arguments.train}: fewer rows than --batch {arguments.batch}")
    family = make_family(features, labels)
    order = np.random.default_rng(arguments.seed)
    clock, waited, losses, curve, start = common.Clock(), 0.0, [], [], None

    for step in range(arguments.steps):
        if step == arguments.warmup:
            family.barrier()
            start = Snapshot(clock, waited)
            family.barrier()
        clock.start()
        if step % steps_per_epoch == 0:
            rows = order.permutation(len(x))
            shuffled_x, shuffled_y = x.permuted(rows), y.permuted(rows)
        begin = step % steps_per_epoch * arguments.batch
        rate = common.scheduled_rate(arguments.schedule, arguments.lr, step, arguments.steps)
        loss, waiting = family.step(shuffled_x, shuffled_y, begin, begin + arguments.batch, rate)
        clock.stop()
        losses.append(loss)
        waited = None if waiting is None else waited + waiting
        done = step + 1
        if done == arguments.steps:
            family.barrier()
            measured = Snapshot(clock, waited).per_step(start, done - arguments.warmup)
        if test and (done == arguments.steps or arguments.evaluate_every and done % arguments.evaluate_every == 0):
            curve.append({"step": done, "train_seconds": clock.seconds, "loss": float(np.mean(losses)), **family.precision(*test)})
            losses.clear()
            if family.rank == 0:
                print(json.dumps({"event": "evaluated", **curve[-1]}), flush=True)
    family.barrier()
    print(json.dumps({"event": "finished", "system": family.name, "rank": family.rank, "ranks": family.size, "blas": blas.in_use(torch),
                      "steps": arguments.steps - arguments.warmup, **measured,
                      "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "curve": curve}), flush=True)


# ---- data-parallel -------------------------------------------------------------------------------------------------

# What the gradients of a mode are: as large as the layer, or named by row (sparse_input); half: sent as 16-bit floats. sampled: softmax over the labels of the batch and uniform draws, instead of all labels.
MODES = {
    "dense": {"sparse_input": False},
    "fp16": {"sparse_input": False, "half": True},
    "sparse": {"sparse_input": True},
    "sampled": {"sparse_input": True, "sampled": True},
}


class DataParallel:
    """Every rank has the whole model and a slice of the batch. A subclass wraps the model or the optimisers, and sets name, rank and
    size."""

    def __init__(self, arguments, options, features, labels):
        self.labels, self.sampled = labels, options.get("sampled", False)
        self.negatives = arguments.negatives if self.sampled else None
        self.model = common.Model(features, arguments.hidden, labels, options["sparse_input"], self.sampled)
        parameters = dict(self.model.named_parameters())
        sparse = {name for name in parameters if name.startswith("output.") and self.sampled or name == "input.bag.weight" and options["sparse_input"]}
        self.sparse = [parameter for name, parameter in parameters.items() if name in sparse]
        self.dense = [parameter for name, parameter in parameters.items() if name not in sparse]
        self.names = {parameter: name for name, parameter in parameters.items()}
        self.optimizers = common.optimizers(self.sparse, self.dense, arguments.lr)
        self.rng = np.random.default_rng([arguments.seed, 1])  # the same draws on every rank

    def backward(self, model, x, y, begin, end):
        """Computes the gradients of the slice of this rank. Returns its loss."""
        count = (end - begin) // self.size
        begin += self.rank * count
        self.model.zero_grad(set_to_none=True)
        loss = common.batch_loss(model, x, y, begin, begin + count, self.negatives, self.rng)
        loss.backward()
        return loss.item()

    def precision(self, x, y):
        """Rank 0 evaluates, the others wait for it in their next collective."""
        return common.precision(common.top_labels(self.model), x, y, self.labels) if self.rank == 0 else {}
