"""modelet.ray on a real Ray cluster of two nodes on this machine. One of the nodes is lost."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import warnings

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import modelet
import modelet.ray

NODES = 2
STEPS_PER_EPOCH = 19  # 300 samples, 16 a step
# Speeds are declared, so that the plan gives each node a part, whatever else the machine does.
SAME_SPEED = ("--memory-mib", 500, "--gflops", 10, "--memory-gbps", 5)
# Settings of Ray. By default its workers have a niceness of 15, so that a worker may take minutes to import a module on a busy
# machine, and Ray notices a lost node only after 15 seconds.
SYSTEM = {"worker_niceness": 0, "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 5000,
          "health_check_failure_threshold": 3}


class Enough(Exception):
    """Ends a run that nothing else ends."""


def started(start):
    """Returns start(). On a busy machine a node of Ray may need longer to register than Ray waits; then it is started once more."""
    try:
        return start()
    except Exception as problem:
        if "timed out during startup" not in str(problem):
            raise
        return start()


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Without the autoscaler, whose process only takes time.
    head = {"num_cpus": 1, "include_dashboard": False, "no_monitor": True, "_system_config": SYSTEM}
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=head))
    power_on(cluster)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def power_on(cluster):
    cluster.other = started(lambda: cluster.add_node(num_cpus=1))


def power_off(cluster):
    """Kills everything that runs on the other Ray node at once, as if its machine had failed."""
    raylet = psutil.Process(cluster.other.all_processes["raylet"][0].process.pid)
    for process in [*raylet.children(recursive=True), raylet]:
        process.kill()
    cluster.remove_node(cluster.other, allow_graceful=False)
    cluster.other = None


def raylets(cluster):
    """The ids of the processes to which everything on the head and on the other node belongs."""
    return {name: node.all_processes["raylet"][0].process.pid for name, node in (("head", cluster.head_node), ("other", cluster.other))}


def has_program(raylet, name):
    for process in psutil.Process(raylet).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == name:
                return True
    return False


def nodes_with_a_scheduler(raylets):
    return [name for name, raylet in raylets.items() if has_program(raylet, "modelet-scheduler")]


def settings(**train):
    return {"train": {"log_every": 10, "evaluate_every": 0, **train}, "cluster.snapshot_every": 40, "exchange.codec": "none",
            "exchange.gradient_codec": "none", "model.hidden": [64]}


def groups(events):
    """The numbers of nodes of the groups after the first."""
    return [len(event["nodes"]) for event in events if event["event"] == "regrouped"]


@pytest.mark.parametrize("head", [True, False])
def test_the_scheduler_is_on_the_head_if_there_is_one(cluster, text_experiment, tmp_path, head):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file

    @ray.remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(cluster.other.node_id, soft=False))
    def caller(raylets):
        if not head:
            modelet.ray._HEAD = "node:no_head"
        found = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            modelet.ray.train(text_experiment, num_nodes=1, settings=settings(epochs=2), out=tmp_path / "run", agent_options=SAME_SPEED,
                              callbacks=lambda event: found.append((event["event"], nodes_with_a_scheduler(raylets))))
        return dict(found), [str(warning.message) for warning in warned if "scheduler" in str(warning.message)]

    found, warned = ray.get(caller.remote(raylets(cluster)))
    assert found["progress"] == (["head"] if head else ["other"])
    assert [text.startswith("no node of this Ray cluster has the resource 'node:no_head'") for text in warned] == ([] if head else [True])
    assert nodes_with_a_scheduler(raylets(cluster)) == []
    assert modelet.load(tmp_path / "run").step == 2 * STEPS_PER_EPOCH


def test_a_machine_that_ray_finds_takes_its_place(cluster, text_experiment, tmp_path):
    events = []
    lost = []

    def lose_and_find(event):
        events.append(event)
        if event["event"] == "progress" and event["step"] >= 100 and not lost:
            lost.append(cluster.other)
            power_off(cluster)
            power_on(cluster)

    run = modelet.ray.train(text_experiment, num_nodes=NODES, cores=1, out=tmp_path / "run", callbacks=lose_and_find,
                            settings={**settings(epochs=100), "cluster.min_nodes": NODES},  # it waits for the new one
                            agent_options=SAME_SPEED)
    assert lost and groups(events) == [NODES]
    assert run.finished["steps"] == 100 * STEPS_PER_EPOCH


def drain(cluster):
    """Tells Ray, as a cloud's notice does, that the other node will go away. It stays for as long as the test wants."""
    reason, an_hour_from_now = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION, int(1000 * (time.time() + 3600))
    accepted, refusal = ray._raylet.GcsClient(address=cluster.address).drain_node(cluster.other.node_id, reason, "test", an_hour_from_now)
    assert accepted, refusal


