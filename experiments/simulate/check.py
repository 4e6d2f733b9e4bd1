#!/usr/bin/python3
"""Compares the simulator with runs on a cluster on this machine: predicted and measured seconds of a step on 1, 2 and 4 nodes.

    sudo check.py --set data.train=.../train.mlt --set data.test=.../test.mlt --json check.json
    sudo check.py --rtt-ms 20       with links of a longer round trip

1 and 2 nodes get a core each. 4 nodes get half a core each, because the machine has two cores, and nodes that share a core freely have no
known speed. The runs alternate, and medians are compared. The speed of a core is measured before every round in the way of an agent, with
as many cores at work as the nodes keep busy. Needs root (experiments/cluster).
Exit codes: 0 all within --tolerance, 1 some are not, 77 this machine cannot run a cluster, 130 interrupted.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import sys

import simulate

sys.path.insert(1, str(simulate.ROOT / "experiments/cluster"))
sys.path.insert(1, str(simulate.ROOT / "experiments/bench"))
import cluster as clusters
import measuring
import train_modelet

ROUND_TRIP = 60e-6  # without --rtt-ms; of an idle cluster on one machine, with the wake-up of the waiting thread (20 us without: experiments/cluster/README.md)
CASES = [(1, 1.0, "1gbit")] + [(nodes, cores, rate) for nodes, cores in ((2, 1.0), (4, 0.5)) for rate in ("100mbit", "1gbit")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", type=pathlib.Path, default=simulate.ROOT / "experiments/amazon-670k-shape.toml")
    parser.add_argument("--programs", type=pathlib.Path, default=clusters.PROGRAMS, help="folder of modelet and cluster-relay (default: build/release/bin)")
    parser.add_argument("--rtt-ms", type=clusters.round_trip, default=0.0, metavar="MS", help="that the links add to a round trip (default: nothing)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="a key of the experiment")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def settings_of(arguments, nodes):
    return [f"modelets.hidden_columns={max(16, 128 // nodes)}", "train.checkpoint_every=1000000000", *arguments.set]


def predict(arguments, nodes, cores, rate, core_speed):
    planned = simulate.plan(arguments.programs / "modelet", arguments.experiment, nodes, settings_of(arguments, nodes), cores=1,
                            **{name: [cores * speed] for name, speed in core_speed.items()})
    link = simulate.Link(clusters.BITS_PER_SECOND[rate], ROUND_TRIP + 1e-3 * arguments.rtt_ms, 1024 * clusters.LINKS[rate].burst)
    usual = simulate.MessageCost()
    return simulate.simulate(planned, link, simulate.MessageCost(usual.each / cores, usual.per_byte / cores))


def core_speed(arguments, busy_cores):
    """The speeds of one core, by name, while this many cores work. They share the memory of the machine, which separate nodes would not."""
    node = simulate.plan(arguments.programs / "modelet", arguments.experiment, 1, arguments.set, cores=busy_cores)["nodes"][0]
    return {name: node[name] / busy_cores for name in simulate.SPEEDS}


def busy_cores(case):
    nodes, cores, _ = case
    return math.ceil(nodes * cores)


def measure(arguments, nodes, cores, rate):
    with clusters.Cluster(nodes, rate, cpu=[cores] if cores < 1 else None, pin=True, rtt_ms=arguments.rtt_ms,
                          programs=arguments.programs) as cluster:
        return train_modelet.train(cluster, arguments.programs, arguments.experiment, settings_of(arguments, nodes))


def run(arguments):
    """Returns rows {"nodes", "cores", "rate", "measured", "predicted", "ratio", ...}."""
    runs, others = {case: [] for case in CASES}, measuring.OthersShare()
    speeds = {busy_cores(case): [] for case in CASES}
    for _ in range(arguments.repeats):
        for busy, found in speeds.items():
            found.append(core_speed(arguments, busy))
        for case in CASES:
            runs[case].append(measure(arguments, *case))
            print(case, f"{1e3 * runs[case][-1]['seconds_per_step']:.2f} ms", file=sys.stderr)
    speed = {busy: {name: statistics.median(one[name] for one in found) for name in simulate.SPEEDS} for busy, found in speeds.items()}
    rows = []
    for case in CASES:
        found, measured = predict(arguments, *case, speed[busy_cores(case)]), [result["seconds_per_step"] for result in runs[case]]
        median = statistics.median(measured)
        rows.append({"nodes": case[0], "cores": case[1], "rate": case[2], "measured": median, "fastest": min(measured), "slowest": max(measured),
                     "predicted": found["seconds_per_step"], "ratio": found["seconds_per_step"] / median,
                     "measured_split": {field: [statistics.median(values) for values in zip(*(result[field] for result in runs[case]))]
                                        for field in ("compute_seconds", "codec_seconds", "wait_seconds")}, "predicted_split": found})
    return {"core": speed, "machine_cores": os.cpu_count(), "others_share": others.until_now(), "rows": rows}


def print_rows(result):
    for busy, core in result["core"].items():
        print(f"a core of {busy} at work: {core['gflops']:.0f} GFLOP/s in fp32, {core['bf16_gflops']:.0f} in bf16, {core['memory_gbps']:.1f} GB/s of row updates")
    print(f"others used {result['others_share']:.0%} of the machine")
    print(f"{'nodes':>5}{'cores':>7}{'link':>9}{'predicted':>12}{'measured':>11}{'fastest':>10}{'slowest':>10}{'ratio':>7}")
    for row in result["rows"]:
        print(f"{row['nodes']:>5}{row['cores']:>7g}{row['rate']:>9}{1e3 * row['predicted']:>9.2f} ms{1e3 * row['measured']:>8.2f} ms"
              f"{1e3 * row['fastest']:>7.2f} ms{1e3 * row['slowest']:>7.2f} ms{row['ratio']:>7.2f}")


def main():
    arguments = parse_arguments()
    try:
        result = run(arguments)
    except clusters.CannotRun as error:
        print(f"check.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    except (train_modelet.RunFailed, RuntimeError) as error:
        print(f"check.py: {error}", file=sys.stderr)
        return clusters.EXIT_FAILED
    except clusters.Interrupted:
        return clusters.EXIT_INTERRUPTED
    print_rows(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if all(abs(row["ratio"] - 1) <= arguments.tolerance for row in result["rows"]) else clusters.EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
