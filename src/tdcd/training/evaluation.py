"""The global model Σ_j h_j(θ_j; x_j) on whole data sets, in pieces so that memory stays flat."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tdcd.core.network import Blocks, Network, copy_block
from tdcd.errors import ModelError

PIECE = 1024
"""Rows embedded at a time."""


def scores(networks: Mapping[str, Network], blocks: Blocks, features: Mapping[str, Tensor]) -> Tensor:
    """Return the summed embeddings (M, E) of all rows, with the networks in evaluation mode.

    Changes nothing: buffers that a module writes to, and the random numbers of one that draws, are put back.
    """
    total: Tensor | None = None
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for silo in sorted(networks):
            block = copy_block(blocks[silo])
            try:
                pieces = torch.split(features[silo], PIECE)
                embedding = torch.cat([networks[silo](block, rows, training=False) for rows in pieces])
            except Exception as error:
                raise ModelError(
                    f"silo '{silo}': its network fails on rows of shape {tuple(features[silo].shape[1:])}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            total = embedding if total is None else total.add_(embedding)
    assert total is not None, "a federation has at least one silo"  # noqa: S101
    return total