def test_an_agent_leaves_a_draining_machine_and_says_so_in_rays_logs(cluster, text_experiment, tmp_path):
    events = []
    drained = []

    def drain_and_find(event):
        events.append(event)
        if event["event"] == "progress" and event["step"] >= 100 and not drained:
            drained.append(cluster.other)
            drain(cluster)
            end = time.monotonic() + 120
            while has_program(raylets(cluster)["other"], "modelet-agent"):  # nothing but the drain makes it end
                assert time.monotonic() < end, "the agent has not left the draining machine"
                time.sleep(0.1)
            power_off(cluster)
            power_on(cluster)
        if groups(events) and event["event"] == "progress":
            raise Enough

    with pytest.raises(Enough):
        modelet.ray.train(text_experiment, num_nodes=NODES, cores=1, out=tmp_path / "run", callbacks=drain_and_find,
                          settings={**settings(epochs=100000), "cluster.min_nodes": NODES}, agent_options=SAME_SPEED)
    assert drained and groups(events) == [NODES]
    steps = [event["step"] for event in events if event["event"] in ("progress", "regrouped")]
    assert steps == sorted(steps)  # none is repeated, as after a loss
    logs = [file.read_text(errors="replace") for file in pathlib.Path(ray._private.worker._global_node.get_logs_dir_path()).glob("worker-*")]
    assert any("Ray is draining this machine" in log for log in logs)
    assert any("agent info" in log for log in logs)


class ProgramThatEnds:
    """An agent's process that ends after some looks at it. Its actor has been told to leave by then."""

    def __init__(self, agent, looks):
        self.agent, self.looks = agent, looks

    def wait(self, timeout):
        self.looks -= 1
        if self.looks > 0:
            raise subprocess.TimeoutExpired("modelet-agent", timeout)
        self.agent._leaving = True

    def terminate(self):
        raise AssertionError("nobody has asked it to leave")


def test_a_ray_that_does_not_say_which_machines_drain_is_used_all_the_same(cluster, monkeypatch, capsys):
    assert isinstance(modelet.ray._draining_nodes()(), dict)
    monkeypatch.delattr(type(ray._private.state.state), "get_draining_nodes")
    agent = object.__new__(modelet.ray._Agent)
    agent._leaving, agent._program = False, ProgramThatEnds(agent, looks=3)
    agent._watch()
    assert capsys.readouterr().out.count("does not say which machines it is draining") == 1


def test_a_lost_ray_node_is_a_lost_agent(cluster, text_experiment, tmp_path):
    events = []

    def lose_one(event):
        events.append(event)
        if event["event"] == "progress" and event["step"] >= 100 and cluster.other:
            power_off(cluster)

    run = modelet.ray.train(text_experiment, num_nodes=NODES, cores=1, settings=settings(epochs=100), out=tmp_path / "run",
                            callbacks=lose_one, agent_options=SAME_SPEED)
    assert [event["nodes"] for event in events if event["event"] == "started"][0] == NODES
    assert groups(events)[0] == NODES - 1
    assert run.finished["steps"] == 100 * STEPS_PER_EPOCH
    assert run.load().step == 100 * STEPS_PER_EPOCH
    # A run that lost a node ends about as well as an undisturbed run.
    alone = modelet.train(text_experiment, settings=settings(epochs=100), out=tmp_path / "alone")
    assert run.finished["p_at_1"] == pytest.approx(alone.finished["p_at_1"], abs=0.05)


def test_an_exception_stops_the_run_with_a_checkpoint(cluster, text_experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def enough(event):
        if event["event"] == "progress" and event["step"] >= 100:
            raise Enough

    file = tmp_path / "words.toml"
    data = [f"data.{part} = {json.dumps(text_experiment[f'data.{part}'])}" for part in ("train", "test")]
    file.write_text("\n".join([*data, "model.hidden = [32]", "train.threads = 1"]))
    with pytest.raises(Enough):  # nothing else ends this run
        modelet.ray.train(file, num_nodes=1, callbacks=enough, agent_options=SAME_SPEED, settings=settings(epochs=100000))
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("words-")
    assert modelet.load(run).step >= 100


def test_runs_that_start_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [modelet.ray._make_run_folder("small.toml") for _ in range(4)]
    assert len(set(folders)) == 4 and all(folder.is_dir() for folder in folders)


def test_too_few_machines_are_an_error(cluster, text_experiment, tmp_path):
    with pytest.raises(modelet.Error, match="has not found 9 nodes with 1 free"):
        modelet.ray.train(text_experiment, num_nodes=9, out=tmp_path / "never", timeout=1)
    with pytest.raises(modelet.UsageError, match="give `out`"):
        modelet.ray.train({"data.train": "train.txt"}, num_nodes=1)
