"""What a client's columns hold: surveyed by the client, added up by its hub."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import hypot, isfinite, sqrt

import numpy as np
import polars as pl

from tdcd.data.arrays import Array, is_constant
from tdcd.data.tables.columns import marks_of, mixed, numbers_of, texts_of
from tdcd.data.tables.reader import Batch, Numbers, TableHead
from tdcd.errors import DataError


@dataclass(frozen=True)
class NumberFacts:
    """What a client or a hub knows of a column of numbers.

    Plain sums, and sums of squares, say the same, but cancel for large values and vanish for small ones.
    """

    count: int
    mean: float
    """As near to the mean as a float64 comes."""
    rest: float
    """The mean less that: for large numbers it counts."""
    spread: float
    """The root of the sum of squared deviations from the mean."""
    missing: int
    dates: bool = False
    """Whether they are dates, counted in days."""
    whole: bool = False
    """Whether they are whole numbers so large that float64 would round them; nothing here was rounded."""

    @classmethod
    def of(cls, numbers: Numbers, rows: Array) -> "NumberFacts":
        """Describe a column in some rows, given by a mask."""
        own = numbers if rows.all() else numbers.at(rows)
        known = ~np.isnan(own.values)
        count, missing, whole = int(known.sum()), int(len(known) - known.sum()), numbers.whole is not None
        if not count:
            return cls(0, 0.0, 0.0, 0.0, missing, numbers.dates, whole)
        own = own.at(known) if missing else own
        with np.errstate(over="ignore", invalid="ignore"):  # reported where the column is fitted
            first = float(own.values[0])
            mean = first + float(own.less(first).mean())
            apart = own.less(mean) if isfinite(mean) else np.full(count, np.nan)
            rest = float(apart.mean())
            apart -= rest
            scale = max(
                float(apart.max()), -float(apart.min())
            )  # squares of small numbers vanish, of large ones overflow
            spread = scale * sqrt(float(np.square(apart / scale).sum())) if scale else 0.0
        return cls(count, mean, rest, spread, missing, numbers.dates, whole)

    def __add__(self, other: "NumberFacts") -> "NumberFacts":
        missing = self.missing + other.missing
        if not (self.count and other.count):
            return replace(self if self.count else other, missing=missing, dates=self.dates)
        count = self.count + other.count
        apart = (other.mean - self.mean) + (other.rest - self.rest)
        more = self.rest + apart * (other.count / count)
        mean = self.mean + more
        return NumberFacts(
            count,
            mean,
            (self.mean - mean) + more,
            hypot(self.spread, other.spread, apart * sqrt(self.count * (other.count / count))),
            missing,
            self.dates,
            self.whole and other.whole,
        )

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 where all numbers are the same but for rounding."""
        deviation = self.spread / sqrt(self.count)
        return 0.0 if not self.whole and is_constant(self.mean, deviation) else deviation


@dataclass(frozen=True)
class CategoryFacts:
    """What a client or a hub knows of a column of categories."""

    counts: Counter[str]
    missing: int

    @classmethod
    def of(cls, values: pl.Series) -> "CategoryFacts":
        """Describe values; null is no value."""
        counts = values.drop_nulls().value_counts(name="count")
        return cls(Counter(dict(counts.iter_rows())), values.null_count())

    def __add__(self, other: "CategoryFacts") -> "CategoryFacts":
        total = CategoryFacts(Counter(self.counts), self.missing)
        total += other
        return total

    def __iadd__(self, other: "CategoryFacts") -> "CategoryFacts":
        """Add without a copy of the counts: a column may have many texts, and many batches."""
        self.counts.update(other.counts)
        return CategoryFacts(self.counts, self.missing + other.missing)


Facts = NumberFacts | CategoryFacts

MOST_CATEGORIES = 100_000
"""Different texts that a client keeps count of."""


@dataclass(frozen=True)
class SurveyReport:
    """What a client reports of its columns: sums and counts over training rows, no values of single rows."""

    facts: dict[str, Facts] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    """Training rows without a value in columns of which no value was seen yet: numbers or texts, nobody knows."""
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong with columns: all of it is reported at once."""
    marked: dict[str, Counter[str]] = field(default_factory=dict)
    """Training rows with marks of ``missing_flags``, by column and mark."""


@dataclass(frozen=True)
class Survey:
    """A client's survey of its columns, a batch after the other."""

    table: TableHead
    columns: Sequence[str]
    report: SurveyReport = field(default_factory=SurveyReport)

    def look(self, batch: Batch, training: Array) -> None:
        """Take in a batch; only training rows count, but every row is checked."""
        for column in self.columns:
            if column not in self.report.problems:
                try:
                    self._look(batch, column, training)
                    self._count_marks(batch, column, training)
                except DataError as error:
                    self.report.problems[column] = str(error)

    def _look(self, batch: Batch, column: str, training: Array) -> None:
        known = self.report.facts.get(column)
        if column in self.table.settings.categories:
            self._add(column, CategoryFacts.of(texts_of(batch, column).filter(pl.Series(training))))
            return
        numbers = numbers_of(batch, column)
        if numbers is not None and np.isnan(numbers.values).all():  # fits numbers and texts
            self.report.empty[column] = self.report.empty.get(column, 0) + int(training.sum())
        elif numbers is not None:
            if isinstance(known, CategoryFacts) or (known and known.dates != numbers.dates):
                raise unlike(batch, column, numbers)
            self._add(column, NumberFacts.of(numbers, training))
        else:
            if isinstance(known, NumberFacts):
                raise text_among_numbers(batch, column)
            self._add(column, CategoryFacts.of(texts_of(batch, column).filter(pl.Series(training))))

    def _count_marks(self, batch: Batch, column: str, training: Array) -> None:
        marks = marks_of(batch, column)
        if marks is not None:
            counts = np.bincount(marks[training])[1:].tolist()
            named = {mark: n for mark, n in zip(self.table.settings.missing_flags, counts, strict=False) if n}
            self.report.marked.setdefault(column, Counter()).update(named)

    def _add(self, column: str, facts: Facts) -> None:
        if column in self.report.facts:
            known = self.report.facts[column]
            known += facts  # type: ignore[operator]
            facts = known
        if isinstance(facts, CategoryFacts) and len(facts.counts) > MOST_CATEGORIES:
            raise DataError(
                f"{self.table}: column '{column}' holds more than {MOST_CATEGORIES:,} different texts; "
                f"leave it out with silos.{self.table.silo}.exclude"
            )
        self.report.facts[column] = facts


def unlike(batch: Batch, column: str, numbers: Numbers) -> DataError:
    """Return the error about numbers among other values."""
    row = batch.row(~np.isnan(numbers.values))
    kind = "date" if numbers.dates else "number"
    return mixed(batch.table, column, f"row {row} is the {kind} '{batch.cell(column, row)}', unlike others")


def text_among_numbers(batch: Batch, column: str) -> DataError:
    """Return the error about a text among numbers."""
    row = batch.row(texts_of(batch, column).is_not_null())
    return mixed(batch.table, column, f"row {row} is the text '{batch.cell(column, row)}'")
