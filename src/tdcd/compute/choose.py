"""Which path computes a silo's clients, and why."""

import warnings
from typing import Literal

import torch
from torch import nn

from tdcd.compute.interface import Compute
from tdcd.compute.loop import Loop
from tdcd.compute.stacked import Stacked
from tdcd.core.network import Block, copy_block
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards
from tdcd.errors import ModelError

ComputeName = Literal["auto", "loop", "stacked"]

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def choose(task: SiloTask, wanted: ComputeName = "auto") -> tuple[Compute, str]:
    """Return the path for a silo and a sentence that says which one and why.

    Raises:
        ModelError: the path was asked for by name and the silo's network cannot take it.
    """
    if wanted == "loop":
        return Loop(task), "loop (as asked)"
    if wanted == "stacked":
        trouble = _stacking_fails(task)
        if trouble:
            raise ModelError(
                f"silo '{task.silo}': its network cannot be computed stacked ({trouble}); use compute = \"auto\""
            )
        return Stacked(task), "stacked (as asked)"
    layers = list(task.network.module.modules())
    if any(isinstance(layer, _RECURRENT) for layer in layers):
        return Loop(task), "loop (recurrent layers do not stack)"
    if any(isinstance(layer, _CONVOLUTION) for layer in layers):
        return Loop(task), "loop (convolutions are faster one client at a time)"
    trouble = _stacking_fails(task)
    if trouble:
        return Loop(task), f"loop (the network does not stack: {trouble})"
    return Stacked(task), "stacked (many clients in one pass)"


def _stacking_fails(task: SiloTask) -> str:
    """Try the stacked path on a few rows against the loop; return what went wrong, or nothing."""
    rows = min(4, len(task.labels))
    round_ = Round(0, torch.arange(rows), rate=1e-3)
    stacked = Stacked(task)
    first = rows // 2 if not stacked.padded else 1
    counts = (first, rows - first) if len(task.roster.clients) > 1 and rows > 1 else (rows,)
    shards = Shards(torch.arange(rows), counts)
    block = task.network.initial()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it cannot vectorise and loops instead
            one = _trial(stacked, copy_block(block), round_, shards)
        two = _trial(Loop(task), copy_block(block), round_, shards)
    except Exception as error:
        return f"{type(error.__cause__ or error).__name__} in a trial"
    tolerance = 1e-3 if one["embedding"].dtype == torch.float32 else 1e-9
    for name, tensor in one.items():
        if not torch.allclose(tensor.double(), two[name].double(), rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"a trial gave another {name}"
    return ""


def _trial(path: Compute, block: Block, round_: Round, shards: Shards) -> Block:
    embedding = path.embed(block, round_, shards)
    return {"embedding": embedding} | path.descend(block, round_, shards, torch.zeros_like(embedding)).result()
