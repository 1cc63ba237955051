"""Predictions as a table: a row for each ID."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.data.arrays import Array


def class_names(classes: Sequence[str], width: int) -> list[str]:
    """Return what the classes 0, 1, 2, … are called, where scores have some width."""
    count = max(2, width)
    return list(classes) if len(classes) == count else [str(number) for number in range(count)]


def prediction_frame(
    objective: Objective, classes: Sequence[str], ids: Array | pl.Series, scores: Tensor
) -> pl.DataFrame:
    """Return IDs, predictions and, of classes, their probabilities.

    Args:
        objective: The loss that was trained.
        classes: What the classes 0, 1, 2, … stand for; nothing where that is not known.
        ids: Of the rows.
        scores: Of the rows, (M, E).
    """
    predicted = objective.predictions(scores).numpy()
    if objective.meaning == "numbers":
        return pl.DataFrame({"id": ids, **numbered("prediction", predicted)})
    names = class_names(classes, scores.shape[1])
    record: dict[str, Array | pl.Series] = {"id": ids, "prediction": pl.Series(names).gather(predicted)}
    return pl.DataFrame(record | per_class("probability of", names, objective.probabilities(scores).numpy()))


def per_class(what: str, names: Sequence[str], values: Array) -> dict[str, Array]:
    """Return a column for each class; a single one, of the second class, where there are values of one."""
    if values.ndim == 1:
        return {f"{what} {names[1]}": values}
    return {f"{what} {name}": values[:, k] for k, name in enumerate(names)}


def share_columns(
    objective: Objective, classes: Sequence[str], scores: Tensor, shares: Mapping[str, Tensor]
) -> dict[str, Array]:
    """Return columns of the scores, and of what each silo contributes to them: they add up."""
    names, width = class_names(classes, scores.shape[1]), scores.shape[1]
    result: dict[str, Array] = {}
    for what, values in {"score": scores, **{f"share of {silo}": z for silo, z in shares.items()}}.items():
        array = values.numpy()
        if width == 1:
            result[what] = array[:, 0]
        elif objective.meaning == "numbers":
            result |= numbered(what, array)
        else:
            result |= {f"{what} for {name}": array[:, k] for k, name in enumerate(names)}
    return result


def numbered(name: str, values: Array) -> dict[str, Array]:
    """Return a column for each target of a regression."""
    if values.ndim == 1 or values.shape[1] == 1:
        return {name: np.ascontiguousarray(values.reshape(-1))}
    return {f"{name} {number}": values[:, number] for number in range(values.shape[1])}
