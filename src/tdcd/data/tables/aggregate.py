"""Tables with several rows an ID: how a client makes one of them, before anything leaves it.

IDs are numbered in the order of their first rows. Sums run over the rows of an ID in the order of the file, so that the
numbers do not depend on how many rows are read at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.tables.cells import EXACT
from tdcd.data.tables.columns import marks_of, numbers_of, texts_of
from tdcd.data.tables.reader import Batch, Numbers, Table
from tdcd.data.tables.settings import Aggregation
from tdcd.data.tables.survey import text_among_numbers, unlike
from tdcd.errors import DataError


@dataclass(frozen=True)
class RowGroups:
    """Which rows of a file have the same ID."""

    table: Table
    ids: pl.Series
    """Every ID once, in the order of their first rows."""
    group: Array
    """For each row of the file, the number of its ID."""
    heads: Array
    """For each ID, the number of its first row in the file, from 1."""
    last: Array
    """For each ID, the place of its last row by the column ``order``; of its first where there is no such column."""

    @classmethod
    def of(cls, table: Table, ids: pl.Series, order: Array | None, row_ids: pl.Series | None) -> "RowGroups":
        """Group rows by their IDs.

        Raises:
            DataError: a row is there twice, or it cannot be told which row of an ID is the last.
        """
        if row_ids is not None and row_ids.n_unique() < len(row_ids):
            one, two = np.flatnonzero(row_ids == row_ids.filter(row_ids.is_duplicated())[0])[:2].tolist()
            raise DataError(
                f"{table}: rows {one + 1} and {two + 1} have the same {table.settings.row_id} ({row_ids[one]}), which "
                f"silos.{table.silo}.row_id says is of one row; remove one of them"
            )
        unique = ids.unique(maintain_order=True)
        places = pl.DataFrame({"id": unique, "place": np.arange(len(unique))})
        joined = pl.DataFrame({"id": ids}).join(places, on="id", how="left", maintain_order="left")
        group = joined["place"].to_numpy()
        heads = np.unique(group, return_index=True)[1]
        last = heads
        if order is not None:
            tie = np.zeros(len(group)) if row_ids is None else row_ids.rank("ordinal").to_numpy()
            sorted_rows = np.lexsort((tie, order, group))
            ends = np.append(np.flatnonzero(np.diff(group[sorted_rows])), len(group) - 1)
            last = sorted_rows[ends]
            before = sorted_rows[np.maximum(ends - 1, 0)]
            same = (group[before] == group[last]) & (order[before] == order[last]) & (before != last)
            if row_ids is None and same.any():
                where = np.argmax(same)
                one, two = sorted([int(before[where]) + 1, int(last[where]) + 1])
                raise DataError(
                    f"{table}: rows {one} and {two} have the same ID ({unique[int(where)]}) and the same "
                    f"{table.settings.order}, so neither is the last; name a column that tells them apart, "
                    f"silos.{table.silo}.row_id, whose greatest then counts"
                )
        return cls(table, unique, group, heads + 1, last)

    def fact(self, column: str, values: pl.Series) -> pl.Series:
        """Return a label, or something else that goes with an ID: of its last row, or of all of its rows alike.

        Raises:
            DataError: rows of an ID contradict each other.
        """
        if self.table.settings.fact_rule(column) == "last":
            return values.gather(self.last)
        differ = (values != values.gather((self.heads - 1)[self.group])).to_numpy()
        if differ.any():
            row = int(np.argmax(differ))
            group = int(self.group[row])
            raise DataError(
                f"{self.table}: column '{column}' differs in rows {self.heads[group]} and {row + 1} of ID "
                f"{self.ids[group]}. Correct it, or take that of the last row: silos.{self.table.silo}.aggregate = "
                f'{{ {column} = "last", … }}'
            )
        return values.gather(self.heads - 1)

    def places(self, batch: Batch) -> Array:
        """Return the numbers of the IDs in a batch of joined rows."""
        return np.searchsorted(self.heads, batch.rows)


def join_rows(groups: RowGroups, columns: Sequence[str]) -> tuple[Batch, Mapping[str, DataError]]:
    """Make one row of the rows of each ID.

    Returns:
        A row for each ID, known by its first row in the file; and what is wrong with columns.
    """
    table, problems = groups.table, dict[str, DataError]()
    is_last = np.zeros(len(groups.group), dtype=bool)
    is_last[groups.last] = True
    parts = {column: _Column(column, table.settings.rule(column), len(groups.heads)) for column in columns}
    for batch in table.batches(columns, typed=True):
        rows = batch.rows - 1
        for column, part in parts.items():
            if column not in problems:
                try:
                    part.add(batch, groups.group[rows], is_last[rows])
                except DataError as error:
                    problems[column] = error
    joined = Batch(table, groups.heads, pl.DataFrame())
    cells = {}
    for column, part in parts.items():
        try:
            cells[column] = part.write(joined)
        except DataError as error:
            problems.setdefault(column, error)
    return Batch(table, joined.rows, pl.DataFrame(cells), joined.numbers, joined.texts, joined.marks), problems


class _Column:
    """One column, a row for each ID."""

    def __init__(self, name: str, rule: Aggregation, size: int) -> None:
        self.name, self.rule = name, rule
        self.kind = ""
        """ "numbers", "dates" or "texts", once a value was seen."""
        self.values = np.full(size, np.nan) if rule == "last" else np.zeros(size)
        self.whole = np.zeros(size, dtype=np.int64)
        self.large, self.exact = False, True
        """Whether there are whole numbers that float64 does not hold, and nothing but whole numbers."""
        self.counts = np.zeros(size, dtype=np.int64)
        self.texts = np.full(size, None, dtype=object)
        self.marks = np.zeros(size, dtype=np.int8)

    def add(self, batch: Batch, group: Array, last: Array) -> None:
        """Take in some rows of the file: the number of their ID, and whether they are its last."""
        coded = self.name in batch.table.settings.categories
        numbers = None if coded else numbers_of(batch, self.name)
        if numbers is None:
            texts = texts_of(batch, self.name)
            known = texts.is_not_null().to_numpy()
        else:
            known = ~np.isnan(numbers.values)
        if self.rule == "last" and (marks := marks_of(batch, self.name)) is not None:
            self.marks[group[last]] = marks[last]
        np.add.at(self.counts, group, known)
        if not known.any() or self.rule == "count":
            return
        self._check(batch, numbers, known)
        if numbers is None:
            self.texts[group[last]] = texts.to_numpy()[last]
        elif self.rule == "last":
            self.values[group[last]] = numbers.values[last]
            self._keep_whole(numbers, known, group, last)
        else:
            np.add.at(self.values, group[known], numbers.values[known])

    def _check(self, batch: Batch, numbers: Numbers | None, known: Array) -> None:
        """Check that values are as before, and can be joined in this way."""
        kind = "texts" if numbers is None else "dates" if numbers.dates else "numbers"
        if self.kind and kind != self.kind:
            raise text_among_numbers(batch, self.name) if numbers is None else unlike(batch, self.name, numbers)
        self.kind = kind
        if (kind == "texts" and self.rule != "last") or (kind == "dates" and self.rule == "sum"):
            row = batch.row(known)
            raise DataError(
                f"{batch.table}: column '{self.name}' holds {kind}, such as '{batch.cell(self.name, row)}' in row "
                f'{row}, which have no {self.rule}; choose "last" or "count" for it: '
                f'silos.{batch.table.silo}.aggregate = {{ {self.name} = "last", "*" = "{self.rule}" }}'
            )

    def _keep_whole(self, numbers: Numbers, known: Array, group: Array, last: Array) -> None:
        whole = numbers.whole
        if whole is None:
            values = numbers.values[known]
            self.exact &= bool((values == np.rint(values)).all() and (np.abs(values) <= EXACT).all())
            whole = np.where(known, numbers.values, 0).astype(np.int64) if self.exact else self.whole[group]
        else:
            self.large = True
        self.whole[group[last]] = whole[last]

    def write(self, joined: Batch) -> pl.Series:
        """Put what came out where parsed columns are; return its cells, to be shown."""
        if joined.table.settings.missing_flags:
            joined.marks[self.name] = self.marks
        if self.kind == "texts":
            texts = pl.Series(self.name, self.texts.tolist(), dtype=pl.String)
            joined.numbers[self.name], joined.texts[self.name] = None, texts
            return texts
        values = self.values
        if self.rule == "count":
            values = self.counts.astype(np.float64)
        elif self.rule != "last":
            with np.errstate(invalid="ignore"):
                values = np.where(self.counts > 0, values, np.nan) / (self.counts if self.rule == "mean" else 1)
            if np.isinf(values).any():
                row = joined.rows[np.argmax(np.isinf(values))]
                raise DataError(f"{joined.table}: column '{self.name}': the {self.rule} from row {row} on is too large")
        whole = self.whole if self.large and self.exact else None
        joined.numbers[self.name] = Numbers(values, self.kind == "dates", whole)
        return pl.Series(self.name, values).fill_nan(None)
