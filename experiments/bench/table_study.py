#!/usr/bin/env python3
"""What `modelet train TABLE --target COLUMN` reaches beside logistic regression and boosted trees of scikit-learn.

    experiments/bench/table_study.py --modelet build/release/bin/modelet --bundled wine --bundled digits
    experiments/bench/table_study.py --modelet build/release/bin/modelet graph.csv --target fraud --set columns.part=ignore

A quarter of the records, drawn by --seed, is test data. `--bundled` are sets that come with scikit-learn: iris, wine, breast_cancer, digits,
diabetes (in three classes of equal size). `--held-out` divides the training records again, for choosing settings. The peers get numbers
standardised (logistic regression) or as they are (trees), missing ones as the median with an indicator, and values of categories that are
there twice as 0 and 1 (regression) or as ordinals (trees); columns named by --words are split at white space and weighted by tf-idf
(regression), or left out (trees). One line of JSON for each system: P@1 and, with two classes, the ROC AUC, in percent. Needs scikit-learn,
pandas.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler


def bundled(name):
    data = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = data.frame.copy()
    classes = pd.qcut(frame.pop("target"), 3, labels=["low", "middle", "high"]) if name == "diabetes" else [f"class {value}" for value in frame.pop("target")]
    frame["kind"] = np.asarray(classes, str)
    return frame


def divided(frame, seed):
    order = np.random.RandomState(seed).permutation(len(frame))
    tests = len(frame) // 4
    return frame.iloc[order[tests:]], frame.iloc[order[:tests]]


def peers(train, target, words):
    numbers = [c for c in train if c != target and pd.api.types.is_numeric_dtype(train[c])]
    categories = [c for c in train if c != target and c not in numbers and c not in words]
    yield "logistic regression", make_pipeline(
        ColumnTransformer([("numbers", make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), numbers),
                           ("categories", OneHotEncoder(handle_unknown="ignore", min_frequency=2), categories),
                           *((c, TfidfVectorizer(token_pattern=r"[^\s|]+"), c) for c in words)]), LogisticRegression(max_iter=300))
    if train[target].nunique() > 110:  # a tree for each class and round
        return
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, min_frequency=2, max_categories=250)
    yield "boosted trees", make_pipeline(
        ColumnTransformer([("numbers", "passthrough", numbers), ("categories", encoder, categories)]),
        HistGradientBoostingClassifier(categorical_features=list(range(len(numbers), len(numbers) + len(categories))) or None, random_state=0))


def figures(truth, best, classes, of_second):
    found = {"p_at_1": 100 * float(np.mean(best == truth))}
    if len(classes) == 2:
        found["auc"] = 100 * float(roc_auc_score(truth == classes[1], of_second))
    return found


def of_modelet(program, train, test, target, settings):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part, frame in (("train", train), ("test", test)):
            frame.to_csv(folder / f"{part}.csv", index=False)
        command = [program, "train", folder / "train.csv", folder / "test.csv", "--target", target, "--json", "--out", folder / "run"]
        done = subprocess.run([*command, *(word for key in settings for word in ("--set", key))], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        answered = subprocess.run([program, "predict", folder / "run", folder / "test.csv", "--k", "2", "--json"], capture_output=True, text=True, check=True)
    rows = [[(label["name"], label["score"]) for label in json.loads(line)["labels"]] for line in answered.stdout.splitlines() if '"labels"' in line]
    classes = sorted(train[target].unique())
    margins = [dict(row).get(classes[-1], 0) - dict(row).get(classes[0], 0) for row in rows]
    return figures(test[target].to_numpy(), np.array([row[0][0] for row in rows], object), classes, margins)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="*", type=pathlib.Path)
    parser.add_argument("--target")
    parser.add_argument("--words", action="append", default=[], help="a column of words")
    parser.add_argument("--bundled", action="append", default=[], choices=("iris", "wine", "breast_cancer", "digits", "diabetes"))
    parser.add_argument("--modelet", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="a key for the training of Modelet")
    arguments = parser.parse_args()
    tables = [(name, bundled(name), "kind") for name in arguments.bundled]
    tables += [(path.stem, pd.read_csv(path), arguments.target) for path in arguments.table]
    for name, frame, target in tables:
        frame = frame.dropna(subset=[target]).astype({target: str})
        train, test = divided(frame, arguments.seed)
        if arguments.held_out:
            train, test = divided(train, arguments.seed)
        shape = {"table": name, "train": len(train), "test": len(test), "classes": int(frame[target].nunique())}
        began = time.monotonic()
        found = of_modelet(arguments.modelet, train, test, target, arguments.set)
        print(json.dumps({**shape, "system": "modelet", **found, "seconds": time.monotonic() - began}), flush=True)
        for system, model in peers(train, target, arguments.words):
            inputs = [part.drop(columns=[target]).fillna({c: "" for c in train if not pd.api.types.is_numeric_dtype(train[c])}) for part in (train, test)]
            began = time.monotonic()
            model.fit(inputs[0], train[target])
            chances = model.predict_proba(inputs[1])
            found = figures(test[target].to_numpy(), model.classes_[chances.argmax(1)], model.classes_, chances[:, -1])
            print(json.dumps({**shape, "system": system, **found, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
