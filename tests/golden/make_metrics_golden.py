#!/usr/bin/env python3
"""Writes metrics.json: the figures of shard/inference/metrics.h, computed by an independent numpy reference on dense matrices.

    /usr/bin/python3 tests/golden/make_metrics_golden.py

Scores are eighths, so that float32 holds them exactly and many are equal; equal scores rank by the lower label. Some samples
have no label, some have more than the largest K.
"""

import json
import pathlib

import numpy as np

SEED, SAMPLES, LABELS, ROWS, KS = 20160813, 60, 24, 5000, (1, 3, 5)
GOLDEN = pathlib.Path(__file__).with_name("metrics.json")


def ranked(scores):
    return np.argsort(-scores, axis=1, kind="stable")


def figures(truth, scores, counts, a, b):
    order = ranked(scores)
    hits = np.take_along_axis(truth, order, axis=1)
    labels_of = truth.sum(axis=1)
    inverse = 1 + (np.log(ROWS) - 1) * (b + 1) ** a * np.exp(-a * np.log(counts + b))
    gains = np.take_along_axis(truth * inverse, order, axis=1)
    best_gains = -np.sort(-truth * inverse, axis=1)
    ideal = -np.sort(-truth, axis=1)
    discount = 1 / np.log2(np.arange(2, LABELS + 2))
    result = {}
    for k in KS:
        result[f"p_at_{k}"] = hits[:, :k].mean()
        dcg, best = (hits * discount)[:, :k].sum(axis=1), (ideal * discount)[:, :k].sum(axis=1)
        result[f"ndcg_at_{k}"] = np.divide(dcg, best, out=np.zeros(SAMPLES), where=best > 0).mean()
        result[f"recall_at_{k}"] = (hits[:, :k].sum(axis=1) / np.maximum(labels_of, 1)).mean()
        first = np.where(hits[:, :k].any(axis=1), hits[:, :k].argmax(axis=1) + 1, np.inf)
        result[f"mrr_at_{k}"] = (1 / first).mean()
        result[f"psp_at_{k}"] = gains[:, :k].mean() / best_gains[:, :k].mean()
    positive, negative = scores[truth == 1], scores[truth == 0]
    difference = positive[:, None] - negative[None, :]
    result["auc"] = ((difference > 0) + 0.5 * (difference == 0)).mean()
    probability = 1 / (1 + np.exp(-scores))
    result["log_loss"] = -np.where(truth == 1, np.log(probability), np.log(1 - probability)).mean()
    return result


def main():
    rng = np.random.RandomState(SEED)  # its stream is frozen across numpy versions
    truth = (rng.uniform(size=(SAMPLES, LABELS)) < rng.choice([0, 0.1, 0.4], size=(SAMPLES, 1))).astype(float)
    scores = np.round(8 * (rng.normal(size=truth.shape) + truth - 1)) / 8
    counts = np.floor(ROWS * rng.uniform(size=LABELS) ** 6)
    assert (truth.sum(axis=1) == 0).any() and (truth.sum(axis=1) > max(KS)).any() and (counts == 0).any()
    cases = [{"propensity_a": a, "propensity_b": b, "figures": figures(truth, scores, counts, a, b)}
             for a, b in ((0.55, 1.5), (0.6, 2.6))]
    golden = {"rows": ROWS, "ks": KS, "counts": counts.astype(int).tolist(), "cases": cases,
              "truth": [np.flatnonzero(row).tolist() for row in truth], "scores": scores.tolist()}
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":")).replace('],', '],\n') + "\n")


if __name__ == "__main__":
    main()
