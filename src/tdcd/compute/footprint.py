"""How much memory autograd needs for a row of a silo's features."""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tdcd.core.network import copy_block
from tdcd.core.streams import borrow_stream
from tdcd.core.task import SiloTask

KEPT = 256 << 20
"""Bytes of activations that may wait from the exchange for the first local step."""
_ROWS = 2


def bytes_per_row(task: SiloTask) -> int | None:
    """Return about how many bytes a forward pass keeps for each row, or nothing if it fails on two rows."""
    block = copy_block(task.network.initial())
    theta = {name: block[name].requires_grad_() for name in task.network.trainable}
    weights = {tensor.data_ptr() for tensor in block.values()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    try:
        with (
            borrow_stream(task.features.device),
            torch.enable_grad(),
            saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            task.network({**block, **theta}, task.features[:_ROWS].clone(), training=True)
    except Exception:
        return None  # what fails here will fail in training, with a proper message
    return sum(kept.values()) // min(_ROWS, len(task.features))
