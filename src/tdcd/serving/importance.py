"""How much worse a model is without what a column tells: permutation importance, by silo and column.

A column's values are dealt anew among the rows, which breaks what it tells of the label and nothing else. Only the
embeddings of its silo change, so the others are computed once. The permutations are those of scikit-learn for the same
seed: the numbers are the same as for one model on the joined rows.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tdcd.core.streams import borrow_stream
from tdcd.core.task import sum_embeddings
from tdcd.errors import JobError, nearest
from tdcd.runs.importance import ALL, Importance, Importances
from tdcd.runs.records import SiloRecord
from tdcd.training.metrics import class_areas, measure
from tdcd.training.result import Result

Inputs = Mapping[str, Sequence[int]]
"""The inputs of the network that each column becomes, by its name."""


def columns_of_rows(silo: SiloRecord) -> Inputs:
    """Return the columns of a silo that was given as arrays: the last axis of its rows; none of pictures."""
    if not 1 <= len(silo.row_shape) <= 2:
        return {}
    count = silo.row_shape[-1]
    names = silo.frame_columns if len(silo.frame_columns) == count else [str(number) for number in range(count)]
    return {name: [place] for place, name in enumerate(names)}


def permutation_importance(
    result: Result,
    rows: Mapping[str, Tensor],
    labels: Tensor,
    columns: Mapping[str, Inputs],
    *,
    metric: str | None = None,
    repeats: int = 5,
    seed: int = 0,
    classes: Sequence[str] = (),
    on_progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> Importances:
    """Measure how much each column and each silo matters.

    Args:
        result: The model.
        rows: Of each silo, prepared: (M, …).
        labels: Of these rows, as the data has them.
        columns: The columns of each silo.
        metric: What is measured; default: the first metric of the loss, or the loss.
        repeats: How often each column is dealt anew.
        seed: Decides on how.
        classes: The names of the classes.
        on_progress: Is called with how many columns of how many are done.

    Raises:
        JobError: the metric is not one of these labels.
    """
    objective = result.objective
    prepared = objective.prepare(labels, result.description.embedding, result.settings.dtype)
    with borrow_stream(torch.device("cpu")):
        shares = {silo: result.embed(silo, rows[silo]) for silo in result.networks}
    scores = sum_embeddings(shares)
    known = measure(objective, scores, prepared)
    name = metric or (objective.primary if objective.primary in known else "loss")
    if name not in known:
        raise JobError(f"metric: '{name}' is not measured on these rows{nearest(name, known)}")
    by_class = class_areas(objective, scores, prepared)
    names = classes if len(classes) == len(by_class) else [str(k) for k in range(len(by_class))]
    draws = np.random.RandomState(seed).randint(np.iinfo(np.int32).max + 1)
    sign = -1.0 if name == "loss" else 1.0

    def importance(silo: str, column: str, inputs: Sequence[int] | None) -> Importance:
        generator, order = np.random.RandomState(draws), np.arange(len(scores))
        others = sum_embeddings({k: z for k, z in shares.items() if k != silo}) if len(shares) > 1 else None
        changed = rows[silo].clone()
        falls, class_falls = [], []
        for _ in range(repeats):
            generator.shuffle(order)
            moved = torch.from_numpy(order)
            if inputs is None:
                changed = changed[moved]
            else:
                changed[..., list(inputs)] = changed[moved][..., list(inputs)]
            own = result.embed(silo, changed)
            z = own if others is None else own + others
            falls.append(sign * (known[name] - measure(objective, z, prepared)[name]))
            class_falls.append(np.subtract(by_class, class_areas(objective, z, prepared)))
        means = np.mean(class_falls, axis=0).tolist()
        return Importance(
            silo, column, float(np.mean(falls)), float(np.std(falls)), dict(zip(names, means, strict=True))
        )

    todo: list[tuple[str, str, Sequence[int] | None]] = []
    for silo in result.networks:
        todo += [(silo, ALL, None), *((silo, column, inputs) for column, inputs in columns.get(silo, {}).items())]
    entries = []
    with borrow_stream(torch.device("cpu")):
        for done, one in enumerate(todo, start=1):
            entries.append(importance(*one))
            on_progress(done, len(todo))
    return Importances(name, known[name], len(scores), repeats, tuple(entries))
