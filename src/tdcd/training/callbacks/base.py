"""What a callback is called with, and what it can reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from tdcd.core.ledger import Traffic
from tdcd.core.usage import ClusterUsage
from tdcd.errors import JobError
from tdcd.runs.records import Evaluation, Outcome
from tdcd.training.clients import Clients
from tdcd.training.settings import Settings
from tdcd.training.simulation import Simulation
from tdcd.training.state import State


@dataclass(frozen=True)
class Stop:
    """The reply of a callback that ends the training after the round that is over."""

    reason: str


@dataclass(frozen=True)
class Start:
    """A training that starts, or goes on."""

    done: int
    """The round that it goes on after."""
    settings: Settings
    compute_plan: Mapping[str, str]
    """How each silo's clients are computed, and why, in a sentence."""
    history: Sequence[Evaluation] = ()
    """The evaluations so far."""


@dataclass(frozen=True)
class FinishedRound:
    """A round that is over."""

    before: State
    after: State
    traffic: Traffic
    """What it has sent."""
    rate: float
    """η, of silos without a rate of their own."""
    simulation: Simulation | None = field(default=None, repr=False)
    """What computed it; none at a real site."""

    @property
    def number(self) -> int:
        """1, 2, …, R."""
        return self.after.done

    @property
    def usage(self) -> ClusterUsage | None:
        """The cluster that computes, and where the time of its rounds went so far; elsewhere nothing."""
        return self.simulation.engine.usage if self.simulation else None

    @cached_property
    def batch(self) -> Tensor:
        """The sample numbers of the mini-batch, ascending: places in the federation's ``ids``."""
        return self._simulated("the mini-batch").training.batch(self.number)

    @cached_property
    def clients(self) -> Clients:
        """Each client's loss, gradient norm and drift.

        They cost about two rounds on the "loop" path, and the memory for the weights of all clients of a silo; they
        are computed when first asked for, and change nothing of the training.
        """
        return self._simulated("each client's numbers").clients(self.before)

    def _simulated(self, what: str) -> Simulation:
        if self.simulation is None:
            raise JobError(f"round {self.number}: only a simulation knows {what}; a hub has no rows")
        return self.simulation


class Callback:
    """Follows a training, and may stop it. Override what you need.

    Errors that it raises end the training, once a checkpoint is written, and reach the caller as they are. At a real
    site a callback can watch, and not stop: all hubs must end together.
    """

    def started(self, start: Start) -> Stop | None:
        """Training starts, or goes on after a round that has been before."""

    def after_round(self, finished: FinishedRound) -> Stop | None:
        """A round is over, and was evaluated if that was due."""

    def after_evaluation(self, evaluation: Evaluation) -> Stop | None:
        """The global model was evaluated."""

    def received(self, silo: str, samples: Tensor, gradients: Tensor) -> None:
        """Silo ``silo``, which has no labels, received logit gradients (B, E) of samples (B,), in a simulation.

        Where a callback overrides this, every gradient that would travel is computed on its own, which takes longer
        and agrees to rounding.
        """

    def noted(self, note: str) -> None:
        """Something that the user should know."""

    def ended(self, outcome: Outcome | None) -> None:
        """The training has ended; without an outcome, by an error."""
