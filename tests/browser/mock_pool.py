"""A server that looks to the page like modelet-scheduler --http, for a pool that exists only here. Its size is free, so
that a page can be tested with 200 nodes and 1,000 runs.

    mock_pool.py [--nodes N] [--runs N] [--port P]     serves until it is ended

The JSON is that of docs/dashboard.md.
"""
import argparse
import http.server
import json
import math
import pathlib
import random
import threading
import time
import urllib.parse

PAGE = pathlib.Path(__file__).parents[2] / "scheduler/dashboard/page"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".svg": "image/svg+xml"}
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"
INTERVALS, INTERVAL_SECONDS = 60, 10
STEPS, STEPS_PER_EPOCH = 5000, 500
EXPERIMENT = """[data]
train = "train.txt"

[model]
hidden = 128

[optimizer]
learning_rate = {rate}
"""


def utc(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}Z"


class MockPool:
    """The state. A test changes it with the lock held, or by the methods."""

    def __init__(self, nodes=3, runs=2, seed=1):
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.version = 1
        self.may_act = True
        self.posts = []  # paths of actions
        self.began = time.time() - INTERVALS * INTERVAL_SECONDS
        self.nodes = {f"node-{i:03}": self.make_node(i) for i in range(nodes)}
        self.runs, self.events = {}, {}
        self.logs = {}
        for i in range(1, runs + 1):
            self.add_run(i, state="finished")
        names = list(self.nodes)
        for i, at in enumerate(range(0, len(names) - 1, 4)):
            if i >= 40:
                break
            run = self.add_run(runs + 1 + i, "running", names[at:at + 4])
            for name in run["nodes"]:
                self.nodes[name].update(run=run["run"], state="training")
        self.queued = self.add_run(max(self.runs, default=0) + 1, "queued")
        self.queued.update(detail="waits for 4 nodes; 1 is free", queue_place=1)

    def make_node(self, i):
        return {"name": f"node-{i:03}", "version": "1.0.0", "cores": 4, "memory_bytes": 8 << 30, "gflops": 120.0, "bf16_gflops": 0.0,
                "memory_gbps": 9.5, "run": 0, "step": 0, "silent_seconds": 0.2, "compute_seconds": 0.004 + 0.0001 * (i % 7),
                "wait_share": 0.1 + 0.01 * (i % 9), "draining": False, "state": "free", "why": "", "state_seconds": 0.0, "suspended": "", "disk_free_bytes": 90 << 30, "sent_bytes": 5 << 30, "received_bytes": 7 << 30, "key": "", "address": f"10.0.{i // 250}.{i % 250 + 1}"}

    def add_run(self, number, state="running", nodes=()):
        now = time.time()
        self.runs[number] = {
            "run": number, "name": f"deps-{number}", "submitter": "alice", "state": state, "detail": "", "step": 0, "nodes": list(nodes),
            "seconds": 100.0, "submitted": utc(now - 100), "epoch": 1, "stable_step": 0, "recoveries": 0, "replans": 0, "straggler": "",
            "straggler_excess": 0.0, "parent": 0, "task": 0, "tasks": 0, "tasks_done": 0, "tasks_at_work": 0, "seconds_left": 0.0, "steps": STEPS, "loss": 0.0, "samples_per_second": 0.0, "bytes_per_step": 0.0,
            "stable_seconds": 0.0, "repeated_steps": 0, "queue_place": 0}
        self.events[number] = []
        if state != "queued":
            self.emit(number, {"event": "started", "run": f"deps-{number}", "epochs": 10, "steps": STEPS, "step": 0, "parameters": 4_700_000,
                               "nodes": max(1, len(nodes)), "replicas": 1, "threads": 4, "features": 30_000, "labels": 36_969,
                               "train_rows": 51_000, "validation_rows": 0, "instruction_set": "AVX2"}, now - 100)
            for step in range(100, 2100, 100):
                self.train(number, step, now - 100 + step / 25)
        if state == "finished":
            self.emit(number, {"event": "finished", "steps": self.runs[number]["step"], **self.figures(self.runs[number]["step"], number), "train_seconds": 90.0,
                               "samples_per_second": 9000.0, "checkpoint": f"modelet fetch {number}"}, now)
        return self.runs[number]

    @staticmethod
    def figures(step, number):
        best = 0.6 - 0.3 * math.exp(-step / 900) + 0.001 * (number % 17)
        return {"p_at_1": best, "p_at_3": 0.8 * best, "p_at_5": 0.65 * best}

    def emit(self, number, event, when=None):
        with self.lock:
            self.events[number].append({"time": utc(when or time.time()), **event})
            self.version += 1

    def train(self, number, step, when=None):
        """The run reports that it has done `step` steps."""
        with self.lock:
            run = self.runs[number]
            run["step"] = step
            for name in run["nodes"]:
                self.nodes[name]["step"] = step
            run.update(seconds_left=(STEPS - step) / 25, samples_per_second=9000.0)
            loss = 2 + 8 * math.exp(-step / (700 + 10 * (number % 11))) + self.random.uniform(-0.05, 0.05)
            times = [{"node": name, "compute_seconds": 0.004 * (1.4 if i == 1 else 1), "codec_seconds": 0.0004,
                      "wait_seconds": 0.0002 if i == 1 else 0.0018} for i, name in enumerate(run["nodes"])]
            self.emit(number, {"event": "progress", "step": step, "steps": STEPS, "epoch": 1 + step // STEPS_PER_EPOCH, "loss": loss,
                               "train_seconds": step / 25, "samples_per_second": 9000 + self.random.uniform(-300, 300),
                               "eta_seconds": (STEPS - step) / 25, "bytes_sent_per_node_per_step": 36_000, "wait_fraction": 0.2,
                               "learning_rate": 0.001, **({"nodes": times} if times else {})}, when)
            if step % STEPS_PER_EPOCH == 0:
                self.emit(number, {"event": "epoch", "epoch": step // STEPS_PER_EPOCH, "step": step, "loss": loss, "train_seconds": step / 25,
                                   "samples_per_second": 9000.0, **self.figures(step, number)}, when)
                self.emit(number, {"event": "checkpoint", "step": step, "path": f"modelet fetch {number}"}, when)

    def lose(self, name):
        """A node is killed; its run goes on without it."""
        with self.lock:
            node = self.nodes[name]
            number = node["run"]
            node.update(run=0, state="lost", state_seconds=200.0, why="silent for 5 s; start modelet-agent on its machine again")
            if number:
                run = self.runs[number]
                run["nodes"].remove(name)
                run["recoveries"] += 1
                run["epoch"] += 1
                self.emit(number, {"event": "regrouped", "why": f"lost {name}", "epoch": run["epoch"], "step": max(0, run["step"] - 50),
                                   "nodes": run["nodes"]})
            self.version += 1

    def write_log(self, number, node, text):
        with self.lock:
            self.logs[number, node] = self.logs.get((number, node), "") + text

    def pool(self, most):
        runs = sorted(self.runs.values(), key=lambda run: (run["state"] in ("finished", "stopped", "failed"), -run["run"]))
        at_work = sum(run["state"] not in ("finished", "stopped", "failed") for run in runs)
        return {"version": self.version, "may_act": self.may_act, "now": utc(time.time()),
                "scheduler": {"version": "1.0.0", "address": "tcp://10.0.0.1:5570", "started": utc(self.began), "keeps_state": True,
                              "losses": 0, "refused": 0, "errors": 0, "store_bytes": 0, "store_most_bytes": 0},
                "nodes": list(self.nodes.values()), "runs_total": len(runs), "runs": runs[:at_work + most]}

    def history(self):
        nodes = []
        for i, (name, node) in enumerate(self.nodes.items()):
            lost = node["state"] == "lost"
            wave = [0.5 + 0.5 * math.sin(i / 3 + column / 5) for column in range(INTERVALS)]
            there = [not (lost and column > INTERVALS - 6) for column in range(INTERVALS)]
            nodes.append({"name": name, **{key: [round(scale * (value if key != "wait_seconds" else 1 - value), 6) if here else None
                                                 for value, here in zip(wave, there)]
                                           for key, scale in (("compute_seconds", 0.004), ("codec_seconds", 0.0005), ("wait_seconds", 0.003))}})
        return {"interval_seconds": INTERVAL_SECONDS, "began": self.began, "first": 0, "nodes": nodes}

    def answer(self, method, path, query):
        """(status, object) of a request to the API."""
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        after = int(query.get("after", ["0"])[0])
        with self.lock:
            if method == "POST":
                if not self.may_act:
                    return 403, {"error": "the token of 'eve' is a viewer's, which may look and change nothing"}
                self.posts.append(path)
                if parts[1] == "nodes":
                    node = self.nodes[parts[2]]
                    node["draining"] = parts[3] == "drain"
                    node.update(state="drained", why="modelet drain NODE --undo") if node["draining"] else node.update(state="free", why="")
                else:
                    self.runs[int(parts[2])]["state"] = "stopping"
                self.version += 1
                return 200, {"done": True}
            if parts == ["api", "pool"]:
                return 200, self.pool(int(query.get("runs", ["200"])[0]))
            if parts == ["api", "history"]:
                return 200, self.history()
            run = self.runs.get(int(parts[2])) if parts[1] == "runs" and parts[2].isdigit() else None
            if run is None:
                return 404, {"error": f"there is no run {parts[2]}"}
            if len(parts) == 3:
                placement = [{"node": name, "modelets": 12 + i, "bytes": (30 + i) << 20} for i, name in enumerate(run["nodes"])]
                return 200, {"run": run, "experiment": EXPERIMENT.format(rate=0.001 * run["run"]), "placement": placement}
            if parts[3] == "events":
                kept = self.events[run["run"]][after:after + 1000]
                return 200, {"events": kept, "next": after + len(kept), "complete": run["state"] == "finished"}
            text = self.logs.get((run["run"], parts[4]), "")[after:]
            return 200, {"text": text, "next": after + len(text), "complete": False}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body=b"", content_type="application/json", **fields):
        self.send_response(status)
        fields = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Content-Type": content_type, **fields}
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_request(self):
        pool, url = self.server.pool, urllib.parse.urlsplit(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not url.path.startswith("/api/"):
            file = (PAGE / (url.path.lstrip("/") or "index.html")).resolve()
            if not file.is_relative_to(PAGE) or not file.is_file():
                return self.send(404, b"{}")
            return self.send(200, file.read_bytes(), TYPES.get(file.suffix, "text/plain"))
        if self.command == "POST" and not self.headers.get("X-Modelet-Action"):
            return self.send(403, b'{"error":"the field X-Modelet-Action is missing"}')
        tag = f'"{pool.version}"'
        if url.path == "/api/pool" and self.headers.get("If-None-Match") == tag:
            return self.send(304, ETag=tag)
        status, body = pool.answer(self.command, url.path, urllib.parse.parse_qs(url.query))
        self.send(status, json.dumps(body).encode(), **({"ETag": tag} if url.path == "/api/pool" else {}))

    do_GET = do_POST = handle_request


class MockServer:
    def __init__(self, pool, port=0):
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.http.pool = pool
        self.address = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--port", type=int, default=8090)
    options = parser.parse_args()
    pool = MockPool(options.nodes, options.runs)
    print(MockServer(pool, options.port).address, flush=True)
    while True:
        time.sleep(1)
        for number, run in list(pool.runs.items()):
            if run["state"] == "running":
                pool.train(number, run["step"] + 25)


if __name__ == "__main__":
    main()
