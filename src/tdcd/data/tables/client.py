"""A client's side of a job over tables: what it does with its own file, in a simulation and at its site alike.

A file's lines are counted and checked once. Its IDs are read in a first pass; its features in a second, by the survey,
which keeps what it has parsed of rows with common IDs until they are encoded, up to a limit: of a larger table the
rest is parsed again, so that memory does not grow with it.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, pairwise
from socket import gethostname
from typing import Any, Protocol, TypeVar

import numpy as np
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.data.sources import StoredRows
from tdcd.data.tables.aggregate import RowGroups, join_rows
from tdcd.data.tables.alignment import NUMBERS, TEXTS, Keys, as_kind
from tdcd.data.tables.columns import check_lengths, codes, ids_of, order_of, texts_of
from tdcd.data.tables.drift import Drift
from tdcd.data.tables.preparation import Preparation
from tdcd.data.tables.reader import Batch, Table
from tdcd.data.tables.survey import Survey
from tdcd.errors import DataError

T = TypeVar("T")
KEPT = 1 << 28
"""Bytes of parsed columns that a silo keeps between survey and encoding."""


@dataclass
class ClientTable:
    """A client's file."""

    table: Table
    keep: int = KEPT
    """Bytes of parsed columns to keep between survey and encoding."""
    _surveyed: list[Batch] = field(default_factory=list)
    """What the survey has parsed and kept, of rows with common IDs."""
    _rows: int = 0
    """How many rows of the file that is."""
    _columns: frozenset[str] = frozenset()

    groups: RowGroups | None = None
    """Which rows have the same ID, where they become one; known once the IDs are read."""

    def read_keys(self, columns: Sequence[str] = ()) -> Keys:
        """Read the IDs, and some columns with a value in every row; every ID once, where its rows become one."""
        table, settings = self.table, self.table.settings
        for column, key in ((settings.row_id, "row_id"), (settings.order, "order")):
            if column:
                table.need(column, key)
        if settings.aggregate is None:
            pieces = list(self.key_pieces(columns))
            facts = {column: pl.concat([piece.facts[column] for piece in pieces]) for column in columns}
            return Keys(table, _of_one_kind([piece.ids for piece in pieces]), facts)
        more = [column for column in (settings.row_id, settings.order) if column]
        pieces, row_ids, order = list[Keys](), list[pl.Series](), list[Array]()
        for batch in table.batches([table.identity, *more, *columns]):
            pieces.append(_keys_of(batch, columns))
            if settings.row_id:
                row_ids.append(ids_of(batch, settings.row_id))
            if settings.order:
                order.append(order_of(batch, settings.order))
        self.groups = RowGroups.of(
            table,
            _of_one_kind([piece.ids for piece in pieces]),
            _join_order(order) if order else None,
            _of_one_kind(row_ids) if row_ids else None,
        )
        joined = {
            column: self.groups.fact(column, pl.concat([piece.facts[column] for piece in pieces])) for column in columns
        }
        return Keys(table, self.groups.ids, joined)

    def key_pieces(self, columns: Sequence[str] = ()) -> Iterator[Keys]:
        """Read the IDs as ``read_keys`` does, a batch of rows at a time, in the order of the file.

        All at once, where rows with the same ID become one. IDs of some batches may be whole numbers, of others texts.
        """
        if self.table.settings.aggregate is not None:
            yield self.read_keys(columns)
            return
        for batch in self.table.batches([self.table.identity, *columns]):
            yield _keys_of(batch, columns)

    @property
    def size(self) -> int:
        """The number of its rows, once those with the same ID are one."""
        return self.table.rows if self.groups is None else len(self.groups.heads)

    def survey(self, columns: Sequence[str], places: Array, parts: Array) -> Survey:
        """Survey the training rows.

        Args:
            columns: The columns of features.
            places: The place of each of its rows among the common IDs, or −1.
            parts: The part of each of the common IDs.
        """
        survey = Survey(self.table, columns)
        self._surveyed, self._columns, self._rows = [], frozenset(columns), 0
        size = 0
        for batch in self._read(columns, problems=survey.report.problems):
            own = places[self._numbers(batch)]
            training = own >= 0
            training[training] = parts[own[training]] == Part.TRAIN
            survey.look(batch, training)
            kept = batch.parsed_at(np.flatnonzero(own >= 0)) if size < self.keep else None
            size += kept.nbytes if kept is not None else 0
            if kept is not None and size <= self.keep:  # also one without rows: it need not be read again
                self._surveyed.append(kept)
                self._rows = int(batch.rows[-1])
        return survey

    def encode(
        self, preparation: Preparation, places: Array, drift: Drift | None = None
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the places of rows among the common IDs, and their numbers (rows, inputs), a batch at a time."""
        names = [column.name for column in preparation.columns]
        done, surveyed = self._take_surveyed(names)
        for batch in chain(surveyed, self._read(names, done)):
            own = places[self._numbers(batch)]
            rows = np.flatnonzero(own >= 0)
            yield own[rows], preparation.apply(batch, rows, drift)

    def _take_surveyed(self, columns: Sequence[str]) -> tuple[int, Iterator[Batch]]:
        """Return what the survey has kept, and of how many rows of the file; forget it."""
        rows, batches = (self._rows, self._surveyed) if set(columns) <= self._columns else (0, [])
        self._rows, self._surveyed = 0, []
        return rows, (batches.pop(0) for _ in range(len(batches)))

    def _numbers(self, batch: Batch) -> Array:
        """Return the numbers of a batch's rows, among those of the file or among the joined ones."""
        return batch.rows - 1 if self.groups is None else self.groups.places(batch)

    def _read(self, columns: Sequence[str], after: int = 0, problems: dict[str, str] | None = None) -> Iterator[Batch]:
        """Read some columns of the rows after some of them; rows with the same ID as one, where the job says how.

        What is wrong with joined columns goes to ``problems``, or is raised.
        """
        for column in columns:
            self.table.need(column, "columns")
        if self.groups is None:
            yield from self.table.batches(columns, typed=True, after=after)
        elif after < self.groups.heads[-1]:
            joined, wrong = join_rows(self.groups, columns)
            if problems is None and wrong:
                raise next(iter(wrong.values()))
            (problems if problems is not None else {}).update({name: str(error) for name, error in wrong.items()})
            yield joined


def _keys_of(batch: Batch, columns: Sequence[str]) -> Keys:
    """Return the IDs of some rows, and columns with a value in every row."""
    facts = {column: _complete(batch, column) for column in columns}
    return Keys(batch.table, ids_of(batch, batch.table.identity), facts)


def _of_one_kind(parts: Sequence[pl.Series]) -> pl.Series:
    """Join IDs of several batches: all are texts if some are."""
    kind = TEXTS if any(part.dtype == pl.String for part in parts) else NUMBERS
    return pl.concat([as_kind(part, kind) for part in parts])


def _join_order(parts: Sequence[Array]) -> Array:
    """Join what orders the rows of several batches: as whole numbers where some are too large for float64."""
    if any(part.dtype == np.int64 for part in parts) and all((part == np.rint(part)).all() for part in parts):
        return np.concatenate([part.astype(np.int64) for part in parts])
    return np.concatenate(parts)


def encode_rows(
    clients: Sequence[ClientTable],
    preparation: Preparation,
    places: Mapping[str, Array],
    parts: Array,
) -> dict[Part, Array]:
    """Return the numbers of some clients' rows: for every part those of its IDs, in ascending order.

    Rows go straight to their place, a batch at a time, so that nothing of the whole is in memory twice.

    Args:
        clients: The clients of one silo.
        preparation: How their columns become numbers.
        places: For each client, the place of every row of its file among the common IDs, or −1.
        parts: The part of each of the common IDs.
    """
    rank = np.empty(len(parts), dtype=np.int64)
    out = {}
    for part in Part:
        mine = np.flatnonzero(parts == part)
        rank[mine] = np.arange(len(mine))
        if len(mine):
            out[part] = np.empty((len(mine), len(preparation.outputs)), dtype=np.float32)

    def encode(client: ClientTable) -> None:
        for samples, numbers in client.encode(preparation, places[client.table.client]):
            for part, rows in out.items():
                mine = np.flatnonzero(parts[samples] == part)
                rows[rank[samples[mine]]] = numbers if len(mine) == len(numbers) else numbers[mine]

    list(for_each(encode, clients))
    return out


@dataclass(frozen=True)
class TableRows:
    """The rows of a silo's files, one file after the other, prepared as they are read. See RowSource."""

    clients: tuple[ClientTable, ...]
    preparation: Preparation
    common: str
    """What tells the rows that are used from others."""

    @property
    def shape(self) -> tuple[int, ...]:
        """See RowSource."""
        return int(self._starts[-1]), len(self.preparation.outputs)

    dtype = np.float32

    @property
    def _starts(self) -> Array:
        """The number of the first row of each file, and of all rows."""
        return np.cumsum([0, *(own.size for own in self.clients)])

    def read(self, rows: Array, /) -> Array:
        """See RowSource. Only files that have some of the rows are opened."""
        starts = self._starts
        out = np.empty((len(rows), self.shape[1]), np.float32)
        cuts = np.searchsorted(rows, starts).tolist()
        wanted = {
            own.table.client: (start, a, b)
            for own, start, (a, b) in zip(self.clients, starts, pairwise(cuts), strict=False)
            if a < b
        }

        def encode(own: ClientTable) -> None:
            start, a, b = wanted[own.table.client]
            if own.table.changed:
                raise DataError(
                    f"{own.table}: on {gethostname()} it is not the file that was surveyed: its size or its time is "
                    "another; nodes must share it, or have copies that keep its time, as rsync -t makes them"
                )
            places = np.full(own.size, -1)
            places[rows[a:b] - start] = np.arange(a, b)
            for at, numbers in own.encode(self.preparation, places):
                out[at] = numbers

        list(for_each(encode, [own for own in self.clients if own.table.client in wanted]))
        return out

    def digest(self) -> str:
        """Return a digest of which rows are used, and of what was measured of their columns."""
        return hashlib.blake2b(f"{self.common} {self.preparation.to_json()}".encode(), digest_size=16).hexdigest()

    def of_common(self, places: Mapping[str, Array], samples: int) -> StoredRows:
        """Return the rows of all common IDs, in ascending order.

        Args:
            places: For each client, the place of every row of its file among the common IDs, or −1.
            samples: The number of common IDs.
        """
        numbers = np.empty(samples, dtype=np.int64)
        for own, start in zip(self.clients, self._starts, strict=False):
            known = np.flatnonzero(places[own.table.client] >= 0)
            numbers[places[own.table.client][known]] = start + known
        return StoredRows(self, numbers)


class Each(Protocol):
    """Does something for each of many clients, wherever their files are read; yields the results in their order."""

    def __call__(self, action: Callable[..., T], /, *arguments: Iterable[Any]) -> Iterator[T]:
        """Call an action with the first of all arguments, then with the second …; as many as the shortest has."""


def for_each(action: Callable[..., T], /, *arguments: Iterable[Any]) -> Iterator[T]:
    """Do something for every client on all cores of this machine. See Each."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(action, *arguments)


def read_keys(own: ClientTable, columns: Sequence[str]) -> tuple[ClientTable, Keys]:
    """Read a client's IDs; return what is known of its file now, and them."""
    return own, own.read_keys(columns)


def _complete(batch: Batch, column: str) -> pl.Series:
    """Return a column that has a value in every row."""
    texts = codes(texts_of(batch, column), batch.table, names=True)
    if texts.null_count():
        raise DataError(
            f"{batch.table}: column '{column}' has no value in {texts.null_count()} rows, the first of them row "
            f"{batch.row(texts.is_null())}; every row needs one: fill them in, or leave those rows out"
        )
    check_lengths(batch, texts)
    return texts
