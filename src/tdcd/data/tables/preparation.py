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
from datetime import date, timedelta
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl
from pydantic import Field, ValidationError

from tdcd.data.arrays import Array
from tdcd.data.tables.columns import marks_of, numbers_of, texts_of
from tdcd.data.tables.drift import Drift, Seen
from tdcd.data.tables.reader import Batch, TableHead
from tdcd.data.tables.survey import CategoryFacts, Facts, NumberFacts, Survey, text_among_numbers, unlike
from tdcd.data.tables.suspects import date_spellings
from tdcd.errors import DataError, RunError, join_names
from tdcd.strict import Strict, problems

_LIKE_NUMBERS = re.compile(
    r"\(?[+\-−–]?\s*[$€£¥₹]?\s*[+\-−–]?\s*[.,]?[0-9][0-9.,'’\s/:%€$£¥₹+\-−–]*\)?"
    r"|\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.*"
)
"""Also with no-break and narrow spaces, a minus sign, currencies, and dates with a time zone."""
MOST_INPUTS = 1_000
"""That one column may become."""


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
    marks: list[str] = []
    """Marks of no value that have a column of their own."""

    @property
    def outputs(self) -> list[str]:
        """What its columns of numbers are called."""
        return [self.name] + [f"{self.name} missing"] * self.flagged + _mark_outputs(self)

    def describe(self) -> str:
        """Tell what it holds."""
        kind = "dates" if self.dates else "numbers"
        if self.constant:
            return f"{kind}, all {self.shown_mean}: left out{_describe_gaps(self)}"
        spread = f"{self.deviation:.4g}" + " days" * self.dates
        return f"{kind}, {self.shown_mean} ± {spread}{_describe_gaps(self)}"

    @property
    def shown_mean(self) -> str:
        """The mean as people read it; that of a constant column in full."""
        if self.dates:
            return str(date(1970, 1, 1) + timedelta(days=self.mean))
        if self.constant and self.mean.is_integer() and self.rest.is_integer():
            return str(int(self.mean) + int(self.rest))
        return f"{self.mean:.15g}" if self.constant else f"{self.mean:.4g}"

    @property
    def constant(self) -> bool:
        """Whether it held the same in all training rows, and is left out."""
        return self.deviation == 0

    @property
    def valid(self) -> bool:
        """Whether one can compute with it."""
        return isfinite(self.mean) and isfinite(self.rest) and isfinite(self.deviation)

    def write(self, batch: Batch, rows: Array, out: Array) -> Seen:
        """Write the numbers of some rows into columns of zeros (rows, outputs); return what they hold."""
        numbers = numbers_of(batch, self.name)
        if numbers is None:
            raise text_among_numbers(batch, self.name)
        if numbers.dates != self.dates and not np.isnan(numbers.values).all():
            raise unlike(batch, self.name, numbers)
        own = numbers if len(rows) == len(batch) else numbers.at(rows)
        unknown = np.isnan(own.values)
        if not self.constant:
            with np.errstate(over="ignore"):  # reported below
                scaled = own.less(self.mean)
                scaled -= self.rest
                scaled /= self.deviation
            scaled[unknown] = 0.0
            if max(scaled.max(initial=0.0), -scaled.min(initial=0.0)) > np.finfo(np.float32).max:
                row = batch.rows[rows[np.argmax(np.abs(scaled) > np.finfo(np.float32).max)]]
                raise DataError(f"{batch.table}: column '{self.name}' holds a number too large in row {row}")
            out[:, 0] = scaled
        if self.flagged:
            out[:, 1] = unknown
        _write_marks(self, batch, rows, out)
        return Seen(len(rows), int(unknown.sum()), float(out[:, 0].sum(dtype=np.float64)))


class Category(Strict):
    """A prepared column of categories."""

    kind: Literal["category"] = "category"
    name: str
    values: list[str]
    other: bool
    """Whether rare and unknown categories have a column."""
    flagged: bool
    """Whether a column tells where there was no value."""
    marks: list[str] = []
    """Marks of no value that have a column of their own."""

    @property
    def outputs(self) -> list[str]:
        """What its columns of numbers are called."""
        values = [f"{self.name} = {value}" for value in self.values]
        more = [f"{self.name} other"] * self.other + [f"{self.name} missing"] * self.flagged
        return values + more + _mark_outputs(self)

    def describe(self) -> str:
        """Tell what it holds."""
        shown = ", ".join(self.values[:6]) + " …" * (len(self.values) > 6)
        return f"{len(self.values)} categories{' and rare ones' * self.other}: {shown}{_describe_gaps(self)}"

    @property
    def constant(self) -> bool:
        """Whether it is left out: never."""
        return False

    @property
    def valid(self) -> bool:
        """Whether no category comes twice."""
        return len(set(self.values)) == len(self.values)

    def write(self, batch: Batch, rows: Array, out: Array) -> Seen:
        """Write the numbers of some rows into columns of zeros (rows, outputs); return what they hold."""
        if self.name not in batch.table.settings.categories:
            numbers = numbers_of(batch, self.name)
            if numbers is not None and not np.isnan(numbers.values).all():
                raise unlike(batch, self.name, numbers)
        texts = texts_of(batch, self.name)
        texts = texts if len(rows) == len(batch) else texts.gather(rows)
        places = {value: place for place, value in enumerate(self.values)}
        other = len(self.values) if self.other else -1
        place = texts.replace_strict(places, default=other, return_dtype=pl.Int32).to_numpy().copy()
        strange = place == other
        if texts.null_count():
            missing = texts.is_null().to_numpy()
            strange &= ~missing
            place[missing] = len(self.values) + self.other if self.flagged else -1
        known = np.flatnonzero(place >= 0)
        out[known, place[known]] = 1.0
        _write_marks(self, batch, rows, out)
        values = Counter[str](texts.filter(pl.Series(strange)).to_list() if strange.any() else ())
        return Seen(len(rows), texts.null_count(), unknown=int(strange.sum()), values=values)


