"""What Theorem 1 says of a training, as a record: theory.json."""

from collections.abc import Mapping
from dataclasses import dataclass

POWERS = {"descent": -1, "noise": 1, "staleness": 2, "coupling": 3}
"""How the terms of the bound grow with η."""


@dataclass(frozen=True)
class GradientPoint:
    """The training loss at the beginning of a round."""

    round: int
    """Rounds before it, t₀."""
    loss: float
    """L(θ) on all training rows."""
    squared_norm: float
    """‖∇L(θ)‖² on all training rows."""
    mean: float | None
    """The mean of ‖∇L(θ)‖² over the beginnings of all rounds before it; none before the first."""
    bound: float | None
    """What the theorem says of that mean."""


@dataclass(frozen=True)
class Assumption:
    """An assumption of the theorem, and whether a training meets it."""

    name: str
    met: bool | None
    """None where that cannot be seen."""
    detail: str
    """Why."""


@dataclass(frozen=True)
class TheoryRecord:
    """The measured gradients of a training beside the bound of Theorem 1."""

    rounds: int
    """The rounds that were looked at, R."""
    planned: int
    """Those that the settings have."""
    rate: float
    """η: the mean over these rounds, of the silo where it is largest."""
    highest_rate: float
    """The largest of any round and silo."""
    local_steps: int
    """Q: the most of any silo."""
    smoothness: float
    """L: the largest estimate."""
    client_smoothness: float
    """L_max: the largest estimate."""
    variances: Mapping[str, float]
    """σ_j²: the largest estimate of each silo."""
    decrease: float
    """L(θ⁰) − L(θᴿ)."""
    measured: float
    """The mean of ‖∇L(θ)‖² over the beginnings of all rounds: the left-hand side of the theorem."""
    terms: Mapping[str, float]
    """The right-hand side: "descent", "noise", "staleness" and "coupling"."""
    largest_rate: float
    """1 / (8·Q·max(L, L_max))."""
    balanced_rate: float | None
    """The rate ∝ 1 / (Q·√R) at which descent and noise weigh the same, if it is admitted; none if the loss rose."""
    balanced_bound: float | None
    """The bound at this rate."""
    assumptions: tuple[Assumption, ...]
    points: tuple[GradientPoint, ...]
    constants_at: tuple[int, ...]
    """After how many rounds L, L_max and σ_j² were estimated."""
    rows: int
    """Rows that L was estimated on."""
    clients: int
    """Clients that L_max was estimated on, at most."""
    batches: int
    """Mini-batches that σ_j² was estimated on, each time."""
    evaluations: int
    """Gradients and Hessian-vector products that were computed, besides the training."""
    passes: float
    """The same in passes over all training rows."""
    seconds: float
    """How long all of it took, the training included."""
    notes: tuple[str, ...] = ()
    """What a reader should know."""

    @property
    def bound(self) -> float:
        """The right-hand side of the theorem."""
        return sum(self.terms.values())

    def shares(self, rate: float | None = None) -> dict[str, float]:
        """Return which part of the bound each term is; or would be at another rate, if the loss fell as far."""
        scale = 1.0 if rate is None else rate / self.rate
        terms = {name: term * scale ** POWERS[name] for name, term in self.terms.items()}
        total = sum(terms.values())
        return {name: term / total if total else 0.0 for name, term in terms.items()}

    @property
    def excess(self) -> float:
        """How many times the largest admissible rate the rate is."""
        return self.highest_rate / self.largest_rate

    @property
    def admissible(self) -> bool:
        """Whether the rate condition holds."""
        return self.excess <= 1

    @property
    def broken(self) -> tuple[Assumption, ...]:
        """The assumptions that are not met."""
        return tuple(one for one in self.assumptions if one.met is False)

    @property
    def holds(self) -> bool:
        """Whether the theorem applies, as far as can be seen."""
        return self.admissible and not self.broken
