#!/usr/bin/python3
"""The report of compare_horovod.py: report.json with every figure, report.html with the comparison, plots, and every part.

    compare_report.py docs/studies/horovod-report.json FOLDER     both files again, from recorded figures

A report is {"short", "machine", "records"}, and may have "notes": lines of text that come first. A record is {"part": its settings,
"title", "result" or "error", "others_share": share of the machine that other processes used meanwhile}.
"""

import html
import json
import statistics
import sys
import pathlib

sys.path[1:1] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in ("cluster", "bench", "simulate")]
import cluster as clusters
import curves
import dense
import measuring
import svg_plot

TARGET = 0.645  # P@1 on debian-deps, as in experiments/bench
HEADLINE = {"data": "amazon", "nodes": 4, "rate": "1gbit", "width": 670_091}
WITH_KEYS = "with keys"  # a mode of Modelet: every connection encrypted and authenticated
COLOURS = {"Modelet": "#dd6b20", "Horovod": "#2b6cb0", "DDP": "#718096", "sharded by hand": "#2f855a"}  # of a system, as in docs/results/draw.py
FULL_SOFTMAX = ("dense", "sparse", "sparse-fp16", "fp16", "sparse-as-dense")


# ---- figures -------------------------------------------------------------------------------------------------------

def mean_bytes(result):
    """Mean bytes that a node sends in a step."""
    return statistics.fmean(result["sent_bytes"])


def wire_seconds(record):
    """The time of a step on infinitely fast hosts: the bytes of the node that sends most at the rate of the link. Both directions work at
    once."""
    return 8 * max(record["result"]["sent_bytes"]) / clusters.BITS_PER_SECOND[record["part"]["rate"]]


def select(report, **settings):
    """The records that have a result and whose parts have these settings."""
    return [record for record in report["records"]
            if "result" in record and all(record["part"].get(name) == value for name, value in settings.items())]


def one(report, **settings):
    found = select(report, **settings)
    return found[0] if found else None


def headline(report):
    """Compares every system with Modelet, fastest first, and the best full softmax of Horovod. None if a part is missing."""
    ours = one(report, system="Modelet", mode=None, **HEADLINE)
    if ours is None:
        return None
    rows = []
    for record in [*select(report, system="Modelet", mode=WITH_KEYS, **HEADLINE),
                   *(found for system in ("Horovod", "DDP", "sharded by hand") for found in select(report, system=system, **HEADLINE))]:
        seconds, wire = record["result"]["seconds_per_step"], wire_seconds(record)
        rows.append({"title": contestant(record["part"]), "part": record["part"],
                     "seconds": seconds, "times": seconds / ours["result"]["seconds_per_step"],
                     "wire_seconds": wire, "wire_times": wire / ours["result"]["seconds_per_step"],
                     "bytes": mean_bytes(record["result"]), "byte_times": mean_bytes(record["result"]) / mean_bytes(ours["result"])})
    rows.sort(key=lambda row: row["seconds"])
    full = [row for row in rows if row["part"]["system"] == "Horovod" and row["part"]["mode"] in FULL_SOFTMAX]
    dense = next((row for row in full if row["part"]["mode"] == "dense"), None)
    return {"modelet": {"seconds": ours["result"]["seconds_per_step"], "bytes": mean_bytes(ours["result"]), "wire_seconds": wire_seconds(ours)},
            "rows": rows, "horovod_fastest": min(full, key=lambda row: row["seconds"], default=None),
            "horovod_least_wire": min(full, key=lambda row: row["wire_seconds"], default=None), "horovod_dense": dense}


def seconds_to(curve, target):
    """The seconds at which a curve [(seconds, P@1), ...] reaches the target, interpolated between two points; None if it never does."""
    before = None
    for seconds, precision in curve:
        if precision >= target:
            return before[0] + (seconds - before[0]) * (target - before[1]) / (precision - before[1]) if before else seconds
        before = (seconds, precision)
    return None


# ---- texts ---------------------------------------------------------------------------------------------------------

def duration(seconds):
    if seconds is None:
        return "-"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def size(count):
    if count is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def mean(values):
    known = [value for value in values or [] if value is not None]
    return statistics.fmean(known) if known else None


