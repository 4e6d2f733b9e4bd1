"""Runs the real programs the way a user does, for the tests beside this file.

Every program gets a session of its own (setsid), which its children cannot leave by accident. So its children can be found
in /proc by the id of the session, even after the program itself has ended. A test ends all sessions that it began, by pid.
A program that ends normally must leave no child behind. If a test is killed, the kernel ends its programs (die_with_parent).
"""
import ctypes
import functools
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

PROGRAMS = pathlib.Path(os.environ["MODELET_PROGRAMS"])
LIMIT = 120  # seconds; only ends a test that would fail anyway

EXPERIMENT = """
[data]
train = "data/train.txt"
test = "data/test.txt"

[model]
hidden = [64]

[modelets]
hidden_columns = 16
output_modelets = 8

[sampling]
mode = "uniform"
uniform = 128

[train]
epochs = 5
batch = 64
learning_rate = 1e-2
threads = 1
log_every = 1
checkpoint_every = 1000000
"""
STEPS_PER_EPOCH = 25  # 1600 rows
LABELS = 200
# Events of a run. All of them have a time (docs/events.md).
RUN_EVENTS = {"preparing", "recipe", "sending", "submitted", "fetching", "started", "progress", "evaluating", "epoch", "checkpoint", "replanned", "finished",
              "interrupted", "failed"}
WHEN_SLOW = {"preparing", "evaluating"}  # events of work that takes longer than some seconds
TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"
ENDED = ("finished", "failed", "stopped")  # states of a run
ENDLESS = ("--set", "train.epochs=100000", "--set", "train.evaluate_every=0")


def wait_until(condition, what, limit=LIMIT):
    """Waits for a true value of `condition` and returns it."""
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"never happened within {limit} s: {what() if callable(what) else what}")
        time.sleep(0.01)
    return value


def connect(address):
    """Opens a TCP connection to "tcp://HOST:PORT" that sends nothing."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    connection = socket.socket()
    connection.settimeout(LIMIT)
    connection.connect((host, int(port)))
    return connection


def is_shut(connection):
    """Reads everything that has arrived. Returns whether the other side has ended the connection."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(parent):
    """Called in a child between fork and exec: the child is killed when the thread that started it ends. What it starts with --parent
    follows."""
    if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent:
        os._exit(1)


