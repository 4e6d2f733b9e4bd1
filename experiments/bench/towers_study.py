#!/usr/bin/env python3
"""Compares towers of several kinds with one network: what they learn, and the seconds of the longest tower.

    towers_study.py EXPERIMENT.toml one 8x192/128 8x192/128/spread 8x192/128/mixed/2 16x128/64/clustered/1/0.25

Each design is TOWERSxWIDTH/DRAWS[/LABELS[/DIVISIONS[/SHARE[/COMMON]]]]: model.towers, model.hidden, sampling.uniform, model.tower_labels,
model.divisions, model.tower_samples, model.tower_common. "one" is the experiment as it is. With --held-out SHARE a design is judged by training
samples that are held out; choose by these. Each run adds a line to --json FILE; runs that are in it already are not repeated.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys
import tempfile

import measuring

SETTINGS = ("model.tower_labels", "model.divisions", "model.tower_samples", "model.tower_common")
FIGURES = tuple(f"p_at_{k}" for k in measuring.CUTS)


def settings_of(design):
    """The --set arguments of a design."""
    if design == "one":
        return []
    size, draws, *rest = design.split("/")
    towers, width = size.split("x")
    return [f"model.towers={towers}", f"model.hidden=[{width}]", f"sampling.uniform={draws}", *(f"{key}={value}" for key, value in zip(SETTINGS, rest))]


def train(options, design, seed):
    """Trains once. Returns the figures, the seconds of training of all towers, and those of the longest tower, proposals and classifiers included."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        out = pathlib.Path(folder) / "run"
        changed = [f"train.seed={seed}", f"data.validation={options.held_out}", *settings_of(design), *options.set]
        events = measuring.run_json_lines([options.modelet, "train", options.experiment, "--json", "--out", out, *(word for key in changed for word in ("--set", key))])
        shutil.rmtree(out)
    finished = events[-1]
    judged = finished.get("validation", finished)
    towers = [event["train_seconds"] for event in events if event["event"] == "tower_finished"] or [finished["train_seconds"]]
    return {"design": design, "seed": seed, "held_out": options.held_out, **{key: judged[key] for key in FIGURES}, "test": {key: finished[key] for key in FIGURES},
            "seconds": finished["train_seconds"], "longest_tower": max(towers), "peak_bytes": finished["peak_rss_bytes"]}


def table(rows, designs):
    print("| design | P@1 | P@3 | P@5 | all towers, s | longest tower, s | peak, MiB |\n|---|---|---|---|---|---|---|")
    for design in designs:
        own = [row for row in rows if row["design"] == design]
        mean = lambda key: statistics.mean(row[key] for row in own)
        middle = lambda key: statistics.median(row[key] for row in own)
        figures = " | ".join(f"{100 * mean(key):.2f}" for key in FIGURES)
        print(f"| {design} | {figures} | {middle('seconds'):.1f} | {middle('longest_tower'):.1f} | {middle('peak_bytes') / 2**20:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=pathlib.Path)
    parser.add_argument("designs", nargs="+")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--held-out", type=float, default=0.1, help="share of the training samples; 0: the test data judges")
    parser.add_argument("--set", action="append", default=[], help="further keys of the experiment")
    parser.add_argument("--json", type=pathlib.Path, help="file of the results, a line a run")
    parser.add_argument("--folder", type=pathlib.Path, help="for runs, which are removed (default: the system's)")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.json.read_text().splitlines()] if options.json and options.json.exists() else []
    rows = [row for row in rows if row["held_out"] == options.held_out]
    for design in options.designs:
        for seed in map(int, options.seeds.split(",")):
            if any((row["design"], row["seed"]) == (design, seed) for row in rows):
                continue
            rows.append(train(options, design, seed))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if options.json:
                with options.json.open("a") as file:
                    print(json.dumps(rows[-1]), file=file)
    table(rows, options.designs)


if __name__ == "__main__":
    main()
