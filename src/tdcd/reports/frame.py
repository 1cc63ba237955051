"""Runs as one table, a row for every evaluation of every run, and what is measured in them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from tdcd.reports.words import WAYS, label
from tdcd.runs.reader import RunRecord
from tdcd.runs.records import PARTS

LOWER = {"loss", "mse"}
"""Measures that are better the lower they are."""
_ALWAYS = {
    "run": pl.String,
    "status": pl.String,
    "seed": pl.String,
    "place": pl.Int64,
    "kept": pl.Boolean,
    "round": pl.Int64,
    "iteration": pl.Int64,
    "seconds": pl.Float64,
    "partial": pl.String,
    **{f"rows_{part}": pl.Int64 for part in PARTS},
    **dict.fromkeys(WAYS, pl.Int64),
}


def evaluation_frame(runs: Mapping[str, RunRecord]) -> pl.DataFrame:
    """Return every evaluation of some runs, in order.

    Columns: ``run``, its name; ``status`` and ``seed`` of the run; ``place`` in its history; ``kept``, whether it is
    that of the selected weights; ``round``, ``iteration``, ``seconds``; the bytes sent so far, by direction; and
    ``PART_NAME`` for everything measured, null where it is undefined. ``rows_PART`` is how many rows of a part were
    measured; ``partial`` names the parts of which some were absent.
    """
    rows = [
        {
            "run": name,
            "status": run.status,
            "seed": str(run.job["training"]["seed"]),  # it may be larger than any type of numbers
            "place": place,
            "kept": line is kept,
            **line.as_row(),
            **(dict.fromkeys(WAYS, 0) if run.in_one_place else {}),
        }
        for name, run in runs.items()
        for kept in ([run.kept] if run.history else [])
        for place, line in enumerate(run.history)
    ]
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides=_ALWAYS) if rows else pl.DataFrame({}, _ALWAYS)


@dataclass(frozen=True)
class Measure:
    """Something that evaluations measure on a part of the data."""

    part: str
    """"train", "validation" or "test"."""
    name: str

    @property
    def lower(self) -> bool:
        """Tell whether it is better the lower it is."""
        return self.name in LOWER

    @property
    def label(self) -> str:
        """What people call it."""
        part = "training" if self.part == "train" else self.part
        return f"{part} {label(self.name)}"

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return evaluations with this measure as ``value``, null where it is undefined.

        ``whole`` tells whether all rows were measured.
        """
        column = f"{self.part}_{self.name}"
        return frame.with_columns(
            value=column if column in frame.columns else pl.lit(None, pl.Float64),
            whole=~pl.col("partial").str.split(" ").list.contains(self.part),
        )

    def reaches(self, target: float) -> pl.Expr:
        """Tell whether ``value`` is at least as good as a target."""
        reached = pl.col("value") <= target if self.lower else pl.col("value") >= target
        return reached & pl.col("value").is_not_nan()

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return min(values) if self.lower else max(values)


LOSS = Measure("train", "loss")