def summary(record):
    if "error" in record:
        return f"FAILED: {record['error']}"
    result = record["result"]
    if "limits" in result:
        usual = [curves.statement(limit) for limit in result["limits"] if curves.is_usual(limit)]
        return " ".join(usual)
    if "payload_bits_per_second" in result:
        return f"{result['payload_bits_per_second'] / 1e6:,.0f} Mbit/s of payload"
    shown = [f"{duration(result['seconds_per_step'])} a step, {size(mean_bytes(result))} a node and step"] if "seconds_per_step" in result else []
    shown += [f"P@1 {result['p_at_1']:.4f}"] if result.get("p_at_1") is not None else []
    return ", ".join(shown)


def headline_text(report):
    found = headline(report)
    if not found or not found["horovod_fastest"]:
        return "no headline: Modelet's or Horovod's part is missing or failed"
    fastest, least = found["horovod_fastest"], found["horovod_least_wire"]
    text = f"Modelet {duration(found['modelet']['seconds'])} a step; Horovod's fastest mode, {fastest['title']}, {duration(fastest['seconds'])}: {fastest['times']:,.0f} times; " \
           f"on its wire alone {duration(fastest['wire_seconds'])}: {fastest['wire_times']:,.0f} times"
    if least["title"] != fastest["title"]:
        text += f"; {least['title']}, whose wire is the shortest, {duration(least['wire_seconds'])}: {least['wire_times']:,.0f} times"
    if found["horovod_dense"]:
        text += f"; dense on its wire alone: {found['horovod_dense']['wire_times']:,.0f} times, bytes: {found['horovod_dense']['byte_times']:,.0f} times"
    return text


# ---- HTML ----------------------------------------------------------------------------------------------------------

STYLE = """body{font-family:sans-serif;max-width:62em;margin:2em auto;padding:0 1em;line-height:1.45;color:#212f3d}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .7em;border-bottom:1px solid #d5d8dc;text-align:right}
td:first-child,th:first-child{text-align:left}.failed{color:#c0392b}.note{color:#566573;font-size:90%}svg{max-width:56em;display:block;margin:1.5em 0}"""


