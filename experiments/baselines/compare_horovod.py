#!/usr/bin/python3
"""Modelet against Horovod, DistributedDataParallel and a sharded softmax by hand, on nodes with shaped links on this machine.

    sudo compare_horovod.py --short          the headline, two widths, 1 and 4 nodes: under 10 minutes on two quiet cores
    sudo compare_horovod.py                  everything: an hour and a half
    compare_horovod.py --report-only         the report again, from the results so far

Writes report.html (one file, with plots) and report.json to --out after each part, so they can be read at any time. The result of each part
is kept in --cache under its settings and the programs that ran it. A second call runs only parts that are missing or have failed; --fresh
runs all. The report also has the parts that failed, with the reason.

Needs root (experiments/cluster), Horovod (install_horovod.sh; without it its parts fail) and Modelet's programs. Exit codes: 0 all parts are
there, 1 some failed, 77 this machine cannot run a cluster, 130 interrupted: call it again to go on.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[1:1] = [str(ROOT / "experiments" / folder) for folder in ("cluster", "bench", "simulate")]
import cluster as clusters
import compare_report
import curves
import launch
import measuring
import peers
import simulate
import train_modelet

AMAZON = ROOT / "experiments/amazon-670k-shape.toml"
DEBIAN = ROOT / "experiments/debian-deps-fast.toml"
BILLION = ROOT / "experiments/billion.toml"
DEBIAN_DATA = ROOT / "experiments/datasets/debian-deps"

HIDDEN, BATCH = 128, 256
HEADLINE_WIDTH, HEADLINE_NODES, HEADLINE_RATE = (compare_report.HEADLINE[name] for name in ("width", "nodes", "rate"))
WIDTHS = [16_384, 65_536, 131_072, 325_056, HEADLINE_WIDTH]
NODES, RATES = [1, 2, 4], ["100mbit", "1gbit", "10gbit"]
ROWS, ROWS_TEST = 100_000, 2_000
ACTIVE_SHARE = 0.005  # of the labels; drawn in each step in addition to the labels of the batch
RATE = 1e-2  # learning rate at Amazon's shape; experiments/bench/README.md says how it was chosen
DENSE_RATES = [5e-3, 1e-2, 2e-2]  # of the full softmax; among 2.5e-3 to 4e-2 the best after an epoch with 16,384 labels are 7e-3 and 1e-2
PART_SECONDS = 3600.0  # after that a part has failed
BILLION_DATA = {"rows": 51_200, "rows-test": 512, "features": 10_000, "features-per-row": 40, "labels": 1_000_000, "labels-per-row": 2}


# ---- the plan: each part is a dictionary, which is also its key in the cache -----------------------------------------

def shape(system, nodes=HEADLINE_NODES, rate=HEADLINE_RATE, width=HEADLINE_WIDTH, **more):
    return {"data": "amazon", "system": system, "nodes": nodes, "rate": rate, "width": width, **more}


def horovod(mode="dense", **where):
    """Runs few steps, because they are long and alike: at 100 Mbit/s the wire alone takes 50 s."""
    long = where.get("width", HEADLINE_WIDTH) >= 100_000
    steps = 2 if where.get("rate") == "100mbit" else 4 if long else 8
    return shape("Horovod", mode=mode, warmup=1 if long else 2, steps=steps, **where)


def sampled(system, **where):
    """Training on sampled labels is fast enough for a whole epoch, with P@1 after it."""
    return shape(system, warmup=20, steps=ROWS // BATCH, learning_rate=RATE, evaluate=True, **where)


def some_sampled(system, **where):
    """Only as many steps as it takes to measure their time."""
    return shape(system, warmup=5, steps=30, **where)


def one_process(system, width, learning_rate):
    """What every dense data-parallel system learns from the same number of samples, because its step, with all gradients added up, equals
    this one. Computed by PyTorch or, if that takes 20 minutes, by Modelet with all neurons active."""
    return {"data": "amazon", "system": f"{system} full", "width": width, "learning_rate": learning_rate}


def debian(system, **more):
    return {"data": "debian-deps", "system": system, "nodes": HEADLINE_NODES, "rate": HEADLINE_RATE, **more}


def links():
    return [{"data": "link", "system": "link", "rate": rate} for rate in RATES]


def own_cores():
    """Modelet on nodes that each have a core or a share of one: how it scales if nodes share no cores, and with unequal nodes."""
    def part(cores, rate=HEADLINE_RATE):
        return {"data": "own cores", "system": "Modelet", "nodes": len(cores), "rate": rate, "width": HEADLINE_WIDTH, "cores": cores}

    return [part([1]), part([0.5]), part([1, 1]), part([1, 1], "100mbit"), part([1, 0.5])]


def billion():
    return {"data": "billion", "system": "Modelet", "nodes": HEADLINE_NODES, "rate": HEADLINE_RATE}


SIMULATION = {"data": "simulation", "system": "simulator", "width": HEADLINE_WIDTH}


def short_plan():
    parts = links() + [shape("Modelet", nodes=nodes, width=width) for width in (WIDTHS[0], HEADLINE_WIDTH) for nodes in (HEADLINE_NODES, 1)]
    parts += [shape("Modelet", mode=compare_report.WITH_KEYS)]
    parts += [horovod("dense", nodes=nodes, width=width) for width in (HEADLINE_WIDTH, WIDTHS[0]) for nodes in (HEADLINE_NODES, 1)]
    parts += [horovod("sparse"), horovod("sparse-fp16"), some_sampled("Horovod", mode="sampled"), sampled("sharded by hand")]
    return parts + [one_process("PyTorch", WIDTHS[0], RATE), *own_cores(), SIMULATION]


def full_plan():
    """One node uses no link, so it is measured at one rate only."""
    where = [(nodes, rate) for nodes in NODES for rate in RATES if nodes > 1 or rate == HEADLINE_RATE]
    parts = links() + [shape("Modelet", nodes=nodes, rate=rate, width=width) for width in WIDTHS for nodes, rate in where]
    parts += [shape("Modelet", mode=compare_report.WITH_KEYS)]
    parts += [horovod(mode) for mode in compare_report.FULL_SOFTMAX]
    parts += [horovod("dense", nodes=nodes, width=width) for width in WIDTHS for nodes in NODES]
    parts += [horovod("dense", rate=rate) for rate in RATES] + [horovod("sparse", rate=rate) for rate in RATES]
    parts += [shape("DDP", mode=mode, warmup=1, steps=4) for mode in ("dense", "sparse", "fp16")]
    parts += [some_sampled(system, mode="sampled") for system in ("Horovod", "DDP")]
    parts += [sampled("sharded by hand", width=width) for width in WIDTHS]
    parts += [some_sampled("sharded by hand", width=width, rate=rate) for width in WIDTHS for rate in RATES if rate != HEADLINE_RATE]
    parts += [some_sampled("sharded by hand", nodes=nodes) for nodes in NODES if nodes != HEADLINE_NODES]
    sampling = {"learning_rate": 2e-2, "schedule": "linear", "steps": 179, "warmup": 10, "evaluate_every": 30}
    full = {"learning_rate": 5e-3, "schedule": "linear", "steps": 358, "warmup": 10, "evaluate_every": 30}
    parts += [debian("Modelet"), debian("sharded by hand", **sampling), debian("Horovod", mode="sampled", **sampling)]
    parts += [debian("Horovod", mode=mode, **full) for mode in ("dense", "sparse")]
    parts += [one_process("PyTorch", WIDTHS[0], learning_rate) for learning_rate in DENSE_RATES] + [one_process("Modelet", WIDTHS[0], RATE)]
    parts += [one_process("Modelet", HEADLINE_WIDTH, learning_rate) for learning_rate in DENSE_RATES]
    return parts + [*own_cores(), billion(), SIMULATION]


# ---- running -------------------------------------------------------------------------------------------------------

class Runner:
    def __init__(self, arguments):
        self.programs, self.python, self.cache, self.settings = arguments.programs, arguments.python, arguments.cache, arguments.set

    def data(self, width):
        """The folder of synthetic data of Amazon-670K's shape with this many labels. It is made once."""
        folder = self.cache / f"amazon-shape-{width}-{ROWS}-{ROWS_TEST}"
        if not (folder / "complete").exists():
            subprocess.run([self.programs / "modelet", "data", "synth", "--force", folder, "--preset", "amazon-670k", "--labels", str(width),
                            "--rows", str(ROWS), "--rows-test", str(ROWS_TEST), "--text"], check=True, stdout=subprocess.DEVNULL)
            (folder / "complete").touch()
        return folder

    def data_settings(self, part):
        """The keys that name the data and the active share of a part with Amazon-670K's shape."""
        folder = self.data(part["width"])
        return [f"data.train={folder / 'train.mlt'}", f"data.test={folder / 'test.mlt'}", f"sampling.uniform={draws(part['width'])}"]

    def cut(self, part):
        """The keys for the modelets of a part. Nodes with cores of their own get modelets that are small enough for any share of a core."""
        if part["data"] == "own cores":
            return ["modelets.hidden_columns=16", "modelets.output_modelets=24"]
        return [f"modelets.hidden_columns={max(16, HIDDEN // part.get('nodes', 1))}"] if part["data"] in ("amazon", "debian-deps") else []

    def billion_data(self):
        folder = self.cache / ("billion-" + "-".join(map(str, BILLION_DATA.values())))
        if not (folder / "complete").exists():
            words = [word for name, value in BILLION_DATA.items() for word in (f"--{name}", str(value))]
            subprocess.run([self.programs / "modelet", "data", "synth", "--force", folder, *words], check=True, stdout=subprocess.DEVNULL)
            (folder / "complete").touch()
        return [f"data.train={folder / 'train.mlt'}", f"data.test={folder / 'test.mlt'}"]

    def run(self, part):
        if part["system"] in ("PyTorch full", "Modelet full"):
            return self._pytorch_full(part) if part["system"] == "PyTorch full" else self._modelet_full(part)
        if part["system"] == "simulator":
            return curves.curves(self.programs / "modelet", AMAZON, [*self.data_settings(part), *self.settings], HIDDEN)
        if part["system"] == "link":
            with clusters.Cluster(2, part["rate"]) as cluster:
                return {"payload_bits_per_second": cluster.measure_rate(0, 1, int(clusters.BITS_PER_SECOND[part["rate"]] / 8 / 4))}
        cores = part.get("cores")
        with clusters.Cluster(part["nodes"], part["rate"], cpu=cores, pin=cores is not None) as cluster:
            return self._modelet(cluster, part) if part["system"] == "Modelet" else self._baseline(cluster, part)

    def _modelet(self, cluster, part):
        settings, experiment, parameters = ["train.checkpoint_every=1000000000", *self.cut(part)], AMAZON, None
        if part["data"] == "billion":
            experiment, settings = BILLION, settings + self.billion_data()
            parameters = simulate.plan(self.programs / "modelet", experiment, part["nodes"], settings, gflops=[100], memory_gbps=[20])["parameters"]
        elif part["data"] == "debian-deps":
            experiment = DEBIAN
        else:
            settings += self.data_settings(part)
        found = train_modelet.train(cluster, self.programs, experiment, settings + self.settings, keys=part.get("mode") == compare_report.WITH_KEYS,
                                    curve_test=DEBIAN_DATA / "test.txt.xz" if part["data"] == "debian-deps" else None)
        return {"parameters": parameters, "steps": found["steps"], "seconds_per_step": found["seconds_per_step"], "sent_bytes": found["sent_bytes"],
                "own_meter_bytes": found["own_meter_bytes"],
                **{field: found[field] for field in ("compute_seconds", "codec_seconds", "wait_seconds")},
                "peak_rss_bytes": [found["finished"]["peak_rss_bytes"]], "curve": found["curve"], "p_at_1": found["finished"]["p_at_1"]}

    def _baseline(self, cluster, part):
        words = ["--steps", part["steps"], "--warmup", part["warmup"], "--hidden", HIDDEN, "--batch", BATCH]
        words += ["--mode", part["mode"]] if "mode" in part else []
        words += ["--lr", part.get("learning_rate", RATE), "--schedule", part.get("schedule", "constant")]
        if part["data"] == "amazon":
            folder = self.data(part["width"])
            words += ["--train", folder / "train.txt", "--rows", part["steps"] * BATCH, "--negatives", draws(part["width"])]
            words += ["--test", folder / "test.txt"] if part.get("evaluate") else []
        else:
            words += ["--train", DEBIAN_DATA / "train.txt.xz", "--test", DEBIAN_DATA / "test.txt.xz", "--evaluate-every", part["evaluate_every"]]
        family = {"Horovod": "horovod", "DDP": "ddp", "sharded by hand": "sharded"}[part["system"]]
        found = launch.launch(cluster, self.python, family, words, seconds=PART_SECONDS)
        kept = ("steps", "seconds_per_step", "sent_bytes", "wait_seconds", "cpu_seconds", "peak_rss_bytes", "blas")
        last = found["curve"][-1:]
        return {name: found[name] for name in kept} | {"curve": [(point["train_seconds"], point["p_at_1"]) for point in found["curve"]],
                                                       "p_at_1": last[0]["p_at_1"] if last else None}

    def _modelet_full(self, part):
        keys = [*self.data_settings(part), *self.cut(part), *self.settings, "sampling.mode=full", "model.precision=fp32", f"train.learning_rate={part['learning_rate']}",
                "train.checkpoint_every=1000000000"]
        with tempfile.TemporaryDirectory(prefix="modelet-full-") as folder:
            command = [self.programs / "modelet", "train", AMAZON, "--json", "--out", folder, *(word for key in keys for word in ("--set", key))]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=PART_SECONDS)
        if done.returncode:
            raise train_modelet.RunFailed(done.stderr[-800:])
        found = json.loads(done.stdout.splitlines()[-1])
        return {"p_at_1": found["p_at_1"], "train_seconds": found["train_seconds"]}

    def _pytorch_full(self, part):
        folder = self.data(part["width"])
        options = {"train": folder / "train.txt", "test": folder / "test.txt", "epochs": 1, "batch": BATCH, "hidden": HIDDEN,
                   "lr": part["learning_rate"], "threads": len(os.sched_getaffinity(0))}
        valued = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = subprocess.run([peers.require_torch(), peers.BASELINE, *valued, "--full"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, check=False, timeout=PART_SECONDS)
        if done.returncode:
            raise launch.BaselineFailed(done.stderr[-800:])
        found = json.loads(done.stdout.splitlines()[-1])
        return {"p_at_1": found["p_at_1"], "train_seconds": found["train_seconds"], "blas": found["blas"]}

    def fingerprint(self, part):
        """A digest of the programs and scripts that run a part. If they change, the part runs again."""
        files = [pathlib.Path(clusters.__file__)]
        if part["system"] in ("Modelet", "Modelet full"):
            files += [pathlib.Path(train_modelet.__file__), *({"billion": [BILLION], "debian-deps": [DEBIAN]}.get(part["data"], [AMAZON])),
                      *(self.programs / name for name in ("modelet", "modelet-agent", "modelet-scheduler"))]
        elif part["system"] == "simulator":
            files = [pathlib.Path(simulate.__file__), pathlib.Path(curves.__file__), AMAZON, self.programs / "modelet"]
        elif part["system"] != "link":
            files += [file for file in sorted(HERE.glob("*.py")) if not file.name.startswith("compare_")]
        settings = [*self.settings, self.cut(part), BILLION_DATA] if part["system"] in ("Modelet", "Modelet full", "simulator") else []
        digest = hashlib.sha256(json.dumps(settings).encode())
        for file in files:
            digest.update(file.read_bytes())
        return digest.hexdigest()


def draws(width):
    return math.ceil(ACTIVE_SHARE * width)


def title(part):
    if part["system"] == "link":
        return f"a link of {part['rate']}"
    if part["system"] == "simulator":
        return "what the simulator predicts for more nodes"
    if part["data"] == "own cores":
        return f"Modelet, nodes with {compare_report.cores_text(part)} core(s) of their own, {part['rate']}"
    mode = f" {part['mode']}" if "mode" in part else ""
    where = f", {part['nodes']} node(s), {part['rate']}" if "nodes" in part else f", learning rate {part['learning_rate']:g}"
    return f"{part['system']}{mode}{where}, {part['data']}" + (f" {part['width']:,} labels" if "width" in part else "")


def cache_file(runner, part):
    key = hashlib.sha256(json.dumps([part, runner.fingerprint(part)], sort_keys=True).encode()).hexdigest()
    return runner.cache / "parts" / f"{key[:20]}.json"


def execute(runner, part):
    """Runs a part. Returns {"part", "title", and "result" or "error", ...}. A result is put into the cache."""
    file = cache_file(runner, part)  # computed before the part runs, because the programs may be rebuilt meanwhile
    others, started = measuring.OthersShare(), time.monotonic()
    record = {"part": part, "title": title(part), "at": time.strftime("%Y-%m-%d %H:%M:%S")}
    try:
        record["result"] = runner.run(part)
    except (launch.BaselineFailed, train_modelet.RunFailed, subprocess.SubprocessError, RuntimeError, OSError) as error:
        record["error"] = f"{type(error).__name__}: {error}"
    except clusters.CannotRun as error:
        if "cores" not in part:  # without the controller of CPU shares, all other parts can still run
            raise
        record["error"] = f"{type(error).__name__}: {error}"
    record |= {"wall_seconds": round(time.monotonic() - started, 1), "others_share": others.until_now()}
    if "result" in record:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps(record), encoding="utf-8")
        unfinished.rename(file)
    return record


