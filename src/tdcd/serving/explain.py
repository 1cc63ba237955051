"""What silos and columns contribute to predictions.

The score is a sum over silos, so each silo's share of it is its embedding, exactly. Probabilities are not: there,
Shapley values say what a silo contributes, on average over all orders in which silos could be added to the sum.
"""

from collections.abc import Mapping
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.errors import DataError

MOST = 12
"""Silos for which all subsets are gone through."""


def outcome(objective: Objective, scores: Tensor) -> Tensor:
    """Return what is explained: probabilities of classes or, for a regression, the predicted values."""
    if objective.meaning == "numbers":
        return objective.predictions(scores).double()
    return objective.probabilities(scores).double()


def shapley_values(objective: Objective, shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each silo's exact Shapley value for every row's probabilities, or predicted value.

    A subset of silos predicts as a model without the others does: their embeddings are left out of the sum. Values of
    all silos add up to the prediction less that of no silo, at the score 0.

    Args:
        objective: The loss that was trained.
        shares: Each silo's embeddings, (M, E).

    Raises:
        DataError: there are too many silos to go through all subsets.
    """
    silos = sorted(shares)
    if len(silos) > MOST:
        raise DataError(f"Shapley values go through all subsets of at most {MOST} silos, and there are {len(silos)}")
    like = shares[silos[0]]
    values: dict[str, Tensor] = {}
    for size in range(len(silos) + 1):
        for subset in combinations(silos, size):
            scores = sum((shares[silo] for silo in subset), torch.zeros_like(like))
            worth = outcome(objective, scores)
            joined = 1 / (len(silos) * comb(len(silos) - 1, size - 1)) if size else 0.0
            left = 1 / (len(silos) * comb(len(silos) - 1, size)) if size < len(silos) else 0.0
            for silo in silos:
                part = worth * joined if silo in subset else worth * -left
                values[silo] = values[silo] + part if silo in values else part
    return values
