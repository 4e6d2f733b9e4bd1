"""A worker that trains in Modelet's way, written by hand with PyTorch over Gloo; launch.py starts the workers.

Rank r of n has the columns [r d / n, (r + 1) d / n) of the hidden layer, and every n-th label from the r-th on. In a step every rank
works on the whole batch:
  1. its columns of the hidden layer; all-gather: H [B, d]
  2. logits of its active labels (those of the batch, uniform draws); all-gather of each sample's (max, sum of exp, sum over its labels)
  3. gradient of the logits with the common normaliser; the gradient of H, exchanged so that each rank gets the sum of its columns
  4. SparseAdam on the rows that took part
"""

import math
import time

import distributed
import torch
import torch.distributed as dist
from distributed import common, np


class Sharded:
    def __init__(self, arguments, features, labels):
        self.name, self.rank, self.size = f"sharded by hand, PyTorch {torch.__version__}", dist.get_rank(), dist.get_world_size()
        if arguments.hidden % self.size:
            raise SystemExit(f"--hidden {arguments.hidden} cannot be cut into {self.size} equal parts")
        torch.manual_seed(arguments.seed + self.rank)
        self.labels = labels
        self.width = len(range(self.rank, labels, self.size))
        self.negatives = math.ceil(arguments.negatives / self.size)
        self.input = common.InputLayer(features, arguments.hidden // self.size, True, arguments.hidden)
        self.output = common.OutputLayer(self.width, arguments.hidden, True)
        self.optimizers = common.optimizers([self.input.bag.weight, *self.output.parameters()], [self.input.bias], arguments.lr)
        self.rng = np.random.default_rng([arguments.seed, self.rank])
        self.waited = 0.0

    def _collective(self, function, *tensors):
        started = time.perf_counter()
        function(*tensors)
        self.waited += time.perf_counter() - started

    def _gather(self, part):
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self._collective(dist.all_gather, parts, part.contiguous())
        return parts

    def _sum_of_own_columns(self, matrix):
        """[B, d] of every rank -> [B, d / n]: the sum of this rank's columns."""
        outgoing = torch.stack(matrix.chunk(self.size, dim=1)).contiguous()
        incoming = torch.empty_like(outgoing)
        self._collective(dist.all_to_all_single, incoming, outgoing)
        return incoming.sum(dim=0)

    def step(self, x, y, begin, end, rate):
        common.set_rate(self.optimizers, rate)
        self.waited = 0.0
        own = self.input(*common.bags(x, begin, end))
        hidden = torch.cat(self._gather(own.detach()), dim=1).requires_grad_()

        labels, sample, counts = y.row_ids(begin, end)
        here = labels % self.size == self.rank
        active, position = common.active_set(labels[here] // self.size, self.width, self.negatives, self.rng)
        sample, position = torch.from_numpy(sample[here]), torch.from_numpy(position)
        share = torch.from_numpy(1.0 / counts).float()[sample]
        logits = self.output(hidden, active)
        with torch.no_grad():
            highest = logits.max(dim=1).values
            positive = torch.zeros(end - begin).index_add_(0, sample, logits[sample, position] * share)
            statistics = torch.stack(self._gather(torch.stack([highest, (logits - highest[:, None]).exp_().sum(dim=1), positive])))
            highest, sums, positive = statistics.unbind(dim=1)
            normalizer = (highest + sums.log()).logsumexp(dim=0)
            gradient = (logits - normalizer[:, None]).exp_()
            gradient.index_put_((sample, position), -share, accumulate=True)
            gradient /= end - begin
        for layer in (self.input, self.output):
            layer.zero_grad(set_to_none=True)
        logits.backward(gradient)
        own.backward(self._sum_of_own_columns(hidden.grad))
        for optimizer in self.optimizers:
            optimizer.step()
        return (normalizer - positive.sum(dim=0)).mean().item(), self.waited

    def _top(self, inputs, k):
        hidden = torch.cat(self._gather(self.input(*inputs)), dim=1)
        best = self.output(hidden, None).topk(k, dim=1)
        scores, ids = (torch.cat(self._gather(part), dim=1) for part in (best.values, best.indices * self.size + self.rank))
        return ids.gather(1, scores.topk(k, dim=1).indices)

    def precision(self, x, y):
        return common.precision(self._top, x, y, self.labels)

    def barrier(self):
        dist.barrier()


arguments = distributed.parse_arguments(__doc__)
dist.init_process_group("gloo")
distributed.run(arguments, lambda features, labels: Sharded(arguments, features, labels))
