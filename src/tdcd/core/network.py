"""A silo's network h_j as a pure function of its block of weights θ_j."""

import copy
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tdcd.core.modules import Attributes, hooked_weights

Block = dict[str, Tensor]
"""θ_j: the weights and running statistics of one silo's network, by torch's names for them."""

Blocks = Mapping[str, Block]
"""The global model θ̃ = [θ_1, …, θ_N]: a block for each silo's name (Equation 1)."""


class Network:
    """Any ``nn.Module``, used as a function: ``network(block, rows)``.

    The module given is copied, never changed; its weights are the initial block.
    """

    def __init__(
        self, module: nn.Module, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        if hooked := hooked_weights(module):
            raise ValueError(
                f"the weight '{hooked[0]}' has a hook (register_hook), which copies of the network would not have; "
                "change the gradient in forward, or by a hook of the module"
            )
        self.module = copy.deepcopy(module).to(device, dtype).train()
        self.device, self.dtype = torch.device(device), dtype
        self.trainable = tuple(name for name, p in self.module.named_parameters() if p.requires_grad)
        self.buffers = tuple(name for name in self.initial() if name not in self.trainable)
        """Everything that gradient steps leave alone: running statistics, frozen weights."""
        self.remembers = False
        """Whether a pass in training has changed an attribute that is neither a weight nor a buffer; it is put back."""
        self._threads = threading.local()
        self._places = {place: name for place, _, _, name in tensor_places(self.module)}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_threads"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._threads = threading.local()

    def initial(self) -> Block:
        """Return a copy of the module's own weights and buffers."""
        return {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in named_tensors(self.module)
        }

    def release_weights(self) -> Block:
        """Return the module's own weights and keep none: what is left tells names and shapes, and cannot be called."""
        block = {name: tensor.detach() for name, tensor in named_tensors(self.module)}
        self.module = copy.deepcopy(self.module.to("meta"))
        self._threads = threading.local()
        return block

    def __call__(self, block: Block, rows: Tensor, *, training: bool) -> Tensor:
        """Embed rows (n, …) as Φ (n, E).

        What the module writes to its buffers, as BatchNorm does when training, is written to ``block``. Other
        attributes are as they were given, before and after.
        """
        module, attributes = self._own_module()
        if module.training != training:
            module.train(training)
        given = {place: block[name] for place, name in self._places.items()}
        try:
            embedding: Tensor = functional_call(module, given, (rows,), tie_weights=False)
        finally:
            if attributes and attributes.put_back() and training:
                self.remembers = True
        for place, name in self._places.items():
            if given[place] is not block[name]:  # a buffer was replaced rather than changed
                block[name] = given[place].detach()
        return embedding

    def _own_module(self) -> tuple[nn.Module, Attributes]:
        """Return this thread's copy: a call swaps tensors into the module, so threads must not share one."""
        own: tuple[nn.Module, Attributes] | None = getattr(self._threads, "own", None)
        if own is None:
            module = copy.deepcopy(self.module)
            own = self._threads.own = module, Attributes(module)
        return own

    def with_weights(self, block: Block) -> nn.Module:
        """Return an ordinary module with these weights, in evaluation mode."""
        module = copy.deepcopy(self.module).eval()
        with torch.no_grad():
            for name, tensor in named_tensors(module):
                tensor.copy_(block[name])
        return module


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight and buffer once, under its first name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def tensor_places(module: nn.Module) -> Iterator[tuple[str, dict[str, Tensor | None], str, str]]:
    """Yield each place that holds a tensor: its path, the dictionary and key it lies under, the tensor's first name.

    A weight tied to several layers has several places; a layer used several times has one.
    """
    first = {id(tensor): name for name, tensor in named_tensors(module)}
    for path, part in module.named_modules():
        for home in (part._parameters, part._buffers):
            for key, tensor in home.items():
                if tensor is not None:
                    yield f"{path}.{key}" if path else key, home, key, first[id(tensor)]


def copy_block(block: Block) -> Block:
    """Return a copy that can be changed freely."""
    return {name: tensor.clone() for name, tensor in block.items()}
