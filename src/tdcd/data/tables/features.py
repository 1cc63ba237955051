"""Which columns of a silo's tables are features."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from tdcd.data.tables.reader import TableHead
from tdcd.errors import DataError, join_names

_INDEX = re.compile(r"__index_level_\d+__|")
"""What data frames call their index in Parquet files: nothing that a person would measure."""


def feature_columns(tables: Sequence[TableHead], also: Mapping[str, str], *, none: bool = False) -> list[str]:
    """Return a silo's columns of features, if any, which all of its clients must have.

    Args:
        tables: The silo's files.
        also: Columns that are no features, and what the job calls them.
        none: Whether there may be none.
    """
    first, settings = tables[0], tables[0].settings
    named = {"columns": settings.columns or (), "categories": settings.categories, "exclude": settings.exclude}
    for key, wanted in named.items():
        for column in wanted:
            if column in also and key != "exclude":
                raise DataError(f"silos.{first.silo}.{key}: '{column}' is {also[column]}, not a feature")
            for table in tables:
                table.need(column, key)
    for column in settings.aggregated:
        for table in tables:
            table.need(column, "aggregate")
    result = _features(tables, also, none=none)
    if settings.aggregate and (unsaid := [column for column in result if not settings.has_rule(column)]):
        raise DataError(
            f"silos.{first.silo}.aggregate: say how rows with the same ID become one in {join_names(unsaid)}, or in "
            'all other columns: "*" = "mean"'
        )
    return result


def _features(tables: Sequence[TableHead], also: Mapping[str, str], *, none: bool) -> list[str]:
    first, settings = tables[0], tables[0].settings
    if settings.columns is not None:
        if settings.exclude:
            raise DataError(f"silos.{first.silo}.exclude: columns says what is used; leave one of them out")
        doubles = [column for column, count in Counter(settings.columns).items() if count > 1]
        if doubles:
            raise DataError(f"silos.{first.silo}.columns: named twice: {join_names(doubles)}")
        return list(settings.columns)
    also = {**also, **dict.fromkeys(settings.exclude, "excluded")}
    result = [column for column in first.header if column not in also]
    for table in tables[1:]:
        other = [column for column in table.header if column not in also]
        if set(other) != set(result):
            lacks, more = sorted(set(result) - set(other)), sorted(set(other) - set(result))
            parts = [f"it lacks {join_names(lacks)}"] * bool(lacks) + [f"it has {join_names(more)}"] * bool(more)
            raise DataError(
                f"{table}: its columns are not those of client '{first.client}': {' and '.join(parts)}. Clients of a "
                f"silo need the same columns; name those to use in silos.{first.silo}.columns"
            )
    if strange := [column for column in result if _INDEX.fullmatch(column)]:
        raise DataError(
            f"{first}: the column '{strange[0]}' is the index of a data frame; leave it out with "
            f"silos.{first.silo}.exclude, or write the file without it"
        )
    if not result and not none:
        raise DataError(f"{first}: it has no columns of features")
    order = min(tables, key=lambda table: table.client).header  # the same one wherever and however clients are listed
    return [column for column in order if column in set(result)]
