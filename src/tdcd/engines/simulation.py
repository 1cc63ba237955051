"""What simulations have in common: nobody to wait for, all samples at hand, bytes counted by the ledger."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from tdcd.core.ledger import Traffic
from tdcd.core.network import Block
from tdcd.core.rows import Rows
from tdcd.core.state import SiloState, States
from tdcd.core.task import Round
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.engines.base import Judge, Measurement, Training, Verdict


class SimulationEngine(ABC):
    """An engine that has the whole federation in this process. See Engine."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._ledger = training.ledger()

    @property
    @abstractmethod
    def compute_plan(self) -> Mapping[str, str]:
        """How each silo's clients are computed, and why, in a sentence."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know of how it is computed."""
        return ()

    @abstractmethod
    def compute_round(self, states: States, round_: Round) -> dict[str, SiloState]:
        """Compute a round on its mini-batch; return the new states."""

    @abstractmethod
    def scores(self, weights: Mapping[str, Block], features: Mapping[str, Tensor]) -> Tensor:
        """Return the global model's scores (M, E) of any rows, networks in evaluation mode."""

    @final
    def agree(self, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        """Go on after the newest."""
        return max(checkpoints.items(), default=(0, ""))

    @final
    def round(self, states: States, number: int) -> tuple[States, Traffic]:
        """See Engine."""
        round_ = self.training.round(number)
        sent = self._ledger.traffic(self._ledger.counts(round_.batch.numpy()))
        return self.compute_round(states, round_), sent

    @final
    def evaluate(self, states: States, judge: Judge) -> tuple[Measurement, Verdict]:
        """See Engine."""
        parts = self.training.parts
        measures = {part: self._measure(states, parts[part]) if part in parts else {} for part in Part}
        rows = {part: Rows(len(samples), len(samples)) for part, samples in parts.items()}
        result = Measurement(measures, rows)
        return result, judge(result)

    def _measure(self, states: States, samples: Samples) -> Mapping[str, float]:
        if self.training.measure is None:
            raise RuntimeError("a training without metrics cannot be evaluated")
        scores = self.scores({silo: state.weights for silo, state in states.items()}, samples.features)
        if not torch.isfinite(scores).all():
            return {"loss": float("nan")}
        return self.training.measure(scores, samples.labels)

    @final
    def conclude(self, number: int, selected: int) -> bool:  # noqa: ARG002
        """Nobody else is to be waited for."""
        return True
