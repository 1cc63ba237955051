"""A client's side of a job over tables: what it does with its own file, in a simulation and at its site alike.

A file's lines are counted and checked once. Its IDs are read in a first pass; its features in a second, by the survey,
which keeps what it has parsed of rows with common IDs until they are encoded, up to a limit: of a larger table the
rest is parsed again, so that memory does not grow with it.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.data.tables.alignment import NUMBERS, TEXTS, Keys, as_kind, id_array
from tdcd.data.tables.columns import check_lengths, codes, ids_of, texts_of
from tdcd.data.tables.preparation import Preparation
from tdcd.data.tables.reader import Batch, Table
from tdcd.data.tables.survey import Survey
from tdcd.errors import DataError

T = TypeVar("T")
KEPT = 1 << 28
"""Bytes of parsed columns that a silo keeps between survey and encoding."""
Unknown = dict[str, Counter[str]]
"""Categories without a column of their own, by column, and how often they occur."""


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

    def read_keys(self, columns: Sequence[str] = ()) -> Keys:
        """Read the IDs, and some columns with a value in every row."""
        table, parts = self.table, list[pl.Series]()
        facts: dict[str, list[Array]] = {column: [] for column in columns}
        for batch in table.batches([table.identity, *columns]):
            parts.append(ids_of(batch))
            for column, values in facts.items():
                values.append(_complete(batch, column))
        kind = TEXTS if any(part.dtype == pl.String for part in parts) else NUMBERS
        ids = pl.concat([as_kind(part, kind) for part in parts])
        return Keys(table, ids, {column: np.concatenate(values) for column, values in facts.items()})

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
        for batch in self._read(columns):
            own = places[batch.rows - 1]
            training = own >= 0
            training[training] = parts[own[training]] == Part.TRAIN
            survey.look(batch, training)
            kept = batch.parsed_at(np.flatnonzero(own >= 0)) if size < self.keep else None
            size += kept.nbytes if kept is not None else 0
            if kept is not None and size <= self.keep:  # also one without rows: it need not be read again
                self._surveyed.append(kept)
                self._rows = int(batch.rows[-1])
        return survey

    def encode(self, preparation: Preparation, places: Array, unknown: Unknown) -> Iterator[tuple[Array, Array]]:
        """Yield the places of rows among the common IDs, and their numbers (rows, inputs), a batch at a time."""
        names = [column.name for column in preparation.columns]
        done, surveyed = self._take_surveyed(names)
        for batch in chain(surveyed, self._read(names, done)):
            own = places[batch.rows - 1]
            rows = np.flatnonzero(own >= 0)
            yield own[rows], preparation.apply(batch, rows, unknown)

    def _take_surveyed(self, columns: Sequence[str]) -> tuple[int, Iterator[Batch]]:
        """Return what the survey has kept, and of how many rows of the file; forget it."""
        rows, batches = (self._rows, self._surveyed) if set(columns) <= self._columns else (0, [])
        self._rows, self._surveyed = 0, []
        return rows, (batches.pop(0) for _ in range(len(batches)))

    def _read(self, columns: Sequence[str], after: int = 0) -> Iterator[Batch]:
        """Read some columns of the rows after some of them."""
        for column in columns:
            self.table.need(column, "columns")
        return self.table.batches(columns, typed=True, after=after)


def encode_rows(
    clients: Sequence[ClientTable],
    preparation: Preparation,
    places: Mapping[str, Array],
    parts: Array,
    unknown: Unknown | None = None,
) -> dict[Part, Array]:
    """Return the numbers of some clients' rows: for every part those of its IDs, in ascending order.

    Rows go straight to their place, a batch at a time, so that nothing of the whole is in memory twice.

    Args:
        clients: The clients of one silo.
        preparation: How their columns become numbers.
        places: For each client, the place of every row of its file among the common IDs, or −1.
        parts: The part of each of the common IDs.
        unknown: Counts categories without a column of their own, if that is wanted.
    """
    rank = np.empty(len(parts), dtype=np.int64)
    out = {}
    for part in Part:
        mine = np.flatnonzero(parts == part)
        rank[mine] = np.arange(len(mine))
        if len(mine):
            out[part] = np.empty((len(mine), len(preparation.outputs)), dtype=np.float32)

    def encode(client: ClientTable) -> Unknown:
        unknown: Unknown = {}
        for samples, numbers in client.encode(preparation, places[client.table.client], unknown):
            for part, rows in out.items():
                mine = np.flatnonzero(parts[samples] == part)
                rows[rank[samples[mine]]] = numbers if len(mine) == len(numbers) else numbers[mine]
        return unknown

    for strange in for_each(encode, clients):
        if unknown is not None:
            for column, counts in strange.items():
                unknown.setdefault(column, Counter()).update(counts)
    return out


def for_each(action: Callable[[ClientTable], T], clients: Sequence[ClientTable]) -> Iterator[T]:
    """Do something for every client, on all cores; yield the results in their order."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(action, clients)


def _complete(batch: Batch, column: str) -> Array:
    """Return a column that has a value in every row."""
    texts = codes(texts_of(batch, column), batch.table, names=True)
    if texts.null_count():
        raise DataError(
            f"{batch.table}: column '{column}' has no value in {texts.null_count()} rows, the first of them row "
            f"{batch.row(texts.is_null())}; every row needs one: fill them in, or leave those rows out"
        )
    check_lengths(batch, texts)
    return id_array(texts)
