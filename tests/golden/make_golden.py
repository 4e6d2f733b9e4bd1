#!/usr/bin/env python3
"""Writes golden.json: Modelet's training step on a tiny model, computed by this independent numpy reference in float64.

The C++ golden test injects the initial tensors and compares logits, loss and gradients of the first step and the losses of ten
steps. Run with Debian's python3 and python3-numpy; the result is the same on every run:

    /usr/bin/python3 tests/golden/make_golden.py

Nothing is written unless three things hold: the gradients equal finite differences; a float32 run of the same steps stays close
to the float64 run, so that the tolerance of the test measures the implementation and not the conditioning of the problem; and
the batches contain the special cases that they are meant to contain.

What is computed: X [B, features] is the batch, where B counts every sample. A is the active set (ascending label ids): all labels, or the
labels of the batch.
    input    h = relu(X W1 + b1)                          W1 [features, d1]
    hidden   h = relu(h W2^T + b2)                        W2 [d2, d1], absent in the model `one_layer`
    output   z = h Wo[A]^T + bo[A]                        Wo [labels, d]
    softmax  loss_b = logsumexp(z_b) - sum_a t_ba z_ba, t_ba = 1 / |labels_b| on the labels; 0 for a sample without labels
    sigmoid  loss_b = sum_a softplus(z_ba) - y_ba z_ba,  y_ba = 1 on the labels
    loss     mean of loss_b over B; gradients are of this mean; the gradient of relu at exactly 0 is 0
An optimiser changes touched rows only: W1 rows of the features in the batch (a value of 0 counts), rows A of Wo and bo,
all of b1, W2 and b2. Adam's bias correction uses the row's own clock: how often it has been touched. Wo[a] and bo[a]
share a clock, so do W2[j] and b2[j]; b1 is one row.

Layout of the file:
    models   name -> widths and initial tensors, shared by the cases
    batches  one per step: samples (features, values, labels)
    cases    model, loss kind, active set ("full" or "labels"); logits, loss, gradients at step 0; runs: an optimiser, ten losses, gradient norms
             before clipping, final tensors
"""

import json
import pathlib

import numpy as np

SEED = 20220113
FEATURES, LABELS, BATCH, STEPS = 40, 30, 6, 10
WIDTHS = {"one_layer": [16], "two_layers": [32, 16]}
# Options are exact in float32, so that reading them adds no error. Epsilon is far above the usual 1e-8. So its place in the
# formula matters, and gradients that nearly cancel do not turn rounding errors into whole steps.
EPSILON = 2.0**-13
ADAM = {"kind": "adam", "learning_rate": 2.0**-7, "beta1": 0.875, "beta2": 1 - 2.0**-7, "epsilon": EPSILON, "clip": 0.0}
ADAGRAD = {"kind": "adagrad", "learning_rate": 0.0625, "epsilon": EPSILON, "clip": 0.0}
SGD = {"kind": "sgd", "learning_rate": 0.125, "momentum": 0.875, "clip": 0.0}
ADAM_CLIPPED = {**ADAM, "clip": 0.75}  # between the smallest and the largest norm of the run: both branches are taken
CASES = [
    ("one_layer", "softmax", "full", [ADAM, ADAGRAD, SGD, ADAM_CLIPPED]),
    ("one_layer", "sigmoid", "full", [ADAM, ADAGRAD, SGD]),
    ("two_layers", "softmax", "full", [ADAM]),
    ("one_layer", "softmax", "labels", [ADAM]),
    ("one_layer", "sigmoid", "labels", [ADAGRAD]),
]
GOLDEN = pathlib.Path(__file__).with_name("golden.json")


# ---- problem -------------------------------------------------------------------------------------------------------

def as_float32(values):
    """Rounds to short decimals, and these to float32. So the values used here are those that a float32 implementation reads from the
    file."""
    return np.float32(np.round(values, 3)).astype(np.float64)


