"""Which path computes a silo's clients, and why."""

import warnings
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import nn

from tdcd.compute.interface import Compute
from tdcd.compute.loop import Loop
from tdcd.compute.stacked import Stacked
from tdcd.core.network import copy_block
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards
from tdcd.errors import ModelError

Path = Literal["auto", "loop", "stacked"]
PATHS: tuple[str, ...] = get_args(Path)

_MAKERS: dict[str, Callable[[SiloTask], Compute]] = {"loop": Loop, "stacked": Stacked}
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def choose(task: SiloTask, wanted: Path = "auto") -> tuple[Compute, str]:
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
    counts = (rows // 2, rows - rows // 2) if len(task.roster.clients) > 1 and rows > 1 else (rows,)
    shards = Shards(torch.arange(rows), counts)
    block = task.network.initial()
    answers = []
    for name in ("stacked", "loop"):
        path = _MAKERS[name](task)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                embedding = path.embed(copy_block(block), round_, shards)
                new = path.descend(copy_block(block), round_, shards, torch.zeros_like(embedding)).result()
        except Exception as error:
            cause = error.__cause__ or error
            return f"{type(cause).__name__} in a trial" if name == "stacked" else ""
        answers.append({**new, "embedding": embedding})
    tolerance = 1e-3 if answers[0]["embedding"].dtype == torch.float32 else 1e-9
    for name, tensor in answers[0].items():
        if not torch.allclose(tensor.double(), answers[1][name].double(), rtol=tolerance, atol=tolerance):
            return f"a trial gave another {name}"
    return ""
