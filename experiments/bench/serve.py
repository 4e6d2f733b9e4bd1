#!/usr/bin/env python3
"""The latency of `modelet serve` under load, compared with a plain PyTorch + FastAPI server with the same model, in one run.

The model has Amazon-670K's shape (670,091 labels, synthetic). Each server gets one core, and wrk (Debian) another one. wrk asks single
questions about test samples over connections that stay open. One connection shows the latency, several show how much the core can answer.
Prints p50, p99 and answers a second of each, and the ratios. Exit code 1: something is missing or failed, an answer was wrong, or with
--require a bound (p50 0.5 ms, p99 2 ms, sparse, one connection) was missed.

PyTorch's server needs `experiments/bench/install_peers.sh torch` first; fastapi and uvicorn are installed into build/peers/serving here.
"""
import argparse
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import measuring

PEERS = measuring.ROOT / "build/peers"
PINNED = ("fastapi==0.115.6", "uvicorn==0.34.0")
HERE = pathlib.Path(__file__).resolve().parent
BOUNDS = {"p50_ms": 0.5, "p99_ms": 2.0}
STARTS_WITHIN = 300  # seconds

# The script for wrk: it sends the questions of a file in turn, and prints a line of JSON at the end.
LUA = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local at = 0
local headers = {["Content-Type"] = "application/json"}
request = function()
  at = at %% #bodies + 1
  return wrk.format("POST", "/v1/predict", headers, bodies[at])
end
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('{"answers": %%d, "seconds": %%f, "p50_ms": %%f, "p99_ms": %%f, "failed": %%d}\\n', summary.requests,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--data", type=pathlib.Path, default=measuring.ROOT / "build/bench/amazon-670k-shape",
                        help="folder with train.mlt and test.mlt; made if it is not there")
    parser.add_argument("--run", type=pathlib.Path, default=measuring.ROOT / "build/bench/serve-run", help="trained if it is not there")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--connections", type=int, default=8, help="of the measurement of what a core can answer")
    parser.add_argument("--without-pytorch", action="store_true")
    parser.add_argument("--require", action="store_true", help="exit 1 if a bound is missed")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def make_model(arguments):
    measuring.require_modelet(arguments.modelet)
    if not (arguments.data / "train.mlt").exists():
        run(arguments.modelet, "data", "synth", arguments.data, "--preset", "amazon-670k", "--rows", 100000, "--rows-test", 2000)
    if not (arguments.run / "checkpoints").exists():
        events = measuring.run_train(arguments.modelet, measuring.ROOT / "experiments/amazon-670k-shape.toml", 1,
                                     [f"data.train={arguments.data / 'train.mlt'}", f"data.test={arguments.data / 'test.mlt'}"], arguments.run)
        say(f"trained: P@1 {events[-1]['p_at_1']:.3f}")
    # Sparse scoring is tuned and probabilities are calibrated once, on all cores; both are kept beside the checkpoint.
    say("prepares sparse scoring and probabilities")
    run(arguments.modelet, "predict", arguments.run, arguments.data / "test.mlt", "--sparse", "--proba", "--limit", 1,
        stdout=subprocess.DEVNULL)


def questions(arguments, folder):
    """Writes a file of questions, one a line, with the features of samples of the test data."""
    test = folder / "test.txt"
    lines = []
    # Prepared files are binary, so questions use the text that synth writes for a model of this shape.
    run(arguments.modelet, "data", "synth", folder / "text", "--preset", "amazon-670k", "--rows", 1000, "--rows-test", 1000, "--text",
        stdout=subprocess.DEVNULL)
    for _, features in measuring.xmc_rows(folder / "text/test.txt"):
        lines.append(json.dumps({"features": {"ids": [int(f) for f, _ in features], "values": [float(v) for _, v in features]}, "k": 5}))
    test.write_text("\n".join(lines) + "\n")
    return test