def make_model(rng, widths):
    def normal(*shape):
        return as_float32(rng.normal(0, 0.3, shape))

    model = {"input.weight": normal(FEATURES, widths[0]), "input.bias": normal(widths[0])}
    # A sample without features has these pre-activations at exactly 0, where the gradient of relu is 0.
    model["input.bias"][::5] = 0
    if len(widths) == 2:
        model["hidden.weight"], model["hidden.bias"] = normal(widths[1], widths[0]), normal(widths[1])
    model["output.weight"], model["output.bias"] = normal(LABELS, widths[-1]), normal(LABELS)
    return model


def make_batch(rng, step):
    samples = []
    for _ in range(BATCH):
        features = np.sort(rng.choice(FEATURES, rng.randint(3, 9), replace=False))
        labels = np.sort(rng.choice(LABELS, rng.randint(1, 4), replace=False))
        values = as_float32(rng.uniform(0.1, 1.5, len(features)) * rng.choice([-1, 1], len(features)))
        samples.append({"features": features.tolist(), "values": values.tolist(), "labels": labels.tolist()})
    samples[step % BATCH]["labels"] = []
    samples[(step + 2) % BATCH].update(features=[], values=[])
    samples[(step + 3) % BATCH]["values"][0] = 0.0
    return {"samples": samples}


def dense(batch, dtype):
    """X [B, features] and Y [B, labels] (0 or 1)."""
    x, y = np.zeros((BATCH, FEATURES), dtype), np.zeros((BATCH, LABELS), dtype)
    for row, sample in enumerate(batch["samples"]):
        x[row, sample["features"]] = sample["values"]
        y[row, sample["labels"]] = 1
    return x, y


# ---- the step ------------------------------------------------------------------------------------------------------

def softmax_loss(z, y):
    """The loss of each sample [B] and its gradient with respect to z [B, A]."""
    count = y.sum(axis=1, keepdims=True)
    labelled = (count > 0).astype(z.dtype)
    target = y / np.maximum(count, 1)
    top = z.max(axis=1, keepdims=True)
    exp = np.exp(z - top)
    total = exp.sum(axis=1, keepdims=True)
    losses = (top + np.log(total))[:, 0] - (target * z).sum(axis=1)
    return losses * labelled[:, 0], (exp / total - target) * labelled


def sigmoid_loss(z, y):
    return (np.logaddexp(z.dtype.type(0), z) - y * z).sum(axis=1), 1 / (1 + np.exp(-z)) - y


def forward_backward(model, x, y, active, loss_kind):
    """Returns (logits [B, A], mean loss, gradients by tensor name, pre-activations of the hidden layers)."""
    pre = [x @ model["input.weight"] + model["input.bias"]]
    if "hidden.weight" in model:
        pre.append(np.maximum(pre[0], 0) @ model["hidden.weight"].T + model["hidden.bias"])
    h = [np.maximum(p, 0) for p in pre]
    z = h[-1] @ model["output.weight"][active].T + model["output.bias"][active]
    losses, dz = (softmax_loss if loss_kind == "softmax" else sigmoid_loss)(z, y[:, active])
    dz = dz / BATCH

    gradients = {name: np.zeros_like(tensor) for name, tensor in model.items()}
    gradients["output.weight"][active] = dz.T @ h[-1]
    gradients["output.bias"][active] = dz.sum(axis=0)
    d_pre = (dz @ model["output.weight"][active]) * (pre[-1] > 0)
    if "hidden.weight" in model:
        gradients["hidden.weight"] = d_pre.T @ h[0]
        gradients["hidden.bias"] = d_pre.sum(axis=0)
        d_pre = (d_pre @ model["hidden.weight"]) * (pre[0] > 0)
    gradients["input.weight"] = x.T @ d_pre
    gradients["input.bias"] = d_pre.sum(axis=0)
    return z, losses.sum() / BATCH, gradients, pre


