"""What users can replace does at sites what it does in a simulation, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from seams.sites import at_sites, check_equal, simulated, tensors, wanted
from support import RULES
from tdcd.core.aggregators import Aggregator
from tdcd.core.optimizers import SGD, Adam, Optimizer
from tdcd.training.settings import AGGREGATOR, OPTIMIZER


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_aggregators(rule: Aggregator, tmp_path: Path) -> None:
    job = wanted(aggregator=AGGREGATOR.write(rule))
    check_equal(at_sites(job, tmp_path), simulated(job))


@pytest.mark.parametrize("what", ["all", "weights", "embeddings"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "seams.test_codecs:Bytes"])
@pytest.mark.parametrize("sharing", [None, "exact", "stale"])
def test_codecs(kind: str, what: str, sharing: str | None, tmp_path: Path) -> None:
    labels = {"silo": "silo-1", "sharing": sharing} if sharing else None
    job = wanted(labels, codec=kind, codec_for=what)
    there = at_sites(job, tmp_path)
    check_equal(there, simulated(job), 1e-9 if sharing and what == "weights" else 0.0)
    exact = simulated(wanted(labels))
    assert any(
        not torch.equal(tensors(there[silo])[name], t) for silo in exact for name, t in tensors(exact[silo]).items()
    )


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("rule", [SGD(0.5), Adam()], ids=repr)
@pytest.mark.parametrize("sharing", [None, "exact", "stale"])
def test_optimizers(rule: Optimizer, carry: bool, sharing: str | None, tmp_path: Path) -> None:
    labels = {"silo": "silo-1", "sharing": sharing} if sharing else None
    job = wanted(labels, optimizer=OPTIMIZER.write(rule), carry_optimizer=carry, proximal=0.1)
    there = at_sites(job, tmp_path)
    check_equal(there, simulated(job), 1e-9 if sharing else 0.0)
    for state in there.values():
        assert carry == any("optimizer/" in name for name in tensors(state))


OWN = {"silo-1": {"local_steps": 1, "rate": 0.05}, "silo-2": {"local_steps": 4}}


@pytest.mark.parametrize("labels", [None, ("silo-1", "exact"), ("silo-2", "exact"), ("silo-1", "stale")])
@pytest.mark.parametrize("own", [{}, OWN], ids=["together", "each by itself"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_who_takes_part_and_how_often(
    participation: float, own: dict[str, Any], labels: tuple[str, str] | None, tmp_path: Path
) -> None:
    table = {"silo": labels[0], "sharing": labels[1]} if labels else None
    job = wanted(table, own, participation=participation, local_steps=2)
    check_equal(at_sites(job, tmp_path), simulated(job), 1e-9 if labels else 0.0)
