#!/usr/bin/python3
"""Predicts how long a step takes on other nodes and links: lays out in time what `modelet plan --json` predicts for each node and exchange.

    simulate.py ../amazon-670k-shape.toml --nodes 16 --cores 8 --rate 1e9 --rtt 0.5e-3
    simulate.py ../amazon-670k-shape.toml --nodes 4 --gflops 400,200 --bf16-gflops 800,400 --memory-gbps 100,50 --jitter 0.05 --json

The simulated nodes run the phases of a step in the order of TrainingStep::run. They compute and send micro-batch by micro-batch, and wait
only for what they need. The result shows how much of the wire's time is hidden behind computing. Modelet itself does not run, and no root
is needed.

For scripts: plan(), simulate(), explain(). README.md states the model and what it was checked against.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_MODELET = ROOT / "build/release/bin/modelet"
STEPS = 2  # the first is not counted, because nodes of unequal speed start it together


@dataclasses.dataclass(frozen=True)
class Link:
    """The link of every node to a switch. Both directions work at once."""
    bits_per_second: float
    round_trip_seconds: float  # from node to node, of an empty message
    burst_bytes: int = 0  # that pass at once after a pause; a shaper (tc tbf) has this, a wire has not

    FRAME_BYTES, FRAME_PAYLOAD = 1538, 1448  # on the wire, with preamble and gap; payload of TCP

    def seconds(self, payload_bytes):
        return 8 * payload_bytes * self.FRAME_BYTES / self.FRAME_PAYLOAD / self.bits_per_second


INFINITE = Link(math.inf, 0.0)
SPEEDS = ("gflops", "bf16_gflops", "memory_gbps")  # of a node, as `modelet plan --json` names them


@dataclasses.dataclass(frozen=True)
class MessageCost:
    """CPU seconds of a message at each end: encoding or decoding, checksum, ZeroMQ's thread, the kernel. README.md says how they were measured.

    A node with several cores handles messages while it computes, one after the other. A node with one core either computes or sends: the
    system runs the thread of the messages when the computing thread waits.
    """
    each: float = 60e-6
    per_byte: float = 1e-9

    def seconds(self, count):
        return self.each + count * self.per_byte


FREE = MessageCost(0.0, 0.0)


def plan(modelet, experiment, nodes, settings=(), **capacities):
    """Runs `modelet plan --json`. capacities: cores, memory_gib, and the speeds SPEEDS of the nodes. Fewer speeds than nodes are
    repeated; without speeds they are measured on this machine. If the run chooses the number of micro-batches, "choices" has the plan for
    each number."""
    planned = _plan(modelet, experiment, nodes, settings, **capacities)
    if planned["micro_batches"] == 0 and nodes > 1:
        measured = {name: [node[name] for node in planned["nodes"]] for name in SPEEDS}
        planned["choices"] = [_plan(modelet, experiment, nodes, [*settings, f"exchange.micro_batches={count}"], **capacities | measured)
                              for count in range(1, planned["micro_batches_tried"] + 1)]
    return planned


def _plan(modelet, experiment, nodes, settings=(), cores=None, memory_gib=None, **speeds):
    command = [modelet, "plan", experiment, "--json", "--nodes", nodes]
    for option, value in (("--cores", cores), ("--memory-gib", memory_gib)):
        command += [] if value is None else [option, value]
    for name, values in speeds.items():
        command += [f"--{name.replace('_', '-')}", ",".join(map(str, values))] if values else []
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"modelet plan: {done.stderr.strip()}")
    planned = json.loads(done.stdout)
    if planned["replicas"] > 1:
        raise RuntimeError("only one model over all nodes is simulated: leave cluster.replicas out")
    return planned


def simulate(planned, link, cost=MessageCost(), jitter=0.0):
    """Simulates a step: its seconds, and where they go on each node.

    planned: the result of plan(). jitter: every node is slower in every step by a share of its computing that follows an exponential
    distribution with this mean; 0: not at all. Nothing is drawn at random: the nodes get the expected values of a sorted sample, the first
    node the largest. If the plan has choices, the fastest counts, as in a run.
    Returns {"seconds_per_step", "rounds" (exchanges in a step), and of each node "compute_seconds", "message_seconds" (CPU time of messages), "wait_seconds",
    "wire_seconds" (that the busier direction of its link works)}.
    """
    return min((_simulate(choice, link, cost, jitter) for choice in planned.get("choices", [planned])), key=lambda found: found["seconds_per_step"])


def _simulate(planned, link, cost, jitter):
    timeline = _Timeline(planned, link, cost, jitter)
    timeline.step()
    first = timeline.snapshot()
    for _ in range(STEPS - 1):
        timeline.step()
    last = timeline.snapshot()
    per_step = {name: [(after - before) / (STEPS - 1) for before, after in zip(first[name], last[name])] for name in last}
    return {"rounds": len(planned["exchanges"]), "seconds_per_step": (max(last["now"]) - max(first["now"])) / (STEPS - 1),
            "compute_seconds": per_step["computing"], "message_seconds": per_step["messages"], "wait_seconds": per_step["waiting"],
            "wire_seconds": [max(sent, received) for sent, received in zip(per_step["sending"], per_step["receiving"])]}


class _Timeline:
    """The clocks of all nodes, from step to step."""

    def __init__(self, planned, link, cost, jitter):
        self.nodes, self.link, self.cost = planned["nodes"], link, cost
        self.factors = [1 + jitter * sum(1 / rank for rank in range(i + 1, len(self.nodes) + 1)) for i in range(len(self.nodes))]
        self.selects_by_activations = planned["selects_by_activations"]
        self.hidden_layers = len(self.nodes[0]["layers"]) - 1
        kinds = {"activations": [], "output": [], "gradient": [], "clip": []}
        for exchange in planned["exchanges"]:
            kinds[exchange["exchange"]].append(exchange)
        self.activations = [[exchange for exchange in kinds["activations"] if exchange["layer"] == layer] for layer in range(self.hidden_layers)]
        self.output, self.gradient, self.clip = kinds["output"], kinds["gradient"], kinds["clip"]
        samples = [exchange["samples"] for exchange in self.output] or [1]
        self.micro_batches = [count / sum(samples) for count in samples]
        self.spent = {name: [0.0] * len(self.nodes) for name in ("now", "computing", "messages", "waiting", "sending", "receiving")}
        self.one_core = [node["cores"] == 1 for node in self.nodes]
        self.begun = None  # what was begun of the next step
        self.queued = [[] for _ in self.nodes]  # (when, exchange under way, to)
        # The times from which the link of each node (in both directions) and the thread of its messages are free.
        self.out_free, self.in_free, self.messages_free = ([-math.inf] * len(self.nodes) for _ in range(3))

    def snapshot(self):
        return {name: list(values) for name, values in self.spent.items()}

    def step(self):
        """Runs a step like TrainingStep::run."""
        alone = len(self.nodes) == 1
        under_way = self.begun or self._begin()  # (hidden layer, micro-batch) -> exchange
        for layer in range(1, self.hidden_layers):
            for micro_batch in range(len(self.micro_batches)):
                self._collect(under_way.pop((layer - 1, micro_batch), None))
                self._forward(layer, micro_batch, under_way)
        last = self.hidden_layers - 1
        if self.selects_by_activations:
            for micro_batch in range(len(self.micro_batches)):
                self._collect(under_way.pop((last, micro_batch), None))
        self._compute("select", [self.hidden_layers])
        outputs = []
        for micro_batch, share in enumerate(self.micro_batches):
            self._collect(under_way.pop((last, micro_batch), None))
            self._compute("output_forward", [self.hidden_layers], share)
            if not alone:
                outputs.append(self._send(self.output[micro_batch]))
        for messages in outputs:
            self._collect(messages)
        for layer in range(last, 0, -1):
            self._compute("backward", [layer])
            if not alone:
                self._collect(self._send(self.gradient[last - layer]))
        for exchange in self.clip:
            self._collect(self._send(exchange))
        self._compute("update", range(self.hidden_layers))
        self.begun = None if alone else self._begin()
        self._compute("update", [self.hidden_layers])

    def _begin(self):
        under_way = {}
        for micro_batch in range(len(self.micro_batches)):
            self._forward(0, micro_batch, under_way)
        return under_way

    def _forward(self, layer, micro_batch, under_way):
        self._compute("forward", [layer], self.micro_batches[micro_batch])
        if len(self.nodes) > 1:
            under_way[layer, micro_batch] = self._send(self.activations[layer][micro_batch])

    def _spend(self, node, what, seconds):
        self.spent["now"][node] += seconds
        self.spent[what][node] += seconds

    def _compute(self, phase, layers, share=1.0):
        for node, described in enumerate(self.nodes):
            seconds = sum(described["layers"][layer][phase] for layer in layers)
            self._spend(node, "computing", share * self.factors[node] * seconds)

    def _send(self, exchange):
        """Queues a message to every peer, the next rank first, as Group does. Returns the exchange; the arrivals of its messages are
        filled in later."""
        count = len(self.nodes)
        under_way = {"arrivals": [[] for _ in range(count)], "exchange": exchange}
        for node in range(count):
            self.queued[node] += [(self.spent["now"][node], under_way, (node + distance) % count) for distance in range(1, count)]
        self._deliver([node for node in range(count) if not self.one_core[node]])
        return under_way

    def _deliver(self, senders):
        """Puts what these nodes have queued on the wire."""
        leaving = []
        for node in senders:
            for queued_at, under_way, to in self.queued[node]:
                size = under_way["exchange"]["bytes"][node][to]
                ready = self._handle_message(node, queued_at, size)
                self.spent["sending"][node] += self.link.seconds(size)
                leaving.append((self._pass_link(self.out_free, node, ready, size), node, to, size, under_way["arrivals"]))
            self.queued[node].clear()
        for left, node, to, size, arrivals in sorted(leaving, key=lambda message: message[:3]):
            # The switch passes on packet by packet. So the direction to the receiver works at the same time, unless other senders keep it
            # busy.
            begun = left - self.link.seconds(size) + self.link.round_trip_seconds / 2
            arrived = self._pass_link(self.in_free, to, max(begun, 0.0), size)
            self.spent["receiving"][to] += self.link.seconds(size)
            arrivals[to].append((max(arrived, left + self.link.round_trip_seconds / 2), size))

    def _pass_link(self, free, node, ready, size):
        """Returns when the last byte has passed a token bucket of burst_bytes, which only earlier bytes have emptied."""
        credit = self.link.seconds(self.link.burst_bytes)
        free[node] = max(free[node], ready - credit) + self.link.seconds(size)
        return max(free[node], ready)

    def _handle_message(self, node, possible_at, size):
        """Returns when the CPU has done its part of a message."""
        seconds = self.cost.seconds(size)
        if self.one_core[node]:
            self._spend(node, "messages", seconds)
            return self.spent["now"][node]
        self.spent["messages"][node] += seconds
        self.messages_free[node] = max(self.messages_free[node], possible_at) + seconds
        return self.messages_free[node]

    def _collect(self, under_way):
        if under_way is None:
            return
        self._deliver([node for node in range(len(self.nodes)) if self.one_core[node]])
        for node, messages in enumerate(under_way["arrivals"]):
            for arrival, size in sorted(messages):
                if self.one_core[node]:
                    self._wait_until(node, arrival)
                    self._handle_message(node, arrival, size)
                else:
                    self._wait_until(node, self._handle_message(node, arrival, size))

    def _wait_until(self, node, moment):
        self._spend(node, "waiting", max(0.0, moment - self.spent["now"][node]))


def hidden_share(planned, link, result, cost=MessageCost()):
    """The share of the wire's time, with its latencies, that no node waits for."""
    wire = max(result["wire_seconds"]) + result["rounds"] * link.round_trip_seconds / 2
    exposed = result["seconds_per_step"] - simulate(planned, INFINITE, cost)["seconds_per_step"]
    return 1 - exposed / wire if wire else 1.0


