"""experiments/baselines/pytorch_sampled.py: its gradients are those of autograd, its steps those of torch.optim.Adam. session_network.py:
no place of a session sees a later one. Needs a Python with torch."""
import os
import pathlib
import random
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "experiments" / folder) for folder in ("baselines", "bench")]
import peers

SKIPPED = 77
try:
    import torch
except ImportError:
    python = peers.python_with_torch()
    if not python:
        print("skipped: no Python with torch (experiments/bench/install_peers.sh torch)")
        sys.exit(SKIPPED)
    os.execv(python, [str(python), "-B", __file__])

import numpy as np
import torch.nn.functional as F

sys.argv[1:] = ["--train", "-", "--test", "-", "--threads", "1"]  # the module reads its options when it is loaded
import pytorch_sampled
import session_network
import xmc

ROWS, FEATURES, HIDDEN, LABELS, BATCH = 20, 30, 5, 40, 7


class Step(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.rng = np.random.default_rng(1)

    def rows_of(self, width, count, values=False):
        ids = np.concatenate([self.rng.choice(width, count, replace=False) for _ in range(ROWS)])
        return xmc.Csr([count] * ROWS, ids, self.rng.random(len(ids)).astype(np.float32) if values else None)

    def gradients_by_autograd(self, model, ids, offsets, values, active, sample, position, share):
        parameters = [table.weight.clone().requires_grad_() for table in (model.input, model.input_bias, model.output, model.output_bias)]
        into, into_bias, out, out_bias = parameters
        hidden = F.relu(F.embedding_bag(ids, into, offsets, mode="sum", per_sample_weights=values, include_last_offset=True) + into_bias)
        logits = hidden @ out[active].t() + out_bias[active][:, 0]
        positives = logits[sample, position]
        if model.softmax:
            loss = -(F.log_softmax(logits, 1)[sample, position] * share).sum() / len(logits)
        else:
            loss = (F.softplus(logits).sum() - positives.sum()) / len(logits)
        loss.backward()
        return loss.item(), [parameter.grad for parameter in parameters]

    def test_gradients(self):
        for softmax in (True, False):
            with self.subTest(softmax=softmax):
                model = pytorch_sampled.Model(FEATURES, HIDDEN, LABELS, softmax, 0.0)
                epochs = pytorch_sampled.Epochs(self.rows_of(FEATURES, 3, values=True), self.rows_of(LABELS, 2), BATCH, self.rng)
                epochs.shuffle()
                samples, unique, features, (positives, sample, counts) = epochs.batch_rows(2 * BATCH)  # the last one, which is short
                self.assertEqual(len(counts), ROWS - 2 * BATCH)
                active, position = pytorch_sampled.ActiveSet(LABELS, 15, self.rng).draw(positives)
                self.assertEqual(len(set(active.tolist())), len(active))
                share = torch.from_numpy((1 / counts[sample] if softmax else np.ones(len(sample))).astype(np.float32))
                sample, position = torch.from_numpy(sample), torch.from_numpy(position)
                loss, wanted = self.gradients_by_autograd(model, *samples, active, sample, position, share)
                found = {}
                of_rows = mock.patch.object(pytorch_sampled, "update_rows", lambda weight, mean, square, rows, gradient, *_: found.update({id(weight): (rows, gradient)}))
                of_all = mock.patch.object(pytorch_sampled, "adam", lambda weight, mean, square, gradient, *_: found.update({id(weight): (slice(None), gradient)}))
                with torch.no_grad(), of_rows, of_all:
                    self.assertAlmostEqual(model.train(samples, unique, features, active, sample, position, share, 1, 0.1).item(), loss, places=5)
                for table, gradient in zip((model.input, model.input_bias, model.output, model.output_bias), wanted):
                    whole = torch.zeros_like(gradient)
                    rows, part = found[id(table.weight)]
                    whole[rows] = part
                    torch.testing.assert_close(whole, gradient, rtol=1e-5, atol=1e-6)

    def test_adam(self):
        """If all rows take part, a step equals that of torch.optim.Adam. If only some take part, the others stay."""
        start, gradients = torch.randn(6, 8), [torch.randn(6, 8) for _ in range(3)]
        wanted = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([wanted], lr=0.01)
        for gradient in gradients:
            wanted.grad = gradient
            optimizer.step()
        rows = torch.tensor([4, 1, 0, 5, 3, 2])
        for fused in {pytorch_sampled.HAS_FUSED_ADAM, False}:
            with self.subTest(fused=fused), torch.no_grad(), mock.patch.object(pytorch_sampled, "HAS_FUSED_ADAM", fused):
                weight, mean, square = start.clone(), torch.zeros(6, 8), torch.zeros(6, 8)
                for step, gradient in enumerate(gradients, 1):
                    pytorch_sampled.adam_rows(weight, mean, square, rows, gradient[rows], step, 0.01)
                torch.testing.assert_close(weight, wanted.detach(), rtol=1e-5, atol=1e-6)
                pytorch_sampled.adam_rows(weight, mean, square, rows[:2], gradient[:2], 4, 0.01)
                torch.testing.assert_close(weight[rows[2:]], wanted.detach()[rows[2:]], rtol=1e-5, atol=1e-6)


class SessionNetwork(unittest.TestCase):
    def test_places(self):
        torch.manual_seed(1)
        network = session_network.Network(items=20, places=8, width=16, blocks=2, heads=2, dropout=0.3).eval()
        sessions = session_network.padded([[3, 4, 5, 6], [7, 8]])
        with torch.no_grad():
            states, alone = network(sessions), network(session_network.padded([[7, 8]]))
            torch.testing.assert_close(states[1, 2:], alone[0])
            sessions[0, 3] = 9
            changed = network(sessions)
        torch.testing.assert_close(changed[0, :3], states[0, :3])
        self.assertGreater(float((changed[0, 3] - states[0, 3]).abs().max()), 1e-3)

    def test_every_session_is_in_a_batch(self):
        sessions = [[1] * length for length in (2, 5, 3, 2, 9, 4, 4)]
        found = session_network.batches(sessions, 10, random.Random(1))
        self.assertEqual(sorted(number for batch in found for number in batch), list(range(len(sessions))))
        for batch in found:
            self.assertLessEqual((len(batch) - 1) * (max(len(sessions[number]) for number in batch) - 1), 10)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
