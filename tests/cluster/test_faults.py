"""Whatever is killed on a cluster of two nodes, and whenever: not a bit of the result changes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodes import Nodes, kill
from support import CODINGS, USERS, Problem, distance, examples, problem, problems, run_command, same
from tdcd.cluster import fold
from tdcd.cluster.engine import ClusterEngine
from tdcd.cluster.fleet import Call, MemoryFleet
from tdcd.core.gradients import PrivateLabels
from tdcd.core.local_steps import LocalSteps
from tdcd.core.optimizers import Adam
from tdcd.core.script import Sharing
from tdcd.core.state import States
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.engines import Training
from tdcd.errors import LostClusterError
from tdcd.runs.store import load_blocks

ray = pytest.importorskip("ray", reason="Ray is not installed")

QUICK = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "2000"}
"""A killed node is missed after seconds."""
ROUNDS = 6
KINDS = ("linear", "mlp", "mlp-tanh", "lstm", "cnn", "cnn-batchnorm", "dropout", *USERS)
Strike = Callable[[Sequence[Call]], object]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes of a core each, which this process has joined."""
    from tdcd.cluster import ray_fleet

    ray.shutdown()  # another test's
    with pytest.MonkeyPatch.context() as patch, Nodes(2, environment=QUICK) as running:
        patch.setattr(fold, "CLIENTS", 1)  # few clients in many groups
        ray_fleet.connect(running.address)
        yield running
        ray.shutdown()


@dataclass
class Struck:
    """A fleet that is struck as chosen methods are called, the n-th time each."""

    fleet: Any
    strikes: dict[tuple[str, int], Strike] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds between a call and its strike; without, the call finds what the strike has left."""
    calls: dict[str, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        for method in {method for _, method, _ in calls}:
            self.calls[method] = self.calls.get(method, 0) + 1
            if strike := self.strikes.pop((method, self.calls[method]), None):
                if self.delay:
                    threading.Timer(self.delay, strike, [calls]).start()
                else:
                    strike(calls)
        result: list[Any] = self.fleet.run(calls)
        return result


def kill_actor(place: int) -> Strike:
    """Kill one of the actors that are called, for good."""
    return lambda calls: ray.kill(calls[place][0].actor)  # type: ignore[attr-defined]


def kill_process(calls: Sequence[Call]) -> None:
    """Send SIGKILL to the process of the last actor that is called."""
    kill(ray.get(calls[-1][0].actor.__ray_call__.remote(lambda _: os.getpid())))  # type: ignore[attr-defined]


def struck(nodes: Nodes, training: Training, strikes: dict[tuple[str, int], Strike], delay: float = 0.0) -> Struck:
    from tdcd.cluster.ray_fleet import connect

    return Struck(connect(nodes.address), strikes, delay)


def made(sharing: Sharing) -> tuple[Problem, Training]:
    """Make a federation with all that silos carry from round to round, and all that is rounded on its way."""
    steps = LocalSteps(3, optimizer=Adam(epsilon=1e-3), carry=True)
    drawn = problem(["linear", "mlp"], [7, 5], samples=40, batch=31, steps=steps, codecs=CODINGS[-1])
    labels = next(iter(drawn.tasks.values())).labels
    private = None if sharing == "shared" else PrivateLabels("silo-0", sharing, labels, drawn.objective, None, 0)
    rows = {silo: task.features for silo, task in drawn.tasks.items()}
    parts = {Part.TRAIN: Samples(rows, labels), Part.TEST: Samples({s: r[:9] for s, r in rows.items()}, labels[:9])}
    measure = lambda scores, _: {"sum": float(scores.double().sum())}  # noqa: E731
    return drawn, replace(drawn.training(private), parts=parts, measure=measure)


def trained(drawn: Problem, engine: ClusterEngine) -> tuple[States, list[Any]]:
    """Train a few rounds; return the states, and what each evaluation has measured."""
    states, measured = engine.training.initial(), []
    try:
        for number in range(1, ROUNDS + 1):
            states = engine.compute_round(states, drawn.round(number))
            measured.append([engine.measure(states, part) for part in engine.training.parts])
    finally:
        engine.close()
    return states, measured


def assert_undisturbed(drawn: Problem, training: Training, fleet: Struck) -> None:
    """Train on a fleet that is struck and on one that is not."""
    expected, measured = trained(drawn, ClusterEngine(training, MemoryFleet(1)))
    states, ours = trained(drawn, ClusterEngine(training, fleet))
    assert not fleet.strikes, "not all strikes came"
    assert ours == measured
    for part in ("weights", "memory"):
        assert same(*({silo: getattr(s, part) for silo, s in which.items()} for which in (states, expected)))


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=problems(KINDS, dropouts=(0.0, 0.4)), sharing=st.sampled_from(["shared", "exact", "stale"]))
def test_undisturbed_it_agrees_with_the_oracle(nodes: Nodes, drawn: Problem, sharing: Sharing) -> None:
    """The contract of every engine, with actors of Ray rather than those of this process; to their bit."""
    from tdcd.cluster.ray_fleet import connect

    labels = next(iter(drawn.tasks.values())).labels
    if sharing == "shared" or drawn.silo_dropout:
        private = None
    else:
        private = PrivateLabels("silo-0", sharing, labels, drawn.objective, None, drawn.seed)
    engine = ClusterEngine(drawn.training(private), connect(nodes.address))
    ours = drawn.run(engine, 2)
    engine.close()  # the next example has its actors
    assert same(ours, drawn.run(ClusterEngine(drawn.training(private), MemoryFleet(3)), 2))
    assert distance(ours, drawn.run(drawn.engine("oracle", private=private), 2)) < 1e-9


@pytest.mark.parametrize("sharing", ["shared", "exact", "stale"])
def test_killed_actors_and_processes_change_no_bit(nodes: Nodes, sharing: Sharing) -> None:
    """A hub for good, and the process of another, in the middle of a round."""
    drawn, training = made(sharing)
    strikes = {("round", 2): kill_actor(0), ("round", 5): kill_process}
    assert_undisturbed(drawn, training, struck(nodes, training, strikes, delay=0.01))


def test_bundles_killed_in_a_round_and_in_an_evaluation_change_no_bit(nodes: Nodes) -> None:
    from tdcd.cluster.ray_fleet import connect

    drawn, training = made("stale")
    engines: list[ClusterEngine] = []

    def kill_bundle(_: object) -> None:
        ray.kill(engines[0]._bundles["silo-1"][1].handle.actor)  # type: ignore[attr-defined]

    fleet = Struck(connect(nodes.address), {("round", 2): kill_bundle, ("embed_part", 5): kill_bundle}, 0.005)
    expected, measured = trained(drawn, ClusterEngine(training, MemoryFleet(2)))
    engines.append(ClusterEngine(training, fleet))
    states, ours = trained(drawn, engines[0])
    assert ours == measured
    assert same({s: state.weights for s, state in states.items()}, {s: e.weights for s, e in expected.items()})


def test_the_hub_that_measures_is_killed(nodes: Nodes) -> None:
    drawn, training = made("shared")
    assert_undisturbed(drawn, training, struck(nodes, training, {("measure", 3): kill_actor(-1)}, 0.005))


def test_actors_killed_while_they_are_opened_chosen_built_and_healed(nodes: Nodes) -> None:
    drawn, training = made("exact")
    strikes = {
        ("open", 1): kill_actor(1),
        ("choose", 1): kill_actor(0),
        ("build", 1): kill_actor(-1),
        ("round", 2): kill_actor(0),
        ("build", 2): kill_actor(0),
    }
    fleet = struck(nodes, training, strikes)
    assert_undisturbed(drawn, training, fleet)
    for idle in fleet.fleet._idle.values():
        ray.kill(idle[0].actor)
    assert_undisturbed(drawn, training, struck(nodes, training, {}))


def test_what_an_abandoned_training_still_sends_is_ignored(nodes: Nodes) -> None:
    """A training is interrupted in a round; the next one has its actors."""
    drawn, training = made("shared")

    def interrupt(calls: Sequence[Call]) -> None:
        for handle, method, arguments in calls:
            handle.tell(method, *arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(drawn, ClusterEngine(training, struck(nodes, training, {("round", 2): interrupt})))
    assert_undisturbed(drawn, training, struck(nodes, training, {}))


def test_a_killed_node_changes_no_bit_and_may_come_back(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same training, which then moves actors to the new node."""
    from tdcd.cluster import ray_fleet

    monkeypatch.setattr(ray_fleet, "GLANCE", 0.2)
    drawn, training = made("stale")

    def add(_: object) -> None:
        nodes.add()
        assert not nodes.hosts(1)
        time.sleep(0.3)  # until the engine looks again

    fleet = struck(nodes, training, {("round", 2): lambda _: nodes.kill(1), ("round", 4): add})
    assert_undisturbed(drawn, training, fleet)
    assert len(nodes.hosts(1)) == 3


