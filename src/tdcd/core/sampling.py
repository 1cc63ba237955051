"""The mini-batch ζ of a round (line 9 of Algorithm 1), and the clients that take part in it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tdcd.core.seeds import derive

Mask = npt.NDArray[np.bool_]

ATTEMPTS = 100
"""How often clients are drawn for a round before a sample is drawn, whose clients then take part."""


def draw_batch(
    seed: int, number: int, population: int, size: int, eligible: Mask | None = None, again: int = 0
) -> Tensor:
    """Draw round ``number``'s mini-batch: ``size`` of the samples 0 … ``population`` − 1, without replacement.

    A pure function of its arguments, so every hub computes it by itself and only the seed is ever shared.
    Returns the sample numbers in ascending order, shape (size,); all that are ``eligible`` if these are fewer. Another
    mini-batch of the same round has another number ``again``.
    """
    generator = _generator(seed, "batch", number, *([again] if again else []))
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
    seed: int, number: int, holders: Mapping[str, Holders], participation: float, again: int = 0
) -> tuple[Mapping[str, Mask], Mask]:
    """Draw the clients of each silo that take part in a round, and find the samples that can be in its mini-batch.

    A sample can be if the clients that hold it take part in all silos. Each silo draws by itself; were the mini-batch
    drawn first, only about a fraction ``participation`` to the power of N of it would be left. Clients are drawn again
    while no sample is left; after many draws, a sample is drawn and its clients take part.

    Returns:
        For each silo a mask of its clients (K_j,); and a mask of the samples (M,).
    """

    def draw(attempt: int, sample: int | None = None) -> tuple[Mapping[str, Mask], Mask]:
        drawn = {
            silo: _draw_clients(
                _generator(seed, "clients", number, silo, attempt),
                held.clients,
                participants(held.clients, participation),
                None if sample is None else int(held.owner[sample]),
            )
            for silo, held in holders.items()
        }
        return drawn, np.logical_and.reduce([drawn[silo][held.owner] for silo, held in holders.items()])

    first = again * (ATTEMPTS + 1)
    for attempt in range(first, first + ATTEMPTS):
        drawn, eligible = draw(attempt)
        if eligible.any():
            return drawn, eligible
    samples = len(next(iter(holders.values())).owner)
    return draw(first + ATTEMPTS, int(_generator(seed, "sample", number, again).integers(samples)))


def _draw_clients(generator: np.random.Generator, clients: int, count: int, one: int | None) -> Mask:
    """Draw so many of a silo's clients; some client is among them if it is named."""
    drawn = np.zeros(clients, dtype=np.bool_)
    if one is None:
        drawn[generator.choice(clients, count, replace=False, shuffle=False)] = True
        return drawn
    others = np.delete(np.arange(clients), one)
    drawn[generator.choice(others, count - 1, replace=False, shuffle=False)] = True
    drawn[one] = True
    return drawn


def _generator(seed: int, *words: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive(seed, *words)))
