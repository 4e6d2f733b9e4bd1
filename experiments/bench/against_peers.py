#!/usr/bin/env python3
"""Modelet against the systems that a practitioner would use instead: P@k and seconds on the same split, machine and threads.

    experiments/bench/install_peers.sh                                   # once: label trees, PyTorch, fastText
    experiments/bench/against_peers.py --data FOLDER --fresh --repeats 3 # everything; FOLDER/SET/train.txt.xz and test.txt.xz
    experiments/bench/against_peers.py --sets debian-deps --peers modelet,parabel

Prints a table for each set, and writes plots of P@1 and P@5 against seconds. One function computes P@k for all systems, from the labels
that they predict. Seconds of training do not include reading text; seconds of prediction are listed separately; memory is the peak of the
largest process. Contestants run in turn, --repeats times, Modelet with seed 1, 2, ..., and medians are shown. README.md describes the contestants.

Results are kept in --json after every run. A second call continues where the first was stopped, and repeats only runs that failed or
whose programs, settings or data have changed. Exit codes: 0 done; 1 something failed, or with --require a bound is missed; 2 wrong
arguments; 130 interrupted.
"""

import argparse
import json
import lzma
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import time

import measuring
import peers
import peers_report

SETS = ["debian-deps", "npm-deps", "eurlex57k"]
DATASETS = measuring.ROOT / "experiments/datasets"
EXIT_INTERRUPTED = 130


def names(text):
    return [name for name in text.split(",") if name]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=names, default=SETS, help="comma-separated (default: %(default)s)")
    parser.add_argument("--peers", type=names, default=list(peers.CONTESTANTS), help=f"comma-separated, of {', '.join(peers.CONTESTANTS)} (default: all)")
    parser.add_argument("--data", type=pathlib.Path, default=DATASETS,
                        help="folder with a folder for each set (default: experiments/datasets); a set that is not there is looked for in the default")
    parser.add_argument("--modelet", type=pathlib.Path, default=measuring.DEFAULT_MODELET)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=measuring.ROOT / "build/bench", help="folder for plots, logs and text (default: build/bench)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="results (default: against_peers.json in --out)")
    parser.add_argument("--fresh", action="store_true", help="run again what --json has already")
    parser.add_argument("--report-only", action="store_true", help="run nothing: table and plots of what --json has")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="passed on to modelet")
    parser.add_argument("--require", action="store_true", help="exit 1 if a bound is missed")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.peers if name not in peers.CONTESTANTS]
    if unknown:
        parser.error(f"--peers: unknown: {', '.join(unknown)}; known: {', '.join(peers.CONTESTANTS)}")
    arguments.json = arguments.json or arguments.out / "against_peers.json"
    arguments.modelet = arguments.modelet.resolve()
    return arguments


# ---- data ----------------------------------------------------------------------------------------------------------

def find_set(arguments, name):
    places = [peers.DataSet(name, folder / name) for folder in dict.fromkeys((arguments.data, DATASETS))]
    found = next((data for data in places if data.file("train") and data.file("test")), None)
    return found or sys.exit(f"{name}: no train.txt(.xz) and test.txt(.xz) in {' or '.join(str(data.folder) for data in places)}; say where with --data")


def plain_text(data, folder):
    """Returns {"train": file, "test": file}. Systems that cannot read .xz get an unpacked copy, kept in `folder` until the original
    changes."""
    files = {}
    for part in ("train", "test"):
        files[part] = data.file(part).resolve()
        if files[part].suffix == ".xz":
            plain, source = folder / f"{part}.txt", folder / f"{part}.source"
            original = files[part].stat()
            identity = f"{original.st_ino} {original.st_size} {original.st_mtime_ns} {original.st_ctime_ns}"
            if not plain.exists() or not source.exists() or source.read_text() != identity:
                source.unlink(missing_ok=True)
                folder.mkdir(parents=True, exist_ok=True)
                with lzma.open(files[part]) as packed, open(plain.with_suffix(".new"), "wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
                plain.with_suffix(".new").rename(plain)
                source.write_text(identity)
            files[part] = plain
    return files


# ---- runs ----------------------------------------------------------------------------------------------------------

class Results:
    """The results, in a file that is written after every run."""

    def __init__(self, file):
        self.file = file
        self.content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"machine": {}, "records": []}

    def known(self, key, fingerprint):
        """The record of (set, contestant, repeat), if it has a result and the same fingerprint."""
        return next((record for record in self.content["records"] if _key(record) == key and record["fingerprint"] == fingerprint and "points" in record), None)

    def keep(self, record, machine):
        kept = [other for other in self.content["records"] if _key(other) != _key(record)]
        self.content |= {"machine": machine, "records": kept + [record]}
        unfinished = self.file.with_suffix(".new")
        unfinished.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        unfinished.rename(self.file)


