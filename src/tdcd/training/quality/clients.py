"""How good a model is for each client: a mean over all hides whom it serves badly."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from tdcd.core.topology import Roster
from tdcd.data.arrays import Array
from tdcd.runs.quality import ClientQuality, SiloQuality

LEAST_ROWS = 10
"""Of a client: measures of fewer rows say nothing."""
MOST_CLIENTS = 100
"""Of a silo in a record."""

Measures = Callable[[torch.Tensor], Mapping[str, float]]
"""Measures some rows, given by their places."""


def assess_clients(holders: Mapping[str, Roster], positive: Array | None, measure: Measures) -> tuple[SiloQuality, ...]:
    """Return what is measured of each client's rows.

    Args:
        holders: Who holds each row, for every silo where that is known.
        positive: Which rows are positive, for the binary loss.
        measure: What to measure of some rows; undefined measures are left out.
    """
    return tuple(SiloQuality(silo, *_assess_silo(roster, positive, measure)) for silo, roster in holders.items())


def _assess_silo(roster: Roster, positive: Array | None, measure: Measures) -> tuple[tuple[ClientQuality, ...], int]:
    counts = np.bincount(roster.owner.numpy(), minlength=len(roster.clients))
    places = np.split(np.argsort(roster.owner.numpy(), kind="stable"), np.cumsum(counts)[:-1])
    largest = sorted(range(len(counts)), key=lambda k: (-counts[k], roster.clients[k]))
    clients = tuple(_assess_client(roster.clients[k], places[k], positive, measure) for k in largest[:MOST_CLIENTS])
    return clients, max(0, len(counts) - MOST_CLIENTS)


def _assess_client(name: str, rows: Array, positive: Array | None, measure: Measures) -> ClientQuality:
    count = None if positive is None else int(positive[rows].sum())
    if len(rows) < LEAST_ROWS:
        return ClientQuality(name, len(rows), count, {}, f"not enough rows: fewer than {LEAST_ROWS}")
    missing = "" if count is None else "no positive rows" if not count else "only positive rows"
    missing = missing if count in (0, len(rows)) else ""
    return ClientQuality(name, len(rows), count, dict(measure(torch.from_numpy(rows))), missing)
