"""The mini-batch ζ of a round (line 9 of Algorithm 1), and the clients that take part in it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tdcd.core.seeds import derive
from tdcd.errors import JobError

Mask = npt.NDArray[np.bool_]

ATTEMPTS = 100
"""How often clients are drawn for a round before it counts as impossible."""


def draw_batch(seed: int, number: int, population: int, size: int, eligible: Mask | None = None) -> Tensor:
    """Draw round ``number``'s mini-batch: ``size`` of the samples 0 … ``population`` − 1, without replacement.

    A pure function of its arguments, so every hub computes it by itself and only the seed is ever shared.
    Returns the sample numbers in ascending order, shape (size,); all that are ``eligible`` if these are fewer.
    """
    generator = _generator(seed, "batch", number)
    if eligible is None:
        return torch.from_numpy(np.sort(generator.choice(population, size, replace=False, shuffle=False)))
    rows = np.flatnonzero(eligible)
    if len(rows) > size:
        rows = np.sort(generator.choice(rows, size, replace=False, shuffle=False))
    return torch.from_numpy(rows)


@dataclass(frozen=True)
class Holders:
    """Who holds which sample in one silo, by number: clients have no names here."""

    owner: npt.NDArray[np.integer]
    """For each sample the client that holds it, shape (M,)."""
    clients: int
    """K_j."""


def participants(clients: int, participation: float) -> int:
    """Return how many of a silo's clients take part in each round: at least one."""
    return max(1, round(participation * clients))


def draw_participants(
    seed: int, number: int, holders: Mapping[str, Holders], participation: float
) -> tuple[Mapping[str, Mask], Mask]:
    """Draw the clients of each silo that take part in a round, and find the samples that can be in its mini-batch.

    A sample can be if the clients that hold it take part in all silos. Each silo draws by itself; were the mini-batch
    drawn first, only about a fraction ``participation`` to the power of N of it would be left. Clients are drawn anew
    if no sample is left.

    Returns:
        For each silo a mask of its clients (K_j,); and a mask of the samples (M,).

    Raises:
        JobError: after many draws there is still no such sample.
    """
    for attempt in range(ATTEMPTS):
        drawn = {}
        eligible: Mask | None = None
        for silo, held in holders.items():
            drawn[silo] = np.zeros(held.clients, dtype=np.bool_)
            count = participants(held.clients, participation)
            generator = _generator(seed, "clients", number, silo, attempt)
            drawn[silo][generator.choice(held.clients, count, replace=False, shuffle=False)] = True
            there = drawn[silo][held.owner]
            eligible = there if eligible is None else eligible & there
        if eligible is not None and eligible.any():
            return drawn, eligible
    raise JobError(
        f"training.participation = {participation:g}: in round {number} no sample is held by clients that take part in "
        f"all of the {len(holders)} silos, however often they are drawn; raise it, or give each silo fewer clients"
    )


def _generator(seed: int, *words: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive(seed, *words)))
