"""What every engine is given, and what the training loop asks of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, Protocol

from torch import Tensor

from tdcd.core.aggregators import HubRound
from tdcd.core.codecs import Codecs, row_size
from tdcd.core.gradients import PrivateLabels
from tdcd.core.ledger import NUMBER, Ledger, Traffic
from tdcd.core.network import Block
from tdcd.core.rows import Rows
from tdcd.core.sampling import Mask
from tdcd.core.script import Plan, plan_rounds
from tdcd.core.silo_dropout import SiloDropout
from tdcd.core.state import SiloState, States
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Roster
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples

Measures = Mapping[Part, Mapping[str, float]]
"""Loss and metrics on every part of the samples; empty where there are none, or where they are not known here."""

Verdict = Literal["better", "worse", "diverged"]
"""What an evaluation shows: the best weights so far, or not, or that there is nothing left to train."""


@dataclass(frozen=True)
class Measurement:
    """What an evaluation measured."""

    measures: Measures
    rows: Mapping[Part, Rows]
    """Of each part that has samples: how many were measured. All hubs know this."""

    def whole(self, part: Part) -> bool:
        """Tell whether all rows of a part were measured."""
        rows = self.rows.get(part)
        return rows is None or rows.measured == rows.every


Judge = Callable[[Measurement], Verdict]
Measure = Callable[[Tensor, Tensor], Mapping[str, float]]
"""Loss and metrics of scores (M, E) against prepared labels."""


class Engine(Protocol):
    """Computes a training: a whole federation in a simulation, one hub's part of it at a real site."""

    @property
    def compute_plan(self) -> Mapping[str, str]:
        """How each silo's clients are computed, and why, in a sentence."""

    def agree(self, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        """Return the round that all go on after, and the lineage of what follows.

        ``checkpoints`` are the rounds that this process could go on after, with the lineage of each; the beginning is
        one of them once the run has begun. A lineage is a simulation's own affair, which may leave it empty.
        """

    def round(self, states: States, number: int) -> tuple[States, Traffic]:
        """Compute a round; return the new states and what was sent. Nothing given is changed.

        Raises:
            Diverged: the weights of some silos are no longer finite.
            RewoundError: all go back to an earlier round.
        """

    def evaluate(self, states: States, judge: Judge) -> tuple[Measurement, Verdict]:
        """Measure the global model where the labels are; return what is known of it, and the judge's verdict there."""

    def conclude(self, number: int, selected: int) -> bool:
        """Wait until all have ended after round ``number``, with weights of round ``selected``; tell whether all have.

        Raises:
            RewoundError: all go back to an earlier round.
        """


class RewoundError(Exception):
    """All hubs go back to a round that each of them has, because one of them was started again."""


@dataclass(frozen=True)
class Training:
    """All that a simulation computes: the same for every engine."""

    tasks: Mapping[str, SiloTask]
    """For every silo that has features."""
    batch: Callable[[int], Tensor]
    """The mini-batch of a round, ascending sample numbers."""
    rate: Callable[[int], float]
    """η of a round."""
    rates: Mapping[str, Callable[[int], float]] = field(default_factory=dict)
    """The same for silos that have a rate of their own."""
    rosters: Mapping[str, Roster] = field(default_factory=dict)
    """Of every silo, also one that has labels only; default: those of the tasks."""
    private: PrivateLabels | None = None
    """The labels, if one silo holds them and others need logit gradients."""
    parts: Mapping[Part, Samples] = field(default_factory=dict)
    """What to evaluate on."""
    measure: Measure | None = None
    codecs: Codecs = field(default_factory=Codecs)
    """What messages go through."""
    drawn: Callable[[int], Mapping[str, Mask]] | None = None
    """The clients of each silo that take part in a round, where not all do."""
    silo_dropout: SiloDropout = field(default_factory=SiloDropout)
    """Leaves embeddings out of other silos' sums."""

    @property
    def silos(self) -> Mapping[str, Roster]:
        """The rosters of all silos."""
        return self.rosters or {silo: task.roster for silo, task in self.tasks.items()}

    @property
    def steps(self) -> dict[str, int]:
        """Q of each silo that has features."""
        return {silo: task.steps.count for silo, task in self.tasks.items()}

    @property
    def plan(self) -> Plan:
        """The roles of the silos in a round."""
        label_only = set(self.silos) - set(self.tasks)
        if self.private is None:
            return plan_rounds(self.steps, label_only=label_only)
        return plan_rounds(self.steps, self.private.sharing, self.private.silo, label_only | {self.private.silo})

    def ledger(self) -> Ledger:
        """Return what counts the bytes of a round."""
        some = next(iter(self.tasks.values()))
        blocks = {}
        for silo, task in self.tasks.items():
            sent = task.sent(SiloState(task.network.initial()))
            blocks[silo] = block_bytes(self.codecs.encode_block(sent, task.network.trainable))
        row, message = row_size(self.codecs.rows, some.width, some.network.dtype)
        return Ledger(
            plan=self.plan,
            steps=self.steps,
            owners={silo: roster.owner.numpy() for silo, roster in self.silos.items()},
            clients={silo: len(roster.clients) for silo, roster in self.silos.items()},
            blocks=blocks,
            row=row,
            message=message,
            number=NUMBER if self.drawn else 0,
        )

    def round(self, number: int) -> Round:
        """Return what is known of a round."""
        rates = {silo: rate(number) for silo, rate in self.rates.items()}
        return Round(number, self.batch(number), self.rate(number), rates)

    def hub(self, silo: str) -> "HubTraining":
        """Return what a silo's hub knows of the training."""
        task = self.tasks.get(silo)
        return HubTraining(
            silo,
            task,
            task.roster if task else self.silos[silo],
            self.codecs,
            self.private,
            self.rates.get(silo, self.rate),
            len(self.tasks),
            self.silo_dropout,
        )

    def initial(self) -> dict[str, SiloState]:
        """Return the networks' own weights as the silos' first states."""
        weights = {silo: task.network.initial() for silo, task in self.tasks.items()}
        return {silo: SiloState(weights.get(silo, {})) for silo in self.plan.silos}


@dataclass(frozen=True)
class HubTraining:
    """What the hub of one silo knows of a training."""

    silo: str
    task: SiloTask | None
    """What its clients compute, if they have features; its rows are of no use to the hub."""
    roster: Roster
    codecs: Codecs
    private: PrivateLabels | None
    """The labels, where one silo holds them."""
    rate: Callable[[int], float]
    """η of a round in this silo."""
    silos: int
    """N, the number of silos that have features."""
    silo_dropout: SiloDropout
    """Leaves embeddings out of other silos' sums."""

    def round(self, number: int, task: SiloTask) -> HubRound:
        """Return what is known of a round."""
        return HubRound.of(number, self.rate, self.silos, task.network.trainable)


def block_bytes(block: Block) -> int:
    """Return the bytes of a block."""
    return sum(tensor.nbytes for tensor in block.values())


def left_finite(block: Block, before: Block) -> bool:
    """Tell whether numbers of a block are no longer finite. What was not so before is a constant, as a mask of -inf.

    A finite sum has finite terms only, and takes a fifth of the time of looking at each of them.
    """
    return any(
        not isfinite(tensor.sum().item()) and not tensor.isfinite().all() and bool(before[name].isfinite().all())
        for name, tensor in block.items()
    )
