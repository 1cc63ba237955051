"""What looks wrong in the tables of a job, though it can be trained: for ``tdcd check``, where all tables are at hand.

Only training rows are looked at, as when columns are prepared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.samples import Samples
from tdcd.data.tables.alignment import Alignment, as_kind, id_series, kind_of
from tdcd.data.tables.cells import as_number
from tdcd.data.tables.client import ClientTable, for_each
from tdcd.data.tables.columns import numbers_of, texts_of
from tdcd.data.tables.preparation import Category, Number, Preparation
from tdcd.data.tables.reader import Table
from tdcd.data.tables.suspects import (
    FEWEST_ROWS,
    amounts,
    date_spellings,
    separates,
    suspect_numbers,
    tells_class,
)
from tdcd.errors import join_names
from tdcd.jobs.data import JobData
from tdcd.jobs.schema import TableJob
from tdcd.jobs.tables import OpenTables
from tdcd.training.settings import Settings

MANY_CATEGORIES = 100
"""More inputs than this of one column are worth a warning."""
TELLS = 0.995
"""A column that tells the class of so many rows is nearly the label."""
SEPARATES = 0.9995
"""A column with such an AUROC is, too."""
CORRELATES = 0.9995
"""And, for a regression, one with such a correlation."""
_FEWEST_OF_CLASS = 5


@dataclass
class _Look:
    """The training rows of one client: numbers as they are written, also those that mean "no value"; texts."""

    client: str
    numbers: dict[str, list[Array]] = field(default_factory=dict)
    texts: dict[str, Counter[str]] = field(default_factory=dict)

    def values(self, column: str) -> Array:
        return np.concatenate(self.numbers.get(column) or [np.empty(0)])


def find_warnings(job: TableJob, data: JobData) -> list[str]:
    """Return what looks wrong in a job's tables, a line each: silo, column, clients, and what to do."""
    opened, federation = OpenTables.open(job, _silently), data.federation
    common = Alignment(id_series(federation.ids), {}, {})
    result = list(_about_classes(job, federation.samples.labels.numpy()))
    for silo, made in federation.preparations.items():

        def look(client: ClientTable, made: Preparation = made) -> _Look:
            return _look(client, made, common)

        looks = list(for_each(look, opened.clients[silo]))
        for column in made.columns:
            where = f"silo '{silo}', column '{column.name}'"
            if isinstance(column, Number):
                warnings = _about_numbers(job, silo, column, looks)
            else:
                warnings = _about_texts(job, silo, column, looks)
            result += [f"{where}: {warning}" for warning in warnings]
        result += _about_labels(silo, made, federation.samples, job.training)
    return result


def _silently(what: str) -> None:
    """Name nothing that is read: the tables were read before."""


def _look(client: ClientTable, made: Preparation, common: Alignment) -> _Look:
    """Read a client's training rows, with the numbers that the job calls missing."""
    table, look = client.table, _Look(client.table.client)
    ids = as_kind(client.read_keys().ids, kind_of(common.ids))
    training = common.places(ids) >= 0
    if client.groups is not None:
        training = training[client.groups.group]
    texts = [mark for mark in table.settings.missing if as_number(mark) is None]
    plain = Table(table.silo, table.client, table.path, table.settings.model_copy(update={"missing": texts}))
    for batch in plain.batches([column.name for column in made.columns]):
        rows = training[batch.rows - 1]
        for column in made.columns:
            if isinstance(column, Category):
                counts = texts_of(batch, column.name).filter(pl.Series(rows)).drop_nulls().value_counts(name="count")
                look.texts.setdefault(column.name, Counter()).update(dict(counts.iter_rows()))
            elif not column.dates and (numbers := numbers_of(batch, column.name)) is not None:
                own = numbers.values[rows]
                look.numbers.setdefault(column.name, []).append(own[~np.isnan(own)])
    return look


def _about_numbers(job: TableJob, silo: str, column: Number, looks: Sequence[_Look]) -> Iterator[str]:
    if column.constant:
        yield (
            f"all training rows hold the same, {column.shown_mean}, so it is left out. If that is right, leave it out "
            f"with silos.{silo}.exclude"
        )
        return
    own = {look.client: look.values(column.name) for look in looks}
    values = np.concatenate(list(own.values()))
    marks = {mark: number for mark in job.silos[silo].missing if (number := as_number(mark)) is not None}
    used = {mark: int((values == number).sum()) for mark, number in marks.items()}
    used = {mark: count for mark, count in used.items() if count}
    if len(used) > 1 and not set(used) <= {*column.marks}:
        some = join_names(f"{mark} in {count:,} training rows" for mark, count in used.items())
        flags = ", ".join(f'"{mark}"' for mark in used)
        yield (
            f"{some} count as missing, and one flag stands for all of them. If they mean different things, give each "
            f"its own: silos.{silo}.missing_flags = [{flags}]"
        )
    suspects = suspect_numbers(values[~np.isin(values, list(marks.values()))])
    if suspects is None:
        return
    for code in suspects.codes:
        yield (
            f"{code:.15g} in {_rows(own, code)} looks like a code for 'no value'. If it is one, list it in "
            f"silos.{silo}.missing"
        )
    for outlier in suspects.outliers:
        yield (
            f"{outlier:.15g} in {_rows(own, outlier)} is far from the others, {suspects.low:.6g} to "
            f"{suspects.high:.6g}, which become nearly the same when standardised. Correct it, or list it in "
            f"silos.{silo}.missing"
        )


