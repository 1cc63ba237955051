"""What regressions have in common: numbers as labels, squares of errors."""

import numpy as np
import torch
from torch import Tensor

from tdcd.core.objectives.base import Objective, Sums
from tdcd.errors import ModelError


class Regression(Objective):
    """A loss on E targets a row. Means and squared deviations add up over clients without a loss by rounding."""

    meaning = "numbers"
    metrics = ("loss", "mse", "r2")
    primary = "r2"
    falling = ("loss", "mse")

    def width(self, labels: Tensor) -> int:
        return 1 if labels.ndim == 1 else labels.shape[1]

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        targets = labels.unsqueeze(1) if labels.ndim == 1 else labels
        if targets.ndim != 2 or targets.shape[1] != width:
            raise ModelError(
                f"a regression needs as many outputs as targets: the labels have shape {tuple(labels.shape)}, "
                f"the models end in {width} outputs"
            )
        return targets.to(dtype)

    def probabilities(self, scores: Tensor) -> Tensor:
        raise ModelError("a regression has no probabilities; ask for predictions")

    def predictions(self, scores: Tensor) -> Tensor:
        return scores

    def sums(self, scores: Tensor, labels: Tensor, ranks: Tensor) -> dict[str, Tensor]:
        y = labels.double()
        mean = y.mean(0) if len(y) else y.sum(0)
        error = (y - self.predictions(scores).double()).square().sum(0)
        return {"error": error, "mean": mean, "spread": (y - mean).square().sum(0)}

    def lengths(self, width: int) -> dict[str, int]:
        return {"error": width, "mean": width, "spread": width}

    def why_not(self, sums: Sums, rows: int) -> str:
        return "its squares are negative" if min(sums["error"].min(), sums["spread"].min()) < 0 else ""

    def add(self, one: Sums, two: Sums) -> Sums:
        total = dict(super().add(one, two))
        if total["rows"][0]:
            here, there, rows = one["rows"], two["rows"], total["rows"]
            gap = two["mean"] - one["mean"]
            total["mean"] = one["mean"] + gap * there / rows
            total["spread"] = total["spread"] + gap**2 * here * there / rows
        return total

    def measure(self, sums: Sums, rows: float) -> dict[str, float]:
        error, spread = sums["error"], sums["spread"]
        result = {"mse": float(error.mean()) / rows}
        if rows > 1:
            r2 = np.where(spread > 0, 1 - error / np.where(spread > 0, spread, 1.0), np.where(error == 0, 1.0, 0.0))
            result["r2"] = float(r2.mean())
        return result
