"""What a silo carries from round to round: any named tensor reaches the next round, a checkpoint and the end."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcd
from seams.sites import at_sites, check_equal, simulated, tensors, wanted
from support import Interrupt, same
from tdcd.core.aggregators import Aggregator, HubRound
from tdcd.core.network import Block
from tdcd.core.state import Memory
from tdcd.training.settings import Settings

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 6))
Y = (X.sum(1) > 0).astype(int)
SILOS = [
    tdcd.Silo("a", X[:, :3], [range(25), range(25, 40)]),
    tdcd.Silo("b", X[:, 3:], [range(0, 40, 2), range(1, 40, 2)]),
]
SETTINGS = {"loss": "binary-cross-entropy", "rounds": 9, "local_steps": 2, "batch_size": 11, "rate": 0.2,
            "evaluate_every": 3, "checkpoint_every": 2}  # fmt: skip


@dataclass(frozen=True)
class Slow:
    """Follows a running mean of the clients' averages, and counts rounds."""

    linear = True

    def init(self, weights: Block) -> Memory:
        return {"rounds": torch.zeros(1, dtype=torch.int64)} | {f"mean/{name}": t for name, t in weights.items()}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        new = {name: 0.7 * memory[f"mean/{name}"] + 0.3 * tensor for name, tensor in received.items()}
        count = memory["rounds"] + 1
        assert int(count) == round_.number, "the memory of another round"
        return new, {"rounds": count} | {f"mean/{name}": tensor for name, tensor in new.items()}


def train(aggregator: Aggregator | None = None, **more: Any) -> tdcd.Result:
    federation = tdcd.Federation.from_silos(SILOS, Y)
    settings = Settings.model_validate(SETTINGS | ({"aggregator": aggregator} if aggregator else {}))
    return tdcd.train(federation, tdcd.models.MLP(hidden=[4]), settings, **more)


def test_a_named_tensor_goes_from_round_to_round(tmp_path: Path) -> None:
    plain, whole = train(), train(aggregator=Slow())
    assert not same(whole.blocks, plain.blocks)
    loop = train(aggregator=Slow(), compute="loop")
    for silo, block in whole.blocks.items():
        for name, tensor in block.items():
            assert torch.allclose(tensor, loop.blocks[silo][name], atol=1e-6)
    for at in (1, 2, 3, 5, 8):
        path = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            train(directory=path, callbacks=[Interrupt(at)], aggregator=Slow())
        assert same(train(directory=path, resume=True, aggregator=Slow()).blocks, whole.blocks), at


def test_a_named_tensor_is_carried_at_sites(tmp_path: Path) -> None:
    plain = wanted()
    job = plain.model_copy(update={"training": plain.training.model_copy(update={"aggregator": Slow()})})
    there = at_sites(job, tmp_path)
    check_equal(there, simulated(job))
    for state in there.values():
        assert "memory/aggregator/rounds" in tensors(state)
