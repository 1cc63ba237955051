"""Theorem 1 of the paper: what bounds the gradients of a training, and which learning rates it admits.

For a rate η ≤ 1 / (8·Q·max(L, L_max)), the squared gradient norms at the beginnings of rounds satisfy

    1/R Σ E‖∇L(θ^{t₀})‖² ≤ 4·(L(θ⁰) − E L(θᵀ)) / (η·Q·R)
                            + 4·(η·L·Q + 4·η²·Q²·L_max² + 8·η³·Q³·L·L_max²) Σ_j σ_j²

where L and L_max are Lipschitz constants of the gradient of the whole loss and of the clients' partial gradients on
their rows of a mini-batch, and σ_j² bounds how far the latter are from the partial gradient of the whole loss: the mean
squared distance over mini-batches and, as the proof shows, over silo j's clients. With N = 1 this is local SGD, with
one client a silo vertical federated learning; N enters by the sum over silos only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from tdcd.errors import JobError


@dataclass(frozen=True)
class Bound:
    """The right-hand side of Theorem 1, term by term."""

    descent: float
    """What is left of the loss: falls with the rate and the rounds."""
    noise: float
    """Mini-batches, and clients that differ: 4·η·L·Q Σσ_j²."""
    staleness: float
    """Local steps that do not see the other silos' and clients' steps: 16·η²·Q²·L_max² Σσ_j²."""
    coupling: float
    """Both together: 32·η³·Q³·L·L_max² Σσ_j²."""

    @property
    def total(self) -> float:
        """The bound."""
        return self.descent + self.noise + self.staleness + self.coupling

    def terms(self) -> dict[str, float]:
        """Return the terms by their names."""
        return {"descent": self.descent, "noise": self.noise, "staleness": self.staleness, "coupling": self.coupling}

    def shares(self) -> dict[str, float]:
        """Return which part of the bound each term is."""
        return {name: term / self.total if self.total else 0.0 for name, term in self.terms().items()}


def largest_rate(local_steps: int, smoothness: float, client_smoothness: float) -> float:
    """Return the largest learning rate that the theorem admits: 1 / (8·Q·max(L, L_max)).

    Args:
        local_steps: Q.
        smoothness: L.
        client_smoothness: L_max.

    Raises:
        JobError: a number is out of range.
    """
    _check(local_steps=local_steps, smoothness=smoothness, client_smoothness=client_smoothness)
    return 1 / (8 * local_steps * max(smoothness, client_smoothness))


def bound(
    rate: float,
    local_steps: int,
    rounds: int,
    smoothness: float,
    client_smoothness: float,
    variances: Sequence[float],
    decrease: float,
) -> Bound:
    """Return the bound on the mean squared gradient norm over all rounds.

    Args:
        rate: η; the theorem holds up to ``largest_rate``.
        local_steps: Q.
        rounds: R.
        smoothness: L.
        client_smoothness: L_max.
        variances: σ_j² of each silo.
        decrease: By how much the loss falls, L(θ⁰) − E L(θᵀ), or L(θ⁰) − L_inf, which is no less.

    Raises:
        JobError: a number is out of range.
    """
    _check(
        rate=rate, local_steps=local_steps, rounds=rounds, smoothness=smoothness, client_smoothness=client_smoothness
    )
    noise = _noise(variances)
    if not (isfinite(decrease) and decrease >= 0):
        raise JobError(f"decrease: a number of at least 0 is wanted, not {decrease!r}")
    steps = rate * local_steps
    return Bound(
        descent=4 * decrease / (steps * rounds),
        noise=4 * steps * smoothness * noise,
        staleness=16 * steps**2 * client_smoothness**2 * noise,
        coupling=32 * steps**3 * smoothness * client_smoothness**2 * noise,
    )


def balanced_rate(
    local_steps: int,
    rounds: int,
    smoothness: float,
    client_smoothness: float,
    variances: Sequence[float],
    decrease: float,
) -> float:
    """Return the rate at which what is left of the loss and the mini-batches' noise weigh the same, if it is admitted.

    It is proportional to 1 / (Q·√R), for which the bound falls as O(1/√R): the theorem's last remark. Arguments are
    those of ``bound``.

    Raises:
        JobError: a number is out of range.
    """
    most = largest_rate(local_steps, smoothness, client_smoothness)
    _check(rounds=rounds, decrease=decrease)
    noise = _noise(variances)
    return most if not noise else min(most, sqrt(decrease / (smoothness * noise * rounds)) / local_steps)


def _noise(variances: Sequence[float]) -> float:
    if not variances or not all(isfinite(variance) and variance >= 0 for variance in variances):
        raise JobError(f"variances: one number of at least 0 for each silo is wanted, not {list(variances)!r}")
    return sum(variances)


def _check(**numbers: float) -> None:
    for name, number in numbers.items():
        if not (isfinite(number) and number > 0):
            raise JobError(f"{name}: a number above 0 is wanted, not {number!r}")
