"""How a client's weights move: one optimizer a file."""

from collections.abc import Mapping

from tdcd.core.optimizers.adam import Adam
from tdcd.core.optimizers.base import Optimizer
from tdcd.core.optimizers.sgd import SGD

OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}
"""By kind."""

__all__ = ["OPTIMIZERS", "SGD", "Adam", "Optimizer"]
