#!/usr/bin/env python3
"""Draws recorded results as bar charts: NAME.svg from each NAME.json in this folder. Standard library only.

    draw.py            writes the charts
    draw.py --check    exit code 1 if one is not what its results give (tests/docs)

A file of results says what was run (command, date, machine, data), what limits it (caveat), and holds groups of bars:
name, value in `unit`, and the system, which decides the colour. `mark` draws a line at a value.
"""
import html
import json
import math
import pathlib
import sys

WIDTH, LEFT, RIGHT, TOP, ROW = 880, 250, 90, 70, 26
COLOURS = {"Modelet": "#dd6b20", "by hand": "#2f855a", "DDP": "#718096", "Horovod": "#2b6cb0", "prediction": "#f6c192"}
FONT = 'font-family="Helvetica, Arial, sans-serif"'


def text(x, y, words, anchor="start", size=13, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#1f2933" stroke="#ffffff" stroke-width="3" paint-order="stroke"{extra}>{html.escape(words)}</text>'


def ticks(low, high, log):
    if log:
        return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return [0.5 * i for i in range(int(high / 0.5) + 1)]


def render(results):
    log = results["scale"] == "log"
    values = [bar["value"] for group in results["groups"] for bar in group["bars"]]
    low, high = (10.0 ** math.floor(math.log10(min(values))), max(values) * 1.2) if log else (0, max(values) * 1.1)

    def across(value):
        share = math.log(value / low) / math.log(high / low) if log else value / high
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    rows = len(values) + 1.5 * len(results["groups"])
    bottom = TOP + rows * ROW
    parts = [text(20, 28, results["title"], size=16, extra=' font-weight="bold"'), text(20, 50, results["axis"], size=12)]
    for tick in ticks(low, high, log):
        parts += [f'<line x1="{across(tick):.1f}" y1="{TOP}" x2="{across(tick):.1f}" y2="{bottom:.1f}" stroke="#e4e7eb"/>',
                  text(across(tick), bottom + 18, f"{tick:g}", "middle", 12)]
    labels, y = [], TOP  # labels go on top of everything
    for group in results["groups"]:
        parts.append(text(20, y + ROW - 5, group["name"], extra=' font-weight="bold"'))
        y += ROW
        for bar in group["bars"]:
            end = across(bar["value"])
            parts.append(f'<rect x="{LEFT}" y="{y + 4:.1f}" width="{end - LEFT:.1f}" height="{ROW - 8}" fill="{COLOURS[bar["system"]]}"/>')
            labels += [text(LEFT - 10, y + 17, bar["name"], "end"),
                       text(end + 6, y + 17, f'{bar["value"]:g} {results["unit"]}' if results["unit"] != "x" else f'{bar["value"]:.2f}x')]
            y += ROW
        y += ROW / 2
    if "mark" in results:
        x = across(results["mark"])
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#1f2933" stroke-dasharray="5 4"/>')
    height = bottom + 34
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" {FONT} role="img">\n'
            f'<title>{html.escape(results["title"])}</title>\n<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>')
    return "\n".join([head, *parts, *labels, "</svg>"]) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    stale = False
    for path in sorted(pathlib.Path(__file__).resolve().parent.glob("*.json")):
        chart, drawn = path.with_suffix(".svg"), render(json.loads(path.read_text(encoding="utf-8")))
        if not sys.argv[1:]:
            chart.write_text(drawn, encoding="utf-8")
        elif not chart.exists() or chart.read_text(encoding="utf-8") != drawn:
            print(f"docs/results/{chart.name} is not what {path.name} gives: run docs/results/draw.py")
            stale = True
    sys.exit(stale)


if __name__ == "__main__":
    main()
