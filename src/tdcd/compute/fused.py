"""Networks with a compiled kernel: all steps of a client in the cache, threads over clients."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tdcd.compute import kernels
from tdcd.compute.chunked import PIECE, embed_rows
from tdcd.compute.interface import mean_with_idle
from tdcd.compute.layers import dense_layers
from tdcd.compute.workers import Workers
from tdcd.core.average import Mean
from tdcd.core.client import LocalSteps
from tdcd.core.network import Block
from tdcd.core.objective import BinaryCrossEntropy, CrossEntropy
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards
from tdcd.models.lstm import LSTMNetwork

GROUPS = 32
"""Sums are kept for so many groups of clients and then added in order: the same for any number of threads."""
MOST = 200_000
"""Weights of the largest network that is worth it; larger ones keep torch's own products busy."""
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.Tanh: 2, nn.Sigmoid: 3}
_LSTM = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@dataclass(frozen=True)
class Shape:
    """What a kernel must know of a network."""

    kernel: str
    names: tuple[str, ...]
    """The network's weights, in the order in which the kernel writes their sums."""
    numbers: tuple[int, ...] = ()
    """LSTM: time steps, features, hidden states, outputs."""
    dims: tuple[int, ...] = ()
    """Dense: the width of the rows and of every layer."""
    activations: tuple[int, ...] = ()
    """Dense: the activation after every layer."""
    biases: tuple[bool, ...] = ()
    """Dense: whether each layer has a bias."""


class Fused:
    """Compute a silo's clients by a kernel."""

    def __init__(self, task: SiloTask, threads: int = 1) -> None:
        shape = fused_shape(task)
        assert shape is not None, "only for networks with a kernel"  # noqa: S101
        library, why = kernels.load(shape.kernel)
        assert library is not None, why  # noqa: S101
        self._task, self._shape, self.threads = task, shape, threads
        self._workers = Workers(threads)
        kind = "double" if task.features.dtype == torch.float64 else "float"
        self._function = getattr(library, f"tdcd_{shape.kernel}_{kind}")
        self._function.restype = None
        self._features, self._labels = task.features.contiguous(), task.labels.contiguous()

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        size = 500 if self._shape.kernel == "lstm" else PIECE
        return embed_rows(self._task, block, round_.batch[shards.order], shards, self._workers, size)

    def descend(self, block: Block, round_: Round, shards: Shards, others: Tensor) -> Mean:
        """See Compute."""
        task, names = self._task, self._shape.names
        tensors = [block[name].contiguous() for name in names]
        sizes = [tensor.numel() for tensor in tensors]
        clients, uniform = len(shards.clients), task.averaging == "uniform"
        groups = min(GROUPS, clients)
        bounds = torch.div(torch.arange(groups + 1) * clients, groups, rounding_mode="floor")
        samples, stale = round_.batch[shards.order].contiguous(), others.contiguous()
        firsts, counts = shards.starts.contiguous(), shards.counts.contiguous()
        sums = torch.zeros(groups, sum(sizes), dtype=torch.float64)
        leading, kept = self._leading(tensors)
        self._function(
            *leading, *self._target(), ctypes.c_int(task.steps.count), ctypes.c_double(round_.rate),
            _at(self._features), _at(samples), _at(stale), *self._answers(), ctypes.c_int(groups), _at(bounds),
            _at(firsts), _at(counts), ctypes.c_int(uniform), ctypes.c_int64(sum(sizes)), _at(sums),
            ctypes.c_int(self.threads),
        )  # fmt: skip
        del kept
        mean = mean_with_idle(task, block, shards)
        parts = torch.split(sums.sum(0), sizes)
        total = {name: part.view(block[name].shape) for name, part in zip(names, parts, strict=True)}
        mean.add_sum(total, float(clients if uniform else len(others)))
        return mean

    def _leading(self, tensors: list[Tensor]) -> tuple[list[object], list[Tensor]]:
        """Return the arguments that describe the network, and the tensors behind them that must stay alive."""
        shape = self._shape
        if shape.kernel == "lstm":
            return [*(ctypes.c_int(number) for number in shape.numbers), _pointers(tensors)], []
        dims = torch.tensor(shape.dims, dtype=torch.int32)
        activations = torch.tensor(shape.activations, dtype=torch.int32)
        rest = iter(tensors)
        pairs = [(next(rest), next(rest) if has else None) for has in shape.biases]
        weights, biases = _pointers([w for w, _ in pairs]), _pointers([b for _, b in pairs])
        return [ctypes.c_int(len(pairs)), _at(dims), _at(activations), weights, biases], [dims, activations]

    def _target(self) -> list[object]:
        objective = self._task.objective
        if isinstance(objective, CrossEntropy):
            return [ctypes.c_int(0), ctypes.c_double(1.0)]
        if isinstance(objective, BinaryCrossEntropy):
            return [ctypes.c_int(1), ctypes.c_double(objective.positive_weight)]
        return [ctypes.c_int(2), ctypes.c_double(1.0)]

    def _answers(self) -> list[object]:
        classes = isinstance(self._task.objective, CrossEntropy)
        return [_at(None), _at(self._labels)] if classes else [_at(self._labels), _at(None)]


def fused_shape(task: SiloTask) -> Shape | None:
    """Return what a kernel must know of a silo's network, or nothing where no kernel fits."""
    module = task.network.module
    if type(module) is LSTMNetwork:
        _, steps, features = task.features.shape
        names = (*(f"lstm.{name}" for name in _LSTM), "linear.weight", "linear.bias")
        return Shape("lstm", names, numbers=(steps, features, module.lstm.hidden_size, task.width))
    layers = dense_layers(module)
    if layers is None:
        return None
    return Shape(
        "dense",
        tuple(name for layer in layers for name in (layer.weight, layer.bias) if name),
        dims=(layers[0].widths[0], *(layer.widths[1] for layer in layers)),
        activations=tuple(_ACTIVATIONS[layer.follows] if layer.follows else 0 for layer in layers),
        biases=tuple(layer.bias is not None for layer in layers),
    )


def fused_trouble(task: SiloTask) -> str:
    """Return why no kernel can compute a silo, or nothing."""
    shape = fused_shape(task)
    if shape is None:
        return "there is none for this network"
    if task.steps != LocalSteps(task.steps.count):
        return "kernels take plain steps only"
    if not all(p.requires_grad for p in task.network.module.parameters()):
        return "kernels train all weights or none"
    if sum(p.numel() for p in task.network.module.parameters()) > MOST:
        return "the network is too large to gain by it"
    if task.features.dtype not in (torch.float32, torch.float64) or task.features.device.type != "cpu":
        return "kernels take float32 and float64 on the CPU"
    return kernels.load(shape.kernel)[1]


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None)


def _pointers(tensors: list[Tensor] | list[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() if t is not None else None for t in tensors))
