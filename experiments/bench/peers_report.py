"""Tables, plots and bounds of against_peers.py, from its results.

Results are {"machine": {...}, "notes": [...], "records": [...]}; a record is a run of a contestant on a set:
    set, contestant, title, repeat, threads, at, others_share (of the machine, used by others meanwhile), wall_seconds, fingerprint
    and either error, the reason why it failed, or
    points              of P@k, in the order of seconds: train_seconds, predict_seconds, p_at_1, p_at_3, p_at_5
    peak_rss_bytes, model_bytes, system
"""

import statistics

import measuring
import svg_plot

PLOTTED = (1, 5)  # k
COLOURS = {"modelet": "#dd6b20", "modelet-budgets": "#f0b27a", "modelet-recipe": "#c0392b", "modelet-fast": "#d4a017", "parabel": "#2471a3", "bonsai": "#1e8449", "pecos": "#6c3483",
           "napkinxc": "#17a589", "pytorch": "#7d8a97", "pytorch-fast": "#212f3d", "fasttext": "#9a7d0a"}
# Modelet must reach at least what each label tree reaches with default settings. The usual first choice is Parabel: at most twice its time,
# and half a point more with a recipe.
TREES = ("parabel", "bonsai", "pecos", "napkinxc")
REFERENCE, MOST_TIMES, RECIPE_LEAD, RECIPE_CUTS, RECIPE_SETS = "parabel", 2.0, 0.005, (1, 5), ("debian-deps", "npm-deps")


def by_contestant(results, data_set):
    """Returns contestant -> its records of a set that have a result, in the order of COLOURS."""
    found = {}
    for record in results["records"]:
        if record["set"] == data_set and "points" in record:
            found.setdefault(record["contestant"], []).append(record)
    return {name: found[name] for name in COLOURS if name in found}


def median_points(records):
    """The median of each figure over runs with the same number of points."""
    return [{name: statistics.median(point[name] for point in points) for name in points[0]} for points in zip(*(record["points"] for record in records))]


def best_point(records):
    """The point with the highest P@1, with its other figures."""
    return max(median_points(records), key=lambda point: point["p_at_1"])


def sets(results):
    return list(dict.fromkeys(record["set"] for record in results["records"]))


def table(results, data_set):
    """The lines of a Markdown table. If a contestant has several points, the one with the best P@1 is shown."""
    lines = ["| " + " | ".join([data_set, *(f"P@{cut}" for cut in measuring.CUTS), "training", "prediction", "memory", "model"]) + " |", "|---" * (len(measuring.CUTS) + 5) + "|"]
    for records in by_contestant(results, data_set).values():
        point = best_point(records)
        memory, model = (statistics.median(record[name] for record in records) for name in ("peak_rss_bytes", "model_bytes"))
        cells = [records[0]["title"], *(f"{100 * point[f'p_at_{cut}']:.1f}" for cut in measuring.CUTS), f"{point['train_seconds']:.1f} s",
                 f"{point['predict_seconds']:.1f} s", f"{memory / 1e6:,.0f} MB", f"{model / 1e6:,.0f} MB"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def plot(results, data_set, cut):
    """SVG of P@cut against seconds of training."""
    found = by_contestant(results, data_set)
    curves = {records[0]["title"]: [(point["train_seconds"], point[f"p_at_{cut}"]) for point in median_points(records)] for records in found.values()}
    colours = {records[0]["title"]: COLOURS[name] for name, records in found.items()}
    threads = next(iter(found.values()))[0]["threads"]
    return svg_plot.render(f"{data_set}, {threads} threads", "seconds of training", f"P@{cut}", curves, colours=colours)


def bounds(results):
    """Returns [(what, figure, its limit, whether it is kept)] for every set on which both sides have a result."""
    found = []
    for data_set in sets(results):
        records = by_contestant(results, data_set)
        if "modelet" in records:
            point = best_point(records["modelet"])
            for tree in (tree for tree in TREES if tree in records):
                for cut in measuring.CUTS:
                    found.append(_at_least(f"{data_set}: P@{cut} of two paths against {tree}", point, best_point(records[tree]), cut, 0))
        if REFERENCE not in records:
            continue
        reference = best_point(records[REFERENCE])
        if "modelet" in records:
            times = point["train_seconds"] / reference["train_seconds"]
            found.append((f"{data_set}: two paths take so many times the seconds of {records[REFERENCE][0]['title']}", times, MOST_TIMES, times <= MOST_TIMES))
        if "modelet-recipe" in records and data_set in RECIPE_SETS:
            point = best_point(records["modelet-recipe"])
            for cut in RECIPE_CUTS:
                found.append(_at_least(f"{data_set}: P@{cut} of the recipe", point, reference, cut, RECIPE_LEAD))
    return found


def _at_least(what, point, reference, cut, lead):
    least = reference[f"p_at_{cut}"] + lead
    return what, point[f"p_at_{cut}"], least, point[f"p_at_{cut}"] >= least


def remarks(results):
    """What a reader must know before quoting: failures and a busy machine."""
    lines = [f"{record['title']} on {record['set']} failed: {record['error']}" for record in results["records"] if "error" in record]
    shares = [record["others_share"] for record in results["records"] if "points" in record]
    if shares and max(shares) > measuring.BUSY_SHARE:
        lines.append(f"The machine was not quiet: in {sum(share > measuring.BUSY_SHARE for share in shares)} of {len(shares)} runs other processes used more than "
                     f"{measuring.BUSY_SHARE:.0%} of it, at most {max(shares):.0%}. P@k stands; do not quote the seconds.")
    return lines + results.get("notes", [])


def text(results):
    lines = []
    for data_set in sets(results):
        if by_contestant(results, data_set):
            lines += [*table(results, data_set), ""]
    lines += [f"{figure:8.4f} {what}: {'reached' if reached else 'MISSED'} (bound {bound:.4f})" for what, figure, bound, reached in bounds(results)]
    return "\n".join(lines + remarks(results))


def write_plots(results, folder):
    """SET-p1.svg and SET-p5.svg; returns their paths."""
    files = {folder / f"{data_set}-p{cut}.svg": plot(results, data_set, cut)
             for data_set in sets(results) if by_contestant(results, data_set) for cut in PLOTTED}
    for file, drawn in files.items():
        file.write_text(drawn + "\n", encoding="utf-8")
    return list(files)
