"""How much silos and columns matter: a figure and a table for pages."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tdcd.reports.figures import Bars
from tdcd.reports.words import Table, count, label, number
from tdcd.runs.importance import Importance, Importances

MOST = 10
"""Columns that are shown, and classes."""
LONGEST = 28
"""Letters of a name in the figure."""


def importance_view(record: Importances) -> Mapping[str, Any]:
    """Return what the template of the section needs."""
    silos, columns = record.silos(), record.sorted()
    shown = [*silos, *columns[:MOST]]
    hidden = len(columns) - MOST
    return {
        "record": record,
        "metric": label(record.metric),
        "score": number(record.score),
        "repeats": count(record.repeats, "repeat"),
        "figure": Markup(importance_bars(record).svg()) if shown else "",  # noqa: S704
        "table": _table(record, shown),
        "more": count(hidden, "column") if hidden > 0 else "",
    }


def importance_bars(record: Importances) -> Bars:
    """Return the figure of all silos and of the columns that matter most."""
    silos, columns = record.silos(), record.sorted()[:MOST]
    parts = {
        "whole silos": [one.mean for one in silos] + [0.0] * len(columns),
        "single columns": [0.0] * len(silos) + [one.mean for one in columns],
    }
    names = [_shortened(_name(one)) for one in (*silos, *columns)]
    return Bars(
        "importance", "", _change(record), names, {name: values for name, values in parts.items() if any(values)}
    )


def _table(record: Importances, shown: list[Importance]) -> Table:
    classes = list(dict.fromkeys(name for one in record.entries for name in one.classes))[:MOST]
    heads = [f"{label('auroc')} of {name}" for name in classes]
    rows = []
    for one in shown:
        by_class = [_signed(one.classes.get(name)) for name in classes]
        rows.append((_name(one), [_signed(one.mean), f"{one.deviation:.4f}", *by_class]))
    return [_change(record), "±", *heads], rows


def _change(record: Importances) -> str:
    return "rise of the loss" if record.metric == "loss" else f"fall of {label(record.metric)}"


def _name(one: Importance) -> str:
    return f"{one.silo}: {one.column}" if one.column else f"{one.silo}, all columns"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
