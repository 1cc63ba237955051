"""Stopping a training that no longer gains."""

from collections.abc import Sequence

import numpy as np

from tdcd.data.arrays import describe_value
from tdcd.data.holdout import Part
from tdcd.errors import JobError
from tdcd.runs.records import Evaluation
from tdcd.training.callbacks.base import Callback, Start, Stop


class EarlyStopping(Callback):
    """Stops after so many evaluations without better weights: what ``patience`` in the settings does."""

    def __init__(self, patience: int) -> None:
        if not isinstance(patience, int | np.integer) or patience < 1:
            raise JobError(
                f"EarlyStopping: a patience of at least 1 evaluation is wanted, not {describe_value(patience)}"
            )
        self.patience = patience
        self._history: list[Evaluation] = []
        self._measure = "loss"

    def started(self, start: Start) -> Stop | None:
        """See Callback."""
        self._history, self._measure = list(start.history), start.settings.select_by
        return self._decide()

    def after_evaluation(self, evaluation: Evaluation) -> Stop | None:
        """See Callback."""
        self._history.append(evaluation)
        return self._decide()

    def _decide(self) -> Stop | None:
        if not stalled(self._history, self.patience):
            return None
        return Stop(f"no better validation {self._measure} in {self.patience} evaluations")


def stalled(history: Sequence[Evaluation], patience: int) -> bool:
    """Tell whether so many evaluations have passed since the best one; partial ones decide nothing."""
    whole = [line for line in history if Part.VALIDATION.word not in line.partial]
    better = [number for number, line in enumerate(whole) if line.better]
    return bool(whole) and len(whole) - 1 - max(better, default=0) >= patience