def explain(planned, link, cost=MessageCost(), jitter=0.0):
    """The seconds of a step that would be saved if one thing alone were ideal. The rest is perfectly spread computing."""
    def seconds(link=link, cost=cost, jitter=jitter):
        return simulate(planned, link, cost, jitter)["seconds_per_step"]

    now = seconds()
    spread = statistics.fmean(node["compute_seconds"] for node in planned["nodes"])
    return {"seconds_per_step": now, "ideal": spread,
            "latency": now - seconds(link=dataclasses.replace(link, round_trip_seconds=0.0)),
            "wire": now - seconds(link=dataclasses.replace(link, bits_per_second=math.inf)),
            "messages": now - seconds(cost=FREE),
            "stragglers": now - seconds(jitter=0.0),
            "imbalance": simulate(planned, INFINITE, FREE)["seconds_per_step"] - spread}


def numbers(text):
    return [float(word) for word in text.split(",")]


def add_plan_options(parser):
    parser.add_argument("experiment", type=pathlib.Path)
    parser.add_argument("--modelet", type=pathlib.Path, default=DEFAULT_MODELET)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="a key of the experiment")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_plan_options(parser)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cores", type=int, help="of each node, as fast as this machine's (default: as many, too)")
    parser.add_argument("--gflops", type=numbers, default=(), help="of a node, fp32; fewer than nodes are repeated (default: measured here)")
    parser.add_argument("--bf16-gflops", type=numbers, default=(), help="the same in bf16 (default: as --gflops if that is given)")
    parser.add_argument("--memory-gbps", type=numbers, default=(), help="GB/s of row updates of a node, the same")
    parser.add_argument("--rate", type=float, default=1e9, help="bits a second of each link (default: 1e9)")
    parser.add_argument("--rtt", type=float, default=0.2e-3, help="seconds of a round trip (default: 0.0002)")
    parser.add_argument("--jitter", type=float, default=0.0, help="mean share by which a node is slower in a step (default: 0)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    try:
        planned = plan(arguments.modelet, arguments.experiment, arguments.nodes, arguments.set, cores=arguments.cores,
                       **{name: getattr(arguments, name) for name in SPEEDS})
    except (RuntimeError, OSError) as error:
        sys.exit(f"simulate.py: {error}")
    link = Link(arguments.rate, arguments.rtt)
    result = simulate(planned, link, jitter=arguments.jitter)
    result |= {"hidden_share": hidden_share(planned, link, result), "explained": explain(planned, link, jitter=arguments.jitter)}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{1e3 * result['seconds_per_step']:.2f} ms/step; {result['hidden_share']:.0%} of the wire's time is hidden")
    for name in ("latency", "wire", "messages", "stragglers", "imbalance"):
        print(f"  {1e3 * result['explained'][name]:8.2f} ms because of {name}")
    print(f"  {1e3 * result['explained']['ideal']:8.2f} ms computing, perfectly spread")


if __name__ == "__main__":
    main()
