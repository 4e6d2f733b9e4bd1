#!/usr/bin/python3
"""Prints the results of a run: precision, speed, bytes compared with a dense all-reduce, and what the model says about real inputs.

    experiments/report.py RUN_FOLDER     a folder that `modelet train` wrote

Needs only Python 3.11.
"""

import argparse
import gzip
import json
import lzma
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
BYTES_PER_PARAMETER = 4  # fp32
LABELS_SHOWN = 5
FEWEST_TRUE_LABELS = 3  # of an input that is shown; many packages need only libc6, which says little


def open_text(path):
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(pathlib.Path(path).suffix, open)
    return opener(path, "rt", encoding="utf-8")


def bytes_text(count):
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            break
        count /= 1024
    else:
        unit = "GiB"
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def read_events(run):
    """Returns the last "started" and "finished" events in the log of the run."""
    try:
        events = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        sys.exit(f"report.py: {error.filename}: {error.strerror}; is {run} the folder of a run?")
    except ValueError as error:
        sys.exit(f"report.py: {run / 'log.jsonl'}: not JSON Lines ({error})")
    last = {event.get("event"): place for place, event in enumerate(events)}
    if "started" not in last or last.get("finished", -1) < last["started"]:
        sys.exit(f"report.py: {run} has not finished; continue it with: modelet train ... --resume {run}")
    return events[last["started"]], events[last["finished"]]


def print_numbers(started, finished):
    print(f"{started['parameters']:,} parameters, {started['features']:,} features, {started['labels']:,} labels, "
          f"{started['train_rows']:,} training samples; {started['nodes']} node(s) x {started['threads']} thread(s)\n")
    for k in (1, 3, 5):
        print(f"P@{k}                    {100 * finished[f'p_at_{k}']:.1f} %")
    if "best_step" in finished:
        held_out = finished["validation"]
        shown = "  ".join(f"{100 * held_out[f'p_at_{k}']:.1f}" for k in (1, 3, 5))
        print(f"held-out P@1, 3, 5     {shown} %, best of the run, at step {finished['best_step']:,}")
    for name, title in (("ndcg", "nDCG"), ("psp", "PSP"), ("recall", "recall")):
        values = [finished.get(f"{name}_at_{k}") for k in (1, 3, 5)]
        if None not in values:  # the log of an older version
            print(f"{title + '@1, 3, 5':<23}{'  '.join(f'{100 * value:.1f}' for value in values)} %")
    if finished.get("auc") is not None:
        print(f"AUC, log-loss          {finished['auc']:.4f}  {finished['log_loss']:.4f}")
    rate = finished["samples_per_second"]  # 0: the run was resumed at its end, and had nothing to train
    print(f"training               {finished['train_seconds']:.1f} s, {finished['steps']:,} steps"
          + (f", {rate:,.0f} samples/s" if rate > 0 else ""))
    if started["nodes"] > 1:
        sent = finished["bytes_sent_per_node_per_step"]
        dense = 2 * (started["nodes"] - 1) / started["nodes"] * started["parameters"] * BYTES_PER_PARAMETER
        print(f"sent per node and step {bytes_text(sent)}\n"
              f"a dense all-reduce     {bytes_text(dense)} (ring, all gradients in fp32; computed): "
              f"{dense / max(sent, 1):,.0f} times as much")
    print(f"memory                 {bytes_text(finished['peak_rss_bytes'])} at the peak of the largest process")
    print(f"checkpoint             {os.path.relpath(finished['checkpoint'])}")


def choose_inputs(data, count):
    """Returns [(row, true label ids)] of the first `count` test samples that have at least FEWEST_TRUE_LABELS labels (XMC text)."""
    chosen = []
    with open_text(data) as lines:
        next(lines)  # the header
        for row, line in enumerate(lines):
            if len(chosen) == count:
                break
            labels = sorted({int(label) for label in line.partition(" ")[0].split(",") if label.strip()})
            if len(labels) >= FEWEST_TRUE_LABELS:
                chosen.append((row, labels))
    return chosen


def print_predictions(modelet, run, count):
    with open(run / "experiment.toml", "rb") as file:
        data = tomllib.load(file)["data"]
    if not data.get("labels") or data["test"].endswith(".mlt"):
        return  # without names there is nothing to read, and a prepared file is not text
    inputs = choose_inputs(data["test"], count)
    if not inputs:
        return
    with open_text(data["labels"]) as file:
        names = file.read().splitlines()
    command = [modelet, "predict", run, data["test"], "--labels", data["labels"], "--k", LABELS_SHOWN,
               "--limit", inputs[-1][0] + 1, "--json"]
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        sys.exit(f"report.py: {modelet}: {error.strerror}; build it (cmake --preset release && cmake --build --preset release), "
                 "or say where it is: --modelet PATH")
    if done.returncode:
        sys.exit(f"report.py: failed with exit code {done.returncode}: {' '.join(map(str, command))}")
    predicted = [json.loads(line)["labels"] for line in done.stdout.splitlines()]
    print(f"\nThe first {len(inputs)} test samples with {FEWEST_TRUE_LABELS} labels or more (* = a true label):")
    for row, truth in inputs:
        shown = "  ".join(("*" if entry["label"] in truth else "") + entry["name"] for entry in predicted[row])
        print(f"\nsample {row}\n  true       {'  '.join(names[label] for label in truth)}\n  predicted  {shown}")


def default_modelet():
    built = ROOT / "build/release/bin/modelet"
    return built if built.exists() else pathlib.Path(shutil.which("modelet") or built)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, metavar="RUN_FOLDER")
    parser.add_argument("--modelet", type=pathlib.Path, default=default_modelet(),
                        help="the program (default: that of build/release, else the installed one)")
    parser.add_argument("--samples", type=int, default=3, help="inputs to show predictions for (default: 3)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `report.py RUN | head` ends quietly
    started, finished = read_events(arguments.run)
    print_numbers(started, finished)
    print_predictions(arguments.modelet, arguments.run, arguments.samples)


if __name__ == "__main__":
    main()
