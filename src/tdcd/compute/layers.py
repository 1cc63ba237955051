"""Stacked clients of fully connected networks, with the gradient written out: nothing is recorded, little allocated."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from tdcd.compute.chunked import Chunked
from tdcd.compute.modules import is_unaltered
from tdcd.compute.stacked import stack
from tdcd.compute.threads import ALONE, Threads
from tdcd.core.local_steps import Backward, Steps, local_steps
from tdcd.core.network import Block, copy_block
from tdcd.core.state import carried
from tdcd.core.task import SiloTask

Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
"""A function done in place, and what turns ∂/∂output into ∂/∂input given the output."""

_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: (torch.relu_, lambda g, h: torch.ops.aten.threshold_backward(g, h, 0)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}


@dataclass(frozen=True)
class Dense:
    """A linear layer by the names of its weights, and the activation after it."""

    weight: str
    bias: str | None
    widths: tuple[int, int]
    """Numbers that go in and come out."""
    follows: type[nn.Module] | None = None
    """The kind of the activation after it."""

    @property
    def activation(self) -> Activation | None:
        """The activation after it, as functions."""
        return _ACTIVATIONS[self.follows] if self.follows else None


class Layers(Chunked):
    """Compute a chunk of clients by batched matrix products."""

    def __init__(self, task: SiloTask, pool: Threads = ALONE) -> None:
        result = dense_layers(task.network.module)
        assert result is not None, "only for chains of linear layers"  # noqa: S101
        self._layers = result
        super().__init__(task, pool)

    def activations(self) -> int:
        """See Chunked."""
        return 2 * sum(layer.widths[1] for layer in self._layers)

    def steps(self, block: Block, x: Tensor, share: Tensor, rate: float) -> Steps:
        """See Chunked."""
        x, steps = x.flatten(2), self.task.steps
        known = carried(block)
        blocks = copy_block(stack({name: t for name, t in block.items() if name not in known}, len(x)))
        if not steps.plain:
            forward, names = partial(self._recorded, x), self.task.network.trainable
            return (yield from local_steps(forward, blocks, names, known, share, steps, rate, grouped=True))
        for _ in range(steps.count):
            with torch.no_grad():
                *inputs, embeddings = self._forward(blocks, x)
            gradients = yield embeddings
            with torch.no_grad():
                self._step(blocks, inputs, gradients * share, rate)
        return blocks

    def _recorded(self, x: Tensor, blocks: Block) -> tuple[Tensor, Backward]:
        with torch.no_grad():
            *inputs, embeddings = self._forward(blocks, x)
        return embeddings, partial(self._gradient, blocks, inputs)

    def _forward(self, blocks: Block, x: Tensor) -> list[Tensor]:
        """Return the input of every layer and the embedding, each (G, n, width)."""
        outputs = [x]
        for layer in self._layers:
            weight = blocks[layer.weight].transpose(1, 2)
            if layer.bias is None:
                x = torch.bmm(x, weight)
            else:
                x = torch.baddbmm(blocks[layer.bias].unsqueeze(1), x, weight)
            if layer.activation:
                x = layer.activation[0](x)
            outputs.append(x)
        return outputs

    def _step(self, blocks: Block, inputs: list[Tensor], g: Tensor, rate: float) -> None:
        """Take one step of plain SGD, each gradient going straight into its weights."""
        for index in range(len(self._layers) - 1, -1, -1):
            layer, h = self._layers[index], inputs[index]
            weight, below = blocks[layer.weight], g
            if index:
                below = self._below(index, torch.bmm(g, weight), h)
            weight.baddbmm_(g.transpose(1, 2), h, alpha=-rate)
            if layer.bias is not None:
                blocks[layer.bias].sub_(g.sum(1), alpha=rate)
            g = below

    def _gradient(self, blocks: Block, inputs: list[Tensor], g: Tensor) -> Block:
        """Return every client's gradient, given that at the embeddings."""
        gradient: Block = {}
        for index in range(len(self._layers) - 1, -1, -1):
            layer, h = self._layers[index], inputs[index]
            gradient[layer.weight] = torch.bmm(g.transpose(1, 2), h)
            if layer.bias is not None:
                gradient[layer.bias] = g.sum(1)
            if index:
                g = self._below(index, torch.bmm(g, blocks[layer.weight]), h)
        return gradient

    def _below(self, index: int, g: Tensor, h: Tensor) -> Tensor:
        """Turn the gradient at a layer's input into that at the layer below, before its activation."""
        activation = self._layers[index - 1].activation
        return activation[1](g, h) if activation else g


def dense_layers(module: nn.Module) -> list[Dense] | None:
    """Return a module's layers if it is a plain chain of linear layers and known activations, all trainable."""
    if type(module) is not nn.Sequential or not is_unaltered(module):
        return None
    parts: list[Dense] = []
    for index, layer in module._modules.items():
        if type(layer) is nn.Flatten and not parts and (layer.start_dim, layer.end_dim) == (1, -1):
            continue
        if type(layer) is nn.Linear:
            bias = f"{index}.bias" if layer.bias is not None else None
            parts.append(Dense(f"{index}.weight", bias, (layer.in_features, layer.out_features)))
        elif type(layer) in _ACTIVATIONS and parts and parts[-1].follows is None:
            parts[-1] = replace(parts[-1], follows=type(layer))
        else:
            return None
    tensors = dict(module.named_parameters())
    names = {name for layer in parts for name in (layer.weight, layer.bias) if name}
    whole = names == set(tensors) and all(p.requires_grad for p in tensors.values())
    return parts if parts and parts[-1].follows is None and whole else None
