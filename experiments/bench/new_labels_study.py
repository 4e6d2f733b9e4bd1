#!/usr/bin/env python3
"""New labels of a trained model (modelet labels add): how well they are found at once, after the fit of their neurons alone, and
after a training with all labels.

    new_labels_study.py TRAIN.txt.xz TEST.txt.xz --share 0.1

A share of the labels, drawn by the seed, is taken out of the training data (XMC text). One model is trained without them, one with
all. Figures are of those test samples that have such a label, with all their labels, and of the others. Runs stay in --folder, and
are not repeated.

Then the model of all labels is corrected (modelet learn) with samples of the first half of the test data whose best answer is wrong;
figures are of these, and of the second half.
"""

import argparse
import json
import lzma
import pathlib
import random
import shutil
import subprocess

import measuring

CUTS = measuring.CUTS


def run(*command):
    """Runs a program, whose errors are shown, and returns its last line, which is JSON."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def read(path):
    """(features, labels, [(labels of a sample, rest of its line)])"""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt") as file:
        _rows, features, labels = map(int, file.readline().split())
        samples = []
        for line in file:
            own, _, rest = line.rstrip("\n").partition(" ")
            samples.append(([int(label) for label in own.split(",")] if own else [], rest))
    return features, labels, samples


def write(path, features, labels, samples):
    with open(path, "w") as file:
        print(len(samples), features, labels, file=file)
        for own, rest in samples:
            print(",".join(map(str, sorted(own))), rest, file=file)


def make_files(options):
    """Labels that are taken out get the last numbers."""
    features, labels, train = read(options.train)
    _, _, test = read(options.test)
    order = list(range(labels))
    random.Random(options.seed).shuffle(order)
    known = labels - round(options.share * labels)
    number = {label: place for place, label in enumerate(order)}
    renumbered = lambda samples: [([number[label] for label in own], rest) for own, rest in samples]
    only = lambda samples, keep: [([label for label in own if keep(label)], rest) for own, rest in samples]
    is_new, is_known = lambda label: label >= known, lambda label: label < known
    train, test = renumbered(train), renumbered(test)
    has_new = lambda sample: any(map(is_new, sample[0]))
    folder = options.folder
    write(folder / "all.txt", features, labels, train)
    write(folder / "known.txt", features, known, only(train, is_known))
    write(folder / "new.txt", features, labels, only(filter(has_new, train), is_new))
    write(folder / "test-all.txt", features, labels, test)
    write(folder / "test-known.txt", features, known, only(test, is_known))
    write(folder / "test-of-new.txt", features, labels, list(filter(has_new, test)))
    write(folder / "test-of-others.txt", features, labels, [sample for sample in test if not has_new(sample)])
    write(folder / "test-of-others-before.txt", features, known, [sample for sample in test if not has_new(sample)])
    return known, labels


def figures(options, model, file):
    evaluated = run(options.modelet, "eval", model, options.folder / file, "--json")
    return [100 * evaluated[f"p_at_{k}"] for k in CUTS]


def copied(options, model, name):
    copy = options.folder / name
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(model, copy)


def correct(options, model):
    """Learns from wrong answers, and returns rows of a table: their P@k, and those of samples that were not given."""
    features, labels, test = read(options.folder / "test-all.txt")
    half = len(test) // 2
    write(options.folder / "first-half.txt", features, labels, test[:half])
    write(options.folder / "second-half.txt", features, labels, test[half:])
    answers = subprocess.run([str(options.modelet), "predict", str(model), str(options.folder / "first-half.txt"), "--k", "1"], stdout=subprocess.PIPE, text=True,
                             check=True).stdout.splitlines()
    wrong = [sample for sample, answer in zip(test, answers) if sample[0] and int(answer.rpartition(":")[0]) not in sample[0]]
    write(options.folder / "wrong.txt", features, labels, wrong[:options.corrections])
    corrected = copied(options, model, "corrected")
    before = [figures(options, model, file) for file in ("wrong.txt", "second-half.txt")]
    run(options.modelet, "learn", corrected, options.folder / "wrong.txt", "--json")
    after = [figures(options, corrected, file) for file in ("wrong.txt", "second-half.txt")]
    return [("before", *before), ("after", *after)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("test", type=pathlib.Path)
    parser.add_argument("--share", type=float, default=0.1, help="of the labels that are taken out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--corrections", type=int, default=200, help="samples with a wrong answer from which a model learns")
    parser.add_argument("--set", action="append", default=[], help="keys of the experiments")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for files and runs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    known, labels = make_files(options)
    settings = [word for key in options.set for word in ("--set", key)]
    runs = {name: options.folder / name for name in ("known", "all")}
    for name, model in runs.items():
        if not model.exists():
            run(options.modelet, "train", options.folder / f"{name}.txt", options.folder / f"test-{name}.txt", "--json", "--out", model, *settings)
    rows = [("without them", None, figures(options, runs["known"], "test-of-others-before.txt"))]
    for name, arguments in (("at once", ["--no-fit"]), ("after the fit", [])):
        model = copied(options, runs["known"], name.replace(" ", "-"))
        run(options.modelet, "labels", "add", model, options.folder / "new.txt", "--json", *arguments)
        rows.append((name, figures(options, model, "test-of-new.txt"), figures(options, model, "test-of-others.txt")))
    rows.append(("training with all labels", figures(options, runs["all"], "test-of-new.txt"), figures(options, runs["all"], "test-of-others.txt")))
    print(f"{labels - known} of {labels} labels are new\n")
    print("| | samples with a new label: P@1 | P@3 | P@5 | others: P@1 | P@3 | P@5 |\n|---|---|---|---|---|---|---|")
    show = lambda values: " | ".join(f"{value:.2f}" for value in values) if values else " | | "
    for name, of_new, of_others in rows:
        print(f"| {name} | {show(of_new)} | {show(of_others)} |")
    print("\n| | corrected samples: P@1 | P@3 | P@5 | other samples: P@1 | P@3 | P@5 |\n|---|---|---|---|---|---|---|")
    for name, of_given, of_others in correct(options, runs["all"]):
        print(f"| {name} | {show(of_given)} | {show(of_others)} |")


if __name__ == "__main__":
    main()