def _rows(own: Mapping[str, Array], value: float) -> str:
    counts = {client: int((values == value).sum()) for client, values in own.items()}
    total = sum(counts.values())
    clients = join_names(f"'{client}'" for client, count in counts.items() if count)
    return f"{total:,} training {'row' if total == 1 else 'rows'} (client {clients})"


def _about_texts(job: TableJob, silo: str, column: Category, looks: Sequence[_Look]) -> Iterator[str]:
    marks = {as_number(mark) for mark in job.silos[silo].missing} - {None}
    every = sum((look.texts.get(column.name, Counter()) for look in looks), Counter[str]())
    counts = Counter({text: count for text, count in every.items() if as_number(text) not in marks})
    rows = counts.total()
    if len(counts) == 1 and not column.flagged:
        yield (
            f"all training rows hold the same, '{next(iter(counts))}', which tells nothing. If that is right, leave it "
            f"out with silos.{silo}.exclude"
        )
    if len(column.values) > MANY_CATEGORIES:
        yield (
            f"its {len(counts):,} categories become {len(column.outputs):,} inputs. Set silos.{silo}.rare to a larger "
            f"number, or leave it out with silos.{silo}.exclude"
        )
    if column.name in job.silos[silo].categories:
        return
    money = amounts(counts)
    if 2 * sum(counts[text] for text in money) > rows:
        others = join_names([f"'{text}'" for text in counts if text not in money], 3)
        why = f", because of {others}" if others else ""
        yield (
            f"amounts such as '{money[0]}' are taken as categories{why}. Write them as plain numbers, or set "
            f"silos.{silo}.thousands and decimal; list texts that mean 'no value' in silos.{silo}.missing"
        )
    dated = [text for text in counts if date_spellings([text])]
    if 2 * sum(counts[text] for text in dated) > rows:
        some = join_names(f"'{text}'" for text in date_spellings(dated).values())
        yield (
            f"dates such as {some} are taken as categories. Write all as 2026-01-28, or say how they are written: "
            f"silos.{silo}.date_format; list texts that mean 'no value' in silos.{silo}.missing"
        )


def _about_classes(job: TableJob, labels: Array) -> Iterator[str]:
    """Warn of amounts that are taken as classes."""
    classes = len(np.unique(labels))
    if job.training.objective.meaning == "classes" and 2 * classes > len(labels):
        yield (
            f"labels: there are {classes:,} classes in {len(labels):,} training rows. If they are amounts, train a "
            'regression: training.loss = "squared-error"'
        )


def _about_labels(silo: str, made: Preparation, samples: Samples, settings: Settings) -> Iterator[str]:
    """Warn of columns that nearly are the label."""
    labels, rows = samples.labels.numpy(), samples.features[silo].numpy()
    start = 0
    for column in made.columns:
        width = len(column.outputs)
        inputs, start = rows[:, start : start + width], start + width
        if (share := _tells(column, inputs, labels, settings)) is not None:
            yield (
                f"silo '{silo}', column '{column.name}': it tells the label by itself in training rows ({share}). If "
                f"it is not known before the label is, leave it out with silos.{silo}.exclude"
            )


def _tells(column: Number | Category, inputs: Array, labels: Array, settings: Settings) -> str | None:
    """Say how well a column tells the label, if it nearly is the label."""
    if len(labels) < FEWEST_ROWS or column.constant:
        return None
    if settings.objective.meaning == "numbers":
        return _correlation(column, inputs, labels)
    counts = np.bincount(labels)
    if (counts > 0).sum() < 2 or counts[counts > 0].min() < _FEWEST_OF_CLASS:
        return None
    groups = _groups(column, inputs)
    if groups.max() < min(max(20, 2 * len(counts)), len(labels) // 20):
        share = tells_class(groups, labels)
        return f"{share:.1%} of the rows of a class" if share >= TELLS else None
    if isinstance(column, Number) and len(counts) == 2:
        area = separates(inputs[:, 0], labels == 1)
        return f"AUROC {area:.4f}" if area >= SEPARATES else None
    return None


def _groups(column: Number | Category, inputs: Array) -> Array:
    """Return which rows hold the same in a column."""
    if isinstance(column, Category):
        return np.where(inputs.any(1), inputs.argmax(1) + 1, 0)
    groups: Array = np.unique(inputs[:, 0], return_inverse=True)[1]
    return groups


def _correlation(column: Number | Category, inputs: Array, labels: Array) -> str | None:
    if isinstance(column, Category) or labels.ndim > 1 or labels.std() == 0 or inputs[:, 0].std() == 0:
        return None
    correlation = float(np.corrcoef(inputs[:, 0], labels)[0, 1])
    return f"correlation {correlation:.4f}" if abs(correlation) >= CORRELATES else None
