"""From a table's columns to a network's numbers, without moving rows.

A client tells its hub of every column how many values it has, their mean and squared deviations, or how often each
category occurs, over its training rows. The hub adds that up and fixes the preparation, which every client applies
to its own rows: in training, and again when predicting.

    number      (value − mean) / deviation; no value becomes the mean. A column that holds the same in all training
                rows tells nothing: 0
    category    a column of 0 and 1 for each category; rare ones share the column "other", and so do categories that
                never occurred in training. Where none was rare, an unknown category is all zeros
    no value    a further column of 0 and 1 tells where there was none, if that happened in training
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from math import hypot, isfinite, sqrt
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl
from pydantic import Field, ValidationError

from tdcd.data.arrays import Array, is_constant
from tdcd.data.tables import Batch, Numbers, TableHead, mixed, numbers_of, texts_of
from tdcd.errors import DataError, RunError, join_names
from tdcd.strict import Strict, problems


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
        known = rows & ~np.isnan(numbers.values)
        count, missing, whole = int(known.sum()), int((rows & ~known).sum()), numbers.whole is not None
        if not count:
            return cls(0, 0.0, 0.0, 0.0, missing, numbers.dates, whole)
        with np.errstate(over="ignore", invalid="ignore"):  # told where the column is known
            first = float(numbers.values[known][0])
            mean = first + float(numbers.less(first)[known].mean())
            apart = numbers.less(mean)[known] if isfinite(mean) else np.full(count, np.nan)
            rest = float(apart.mean())
            apart -= rest
            scale = float(np.abs(apart).max())  # squares of small numbers would vanish, those of large ones be infinite
            spread = scale * sqrt(np.square(apart / scale).sum()) if scale else 0.0
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

_LIKE_NUMBERS = re.compile(
    r"\(?[+\-−–]?\s*[$€£¥₹]?\s*[+\-−–]?\s*[.,]?[0-9][0-9.,'’\s/:%€$£¥₹+\-−–]*\)?"
    r"|\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.*"
)
"""Also with no-break and narrow spaces, a minus sign, currencies, and dates with a time zone."""
MOST_INPUTS = 1_000
"""That one column may become."""
MOST_CATEGORIES = 100_000
"""Different texts that a client keeps count of."""


@dataclass
class Survey:
    """A client's look at its columns, a batch after the other; what it finds, the client tells its hub."""

    table: TableHead
    columns: Sequence[str]
    facts: dict[str, Facts] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    """Training rows without a value in columns of which no value was seen yet: numbers or texts, nobody knows."""

    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong with columns: all of it is told at once."""

    def look(self, batch: Batch, training: Array) -> None:
        """Take in a batch; only training rows count, but every row is checked."""
        for column in self.columns:
            if column not in self.problems:
                try:
                    self._look(batch, column, training)
                except DataError as error:
                    self.problems[column] = str(error)

    def _look(self, batch: Batch, column: str, training: Array) -> None:
        known = self.facts.get(column)
        if column in self.table.settings.categories:
            self._add(column, CategoryFacts.of(texts_of(batch, column).filter(pl.Series(training))))
            return
        numbers = numbers_of(batch, column)
        if numbers is not None and np.isnan(numbers.values).all():  # fits numbers and texts
            self.empty[column] = self.empty.get(column, 0) + int(training.sum())
        elif numbers is not None:
            if isinstance(known, CategoryFacts) or (known and known.dates != numbers.dates):
                raise _unlike(batch, column, numbers)
            self._add(column, NumberFacts.of(numbers, training))
        else:
            if isinstance(known, NumberFacts):
                raise _text_among_numbers(batch, column)
            self._add(column, CategoryFacts.of(texts_of(batch, column).filter(pl.Series(training))))

    def _add(self, column: str, facts: Facts) -> None:
        if column in self.facts:
            known = self.facts[column]
            known += facts  # type: ignore[operator]
            facts = known
        if isinstance(facts, CategoryFacts) and len(facts.counts) > MOST_CATEGORIES:
            raise DataError(
                f"{self.table}: column '{column}' holds more than {MOST_CATEGORIES:,} different texts; "
                f"leave it out with silos.{self.table.silo}.exclude"
            )
        self.facts[column] = facts


def _unlike(batch: Batch, column: str, numbers: Numbers) -> DataError:
    row = batch.row(~np.isnan(numbers.values))
    kind = "date" if numbers.dates else "number"
    return mixed(batch.table, column, f"row {row} is the {kind} '{batch.cell(column, row)}', unlike others")


def _text_among_numbers(batch: Batch, column: str) -> DataError:
    row = batch.row(texts_of(batch, column).is_not_null())
    return mixed(batch.table, column, f"row {row} is the text '{batch.cell(column, row)}'")


class Number(Strict):
    """A prepared column of numbers."""

    kind: Literal["number"] = "number"
    name: str
    mean: float
    rest: float = 0.0
    """What the mean is more than that, where float64 would round it."""
    deviation: Annotated[float, Field(ge=0)]
    """0 where all training rows hold the same: such a column tells nothing, and its input is 0."""
    flagged: bool
    """Whether a column tells where there was no value."""
    dates: bool = False
    """Whether they are dates, counted in days."""

    @property
    def outputs(self) -> list[str]:
        """What its columns of numbers are called."""
        return [self.name] + [f"{self.name} missing"] * self.flagged

    def describe(self) -> str:
        """Tell what it holds."""
        text = f"numbers, {self.mean:.4g} ± {self.deviation:.4g}"
        if self.dates:
            text = f"dates, {date(1970, 1, 1) + timedelta(days=self.mean)} ± {self.deviation:.4g} days"
        return text + "; left out, as it is constant" * self.constant + "; gaps" * self.flagged

    @property
    def constant(self) -> bool:
        """Whether it held the same in all training rows, and is left out."""
        return self.deviation == 0

    def write(self, batch: Batch, rows: Array, out: Array) -> Counter[str]:
        """Write the numbers of some rows into columns of zeros (rows, outputs); return unknown values: none."""
        numbers = numbers_of(batch, self.name)
        if numbers is None:
            raise _text_among_numbers(batch, self.name)
        if numbers.dates != self.dates and not np.isnan(numbers.values).all():
            raise _unlike(batch, self.name, numbers)
        values = numbers.less(self.mean)[rows]
        unknown = np.isnan(values)
        scaled = np.zeros_like(values)
        if not self.constant:
            with np.errstate(over="ignore"):  # told below
                scaled[~unknown] = (values[~unknown] - self.rest) / self.deviation
        if (large := np.abs(scaled) > np.finfo(np.float32).max).any():
            row = batch.first + int(rows[np.argmax(large)])
            raise DataError(f"{batch.table}: column '{self.name}' holds a number too large in row {row}")
        out[:, 0] = scaled
        if self.flagged:
            out[:, 1] = unknown
        return Counter()


class Category(Strict):
    """A prepared column of categories."""

    kind: Literal["category"] = "category"
    name: str
    values: list[str]
    other: bool
    """Whether rare and unknown categories have a column."""
    flagged: bool
    """Whether a column tells where there was no value."""

    @property
    def outputs(self) -> list[str]:
        """What its columns of numbers are called."""
        marks = [f"{self.name} = {value}" for value in self.values]
        return marks + [f"{self.name} other"] * self.other + [f"{self.name} missing"] * self.flagged

    def describe(self) -> str:
        """Tell what it holds."""
        shown = ", ".join(self.values[:6]) + " …" * (len(self.values) > 6)
        return f"{len(self.values)} categories{' and rare ones' * self.other}: {shown}" + "; gaps" * self.flagged

    @property
    def constant(self) -> bool:
        """Whether it is left out: never."""
        return False

    def write(self, batch: Batch, rows: Array, out: Array) -> Counter[str]:
        """Write the numbers of some rows into columns of zeros (rows, outputs); return categories without a column."""
        if self.name not in batch.table.settings.categories:
            numbers = numbers_of(batch, self.name)
            if numbers is not None and not np.isnan(numbers.values).all():
                raise _unlike(batch, self.name, numbers)
        texts = texts_of(batch, self.name).gather(rows)
        places = {value: place for place, value in enumerate(self.values)}
        other = len(self.values) if self.other else -1
        place = texts.replace_strict(places, default=other, return_dtype=pl.Int32).to_numpy().copy()
        if texts.null_count():
            place[texts.is_null().to_numpy()] = out.shape[1] - 1 if self.flagged else -1
        known = np.flatnonzero(place >= 0)
        out[known, place[known]] = 1.0
        strange = texts.drop_nulls().filter(~texts.drop_nulls().is_in(self.values))
        return Counter(strange.to_list())


class Preparation(Strict):
    """How a silo's columns become the numbers of its network."""

    columns: list[Annotated[Number | Category, Field(discriminator="kind")]]

    @property
    def outputs(self) -> list[str]:
        """What the numbers of a row stand for, in order."""
        return [name for column in self.columns for name in column.outputs]

    def describe(self) -> str:
        """Tell it in a few words."""
        numbers = sum(isinstance(column, Number) for column in self.columns)
        gaps = sum(column.flagged for column in self.columns)
        parts = [f"{numbers} of numbers", f"{len(self.columns) - numbers} of categories"]
        text = f"{len(self.columns)} columns ({', '.join(parts)}; {gaps} with gaps) make {len(self.outputs)} inputs"
        constant = [column.name for column in self.columns if column.constant]
        return text + (f"; left out, as all training rows hold the same: {join_names(constant)}" if constant else "")

    def apply(self, batch: Batch, rows: Array, unknown: dict[str, Counter[str]] | None = None) -> Array:
        """Return the numbers (rows, outputs) of some rows of a batch.

        Categories that have no column of their own are counted in ``unknown``, by column, if that is wanted.
        """
        out = np.zeros((len(rows), len(self.outputs)), dtype=np.float32)
        start = 0
        for column in self.columns:
            width = len(column.outputs)
            strange = column.write(batch, rows, out[:, start : start + width])
            if unknown is not None and strange:
                unknown.setdefault(column.name, Counter()).update(strange)
            start += width
        return out

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(self.model_dump(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_file(cls, path: Path) -> "Preparation":
        """Read it back.

        Raises:
            RunError: the file is missing or damaged.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from error
        except ValidationError as error:
            raise RunError(f"{path}: damaged: {next(problems(error))}") from error


def fit(surveys: Iterable[Survey], columns: Sequence[str], rare: int) -> Preparation:
    """Add up what the clients of a silo tell of its columns, and fix the preparation.

    Args:
        surveys: A client's survey each; those of clients without training rows may be left out.
        columns: The columns of features, in order.
        rare: A category in fewer rows than this shares the column "other".
    """
    surveys = sorted(surveys, key=lambda survey: survey.table.client)
    problems = [problem for survey in surveys for problem in survey.problems.values()]
    parts = []
    for column in columns:
        if not any(column in survey.problems for survey in surveys):
            try:
                parts.append(_fit_column(column, surveys, rare))
            except DataError as error:
                problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return Preparation(columns=parts)


def _fit_column(column: str, surveys: Sequence[Survey], rare: int) -> Number | Category:
    parts = [(survey.table, survey.facts[column]) for survey in surveys if column in survey.facts]
    silo = surveys[0].table.silo
    advice = f"leave it out with silos.{silo}.exclude"
    if not parts:
        raise DataError(f"silo '{silo}': column '{column}' has no value in any row; {advice}")
    (first, total), *others = parts
    for table, facts in others:
        if isinstance(facts, NumberFacts) and isinstance(total, NumberFacts) and facts.dates != total.dates:
            one, two = (first, table) if total.dates else (table, first)
            raise DataError(
                f"silo '{silo}': column '{column}' holds dates at client '{one.client}' ({one.path}) and numbers at "
                f"'{two.client}' ({two.path})"
            )
        if type(facts) is not type(total):
            one, two = (first, table) if isinstance(total, NumberFacts) else (table, first)
            raise DataError(
                f"silo '{silo}': column '{column}' holds numbers at client '{one.client}' ({one.path}) and texts at "
                f"'{two.client}' ({two.path}); mend one, or list the column in silos.{silo}.categories"
            )
        total = total + facts  # type: ignore[operator]
    missing = total.missing + sum(survey.empty.get(column, 0) for survey in surveys)
    if isinstance(total, NumberFacts):
        if not total.count:
            raise DataError(f"silo '{silo}': column '{column}' has no value in any training row; {advice}")
        if not (isfinite(total.mean) and isfinite(total.rest) and isfinite(total.deviation)):
            raise DataError(f"silo '{silo}': column '{column}' holds numbers too large to be standardised; {advice}")
        return Number(
            name=column,
            mean=total.mean,
            rest=total.rest,
            deviation=total.deviation,
            flagged=missing > 0,
            dates=total.dates,
        )
    if not total.counts:
        raise DataError(f"silo '{silo}': column '{column}' has no value in any training row; {advice}")
    if column not in first.settings.categories and all(_LIKE_NUMBERS.fullmatch(text) for text in total.counts):
        raise DataError(
            f"silo '{silo}': column '{column}' holds texts that look like numbers or dates, such as "
            f'\'{min(total.counts)}\'. For 1.234,56 set silos.{silo}.decimal = "," and thousands = "."; write dates as '
            f"2026-01-28; if these are categories, list the column in silos.{silo}.categories"
        )
    common = sorted(value for value, count in total.counts.items() if count >= rare)
    if not common:
        some = join_names(sorted(total.counts), 3)
        raise DataError(
            f"silo '{silo}': column '{column}' holds {len(total.counts)} different texts ({some}), and none occurs in "
            f"{rare} training rows; {advice}, or set silos.{silo}.rare to a smaller number"
        )
    if len(common) > MOST_INPUTS:
        raise DataError(
            f"silo '{silo}': column '{column}' holds {len(common):,} categories that occur in {rare} training rows: "
            f"too many inputs; {advice}, or set silos.{silo}.rare to a larger number"
        )
    return Category(name=column, values=common, other=len(common) < len(total.counts), flagged=missing > 0)
