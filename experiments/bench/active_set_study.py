#!/usr/bin/env python3
"""What each way of choosing the active set learns, and how fast: P@k against training seconds.

Trains one experiment in every mode at the same share of active neurons, and draws the curves as SVG. The contestants
run in turn, an epoch's evaluation does not count as training. docs/studies/active-set.md reads the figures.

    modelet data synth DATA --preset confusable
    experiments/bench/active_set_study.py DATA --name confusable --sparsity 0.1
"""

import argparse
import json
import math
import pathlib
import sys

import measuring

COLOURS = ["#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#e58e26", "#444444", "#17a2a2", "#a67c52"]
LSH = ["sampling.mode=lsh"]
CONTESTANTS = {
    "full": ["sampling.mode=full"],
    "uniform": ["sampling.mode=uniform"],
    "uniform, logq": ["sampling.mode=uniform", "sampling.logq=true"],
    "lsh (dwta)": LSH,
    "lsh (dwta), logq": LSH + ["sampling.logq=true"],
    "lsh (simhash), logq": LSH + ["sampling.logq=true", "sampling.family=simhash"],
    "lsh (minhash), logq": LSH + ["sampling.logq=true", "sampling.family=minhash"],
    "lsh_per_sample, logq": ["sampling.mode=lsh_per_sample", "sampling.logq=true"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder with train.mlt and test.mlt, or train.txt.xz and test.txt.xz")
    parser.add_argument("--name", required=True, help="of the data set, for titles and file names")
    parser.add_argument("--sparsity", type=float, required=True, help="share of active neurons, in every mode but full")
    parser.add_argument("--only", action="append", choices=list(CONTESTANTS), help="these contestants (repeatable)")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--out", type=pathlib.Path, default=measuring.ROOT / "docs/studies")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def data_file(folder, part):
    for name in (f"{part}.mlt", f"{part}.txt.xz", f"{part}.txt"):
        if (folder / name).is_file():
            return folder / name
    sys.exit(f"{folder} has no {part}.mlt, {part}.txt.xz or {part}.txt")


def svg(title, y_title, curves):
    """curves: name -> [(seconds, value)]. The time axis is logarithmic: full softmax takes many times as long."""
    width, height, left, right, top, bottom = 760, 420, 60, 210, 40, 50
    points = [point for curve in curves.values() for point in curve]
    low_x, high_x = math.log10(min(p[0] for p in points)), math.log10(max(p[0] for p in points))
    low_y, high_y = min(p[1] for p in points), max(p[1] for p in points)
    span_x, span_y = max(high_x - low_x, 1e-9), max(high_y - low_y, 1e-9)
    x = lambda seconds: left + (math.log10(seconds) - low_x) / span_x * (width - left - right)
    y = lambda value: height - bottom - (value - low_y) / span_y * (height - top - bottom)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="22" font-size="15">{title}</text>']
    for i in range(6):
        value = low_y + span_y * i / 5
        lines += [f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>',
                  f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{100 * value:.1f}</text>']
    for i in range(5):
        seconds = 10 ** (low_x + span_x * i / 4)
        lines.append(f'<text x="{x(seconds):.1f}" y="{height - bottom + 18}" text-anchor="middle">{seconds:.3g}</text>')
    lines += [f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">training seconds</text>',
              f'<text x="16" y="{height / 2}" transform="rotate(-90 16 {height / 2})" text-anchor="middle">{y_title}, %</text>']
    for i, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x(seconds):.1f},{y(value):.1f}" for seconds, value in curve)
        lines += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
        lines += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="2.5" fill="{colour}"/>' for s, v in curve]
        lines += [f'<rect x="{width - right + 16}" y="{top + 20 * i}" width="12" height="12" fill="{colour}"/>',
                  f'<text x="{width - right + 34}" y="{top + 20 * i + 10}">{name}</text>']
    return "\n".join(lines + ["</svg>", ""])


def main():
    arguments = parse_arguments()
    experiment = {"data.train": data_file(arguments.data, "train"), "data.test": data_file(arguments.data, "test")}
    common = [f"{key}={value}" for key, value in experiment.items()]
    common += [f"sampling.sparsity={arguments.sparsity}", "train.keep_checkpoints=1", *arguments.set]
    results = {}
    print("| active set | P@1 | P@5 | seconds | samples/s |\n|---|---|---|---|---|")
    empty = arguments.out / "study.toml"
    arguments.out.mkdir(parents=True, exist_ok=True)
    empty.write_text('[data]\ntrain = "-"\ntest = "-"\n')
    try:
        for name in arguments.only or CONTESTANTS:
            events = measuring.train(arguments.modelet, empty, 1, common + CONTESTANTS[name])
            results[name] = [event for event in events if event["event"] == "epoch"]
            last = results[name][-1]
            print(f"| {name} | {100 * last['p_at_1']:.2f} | {100 * last['p_at_5']:.2f} | {last['train_seconds']:.1f} | "
                  f"{last['samples_per_second']:,.0f} |", flush=True)
    finally:
        empty.unlink()
    for key, title in (("p_at_1", "P@1"), ("p_at_5", "P@5")):
        curves = {name: [(epoch["train_seconds"], epoch[key]) for epoch in epochs] for name, epochs in results.items()}
        path = arguments.out / f"active-set-{arguments.name}-{key.replace('_', '-')}.svg"
        path.write_text(svg(f"{arguments.name}: {title}, {100 * arguments.sparsity:g} % of the neurons active", title, curves))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
