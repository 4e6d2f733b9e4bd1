"""What modelet.Classifier chooses where its user has chosen nothing: keys of the experiment, from the shape of the data.

The one place where that is decided; a better way of choosing replaces choose().
"""

# With more labels than this, each step scores a part of them.
MOST_LABELS_IN_FULL = 4096


def choose(*, rows, features, labels, nonzeros, one_label):
    """Keys of the experiment. `one_label`: every sample has exactly one."""
    batch = 16
    while batch < 256 and rows > 64 * batch:
        batch *= 2
    steps = -(-rows // batch)
    full = labels <= MOST_LABELS_IN_FULL
    keys = {
        "model.hidden": [128],
        "model.loss": "softmax" if one_label or not full else "sigmoid",
        "sampling.mode": "full" if full else "uniform",
        "train.batch": batch,
        "train.epochs": max(8, min(100, -(-400 // steps))),  # small data: at least some hundred steps
        "train.learning_rate": 5e-3 if rows < 10000 else 2e-3,
        # Sparse rows are words or events, whose number should not matter; dense ones are measurements.
        "data.normalize": "l2" if nonzeros < 0.1 * rows * features else "none",
    }
    if not full:
        keys["sampling.uniform"] = max(1024, labels // 64)
    return keys