def _mark_outputs(column: Number | Category) -> list[str]:
    return [f"{column.name} missing {mark}" for mark in column.marks]


def _describe_gaps(column: Number | Category) -> str:
    return "; gaps" * column.flagged + f", with a flag for {join_names(column.marks)}" * bool(column.marks)


def _write_marks(column: Number | Category, batch: Batch, rows: Array, out: Array) -> None:
    """Say in the last columns where which mark of no value stood."""
    marks = marks_of(batch, column.name) if column.marks else None
    if marks is not None:
        known = batch.table.settings.missing_flags
        for place, mark in enumerate(column.marks, start=out.shape[1] - len(column.marks)):
            out[:, place] = marks[rows] == known.index(mark) + 1


class Preparation(Strict):
    """How a silo's columns become the numbers of its network."""

    columns: list[Annotated[Number | Category, Field(discriminator="kind")]]

    @property
    def outputs(self) -> list[str]:
        """What the numbers of a row stand for, in order."""
        return [name for column in self.columns for name in column.outputs]

    @property
    def inputs(self) -> dict[str, range]:
        """Which of these numbers each column becomes."""
        result, start = {}, 0
        for column in self.columns:
            result[column.name] = range(start, start + len(column.outputs))
            start += len(column.outputs)
        return result

    def describe(self) -> str:
        """Tell it in a few words."""
        numbers = sum(isinstance(column, Number) for column in self.columns)
        gaps = sum(column.flagged for column in self.columns)
        parts = [f"{numbers} of numbers", f"{len(self.columns) - numbers} of categories"]
        text = f"{len(self.columns)} columns ({', '.join(parts)}; {gaps} with gaps) make {len(self.outputs)} inputs"
        constant = [column.name for column in self.columns if column.constant]
        return text + (f"; left out, as all training rows hold the same: {join_names(constant)}" if constant else "")

    def apply(self, batch: Batch, rows: Array, drift: Drift | None = None) -> Array:
        """Return the numbers (rows, outputs) of some rows of a batch; count in ``drift`` what their columns hold."""
        out = np.zeros((len(rows), len(self.outputs)), dtype=np.float32)
        start = 0
        for column in self.columns:
            width = len(column.outputs)
            seen = column.write(batch, rows, out[:, start : start + width])
            if drift:
                drift.count(column.name, seen)
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
    problems = [problem for survey in surveys for problem in survey.report.problems.values()]
    parts = []
    for column in columns:
        if not any(column in survey.report.problems for survey in surveys):
            try:
                parts.append(_fit_column(column, surveys, rare))
            except DataError as error:
                problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return Preparation(columns=parts)


def _numbers_and_texts(column: str, numbers: tuple[TableHead, Facts], texts: tuple[TableHead, Facts]) -> DataError:
    """Return the error about a column that holds numbers or dates at one client, and texts at another."""
    (one, facts), (two, others) = numbers, texts
    dates = isinstance(facts, NumberFacts) and facts.dates
    example = min(others.counts, default="") if isinstance(others, CategoryFacts) else ""
    advice = f"mend one, or list the column in silos.{one.silo}.categories"
    if dates and date_spellings([example]):
        advice += f". If '{example}' is a date, say how it is written. {two.advise('date_format')}"
    elif not dates and _LIKE_NUMBERS.fullmatch(example):
        advice += f". If '{example}' is a number, say how it is written. {two.advise('decimal')}"
    return DataError(
        f"silo '{one.silo}': column '{column}' holds {'dates' if dates else 'numbers'} at client '{one.client}' "
        f"({one.path}) and texts at '{two.client}' ({two.path}); {advice}"
    )


def _fit_column(column: str, surveys: Sequence[Survey], rare: int) -> Number | Category:
    parts = [(survey.table, survey.report.facts[column]) for survey in surveys if column in survey.report.facts]
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
            if isinstance(total, NumberFacts):
                raise _numbers_and_texts(column, (first, total), (table, facts))
            raise _numbers_and_texts(column, (table, facts), (first, total))
        total = total + facts  # type: ignore[operator]
    missing = total.missing + sum(survey.report.empty.get(column, 0) for survey in surveys)
    marked = sum((survey.report.marked.get(column, Counter()) for survey in surveys), Counter[str]())
    marks = [mark for mark in first.settings.missing_flags if marked[mark]]
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
            marks=marks,
        )
    if not total.counts:
        raise DataError(f"silo '{silo}': column '{column}' has no value in any training row; {advice}")
    if column not in first.settings.categories and all(_LIKE_NUMBERS.fullmatch(text) for text in total.counts):
        spellings = list(date_spellings(total.counts).values())
        if len(spellings) > 1:
            raise DataError(
                f"silo '{silo}': column '{column}' holds dates in several spellings, such as '{spellings[0]}' and "
                f"'{spellings[1]}'. Write all of them in one, best as 2026-01-28; where clients differ, name the "
                "date_format of each"
            )
        raise DataError(
            f"silo '{silo}': column '{column}' holds texts that look like numbers or dates, such as "
            f'\'{min(total.counts)}\'. For 1.234,56 set silos.{silo}.decimal = "," and thousands = "."; for dates such '
            f'as 28.01.2026 set date_format = "%d.%m.%Y", or write them as 2026-01-28; if these are categories, list '
            f"the column in silos.{silo}.categories"
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
    other = len(common) < len(total.counts)
    return Category(name=column, values=common, other=other, flagged=missing > 0, marks=marks)
