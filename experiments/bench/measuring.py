"""What the drivers of this folder share: running `modelet train`, alternating repeats, medians, noticing a busy machine."""

import json
import lzma
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_MODELET = ROOT / "build/release/bin/modelet"
CUTS = (1, 3, 5)  # k of P@k
SECONDS_TO_STOP = 20
BUSY_SHARE = 0.10  # of the machine, used by others; above it a figure is marked


def run_json_lines(command):
    """Runs a program that writes JSON Lines to standard output, and returns the events. The last one must be "finished".

    If the program fails, its standard error is shown and the driver ends.
    """
    with tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=errors, text=True)
        except OSError as error:
            sys.exit(f"cannot run {command[0]}: {error.strerror}")
        errors.seek(0)
        shown = " ".join(map(str, command))
        if done.returncode:
            sys.exit(f"{errors.read()[-4000:]}\nfailed with exit code {done.returncode}: {shown}")
        try:
            events = [json.loads(line) for line in done.stdout.splitlines()]
        except ValueError as error:
            sys.exit(f"standard output is not JSON Lines ({error}): {shown}")
    if not events or events[-1].get("event") != "finished":
        sys.exit(f'the last line is not the "finished" event: {shown}')
    return events


class ProgramFailed(Exception):
    """A program of a comparison could not be started, or ended with an error. The text says which one, and where its log is."""


def run_measured(command, log):
    """Runs a program. Returns (standard output as text, seconds, peak resident bytes). Its standard error goes to the file `log`.

    Ctrl-C reaches the program as well. It gets SECONDS_TO_STOP to end; then it is killed.
    """
    words = [str(part) for part in command]
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, open(log, "w", encoding="utf-8") as errors:
        interrupts = []
        handler = signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))  # an exception during the start would lose the program
        try:
            process = subprocess.Popen(words, stdout=output, stderr=errors, text=True)
        except OSError as error:
            raise ProgramFailed(f"cannot run {words[0]}: {error.strerror}") from None
        finally:
            signal.signal(signal.SIGINT, handler)
        try:
            if interrupts:
                raise KeyboardInterrupt
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            process.terminate()
            try:
                process.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        seconds = time.monotonic() - started
        if process.returncode:
            raise ProgramFailed(f"{pathlib.Path(words[0]).name} ended with exit code {process.returncode}: {last_line(log)} (all of it: {log})")
        output.seek(0)
        return output.read(), seconds, usage.ru_maxrss * 1024


def last_line(file):
    lines = pathlib.Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")[-300:]


def run_train(modelet, experiment, nodes, settings, out):
    """Runs `modelet train` into the folder `out` and returns its events. `settings` are "section.key=value"."""
    require_modelet(modelet)
    command = [modelet, "train", experiment, "--nodes", nodes, "--out", out, "--json"]
    return run_json_lines(command + [part for setting in settings for part in ("--set", setting)])


def train(modelet, experiment, nodes, settings):
    """The same with a temporary output folder."""
    with tempfile.TemporaryDirectory(prefix="modelet-bench-") as out:
        return run_train(modelet, experiment, nodes, settings, out)


def evaluate(modelet, checkpoint, test):
    """Returns P@1 of a checkpoint."""
    require_modelet(modelet)
    done = subprocess.run([str(part) for part in (modelet, "eval", checkpoint, test, "--k", 1, "--json")],
                          stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["p_at_1"]


def require_modelet(modelet):
    if not pathlib.Path(modelet).is_file():
        sys.exit(f"{modelet} does not exist. Build it: cmake --preset release && cmake --build --preset release")


def xmc_rows(path):
    """Yields (set of labels, [(feature, value), ...]) for each row of an XMC text, plain or .xz. All of these are strings."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt") as file:
        next(file)
        for line in file:
            labels, _, features = line.rstrip("\n").partition(" ")
            yield set(filter(None, labels.split(","))), [tuple(pair.split(":")) for pair in features.split()]


def read_predictions(path):
    """Reads a file with a line for each row: the labels of the row as strings, best first."""
    return [line.split() for line in pathlib.Path(path).read_text(encoding="ascii").splitlines()]


def precision(predictions, truth):
    """Returns {"p_at_1": ..., "p_at_3": ..., "p_at_5": ...}. For each row, P@k is the share of true labels among its first k predictions;
    the mean is over all rows.

    predictions: labels of each row, best first; truth: the set of labels of each row. Fewer than k predictions are misses, so a row
    without predictions, or without labels, counts as 0.
    """
    if len(predictions) != len(truth):
        raise ValueError(f"predictions for {len(predictions)} rows, of {len(truth)}")
    hits = {cut: sum(len(labels.intersection(best[:cut])) for best, labels in zip(predictions, truth)) for cut in CUTS}
    return {f"p_at_{cut}": count / cut / len(truth) for cut, count in hits.items()}


def _busy_seconds():
    """CPU seconds that all processes of the machine, and of its host, have used. Interrupts belong to no process and are left out."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, _, _, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cpu_seconds(process):
    """CPU seconds that all threads of a process, given by its id, have used so far."""
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    """CPU seconds of the ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class OthersShare:
    """Measures the share of the machine's cores that others use from now on. Children count as ours once they have ended."""

    def __init__(self):
        self.started, self.busy, self.own = time.monotonic(), _busy_seconds(), _own_seconds()

    def until_now(self):
        others = (_busy_seconds() - self.busy) - (_own_seconds() - self.own)
        return round(max(0.0, others / (time.monotonic() - self.started) / os.cpu_count()), 3)


def alternate(contestants, repeats):
    """Runs the contestants in turn, `repeats` times, so that drift of the machine affects them alike.

    contestants: name -> function that returns a "finished" event. Returns name -> list of events. Each event gets
    "others_share", the share of the machine's cores that other processes used meanwhile.
    """
    runs = {name: [] for name in contestants}
    for repeat in range(repeats):
        for name, contestant in contestants.items():
            others = OthersShare()
            event = dict(contestant())
            event["others_share"] = others.until_now()
            runs[name].append(event)
            speed = f"{event['samples_per_second']:,.0f} samples/s" if "samples_per_second" in event else f"{event['train_seconds']:.2f} s"
            print(f"  {repeat + 1}/{repeats} {name}: {speed}, P@1 {event['p_at_1']:.4f}", file=sys.stderr, flush=True)
    return runs


def summary(events):
    rates = [event["samples_per_second"] for event in events]
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates),
            "p_at_1": statistics.median(event["p_at_1"] for event in events)}


def print_rates(runs):
    """Prints a table of samples/s. Returns name -> summary."""
    summaries = {name: summary(events) for name, events in runs.items()}
    width = max(22, *(len(name) + 2 for name in runs))
    print(f"{'samples/s':<{width}}{'median':>10}{'min':>10}{'max':>10}{'P@1':>9}")
    for name, row in summaries.items():
        print(f"{name:<{width}}{row['median']:>10,.0f}{row['min']:>10,.0f}{row['max']:>10,.0f}{row['p_at_1']:>9.4f}")
    warn_if_busy(runs)
    return summaries


def warn_if_busy(runs):
    busiest = max(event["others_share"] for events in runs.values() for event in events)
    if busiest > BUSY_SHARE:
        print(f"The machine was not quiet: other processes used up to {busiest:.0%} of it during a run. "
              "Do not quote these figures.")


def finish(result, json_file, passed):
    if json_file:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if passed else 1)
