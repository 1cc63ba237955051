"""How numbers and names are written for people."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from statistics import stdev
from typing import Any

from tdcd.core.objectives import OBJECTIVES
from tdcd.runs.reader import RunRecord

LABELS = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "auprc_error": "error of AUPRC",
    "null_loss": "loss of the class frequencies",
    "f1": "F1",
    "top5": "top-5 accuracy",
    "mse": "mean squared error",
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "RMSE",
    "gini": "Gini",
    "ks": "KS",
    "brier": "Brier score",
    "brier_of_share": "Brier score of the mean",
    "calibration_error": "calibration error",
    "confidence_error": "calibration error",
}
PREFERRED = {
    "cross-entropy": "accuracy",
    "binary-cross-entropy": "auroc",
    "squared-error": "r2",
    "huber": "r2",
    "poisson": "r2",
}
"""The metric that stands for all, by the loss."""
WAYS = {"hub_to_client": "hubs → clients", "client_to_hub": "clients → hubs", "hub_to_hub": "hubs → hubs"}

PLUS_MINUS = "± is the standard deviation over {} (n − 1)"
"""To be said wherever ``about`` is used, with what it is over: seeds, folds or splits."""

Table = tuple[list[str], list[tuple[str, list[str]]]]
"""A header, and rows of a name and cells."""


def label(metric: str) -> str:
    """Return a metric's name as people write it."""
    return LABELS.get(metric, metric.replace("_", " "))


def metric_of(loss: str, measured: Collection[str]) -> str:
    """Return the metric that stands for all where nobody says which; the loss where there is none."""
    preferred = OBJECTIVES[loss].primary if loss in OBJECTIVES else ""
    return preferred if preferred in measured else "loss"


def speak(variant: str) -> str:
    """Return what a variant is called."""
    return "one tier" if variant == "one-tier" else variant


def number(value: float | None) -> str:
    """Write a measure."""
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}" if abs(value) < 1e6 else f"{value:.1e}"


def rounds_of(run: RunRecord) -> str:
    """Write how many rounds a run has, and how many it should have where these are more."""
    done, planned = run.history[-1].round if run.history else 0, int(run.job["training"].get("rounds", 0))
    return f"{done:,} of {planned:,}" if done < planned else f"{done:,}"


def count(number: int, noun: str) -> str:
    """Write a number and what it counts: "1 client", "1,200 clients"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def about(values: Sequence[float]) -> str:
    """Write the mean of some measures ± their standard deviation. See ``PLUS_MINUS``."""
    if not values:
        return "–"
    return number(values[0]) if len(values) == 1 else f"{number(mean(values))} ± {number(stdev(values))}"


def time(value: float) -> str:
    """Write units of time."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(count: float) -> str:
    """Write a number of bytes."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Write wall time."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def format_setting(value: Any) -> str:
    """Write a setting."""
    if isinstance(value, Mapping):
        return " ".join(format_setting(part) for part in value.values())
    return (", ".join(map(format_setting, value)) or "none") if isinstance(value, list) else str(value)
