"""The global model Σ_j h_j(θ_j; x_j) on whole data sets, in pieces so that memory stays flat."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tdcd.core.network import Blocks, Network, copy_block

PIECE = 1024
"""Rows embedded at a time."""


def scores(networks: Mapping[str, Network], blocks: Blocks, features: Mapping[str, Tensor]) -> Tensor:
    """Return the summed embeddings (M, E) of all rows, with the networks in evaluation mode."""
    total: Tensor | None = None
    with torch.no_grad():
        for silo in sorted(networks):
            network, block = networks[silo], copy_block(blocks[silo])  # a module may write to its buffers
            pieces = [network(block, rows, training=False) for rows in torch.split(features[silo], PIECE)]
            embedding = torch.cat(pieces)
            total = embedding if total is None else total.add_(embedding)
    assert total is not None, "a federation has at least one silo"  # noqa: S101
    return total
