"""What an evaluation shows against those before it: better weights, or a training that has diverged."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite

from tdcd.data.holdout import Part
from tdcd.engines.base import Measurement, Verdict
from tdcd.errors import JobError, join_names
from tdcd.runs.records import Evaluation
from tdcd.training.settings import Settings

GROWTH = 1e6
"""A training loss that many times the first, and 1, is as good as infinite."""


def judge(measurement: Measurement, history: Sequence[Evaluation], settings: Settings) -> Verdict:
    """Judge an evaluation; measures on some of the rows do not compare with each other.

    Raises:
        JobError: the measure that decides is not defined on the validation samples.
    """
    if describe_trouble(measurement, history):
        return "diverged"
    part = Part.VALIDATION
    if not measurement.measures[part] or not measurement.whole(part):
        return "worse"
    before = [_rank(line.validation, settings) for line in history if part.word not in line.partial]
    return "better" if _rank(measurement.measures[part], settings) < min(before, default=inf) else "worse"


def describe_trouble(measurement: Measurement, history: Sequence[Evaluation]) -> str:
    """Tell if losses are no longer finite, or as good as that."""
    measures = measurement.measures
    for part, result in measures.items():
        if not isfinite(result.get("loss", 0.0)):
            return f"the {'training' if part == Part.TRAIN else part.word} loss is {result['loss']}"
    loss = measures[Part.TRAIN].get("loss", 0.0)
    first = history[0].train.get("loss", loss) if history else loss
    return f"the training loss grew from {first:.4g} to {loss:.4g}" if loss > GROWTH * max(first, 1.0) else ""


def _rank(measures: Mapping[str, float], settings: Settings) -> float:
    """Return the measure that decides which weights are best, the lower the better."""
    name = settings.select_by
    if not measures:
        return inf
    if name not in measures:
        raise JobError(
            f"training.select_by: '{name}' is not defined on the validation samples, as where they are all of one "
            f"class; there is {join_names(measures)}"
        )
    return settings.objective.oriented(name, measures[name])
