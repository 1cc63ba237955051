"""What users can replace does at sites what it does in a simulation, to the bit."""

from pathlib import Path

import pytest
import torch

from seams.sites import at_sites, simulated, tensors, wanted
from support import RULES
from tdcd.core.aggregators import Aggregator
from tdcd.training.settings import AGGREGATOR


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_aggregators(rule: Aggregator, tmp_path: Path) -> None:
    job = wanted(aggregator=AGGREGATOR.write(rule))
    there, here = at_sites(job, tmp_path), simulated(job)
    for silo, state in here.items():
        found = tensors(there[silo])
        assert set(found) == set(tensors(state))
        for name, tensor in tensors(state).items():
            assert torch.equal(found[name], tensor), (silo, name)
