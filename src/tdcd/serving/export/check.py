"""How far an exported model is from tdcd's own numbers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.errors import ModelError
from tdcd.serving.export.modules import said_of

TOLERANCE = 1e-5
"""How far it may be; of numbers above 1, as a part of them."""


def distance(what: str, shown: Tensor, expected: Tensor) -> float:
    """Return how far an output is from what it should be.

    Raises:
        ModelError: too far.
    """
    if shown.shape != expected.shape:
        raise ModelError(f"{what}: exported as {tuple(shown.shape)}, not {tuple(expected.shape)}; nothing was written")
    one, two = shown.double(), expected.double()
    same = (one == two) | (one.isnan() & two.isnan())
    far = ((one - two).abs() / two.abs().clamp(min=1)).masked_fill(same, 0.0)
    most = float(far.max()) if far.numel() else 0.0
    if not most <= TOLERANCE:
        raise ModelError(
            f"{what}: the exported model is {most:.2g} from what tdcd computes, more than {TOLERANCE:g}; nothing was "
            "written. A network that draws random numbers, or remembers earlier calls, cannot be exported"
        )
    return most


def compare_head(objective: Objective, shown: Mapping[str, Tensor]) -> float:
    """Compare what was made of the scores: by the objective's own functions, from the same scores.

    Raises:
        ModelError: it differs.
    """
    name, *classes = said_of(objective)
    scores = shown["scores"]
    if classes and not torch.equal(shown["class"], objective.predictions(scores)):
        raise ModelError("the exported model predicts other classes of the same scores; nothing was written")
    made = objective.probabilities(scores) if classes else objective.predictions(scores)
    return distance(f"the {name}", shown[name], made)
