"""Optimizers: torch's own numbers, a user's own, and what is wrong is named. The contract suite draws all of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import tdcd
from seams.test_aggregators import X, Y
from support import MOVES, Interrupt, distance, problem, same
from tdcd.compute import kernels
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Block
from tdcd.core.optimizers import OPTIMIZERS, SGD, Adam, Optimizer
from tdcd.core.state import Memory
from tdcd.training.settings import OPTIMIZER


def test_every_kind_of_the_package_is_drawn_in_the_contract_suite() -> None:
    assert {type(rule) for rule in MOVES} == set(OPTIMIZERS.values())


@pytest.mark.parametrize("rule", MOVES, ids=repr)
def test_it_is_written_as_it_is_read(rule: Optimizer) -> None:
    assert OPTIMIZER.read(OPTIMIZER.write(rule)) == rule


@pytest.mark.parametrize("rule", [SGD(0.9), Adam(), Adam(0.8, 0.99)], ids=repr)
@pytest.mark.parametrize("path", ["loop", "stacked", "layers", "auto"])
@pytest.mark.parametrize("carry", [False, True])
def test_steps_are_those_of_torch(rule: Optimizer, path: str, carry: bool) -> None:
    steps = LocalSteps(4, rule, weight_decay=0.01, clip_norm=0.5, proximal=0.2, carry=carry)
    made = problem(["mlp", "linear"], [4, 3], batch=20, steps=steps)
    expected = made.run(made.engine("oracle"), 3)
    assert distance(made.run(made.engine(path), 3), expected) < 1e-9
    other = made.with_steps(LocalSteps(4, rule, weight_decay=0.01, clip_norm=0.5, proximal=0.2, carry=not carry))
    assert distance(other.run(other.engine(path), 3), expected) > 1e-4


def test_a_proximal_term_keeps_clients_near() -> None:
    moved = []
    for proximal in (0.0, 1.0, 5.0):
        made = problem(["mlp"], [3], steps=LocalSteps(20, proximal=proximal))
        moved.append(distance(made.run(made.engine("auto"), 1), made.initial()))
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2]


SMALLEST: dict[str, Any] = {"loss": "cross-entropy", "rounds": 1, "rate": 0.1}


# A user's own


@dataclass(frozen=True)
class SignDescent:
    """Moves every weight by the rate, and counts its steps."""

    elementwise: bool = True

    def init(self, weights: Block) -> Memory:
        return {"steps": torch.zeros(())}

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
        for name, g in gradient.items():
            weights[name].sub_(rate * g.sign())
        return {"steps": memory["steps"] + 1}


@dataclass(frozen=True)
class OwnSGD:
    """SGD by hand, without a word of what it can do together with others."""

    elementwise = False

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
        for name, g in gradient.items():
            assert weights[name].shape == g.shape
            weights[name].sub_(rate * g)
        return memory


@dataclass(frozen=True)
class Wrong(SignDescent):
    action: Any = field(default=None)

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
        self.action(weights)
        return super().apply(gradient, memory, weights, rate) if "steps" in memory else memory


def train(optimizer: Any, **more: Any) -> tdcd.Result:
    silos = [
        tdcd.Silo("a", X[:, :3], [range(25), range(25, 40)]),
        tdcd.Silo("b", X[:, 3:], [range(0, 40, 2), range(1, 40, 2)]),
    ]
    wanted = {"loss": "binary-cross-entropy", "rounds": 4, "local_steps": 3, "batch_size": 17, "rate": 0.2}
    settings = tdcd.Settings.model_validate(wanted | more.pop("settings", {}))
    federation = tdcd.Federation.from_silos(silos, Y)
    return tdcd.train(federation, tdcd.models.MLP(hidden=[4]), settings, optimizer=optimizer, **more)


def test_one_of_ones_own_moves_the_weights_as_it_says() -> None:
    """Each of three steps in four rounds moves a weight by 0.2 or not at all; two clients are averaged."""
    result = train(SignDescent(), settings={"averaging": "uniform"})
    first = {silo: network.initial() for silo, network in result.networks.items()}
    for silo, weights in result.blocks.items():
        for name, tensor in weights.items():
            steps = (tensor - first[silo][name]) / 0.1
            assert torch.allclose(steps, steps.round(), atol=1e-4), (silo, name)


@pytest.mark.parametrize("path", ["loop", "auto"])
def test_one_of_ones_own_takes_a_path_that_honours_it(path: Any) -> None:
    assert distance(train(OwnSGD(), compute=path).blocks, train(SGD(), compute="loop").blocks) < 1e-6
    assert distance(train(SignDescent(), compute=path).blocks, train(SignDescent(), compute="stacked").blocks) < 1e-5


@pytest.mark.parametrize("path", ["kernel", "stacked", "layers", "one-step"])
def test_a_path_that_would_ignore_it_is_refused_by_name(path: Any) -> None:
    if path == "kernel" and kernels.load("chain")[1]:
        pytest.skip("no compiler here")
    with pytest.raises(tdcd.ModelError, match=f'compute = "{path}" is not available: '):
        train(OwnSGD(), compute=path)


def test_what_it_remembers_can_be_carried_and_resumed(tmp_path: Path) -> None:
    for optimizer in (Adam(), SGD(0.9), SignDescent()):
        rule = {"kind": "momentum", "momentum": 0.5}
        settings = {"optimizer": optimizer, "carry_optimizer": True, "aggregator": rule}
        whole = train(None, settings=settings)
        folder = tmp_path / type(optimizer).__name__
        with pytest.raises(KeyboardInterrupt):
            train(None, settings=settings, directory=folder, callbacks=[Interrupt(2)])
        assert same(train(None, settings=settings, directory=folder, resume=True).blocks, whole.blocks)
        if not isinstance(optimizer, SignDescent):
            assert not same(whole.blocks, train(None, settings=settings | {"carry_optimizer": False}).blocks)


def replace(weights: Block) -> None:
    for name in list(weights):
        weights[name] = weights[name] * 0.9


def spoil(weights: Block) -> None:
    for tensor in weights.values():
        tensor.mul_(float("nan"))


def fail(weights: Block) -> None:
    raise ZeroDivisionError("by hand")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (replace, r"it replaced '\S+'; weights are changed in place"),
        (spoil, r"'\S+' became numbers that are not finite"),
        (fail, "it failed: ZeroDivisionError: by hand"),
    ],
)
def test_what_a_wrong_one_does_is_refused_and_named(action: Any, message: str) -> None:
    with pytest.raises(tdcd.ModelError, match=r"optimizer '.*:Wrong': " + message):
        train(Wrong(action=action))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adamw"}, "optimizer: unknown kind of optimizer 'adamw'; did you mean 'adam'"),
        ({"optimizer": {"kind": "adam", "beta1": 1.0}}, "optimizer: beta1: should be at least 0 and below 1"),
        ({"optimizer": {"kind": "sgd", "momentum": -0.1}}, "optimizer: momentum: should be at least 0 and below 1"),
        ({"momentum": 0.9}, "unknown key 'momentum'"),
        ({"carry_optimizer": True}, "carry_optimizer: plain SGD remembers nothing"),
        ({"proximal": 0.1}, "proximal: with local_steps = 1 clients never leave"),
        ({"optimizer": {"kind": "sgd", "momentum": 0.9}}, "with local_steps = 1 it does nothing"),
    ],
)
def test_what_would_do_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tdcd.JobError, match=message):
        tdcd.Settings(**SMALLEST | given)
