"""Training on the machines of a Ray cluster. Ray finds, starts and replaces the machines; Modelet does the rest.

    import ray, modelet
    ray.init()                                                  # on the head
    run = modelet.ray.train("experiment.toml", num_nodes=8, cores=4)

Each node of the run is an agent of a pool (docs/pool.md). It runs in a Ray actor with `cores` CPUs of a placement group,
one actor on each machine. The scheduler is a process of the caller, who should be on the head. The agents connect to the
scheduler and to each other with keys that are made for this run. The data comes from the machine of the caller.

If Ray loses a machine, the pool loses an agent, and the run continues with the others from its last snapshot
(docs/reliability.md). When Ray has found another machine for the actor, its agent joins the pool, and the run may use it.
"""
import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from modelet import _modelet, _programs
from modelet._progress import Callbacks, Listeners, Progress
from modelet._train import NEEDS_OUT, Experiment, Run, experiment_arguments, follow, raise_for

_STARTS_WITHIN = 60  # seconds that the scheduler may take to start
_LEAVES_WITHIN = 10  # seconds that a program may take to end after SIGTERM


def _end(program: subprocess.Popen[Any]) -> None:
    program.terminate()
    try:
        program.wait(_LEAVES_WITHIN)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


class _Agent:
    """A Ray actor that runs one agent. It ends when its agent ends, so that Ray starts it again."""

    def __init__(self, name: str, arguments: Sequence[str], key: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="modelet-agent-")
        key_file = Path(self._folder.name) / "agent.key"
        key_file.touch(mode=0o600)
        key_file.write_text(key)
        self._program = subprocess.Popen(
            [_programs.path("modelet-agent"), *arguments, "--name", name, "--key", str(key_file), "--work-dir",
             self._folder.name, "--dedicated", "--exit-with-parent", str(os.getpid())])
        self._leaving = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self._program.wait()
        if not self._leaving:
            os._exit(1)

    def node(self) -> tuple[str, int]:
        """The Ray node that it is on, and the id of the agent's process."""
        return ray.get_runtime_context().get_node_id(), self._program.pid

    def leave(self) -> None:
        self._leaving = True
        _end(self._program)
        self._folder.cleanup()


class _Scheduler:
    """The scheduler of a pool for one run, on this machine, and the keys of all members."""

    def __init__(self, folder: str, host: str) -> None:
        self._folder = Path(folder)
        public = {name: self._make_key(name) for name in ("scheduler", "agent", "user")}
        allowed = self._folder / "allowed"
        allowed.write_text(f"agent {public['agent']} ray\nadmin {public['user']} user\n")
        endpoint = self._folder / "endpoint"
        self._log = open(self._folder / "scheduler.log", "w+", errors="replace")
        self._program = subprocess.Popen(
            [_programs.path("modelet-scheduler"), "--listen", f"tcp://{host}:*", "--endpoint-file", str(endpoint),
             "--state", str(self._folder / "state"), "--key", self._key("scheduler"), "--allow-list", str(allowed),
             "--names-per-key", "1024", "--exit-with-parent", str(os.getpid())],
            stdout=self._log, stderr=self._log, start_new_session=True)
        end = time.monotonic() + _STARTS_WITHIN
        while not endpoint.exists():
            if self._program.poll() is not None or time.monotonic() > end:
                _end(self._program)
                self._log.seek(0)
                raise _modelet.Error(f"the scheduler did not start:\n{self._log.read()}")
            time.sleep(0.02)
        self.address = endpoint.read_text().strip()
        self._of_scheduler = ["--scheduler", self.address, "--scheduler-key", public["scheduler"]]

    def _key(self, name: str) -> str:
        return str(self._folder / f"{name}.key")

    def _make_key(self, name: str) -> str:
        made = subprocess.run([_programs.path("modelet"), "keygen", self._key(name)], check=True, capture_output=True, text=True)
        return made.stdout.strip()

    def agent(self) -> tuple[list[str], str]:
        """What an agent needs: its arguments, and the text of its key."""
        return self._of_scheduler, Path(self._key("agent")).read_text()

    def command(self, verb: str, *arguments: str) -> list[str]:
        return [_programs.path("modelet"), verb, *arguments, *self._of_scheduler, "--key", self._key("user"), "--json"]

    def ask(self, verb: str, *arguments: str) -> list[dict[str, Any]]:
        """Runs a verb, and returns the lines of JSON that it prints."""
        asked = subprocess.run(self.command(verb, *arguments), capture_output=True, text=True)
        if asked.returncode != 0:
            raise_for(asked.returncode, asked.stderr)
        return [json.loads(line) for line in asked.stdout.splitlines()]

    def end(self) -> None:
        _end(self._program)
        self._log.close()


class _Agents:
    """A placement group with an agent in each of its bundles."""

    def __init__(self, scheduler: _Scheduler, num_nodes: int, cores: int, strategy: str, options: Sequence[object],
                 timeout: float) -> None:
        self._actors = []
        self._group = placement_group([{"CPU": cores}] * num_nodes, strategy=strategy)
        if not self._group.wait(timeout):
            remove_placement_group(self._group)
            raise _modelet.Error(f"Ray has not found {num_nodes} nodes with {cores} free CPUs within {timeout} s")
        arguments, key = scheduler.agent()
        arguments = [*arguments, "--cores", str(cores), *map(str, options)]
        for number in range(num_nodes):
            place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            actor = ray.remote(_Agent).options(num_cpus=cores, max_restarts=-1, scheduling_strategy=place)
            self._actors.append(actor.remote(f"ray-{number}", arguments, key))
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
    out = _run_folder(experiment) if out is None else out
    if not ray.is_initialized():
        ray.init()
    with tempfile.TemporaryDirectory(prefix="modelet-ray-") as folder, Listeners(callbacks, progress) as listeners:
        scheduler = _Scheduler(folder, ray.util.get_node_ip_address())
        try:
            agents = _Agents(scheduler, num_nodes, cores, strategy, agent_options, timeout)
            try:
                submitted = scheduler.ask("submit", *experiment_arguments(experiment, settings, folder),
                                          "--nodes", str(num_nodes), "--wait", "--name", Path(out).name)
                _follow_to_its_end(scheduler, str(submitted[-1]["run"]), out, listeners)
            finally:
                agents.end()
        finally:
            scheduler.end()
    return Run(out, listeners.last["finished"])


def _run_folder(experiment: Experiment) -> Path:
    if isinstance(experiment, Mapping):
        raise _modelet.UsageError(NEEDS_OUT)
    return Path("runs") / f"{Path(experiment).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _follow_to_its_end(scheduler: _Scheduler, run: str, out: str | os.PathLike[str], listeners: Listeners) -> None:
    bring = ("fetch", run, "--out", os.path.abspath(out))
    try:
        follow(scheduler.command("watch", run), listeners)
    except BaseException:
        with contextlib.suppress(_modelet.Error, _modelet.UsageError):  # a run that failed, or has no checkpoint yet
            scheduler.ask("stop", run)
            subprocess.run(scheduler.command("watch", run), capture_output=True)  # until it has stopped
            scheduler.ask(*bring)
        raise
    scheduler.ask(*bring)
