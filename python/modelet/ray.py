"""Training on the machines of a Ray cluster. Ray finds, starts and replaces the machines; Modelet does the rest.

    import ray, modelet
    ray.init()                                                  # on any machine of the cluster
    run = modelet.ray.train("experiment.toml", num_nodes=8, cores=4)

Each node of the run is an agent of a pool (docs/pool.md). It runs in a Ray actor with `cores` CPUs of a placement group,
one actor on each machine. The scheduler runs in an actor on Ray's head node, the one machine that Ray itself cannot lose.
Agents and caller connect to the scheduler with keys that are made for this run, and so do agents to each other. The data
comes from the machine of the caller.

If Ray loses a machine, the pool loses an agent, and the run continues with the others from its last snapshot
(docs/reliability.md). If Ray says before that the machine will go away ("draining": a notice of the cloud, or the autoscaler), its
agent leaves first, and no step is lost. When Ray has found another machine for the actor, its agent joins the pool, and the run
may use it. What agents log is in Ray's logs, and with `log_to_driver`, as is usual, in the caller's terminal.
"""
import contextlib
import itertools
import json
import os
import re
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from modelet import _modelet, _programs
from modelet._folders import Folder
from modelet._progress import Callbacks, Listeners, Progress
from modelet._train import NEEDS_OUT, Experiment, Run, experiment_arguments, follow, raise_for

_HEAD = "node:__internal_head__"  # the resource that Ray gives its head node
_STARTS_WITHIN = 60  # seconds that the scheduler may take to start
_WORKER_STARTS_WITHIN = 600  # seconds that Ray may take to start its worker, on a busy machine
_LEAVES_WITHIN = 10  # seconds that a program may take to end after SIGTERM
_LOOKS_EVERY = 1  # seconds from one look whether Ray is draining a machine to the next


def _end(program: subprocess.Popen[Any]) -> None:
    program.terminate()
    try:
        program.wait(_LEAVES_WITHIN)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _write_key(folder: Folder, name: str, text: str) -> str:
    file = folder.path / name
    file.touch(mode=0o600)
    file.write_text(text)
    return str(file)


def _draining_nodes() -> Callable[[], Mapping[str, int]] | None:
    """The question to Ray which nodes will go away; None: this Ray does not say. Ray has no public way to ask: its own trainer
    asks in this way, too.
    """
    with contextlib.suppress(AttributeError):
        return ray._private.state.state.get_draining_nodes
    return None


class _Agent:
    """A Ray actor that runs one agent. It ends when its agent ends, so that Ray starts it again. On a draining node the agent is
    told to leave, and the actor stays: Ray starts it on another node when this one is gone.
    """

    def __init__(self, name: str, arguments: Sequence[str], key: str) -> None:
        self._name = name
        self._folder = Folder()
        key_file = _write_key(self._folder, "agent.key", key)
        self._program = subprocess.Popen(
            [_programs.path("modelet-agent"), *arguments, "--name", name, "--key", key_file, "--work-dir",
             str(self._folder.path), "--dedicated", "--exit-with-parent", str(os.getpid())])
        self._leaving = False
        threading.Thread(target=self._watch, daemon=True).start()

    def __repr__(self) -> str:
        return self._name  # what Ray writes before each line of the actor's output, which is its agent's

    def _watch(self) -> None:
        node, draining_nodes = ray.get_runtime_context().get_node_id(), _draining_nodes()
        if draining_nodes is None:
            print(f"Ray {ray.__version__} does not say which machines it is draining: the agent stays until its machine is gone", flush=True)
        while self._is_at_work():
            with contextlib.suppress(Exception):  # Ray's head does not answer now: it is asked again
                if draining_nodes is not None and not self._leaving and node in draining_nodes():
                    print("Ray is draining this machine: the agent leaves", flush=True)
                    self._leaving = True
                    self._program.terminate()
        if not self._leaving:
            os._exit(1)

    def _is_at_work(self) -> bool:
        """Waits until the next look is due, or the agent has ended."""
        try:
            self._program.wait(_LOOKS_EVERY)
        except subprocess.TimeoutExpired:
            return True
        return False

    def node(self) -> tuple[str, int]:
        """The Ray node that it is on, and the id of the agent's process."""
        return ray.get_runtime_context().get_node_id(), self._program.pid

    def leave(self) -> None:
        self._leaving = True
        _end(self._program)
        self._folder.remove()


