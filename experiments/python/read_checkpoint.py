#!/usr/bin/env python3
"""Reads a Modelet checkpoint with only Python's standard library.

Prints layers, shapes and statistics of every array and verifies that the modelets cover each layer exactly.

The format is described in docs/checkpoint_format.md; the safetensors part follows that format's public definition
(8 bytes header length, JSON header, data), so safetensors.numpy.load_file reads the same files.

Exit codes: 0 the checkpoint is correct, 1 a file is damaged or missing, 2 bad arguments, or there is no checkpoint.
"""
import argparse
import array
import contextlib
import glob
import json
import math
import os
import signal
import struct
import sys

# dtype -> (bytes of an element, array type code; None: bfloat16, widened by hand)
DTYPES = {"U8": (1, "B"), "BF16": (2, None), "F32": (4, "f"), "U32": (4, "I"), "I64": (8, "q"), "U64": (8, "Q")}
MAX_HEADER = 16 << 20


class BadCheckpoint(Exception):
    pass


class NoCheckpoint(Exception):
    pass


def require(condition, message):
    if not condition:
        raise BadCheckpoint(message)


@contextlib.contextmanager
def reading(name):
    """A context in which every error names this file."""
    try:
        yield
    except OSError as problem:
        raise BadCheckpoint(f"{name}: {problem.strerror}") from None
    except KeyError as problem:
        raise BadCheckpoint(f"{name}: {problem} is missing or unknown") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise BadCheckpoint(f"{name}: not as the format says: {problem}") from None


def read_safetensors(path):
    """Returns ({name of an array: (dtype, shape, values)}, metadata)."""
    file_name = os.path.basename(path)
    with open(path, "rb") as file:
        blob = file.read()
    require(len(blob) >= 8, f"{file_name}: too short")
    (length,) = struct.unpack_from("<Q", blob)
    require(length <= min(MAX_HEADER, len(blob) - 8), f"{file_name}: header of {length} bytes")
    header = json.loads(blob[8 : 8 + length].decode("utf-8"))
    data = blob[8 + length :]
    metadata = header.pop("__metadata__", {})
    tensors, covered = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        size, code = DTYPES[entry["dtype"]]
        require(begin == covered and end <= len(data), f"{file_name}: {name}: offsets {begin}..{end}")
        require(end - begin == math.prod(entry["shape"]) * size, f"{file_name}: {name}: size does not fit shape")
        covered = end
        tensors[name] = (entry["dtype"], entry["shape"], decode(data[begin:end], code))
    require(covered == len(data), f"{file_name}: {len(data) - covered} bytes behind the last array")
    return tensors, metadata


def decode(data, code):
    if code is None:  # bfloat16: the upper half of a float32
        values = array.array("f", b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)))
    else:
        values = array.array(code, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def statistics(values):
    if not values:
        return {"min": None, "max": None, "mean": None}
    require(all(map(math.isfinite, values)), "values that are not finite")
    return {"min": min(values), "max": max(values), "mean": math.fsum(values) / len(values)}


def check_cover(index):
    """Checks that the ranges of every layer follow each other without gaps, and that the output layer has one neuron for each label."""
    layers = {}
    for modelet in index["modelets"]:
        layers.setdefault(modelet["layer"], []).append(modelet)
    require(sorted(layers) == list(range(len(layers))), "layers do not count up from 0")
    shape = index["data_shape"]
    inputs = shape.get("occurring_features", shape["features"])  # only these have rows
    for layer in sorted(layers):
        reached = 0
        for modelet in layers[layer]:
            require(modelet["begin"] == reached < modelet["end"], f"{modelet['name']}: gap or overlap before it")
            require(modelet["inputs"] == inputs, f"{modelet['name']}: {modelet['inputs']} inputs, expected {inputs}")
            reached = modelet["end"]
        inputs = reached
    require(inputs == index["data_shape"]["labels"], f"output layer has {inputs} neurons, not one a label")
    return layers


def find_index(folder):
    if not os.path.isdir(folder):
        raise NoCheckpoint("no such folder; a checkpoint is a folder")
    path = os.path.join(folder, "index.json")
    if os.path.isfile(path):
        return path
    for parent in (os.path.join(folder, "checkpoints"), folder):
        steps = sorted(glob.glob(os.path.join(glob.escape(parent), "step-*", "index.json")))
        if steps:
            raise NoCheckpoint(f"the folder of a run; name one of its checkpoints, such as {os.path.dirname(steps[-1])}")
    raise NoCheckpoint("no checkpoint: there is no index.json")


def read_modelet(folder, modelet):
    """Returns {name of an array: what it is, and its statistics}."""
    require(os.path.basename(modelet["file"]) == modelet["file"], f"{modelet['file']}: leaves the folder")
    path = os.path.join(folder, modelet["file"])
    with reading(modelet["file"]):
        require(os.path.getsize(path) == modelet["bytes"], f"{modelet['file']}: not {modelet['bytes']} bytes long")
        tensors, _ = read_safetensors(path)
    arrays = {}
    for name, (dtype, shape, values) in tensors.items():
        try:
            arrays[name] = {"dtype": dtype, "shape": shape, **statistics(values)}
        except BadCheckpoint as problem:
            raise BadCheckpoint(f"{modelet['file']}: {name}: {problem}") from None
    return arrays


def read_checkpoint(folder):
    path = find_index(folder)
    with reading("index.json"):
        with open(path, encoding="utf-8") as file:
            index = json.load(file)
        require(index.get("format") == "modelet-checkpoint", "index.json: not the index of a Modelet checkpoint")
        require(index.get("version") in (1, 2), f"index.json: format version {index.get('version')}, this script reads 1 and 2")
        report = {"step": index["step"], "modelet_version": index["modelet_version"], "layers": []}
        for _, modelets in sorted(check_cover(index).items()):
            entries = [{"name": modelet["name"], "arrays": read_modelet(folder, modelet)} for modelet in modelets]
            report["layers"].append({"kind": modelets[0]["kind"], "inputs": modelets[0]["inputs"],
                                     "neurons": modelets[-1]["end"], "modelets": entries})
    return report


def print_report(report):
    print(f"step {report['step']}, written by modelet {report['modelet_version']}")
    for number, layer in enumerate(report["layers"]):
        print(f"layer {number}: {layer['kind']}, {layer['inputs']} inputs, {layer['neurons']} neurons, "
              f"{len(layer['modelets'])} modelets")
        for modelet in layer["modelets"]:
            print(f"  {modelet['name']}")
            for name, a in modelet["arrays"].items():
                values = "empty" if a["mean"] is None else f"min {a['min']:.6g} mean {a['mean']:.6g} max {a['max']:.6g}"
                print(f"    {name:16} {a['dtype']:4} {a['shape']}  {values}")
    print("every layer is covered exactly")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", help="a checkpoint: RUN/checkpoints/step-0000001434")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head`
    try:
        report = read_checkpoint(arguments.folder)
    except (BadCheckpoint, NoCheckpoint) as problem:
        print(f"{arguments.folder}: {problem}", file=sys.stderr)
        return 1 if isinstance(problem, BadCheckpoint) else 2
    if arguments.json:
        json.dump(report, sys.stdout)
        print()
    else:
        print_report(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
