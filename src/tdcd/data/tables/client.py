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
from tdcd.data.tables.aggregate import RowGroups, join_rows
from tdcd.data.tables.alignment import NUMBERS, TEXTS, Keys, as_kind, id_array
from tdcd.data.tables.columns import check_lengths, codes, ids_of, order_of, texts_of
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

    groups: RowGroups | None = None
    """Which rows have the same ID, where they become one; known once the IDs are read."""

    def read_keys(self, columns: Sequence[str] = ()) -> Keys:
        """Read the IDs, and some columns with a value in every row; every ID once, where its rows become one."""
        table, settings = self.table, self.table.settings
        more = [column for column in (settings.row_id, settings.order) if column and settings.aggregate]
        for column, key in ((settings.row_id, "row_id"), (settings.order, "order")):
            if column:
                table.need(column, key)
        ids, row_ids = list[pl.Series](), list[pl.Series]()
        facts: dict[str, list[Array]] = {column: [] for column in columns}
        order: list[Array] = []
        for batch in table.batches([table.identity, *more, *columns]):
            ids.append(ids_of(batch, table.identity))
            if settings.row_id in more:
                row_ids.append(ids_of(batch, settings.row_id or ""))
            if settings.order in more:
                order.append(order_of(batch, settings.order or ""))
            for column, values in facts.items():
                values.append(_complete(batch, column))
        own, known = _of_one_kind(ids), {column: np.concatenate(values) for column, values in facts.items()}
        if settings.aggregate is None:
            return Keys(table, own, known)
        self.groups = RowGroups.of(
            table, own, _join_order(order) if order else None, _of_one_kind(row_ids) if row_ids else None
        )
        joined = {column: self.groups.fact(column, values) for column, values in known.items()}
        return Keys(table, self.groups.ids, joined)

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

    def encode(self, preparation: Preparation, places: Array, unknown: Unknown) -> Iterator[tuple[Array, Array]]:
        """Yield the places of rows among the common IDs, and their numbers (rows, inputs), a batch at a time."""
        names = [column.name for column in preparation.columns]
        done, surveyed = self._take_surveyed(names)
        for batch in chain(surveyed, self._read(names, done)):
            own = places[self._numbers(batch)]
            rows = np.flatnonzero(own >= 0)
            yield own[rows], preparation.apply(batch, rows, unknown)

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
