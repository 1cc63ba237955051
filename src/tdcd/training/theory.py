"""Both sides of Theorem 1 for a training: the gradients at the beginnings of rounds, measured, and their bound."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from tdcd.core.streams import borrow_stream
from tdcd.errors import JobError
from tdcd.runs.theory import GradientPoint, TheoryRecord
from tdcd.theory import Bound, balanced_rate, bound, largest_rate
from tdcd.training.assumptions import check_assumptions
from tdcd.training.constants import Constants, estimate_constants
from tdcd.training.landscape import Landscape, squared_norm
from tdcd.training.simulation import Simulation
from tdcd.training.state import State

POINTS = 3
"""Where the constants are estimated: at the first weights, half way and at the end."""


def measure_theory(
    simulation: Simulation,
    *,
    rounds: int | None = None,
    evaluations: int = 30,
    rows: int = 20_000,
    clients: int = 5,
    batches: int = 50,
    iterations: int = 100,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> TheoryRecord:
    """Train a simulation from its first weights, and measure its gradients beside the bound of Theorem 1.

    The gradient of the training loss, on all rows and for all silos, is computed before the first round, after the last
    one and at rounds spread evenly between; in between, its squared norm is interpolated. The constants of the bound
    are the largest estimates at the first weights, half way and at the end.

    Args:
        simulation: What to train.
        rounds: How many of its rounds; default: all.
        evaluations: At how many rounds to compute the gradient, at most.
        rows: Training rows that L is estimated on, at most.
        clients: Clients of each silo that are looked at in a mini-batch, at most.
        batches: Mini-batches that σ_j² is estimated on.
        iterations: Of each power iteration, at most.
        seed: Decides which rows, clients and mini-batches the constants are estimated on.
        on_progress: Is called with how many rounds of how many are done.

    Raises:
        JobError: a number is out of range, or the rows are not in this process.
        ModelError: a network has no second derivatives.
        DivergedError: weights are no longer finite.
    """
    planned = simulation.settings.rounds
    rounds = planned if rounds is None else rounds
    if not 1 <= rounds <= planned:
        raise JobError(f"rounds: from 1 to the {planned:,} of the settings are wanted, not {rounds:,}")
    if evaluations < 2:
        raise JobError(
            f"evaluations: at least 2 are wanted, one at the beginning and one at the end, not {evaluations}"
        )
    started = perf_counter()
    landscape = Landscape.of(simulation)
    places = sorted({round(place) for place in np.linspace(0, rounds, evaluations)})
    estimate_at = {places[round(k)] for k in np.linspace(0, len(places) - 1, POINTS)}
    state, seen, estimates = simulation.init(), [], []
    for place in places:
        while state.done < place:
            state = simulation.round(state)
            on_progress(state.done, rounds)
        seen.append(_measure(landscape, state))
        if place in estimate_at:
            estimates.append(
                estimate_constants(
                    simulation, state, rows=rows, clients=clients, batches=batches, iterations=iterations, seed=seed
                )
            )
    constants, cost = _largest(estimates), landscape.cost
    theorem = _Theorem(constants, max(simulation.training.steps.values()), seen[0].loss)
    rates = _rates(simulation, rounds)
    highest, decrease = float(rates.max()), seen[0].loss - seen[-1].loss
    rate = highest if rates.min() == highest else float(rates.mean(0).max())
    points = _points(seen, lambda point: theorem.bound(rate, point.round, point.loss).total)
    balanced = theorem.balanced_rate(rounds, seen[-1].loss)
    return TheoryRecord(
        rounds=rounds,
        planned=planned,
        rate=rate,
        highest_rate=highest,
        local_steps=theorem.local_steps,
        smoothness=constants.smoothness,
        client_smoothness=constants.client_smoothness,
        variances=constants.variances,
        decrease=decrease,
        measured=points[-1].mean or 0.0,
        terms=theorem.bound(rate, rounds, seen[-1].loss).terms(),
        largest_rate=largest_rate(theorem.local_steps, constants.smoothness, constants.client_smoothness),
        balanced_rate=balanced,
        balanced_bound=theorem.bound(balanced, rounds, seen[-1].loss).total if balanced else None,
        assumptions=check_assumptions(simulation),
        points=points,
        constants_at=tuple(sorted(estimate_at)),
        rows=constants.rows,
        clients=constants.clients,
        batches=constants.batches,
        evaluations=cost.evaluations + constants.evaluations,
        passes=cost.rows / len(landscape) + constants.passes,
        seconds=perf_counter() - started,
        notes=tuple(_notes(len(places) <= rounds, decrease)),
    )


@dataclass(frozen=True)
class _Theorem:
    """The theorem with its constants."""

    constants: Constants
    local_steps: int
    first_loss: float

    def bound(self, rate: float, rounds: int, loss: float) -> Bound:
        """Return the right-hand side after so many rounds, at which the loss is this."""
        known, decrease = self.constants, max(0.0, self.first_loss - loss)
        sigmas = [*known.variances.values()]
        return bound(rate, self.local_steps, rounds, known.smoothness, known.client_smoothness, sigmas, decrease)

    def balanced_rate(self, rounds: int, loss: float) -> float | None:
        """Return the rate at which descent and noise weigh the same, if the loss fell."""
        known, decrease = self.constants, self.first_loss - loss
        if decrease <= 0:
            return None
        sigmas = [*known.variances.values()]
        return balanced_rate(self.local_steps, rounds, known.smoothness, known.client_smoothness, sigmas, decrease)


def _measure(landscape: Landscape, state: State) -> GradientPoint:
    with borrow_stream(torch.device("cpu")):
        loss, gradient = landscape.loss_and_gradient(state.weights)
    return GradientPoint(state.done, loss, squared_norm(gradient), None, None)


def _points(seen: Sequence[GradientPoint], bound_at: Callable[[GradientPoint], float]) -> tuple[GradientPoint, ...]:
    """Add the mean of the squared norms of all rounds before each point, and its bound."""
    rounds = seen[-1].round
    norms = np.interp(np.arange(rounds), [one.round for one in seen], [one.squared_norm for one in seen])
    means = np.cumsum(norms) / np.arange(1, rounds + 1)
    first, *others = seen
    return (first, *(replace(one, mean=float(means[one.round - 1]), bound=bound_at(one)) for one in others))


def _largest(estimates: Sequence[Constants]) -> Constants:
    """Return the largest estimate of each constant, and what all of them took."""
    first = estimates[0]
    return Constants(
        smoothness=max(one.smoothness for one in estimates),
        client_smoothness=max(one.client_smoothness for one in estimates),
        variances={silo: max(one.variances[silo] for one in estimates) for silo in first.variances},
        rows=first.rows,
        clients=first.clients,
        batches=first.batches,
        evaluations=sum(one.evaluations for one in estimates),
        passes=sum(one.passes for one in estimates),
        seconds=sum(one.seconds for one in estimates),
    )


def _rates(simulation: Simulation, rounds: int) -> npt.NDArray[np.float64]:
    """Return η of every round and silo, (R, N)."""
    training = simulation.training
    of_silos = [training.rates.get(silo, training.rate) for silo in training.tasks]
    return np.array([[rate(number) for rate in of_silos] for number in range(1, rounds + 1)])


def _notes(interpolated: bool, decrease: float) -> Iterator[str]:
    if interpolated:
        yield "between the rounds that were measured, squared norms are interpolated"
    if decrease <= 0:
        yield "the loss did not fall, so that the descent term is 0 and says nothing"
