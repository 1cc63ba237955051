"""What simulations have in common: nobody to wait for, all samples at hand, bytes counted by the ledger."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from tdcd.core.codecs import Codecs
from tdcd.core.gradients import PrivateLabels
from tdcd.core.ledger import Traffic
from tdcd.core.network import Block
from tdcd.core.rows import Rows
from tdcd.core.script import Plan, plan_rounds
from tdcd.core.state import SiloState, States
from tdcd.core.task import Round, SiloTask
from tdcd.core.usage import ClusterUsage
from tdcd.data.holdout import Part
from tdcd.engines.base import Judge, Measure, Measurement, Training, Verdict


def simulated(training: Training, *, recorded: bool = False) -> tuple[Plan, Mapping[str, SiloTask]]:
    """Return the roles of the silos as a simulation computes them, and its tasks.

    Where private labels yield the numbers of shared ones, each gradient is computed where it is used, and all of a
    client's steps at once. What would travel is the ledger's concern, which counts it all the same.

    Args:
        training: What to compute.
        recorded: Whether somebody looks at logit gradients: then these are sent.
    """
    plan, tasks = training.plan, training.tasks
    if training.private and not recorded and yields_shared_numbers(training.private, training.codecs):
        labels = training.private.labels
        plan = plan_rounds(training.steps, label_only=set(plan.silos) - set(tasks))
        tasks = {silo: replace(task, labels=labels) for silo, task in tasks.items()}
    return plan, {silo: replace(task, remote_labels=silo in plan.requests) for silo, task in tasks.items()}


def yields_shared_numbers(private: PrivateLabels, codecs: Codecs) -> bool:
    """Tell whether private labels train what shared ones do: logit gradients at every step, as they are."""
    return private.sharing == "exact" and private.privatizer is None and codecs.plain_rows


class SimulationEngine(ABC):
    """An engine that has the whole federation in this process. See Engine."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._ledger = training.ledger()
        self.note: Callable[[str], object] = lambda _: None
        """Takes what happens in a round that the user should know."""

    @property
    def usage(self) -> ClusterUsage | None:
        """The cluster that computes, and where the time of its rounds goes; nothing where there is none."""
        return None

    def close(self) -> None:  # noqa: B027
        """Give back what is held elsewhere."""

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
        measures = {part: self.measure(states, part) if part in parts else {} for part in Part}
        rows = {part: Rows(len(samples), len(samples)) for part, samples in parts.items()}
        result = Measurement(measures, rows)
        return result, judge(result)

    def measure(self, states: States, part: Part) -> Mapping[str, float]:
        """Return the loss and metrics of the global model on a part of the samples."""
        weights = {silo: state.weights for silo, state in states.items()}
        return measure_scores(self.training.measure, self.part_scores(weights, part), self.training.parts[part].labels)

    def part_scores(self, weights: Mapping[str, Block], part: Part) -> Tensor:
        """Return the global model's scores (M, E) of a part of the samples."""
        return self.scores(weights, self.training.parts[part].features)

    @final
    def conclude(self, number: int, selected: int) -> bool:  # noqa: ARG002
        """Nobody else is to be waited for."""
        return True


def measure_scores(measure: Measure | None, scores: Tensor, labels: Tensor) -> Mapping[str, float]:
    """Return the loss and metrics of scores (M, E)."""
    if measure is None:
        raise RuntimeError("a training without metrics cannot be evaluated")
    return measure(scores, labels) if torch.isfinite(scores).all() else {"loss": float("nan")}
