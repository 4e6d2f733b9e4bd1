#!/usr/bin/python3
"""Where Modelet stops scaling: predicted speed-up of 1 to 64 nodes of 4, 8, 16 cores, for links of 0.1 to 10 Gbit/s and round trips of 0.1 to 20 ms.

    curves.py ../amazon-670k-shape.toml --json curves.json --html curves.html

For scripts: curves(), and html(), which makes a fragment of a page from its result.
"""

import argparse
import html as escaping
import json
import pathlib
import sys

import simulate

sys.path.insert(1, str(simulate.ROOT / "experiments/bench"))
import svg_plot

NODES, CORES, BATCHES = [1, 2, 4, 8, 16, 32, 64], [4, 8, 16], [256, 4096]
RATES, ROUND_TRIPS = [1e8, 1e9, 1e10], [0.1e-3, 1e-3, 5e-3, 20e-3]
USUAL = {"rate": 1e9, "round_trip": 1e-3, "cores": 4}  # ordinary machines of one building
COLOURS = {"rate": "#dd6b20", "round_trip": "#6c3483", "cores": "#212f3d"}  # of what is varied: all curves are Modelet's
JITTER = 0.03  # mean share by which a node is slower than usual in a step
MEMORY_GBPS = 80.0  # of row updates; ordinary machines have no more, with however many cores
MEMORY_GIB = 16
WORTH = 1.1  # twice the nodes must be faster by this factor, or scaling has stopped
CAUSES = {"latency": "the latency of the rounds, however small the messages", "wire": "the bytes on the wire",
          "messages": "the CPU time of messages: every node sends one to every other in each round and micro-batch",
          "stragglers": "waiting for the slowest node", "imbalance": "too few modelets, or too few columns of the hidden layer, for the nodes"}


def curves(modelet, experiment, settings=(), hidden=128, core=None):
    """Returns points {"batch", "cores", "nodes", "rate", "round_trip", "seconds_per_step", "speedup" over one such node, ...}, and where
    scaling stops.

    settings: section.key=value; data.train is needed for its shape. hidden: the width, which is divided among the nodes. core: the speeds
    of one core, by the names in simulate.SPEEDS; None: measured on this machine.
    """
    core = core or simulate.plan(modelet, experiment, 1, settings, cores=1)["nodes"][0]
    points, limits = [], []
    for batch in BATCHES:
        for cores in CORES:
            plans = [_plan(modelet, experiment, [*settings, f"train.batch={batch}"], hidden, nodes, cores, core) for nodes in NODES]
            alone = plans[0]["seconds_per_step"]
            for rate in RATES:
                for round_trip in ROUND_TRIPS:
                    link, jitters = simulate.Link(rate, round_trip), [JITTER if nodes > 1 else 0.0 for nodes in NODES]
                    line = []
                    for nodes, planned, jitter in zip(NODES, plans, jitters):
                        seconds = simulate.simulate(planned, link, jitter=jitter)["seconds_per_step"]
                        line.append({"batch": batch, "cores": cores, "nodes": nodes, "rate": rate, "round_trip": round_trip,
                                     "seconds_per_step": seconds, "speedup": alone / seconds})
                    points += line
                    useful = _useful(line)
                    beyond = min(useful + 1, len(line) - 1)
                    causes = simulate.explain(plans[beyond], link, jitter=jitters[beyond])
                    limits.append(line[useful] | {"stopped": beyond > useful, "causes": causes, "cause": max(CAUSES, key=causes.get)})
    return {"core": {name: core[name] for name in simulate.SPEEDS}, "jitter": JITTER, "points": points, "limits": limits}


def _plan(modelet, experiment, settings, hidden, nodes, cores, core):
    partition = [f"modelets.hidden_columns={max(16, hidden // nodes)}", f"modelets.output_modelets={max(8, nodes)}"]
    speeds = {name: [cores * core[name]] for name in simulate.SPEEDS} | {"memory_gbps": [min(cores * core["memory_gbps"], MEMORY_GBPS)]}
    return simulate.plan(modelet, experiment, nodes, [*settings, *partition], cores=cores, memory_gib=MEMORY_GIB, **speeds)


