"""Parts of a user's own, named by import path or given as objects: called with their options, and recorded whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcd
from tdcd.core.aggregators import Average
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
    return nn.Linear(*shape, outputs)


def test_options_may_have_any_name() -> None:
    named: Any = {"kind": f"{HERE}:rule", "options": OPTIONS}
    assert AGGREGATOR.make(named) == Average()
    model = tdcd.models.Imported(kind=f"{HERE}:network", options=OPTIONS)
    settings = tdcd.Settings(loss="cross-entropy", rounds=1, rate=0.1, aggregator=named)
    assert tdcd.train(FEDERATION, model, settings).final.round == 1