def table(heads, rows):
    def row(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
    return "<table>" + row(heads, "th") + "".join(row(cells, "td") for cells in rows) + "</table>"


def paragraph(text, kind="note"):
    return f'<p class="{kind}">{html.escape(text)}</p>'


def plot(title, x_label, y_label, records, points, **options):
    """A plot, or "" if there are no points. points(record) returns points [(x, y), ...] of the curve of its system and mode."""
    curves, colours = {}, {}
    for record in records:
        if found := points(record):
            name = contestant(record["part"])
            curves.setdefault(name, []).extend(found)
            colours[name] = COLOURS[record["part"]["system"]]
    curves = {name: sorted(set(map(tuple, found))) for name, found in curves.items()}
    return svg_plot.render(title, x_label, y_label, curves, colours=colours, **options) if curves else ""


def contestant(part):
    """The name of a contestant: its system and mode."""
    return part["system"] + (f" {part['mode']}" if "mode" in part else "")


def headline_section(report):
    parts = ["<h2>The headline: 4 nodes, 1 Gbit/s, Amazon-670K's shape</h2>",
             paragraph("670,091 labels, 135,909 features, hidden width 128, global batch 256, one thread a node. \"On dedicated hosts\": its bytes at the rate of "
                       "the link and nothing else, no computation, no waiting: no host can be faster. Modelet's own time is the measured one in both columns.")]
    found = headline(report)
    if not found:
        return parts + [paragraph("Modelet's part is missing or failed.", "failed")]
    ours = found["modelet"]
    rows = [("Modelet", duration(ours["seconds"]), "", duration(ours["wire_seconds"]), "", size(ours["bytes"]), "")]
    rows += [(row["title"], duration(row["seconds"]), f"{row['times']:,.1f}x", duration(row["wire_seconds"]), f"{row['wire_times']:,.1f}x", size(row["bytes"]),
              f"{row['byte_times']:,.0f}x") for row in found["rows"]]
    parts.append(table(["", "s/step measured", "of Modelet's", "on dedicated hosts", "of Modelet's measured", "bytes a node and step", "of Modelet's"], rows))
    if found["horovod_fastest"]:
        parts.append(paragraph(headline_text(report), "result"))
    return parts + [paragraph("\"sampled\" and \"sharded by hand\" train the same sampled softmax as Modelet; the others the full one.")]


def scaling_section(report):
    def seconds(record):
        return record["result"]["seconds_per_step"]

    def sent(record):
        return max(1.0, mean_bytes(record["result"]))

    def compared(title, x_label, y_label, horizontal, value, **fixed):
        """Plots only systems that were measured at several places of the axis. The tables have the rest."""
        records = [record for record in select(report, data="amazon", **fixed) if "nodes" in record["part"]]
        places = {}
        for record in records:
            places.setdefault(contestant(record["part"]), set()).add(horizontal(record["part"]))
        return plot(title, x_label, y_label, [record for record in records if len(places[contestant(record["part"])]) > 1],
                    lambda record: [(horizontal(record["part"]), value(record))], log_y=True)

    at = {"nodes": 4, "rate": "1gbit"}
    return ["<h2>Width, nodes, links</h2>",
            compared("Seconds a step, 4 nodes, 1 Gbit/s", "labels", "seconds", lambda part: part["width"], seconds, **at),
            compared("Bytes sent by a node in a step, 4 nodes", "labels", "bytes", lambda part: part["width"], sent, **at),
            compared("Seconds a step, 670,091 labels, 1 Gbit/s", "nodes", "seconds", lambda part: part["nodes"], seconds, width=670_091, rate="1gbit"),
            compared("Seconds a step, 670,091 labels, 4 nodes", "Mbit/s", "seconds", lambda part: clusters.BITS_PER_SECOND[part["rate"]] / 1e6, seconds,
                     width=670_091, nodes=4)]


def precision_section(report):
    learned = [record for record in select(report, data="amazon")
               if record["result"].get("p_at_1") is not None and record["part"].get("rate", "1gbit") == "1gbit"]
    learned.sort(key=lambda record: (record["part"]["width"], -record["result"]["p_at_1"], record["title"]))  # of each width the best first
    rows = [(f"{record['part']['width']:,} labels", record["title"].partition(", amazon")[0], f"{record['result']['p_at_1']:.4f}") for record in learned]
    parts = ["<h2>P@1 after the same samples</h2>",
             paragraph("One epoch of 100,000 synthetic samples. \"Full\" is the softmax over all labels in one process: what every dense data-parallel system learns with "
                       "the same global batch, here at several learning rates."), table(["", "", "P@1"], rows)] if rows else []
    debian = [record for record in report["records"] if record["part"]["data"] == "debian-deps"]
    if debian:
        rows = []
        for record in debian:
            reached = seconds_to(record["result"]["curve"], TARGET) if "result" in record else None
            rows.append((record["title"], "failed" if "error" in record else "never" if reached is None else duration(reached),
                         "" if "error" in record else f"{record['result']['p_at_1']:.4f}"))
        parts += ["<h2>Time to P@1 on debian-deps, 4 nodes, 1 Gbit/s</h2>", table(["", f"seconds of training to {TARGET}", "P@1 at the end"], rows),
                  plot("debian-deps, 4 nodes, 1 Gbit/s", "seconds of training", "P@1", select(report, data="debian-deps"),
                       lambda record: record["result"]["curve"], lines=[TARGET])]
    return parts


def cores_text(part):
    return " + ".join(f"{cores:g}" for cores in part["cores"])


def own_cores_rows(report):
    """Rows (record, speed-up over one core, seconds of the ideal split, share of the ideal that is reached). In the ideal split each node
    is as fast as alone."""
    alone = {record["part"]["cores"][0]: record["result"]["seconds_per_step"] for record in select(report, data="own cores", nodes=1)}
    rows = []
    for record in select(report, data="own cores"):
        if all(cores in alone for cores in [1, *record["part"]["cores"]]):
            seconds = record["result"]["seconds_per_step"]
            ideal = 1 / sum(1 / alone[cores] for cores in record["part"]["cores"])
            rows.append((record, alone[1] / seconds, ideal, ideal / seconds))
    return rows


def own_cores_section(report):
    rows = [(f"{cores_text(record['part'])}, {record['part']['rate']}", duration(record["result"]["seconds_per_step"]), f"{speedup:.2f}", duration(ideal),
             f"{reached:.0%}") for record, speedup, ideal, reached in own_cores_rows(report)]
    if not rows:
        return []
    return ["<h2>Nodes with cores of their own</h2>",
            paragraph("Modelet, Amazon-670K's shape, one thread a node. Ideal: the nodes share the work as fast as each of them does it alone."),
            table(["cores of the nodes, link", "s/step", "times one core", "ideal", "of the ideal"], rows)]


def billion_section(report):
    record = one(report, data="billion")
    if record is None:
        return []
    result, part = record["result"], record["part"]
    needs = dense.needs(result["parameters"], part["nodes"], clusters.BITS_PER_SECOND[part["rate"]])
    return [f"<h2>{result['parameters'] / 1e9:.2f} billion parameters, {part['nodes']} nodes, {part['rate']}</h2>",
            table(["", "s/step", "bytes a node and step", "memory of a node"],
                  [("Modelet, measured", duration(result["seconds_per_step"]), size(mean_bytes(result)), size(max(result["peak_rss_bytes"]))),
                   ("dense data parallelism (Horovod), computed: what its bytes alone take, Adam in fp32", duration(needs["allreduce_seconds"]),
                    size(needs["allreduce_bytes"]), size(needs["memory_bytes"]))])]


def simulation_section(report):
    record = one(report, data="simulation")
    return ["<h2>More nodes, predicted</h2>", curves.html(record["result"])] if record else []


def split(result):
    """The means over the ranks of (computing, coding, waiting) in a step; None if not known. If the measured waiting is longer
    than the step, it says nothing about computing."""
    waiting = mean(result.get("wait_seconds"))
    computing = mean(result.get("compute_seconds"))
    if computing is None and waiting is not None and waiting < result["seconds_per_step"]:
        computing = result["seconds_per_step"] - waiting
    return computing, mean(result.get("codec_seconds")), waiting


def parts_section(report):
    heads = ["", "s/step", "computing", "coding", "waiting", "CPU seconds", "bytes a node and step", "memory of a process", "P@1", "others"]
    rows = []
    for record in report["records"]:
        result = record.get("result", {})
        if "limits" in result:
            continue
        rows.append((record["title"], duration(result.get("seconds_per_step")), *map(duration, split(result)), duration(mean(result.get("cpu_seconds"))),
                     size(mean_bytes(result)) if "sent_bytes" in result else "-", size(max(result["peak_rss_bytes"])) if "peak_rss_bytes" in result else "-",
                     "-" if result.get("p_at_1") is None else f"{result['p_at_1']:.4f}", f"{record['others_share']:.0%}"))
    parts = ["<h2>Every part</h2>", table(heads, rows),
             paragraph("Computing, coding and waiting: a rank's mean in a step; for Horovod waiting is the time in synchronize(), for what was sharded by hand that in "
                       "collectives; DistributedDataParallel does not tell. CPU seconds: of all threads of a rank in a step. Others: share of the machine "
                       "that other processes used meanwhile.")]
    links = select(report, data="link")
    if links:
        parts.append(table(["link", "payload of one TCP connection, Mbit/s"],
                           [(record["part"]["rate"], f"{record['result']['payload_bits_per_second'] / 1e6:,.0f}") for record in links]))
    failed = [record for record in report["records"] if "error" in record]
    if failed:
        parts += ["<h2>What failed</h2>"] + [paragraph(f"{record['title']}: {record['error']}", "failed") for record in failed]
    return parts


def notes(report):
    cores = report["machine"]["cores"]
    text = [*report.get("notes", []),
            f"All nodes share the {cores} cores of this machine, except where the report says that they have their own. With more nodes than cores every "
            "system's time is bound by the cores, which also copy the packets; on hosts of their own all would be faster. The column \"on dedicated hosts\" "
            "is a bound that no host can beat."]
    disturbed = [record["others_share"] for record in report["records"] if record["others_share"] > measuring.BUSY_SHARE]
    if disturbed:
        text.append(f"The machine was not always quiet: in {len(disturbed)} of {len(report['records'])} parts other processes used more than "
                    f"{measuring.BUSY_SHARE:.0%} of it, at most {max(disturbed):.0%} (last column of \"Every part\"). Each part was run once. A figure of a "
                    "disturbed part may be quoted only together with that share, and differences of a tenth between such figures mean nothing.")
    return [paragraph(line) for line in text]


def write(report, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report | {"headline": headline(report)}, indent=1) + "\n", encoding="utf-8")
    machine = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in report["machine"].items() if value)
    body = ["<h1>Modelet and Horovod on slow links</h1>", paragraph(machine), *notes(report), *headline_section(report), *scaling_section(report),
            *precision_section(report), *own_cores_section(report), *billion_section(report), *simulation_section(report), *parts_section(report)]
    page = f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Modelet and Horovod</title><style>{STYLE}</style></head>\n<body>\n'
    (folder / "report.html").write_text(page + "\n".join(body) + "\n</body></html>\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")), pathlib.Path(sys.argv[2]))