def test_a_killed_driver_leaves_no_actors_and_resumes_to_the_same_bits(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdcd.cluster import ray_fleet

    monkeypatch.setattr(fold, "CLIENTS", 16)  # as in the driver's process
    options = ["--set", "data.clients=40", "--set", "baselines=[]", "-R", "60"]
    options += ["--set", "training.checkpoint_every=2", "--set", "training.evaluate_every=20", "-q"]
    on_ray = ["--engine", "ray", "--address", nodes.address]
    before = hosts(nodes)
    command = [sys.executable, "-m", "tdcd", "train", "breast-cancer", *options, *on_ray, "--out", str(tmp_path / "a")]
    driver = subprocess.Popen(command)
    while driver.poll() is None and not list((tmp_path / "a").rglob("checkpoint*")):
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    while hosts(nodes) - before:  # as long as the test may take
        time.sleep(0.1)
    assert run_command("train", "--resume", tmp_path / "a", *on_ray, "-q") == 0
    monkeypatch.setattr(ray_fleet, "connect", lambda address: MemoryFleet(1))
    assert run_command("train", "breast-cancer", *options, "--engine", "ray", "--out", tmp_path / "b") == 0
    assert same(load_blocks(tmp_path / "a"), load_blocks(tmp_path / "b"))


def hosts(nodes: Nodes) -> set[int]:
    return {process for number in range(len(nodes)) for process in nodes.hosts(number)}


def test_a_cluster_whose_head_is_gone_ends_the_training_with_what_to_do(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of the tests: it takes the head away."""
    from tdcd.cluster import ray_fleet, ray_session

    monkeypatch.setattr(ray_fleet, "GLANCE", 0.2)
    monkeypatch.setattr(ray_session, "GLANCE", 0.2)
    monkeypatch.setattr(ray_session, "HEAD_PATIENCE", 1.0)
    drawn, training = made("shared")
    with pytest.raises(LostClusterError, match="is gone; start the cluster again, then resume the run"):
        trained(drawn, ClusterEngine(training, struck(nodes, training, {("round", 2): lambda _: nodes.kill(0)}, 0.01)))
    assert LostClusterError.exit_code == 75
