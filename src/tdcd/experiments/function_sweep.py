"""A sweep over a Python function: every combination of a grid, with every seed, in this process."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tdcd.data.arrays import describe_value
from tdcd.errors import DivergedError, JobError, join_names
from tdcd.files import append, write_atomically
from tdcd.runs.digests import seal, unseal
from tdcd.runs.records import read_text
from tdcd.training.result import Result

DIVERGED = "diverged"
"""The column that says whether a call has ended so."""


def sweep_function(
    train_one: Callable[..., Result | Mapping[str, Any]],
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (2021,),
    file: Path | str | None = None,
) -> pl.DataFrame:
    """Call a function with every combination of a grid and every seed; return a row for each.

    Args:
        train_one: Is called as ``train_one(seed=…, NAME=value, …)`` and returns a result, whose kept evaluation is the
            row, or numbers by name.
        grid: Values by the names of the function's arguments: numbers, texts, or lists of them.
        seeds: Each combination is run with each.
        file: Where a line is written for each call that has ended. A sweep that was stopped goes on with it, and one
            that has grown calls the function for what is new only. It does not know whether the function has changed.

    Raises:
        JobError: the grid cannot be written, or the function returns something else.
        RunError: the file is damaged.
    """
    _check_grid(grid)
    seeds = _values("seeds", seeds)
    path = Path(file) if file is not None else None
    done = _read(path) if path else {}
    rows = []
    for *values, seed in product(*(_values(f"grid: '{name}'", values) for name, values in grid.items()), seeds):
        given = {**dict(zip(grid, values, strict=True)), "seed": seed}
        key = _key(given)
        if key not in done:
            done[key] = _measure(train_one, given)
            if path:
                append(path, json.dumps(seal({"given": given, "measured": done[key]})))
        rows.append(given | done[key])
    return pl.DataFrame(rows, infer_schema_length=None)


def _check_grid(grid: object) -> None:
    if not isinstance(grid, Mapping):
        raise JobError(f"grid: values by the names of arguments are wanted, not {describe_value(grid)}")
    if "seed" in grid:
        raise JobError("grid: 'seed' goes by its own name: sweep_function(…, seeds=[1, 2, 3])")
    if DIVERGED in grid:
        raise JobError(f"grid: '{DIVERGED}' is a column of what is measured; call the argument otherwise")


def _values(what: str, values: Any) -> list[Any]:
    """Return values to try, those of numpy as Python's."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise JobError(f"{what}: a list of values is wanted, not {describe_value(values)}; of one value: [{values!r}]")
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _measure(train_one: Callable[..., Result | Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a call measures; of a training that diverges, only that."""
    try:
        result = train_one(**given)
    except DivergedError:
        return {DIVERGED: True}
    if not isinstance(result, Result | Mapping):
        raise JobError(f"the function returned {type(result).__name__}; it should return a result, or numbers by name")
    row = result.kept.as_row() if isinstance(result, Result) else dict(result)
    if both := sorted(given.keys() & row.keys()):
        raise JobError(f"grid: {join_names(both)} is the name of something measured; call the argument otherwise")
    _key(row)
    return {DIVERGED: False} | row


def _key(values: Mapping[str, Any]) -> str:
    try:
        return json.dumps(values, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise JobError(f"a sweep writes numbers, texts and lists of them: {error}; give the others a name") from error


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Return what was measured before; a last line that was cut off does not count."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = read_text(path).split("\n")[:-1] if path.exists() else []
    records = [unseal(_parse(line), f"{path}: line {number}") for number, line in enumerate(lines, start=1)]
    write_atomically(path, "".join(f"{line}\n" for line in lines))
    return {_key(record["given"]): record["measured"] for record in records}


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # unseal says that it is damaged
