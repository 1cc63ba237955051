"""What a training is judged by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tdcd.runs.records import Evaluation, FederationRecord
from tdcd.training.settings import Settings


@dataclass(frozen=True)
class Overshoot:
    """What a hub step of some size would have made of a round, on its mini-batch; see docs/damping.md."""

    round: int
    before: float
    """The loss at the weights that the round began with."""
    after: Mapping[float, float]
    """The loss a part β of the way to the clients' mean: at 1, as in the paper, and at less."""

    def gain(self, step: float) -> float:
        """Return by how much the loss falls at a hub step β."""
        return self.before - self.after[step]


@dataclass(frozen=True)
class Contribution:
    """What a silo adds to the final weights' loss on held-out samples."""

    loss: float
    """With all silos."""
    without: float
    """With its embeddings replaced by their mean."""


@dataclass(frozen=True)
class Evidence:
    """What a training is judged by."""

    settings: Settings
    status: str
    """"finished", "interrupted" or "diverged"."""
    history: Sequence[Evaluation]
    selected: int
    """The round whose weights are kept."""
    stopped: str = ""
    """Why it ended before its last round."""
    federation: FederationRecord | None = None
    overshoots: Sequence[Overshoot] = ()
    contributions: Mapping[str, Contribution] = field(default_factory=dict)

    @cached_property
    def part(self) -> str:
        """The samples to judge by: for validation, or else those of the training; none where nothing is known."""
        return next((part for part in ("validation", "train") if self._whole(part)), "")

    @cached_property
    def held_out(self) -> str:
        """The samples to judge a model by that was trained without them, where there are any."""
        return next((part for part in ("validation", "test", "train") if self._whole(part)), "")

    @cached_property
    def whole(self) -> list[Evaluation]:
        """The evaluations on all rows of that part."""
        return self._whole(self.part) if self.part else []

    @property
    def kept(self) -> Evaluation:
        """The evaluation of the weights that are kept."""
        return next((line for line in self.whole if line.round == self.selected), self.whole[-1])

    def losses(self, part: str = "") -> list[float]:
        """Return the losses of a part, evaluation by evaluation."""
        return [line.measures(part or self.part)["loss"] for line in self.whole]

    def _whole(self, part: str) -> list[Evaluation]:
        return [line for line in self.history if "loss" in line.measures(part) and part not in line.partial]
