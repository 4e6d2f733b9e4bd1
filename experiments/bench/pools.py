"""A pool on this machine for the drivers in this folder: a scheduler and agents, each with a key, that can be killed and started again."""

import datetime
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 60.0  # seconds for things that take a moment
ENDED = ("finished", "failed", "stopped")  # states of a run
SPEED = ["--gflops", "50", "--bf16-gflops", "50", "--memory-gbps", "10", "--memory-mib", "2048"]  # declared, not measured
EXACT = ["exchange.codec=none", "exchange.gradient_codec=none"]


def as_options(settings):
    """The options of `modelet` for settings "section.key=value"."""
    return [part for setting in settings for part in ("--set", setting)]


def wait_until(condition, what, seconds=PATIENCE, pause=0.05):
    """Waits for a true value of `condition` and returns it. Ends the driver if there is none in time. `what` is a text, or a function
    that returns one."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            sys.exit(f"did not happen within {seconds:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause)
    return value


def seconds_of(event):
    """Seconds since 1970 of an event's time."""
    return datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()


def steps_of(events):
    """The events that report completed steps."""
    return [event for event in events if event["event"] == "progress"]


class Pool:
    """Processes in `folder`, with their logs. It is a context manager, whose end ends them. `scheduler_options` begin with those of the
    driver."""

    listen = "tcp://127.0.0.1:*"  # of the scheduler

    def __init__(self, programs, folder, *scheduler_options):
        self.programs, self.folder = pathlib.Path(programs).resolve(), folder
        self.processes, self._logs = {}, {}
        self._options = scheduler_options
        self.scheduler_key = self._make_key("scheduler")
        self._enrol("user", "user", "script")

    def _make_key(self, name):
        made = subprocess.run([self.programs / "modelet", "keygen", self.folder / f"{name}.key"], check=True, stdout=subprocess.PIPE, text=True)
        return made.stdout.strip()

    def _enrol(self, role, key, name):
        """Without `keygen --allow-list`, which builds of before do not know: drivers compare with them."""
        with open(self.folder / "allowed", "a", encoding="utf-8") as file:
            file.write(f"{role} {self._make_key(key)} {name}\n")

    def __enter__(self):
        self.start_scheduler(self.listen)
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    def placed(self, name, words):
        """The command that runs `words` in the place of the process `name`, which is this machine here."""
        return words

    def _start(self, name, *words):
        self._logs.setdefault(name, self.folder / f"{name}.log")
        with open(self._logs[name], "ab") as log:
            words = [str(word) for word in (*words, "--exit-with-parent", os.getpid())]
            self.processes[name] = subprocess.Popen(self.placed(name, words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def logs(self, lines=20):
        """The ends of all logs, without the lines about chunks of files."""
        def end(log):
            shown = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if " info data " not in line]
            return "\n".join(shown[-lines:])
        return "\n".join(f"--- {log.name}\n{end(log)}" for log in sorted(self._logs.values()))

    def start_scheduler(self, listen=None):
        """Starts the scheduler. If it is started again, it gets the same address."""
        endpoint = self.folder / "endpoint"
        endpoint.unlink(missing_ok=True)
        self._start("scheduler", self.programs / "modelet-scheduler", "--listen", listen or self.address, "--endpoint-file", endpoint,
                    "--key", self.folder / "scheduler.key", "--allow-list", self.folder / "allowed", *self._options)
        wait_until(lambda: endpoint.exists() and endpoint.read_text(encoding="utf-8").endswith("\n") or self._ended("scheduler"),
                   lambda: f"the scheduler starts\n{self.logs()}")
        if self._ended("scheduler"):
            sys.exit(f"the scheduler has ended\n{self.logs()}")
        self.address = endpoint.read_text(encoding="utf-8").strip()

    def start_agent(self, name, *options, pinned=()):
        """Starts an agent, perhaps again, and waits until the scheduler knows it. `pinned`: a command that runs it, such as taskset."""
        if not (self.folder / f"{name}.key").exists():
            self._enrol("agent", name, name)
        self._start(name, *pinned, self.programs / "modelet-agent", "--scheduler", self.address, "--name", name, "--work-dir", self.folder / name,
                    "--key", self.folder / f"{name}.key", "--scheduler-key", self.scheduler_key, *options)
        wait_until(lambda: name in self.nodes(), lambda: f"agent {name} registers\n{self.logs()}")

    def _ended(self, name):
        return self.processes[name].poll() is not None

    def kill(self, name):
        """Kills a process, as a power cut would. Returns the time."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        killed = time.time()
        process.wait()
        return killed

    def end(self, name):
        """Asks a process to end, and waits until it has."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            sys.exit(f"{name} does not end when it is asked to\n{self.logs()}")

    def client(self, *words):
        """The command of a verb."""
        return self.placed("user", [str(word) for word in (self.programs / "modelet", *words, "--scheduler", self.address, "--key", self.folder / "user.key",
                                                           "--scheduler-key", self.scheduler_key, "--json")])

    def verb(self, *words):
        """Runs a verb, which must succeed, and returns its JSON lines. A verb that changes nothing is repeated if the answer comes too
        late."""
        end = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(self.client(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            is_busy = "did not answer within" in done.stderr or "no scheduler answers" in done.stderr  # or it is being restarted
            if words[0] == "submit" or not is_busy or time.monotonic() > end:
                break
        if done.returncode:
            sys.exit(f"modelet {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr}\n{self.logs()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def nodes(self):
        return {node["name"]: node for node in self.verb("nodes")}

    def runs(self):
        return {run["run"]: run for run in self.verb("list")}

    def members(self, run):
        """The names of the nodes that work for the run, in alphabetical order."""
        return sorted(name for name, node in self.nodes().items() if node["run"] == run)

    def submit(self, experiment, nodes, settings):
        *_, answer = self.verb("submit", experiment, "--nodes", nodes, *as_options(settings))
        return answer["run"]

    def watch(self, run):
        return Watcher(self, run)

    def wait_for_end(self, run, seconds):
        def ended():
            status = self.runs()[run]
            return status if status["state"] in ENDED else None
        return wait_until(ended, lambda: f"run {run} ends: {self.runs()[run]}\n{self.logs()}", seconds, 0.5)

    def fetch(self, run):
        """Fetches the newest checkpoint of the run from the scheduler's store and returns its folder."""
        return pathlib.Path(self.verb("fetch", run, "--out", self.folder / f"fetched-{run}")[-1]["checkpoint"])


class Watcher:
    """Runs `modelet watch`, with its lines in a file."""

    def __init__(self, pool, run):
        self.run = run
        self._file = pool.folder / f"watch-{run}.jsonl"
        with open(self._file, "wb") as out:
            self._process = subprocess.Popen(pool.client("watch", run), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        pool.processes[f"watch-{run}"] = self._process

    def events(self, kind=None):
        """The events in the complete lines so far."""
        with open(self._file, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [line for line in lines if kind in (None, line.get("event"))]

    def step(self):
        """The last step that was reported; 0: none."""
        return max((event["step"] for event in self.events("progress")), default=0)

    def wait_for_step(self, step, seconds):
        wait_until(lambda: self.step() >= step or self._process.poll() is not None, lambda: f"run {self.run} does step {step}, not {self.step()}", seconds)
        if self.step() < step:
            sys.exit(f"run {self.run} ended before step {step}: {self.events()[-1:]}")

    def has_ended(self):
        return self._process.poll() is not None

    def end(self, seconds):
        """Waits for the last event of the run. Returns the exit code of the watcher."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            sys.exit(f"watching run {self.run} does not end within {seconds:.0f} s; last event: {self.events()[-1:]}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def lasting(folder):
    """The options of a scheduler that will be restarted: a folder for its state, and a fixed port for data."""
    return ["--state", folder / "state", "--data-port", free_port()]


def fix_instruction_set(programs):
    """Makes all processes use one instruction set: $MODELET_SIMD, or the one that `programs` choose by themselves. Prints it."""
    if "MODELET_SIMD" not in os.environ:
        shown = subprocess.run([str(programs / "modelet"), "version"], check=True, stdout=subprocess.PIPE, text=True).stdout
        os.environ["MODELET_SIMD"] = shown.strip().rpartition("(")[2].rstrip(")")
    print(f"instruction set {os.environ['MODELET_SIMD']}")
