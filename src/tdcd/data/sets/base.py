"""What a reader of a published data set gives, and how it is dealt to silos without a copy of the whole."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tdcd.data.arrays import Array, is_constant
from tdcd.data.features import FeatureSplit, Index
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.data.sources import StoredRows
from tdcd.errors import DataError

ROWS = 1_000
"""Looked at at a time."""
DIGESTED = 64
"""Rows that a digest is made of."""


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
    some: Callable[[Array, Index], Array] | None = None
    """Reads what falls to a silo of some rows, by their places in any order; where that is cheaper than to read all."""
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
    chosen = _chosen(dataset, parts)
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
    for silo, index in blocks.items():
        training = out[Part.TRAIN][silo]
        moments = _column_moments(lambda piece: training[piece], len(training), _standardised(dataset, index))  # noqa: B023
        for rows in (features[silo] for features in out.values()):
            _standardise(rows, moments)
    made = {
        part: Samples(
            {silo: torch.from_numpy(rows) for silo, rows in out[part].items()},
            torch.from_numpy(dataset.labels[samples]),
        )
        for part, samples in chosen.items()
    }
    return made, {part: dataset.ids[samples] for part, samples in chosen.items()}


@dataclass(frozen=True)
class SetRows:
    """The rows of a data set as they fall to a silo, read from its publisher's files. See RowSource."""

    reopen: Callable[[], Dataset]
    index: Index
    """What the silo takes of every row."""
    shape: tuple[int, ...]
    moments: Mapping[int, tuple[float, float]]
    """Mean and deviation of each column, or channel, that is standardised; a deviation of 0 where it is constant."""
    dtype = np.float32

    def read(self, rows: Array, /) -> Array:
        """See RowSource."""
        out = _raw_rows(self.reopen(), self.index, rows)
        _standardise(out, self.moments)
        return out

    def digest(self) -> str:
        """Return a digest of some rows from all over them."""
        digest = hashlib.blake2b(repr((self.shape, sorted(self.moments.items()))).encode(), digest_size=16)
        some = np.unique(np.linspace(0, self.shape[0] - 1, DIGESTED).astype(np.int64))
        digest.update(np.ascontiguousarray(self.read(some)).data)
        return digest.hexdigest()


def leave_in_files(
    dataset: Dataset, reopen: Callable[[], Dataset], blocks: Mapping[str, Index], parts: Array
) -> tuple[dict[Part, Samples], dict[Part, Array]]:
    """Cut a data set both ways as ``split_among`` does, without its rows: these are read where they are computed."""
    chosen = _chosen(dataset, parts)
    stored = {}
    for silo, index in blocks.items():
        training = chosen[Part.TRAIN]
        moments = _column_moments(
            lambda piece: _raw_rows(dataset, index, training[piece]),  # noqa: B023
            len(training),
            _standardised(dataset, index),
        )
        shape = np.broadcast_to(0, dataset.shape)[index].shape
        stored[silo] = StoredRows.whole(SetRows(reopen, index, (len(dataset), *shape), moments), f"silo '{silo}'")
    made = {}
    for part, samples in chosen.items():
        own = {silo: rows.at(samples) for silo, rows in stored.items()}
        outlines = {silo: rows.outline() for silo, rows in own.items()}
        made[part] = Samples(outlines, torch.from_numpy(dataset.labels[samples]), stored=own)
    return made, {part: dataset.ids[samples] for part, samples in chosen.items()}


def _chosen(dataset: Dataset, parts: Array) -> dict[Part, Array]:
    """Return the places of each part's samples in the data set, in ascending order of their IDs."""
    order = np.argsort(dataset.ids, kind="stable")
    return {part: order[parts[order] == part] for part in Part if (parts == part).any()}


def _raw_rows(dataset: Dataset, index: Index, rows: Array) -> Array:
    """Read what falls to a silo of some rows; nothing of it is standardised."""
    if dataset.some is None:
        raise DataError("this data set can only be read as a whole")
    offset, scale = (np.broadcast_to(np.float32(v), dataset.shape)[index] for v in (dataset.offset, dataset.divisor))
    out = dataset.some(rows, index).astype(np.float32)
    out -= offset
    out /= scale
    return out


def _standardised(dataset: Dataset, index: Index) -> Array:
    """Tell which columns, or channels, of a silo get mean 0 and deviation 1."""
    if dataset.standardise is None:
        return np.zeros(0, dtype=bool)
    return dataset.standardise if len(dataset.shape) > 2 else dataset.standardise[index[-1]]


def _column_moments(read: Callable[[slice], Array], count: int, wanted: Array) -> dict[int, tuple[float, float]]:
    """Return mean and deviation over the known values of columns, or channels, a few rows at a time to save memory."""
    numbers = np.flatnonzero(wanted).tolist()
    if not numbers:
        return {}
    pieces = [slice(start, start + ROWS) for start in range(0, count, ROWS)]
    known, sums, squares = (np.zeros(len(wanted)) for _ in range(3))
    for piece in pieces:
        rows = read(piece)
        for number in numbers:
            values = rows[_column(rows, number)]
            known[number] += (~np.isnan(values)).sum()
            sums[number] += np.nansum(values, dtype=np.float64)
    means = sums / np.maximum(1, known)
    for piece in pieces:
        rows = read(piece)
        for number in numbers:
            apart = rows[_column(rows, number)] - means[number]
            squares[number] += np.nansum(np.square(apart, dtype=np.float64))
    deviations = np.sqrt(squares / np.maximum(1, known))
    return {
        number: (
            float(means[number]),
            0.0 if is_constant(means[number], deviations[number]) else float(deviations[number]),
        )
        for number in numbers
    }


def _column(rows: Array, number: int) -> tuple[Any, ...]:
    return (slice(None), number) if rows.ndim == 4 else (..., number)


def _standardise(rows: Array, moments: Mapping[int, tuple[float, float]]) -> None:
    """Give columns, or channels, mean 0 and deviation 1 over the training rows, in place; not known becomes 0."""
    for number, (mean, deviation) in moments.items():
        values = rows[_column(rows, number)]  # a view
        values -= mean
        if deviation:
            values /= deviation
        else:  # constant in the training rows: it tells a network nothing
            values[...] = 0.0
        np.nan_to_num(values, copy=False, nan=0.0)
