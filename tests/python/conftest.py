"""What the tests of the Python package share. They run in build/venv (make_venv.sh), on the installed package."""
import os

import numpy as np
import pytest
import scipy.sparse as sp


def pytest_configure():
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def words(rows, labels, seed, per_row=6):
    """Returns CSR X and CSR Y of samples in which each label has features of its own: an easy problem with a known answer."""
    random = np.random.default_rng(seed)
    features = 8 * labels
    X, Y = sp.lil_array((rows, features), dtype=np.float32), sp.lil_array((rows, labels), dtype=np.int8)
    for row in range(rows):
        for label in random.choice(labels, size=random.integers(1, 4), replace=False):
            Y[row, label] = 1
            for feature in random.choice(8, size=per_row // 2, replace=False):
                X[row, 8 * label + feature] = 1
        X[row, random.integers(features)] = 0.5
    return X.tocsr(), Y.tocsr()


@pytest.fixture(scope="session")
def many_labels():
    """Returns X, Y to learn from, and X, Y to test with."""
    X, Y = words(600, 40, seed=1)
    return X[:500], Y[:500], X[500:], Y[500:]


@pytest.fixture(scope="session")
def text_experiment(tmp_path_factory):
    """The keys of an experiment on labelled text."""
    folder = tmp_path_factory.mktemp("text")
    random = np.random.default_rng(2)
    names = {"fruit": ["apple", "pear", "plum", "cherry"], "tool": ["hammer", "saw", "pliers", "file"],
             "bird": ["wren", "crow", "robin", "owl"]}
    for name, rows in (("train.txt", 300), ("test.txt", 60)):
        lines = []
        for _ in range(rows):
            label = random.choice(list(names))
            lines.append(f"__label__{label} " + " ".join(random.choice(names[label], size=3)) + " and")
        (folder / name).write_text("\n".join(lines) + "\n")
    return {"data.train": str(folder / "train.txt"), "data.test": str(folder / "test.txt"), "data.normalize": "l2",
            "model.hidden": [32], "modelets": {"hidden_columns": 16, "output_modelets": 2}, "sampling.mode": "full",
            "train": {"epochs": 4, "batch": 16, "learning_rate": 5e-3, "threads": 1}}
