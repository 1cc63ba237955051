"""Networks with a compiled kernel: all steps of a client in the cache, threads over clients."""

import ctypes
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from tdcd.compute import kernels
from tdcd.compute.base import blame
from tdcd.compute.modules import SMALL, is_unaltered, weights_of
from tdcd.compute.one_step import active_weight, shares
from tdcd.core.average import Mean
from tdcd.core.codecs import BFloat16, Codec, Float16, Plain
from tdcd.core.network import Block
from tdcd.core.objectives import BinaryCrossEntropy, CrossEntropy, SquaredError
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards
from tdcd.errors import ModelError
from tdcd.models.lstm import LSTMNetwork

GROUPS = 16
"""Sums are kept for so many groups of clients and then added in order: the same for any number of threads."""
PIECE = 256
"""With Q = 1, rows that are worth a piece of their own."""
_DENSE, _CONVOLUTION, _POOL = 0, 1, 2
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.Tanh: 2, nn.Sigmoid: 3}
_LSTM = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@dataclass(frozen=True)
class Shape:
    """What a kernel must know of a network."""

    kernel: str
    numbers: tuple[int, ...]
    """LSTM: time steps, features, hidden states, outputs. Chain: the number of layers and twelve numbers for each."""
    tensors: tuple[str | None, ...]
    """The names of the weights in the order of the kernel; a chain has a weight and a bias, or nothing, for each layer.
    """

    @property
    def names(self) -> list[str]:
        """The weights there are, in the order in which the kernel writes their sums."""
        return [name for name in self.tensors if name]