class _Membership(NamedTuple):
    """What members of a pool need."""

    address: str
    scheduler_key: str  # public
    agent_key: str  # secret, as are all texts of key files
    user_key: str


class _Scheduler:
    """A Ray actor that runs the scheduler of a pool for one run, and makes the keys of all members."""

    def start(self) -> _Membership:
        self._own = Folder()
        self._folder = self._own.path
        scheduler_key = self._make_key("scheduler")
        allowed = self._folder / "allowed"
        for role, member, name in (("agent", "agent", "ray"), ("admin", "user", "user")):
            self._make_key(member, "--allow-list", str(allowed), "--role", role, "--name", name)
        endpoint = self._folder / "endpoint"
        with open(self._folder / "scheduler.log", "w+", errors="replace") as log:
            self._program = subprocess.Popen(
                [_programs.path("modelet-scheduler"), "--listen", f"tcp://{ray.util.get_node_ip_address()}:*", "--endpoint-file",
                 str(endpoint), "--state", str(self._folder / "state"), "--key", self._key("scheduler"), "--allow-list",
                 str(allowed), "--names-per-key", "1024", "--exit-with-parent", str(os.getpid())], stdout=log, stderr=log,
                start_new_session=True)
            end = time.monotonic() + _STARTS_WITHIN
            while not endpoint.exists():
                if self._program.poll() is not None or time.monotonic() > end:
                    _end(self._program)
                    log.seek(0)
                    raise _modelet.Error(f"the scheduler did not start:\n{log.read()}")
                time.sleep(0.02)
        secret = {name: Path(self._key(name)).read_text() for name in ("agent", "user")}
        return _Membership(endpoint.read_text().strip(), scheduler_key, secret["agent"], secret["user"])

    def _key(self, name: str) -> str:
        return str(self._folder / f"{name}.key")

    def _make_key(self, name: str, *enrolment: str) -> str:
        made = subprocess.run([_programs.path("modelet"), "keygen", self._key(name), *enrolment], check=True, capture_output=True, text=True)
        return made.stdout.strip()

    def leave(self) -> None:
        _end(self._program)
        self._own.remove()


class _Pool:
    """A scheduler on Ray's head node, and what speaks to it."""

    def __init__(self, folder: Folder) -> None:
        self._actor = ray.remote(_Scheduler).options(num_cpus=0, **_place_of_scheduler()).remote()
        try:
            membership = ray.get(self._actor.start.remote(), timeout=_WORKER_STARTS_WITHIN)
        except ray.exceptions.GetTimeoutError:
            raise _modelet.Error(f"Ray has not started the scheduler within {_WORKER_STARTS_WITHIN} s") from None
        self._user_key = _write_key(folder, "user.key", membership.user_key)
        self.agent_key = membership.agent_key
        self.agent_arguments = ["--scheduler", membership.address, "--scheduler-key", membership.scheduler_key]

    def command(self, verb: str, *arguments: str) -> list[str]:
        return [_programs.path("modelet"), verb, *arguments, *self.agent_arguments, "--key", self._user_key, "--json"]

    def ask(self, verb: str, *arguments: str) -> list[dict[str, Any]]:
        """Runs a verb, and returns the lines of JSON that it prints."""
        asked = subprocess.run(self.command(verb, *arguments), capture_output=True, text=True)
        if asked.returncode != 0:
            raise_for(asked.returncode, asked.stderr)
        return [json.loads(line) for line in asked.stdout.splitlines()]

    def end(self) -> None:
        ray.wait([self._actor.leave.remote()], timeout=_LEAVES_WITHIN + 5)
        ray.kill(self._actor)


