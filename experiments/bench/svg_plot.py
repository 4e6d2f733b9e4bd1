"""Draws line charts as SVG with only the standard library: enough for P@1 against seconds, or seconds against nodes."""

import html
import math
import pathlib

PLOT_WIDTH, HEIGHT = 660, 440
LEFT, TOP, BOTTOM = 60, 40, 50
SAMPLE, CHARACTER = 28, 7.5  # pixels: a line of the legend, which is on the right; a character of it, at most on average
MOST_PLACES = 7
DASHES = ["", "9 4", "2 3", "9 3 2 3", "5 2"]  # for curves that share a colour
COLOURS = ["#c0392b", "#2471a3", "#7d8a97", "#1e8449", "#9a7d0a", "#6c3483", "#d35400", "#17a589", "#212f3d"]
STYLE = "font-family:sans-serif;font-size:13px"


def _decades(low, high, few):
    """Powers of ten in [low, high] and, unless `few`, also 2 and 5 times these."""
    steps = [factor * 10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
             for factor in ((1,) if few else (1, 2, 5))]
    return [step for step in steps if low <= step <= high]


def _linear_ticks(low, high):
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    while (high - low) / step > 10:
        step *= 2
    first = math.ceil(low / step)
    return [step * i for i in range(first, math.floor(high / step) + 1)]


def _number(value):
    """The label of a tick, such as 20k or 0.05."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def _styles(names, colours):
    """Returns name -> (colour, dashes). Curves that share a colour differ in their dashes."""
    styles, used = {}, {}
    for index, name in enumerate(names):
        colour = colours[name] if colours else COLOURS[index % len(COLOURS)]
        styles[name] = colour, DASHES[used.get(colour, 0) % len(DASHES)]
        used[colour] = used.get(colour, 0) + 1
    return styles


def render(title, x_label, y_label, curves, lines=(), log_y=False, colours=None):
    """curves: name -> [(x > 0, y), ...], x on a logarithmic axis, y as well if log_y; a curve of one point is a dot. lines: values of y that
    are marked across the chart. colours: name -> colour of each curve, where several charts show the same things."""
    width = math.ceil(LEFT + PLOT_WIDTH + 24 + SAMPLE + CHARACTER * max(map(len, curves)))
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points] + list(lines)
    low_x, high_x = min(xs) / 1.2, max(xs) * 1.2
    if log_y:
        low_y, high_y = min(ys) / 1.5, max(ys) * 1.5
    else:
        margin = 0.05 * (max(ys) - min(ys)) or 0.05
        low_y, high_y = min(ys) - margin, max(ys) + margin

    def place(x, y):
        across = math.log(x / low_x) / math.log(high_x / low_x)
        up = math.log(y / low_y) / math.log(high_y / low_y) if log_y else (y - low_y) / (high_y - low_y)
        return round(LEFT + across * PLOT_WIDTH, 1), round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1)

    def text(x, y, words, anchor="middle", extra=""):
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {extra}>{html.escape(words)}</text>'

    def line(begin, end, colour, dash="", thickness=1):
        return (f'<line x1="{begin[0]}" y1="{begin[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{colour}" '
                f'stroke-width="{thickness}" stroke-dasharray="{dash}"/>')

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" style="{STYLE}">',
             f'<rect width="{width}" height="{HEIGHT}" fill="white"/>', text(LEFT + PLOT_WIDTH / 2, 22, title, extra='font-weight="bold"'),
             text(LEFT + PLOT_WIDTH / 2, HEIGHT - 10, x_label),
             text(16, HEIGHT / 2, y_label, extra=f'transform="rotate(-90 16 {HEIGHT / 2})"')]
    # If all curves have the same few points, such as 1, 2 and 4 nodes, these are the ticks.
    for x in sorted(set(xs)) if len(set(xs)) <= MOST_PLACES else _decades(low_x, high_x, few=high_x / low_x > 500):
        parts += [line(place(x, low_y), place(x, high_y), "#e5e8e8"), text(place(x, low_y)[0], HEIGHT - BOTTOM + 18, _number(x))]
    for y in _decades(low_y, high_y, few=high_y / low_y > 500) if log_y else _linear_ticks(low_y, high_y):
        parts += [line(place(low_x, y), place(high_x, y), "#e5e8e8"), text(LEFT - 6, place(low_x, y)[1] + 4, _number(y), "end")]
    parts += [line(place(low_x, y), place(high_x, y), "#34495e", "6 4") for y in lines]
    styles = _styles(curves, colours)
    for index, (name, points) in enumerate(curves.items()):
        colour, dashes = styles[name]
        path_points = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in (place(*point) for point in points)]
        x, y = LEFT + PLOT_WIDTH + 12, TOP + 12 + 20 * index
        parts += [line((x, y - 4), (x + SAMPLE, y - 4), colour, dashes, 2), text(x + SAMPLE + 6, y, name, "start", f'fill="{colour}"')]
    return "\n".join(parts + ["</svg>"])


def write(path, *arguments, **options):
    """Writes the chart to a file."""
    pathlib.Path(path).write_text(render(*arguments, **options) + "\n", encoding="utf-8")
