"""Parts of a user's own, named by import path or given as objects: called with their options, and recorded whole."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcd
from support import same
from tdcd.core.aggregators import Average, HubRound, HubStep
from tdcd.core.network import Block
from tdcd.core.state import Memory
from tdcd.training.settings import AGGREGATOR

X = np.random.default_rng(0).normal(size=(20, 3))
FEDERATION = tdcd.Federation.from_silos([tdcd.Silo("a", X, [range(20)])], (X.sum(1) > 0).astype(int))
OPTIONS = {"path": "x.csv", "what": "y", "given": 3}
HERE = __name__


def rule(path: str, what: str, given: int) -> Average:
    """Return the mean, if the options are those that were named."""
    assert {"path": path, "what": what, "given": given} == OPTIONS
    return Average()


def network(shape: Any, outputs: int, path: str, what: str, given: int) -> nn.Module:
    """Return a network, if the options are those that were named."""
    assert {"path": path, "what": what, "given": given} == OPTIONS
    return nn.Linear(shape[0], outputs)


def test_options_may_have_any_name() -> None:
    named: Any = {"kind": f"{HERE}:rule", "options": OPTIONS}
    assert AGGREGATOR.make(named) == Average()
    model = tdcd.models.Imported(kind=f"{HERE}:network", options=OPTIONS)
    settings = tdcd.Settings(loss="cross-entropy", rounds=1, rate=0.1, aggregator=named)
    assert tdcd.train(FEDERATION, model, settings).final.round == 1


# Objects that are recorded


class Rule:
    """What all of these have in common: a step of some size towards the mean."""

    linear = True
    size: Any = 0.5

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        size = float(self.size or 0.5)
        return {name: tensor + size * (received[name] - tensor) for name, tensor in weights.items()}, memory


@dataclass(frozen=True)
class Fields(Rule):
    size: Any = 0.5
    names: tuple[str, ...] = ()
    table: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    twice: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2.0)


class Plain(Rule):
    def __init__(self, size: float) -> None:
        self.size = size


class Derived(Fields):
    def __init__(self, half: float) -> None:
        super().__init__(2 * half)


def changed() -> Rule:
    result = Rule()
    result.size = 0.25
    return result


class Outer:
    @dataclass(frozen=True)
    class Inner(Rule):
        size: float = 0.25


def train(rule: Any, **more: Any) -> tdcd.Result:
    settings = tdcd.Settings(loss="cross-entropy", rounds=2, rate=0.1)
    return tdcd.train(FEDERATION, tdcd.models.Linear(), settings, aggregator=rule, **more)


@pytest.mark.parametrize(
    "rule",
    [Rule(), Fields(0.25, ("x", "y"), {"a": [1, 2.0]}), Fields(np.float64(0.25), table={"n": np.int64(3)})],
    ids=["without options", "options", "numbers of numpy"],
)
def test_objects_of_dataclasses_are_recorded_and_made_again(tmp_path: Path, rule: Any) -> None:
    result = train(rule, directory=tmp_path / "run")
    result.save(tmp_path / "saved")
    assert same(train(rule, directory=tmp_path / "run", resume=True).blocks, result.blocks)
    for name in ("run", "saved"):
        made: Any = AGGREGATOR.make(tdcd.Result.load(tmp_path / name).settings.aggregator)
        assert (type(made), made.size) == (type(rule), rule.size)
    with pytest.raises(tdcd.RunError, match="aggregator"):
        train(HubStep(0.5), directory=tmp_path / "run", resume=True)


DATACLASS = "it cannot be recorded .*: make it a dataclass whose fields are its options"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Plain(0.25), f"aggregator Plain: {DATACLASS}"),
        (Derived(0.25), f"aggregator Derived: {DATACLASS}"),
        (changed(), f"aggregator Rule: {DATACLASS}"),
        (Outer.Inner(), "aggregator Inner: it cannot be recorded .* move its class out of Outer to the top level"),
        (Fields(torch.tensor(0.25)), f"aggregator '{HERE}:Fields': size: a Tensor cannot be recorded; options are"),
        (Fields(table={"x": {"y": {3}}}), f"aggregator '{HERE}:Fields': table.x.y: a set cannot be recorded"),
        (Fields(None), f"aggregator '{HERE}:Fields': size: a NoneType cannot be recorded"),
    ],
)
def test_objects_that_could_not_be_made_again_train_and_are_not_recorded(tmp_path: Path, rule: Any, says: str) -> None:
    result = train(rule)
    assert result.final.round == 2
    with pytest.raises(tdcd.JobError, match=says):
        result.save(tmp_path / "saved")
    with pytest.raises(tdcd.JobError, match=says):
        train(rule, directory=tmp_path / "run")
    assert not list(tmp_path.iterdir())