def _place_of_scheduler() -> dict[str, Any]:
    """Options of the scheduler's actor: a sliver of what only the head node has or, without a head, the caller's node."""
    if _HEAD in ray.cluster_resources():
        return {"resources": {_HEAD: 0.001}}
    warnings.warn(f"no node of this Ray cluster has the resource {_HEAD!r}, by which its head is found, so the scheduler runs on "
                  "the node of the caller: the run ends if that node is lost", stacklevel=4)
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)}


class _Agents:
    """A placement group with an agent in each of its bundles."""

    def __init__(self, pool: _Pool, num_nodes: int, cores: int, strategy: str, options: Sequence[object], timeout: float) -> None:
        self._actors = []
        self._group = placement_group([{"CPU": cores}] * num_nodes, strategy=strategy)
        if not self._group.wait(timeout):
            remove_placement_group(self._group)
            raise _modelet.Error(f"Ray has not found {num_nodes} nodes with {cores} free CPUs within {timeout} s")
        arguments = [*pool.agent_arguments, "--cores", str(cores), *map(str, options)]
        for number in range(num_nodes):
            place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            actor = ray.remote(_Agent).options(num_cpus=cores, max_restarts=-1, scheduling_strategy=place)
            self._actors.append(actor.remote(f"ray-{number}", arguments, pool.agent_key))
        ray.get([actor.node.options(max_task_retries=-1).remote() for actor in self._actors])

    def end(self) -> None:
        leaving = [actor.leave.remote() for actor in self._actors]  # without retries: calls to lost machines fail at once
        ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVES_WITHIN + 5)
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)


def train(experiment: Experiment, num_nodes: int, cores: int = 1, *, settings: Mapping[str, Any] | None = None,
          out: str | os.PathLike[str] | None = None, callbacks: Callbacks = None, progress: Progress = "auto", strategy: str = "STRICT_SPREAD",
          agent_options: Sequence[object] = (), timeout: float = 600) -> Run:
    """Trains an experiment on `num_nodes` machines of the Ray cluster, and returns its Run.

    experiment, settings, callbacks, progress   as in modelet.train
    cores        CPUs that each node gets, and threads that it uses
    out          the run's folder, on this machine; None: runs/NAME-TIME
    strategy     of the placement group; STRICT_SPREAD: one node on each machine
    agent_options   more options of modelet-agent: ["--memory-mib", 4000] limits what a run may use of a machine
    timeout      seconds that Ray may take to find the machines

    The package must be installed on all machines (or be in Ray's runtime_env). Ctrl-C or an exception of a callback stops
    the run with a checkpoint, which is copied to `out`.
    """
    out = _make_run_folder(experiment) if out is None else out
    if not ray.is_initialized():
        ray.init()
    with Folder() as folder, Listeners(callbacks, progress) as listeners:
        pool = _Pool(folder)
        try:
            agents = _Agents(pool, num_nodes, cores, strategy, agent_options, timeout)
            try:
                submitted = pool.ask("submit", *experiment_arguments(experiment, settings, folder.path),
                                     "--nodes", str(num_nodes), "--wait", "--name", _run_name(out))
                _follow_to_its_end(pool, str(submitted[-1]["run"]), out, listeners)
            finally:
                agents.end()
        finally:
            pool.end()
    return Run(out, listeners.last["finished"])


def _make_run_folder(experiment: Experiment) -> Path:
    """Makes runs/NAME-TIME, with a number if another run has that."""
    if isinstance(experiment, Mapping):
        raise _modelet.UsageError(NEEDS_OUT)
    name = f"{Path(experiment).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def _run_name(out: str | os.PathLike[str]) -> str:
    """The name of a run in the folder `out`, in characters that a scheduler takes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", Path(out).resolve().name).lstrip(".")[:64] or "run"


def _follow_to_its_end(pool: _Pool, run: str, out: str | os.PathLike[str], listeners: Listeners) -> None:
    bring = ("fetch", run, "--out", os.path.abspath(out))
    try:
        follow(pool.command("watch", run), listeners)
    except BaseException:
        with contextlib.suppress(_modelet.Error, _modelet.UsageError):  # a run that failed, or has no checkpoint yet
            pool.ask("stop", run)
            subprocess.run(pool.command("watch", run), capture_output=True)  # until it has stopped
            pool.ask(*bring)
        raise
    pool.ask(*bring)
