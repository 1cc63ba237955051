"""A silo's network on whole data sets, in pieces so that memory stays flat."""

import torch
from torch import Tensor

from tdcd.compute.threads import ALONE, Threads
from tdcd.core.network import Block, Network, copy_block
from tdcd.errors import ModelError

PIECE = 1024
"""Rows embedded at a time."""


def embed_whole(silo: str, network: Network, block: Block, features: Tensor, pool: Threads = ALONE) -> Tensor:
    """Return the embeddings (M, E) of all rows, with the network in evaluation mode.

    Changes nothing, whatever the module writes to; a caller whose modules may draw borrows the random stream.
    """

    def piece(rows: Tensor) -> Tensor:
        with torch.no_grad():
            return network(copy_block(block), rows.clone(), training=False)

    try:
        return torch.cat(pool.map(piece, torch.split(features, PIECE)))
    except Exception as error:
        raise ModelError(
            f"silo '{silo}': its network fails on rows of shape {tuple(features.shape[1:])}: "
            f"{type(error).__name__}: {error}"
        ) from error
