"""Estimates of the constants of Theorem 1, at some weights, from the data of a simulation.

L        the largest eigenvalue, in size, of the Hessian of the loss: power iteration on Hessian-vector products
L_max    the largest singular value of ∂g_{k,j}/∂θ over clients: power iteration on products with it and its transpose
σ_j²     the mean squared distance of mini-batches' partial gradients from those of all rows

They are local: elsewhere the loss may be more curved. Networks are in evaluation mode, so BatchNorm and dropout count
as they are at prediction. The cost is bounded: some rows, some clients of each silo, some mini-batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.objectives import Objective
from tdcd.core.objectives.base import row_losses
from tdcd.core.sampling import draw_batch
from tdcd.core.streams import borrow_stream
from tdcd.core.task import SiloTask, sum_embeddings
from tdcd.engines.simulation import simulated
from tdcd.errors import JobError, ModelError
from tdcd.training.simulation import Simulation
from tdcd.training.state import State

Vector = dict[tuple[str, str], Tensor]
"""A number for each trainable weight, by silo and name."""


@dataclass(frozen=True)
class Constants:
    """The constants of Theorem 1, as far as they can be seen at some weights."""

    smoothness: float
    """L."""
    client_smoothness: float
    """L_max, over the clients that were looked at."""
    variances: Mapping[str, float]
    """σ_j² of each silo, for mini-batches of the size that the settings say."""
    rows: int
    """Rows that L was estimated on."""
    clients: int
    """Clients that L_max was estimated on."""
    batches: int
    """Mini-batches that σ_j² was estimated on."""


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
        clients: Clients of each silo that L_max is estimated on, at most: those with the most rows.
        batches: Mini-batches that σ_j² is estimated on.
        iterations: Of each power iteration, at most.
        tolerance: The relative change at which one ends.
        seed: Decides on all draws.

    Raises:
        JobError: a number is out of range, or the rows are not in this process.
        ModelError: a network has no second derivatives.
    """
    for name, number in (("rows", rows), ("clients", clients), ("batches", batches), ("iterations", iterations)):
        if number < 1:
            raise JobError(f"{name}: at least 1 is wanted, not {number!r}")
    _, tasks = simulated(simulation.training)
    if any(task.features.is_meta for task in tasks.values()):
        raise JobError(
            "the constants are estimated where the rows are: use a simulation whose rows are in this process"
        )
    private = simulation.training.private
    labels = private.labels if private else next(iter(tasks.values())).labels
    problem = _Problem(tasks, simulation.settings.objective, labels, (state or simulation.init()).weights)
    population, size = len(labels), simulation.settings.batch_size
    generator = np.random.default_rng(seed)
    some = torch.from_numpy(np.sort(generator.choice(population, min(rows, population), replace=False)))
    power = _Power(iterations, tolerance, seed)
    with borrow_stream(torch.device("cpu")):
        try:
            smoothness = power.eigenvalue(problem, lambda v: problem.hessian_product(some, v))
            of_clients = [
                power.singular_value(problem, silo, _rows_of(task, client))
                for silo, task in tasks.items()
                for client in _largest(task, clients)
            ]
        except RuntimeError as error:
            raise ModelError(f"the curvature of a network cannot be computed: {error}") from error
        variances = _variances(problem, population if size == "full" else size, population, batches, seed)
    return Constants(smoothness, max(of_clients), variances, len(some), len(of_clients), batches)


@dataclass(frozen=True)
class _Problem:
    """The loss of all silos' networks, as a function of their weights."""

    tasks: Mapping[str, SiloTask]
    objective: Objective
    labels: Tensor
    weights: Mapping[str, Block]

    def zeros(self) -> Vector:
        return {
            (silo, name): torch.zeros_like(self.weights[silo][name])
            for silo, task in self.tasks.items()
            for name in task.network.trainable
        }

    def gradient(self, rows: Tensor, *, twice: bool = False) -> tuple[Vector, Vector]:
        """Return the trainable weights and ∂loss/∂θ of the mean loss of some rows, perhaps to be differentiated."""
        weights = {key: self.weights[key[0]][key[1]].detach().clone().requires_grad_() for key in self.zeros()}
        embedded = {}
        for silo, task in self.tasks.items():
            block = {name: weights.get((silo, name), tensor.clone()) for name, tensor in self.weights[silo].items()}
            embedded[silo] = task.network(block, task.features[rows], training=False)
        loss = row_losses(self.objective, sum_embeddings(embedded), self.labels[rows]).mean()
        parts = torch.autograd.grad(loss, list(weights.values()), create_graph=twice)
        return weights, dict(zip(weights, parts, strict=True))

    def hessian_product(self, rows: Tensor, vector: Vector) -> Vector:
        """Return the Hessian of the mean loss of some rows, times a vector."""
        weights, gradient = self.gradient(rows, twice=True)
        along = sum((part * vector[key]).sum() for key, part in gradient.items())
        if not isinstance(along, Tensor) or not along.requires_grad:
            return self.zeros()
        parts = torch.autograd.grad(along, list(weights.values()), allow_unused=True)
        return {
            key: torch.zeros_like(weights[key]) if part is None else part.detach()
            for key, part in zip(weights, parts, strict=True)
        }


@dataclass(frozen=True)
class _Power:
    """Power iteration."""

    iterations: int
    tolerance: float
    seed: int

    def eigenvalue(self, problem: _Problem, product: Callable[[Vector], Vector]) -> float:
        """Return the largest eigenvalue, in size, of a symmetric matrix, given its product with a vector."""
        generator = torch.Generator().manual_seed(self.seed)
        vector = {k: torch.randn(t.shape, generator=generator, dtype=t.dtype) for k, t in problem.zeros().items()}
        value = 0.0
        for _ in range(self.iterations):
            size = _norm(vector)
            if not size:
                return 0.0
            vector = product({key: part / size for key, part in vector.items()})
            before, value = value, _norm(vector)
            if abs(value - before) <= self.tolerance * value:
                break
        return value

    def singular_value(self, problem: _Problem, silo: str, rows: Tensor) -> float:
        """Return the largest singular value of ∂(∂loss/∂θ_j)/∂θ for the mean loss of some rows."""

        def twice(vector: Vector) -> Vector:
            across = problem.hessian_product(rows, vector)
            own = {key: part if key[0] == silo else torch.zeros_like(part) for key, part in across.items()}
            return problem.hessian_product(rows, own)

        return float(np.sqrt(self.eigenvalue(problem, twice)))


def _norm(vector: Vector) -> float:
    return float(torch.stack([part.double().square().sum() for part in vector.values()]).sum().sqrt())


def _rows_of(task: SiloTask, client: int) -> Tensor:
    return torch.nonzero(task.roster.owner == client).squeeze(1)


def _largest(task: SiloTask, most: int) -> Sequence[int]:
    """Return the clients with the most rows."""
    counts = torch.bincount(task.roster.owner, minlength=len(task.roster.clients))
    return [int(k) for k in counts.argsort(descending=True, stable=True)[:most] if counts[k]]


def _variances(problem: _Problem, size: int, population: int, batches: int, seed: int) -> dict[str, float]:
    """Return the mean squared distance of mini-batches' partial gradients from those of all rows, by silo."""
    _, whole = problem.gradient(torch.arange(population))
    sums = dict.fromkeys(problem.tasks, 0.0)
    for number in range(1, batches + 1):
        _, drawn = problem.gradient(draw_batch(seed, number, population, min(size, population)))
        for (silo, name), part in drawn.items():
            sums[silo] += float((part - whole[silo, name]).double().square().sum())
    return {silo: total / batches for silo, total in sums.items()}
