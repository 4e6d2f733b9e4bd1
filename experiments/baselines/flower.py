#!/usr/bin/env python3
"""Flower (flwr): owners whose samples stay apart train Modelet's model with FedAvg, in PyTorch. Until a P@1 is reached.

    modelet data split train.txt owners --owners 4
    flower.py --owners owners/owner-0.txt,owners/owner-1.txt,owners/owner-2.txt,owners/owner-3.txt --test test.txt --until 0.66
    sudo flower.py ... --rate 100mbit            # each owner in a namespace of its own, and the server at the switch (experiments/cluster)

The network is that of experiments/quickstart.toml: sparse input -> 128 ReLU -> sigmoid over the labels of the batch and 1024 uniform draws,
Adam. A round is as many steps of each owner, whose optimiser keeps its state, as exchange.local_steps says in Modelet; the server averages by
samples. Gradients are lists of rows, so a step costs what it costs in Modelet; what travels is the whole model, as Flower sends it.

The last line of standard output is JSON: rounds, P@1 after each evaluation with the seconds since the first round began (without those of
evaluations), and the bytes that the owners have sent and received: of their links with --rate, else of the arrays alone. Python needs what
requirements-flower.txt says and PyTorch (Debian: python3-torch, and a virtual environment with --system-site-packages).
Exit codes: 0 reached, 1 not reached or failed, 77 this machine cannot run a cluster, 130 interrupted.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
PORT = 18080
MOST_BYTES = 2**31 - 1  # of a message, as gRPC counts


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", required=True, help="their files, divided by commas: XMC text, plain or .xz")
    parser.add_argument("--test", type=pathlib.Path, required=True)
    parser.add_argument("--until", type=float, default=1, metavar="P@1", help="ends when this is reached (default: never)")
    parser.add_argument("--rounds", type=int, default=100, help="most rounds")
    parser.add_argument("--evaluate-every", type=int, default=10, metavar="ROUNDS")
    parser.add_argument("--local-steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64, help="of an owner")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--negatives", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of an owner")
    parser.add_argument("--rate", help="of each owner's link, such as 100mbit; needs root")
    parser.add_argument("--role", choices=["server", "owner"], help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", default=f"127.0.0.1:{PORT}", help=argparse.SUPPRESS)
    return parser.parse_args()


def files_of(arguments):
    return [pathlib.Path(name) for name in arguments.owners.split(",")]


# ---- one process -----------------------------------------------------------------------------------------------------

def make_model(arguments, features, labels):
    import common
    import math
    common.torch.manual_seed(arguments.seed)
    common.torch.set_num_threads(arguments.threads)
    model = common.Model(features, arguments.hidden, labels)
    # As many of the labels that a step sees are right: with the bias 0 the first steps would only learn that most are wrong.
    common.torch.nn.init.constant_(model.output.bias.weight, -math.log(arguments.negatives))
    return model


def arrays_of(model):
    return [value.detach().numpy() for value in model.state_dict().values()]


def take(model, arrays):
    import common
    model.load_state_dict({name: common.torch.from_numpy(array) for name, array in zip(model.state_dict(), arrays)})


def sampled_sigmoid(model, x, y, begin, end, negatives, rng):
    """The loss of the rows [begin, end), over the labels of the batch and uniform draws."""
    import common
    labels, sample, _ = y.row_ids(begin, end)
    active, position = common.active_set(labels, model.labels, negatives, rng)
    logits = model(common.bags(x, begin, end), active)
    return (common.F.softplus(logits).sum() - logits[common.torch.from_numpy(sample), common.torch.from_numpy(position)].sum()) / (end - begin)


def be_owner(arguments):
    import flwr
    import common
    import xmc
    x, y, features, labels = xmc.read(files_of(arguments)[arguments.number])
    model = make_model(arguments, features, labels)
    sparse = [model.input.bag.weight, model.output.weight.weight, model.output.bias.weight]
    made = common.optimizers(sparse, [model.input.bias], arguments.lr)
    rng = common.np.random.default_rng([arguments.seed, arguments.number])
    batches = []

    def next_batch():
        nonlocal x, y
        if not batches:
            order = rng.permutation(len(x))
            x, y = x.permuted(order), y.permuted(order)
            batches.extend(range(0, len(x), arguments.batch))
        begin = batches.pop()
        return begin, min(begin + arguments.batch, len(x))

    class Owner(flwr.client.NumPyClient):
        def get_parameters(self, config):
            return arrays_of(model)

        def fit(self, parameters, config):
            take(model, parameters)
            for _ in range(arguments.local_steps):
                for optimizer in made:
                    optimizer.zero_grad()
                sampled_sigmoid(model, x, y, *next_batch(), arguments.negatives, rng).backward()
                for optimizer in made:
                    optimizer.step()
            return arrays_of(model), len(x), {}

    flwr.client.start_client(server_address=arguments.address, client=Owner().to_client(), grpc_max_message_length=MOST_BYTES)


class Reached(Exception):
    pass


def be_server(arguments):
    import flwr
    import common
    import xmc
    x, y, features, labels = xmc.read(arguments.test)
    model = make_model(arguments, features, labels)
    owners = len(files_of(arguments))
    result = {"system": f"flwr {flwr.__version__}", "owners": owners, "evaluations": []}
    clock = common.Clock()
    clock.start()

    def evaluate(number, arrays, config):
        if number == 0 or (number % arguments.evaluate_every != 0 and number != arguments.rounds):
            if number == 0:  # the owners are there
                clock.seconds, clock.started = 0.0, time.perf_counter()
            return None
        clock.stop()
        take(model, arrays)
        p_at_1 = common.precision(common.top_labels(model), x, y, labels)["p_at_1"]
        bytes_of_arrays = 2 * owners * number * sum(array.nbytes for array in arrays)
        result["evaluations"].append({"round": number, "seconds": round(clock.seconds, 2), "p_at_1": p_at_1, "array_bytes": bytes_of_arrays})
        print(json.dumps(result["evaluations"][-1]), file=sys.stderr, flush=True)
        if p_at_1 >= arguments.until:
            raise Reached
        clock.start()
        return None

    strategy = flwr.server.strategy.FedAvg(fraction_fit=1, fraction_evaluate=0, min_fit_clients=owners, min_available_clients=owners,
                                           initial_parameters=flwr.common.ndarrays_to_parameters(arrays_of(model)), evaluate_fn=evaluate)
    with contextlib.suppress(Reached):
        flwr.server.start_server(server_address=f"0.0.0.0:{PORT}", config=flwr.server.ServerConfig(num_rounds=arguments.rounds),
                                 strategy=strategy, grpc_max_message_length=MOST_BYTES)
    print(json.dumps(result), flush=True)
    return 0 if result["evaluations"] and result["evaluations"][-1]["p_at_1"] >= arguments.until else 1


# ---- all processes ---------------------------------------------------------------------------------------------------

def run(arguments, start):
    """start(number, command, **options) starts the owner of that number, or the server (None). Returns (exit code, result)."""
    words = [sys.executable, str(pathlib.Path(__file__).resolve()), *sys.argv[1:]]
    server = start(None, [*words, "--role", "server"], stdout=subprocess.PIPE, text=True)
    owners = []
    try:
        time.sleep(2)  # owners try again for long, but say so
        owners = [start(number, [*words, "--role", "owner", "--number", str(number)]) for number in range(len(files_of(arguments)))]
        lines = server.stdout.read().splitlines()
        code = server.wait()
    finally:
        for process in [*owners, server]:
            process.kill()
            process.wait()
    return code, json.loads(lines[-1]) if lines else {}


def main():
    arguments = parse_arguments()
    sys.path.insert(0, str(HERE))
    if arguments.role == "owner":
        return be_owner(arguments)
    if arguments.role:
        code = 1
        try:
            code = be_server(arguments)
        except Exception:
            traceback.print_exc()
        os._exit(code)  # after an exception threads of gRPC would keep the process alive
    if not arguments.rate:
        code, result = run(arguments, lambda number, command, **options: subprocess.Popen(command, **options))
    else:
        sys.path.insert(0, str(HERE.parent / "cluster"))
        import cluster as clusters
        try:
            with clusters.Cluster(len(files_of(arguments)), arguments.rate) as cluster:
                def start(number, command, **options):
                    return cluster.start(clusters.SWITCH if number is None else number, [*command, "--address", f"{cluster.scheduler}:{PORT}"],
                                         **options)

                code, result = run(arguments, start)
                result |= {"sent_bytes": cluster.sent_bytes(), "received_bytes": cluster.received_bytes()}
        except clusters.CannotRun as error:
            print(f"flower.py: {error}", file=sys.stderr)
            return clusters.EXIT_CANNOT_RUN
        except clusters.Interrupted:
            return clusters.EXIT_INTERRUPTED
    print(json.dumps(result))
    return code


if __name__ == "__main__":
    sys.exit(main())