class Optimizer:
    """The state of every tensor, and a clock for each row (index of the first dimension) of every tensor; input.bias has a single clock."""

    def __init__(self, model, options):
        self.options = options
        self.first = {name: np.zeros_like(tensor) for name, tensor in model.items()}
        self.second = {name: np.zeros_like(tensor) for name, tensor in model.items()}
        self.clock = {name: np.zeros(len(tensor), int) for name, tensor in model.items()}

    def update(self, model, gradients, touched):
        norm = np.sqrt(sum(np.square(g).sum() for g in gradients.values()))
        scale = min(1.0, self.options["clip"] / norm) if self.options["clip"] else 1.0
        rule = getattr(self, self.options["kind"])
        for name, rows in touched.items():
            self.clock[name][rows] += 1
            clock = self.clock[name][rows].reshape((-1,) + (1,) * (model[name].ndim - 1)).astype(model[name].dtype)
            g = gradients[name][rows] * float(scale)  # a Python float, because a numpy scalar would widen float32
            change, first, second = rule(g, self.first[name][rows], self.second[name][rows], clock)
            self.first[name][rows], self.second[name][rows] = first, second
            model[name][rows] -= self.options["learning_rate"] * change
        return norm

    def adam(self, g, m, v, clock):
        beta1, beta2 = self.options["beta1"], self.options["beta2"]
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        change = (m / (1 - beta1**clock)) / (np.sqrt(v / (1 - beta2**clock)) + self.options["epsilon"])
        return change, m, v

    def adagrad(self, g, unused, total, clock):
        total = total + g * g
        return g / (np.sqrt(total) + self.options["epsilon"]), unused, total

    def sgd(self, g, momentum, unused, clock):
        momentum = self.options["momentum"] * momentum + g
        return momentum, momentum, unused


def touched_rows(model, batch, active):
    rows = {name: np.arange(len(tensor)) for name, tensor in model.items()}
    rows["input.weight"] = np.unique([f for sample in batch["samples"] for f in sample["features"]]).astype(int)
    rows["output.weight"] = rows["output.bias"] = active
    return rows


def active_set(batch, kind):
    return np.arange(LABELS) if kind == "full" else np.unique([a for s in batch["samples"] for a in s["labels"]]).astype(int)


def train(initial, batches, loss_kind, active_kind, options, dtype=np.float64):
    """Returns (losses, gradient norms, final tensors) of one pass over the batches."""
    model = {name: tensor.astype(dtype) for name, tensor in initial.items()}
    optimizer = Optimizer(model, options)
    losses, norms = [], []
    for batch in batches:
        active = active_set(batch, active_kind)
        _, loss, gradients, _ = forward_backward(model, *dense(batch, dtype), active, loss_kind)
        losses.append(loss)
        norms.append(optimizer.update(model, gradients, touched_rows(model, batch, active)))
    return np.array(losses), np.array(norms), model


# ---- checks --------------------------------------------------------------------------------------------------------

def check_batches(models, batches):
    for batch in batches:
        samples = batch["samples"]
        assert any(not s["labels"] for s in samples) and any(not s["features"] for s in samples)
        assert any(0.0 in s["values"] for s in samples)
        assert len(active_set(batch, "labels")) < LABELS
    assert any((forward_backward(model, *dense(batches[0], float), np.arange(LABELS), "softmax")[3][0] == 0).any()
               for model in models.values()), "no pre-activation is exactly 0"


def check_gradients(rng, initial, batch, loss_kind, active):
    """Compares every gradient with central differences, at a point where no pre-activation is near the kink of relu."""
    x, y = dense(batch, np.float64)
    h = 1e-6
    nearest = worst = 0.0
    while nearest < 1000 * h:
        point = {name: tensor + rng.normal(0, 0.05, tensor.shape) for name, tensor in initial.items()}
        _, _, gradients, pre = forward_backward(point, x, y, active, loss_kind)
        nearest = min(np.abs(p).min() for p in pre)
    for name, tensor in point.items():
        numeric = np.zeros_like(tensor)
        for index in np.ndindex(tensor.shape):
            kept = tensor[index]
            tensor[index] = kept + h
            above = forward_backward(point, x, y, active, loss_kind)[1]
            tensor[index] = kept - h
            below = forward_backward(point, x, y, active, loss_kind)[1]
            tensor[index] = kept
            numeric[index] = (above - below) / (2 * h)
        assert np.abs(gradients[name]).max() > 1e-3, f"{name}: the gradient is trivial"
        worst = max(worst, np.abs(numeric - gradients[name]).max())
    assert worst < 1e-8, f"gradients differ from finite differences by {worst:.2g}"
    return worst