class Server:
    """A server on the first core, at self.port, until the end of the block."""

    def __init__(self, command, endpoint=None, port=None, environment=None):
        self.command, self.endpoint, self.port, self.environment = command, endpoint, port, environment

    def __enter__(self):
        first = min(os.sched_getaffinity(0))
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen([str(part) for part in ("taskset", "-c", first, *self.command)], env=self.environment,
                                        stdout=subprocess.DEVNULL, stderr=self.log, text=True)
        end = time.monotonic() + STARTS_WITHIN
        while not self.is_there():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.log.seek(0)
                sys.exit(f"{self.log.read()[-3000:]}\ndid not start: {' '.join(map(str, self.command))}")
            time.sleep(0.1)
        return self

    def is_there(self):
        if self.endpoint is not None:
            if not self.endpoint.exists():
                return False
            self.port = int(self.endpoint.read_text().rsplit(":", 1)[1])
        try:
            return self.ask("GET", "/healthz", None)[0] == 200
        except OSError:
            return False

    def ask(self, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        result = answer.status, answer.read()
        connection.close()
        return result

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def load(server, questions_file, connections, seconds, folder):
    """Runs wrk on the last core and returns what it measured."""
    script = folder / "questions.lua"
    script.write_text(LUA % questions_file)
    last = max(os.sched_getaffinity(0))
    others = measuring.OthersShare()
    before = measuring.cpu_seconds(server.process.pid)
    done = run("taskset", "-c", last, "wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "10s", "-s", script,
               f"http://127.0.0.1:{server.port}", stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    if result["failed"]:
        sys.exit(f"{result['failed']} questions of {result['answers']} failed")
    # The server is a child that has not ended, so its share is subtracted here.
    own = (measuring.cpu_seconds(server.process.pid) - before) / result["seconds"] / os.cpu_count()
    return {**result, "answers_per_second": result["answers"] / result["seconds"],
            "others_share": max(0.0, round(others.until_now() - own, 3))}


def install_serving():
    """Returns the Python of a virtual environment with fastapi, and the place of torch; nothing if torch is not there."""
    torch = next(PEERS.glob("torch/lib/python3*/site-packages"), None)
    if torch is None:
        return None
    environment = PEERS / "serving"
    if not (environment / "bin/uvicorn").exists():
        run(PEERS / "torch/bin/python", "-m", "venv", environment)
        run(environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *PINNED)
    return environment / "bin/python", torch


def contestants(arguments, folder):
    modelet = [arguments.modelet, "serve", arguments.run, "--listen", "127.0.0.1:0", "--threads", 1, "--queries", arguments.data / "test.mlt"]
    yield "modelet --sparse", lambda: Server([*modelet, "--sparse", "--endpoint-file", folder / "a"], folder / "a")
    yield "modelet --sparse, scores alone", lambda: Server([*modelet, "--sparse", "--no-probabilities", "--endpoint-file", folder / "b"], folder / "b")
    yield "modelet, all labels", lambda: Server([*modelet, "--no-probabilities", "--endpoint-file", folder / "c"], folder / "c")
    serving = None if arguments.without_pytorch else install_serving()
    if serving is None:
        return
    python, torch = serving
    for name, dtype in (("PyTorch + FastAPI, fp32", "float32"), ("PyTorch + FastAPI, bf16", "bfloat16")):
        port = 8571 if dtype == "float32" else 8572
        environment = {**os.environ, "PYTHONPATH": str(torch), "OMP_NUM_THREADS": "1"}
        yield name, lambda port=port, dtype=dtype, environment=environment: Server(
            [python, HERE / "serve_pytorch.py", arguments.run, "--port", port, "--dtype", dtype], port=port, environment=environment)


def main():
    arguments = parse_arguments()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two cores are needed: one for the server, one for what asks it")
    make_model(arguments)
    results, answers = {}, {}
    with tempfile.TemporaryDirectory(prefix="modelet-serve-") as name:
        folder = pathlib.Path(name)
        asked = questions(arguments, folder)
        sample = asked.read_text().splitlines()[0]
        for contestant, start in contestants(arguments, folder):
            say(f"{contestant}: loads the model")
            with start() as server:
                status, answer = server.ask("POST", "/v1/predict", sample)
                if status != 200:
                    sys.exit(f"{contestant}: {answer.decode()}")
                answers[contestant] = [round(label["score"], 2) for label in json.loads(answer)["labels"]]
                say(f"{contestant}: is asked")
                load(server, asked, 1, 1, folder)  # warm
                results[contestant] = {"one": load(server, asked, 1, arguments.seconds, folder),
                                       "several": load(server, asked, arguments.connections, arguments.seconds, folder)}
    print(f"{'':32}{'p50 ms':>9}{'p99 ms':>9}{'answers/s':>11}   with {arguments.connections}: {'p99 ms':>9}{'answers/s':>11}{'others':>8}")
    for name, result in results.items():
        one, several = result["one"], result["several"]
        print(f"{name:32}{one['p50_ms']:9.2f}{one['p99_ms']:9.2f}{one['answers_per_second']:11.0f}"
              f"{several['p99_ms']:19.2f}{several['answers_per_second']:11.0f}{max(one['others_share'], several['others_share']):8.0%}")
    first = results["modelet --sparse"]["one"]
    for name, result in results.items():
        if name.startswith("PyTorch"):
            print(f"{name}: p50 {result['one']['p50_ms'] / first['p50_ms']:.0f} times that of modelet --sparse, "
                  f"p99 {result['one']['p99_ms'] / first['p99_ms']:.0f} times; best scores {answers[name]} and {answers['modelet --sparse']}")
    if any(max(r["others_share"] for r in result.values()) > measuring.BUSY_SHARE for result in results.values()):
        print("Other processes were busy meanwhile: do not quote these figures.")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    missed = [f"{key} {first[key]:.2f}, more than {bound}" for key, bound in BOUNDS.items() if first[key] > bound]
    if arguments.require and missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
