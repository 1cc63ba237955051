"""Which path computes a silo's clients, and why."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from tdcd.compute.base import Compute
from tdcd.compute.footprint import bytes_per_row
from tdcd.compute.kernel import Kernel, why_no_kernel
from tdcd.compute.layers import Layers, dense_layers
from tdcd.compute.loop import Loop
from tdcd.compute.mixed import Mixed
from tdcd.compute.modules import SMALL, is_unaltered, rows_are_independent, weights_of
from tdcd.compute.one_step import OneStep
from tdcd.compute.stacked import Stacked
from tdcd.compute.threads import ALONE, Threads, heavy
from tdcd.core.aggregators import Average
from tdcd.core.average import mean_of
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Block, copy_block
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards
from tdcd.errors import ModelError
from tdcd.models.lstm import LSTMNetwork

ComputeName = Literal["auto", "one-step", "kernel", "layers", "stacked", "loop"]
PathName = Literal["one-step", "kernel", "layers", "stacked", "mixed", "loop"]
_MAKERS: dict[PathName, Callable[[SiloTask, Threads], Compute]] = {
    "one-step": OneStep,
    "layers": Layers,
    "stacked": Stacked,
}
_AS_ONE = "with Q = 1 all clients are one weighted step"
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SMALL_IMAGE, _MANY = 16 << 10, 20
"""Measured: 8×8 images stack (11 kB of activations a row), 16×16 ones do not (44 kB), nor do those of ten clients."""


def choose(task: SiloTask, wanted: ComputeName = "auto", *, suspendable: bool = False) -> tuple[PathName, str]:
    """Return the path for a silo and a sentence that says which one and why.

    With ``suspendable``, its clients wait for logit gradients between two steps.

    Raises:
        ModelError: the path was asked for by name and the silo's network or steps cannot take it.
    """
    if wanted != "auto":
        trouble = why_not(task, wanted, suspendable)
        if trouble:
            raise ModelError(f'silo \'{task.silo}\': compute = "{wanted}" is not available: {trouble}; use "auto"')
        return wanted, f"{wanted} (as asked)"
    if not why_not(task, "kernel", suspendable):
        why = _AS_ONE if task.steps.single and task.updates is None else "all steps of a client in the cache"
        return "kernel", f"kernel ({why})"
    if not why_not(task, "one-step", suspendable):
        return "one-step", f"one-step ({_AS_ONE})"
    layers = list(task.network.module.modules())
    if any(isinstance(layer, _RECURRENT) for layer in layers):
        return "loop", "loop (recurrent layers do not stack)"
    if any(isinstance(layer, _CONVOLUTION) for layer in layers) and not _small_images(task):
        return "loop", "loop (convolutions are faster one client at a time)"
    if weights_of(task.network.module) > SMALL:
        return "loop", "loop (the network is large: nothing is gained by stacking clients)"
    if not why_not(task, "layers", suspendable):
        return "layers", "layers (stacked clients, gradients written out)"
    trouble = why_not(task, "stacked", suspendable)
    if trouble:
        return "loop", f"loop ({trouble})"
    if rows_are_independent(task.network.module):
        return "stacked", "stacked (many clients in one pass)"
    return "mixed", "stacked (many clients in one pass), or loop in rounds where few have equally many rows"


def _small_images(task: SiloTask) -> bool:
    """Tell whether convolutions are so small, and clients so many, that stacking is faster."""
    small = rows_are_independent(task.network.module) and (bytes_per_row(task) or _SMALL_IMAGE + 1) <= _SMALL_IMAGE
    return small and len(task.roster.clients) >= _MANY


def make(task: SiloTask, name: PathName, pool: Threads = ALONE, threads: int = 1, *, seeded: bool = False) -> Compute:
    """Make a silo's path. Its clients are shared out to ``pool``; a kernel has ``threads`` of its own.

    With ``seeded`` every client draws from a random stream of its own, also where the network seems to draw nothing.
    """
    if name == "kernel":
        return Kernel(task, threads)
    if name in ("loop", "mixed"):
        return (Loop if name == "loop" else Mixed)(task, pool, seeded=seeded)
    return _MAKERS[name](task, pool)


def gains_by_workers(task: SiloTask, name: PathName, workers: int) -> bool:
    """Tell whether a silo's path is faster when Python's threads share the work."""
    if name == "kernel":  # its own threads do, if it has clients for them
        return heavy(task) and len(task.roster.clients) < workers
    return name in ("layers", "stacked") or heavy(task)


def why_not(task: SiloTask, name: str, suspendable: bool = False) -> str:
    """Return why a path cannot compute a silo, or nothing."""
    module = task.network.module
    if name in ("one-step", "kernel") and not task.aggregator.linear:
        return "its aggregator needs the weights of each client"
    if name == "one-step":
        if task.updates is not None:
            return "its codec is for each client's weights"
        if not task.steps.single:
            return "it needs Q = 1, SGD and no clipping"
        sure = rows_are_independent(module) or (type(module) is LSTMNetwork and is_unaltered(module))
        return "" if sure else "its rows may influence each other"
    if name == "kernel":
        if suspendable:
            return "kernels take all steps at once, and the clients wait for logit gradients between them"
        return why_no_kernel(task)
    if name in ("layers", "stacked") and not task.steps.optimizer.elementwise:
        return "its optimizer is for one client at a time"
    if name == "layers":
        return "" if dense_layers(module) else "the network is not a chain of linear layers"
    return _stacking_fails(task) if name == "stacked" else ""


def _stacking_fails(task: SiloTask) -> str:
    """Try the stacked path on a few rows against the loop; return what went wrong, or nothing.

    A single step of rate 1 shows the gradient itself.
    """
    if not is_unaltered(task.network.module):
        return "hooks are for one client at a time"
    task = replace(task, steps=LocalSteps(1), aggregator=Average(), updates=None)
    rows = min(4, len(task.labels))
    round_ = Round(0, torch.arange(rows), rate=1.0)
    stacked = Stacked(task)
    first = rows // 2 if not stacked.padded else 1
    counts = [first, rows - first] if len(task.roster.clients) > 1 and rows > 1 else [rows]
    places = torch.arange(rows, device=task.features.device)
    shards = Shards(places, places, torch.arange(len(counts)), torch.tensor(counts), 0)
    block = task.network.initial()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it cannot vectorise and loops instead
            one = _trial(stacked, copy_block(block), round_, shards)
        two = _trial(Loop(task), copy_block(block), round_, shards)
    except Exception as error:
        return f"the network does not stack: {type(error.__cause__ or error).__name__} in a trial"
    exact = 1e-6 if one["embedding"].dtype == torch.float32 else 1e-12
    for name, tensor in one.items():
        old = block[name].double() if name in block else torch.zeros_like(tensor, dtype=torch.float64)
        here, there = tensor.double() - old, two[name].double() - old
        rounding = exact * (1 + float(old.nan_to_num(0, 0, 0).abs().max()) if old.numel() else 1)
        if not torch.allclose(here, there, rtol=1000 * exact, atol=rounding, equal_nan=True):
            return f"the network does not stack: a trial gave another {name}"
    return ""


def _trial(path: Compute, block: Block, round_: Round, shards: Shards) -> Block:
    embedding = path.embed(block, round_, shards)
    gathered = path.descend(block, round_, shards, torch.zeros_like(embedding))
    return {"embedding": embedding} | mean_of(gathered)