def check_conditioning(initial, batches, loss_kind, active_kind, options, losses, final):
    """Returns the largest deviation of a float32 run: relative in the losses, absolute in the tensors."""
    losses32, _, final32 = train(initial, batches, loss_kind, active_kind, options, np.float32)
    in_losses = np.abs(losses32 / losses - 1).max()
    in_tensors = max(np.abs(final32[name] - final[name]).max() for name in final)
    assert in_losses < 2e-6, f"{options['kind']}: losses of a float32 run deviate by {in_losses:.2g}"
    assert in_tensors < 5e-6, f"{options['kind']}: tensors of a float32 run deviate by {in_tensors:.2g}"
    return in_losses, in_tensors


# ---- file ----------------------------------------------------------------------------------------------------------

def rounded(tensor, digits):
    """Nested lists with `digits` significant digits; whole numbers become ints, which are shorter."""
    if np.ndim(tensor):
        return [rounded(row, digits) for row in tensor]
    value = float(f"{float(tensor):.{digits}g}")
    return int(value) if value.is_integer() else value


def rounded_all(tensors, digits):
    return {name: rounded(tensor, digits) for name, tensor in tensors.items()}


def main():
    rng = np.random.RandomState(SEED)  # its stream is frozen across numpy versions
    models = {name: make_model(rng, widths) for name, widths in WIDTHS.items()}
    batches = [make_batch(rng, step) for step in range(STEPS)]
    check_batches(models, batches)

    cases = []
    for model_name, loss_kind, active_kind, optimizers in CASES:
        initial, active = models[model_name], active_set(batches[0], active_kind)
        worst = check_gradients(rng, initial, batches[0], loss_kind, active)
        print(f"{model_name} {loss_kind} {active_kind}: gradients equal finite differences to {worst:.1g}")
        logits, loss, gradients, _ = forward_backward(initial, *dense(batches[0], float), active, loss_kind)
        runs = []
        for options in optimizers:
            losses, norms, final = train(initial, batches, loss_kind, active_kind, options)
            in_losses, in_tensors = check_conditioning(initial, batches, loss_kind, active_kind, options, losses, final)
            if options["clip"]:
                assert norms.min() < options["clip"] < norms.max(), "clipping is always or never active"
                assert abs(losses[-1] / runs[0]["losses"][-1] - 1) > 1e-4, "clipping does not show in the losses"
            print(f"  {options['kind']}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norm {norms.min():.2f} to "
                  f"{norms.max():.2f}; float32 run: losses {in_losses:.1g}, tensors {in_tensors:.1g}")
            runs.append({"optimizer": options, "losses": rounded(losses, 9), "gradient_norms": rounded(norms, 9),
                         "final": rounded_all(final, 6)})
        cases.append({"model": model_name, "loss_kind": loss_kind, "active": active_kind, "logits": rounded(logits, 8),
                      "loss": rounded(loss, 9), "gradients": rounded_all(gradients, 6), "runs": runs})

    golden = {
        "features": FEATURES, "labels": LABELS, "batch": BATCH, "steps": STEPS,
        "models": {name: {"hidden": WIDTHS[name], "initial": rounded_all(model, 4)} for name, model in models.items()},
        "batches": [{"samples": [{**s, "values": rounded(s["values"], 4)} for s in b["samples"]]} for b in batches],
        "cases": cases,
    }
    text = json.dumps(golden, separators=(",", ":")).replace(',"', ',\n"') + "\n"
    GOLDEN.write_text(text)
    print(f"{GOLDEN}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
