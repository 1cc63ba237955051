"""Estimates of the constants of Theorem 1, at some weights, from the data of a simulation.

L        the largest eigenvalue, in size, of the Hessian of the loss: power iteration on Hessian-vector products
L_max    the largest singular value of ∂g_{k,j}/∂θ: power iteration on products with it and its transpose. g_{k,j} is of
         a client's rows in a mini-batch, as in Assumption 1, so that some clients of some mini-batches are looked at
σ_j²     the mean over clients and mini-batches of ‖g_{k,j} − ∂L/∂θ_j‖². The assumption bounds it for each client; the
         proof needs the mean over clients only. A client with few rows of a mini-batch adds to it, and so does one
         whose rows are unlike the others'; with full batches that is all there is
L − L_inf  how far L-BFGS brings the loss down

They are local: elsewhere the loss may be more curved. The cost is bounded: some rows, some clients of each silo, some
mini-batches.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.sampling import draw_batch
from tdcd.core.streams import borrow_stream
from tdcd.core.topology import deal
from tdcd.errors import JobError, ModelError
from tdcd.training.landscape import Landscape, Vector, squared_norm
from tdcd.training.simulation import Simulation
from tdcd.training.state import State

CURVED = 5
"""Mini-batches that L_max is estimated on, at most."""


@dataclass(frozen=True)
class Constants:
    """The constants of Theorem 1, as far as they can be seen at some weights."""

    smoothness: float
    """L."""
    client_smoothness: float
    """L_max, over the clients and mini-batches that were looked at."""
    variances: Mapping[str, float]
    """σ_j² of each silo, for mini-batches of the size that the settings say."""
    rows: int
    """Rows that L was estimated on."""
    clients: int
    """Clients that L_max was estimated on."""
    batches: int
    """Mini-batches that σ_j² was estimated on; one where all are the same."""
    evaluations: int
    """Gradients and Hessian-vector products that were computed."""
    passes: float
    """The same in passes over all training rows."""
    seconds: float = field(compare=False, default=0.0)
    """How long it took."""


@dataclass(frozen=True)
class Decrease:
    """How far the training loss can fall from some weights."""

    loss: float
    """At these weights."""
    lowest: float
    """The lowest that was reached, which is no lower than L_inf."""
    evaluations: int
    """Gradients that were computed."""
    seconds: float = field(compare=False, default=0.0)
    """How long it took."""

    @property
    def value(self) -> float:
        """L(θ) − L_inf, or less."""
        return self.loss - self.lowest


def estimate_constants(
    simulation: Simulation,
    state: State | None = None,
    *,
    rows: int = 20_000,
    clients: int = 5,
    batches: int = 50,
    iterations: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Constants:
    """Estimate the constants of Theorem 1 at the weights of a state.

    Args:
        simulation: What is trained.
        state: Where; default: at the first weights.
        rows: Training rows that L is estimated on, at most; drawn from the seed.
        clients: Clients of each silo that are looked at in a mini-batch, at most; drawn from the seed.
        batches: Mini-batches that σ_j² is estimated on; L_max on the first five of them.
        iterations: Of each power iteration, at most.
        tolerance: The relative change at which one ends.
        seed: Decides on all draws.

    Raises:
        JobError: a number is out of range, or the rows are not in this process.
        ModelError: a network has no second derivatives.
    """
    _check(rows=rows, clients=clients, batches=batches, iterations=iterations)
    started = perf_counter()
    landscape = Landscape.of(simulation)
    weights = (state or simulation.init()).weights
    some = _some_rows(landscape, rows, seed)
    power = _Power(iterations, tolerance, seed)
    draws = _Draws(landscape, simulation.settings.batch_of(len(landscape)), clients, seed)
    with borrow_stream(torch.device("cpu")):
        try:
            smoothness = power.eigenvalue(landscape.zeros(weights), landscape.hessian(weights, some).product)
            client_smoothness, looked_at = 0.0, set()
            for silo, client, own in draws.shards(min(CURVED, batches)):
                value = power.singular_value(landscape, weights, silo, own)
                client_smoothness = max(client_smoothness, value)
                looked_at.add((silo, client))
        except RuntimeError as error:
            raise ModelError(f"the curvature of a network cannot be computed: {error}") from error
        uniform = simulation.settings.averaging == "uniform"
        variances = draws.variances(weights, batches, uniform=uniform)
    cost = landscape.cost
    return Constants(
        smoothness, client_smoothness, variances, len(some), len(looked_at), draws.distinct(batches),
        cost.evaluations, cost.rows / len(landscape), perf_counter() - started,
    )  # fmt: skip


def estimate_decrease(
    simulation: Simulation, state: State | None = None, *, rows: int = 20_000, iterations: int = 100, seed: int = 0
) -> Decrease:
    """Estimate how far the training loss can fall, L(θ) − L_inf, by L-BFGS on all silos' weights at once.

    For convex losses it comes close to the minimum. Else it ends in some valley, and L_inf may be lower.

    Args:
        simulation: What is trained.
        state: From where; default: from the first weights.
        rows: Training rows that it is estimated on, at most; drawn from the seed.
        iterations: Of L-BFGS, at most; each takes about one gradient.
        seed: Decides which rows.

    Raises:
        JobError: a number is out of range, or the rows are not in this process.
    """
    _check(rows=rows, iterations=iterations)
    started = perf_counter()
    landscape = Landscape.of(simulation)
    some = _some_rows(landscape, rows, seed)
    blocks = {silo: dict(block) for silo, block in (state or simulation.init()).weights.items()}
    variables = {key: blocks[key[0]][key[1]].detach().clone() for key in landscape.zeros(blocks)}
    for (silo, name), tensor in variables.items():
        blocks[silo][name] = tensor
    losses: list[float] = []

    def evaluate() -> Tensor:
        loss, gradient = landscape.loss_and_gradient(blocks, some)
        for key, tensor in variables.items():
            tensor.grad = gradient[key]
        losses.append(loss)
        return torch.tensor(loss, dtype=torch.float64)

    with borrow_stream(torch.device("cpu")):
        optimizer = torch.optim.LBFGS(
            [*variables.values()], max_iter=iterations, tolerance_grad=1e-9, tolerance_change=1e-12,
            history_size=20, line_search_fn="strong_wolfe",
        )  # fmt: skip
        optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    finite = [loss for loss in losses if np.isfinite(loss)]
    return Decrease(losses[0], min(finite, default=losses[0]), landscape.cost.evaluations, perf_counter() - started)


@dataclass(frozen=True)
class _Power:
    """Power iteration."""

    iterations: int
    tolerance: float
    seed: int

    def eigenvalue(self, zeros: Vector, product: Callable[[Vector], Vector]) -> float:
        """Return the largest eigenvalue, in size, of a symmetric matrix, given its product with a vector."""
        generator = torch.Generator().manual_seed(self.seed)
        vector = {k: torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for k, t in zeros.items()}
        value = 0.0
        for _ in range(self.iterations):
            size = np.sqrt(squared_norm(vector))
            if not size:
                return 0.0
            vector = product({key: part / size for key, part in vector.items()})
            before, value = value, float(np.sqrt(squared_norm(vector)))
            if abs(value - before) <= self.tolerance * value:
                break
        return value

    def singular_value(self, landscape: Landscape, weights: Mapping[str, Block], silo: str, rows: Tensor) -> float:
        """Return the largest singular value of ∂(∂loss/∂θ_j)/∂θ for the mean loss of some rows."""
        hessian = landscape.hessian(weights, rows)

        def twice(vector: Vector) -> Vector:
            return hessian.product(hessian.product(vector, silo))

        return float(np.sqrt(self.eigenvalue(landscape.zeros(weights), twice)))


@dataclass(frozen=True)
class _Draws:
    """Mini-batches of the size that is trained with, and clients of each."""

    landscape: Landscape
    size: int
    clients: int
    seed: int

    def distinct(self, batches: int) -> int:
        """Return how many of so many mini-batches differ."""
        return 1 if self.size == len(self.landscape) else batches

    def shards(self, batches: int) -> Iterator[tuple[str, int, Tensor]]:
        """Yield silos, clients and their rows in some mini-batches, of clients that have rows there."""
        for number, batch in self._batches(self.distinct(batches)):
            for silo, task in self.landscape.tasks.items():
                shards = deal(batch, task.roster)
                places = dict(shards)
                for client in self._some(shards.clients.numpy(), number):
                    yield silo, client, shards.samples[places[client]]

    def variances(self, weights: Mapping[str, Block], batches: int, *, uniform: bool) -> dict[str, float]:
        """Return the mean squared distance of clients' partial gradients from those of all rows, by silo.

        Clients weigh what they weigh in the hub's mean. One without rows in a mini-batch stays where it is: its
        gradient is 0.
        """
        _, whole = self.landscape.loss_and_gradient(weights)
        sums = dict.fromkeys(self.landscape.tasks, 0.0)
        most = max(len(task.roster.clients) for task in self.landscape.tasks.values())
        count = batches if most > self.clients else self.distinct(batches)
        for number, batch in self._batches(count):
            for silo, task in self.landscape.tasks.items():
                mean = {key: part for key, part in whole.items() if key[0] == silo}
                shards = deal(batch, task.roster)
                places = dict(shards)
                population = np.arange(len(task.roster.clients)) if uniform else shards.clients.numpy()
                chosen = self._some(population, number)
                total = 0.0
                for client in chosen:
                    own = shards.samples[places[client]] if client in places else None
                    weight = 1 / len(population) if uniform or own is None else len(own) / len(batch)
                    gradient = self._gradient(weights, own, silo)
                    total += weight * squared_norm({key: gradient.get(key, 0) - part for key, part in mean.items()})
                sums[silo] += total * len(population) / len(chosen)
        return {silo: total / count for silo, total in sums.items()}

    def _gradient(self, weights: Mapping[str, Block], rows: Tensor | None, silo: str) -> Vector:
        return {} if rows is None else self.landscape.loss_and_gradient(weights, rows, [silo])[1]

    def _batches(self, count: int) -> Iterator[tuple[int, Tensor]]:
        population = len(self.landscape)
        for number in range(1, count + 1):
            yield number, draw_batch(self.seed, number, population, self.size)

    def _some(self, population: np.ndarray, number: int) -> list[int]:
        """Return so many of some clients, others in each mini-batch."""
        if len(population) <= self.clients:
            return [int(client) for client in population]
        generator = np.random.default_rng([self.seed, number])
        return sorted(int(client) for client in generator.choice(population, self.clients, replace=False))


def _some_rows(landscape: Landscape, rows: int, seed: int) -> Tensor:
    population = len(landscape)
    chosen = np.random.default_rng(seed).choice(population, min(rows, population), replace=False)
    return torch.from_numpy(np.sort(chosen))


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise JobError(f"{name}: at least 1 is wanted, not {number!r}")
