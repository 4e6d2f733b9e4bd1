"""Reads XMC text into arrays, for baselines of all kinds. Needs only numpy."""

import itertools
import lzma
import sys

import numpy as np


class Csr:
    """Rows of ids: row i is ids[offsets[i]:offsets[i + 1]]; `values` belongs to ids, or is None."""

    def __init__(self, counts, ids, values=None):
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.ids, self.values = ids, values

    def __len__(self):
        return len(self.offsets) - 1

    def permuted(self, order):
        counts = np.diff(self.offsets)[order]
        starts = np.cumsum(counts) - counts
        source = np.repeat(self.offsets[order] - starts, counts) + np.arange(len(self.ids))
        return Csr(counts, self.ids[source], None if self.values is None else self.values[source])

    def row_ids(self, begin, end):
        """Returns for the rows [begin, end): (ids, the row of each id counted from `begin`, number of ids in each row)."""
        counts = np.diff(self.offsets[begin:end + 1])
        return self.ids[self.offsets[begin]:self.offsets[end]], np.repeat(np.arange(end - begin), counts), counts


def read(path, limit=None):
    """Returns (features of each row, labels of each row, number of features, number of labels). `limit`: only the first rows."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt") as file:
        rows, features, labels = map(int, file.readline().split())
        rows = min(rows, limit or rows)
        lines = list(itertools.islice(file, rows))
    if len(lines) != rows:
        sys.exit(f"{path}: the header promises {rows} rows, the file has {len(lines)}")
    label_texts, _, feature_texts = zip(*(line.rstrip("\n").partition(" ") for line in lines))
    pairs = np.fromstring(" ".join(feature_texts).replace(":", " "), sep=" ").reshape(-1, 2)
    label_ids = np.fromstring(" ".join(text.replace(",", " ") for text in label_texts), dtype=np.int64, sep=" ")
    x = Csr([text.count(":") for text in feature_texts], pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.float32))
    y = Csr([text.count(",") + 1 if text else 0 for text in label_texts], label_ids)
    return x, y, features, labels


def write_predictions(path, best):
    """Writes a line for each row. best: the labels of each row, best first."""
    with open(path, "w", encoding="ascii") as file:
        file.writelines(" ".join(map(str, row)) + "\n" for row in best)