def processes_of_session(session):
    """{pid: program} of the living processes of the session. A zombie does not count."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = pathlib.Path(entry.path, "stat").read_text()
            arguments = pathlib.Path(entry.path, "cmdline").read_text()
        except OSError:
            continue  # it has just ended
        state, _parent, _group, its_session = text[text.rindex(")") + 2:].split()[:4]
        if int(its_session) == session and state != "Z":
            found[int(entry.name)] = pathlib.Path(arguments.split("\0")[0]).name
    return found


def limits_of(pid):
    """{limit: (soft, hard)} of a process, as the kernel names and prints them."""
    lines = pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]  # "Max open files   1024   4096   files"
    return {line[:26].strip(): tuple(line[26:].split()[:2]) for line in lines}


def documented_fields():
    """Reads docs/events.md: {event, or the heading for lines without an event: {field: (type, whether it is always there)}}."""
    document, kind = {}, None
    for line in (pathlib.Path(__file__).parents[2] / "docs/events.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            kind = line.lstrip("# ").strip("`")
        elif line.startswith("| `"):
            fields, kind_of_value, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            for field in fields.split(", "):
                document.setdefault(kind, {})[field.strip("`")] = (kind_of_value.split(",")[0], not meaning.startswith("*only*"))
    return document


FIELD_TYPES = {"boolean": bool, "string": str, "integer": int, "number": (int, float), "list": list, "object": dict}


class Program:
    """A started program. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, arguments, folder, environment, name, cwd, stdout=None, stdin=subprocess.DEVNULL):
        self.name = " ".join(str(argument) for argument in arguments)
        self._stdout, self._stderr = folder / f"{name}.out", folder / f"{name}.err"
        with open(self._stdout, "wb") as out, open(self._stderr, "wb") as err:
            self._popen = subprocess.Popen([str(PROGRAMS / arguments[0]), *map(str, arguments[1:])], cwd=cwd,
                                           env=environment, stdin=stdin, stdout=out if stdout is None else stdout, stderr=err,
                                           start_new_session=True, preexec_fn=functools.partial(die_with_parent, os.getpid()))
        self.pid = self._popen.pid

    @property
    def stdout(self):
        return self._stdout.read_text()

    @property
    def stderr(self):
        return self._stderr.read_text()

    def events(self, kind=None):
        """The complete JSON lines that it has written so far."""
        lines = [json.loads(line) for line in self.stdout.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if kind is None or line.get("event") == kind]

    def running(self):
        return self._popen.poll() is None

    def signal(self, number):
        assert self.running(), f"{self.name} has ended already: {self.stderr}"
        os.kill(self.pid, number)

    def end(self, limit=LIMIT):
        """Waits for the end and returns the exit code."""
        try:
            return self._popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end within {limit} s; {self}") from None

    def wait_for_step(self, step):
        """Waits until the run has done `step` steps, which it reports one by one (train.log_every = 1)."""
        def reached():
            ended = not self.running()  # before its events are read: it may just do the step and end
            if any(event["step"] >= step for event in self.events("progress")):
                return True
            if ended:
                raise AssertionError(f"ended before step {step}: {self}")
            return False
        wait_until(reached, lambda: f"step {step} of {self}")

    def children(self):
        """{pid: program} of the processes that it started and that still live."""
        return {pid: name for pid, name in processes_of_session(self.pid).items() if pid != self.pid}

    def kill_all(self):
        for pid in processes_of_session(self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._popen.wait()

    def __str__(self):
        return f"{self.name}\nexit code {self._popen.poll()}\nstdout: {self.stdout[-1000:]}\nstderr: {self.stderr[-3000:]}"


class ProgramTest(unittest.TestCase):
    """Has a folder with a data set that can be learned and its experiment file. Runs programs there, and ends them all."""
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="modelet-cli-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        for name in ("temporary", "output", "runtime"):
            (cls.folder / name).mkdir(mode=0o700)
        cls.environment = {**os.environ, "MODELET_CACHE": str(cls.folder / "cache"), "TMPDIR": str(cls.folder / "temporary"),
                           "XDG_RUNTIME_DIR": str(cls.folder / "runtime"), "XDG_STATE_HOME": str(cls.folder / "state"),
                           "MODELET_DEDICATED": "1"}
        cls.experiment = cls.folder / "small.toml"
        cls.experiment.write_text(EXPERIMENT)
        subprocess.run([PROGRAMS / "modelet", "data", "synth", "data", "--text", "--rows", "1600", "--rows-test", "1000",
                        "--features", "400", "--labels", str(LABELS), "--features-per-row", "20", "--labels-per-row", "2"],
                       cwd=cls.folder, env=cls.environment, check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        self._started = []
        self.addCleanup(self._kill_all)

    def _kill_all(self):
        for program in self._started:
            program.kill_all()

    def start(self, *arguments, cwd=None, **streams):
        """Starts a program (its name, then arguments) in the folder of the test. Its output goes to a file or to `stdout`. It has
        no input, or `stdin`."""
        name = f"{self._testMethodName}-{len(self._started)}"
        program = Program(arguments, self.folder / "output", self.environment, name, cwd or self.folder, **streams)
        self._started.append(program)
        return program

    def run_program(self, *arguments, code=0, limit=LIMIT, **streams):
        """Runs a program to its end. It must end with `code` and leave no process behind."""
        program = self.start(*arguments, **streams)
        self.assert_ends(program, code, limit)
        return program

    def assert_ends(self, program, code, limit=LIMIT):
        self.assertEqual(program.end(limit), code, str(program))
        self.assertEqual(processes_of_session(program.pid), {}, f"left behind by {program.name}")

    def modelet(self, *arguments, **options):
        return self.run_program("modelet", *arguments, **options)

    def train(self, out, *arguments, **options):
        """Trains to the end with --json."""
        return self.modelet("train", self.experiment, "--out", self.folder / out, "--json", *arguments, **options)

    def start_training(self, out, *arguments, **options):
        return self.start("modelet", "train", self.experiment, "--out", self.folder / out, "--json", *arguments, **options)

    def assert_no_pool_folders(self):
        """A local pool removes the folder of its logs when it ends."""
        self.assertEqual(list((self.folder / "temporary").iterdir()), [])

    def assert_documented(self, lines, kinds):
        """`lines` have exactly these `kinds` (and perhaps those that only a slow machine shows) and exactly the fields of
        docs/events.md: all that are always there, and each of the others at least once."""
        document, seen = documented_fields(), {}
        for line in lines:
            kind = line.get("event", "".join(kinds))
            if kind in RUN_EVENTS:
                self.assertRegex(line["time"], TIME)
                line = {key: value for key, value in line.items() if key != "time"}
            fields = document[kind]
            missing = {field for field, (_, always) in fields.items() if always} - set(line)
            self.assertEqual((missing, set(line) - set(fields) - {"event"}), (set(), set()), line)
            for field in set(line) - {"event"}:
                self.assertIsInstance(line[field], FIELD_TYPES[fields[field][0]], f"{field} of {line}")
            if kind in kinds or kind not in WHEN_SLOW:
                seen.setdefault(kind, set()).update(set(line) - {"event"})
        self.assertEqual(seen, {kind: set(document[kind]) for kind in kinds})

    def assert_refused(self, code, texts, *arguments):
        """The program ends with `code`, writes nothing on standard output, and writes all of `texts` on standard error."""
        return self.assert_refuses(self.start(*arguments), code, texts)

    def assert_refuses(self, program, code, texts):
        self.assert_ends(program, code)
        self.assertEqual(program.stdout, "")
        for text in [texts] if isinstance(texts, str) else texts:
            self.assertIn(text, program.stderr)
        self.assertNotIn("terminate called", program.stderr)
        return program


class PoolTest(ProgramTest):
    """Has a scheduler, agents that a test starts, each with a working folder of its own, and the verbs."""
    scheduler_arguments = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.environment["MODELET_INSECURE"] = "1"  # keys_test.py has pools with keys

    def setUp(self):
        super().setUp()
        self.pool = self.folder / self._testMethodName
        self.pool.mkdir()
        endpoint = self.pool / "endpoint"
        config = self.pool / "scheduler.toml"
        config.write_text(f'listen = "tcp://127.0.0.1:*"\nendpoint_file = "{endpoint}"\nheartbeat_seconds = 0.2\n'
                          'dead_after_seconds = 3\n')
        self.scheduler = self.start("modelet-scheduler", "--config", config, *self.scheduler_arguments)
        wait_until(endpoint.exists, lambda: f"scheduler started: {self.scheduler}")
        self.address = endpoint.read_text().strip()

    def agent(self, name, *arguments, **options):
        config = self.pool / f"{name}.toml"
        config.write_text(f'scheduler = "{self.address}"\nname = "{name}"\ncores = 1\nmemory_mib = 1000\n'
                          f'gflops = 10\nmemory_gbps = 5\nwork_dir = "{self.pool / name}"\ndata_root = ["{self.folder}"]\n')
        before = len(self.present_nodes())
        agent = self.start("modelet-agent", "--config", config, *arguments, **options)
        wait_until(lambda: len(self.present_nodes()) > before, lambda: f"agent registers: {agent}")
        return agent

    def verb(self, *arguments, **options):
        """Runs a verb with --json and returns its lines."""
        return self.modelet(*arguments, "--scheduler", self.address, "--json", **options).events()

    def nodes(self):
        return {node["name"]: node for node in self.verb("nodes")}

    def present_nodes(self):
        """Those that are not lost."""
        return [node for node in self.nodes().values() if node["state"] != "lost"]

    def runs(self):
        return {run["run"]: run for run in self.verb("list")}

    def submit(self, *arguments):
        *_sending, answer = self.verb("submit", self.experiment, *arguments)
        self.assert_documented([answer], {"submitted"})
        self.assertEqual(answer["event"], "submitted")
        return answer["run"]

    def wait_for(self, run, condition, what):
        def status_if_so():
            status = self.runs()[run]
            return status if condition(status) else None
        return wait_until(status_if_so, lambda: f"run {run} {what}: {self.runs()[run]}")

    def wait_for_end(self, run):
        return self.wait_for(run, lambda status: status["state"] in ENDED, "ends")

    def assert_finishes(self, run):
        status = self.wait_for_end(run)
        self.assertEqual((status["state"], status["detail"]), ("finished", ""))

    def wait_for_step(self, run, step):
        return self.wait_for(run, lambda status: status["step"] >= step, f"does step {step}")


class PoolWithInvitations(ProgramTest):
    """Has a scheduler with keys and a state, the keys of an administrator and a user, and agents that join."""

    def setUp(self):
        super().setUp()
        self.pool = self.folder / self._testMethodName
        self.pool.mkdir()
        self.state = self.pool / "state"
        self.public = {"scheduler": self.modelet("keygen", self.pool / "scheduler.key").stdout.strip()}
        self.state.mkdir(mode=0o700)
        for role, name in (("admin", "root"), ("user", "alice")):
            self.modelet("keygen", self.pool / f"{name}.key", "--allow-list", self.state / "allowed", "--role", role, "--name", name)
        self.config = self.pool / "scheduler.toml"
        self.config.write_text(f'listen = "tcp://127.0.0.1:*"\nendpoint_file = "{self.pool / "endpoint"}"\nheartbeat_seconds = 0.2\n'
                               f'dead_after_seconds = 3\nkey = "{self.pool / "scheduler.key"}"\nstate = "{self.state}"\n')
        self.start_scheduler()

    def start_scheduler(self):
        (self.pool / "endpoint").unlink(missing_ok=True)
        self.scheduler = self.start("modelet-scheduler", "--config", self.config)
        wait_until((self.pool / "endpoint").exists, lambda: f"scheduler started: {self.scheduler}")
        self.address = (self.pool / "endpoint").read_text().strip()

    def invite(self, *arguments):
        return self.run_program("modelet-scheduler", "invite", "--config", self.config, "--address", self.address, *arguments).stdout.strip()

    def join_arguments(self, word, name):
        return ("modelet-agent", "join", word, "--name", name, "--config", self.pool / name / "agent.toml", "--no-start")

    def agent(self, name, *more):
        return self.start("modelet-agent", "--config", self.pool / name / "agent.toml", "--cores", "1", "--memory-mib", "1000", "--gflops", "10",
                          "--memory-gbps", "5", "--work-dir", self.pool / name / "work", *more)

    def stranger(self, name):
        """An agent with a key that nobody knows."""
        (self.pool / name).mkdir(exist_ok=True)
        self.modelet("keygen", self.pool / name / "agent.key")
        (self.pool / name / "agent.toml").write_text(f'scheduler = "{self.address}"\nscheduler_key = "{self.public["scheduler"]}"\n'
                                                     f'key = "{self.pool / name / "agent.key"}"\nname = "{name}"\n')
        return self.agent(name)

    def verb(self, *arguments, key="root", **options):
        return self.modelet(*arguments, "--scheduler", self.address, "--key", self.pool / f"{key}.key", "--scheduler-key", self.public["scheduler"],
                            "--json", **options)

    def nodes(self, *arguments):
        return {node["name"]: node for node in self.verb("nodes", *arguments).events()}

    def states(self):
        return {name: node["state"] for name, node in self.nodes().items()}


def losses(program):
    """{step: loss} of a training with train.log_every = 1."""
    return {event["step"]: event["loss"] for event in program.events("progress")}


def finished(program):
    last = program.events()[-1]
    assert last["event"] == "finished", program
    return last


def checkpoint_files(checkpoint):
    """{name: bytes} of the modelets."""
    files = {file.name: file.read_bytes() for file in pathlib.Path(checkpoint).glob("*.safetensors")
             if file.name != "sparse_plan.safetensors"}  # no part of the checkpoint
    assert files, f"{checkpoint} has no modelets"
    return files


def set_number(checkpoint, layer, array, place, value):
    """Writes another float into an array of the checkpoint's first modelet of a layer, with right checksums."""
    index = json.loads((checkpoint / "index.json").read_text())
    entry = next(modelet for modelet in index["modelets"] if modelet["kind"] == layer)
    file = checkpoint / entry["file"]
    content = bytearray(file.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    begin, _end = json.loads(content[8:8 + length])[array]["data_offsets"]
    struct.pack_into("<f", content, 8 + length + begin + 4 * place, value)
    file.write_bytes(content)
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype = ctypes.c_uint64
    entry["xxh3"] = f"{library.XXH3_64bits(bytes(content), ctypes.c_size_t(len(content))):016x}"
    (checkpoint / "index.json").write_text(json.dumps(index))
    return file


def newest_checkpoint(run):
    return sorted(folder for folder in (run / "checkpoints").iterdir() if not folder.name.startswith("."))[-1]
