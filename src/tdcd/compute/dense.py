"""Fully connected networks by a compiled kernel: all steps of a client in the cache, threads over clients."""

import ctypes

import torch
from torch import Tensor, nn

from tdcd.compute import kernels
from tdcd.compute.chunked import embed_rows
from tdcd.compute.interface import mean_with_idle
from tdcd.compute.layers import dense_layers
from tdcd.core.average import Mean
from tdcd.core.client import LocalSteps
from tdcd.core.network import Block
from tdcd.core.objective import BinaryCrossEntropy, CrossEntropy
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards

GROUPS = 32
"""Sums are kept for so many groups of clients and then added in order: the same for any number of threads."""
MOST = 200_000
"""Weights of the largest network that is worth it; larger ones keep torch's own products busy."""
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.Tanh: 2, nn.Sigmoid: 3}


class Dense:
    """Compute a silo's clients by the kernel."""

    def __init__(self, task: SiloTask, threads: int = 1) -> None:
        layers = dense_layers(task.network.module)
        library, _ = kernels.load("dense")
        assert layers is not None, "only for chains of linear layers"  # noqa: S101
        assert library is not None, "only where the kernel is"  # noqa: S101
        self._task, self._layers, self._threads = task, layers, threads
        double = task.features.dtype == torch.float64
        self._function = library.tdcd_dense_double if double else library.tdcd_dense_float
        self._function.restype = None
        linear = [layer for layer in task.network.module.modules() if isinstance(layer, nn.Linear)]
        self._dims = torch.tensor([linear[0].in_features, *(layer.out_features for layer in linear)], dtype=torch.int32)
        self._activations = torch.tensor(_activations(task.network.module), dtype=torch.int32)
        self._features = task.features.contiguous()
        objective = task.objective
        self._loss = 0 if isinstance(objective, CrossEntropy) else 1 if isinstance(objective, BinaryCrossEntropy) else 2
        self._positive = objective.positive_weight if isinstance(objective, BinaryCrossEntropy) else 1.0
        self._labels = task.labels.contiguous()

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        return embed_rows(self._task, block, round_.batch[shards.order], shards)

    def descend(self, block: Block, round_: Round, shards: Shards, others: Tensor) -> Mean:
        """See Compute."""
        task = self._task
        names = [name for layer in self._layers for name in (layer.weight, layer.bias) if name]
        tensors = {name: block[name].contiguous() for name in names}
        sizes = [tensors[name].numel() for name in names]
        clients = len(shards.clients)
        groups = min(GROUPS, clients)
        bounds = torch.div(torch.arange(groups + 1) * clients, groups, rounding_mode="floor")
        samples, stale = round_.batch[shards.order].contiguous(), others.contiguous()
        firsts, counts = shards.starts.contiguous(), shards.counts.contiguous()
        sums = torch.zeros(groups, sum(sizes), dtype=torch.float64)
        labels, classes = (None, self._labels) if self._loss == 0 else (self._labels, None)
        weights = [tensors[layer.weight] for layer in self._layers]
        biases = [tensors[layer.bias] if layer.bias else None for layer in self._layers]
        uniform = task.averaging == "uniform"
        self._function(
            ctypes.c_int(len(self._layers)), _at(self._dims), _at(self._activations), _pointers(weights),
            _pointers(biases), ctypes.c_int(self._loss), ctypes.c_double(self._positive),
            ctypes.c_int(task.steps.count), ctypes.c_double(round_.rate), _at(self._features), _at(samples),
            _at(stale), _at(labels), _at(classes), ctypes.c_int(groups), _at(bounds), _at(firsts), _at(counts),
            ctypes.c_int(uniform), ctypes.c_int64(sum(sizes)), _at(sums), ctypes.c_int(self._threads),
        )  # fmt: skip
        mean = mean_with_idle(task, block, shards)
        parts = torch.split(sums.sum(0), sizes)
        total = {name: part.view(block[name].shape) for name, part in zip(names, parts, strict=True)}
        mean.add_sum(total, float(clients if uniform else len(others)))
        return mean


def dense_trouble(task: SiloTask) -> str:
    """Return why the kernel cannot compute a silo, or nothing."""
    if dense_layers(task.network.module) is None:
        return "the network is not a chain of linear layers"
    if task.steps != LocalSteps(task.steps.count):
        return "the kernel takes plain steps only"
    if sum(p.numel() for p in task.network.module.parameters()) > MOST:
        return "the network is too large to gain by it"
    if task.features.dtype not in (torch.float32, torch.float64) or task.features.device.type != "cpu":
        return "the kernel takes float32 and float64 on the CPU"
    library, why = kernels.load("dense")
    return "" if library else why


def _activations(module: nn.Module) -> list[int]:
    found: list[int] = []
    for layer in module.children():
        if isinstance(layer, nn.Linear):
            found.append(0)
        elif type(layer) in _ACTIVATIONS:
            found[-1] = _ACTIVATIONS[type(layer)]
    return found


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None)


def _pointers(tensors: list[Tensor] | list[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() if t is not None else None for t in tensors))
