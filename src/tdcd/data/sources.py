"""Rows that lie in files, and are read by whoever computes them: for federations that no one machine holds."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tdcd.data.arrays import Array, to_tensor
from tdcd.errors import DataError

SAMPLED = 64
"""Pieces of a file that its digest is made of."""
PIECE = 1 << 14
"""Bytes of each."""


@runtime_checkable
class RowSource(Protocol):
    """Rows of one silo, by their numbers 0, 1, 2, …; a class of your own must be importable where it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, and the shape of one."""

    @property
    def dtype(self) -> Any:
        """The type of their numbers, as numpy knows it."""

    def read(self, rows: Array, /) -> Array:
        """Return some rows, by their numbers in ascending order."""

    def digest(self) -> str:
        """Return what tells these rows from others: a run goes on with the same data only."""


@dataclass(frozen=True)
class ArrayFile:
    """The rows of one array, in one or several .npy files one after the other. See RowSource."""

    paths: tuple[Path, ...]

    def __init__(self, *paths: Path | str) -> None:
        if not paths:
            raise DataError("ArrayFile: it needs the path of a .npy file")
        object.__setattr__(self, "paths", tuple(Path(path).absolute() for path in paths))
        first, *others = (self._open(path) for path in self.paths)
        for path, other in zip(self.paths[1:], others, strict=True):
            if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
                raise DataError(
                    f"{path}: rows of shape {other.shape[1:]} and type {other.dtype}, those of {self.paths[0]} have "
                    f"{first.shape[1:]} and {first.dtype}"
                )

    def _open(self, path: Path) -> Array:
        try:
            opened: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such file") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: not a .npy file of numbers: {error}; write it with numpy.save") from error
        if not isinstance(opened, np.memmap):
            opened.close()
            raise DataError(f"{path}: an archive of several arrays; write each to a .npy file with numpy.save")
        if opened.dtype.kind not in "fiub" or opened.ndim < 2:
            raise DataError(
                f"{path}: {opened.dtype} of shape {opened.shape}; rows of numbers are wanted, shape (rows, …)"
            )
        return opened

    @cached_property
    def _starts(self) -> Array:
        """The number of the first row of each file, and of all rows."""
        return np.cumsum([0, *(len(self._open(path)) for path in self.paths)])

    @property
    def shape(self) -> tuple[int, ...]:
        """See RowSource."""
        return int(self._starts[-1]), *self._open(self.paths[0]).shape[1:]

    @property
    def dtype(self) -> Any:
        """See RowSource."""
        return self._open(self.paths[0]).dtype

    def read(self, rows: Array, /) -> Array:
        """See RowSource."""
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        cuts = np.searchsorted(rows, self._starts)
        for path, start, a, b in zip(self.paths, self._starts, cuts, cuts[1:], strict=False):
            if a < b:
                out[a:b] = self._open(path)[rows[a:b] - start]
        return out

    def digest(self) -> str:
        """Return a digest of the files' sizes and of pieces from all over them."""
        digest = hashlib.blake2b(digest_size=16)
        for path in self.paths:
            size = path.stat().st_size
            digest.update(str(size).encode())
            with path.open("rb") as file:
                for number in range(SAMPLED):
                    file.seek(max(0, size - PIECE) * number // (SAMPLED - 1))
                    digest.update(file.read(PIECE))
        return digest.hexdigest()


@dataclass(frozen=True)
class StoredRows:
    """Some rows of a source. See RowSource."""

    source: RowSource
    numbers: Array
    """Which of its rows, shape (M,)."""

    @classmethod
    def whole(cls, source: RowSource, what: str) -> "StoredRows":
        """Take all rows of a source.

        Raises:
            DataError: it has none.
        """
        if not source.shape or not all(source.shape):
            raise DataError(f"{what}: no rows, or rows without numbers")
        if isinstance(source, StoredRows):
            return source
        return cls(source, np.arange(source.shape[0]))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """See RowSource."""
        return len(self), *self.source.shape[1:]

    @property
    def dtype(self) -> Any:
        """See RowSource."""
        return self.source.dtype

    def read(self, rows: Array, /) -> Array:
        """See RowSource."""
        numbers, places = np.unique(self.numbers[rows], return_inverse=True)
        return self.source.read(numbers)[places]

    def at(self, places: Array) -> "StoredRows":
        """Return some of them."""
        return StoredRows(self.source, self.numbers[places])

    def outline(self) -> Tensor:
        """Return a tensor of their shape and type without any numbers."""
        numbers = np.dtype(self.source.dtype)
        kind = torch.from_numpy(np.empty(0, np.float64 if numbers.itemsize > 8 else numbers.newbyteorder("="))).dtype
        return torch.empty(self.shape, dtype=kind, device="meta")

    def digest(self) -> str:
        """See RowSource."""
        digest = hashlib.blake2b(self.source.digest().encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.numbers, dtype=np.int64).data)
        return digest.hexdigest()


def read_stored(stored: Sequence[StoredRows], what: str) -> list[Tensor]:
    """Read rows; those of one source at once.

    Raises:
        DataError: they cannot be read, or are not finite numbers.
    """
    tensors = {
        index: torch.empty_like(rows.outline(), device="cpu") for index, rows in enumerate(stored) if not len(rows)
    }
    by_source: dict[int, list[int]] = {}
    for index, rows in enumerate(stored):
        if len(rows):
            by_source.setdefault(id(rows.source), []).append(index)
    for indexes in by_source.values():
        source = stored[indexes[0]].source
        numbers = np.concatenate([stored[index].numbers for index in indexes])
        order = np.argsort(numbers, kind="stable")
        read = source.read(numbers[order])
        if read.shape != (len(numbers), *source.shape[1:]):
            raise DataError(f"{what}: its source returned an array {read.shape} for {len(numbers)} of its rows")
        if len(indexes) == 1 and (order[:-1] < order[1:]).all():
            tensors[indexes[0]] = to_tensor(read, what)  # without a copy
            continue
        start = 0
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        for index in indexes:
            stop = start + len(stored[index])
            tensors[index] = to_tensor(read[place[start:stop]], what)
            start = stop
    return [tensors[index] for index in range(len(stored))]
