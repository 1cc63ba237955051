"""What a reader of a published data set gives, and how it is dealt to silos without a copy of the whole."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import torch

from tdcd.data.arrays import Array, is_constant
from tdcd.data.features import FeatureSplit, Index
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples

ROWS = 1_000
"""Looked at at a time."""


@dataclass(frozen=True)
class Dataset:
    """A complete data set, before it is split among silos and clients."""

    ids: Array
    """The ID of each sample, in the order of the pieces."""
    labels: Array
    shape: tuple[int, ...]
    """One row: (columns,), (steps, columns), (channels, height, width) or (views, channels, height, width)."""
    pieces: Callable[[], Iterator[Array]]
    """Reads the rows (M, *shape) a piece at a time. NaN in a standardised column means: not known."""
    testing: Array | None = None
    """Which samples the publisher keeps for testing, if he says."""
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    """What the labels 0, 1, 2, … stand for."""
    offset: Array | float = 0.0
    divisor: Array | float = 1.0
    """Rows become (row − offset) / divisor; both broadcast to a row."""
    standardise: Array | None = None
    """Which columns, or channels of images, get mean 0 and deviation 1 over the training rows. NaN, which means that
    a value is not known, becomes 0."""
    attributes: Mapping[str, Array] = field(default_factory=dict)
    """Facts of each sample that are no features, by which rows can fall to clients."""
    notes: tuple[str, ...] = ()
    """What was left out of the files, and the like."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Published:
    """A data set that tdcd can read."""

    name: str
    what: str
    """What it is, in a line."""
    task: str
    origin: str
    """Where to get it, and its terms; empty for those that come with tdcd."""
    layout: str
    """The files as their publisher lays them out."""
    features: FeatureSplit
    """How silos share it unless the job says otherwise."""
    read: Callable[..., Dataset]
    """Reads it from a directory; ModelNet also takes the width and height to scale its pictures to, PhysioNet 2012
    which sets of patients train and which test."""


def whole(rows: Array) -> Callable[[], Iterator[Array]]:
    """Return the pieces of rows that are in memory."""
    return lambda: iter([rows])


def split_among(
    dataset: Dataset, blocks: Mapping[str, Index], parts: Array
) -> tuple[dict[Part, Samples], dict[Part, Array]]:
    """Cut a data set both ways: each part's rows of each silo, in ascending order of their IDs.

    Args:
        dataset: What to cut.
        blocks: What each silo takes of every row.
        parts: The part of each sample.

    Returns:
        The samples and the IDs of every part that has some.
    """
    order = np.argsort(dataset.ids, kind="stable")
    chosen = {part: order[parts[order] == part] for part in Part if (parts == part).any()}
    place = np.empty(len(dataset), dtype=np.int64)
    for samples in chosen.values():
        place[samples] = np.arange(len(samples))
    offset, scale = (np.broadcast_to(np.float32(value), dataset.shape) for value in (dataset.offset, dataset.divisor))
    out = {
        part: {silo: np.empty((len(samples), *offset[index].shape), dtype=np.float32) for silo, index in blocks.items()}
        for part, samples in chosen.items()
    }
    start = 0
    for piece in dataset.pieces():
        here = slice(start, start + len(piece))
        start += len(piece)
        for part, features in out.items():
            mine = parts[here] == part
            for silo, index in blocks.items():
                rows = piece[:, *index][mine].astype(np.float32)
                rows -= offset[index]
                rows /= scale[index]
                features[silo][place[here][mine]] = rows
    if dataset.standardise is not None:
        for silo, index in blocks.items():
            wanted = dataset.standardise if len(dataset.shape) > 2 else dataset.standardise[index[-1]]
            _standardise({part: features[silo] for part, features in out.items()}, wanted)
    made = {
        part: Samples(
            {silo: torch.from_numpy(rows) for silo, rows in out[part].items()},
            torch.from_numpy(dataset.labels[samples]),
        )
        for part, samples in chosen.items()
    }
    return made, {part: dataset.ids[samples] for part, samples in chosen.items()}


def _standardise(rows: Mapping[Part, Array], wanted: Array) -> None:
    """Give columns, or channels, mean 0 and deviation 1 over the training rows, in place; not known becomes 0."""
    for number in np.flatnonzero(wanted):
        index = (slice(None), number) if rows[Part.TRAIN].ndim == 4 else (..., number)
        mean, deviation = _moments(rows[Part.TRAIN][index])
        for part in rows.values():
            values = part[index]  # a view
            values -= mean
            if is_constant(mean, deviation):  # in the training rows: it tells a network nothing
                values[...] = 0.0
            else:
                values /= deviation
            np.nan_to_num(values, copy=False, nan=0.0)


def _moments(values: Array) -> tuple[float, float]:
    """Return the mean and the deviation of what is known, a few rows at a time to save memory."""
    pieces = [slice(start, start + ROWS) for start in range(0, len(values), ROWS)]
    known = sum(int((~np.isnan(values[piece])).sum()) for piece in pieces)
    mean = sum(float(np.nansum(values[piece], dtype=np.float64)) for piece in pieces) / max(1, known)
    squares = sum(float(np.nansum(np.square(values[piece] - mean, dtype=np.float64))) for piece in pieces)
    return mean, sqrt(squares / max(1, known))
