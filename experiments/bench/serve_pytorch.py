#!/usr/bin/env python3
"""Serves a checkpoint of Modelet with PyTorch and FastAPI, as one writes such a server in an afternoon: the other side of serve.py.

All labels are scored with one product, and topk finds the best. `label` is the number of the neuron, since Modelet shuffles labels.
"""
import argparse
import json
import pathlib
import struct

import fastapi
import numpy as np
import pydantic
import torch
import uvicorn


def weights(path):
    """Reads {name: torch tensor} from a safetensors file with 32-bit floats."""
    blob = np.memmap(path, np.uint8, "r")
    (length,) = struct.unpack("<Q", blob[:8].tobytes())
    header = json.loads(blob[8:8 + length].tobytes())
    arrays = {}
    for name in ("weight", "bias"):
        if name in header:
            begin, end = header[name]["data_offsets"]
            raw = torch.from_numpy(np.array(blob[8 + length + begin:8 + length + end]))
            kind = {"BF16": torch.bfloat16, "F32": torch.float32}[header[name]["dtype"]]
            arrays[name] = raw.view(kind).view(header[name]["shape"]).float()
    return arrays


class Features(pydantic.BaseModel):
    ids: list[int]
    values: list[float]


class Question(pydantic.BaseModel):
    features: Features
    k: int = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = sorted((arguments.run / "checkpoints").glob("step-*"))[-1]
    entries = json.loads((checkpoint / "index.json").read_text())["modelets"]

    def layer(kind):
        return [weights(checkpoint / entry["file"]) for entry in sorted(entries, key=lambda e: e["begin"]) if entry["kind"] == kind]

    inputs = torch.cat([part["weight"] for part in layer("input")], 1)  # [features + 1, hidden], the last row is the bias
    outputs = layer("output")
    dtype = getattr(torch, arguments.dtype)
    output = torch.cat([part["weight"] for part in outputs]).to(dtype)
    bias = torch.cat([part["bias"] for part in outputs]).to(dtype)
    app = fastapi.FastAPI()

    @app.post("/v1/predict")
    async def predict(question: Question):
        with torch.inference_mode():
            rows = inputs[torch.tensor(question.features.ids)]
            hidden = torch.relu(torch.tensor(question.features.values) @ rows + inputs[-1])
            best = torch.topk(torch.addmv(bias, output, hidden.to(dtype)), question.k)
        return {"labels": [{"label": label, "score": score} for label, score in zip(best.indices.tolist(), best.values.tolist())]}

    @app.get("/healthz")
    async def health():
        return {"status": "ok"}

    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
