"""How many threads torch may use inside one operation."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tdcd.core.network import Network

SMALL = 1_000_000
"""Weights below which a network without convolutions is small."""


def worth_threads(networks: Iterable[Network]) -> bool:
    """Tell whether any network has operations large enough to be split over threads."""
    for network in networks:
        if any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in network.module.modules()):
            return True
        if sum(p.numel() for p in network.module.parameters()) >= SMALL:
            return True
    return False


@contextmanager
def fitting_threads(networks: Iterable[Network]) -> Iterator[None]:
    """Keep small networks on one thread while they train, and put torch's setting back after.

    Threads that wait for each other many thousand times a second gain nothing on small operations, and lose a factor
    of thirty when another program wants one of the cores.
    """
    before = torch.get_num_threads()
    if not worth_threads(networks):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