def _key(record):
    return record["set"], record["contestant"], record["repeat"]


def machine():
    model = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return {"cpu": model[1] if model else platform.machine(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def execute(arguments, data, text, truth, name, repeat):
    """Runs a contestant once and returns the record."""
    contestant = peers.CONTESTANTS[name]
    record = {"set": data.name, "contestant": name, "title": contestant.title, "repeat": repeat, "threads": arguments.threads,
              "at": time.strftime("%Y-%m-%d %H:%M:%S"),
              "fingerprint": contestant.fingerprint(data, arguments.modelet, arguments.set, arguments.threads)}
    log = arguments.out / "logs" / f"{data.name}-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    others, started = measuring.OthersShare(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="against-peers-") as scratch:
        job = peers.Job(data, text["train"], text["test"], truth, arguments.threads, repeat, arguments.modelet, arguments.set, pathlib.Path(scratch), log)
        try:
            record |= contestant.run(job)
        except (measuring.ProgramFailed, ValueError, LookupError, OSError) as error:
            record["error"] = str(error) if isinstance(error, measuring.ProgramFailed) else f"{type(error).__name__}: {error} (log: {log})"
    return record | {"wall_seconds": round(time.monotonic() - started, 1), "others_share": others.until_now()}


def summary(record):
    if "error" in record:
        return record["error"]
    best = max(record["points"], key=lambda point: point["p_at_1"])
    return (" / ".join(f"{100 * best[f'p_at_{cut}']:.1f}" for cut in measuring.CUTS)
            + f", training {best['train_seconds']:.1f} s, prediction {best['predict_seconds']:.1f} s, others used {record['others_share']:.0%} of the machine")


def run_all(arguments, results):
    """Runs what is missing of the plan. Returns whether every run has a result."""
    measuring.require_modelet(arguments.modelet)
    data_sets = [find_set(arguments, name) for name in arguments.sets]
    missing = {(data.name, name): peers.CONTESTANTS[name].missing(data) for data in data_sets for name in arguments.peers}
    for reason in dict.fromkeys(f"{peers.CONTESTANTS[name].title} on {set_name} is left out: {why}" for (set_name, name), why in missing.items() if why):
        print(reason, file=sys.stderr)
    plan = [(repeat, data, name) for repeat in range(1, arguments.repeats + 1) for data in data_sets for name in arguments.peers if not missing[data.name, name]]
    failed, truths, texts = 0, {}, {}
    for number, (repeat, data, name) in enumerate(plan, 1):
        contestant = peers.CONTESTANTS[name]
        known = results.known((data.name, name, repeat), contestant.fingerprint(data, arguments.modelet, arguments.set, arguments.threads))
        words = f"{number}/{len(plan)} {data.name}, {contestant.title}"
        if known and not arguments.fresh:
            print(f"{words}: kept from {known['at']}: {summary(known)}", file=sys.stderr)
            continue
        print(f"{time.strftime('%H:%M:%S')} {words} ...", file=sys.stderr, flush=True)
        if data.name not in texts:
            texts[data.name] = plain_text(data, arguments.out / "text" / data.name)
            truths[data.name] = [labels for labels, _ in measuring.xmc_rows(texts[data.name]["test"])]
        record = execute(arguments, data, texts[data.name], truths[data.name], name, repeat)
        results.keep(record, machine())
        failed += "error" in record
        print(f"{time.strftime('%H:%M:%S')} {words}: {summary(record)}", file=sys.stderr, flush=True)
    return not failed


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.json)
    try:
        complete = arguments.report_only or run_all(arguments, results)
    except KeyboardInterrupt:
        print(f"against_peers.py: interrupted; finished runs are in {arguments.json}, call it again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(peers_report.text(results.content))
    for file in peers_report.write_plots(results.content, arguments.out):
        print(f"plot: {file}")
    missed = [what for what, _, _, reached in peers_report.bounds(results.content) if not reached]
    return 0 if complete and not (arguments.require and missed) else 1


if __name__ == "__main__":
    sys.exit(main())
