#!/usr/bin/env python3
"""ROC AUC of Modelet on node classification with ten given splits, as the mean of the splits.

    experiments/bench/graph_study.py minesweeper.npz --modelet build/release/bin/modelet --set columns.neighbours=ignore --set train.epochs=40 --set train.learning_rate=0.001

The file has node_features, node_labels, edges, and train_masks, val_masks, test_masks with a row for each split (Platonov et al., ICLR
2023). Each split trains on its training nodes; features of all nodes are known. `--part val` is for choosing settings. Needs numpy.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np


def write_table(path, names, rows):
    with open(path, "w", encoding="ascii") as file:
        csv.writer(file, lineterminator="\n").writerows([names, *rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--modelet", type=pathlib.Path, required=True)
    parser.add_argument("--part", choices=("val", "test"), default="test")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], help="a key for the training")
    arguments = parser.parse_args()
    data = np.load(arguments.data)
    features, labels = data["node_features"], data["node_labels"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_table(folder / "nodes.csv", ["id", *(f"f{i}" for i in range(features.shape[1])), "y"],
                    ([f"n{i}", *(f"{value:g}" for value in features[i]), labels[i]] for i in range(len(labels))))
        write_table(folder / "edges.csv", ["a", "b"], ([f"n{a}", f"n{b}"] for a, b in data["edges"]))
        subprocess.run([arguments.modelet, "data", "graph", folder / "nodes.csv", folder / "graph.csv", "--edges", folder / "edges.csv", "--target", "y"],
                       check=True, stdout=subprocess.DEVNULL)
        with open(folder / "graph.csv", encoding="ascii", newline="") as file:
            names, *rows = csv.reader(file)
        areas = []
        for split in range(arguments.splits):
            for part in ("train", arguments.part):
                mask = data[f"{part}_masks"][split]
                write_table(folder / f"{part}.csv", names, (row for row, here in zip(rows, mask) if here))
            settings = ["columns.id=ignore", "columns.y=label", "train.threads=1", *arguments.set]
            done = subprocess.run([arguments.modelet, "train", folder / "train.csv", folder / f"{arguments.part}.csv", "--trial-share", "0", "--json",
                                   "--out", folder / f"run-{split}", *(word for key in settings for word in ("--set", key))],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            areas.append(json.loads(done.stdout.splitlines()[-1])["auc"])
            print(json.dumps({"event": "split", "split": split, "auc": areas[-1]}), flush=True)
    print(json.dumps({"event": "tested", "data": arguments.data.stem, "part": arguments.part, "splits": len(areas), "auc": float(np.mean(areas)),
                      "deviation": float(np.std(areas))}))


if __name__ == "__main__":
    main()
