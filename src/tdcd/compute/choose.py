"""Which path computes a silo's clients, and why."""

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from tdcd.compute.chunked import rows_are_independent
from tdcd.compute.fused import Fused, fused_trouble
from tdcd.compute.interface import Compute
from tdcd.compute.layers import Layers, dense_layers
from tdcd.compute.loop import Loop
from tdcd.compute.onestep import OneStep, one_step
from tdcd.compute.stacked import Stacked
from tdcd.compute.workers import ALONE, Workers
from tdcd.core.network import Block, copy_block
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards
from tdcd.errors import ModelError
from tdcd.models.lstm import LSTMNetwork

ComputeName = Literal["auto", "one-step", "kernel", "layers", "stacked", "loop"]
_AS_ONE = "with Q = 1 all clients are one weighted step"
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def choose(
    task: SiloTask, wanted: ComputeName = "auto", workers: Workers = ALONE, threads: int = 1
) -> tuple[Compute, str]:
    """Return the path for a silo and a sentence that says which one and why.

    ``workers`` share the clients of the silo; a kernel has ``threads`` of its own, which Python does not slow down.

    Raises:
        ModelError: the path was asked for by name and the silo's network or steps cannot take it.
    """
    if wanted != "auto":
        trouble = _trouble(task, wanted)
        if trouble:
            raise ModelError(f'silo \'{task.silo}\': compute = "{wanted}" cannot be had: {trouble}; use "auto"')
        return _make(task, wanted, workers, threads), f"{wanted} (as asked)"
    if not _trouble(task, "kernel"):
        why = (
            "with Q = 1 all clients are one weighted step"
            if one_step(task.steps)
            else "all steps of a client in the cache"
        )
        return Fused(task, threads), f"kernel ({why})"
    if not _trouble(task, "one-step"):
        return OneStep(task), f"one-step ({_AS_ONE})"
    if not _trouble(task, "layers"):
        return Layers(task, workers), "layers (stacked clients, gradients written out)"
    layers = list(task.network.module.modules())
    if any(isinstance(layer, _RECURRENT) for layer in layers):
        return Loop(task, workers), "loop (recurrent layers do not stack)"
    if any(isinstance(layer, _CONVOLUTION) for layer in layers):
        return Loop(task, workers), "loop (convolutions are faster one client at a time)"
    trouble = _trouble(task, "stacked")
    if trouble:
        return Loop(task, workers), f"loop ({trouble})"
    return Stacked(task, workers), "stacked (many clients in one pass)"


def _make(task: SiloTask, name: str, workers: Workers, threads: int) -> Compute:
    if name == "one-step":
        return OneStep(task)
    if name == "kernel":
        return Fused(task, threads)
    makers: dict[str, Callable[[SiloTask, Workers], Compute]] = {"layers": Layers, "stacked": Stacked, "loop": Loop}
    return makers[name](task, workers)


def _trouble(task: SiloTask, name: str) -> str:
    """Return why a path cannot compute a silo, or nothing."""
    module = task.network.module
    if name == "one-step":
        if not one_step(task.steps):
            return "it needs Q = 1 and no clipping"
        sure = rows_are_independent(module) or type(module) is LSTMNetwork
        return "" if sure else "its rows may influence each other"
    if name == "kernel":
        return fused_trouble(task)
    if name == "layers":
        return "" if dense_layers(module) else "the network is not a chain of linear layers"
    return _stacking_fails(task) if name == "stacked" else ""


def _stacking_fails(task: SiloTask) -> str:
    """Try the stacked path on a few rows against the loop; return what went wrong, or nothing."""
    rows = min(4, len(task.labels))
    round_ = Round(0, torch.arange(rows), rate=1e-3)
    stacked = Stacked(task)
    first = rows // 2 if not stacked.padded else 1
    counts = [first, rows - first] if len(task.roster.clients) > 1 and rows > 1 else [rows]
    shards = Shards(torch.arange(rows), torch.arange(rows), torch.arange(len(counts)), torch.tensor(counts), 0)
    block = task.network.initial()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it cannot vectorise and loops instead
            one = _trial(stacked, copy_block(block), round_, shards)
        two = _trial(Loop(task), copy_block(block), round_, shards)
    except Exception as error:
        return f"the network does not stack: {type(error.__cause__ or error).__name__} in a trial"
    tolerance = 1e-3 if one["embedding"].dtype == torch.float32 else 1e-9
    for name, tensor in one.items():
        if not torch.allclose(tensor.double(), two[name].double(), rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"the network does not stack: a trial gave another {name}"
    return ""


def _trial(path: Compute, block: Block, round_: Round, shards: Shards) -> Block:
    embedding = path.embed(block, round_, shards)
    return {"embedding": embedding} | path.descend(block, round_, shards, torch.zeros_like(embedding)).result()
