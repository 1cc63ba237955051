"""Aggregators: what each makes of its clients, by hand; a user's own; what is wrong is named."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcd
from support import RULES, Problem, distance, examples, problem, problems, same
from tdcd.core.aggregators import (
    AGGREGATORS,
    Aggregator,
    Average,
    HubMomentum,
    HubRound,
    HubStep,
    Median,
    TrimmedMean,
    aggregate,
)
from tdcd.core.aggregators.base import check_room
from tdcd.core.average import Held, Mean
from tdcd.core.network import Block
from tdcd.core.state import Memory, SiloState
from tdcd.jobs.load import parse_job
from tdcd.training.settings import AGGREGATOR

ROUND = HubRound(number=3, rate=0.2, last_rate=0.1, silos=4, trainable=("w",))


def block(*numbers: float, count: int = 0) -> Block:
    return {"w": torch.tensor(numbers, dtype=torch.float64), "count": torch.tensor(count)}


OLD, CLIENTS = block(1.0, 2.0, count=4), [block(2.0, 0.0, count=5), block(4.0, 6.0, count=6), block(9.0, 3.0, count=10)]


def joined(rule: Aggregator, memory: Memory | None = None) -> SiloState:
    held, mean = Held(), Mean(OLD)
    for place, one in reversed(list(enumerate(CLIENTS))):
        held.add(place, dict(one))
        mean.add(one, 1.0)
    return aggregate(rule, SiloState(OLD, memory or {}), mean if rule.linear else held, ROUND)


@pytest.mark.parametrize(
    ("rule", "weights", "count"),
    [
        (Average(), [5.0, 3.0], 7),
        (HubStep(), [2.0, 2.25], 7),
        (HubStep(0.5), [3.0, 2.5], 7),
        (HubStep(1.0), [5.0, 3.0], 7),
        (HubMomentum(0.9), [5.0, 3.0], 7),
        (HubMomentum(0.9, 0.5), [3.0, 2.5], 7),
        (Median(), [4.0, 3.0], 6),
        (TrimmedMean(0.34), [4.0, 3.0], 6),
        (TrimmedMean(0.1), [5.0, 3.0], 7),
    ],
)
def test_what_each_makes_of_three_clients(rule: Aggregator, weights: list[float], count: int) -> None:
    state = joined(rule)
    assert torch.allclose(state.weights["w"], torch.tensor(weights, dtype=torch.float64), rtol=1e-12)
    assert state.weights["count"] == count
    assert {name: tensor.dtype for name, tensor in state.weights.items()} == {"w": torch.float64, "count": torch.int64}


def test_momentum_is_carried_and_follows_the_rate() -> None:
    before = {"aggregator/w": torch.tensor([10.0, -20.0], dtype=torch.float64), "another": torch.ones(1)}
    state = joined(HubMomentum(0.5), before)
    change = torch.tensor([4.0, 1.0]) + 0.5 * 0.2 / 0.1 * torch.tensor([10.0, -20.0])
    assert torch.allclose(state.memory["aggregator/w"], change.double())
    assert torch.allclose(state.weights["w"], OLD["w"] + change)
    assert torch.equal(state.memory["another"], torch.ones(1))


def test_every_kind_of_the_package_is_drawn_in_the_contract_suite() -> None:
    assert {type(rule) for rule in RULES} == set(AGGREGATORS.values())


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_it_is_written_as_it_is_read(rule: Aggregator) -> None:
    assert AGGREGATOR.read(AGGREGATOR.write(rule)) == rule


@settings(max_examples=examples(15))
@given(
    problems(("linear", "mlp", "cnn-batchnorm"), [Median(), TrimmedMean(0.25)]), st.sampled_from(["stacked", "loop"])
)
def test_each_clients_weights_are_the_same_on_every_path(drawn: Problem, path: str) -> None:
    assert distance(drawn.run(drawn.engine(path), 2), drawn.run(drawn.engine("oracle"), 2)) < 1e-9


def test_a_median_of_hostile_clients_stays_with_the_others() -> None:
    """Two of five clients send whatever they like."""
    honest = [block(1.0 + 0.1 * k, 2.0) for k in range(3)]
    held = Held()
    for place, one in enumerate([*honest, block(1e30, -1e30), block(1e30, 1e30)]):
        held.add(place, one)
    weights = aggregate(Median(), SiloState(OLD), held, ROUND).weights["w"]
    assert 1.0 <= weights[0] <= 1.2
    assert weights[1] == 2.0


def test_clients_without_rows_do_not_hold_a_median_back() -> None:
    made = problem(["linear"], [7], samples=30, batch=3, aggregator=Median())
    after = made.run(made.engine("auto"), 1)
    assert distance(after, made.initial()) > 1e-4
    assert distance(after, made.run(made.engine("oracle"), 1)) < 1e-9


def test_a_hub_holds_so_much_and_no_more() -> None:
    check_room(Average(), 10**6, 10**9, "bank")
    check_room(Median(), 1000, 8 * 10**6, "bank")
    with pytest.raises(tdcd.ModelError, match=r"silo 'bank': the aggregator holds the weights of each of its 2,000"):
        check_room(Median(), 2000, 8 * 10**6, "bank")


# A user's own


@dataclass(frozen=True)
class Signs:
    """Moves every weight by a fixed step towards the mean of the clients, and remembers where to."""

    step: float = 0.01
    linear: bool = True

    def init(self, weights: Block) -> Memory:
        return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        signs = {name: (received[name] - weights[name]).sign() for name in weights}
        return {name: weights[name] + self.step * sign for name, sign in signs.items()}, signs


@dataclass(frozen=True)
class Wrong(Signs):
    result: Any = field(default=None)

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        new, signs = super().apply(received, memory, weights, round_)
        return self.result(new, signs)  # type: ignore[no-any-return]


X = np.random.default_rng(3).normal(size=(40, 6))
Y = (X.sum(1) > 0).astype(int)


def train(aggregator: Any, **more: Any) -> tdcd.Result:
    silos = [
        tdcd.Silo("a", X[:, :3], [range(25), range(25, 40)]),
        tdcd.Silo("b", X[:, 3:], [range(0, 40, 2), range(1, 40, 2)]),
    ]
    wanted = {"loss": "binary-cross-entropy", "rounds": 5, "local_steps": 3, "batch_size": 17, "rate": 0.2}
    federation = tdcd.Federation.from_silos(silos, Y)
    made = tdcd.Settings.model_validate(wanted)
    return tdcd.train(federation, tdcd.models.MLP(hidden=[4]), made, aggregator=aggregator, **more)


def test_an_object_of_ones_own_moves_the_weights_as_it_says() -> None:
    result = train(Signs(0.5))
    first = {silo: network.initial() for silo, network in result.networks.items()}
    for silo, weights in result.blocks.items():
        for name, tensor in weights.items():
            steps = (tensor - first[silo][name]) / 0.5
            assert torch.allclose(steps, steps.round(), atol=1e-5)
            assert steps.abs().max() <= 5


@pytest.mark.parametrize("path", ["loop", "stacked", "layers", "kernel", "auto"])
def test_an_object_of_ones_own_is_honoured_on_every_path(path: Any) -> None:
    if path == "kernel" and tdcd.compute.kernels.load("chain")[1]:
        pytest.skip("no compiler here")
    one, two = train(HubStep(0.5), compute=path), train(Half(), compute=path)
    assert same(one.blocks, two.blocks)
    assert distance(two.blocks, train(Half(), compute="loop").blocks) < 1e-5


class Half:
    """A hub step of a half, without options, that is no dataclass."""

    linear = True

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        return {name: weights[name] + 0.5 * (received[name] - weights[name]) for name in weights}, memory


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda new, m: ({n: t[:1] for n, t in new.items()}, m), r"'\S+' became .* of shape"),
        (
            lambda new, m: ({n: t.half() for n, t in new.items()}, m),
            r"'\S+' became torch.float16",
        ),
        (lambda new, m: ({n: t / 0 for n, t in new.items()}, m), r".*are not finite"),
        (lambda new, m: ({"another": torch.ones(1)}, m), r"it returned other names: "),
        (lambda new, m: (new, {}), r"it returned other names: "),
        (lambda new, m: new, r"it failed: TypeError: apply returns the weights and the memory"),
        (lambda new, m: 1 / 0, r"it failed: ZeroDivisionError"),
    ],
)
def test_what_a_wrong_one_returns_is_refused_and_named(result: Any, message: str) -> None:
    with pytest.raises(tdcd.ModelError, match=r"aggregator '.*:Wrong': " + message):
        train(Wrong(result=result))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hubstep", "aggregator: unknown kind of aggregator 'hubstep'; did you mean 'hub-step'"),
        ({"kind": "hub-step", "beta": 1}, "aggregator: unknown key 'beta' of the kind 'hub-step'"),
        ({"kind": "hub-step", "size": 0}, r'aggregator: size: should be a number above 0, or "1/N"'),
        ({"kind": "hub-step", "size": "half"}, "aggregator: size: "),
        ({"kind": "momentum", "momentum": 1.0}, "aggregator: momentum: should be above 0 and below 1"),
        ({"kind": "trimmed-mean", "fraction": 0.5}, "aggregator: fraction: should be at least 0 and below 0.5"),
        ({"size": 1}, "aggregator: needs a kind: average, hub-step, momentum"),
        ("one:two:three", "is no import path"),
        (3, "it is no aggregator: .* not int, which lacks apply, init, linear"),
        (HubStep, "it is no aggregator: .* not HubStep itself, not an object of it"),
    ],
)
def test_what_is_no_aggregator_is_refused(given: Any, message: str) -> None:
    training = {"loss": "cross-entropy", "rounds": 1, "rate": 0.1, "aggregator": given}
    with pytest.raises(tdcd.JobError, match=message):
        tdcd.Settings(**training)


def test_a_median_counts_all_clients_alike() -> None:
    with pytest.raises(tdcd.JobError, match="averaging = .samples. goes with aggregators of the clients' mean"):
        tdcd.Settings(loss="cross-entropy", rounds=1, rate=0.1, averaging="samples", aggregator=Median())


def test_a_job_names_one_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rules.py").write_text(
        "import tdcd\ndef half(size=0.5):\n    return tdcd.aggregators.HubStep(size)\ndef nothing():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = {"source": "breast-cancer", "features": {"kind": "contiguous", "silos": 2}, "clients": 3}
    table = {"data": data, "model": {"kind": "linear"}, "baselines": [],
             "training": {"loss": "binary-cross-entropy", "rounds": 4, "local_steps": 3, "rate": 0.1}}  # fmt: skip

    def run(aggregator: Any) -> tdcd.Result:
        job = parse_job(table | {"training": {**table["training"], "aggregator": aggregator}}, "job")  # type: ignore[dict-item]
        return tdcd.run_job(job).federation

    wanted = run({"kind": "hub-step", "size": 0.25})
    assert same(run({"kind": "own_rules:half", "options": {"size": 0.25}}).blocks, wanted.blocks)
    assert not same(run("own_rules:half").blocks, wanted.blocks)
    for kind, message in (
        ("own_rules:nothing", "aggregator 'own_rules:nothing': the factory returned int, which lacks apply, init, lin"),
        ("own_rules:missing", "aggregator 'own_rules:missing': the module 'own_rules' has no 'missing'"),
        ("no_such_rules:half", "aggregator 'no_such_rules:half': there is no module 'no_such_rules'"),
    ):
        with pytest.raises(tdcd.ModelError, match=message):
            run(kind)
