"""A silo's network h_j as a pure function of its block of weights θ_j."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

Block = dict[str, Tensor]
"""θ_j: the weights and running statistics of one silo's network, by torch's names for them."""

Blocks = Mapping[str, Block]
"""The global model θ̃ = [θ_1, …, θ_N]: a block for each silo's name (Equation 1)."""


class Network:
    """Any ``nn.Module``, used as a function: ``network(block, rows)``.

    The module given is copied, never changed; its weights are the initial block.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        self.module = copy.deepcopy(module).to(dtype)
        self.trainable = tuple(name for name, p in self.module.named_parameters() if p.requires_grad)

    def initial(self) -> Block:
        """Return a copy of the module's own weights and buffers."""
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: tensor.detach().clone() for name, tensor in named}

    def __call__(self, block: Block, rows: Tensor, *, training: bool) -> Tensor:
        """Embed rows (n, …) as Φ (n, E).

        When training, layers with running statistics update those of ``block`` in place, as torch does.
        """
        if self.module.training != training:
            self.module.train(training)
        result: Tensor = functional_call(self.module, block, (rows,))
        return result

    def with_weights(self, block: Block) -> nn.Module:
        """Return an ordinary module with these weights, in evaluation mode."""
        module = copy.deepcopy(self.module).eval()
        with torch.no_grad():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                tensor.copy_(block[name])
        return module


def copy_block(block: Block) -> Block:
    """Return a copy that can be changed freely."""
    return {name: tensor.clone() for name, tensor in block.items()}
