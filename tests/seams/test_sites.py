"""What users can replace does at sites what it does in a simulation, to the bit."""

from pathlib import Path

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