def _useful(line):
    """The index of the largest number of nodes that is worthwhile."""
    return next((i for i in range(len(line) - 1) if line[i + 1]["speedup"] < WORTH * line[i]["speedup"]), len(line) - 1)


def is_usual(limit):
    return limit["cores"] == USUAL["cores"] and limit["rate"] == USUAL["rate"]


def statement(limit):
    where = f"Batch {limit['batch']:,}, nodes of {limit['cores']} cores, {_rate(limit['rate'])}, {_milliseconds(limit['round_trip'])} round trip"
    if not limit["stopped"]:
        return f"{where}: still scales at {limit['nodes']} nodes, {limit['speedup']:.1f} times one; what costs most there is {CAUSES[limit['cause']]}."
    reached = f"{limit['nodes']} nodes are {limit['speedup']:.1f} times as fast as one" if limit["nodes"] > 1 else "one node is as fast as several"
    return f"{where}: {reached}, twice as many bring less than {WORTH - 1:.0%}, because of {CAUSES[limit['cause']]}."


def _rate(rate):
    return f"{rate / 1e9:g} Gbit/s"


def _milliseconds(seconds):
    return f"{1e3 * seconds:g} ms"


def charts(found):
    """Returns an SVG text for each batch: speed-up against nodes for several links and cores."""
    def line(**where):
        return [(point["nodes"], point["speedup"]) for point in found["points"] if all(point[name] == value for name, value in (USUAL | where).items())]

    texts = []
    for batch in BATCHES:
        wheres = {f"{_rate(rate)}, 1 ms": {"rate": rate} for rate in RATES} | {f"1 Gbit/s, {_milliseconds(trip)}": {"round_trip": trip}
                                                                           for trip in ROUND_TRIPS if trip != USUAL["round_trip"]}
        wheres |= {f"{cores} cores, 1 Gbit/s, 1 ms": {"cores": cores} for cores in CORES if cores != USUAL["cores"]}
        texts.append(svg_plot.render(f"Predicted speed-up over one node, batch {batch:,}, nodes of {USUAL['cores']} cores", "nodes", "speed-up",
                                     {name: line(batch=batch, **where) for name, where in wheres.items()}, log_y=True,
                                     colours={name: COLOURS[varied] for name, where in wheres.items() for varied in where}))
    return texts


def html(found):
    """Returns a fragment of HTML: charts, what stops the scaling of the usual cluster, and a table of everything."""
    usual = [limit for limit in found["limits"] if is_usual(limit)]
    heads = ["batch", "cores a node", "link", "round trip", "useful nodes", "speed-up", "ms/step", "what stops it"]
    rows = []
    for limit in found["limits"]:
        rows.append((f"{limit['batch']:,}", limit["cores"], _rate(limit["rate"]), _milliseconds(limit["round_trip"]), limit["nodes"] if limit["stopped"] else
                     f"{limit['nodes']} or more", f"{limit['speedup']:.1f}", f"{1e3 * limit['seconds_per_step']:.2f}", limit["cause"]))

    def row(words, tag):
        return "<tr>" + "".join(f"<{tag}>{escaping.escape(str(word))}</{tag}>" for word in words) + "</tr>"

    core = found["core"]
    assumed = (f"Predicted with the cost model of modelet plan and experiments/simulate: cores like this machine's ({core['gflops']:.0f} GFLOP/s each), at most "
               f"{MEMORY_GBPS:.0f} GB/s of memory a node, nodes {found['jitter']:.0%} slower than planned in the mean of their steps.")
    return "\n".join([f"<p>{escaping.escape(assumed)}</p>", *charts(found), "<ul>", *(f"<li>{escaping.escape(statement(limit))}</li>" for limit in usual),
                      "</ul>", "<table>", row(heads, "th"), *(row(words, "td") for words in rows), "</table>"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    simulate.add_plan_options(parser)
    parser.add_argument("--hidden", type=int, default=128, help="width of the hidden layer (default: 128)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    try:
        found = curves(arguments.modelet, arguments.experiment, arguments.set, arguments.hidden)
    except (RuntimeError, OSError) as error:
        sys.exit(f"curves.py: {error}")
    for limit in found["limits"]:
        print(statement(limit))
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n", encoding="utf-8")
    if arguments.html:
        arguments.html.write_text(html(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