def machine(runner):
    model = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    version = subprocess.run([runner.programs / "modelet", "version"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    return {"cpu": model[1] if model else platform.machine(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "modelet": version, "threads_of_a_node": 1, "settings": runner.settings}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the headline and little more")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/compare_horovod", help="folder of the report (default: build/compare_horovod)")
    parser.add_argument("--cache", type=pathlib.Path, help="folder of finished parts and synthetic data (default: cache in --out)")
    parser.add_argument("--fresh", action="store_true", help="repeat parts that are in the cache")
    parser.add_argument("--report-only", action="store_true", help="run nothing; parts that are not in the cache are left out")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of modelet (default: build/release/bin)")
    parser.add_argument("--python", type=pathlib.Path, default=launch.DEFAULT_PYTHON, help="with Horovod (default: build/horovod-venv)")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="a key of Modelet's experiments")
    arguments = parser.parse_args()
    arguments.cache = arguments.cache or arguments.out / "cache"
    if not (arguments.programs / "modelet").is_file():
        parser.error(f"{arguments.programs} has no modelet; build it (cmake --preset release && cmake --build --preset release) or say --programs")
    return arguments


def main():
    arguments = parse_arguments()
    runner = Runner(arguments)
    plan = short_plan() if arguments.short else full_plan()
    plan = list({json.dumps(part, sort_keys=True): part for part in plan}.values())  # several plots may use the same part
    report = {"short": arguments.short, "machine": machine(runner), "records": []}
    try:
        for number, part in enumerate(plan, 1):
            known = cache_file(runner, part)
            if known.exists() and not arguments.fresh:
                record = json.loads(known.read_text(encoding="utf-8"))
            elif arguments.report_only:
                continue
            else:
                record = execute(runner, part)
            print(f"{record['at']} {number}/{len(plan)} {record['title']}: {compare_report.summary(record)}", file=sys.stderr, flush=True)
            report["records"].append(record)
            compare_report.write(report, arguments.out)
    except clusters.CannotRun as error:
        print(f"compare_horovod.py: {error}", file=sys.stderr)
        return clusters.EXIT_CANNOT_RUN
    except (clusters.Interrupted, KeyboardInterrupt):
        print("compare_horovod.py: interrupted; finished parts are kept, call it again to go on", file=sys.stderr)
        return clusters.EXIT_INTERRUPTED
    failed = [record["title"] for record in report["records"] if "error" in record]
    print(f"{arguments.out / 'report.html'}: {len(report['records']) - len(failed)} of {len(plan)} parts\n{compare_report.headline_text(report)}")
    return clusters.EXIT_FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
