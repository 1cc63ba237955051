"""A loss of one's own: quantile regression, here of the third quartile.

python examples/own_loss.py
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

import tdcd
from tdcd.core.objectives.regression import Regression


@dataclass(frozen=True)
class Quantile(Regression):
    """Weighs errors above and below differently. The gradient is derived by torch."""

    quantile: float = 0.75

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return a number for each row: scores and labels (…, E) to (…)."""
        error = labels - scores
        return torch.maximum(self.quantile * error, (self.quantile - 1) * error).mean(-1)


rows, labels = load_diabetes(return_X_y=True)
rows, labels = rows / rows.std(0), (labels - labels.mean()) / labels.std()
silos = [
    tdcd.Silo("clinic", rows[:, :5], [range(200), range(200, 442)]),
    tdcd.Silo("laboratory", rows[:, 5:], [range(0, 442, 2), range(1, 442, 2)]),
]
federation = tdcd.Federation.from_silos(silos, labels)
settings = tdcd.Settings(loss="squared-error", rounds=200, local_steps=5, batch_size=200, rate=0.05)
for objective in (tdcd.objectives.SquaredError(), Quantile()):
    result = tdcd.train(federation, tdcd.models.Linear(), settings, objective=objective)
    predicted = np.asarray(result.predict({"clinic": rows[:, :5], "laboratory": rows[:, 5:]})).ravel()
    print(f"{objective}: {np.mean(labels <= predicted):.2f} of the labels are below their prediction")
