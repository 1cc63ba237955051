"""Tensors as arrays: what actors send each other. An array is shared within a node, and written to by nobody."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.state import SiloState

Wire = Mapping[str, Any]
"""Arrays by name; a tensor where numpy has no such type."""


def pack(tensor: Tensor) -> Any:
    """Return a tensor as an array."""
    try:
        return tensor.detach().cpu().contiguous().numpy()
    except TypeError:  # bfloat16, for example
        return tensor.detach().cpu()


def unpack(value: Any) -> Tensor:
    """Return an array that was received as a tensor of one's own."""
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value.clone()


def pack_block(block: Mapping[str, Tensor]) -> Wire:
    """Return tensors as arrays."""
    return {name: pack(tensor) for name, tensor in block.items()}


def unpack_block(wire: Wire, device: torch.device | str = "cpu") -> Block:
    """Return arrays that were received as tensors."""
    return {name: unpack(value).to(device) for name, value in wire.items()}


def pack_state(state: SiloState) -> tuple[Wire, Wire]:
    """Return what a silo carries from round to round as arrays."""
    return pack_block(state.weights), pack_block(state.memory)


def unpack_state(wire: tuple[Wire, Wire]) -> SiloState:
    """Return what a silo carries from round to round."""
    weights, memory = wire
    return SiloState(unpack_block(weights), unpack_block(memory))


def nbytes(value: Any) -> int:
    """Return the bytes of the arrays in what is sent."""
    if isinstance(value, Mapping):
        return sum(map(nbytes, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(nbytes, value))
    return int(getattr(value, "nbytes", 0))