class Kernel:
    """Compute a silo's clients by a kernel.

    With Q = 1 it does not matter which client a row belongs to, only what it weighs: rows are dealt evenly.
    """

    def __init__(self, task: SiloTask, threads: int = 1) -> None:
        shape = kernel_shape(task)
        assert shape is not None, "only for networks with a kernel"  # noqa: S101
        library, why = kernels.load(shape.kernel)
        assert library is not None, why  # noqa: S101
        self._task, self._shape, self.threads = task, shape, threads
        self._dtype = task.features.dtype
        kind = "double" if self._dtype == torch.float64 else "float"
        self._descend, self._embed = getattr(library, f"tdcd_descend_{kind}"), getattr(library, f"tdcd_embed_{kind}")
        numbers = (ctypes.c_int * len(shape.numbers))(*shape.numbers)
        self._numbers, self._kept = kernels.Span(ctypes.addressof(numbers), len(numbers)), numbers
        self._features, self._labels = task.features.contiguous(), task.labels.contiguous()
        self._rows = self._span(self._features)
        target = _target(task)
        if target is None:
            raise ModelError(f"kernels do not know the loss {type(task.objective).__name__}")
        self._target = target
        classes = target[0] == _CROSS_ENTROPY
        self._labels_given = (
            self._span(None if classes or task.remote_labels else self._labels),
            kernels.span(self._labels if classes else None, torch.int64),
        )
        self._one_step = task.steps.single and task.updates is None
        self._returns = 0 if task.updates is None else _UPDATES[type(task.updates)]

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:  # noqa: ARG002
        """See Compute."""
        return self._embed_rows(block, self._rows, shards.samples)

    def embed_whole(self, block: Block, features: Tensor) -> Tensor:
        """Embed any rows (M, …): (M, E). These networks are the same in training and evaluation."""
        features = features.contiguous()
        return self._embed_rows(block, self._span(features), torch.arange(len(features)))

    def _embed_rows(self, block: Block, rows: kernels.Span, samples: Tensor) -> Tensor:
        task = self._task
        out = torch.empty(len(samples), task.width, dtype=self._dtype)
        with blame(task, [], "the forward pass"):
            weights, kept = self._weights(block)
            kernels.check(
                self._embed(
                    self._numbers, weights, rows, _samples(samples), task.width, self._span(out),
                    self.threads,
                )
            )  # fmt: skip
            del kept
        return out

    def descend(self, block: Block, round_: Round, shards: Shards, rows: Tensor) -> Mean:
        """See Compute."""
        task, names, samples = self._task, self._shape.names, shards.samples
        clients, uniform = len(shards.clients), task.averaging == "uniform"
        share, firsts, counts = None, None, None
        if self._one_step:
            clients, uniform = max(1, min(GROUPS, len(samples) // PIECE)), True
            share = shares(task, shards, rows).mul_(clients)
        else:
            firsts, counts = shards.starts, shards.counts
        sizes = [block[name].numel() for name in names]
        sums = torch.zeros(sum(sizes), dtype=torch.float64)
        with blame(task, [], "the local steps"):
            weights, kept = self._weights(block)
            kernels.check(
                self._descend(
                    self._numbers, weights, self._rows, _samples(samples), task.width,
                    *self._target, self._span(rows.contiguous()), *self._labels_given,
                    self._span(share), task.steps.count, round_.rate, clients, _samples(firsts),
                    _samples(counts), uniform, min(GROUPS, clients), kernels.span(sums, torch.float64), self._returns,
                    self.threads,
                )
            )  # fmt: skip
            del kept
        weight = active_weight(task, shards)
        if self._one_step:
            sums.mul_(weight / clients)
        parts = torch.split(sums, sizes)
        mean = Mean(block)
        mean.add_sum({name: part.view(block[name].shape) for name, part in zip(names, parts, strict=True)}, weight)
        return mean

    def _span(self, tensor: Tensor | None) -> kernels.Span:
        return kernels.span(tensor, self._dtype)

    def _weights(self, block: Block) -> tuple[kernels.Span, object]:
        """Return the weights as the kernel takes them, and what must stay alive meanwhile."""
        tensors = [block[name].contiguous() if name else None for name in self._shape.tensors]
        spans = (kernels.Span * len(tensors))(*map(self._span, tensors))
        return kernels.Span(ctypes.addressof(spans), len(spans)), (tensors, spans)


def _samples(numbers: Tensor | None) -> kernels.Span:
    return kernels.span(numbers, torch.int64)


_CROSS_ENTROPY, _BINARY, _SQUARED, _GIVEN = range(4)
_UPDATES: dict[type[Codec], int] = {Plain: 1, Float16: 2, BFloat16: 3}
"""How the kernels know what clients' changes go through; 0 are the weights themselves."""


def _target(task: SiloTask) -> tuple[int, float] | None:
    """Return the loss as the kernels know it, its number and the weight of positive rows; nothing if they do not.

    A class made from one that they know may compute something else, so only the classes themselves count.
    """
    objective = task.objective
    if task.remote_labels:
        return _GIVEN, 1.0
    if type(objective) is CrossEntropy:
        return _CROSS_ENTROPY, 1.0
    if type(objective) is BinaryCrossEntropy:
        return _BINARY, objective.positive_weight
    if type(objective) is SquaredError:
        return _SQUARED, 1.0
    return None


def kernel_shape(task: SiloTask) -> Shape | None:
    """Return what a kernel must know of a silo's network, or nothing where no kernel fits."""
    module = task.network.module
    if task.network.buffers or not is_unaltered(module):
        return None
    if type(module) is LSTMNetwork:
        _, steps, features = task.features.shape
        names = (*(f"lstm.{name}" for name in _LSTM), "linear.weight", "linear.bias")
        return Shape("lstm", (steps, features, module.lstm.hidden_size, task.width), names)
    return _chain(module, tuple(task.features.shape[1:]))


def _chain(module: nn.Module, row: tuple[int, ...]) -> Shape | None:
    """Read a module as a chain of layers for rows of this shape, if it is one."""
    if type(module) is not nn.Sequential:
        return None
    layers: list[list[int]] = []
    tensors: list[str | None] = []
    for index, layer in module._modules.items():
        if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            row = (prod(row),)
        elif type(layer) in _ACTIVATIONS and layers and layers[-1][0] != _POOL and not layers[-1][1]:
            layers[-1][1] = _ACTIVATIONS[type(layer)]
        elif (result := _layer(layer, row)) is not None:
            kind, out, window = result
            layers.append([kind, 0, *_image(row), *_image(out), *window])
            row = out
            own = dict(layer.named_parameters(prefix=index))
            tensors += [name if (name := f"{index}.{part}") in own else None for part in ("weight", "bias")]
        else:
            return None
    whole = {name for name in tensors if name} == set(dict(module.named_parameters()))
    if not layers or layers[-1][:2] != [_DENSE, 0] or not whole:
        return None
    return Shape("chain", (len(layers), *(number for layer in layers for number in layer)), tuple(tensors))


def _layer(layer: nn.Module, row: tuple[int, ...]) -> tuple[int, tuple[int, ...], tuple[int, int, int, int]] | None:
    """Return a layer's kind, the shape it makes of a row, and its window: height, width and padding of either."""
    if type(layer) is nn.Linear and row == (layer.in_features,):
        return _DENSE, (layer.out_features,), (1, 1, 0, 0)
    if len(row) != 3:
        return None
    channels, height, width = row
    if type(layer) is nn.Conv2d and layer.in_channels == channels and isinstance(layer.padding, tuple):
        (kh, kw), (ph, pw) = layer.kernel_size, layer.padding
        out = (layer.out_channels, height + 2 * ph - kh + 1, width + 2 * pw - kw + 1)
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        if plain and ph < kh and pw < kw and min(out) > 0:
            return _CONVOLUTION, out, (kh, kw, ph, pw)
    if type(layer) is nn.MaxPool2d and not layer.return_indices and not layer.ceil_mode:
        kh, kw = _pair(layer.kernel_size)
        plain = _pair(layer.stride) == (kh, kw) and _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
        if plain and height >= kh and width >= kw:
            return _POOL, (channels, height // kh, width // kw), (kh, kw, 0, 0)
    return None


def _image(row: tuple[int, ...]) -> tuple[int, int, int]:
    return (row[0], 1, 1) if len(row) == 1 else (row[0], row[1], row[2])


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def why_no_kernel(task: SiloTask) -> str:
    """Return why no kernel can compute a silo, or nothing."""
    shape = kernel_shape(task)
    if shape is None:
        return "there is none for this network, only for chains of plain layers and for the LSTM"
    if _target(task) is None:
        return f"kernels do not know the loss {type(task.objective).__name__}"
    if task.updates is not None and type(task.updates) not in _UPDATES:
        return f"kernels do not know the codec {type(task.updates).__name__}"
    if not task.steps.plain:
        return "kernels take steps of plain SGD only, without momentum, weight decay, clipping or a proximal term"
    if weights_of(task.network.module) > SMALL:
        return "the network is too large to gain by it"
    if task.features.dtype not in (torch.float32, torch.float64) or task.features.device.type != "cpu":
        return "kernels take float32 and float64 on the CPU"
    return kernels.load(shape.kernel)[1]
