"""What a federation minimises: one objective a file."""

from collections.abc import Mapping

from tdcd.core.objectives.base import Loss, Meaning, Objective, Tally
from tdcd.core.objectives.binary_cross_entropy import BinaryCrossEntropy
from tdcd.core.objectives.cross_entropy import CrossEntropy
from tdcd.core.objectives.huber import Huber
from tdcd.core.objectives.poisson import Poisson
from tdcd.core.objectives.squared_error import SquaredError

OBJECTIVES: Mapping[str, type[Objective]] = {
    "cross-entropy": CrossEntropy,
    "binary-cross-entropy": BinaryCrossEntropy,
    "squared-error": SquaredError,
    "huber": Huber,
    "poisson": Poisson,
}
"""By kind."""

__all__ = [
    "OBJECTIVES",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Huber",
    "Loss",
    "Meaning",
    "Objective",
    "Poisson",
    "SquaredError",
    "Tally",
]
