#!/usr/bin/python3
"""Computes what dense data parallelism, like Horovod's, needs at least: memory of each host, bytes and seconds of a ring all-reduce.

    dense.py 1034241000 --nodes 4 --rate 1e9 --json

This is arithmetic, not a measurement: every host has all weights, their gradients, and Adam's two moments, in fp32; a ring all-reduce sends
2 (n - 1) / n of the gradients (Patarasuk and Yuan 2009). Buffers and the program need more.
"""

import argparse
import json

FLOAT_BYTES = 4
COPIES = {"weights": 1, "gradients": 1, "Adam's moments": 2}


def needs(parameters, nodes, bits_per_second):
    """Returns {"memory_bytes": of a host, "allreduce_bytes": sent by a host in a step, "allreduce_seconds": on its link alone}."""
    sent = 2 * (nodes - 1) * parameters * FLOAT_BYTES / nodes
    return {"memory_bytes": parameters * FLOAT_BYTES * sum(COPIES.values()), "allreduce_bytes": sent, "allreduce_seconds": 8 * sent / bits_per_second}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parameters", type=int)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e9, help="bits a second (default: 1e9)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = needs(arguments.parameters, arguments.nodes, arguments.rate)
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"{found['memory_bytes'] / 1e9:.1f} GB of memory on each of {arguments.nodes} hosts, {found['allreduce_bytes'] / 1e9:.2f} GB sent by each in a step: "
              f"{found['allreduce_seconds']:.1f} s on the wire")


if __name__ == "__main__":
    main()
