"""A silo's tables as the rows of its network."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tdcd.data.arrays import Array
from tdcd.data.preparation import Preparation, Survey, fit
from tdcd.data.splits import Part
from tdcd.data.tables import Batch, Table

Reading = Callable[[Table], None]
"""Is called with the file that is being read."""
Places = Mapping[str, Array]
"""For each client, the place of every row of its file among the common IDs, or −1."""


def fit_tables(
    tables: Sequence[Table], columns: Sequence[str], places: Places, parts: Array, reading: Reading
) -> Preparation:
    """Fix a silo's preparation by what its clients tell of their training rows.

    Args:
        tables: The clients' files.
        columns: The columns of features.
        places: Where their rows stand among the common IDs.
        parts: The part of each of the common IDs.
        reading: Is called with every file.
    """
    surveys = []
    for table in tables:
        reading(table)
        surveys.append(survey_table(table, columns, places[table.client], parts))
    return fit(surveys, columns, tables[0].settings.rare)


def survey_table(table: Table, columns: Sequence[str], places: Array, parts: Array) -> Survey:
    """Look at the training rows of one client."""
    survey = Survey(table, columns)
    for batch, own in _placed(table, columns, places):
        survey.look(batch, (own >= 0) & (parts[own] == Part.TRAIN))
    return survey


def encode_tables(
    tables: Sequence[Table],
    preparation: Preparation,
    places: Places,
    parts: Array,
    reading: Reading,
    unknown: dict[str, Counter[str]] | None = None,
) -> dict[Part, Array]:
    """Return the numbers of a silo's rows: for every part those of its IDs, in ascending order.

    Rows go straight to their place, a batch at a time, so that nothing of the whole is in memory twice. Categories
    without a column of their own are counted in ``unknown``, by column, if that is wanted.
    """
    width = len(preparation.outputs)
    rank = np.empty(len(parts), dtype=np.int64)
    out = {}
    for part in Part:
        mine = np.flatnonzero(parts == part)
        rank[mine] = np.arange(len(mine))
        if len(mine):
            out[part] = np.empty((len(mine), width), dtype=np.float32)
    names = [column.name for column in preparation.columns]
    for table in tables:
        reading(table)
        for batch, own in _placed(table, names, places[table.client]):
            rows = np.flatnonzero(own >= 0)
            numbers, samples = preparation.apply(batch, rows, unknown), own[rows]
            for part, arrays in out.items():
                mine = parts[samples] == part
                arrays[rank[samples[mine]]] = numbers[mine]
    return out


def _placed(table: Table, columns: Sequence[str], places: Array) -> Iterator[tuple[Batch, Array]]:
    """Read a table, with the place of every row among the common IDs, or -1."""
    for column in columns:
        table.need(column, "columns")
    for batch in table.batches(columns, typed=True):
        yield batch, places[batch.first - 1 : batch.first - 1 + batch.frame.height]
