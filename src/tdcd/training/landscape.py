"""The training loss of a simulation as a function of all weights: its value, gradient and curvature.

Rows are taken in chunks, so that memory stays bounded however many there are. Networks are in evaluation mode, so
BatchNorm and dropout count as they do at prediction.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tdcd.compute.footprint import bytes_per_row
from tdcd.core.network import Block
from tdcd.core.objectives import Objective
from tdcd.core.objectives.base import row_losses
from tdcd.core.task import SiloTask, sum_embeddings
from tdcd.engines.simulation import simulated
from tdcd.errors import JobError
from tdcd.training.simulation import Simulation

Vector = dict[tuple[str, str], Tensor]
"""A number for each trainable weight, by silo and name."""

MEMORY = 256 << 20
"""Bytes that the activations of a chunk of rows may take, about."""


@dataclass
class Cost:
    """What was computed so far."""

    evaluations: int = 0
    """Gradients and products with the Hessian."""
    rows: int = 0
    """Rows that these went over."""

    def add(self, rows: int) -> None:
        """Count an evaluation over some rows."""
        self.evaluations += 1
        self.rows += rows


@dataclass(frozen=True)
class Landscape:
    """The mean loss of the training rows, as a function of the weights of all silos."""

    tasks: Mapping[str, SiloTask]
    objective: Objective
    labels: Tensor
    chunk: int
    """Rows that are computed at once."""
    cost: Cost = field(default_factory=Cost)

    @classmethod
    def of(cls, simulation: Simulation) -> "Landscape":
        """Return the training loss of a simulation.

        Raises:
            JobError: its rows are not in this process.
        """
        _, tasks = simulated(simulation.training)
        if any(task.features.is_meta for task in tasks.values()):
            raise JobError("gradients are computed where the rows are: use a simulation whose rows are in this process")
        private = simulation.training.private
        labels = private.labels if private else next(iter(tasks.values())).labels
        each = sum(bytes_per_row(task) or task.features[0].numel() * 64 for task in tasks.values())
        chunk = max(1, MEMORY // (4 * max(1, each)))  # second derivatives keep a few times as much
        return cls(tasks, simulation.settings.objective, labels, chunk)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def every_row(self) -> Tensor:
        """The numbers of all training rows."""
        return torch.arange(len(self))

    def zeros(self, weights: Mapping[str, Block]) -> Vector:
        """Return a zero for each trainable weight."""
        return {
            (silo, name): torch.zeros_like(weights[silo][name])
            for silo, task in self.tasks.items()
            for name in task.network.trainable
        }

    def loss_and_gradient(
        self, weights: Mapping[str, Block], rows: Tensor | None = None, silos: Collection[str] | None = None
    ) -> tuple[float, Vector]:
        """Return the mean loss of some rows and its gradient.

        Args:
            weights: Of all silos.
            rows: Which; default: all.
            silos: Whose part of the gradient to compute; default: all.
        """
        rows = self.every_row if rows is None else rows
        loss, sums = 0.0, {key: t for key, t in self.zeros(weights).items() if silos is None or key[0] in silos}
        for part in torch.split(rows, self.chunk):
            share = len(part) / len(rows)
            variables, value = self._loss(weights, part, self.tasks if silos is None else silos)
            loss += share * float(value.detach())
            parts = torch.autograd.grad(value, [*variables.values()], materialize_grads=True)
            for key, piece in zip(variables, parts, strict=True):
                sums[key].add_(piece, alpha=share)
        self.cost.add(len(rows))
        return loss, sums

    def hessian(self, weights: Mapping[str, Block], rows: Tensor) -> "Hessian":
        """Return the Hessian of the mean loss of some rows."""
        return Hessian(self, weights, torch.split(rows, self.chunk))

    def differentiable_gradient(self, weights: Mapping[str, Block], rows: Tensor) -> tuple[Vector, Vector]:
        """Return the weights as variables, and the gradient of the mean loss of some rows as their function."""
        variables, loss = self._loss(weights, rows, self.tasks)
        parts = torch.autograd.grad(loss, [*variables.values()], create_graph=True, materialize_grads=True)
        return variables, dict(zip(variables, parts, strict=True))

    def _loss(self, weights: Mapping[str, Block], rows: Tensor, silos: Collection[str]) -> tuple[Vector, Tensor]:
        """Return the weights of some silos as variables, and the mean loss of some rows as their function."""
        variables = {
            key: weights[key[0]][key[1]].detach().clone().requires_grad_()
            for key in self.zeros(weights)
            if key[0] in silos
        }
        embeddings = {}
        for silo, task in self.tasks.items():
            block = {name: variables.get((silo, name), tensor.clone()) for name, tensor in weights[silo].items()}
            embeddings[silo] = task.network(block, task.features[rows], training=False)
        return variables, row_losses(self.objective, sum_embeddings(embeddings), self.labels[rows]).mean()


class Hessian:
    """The second derivatives of the mean loss of some rows, given in chunks, as a product with vectors."""

    def __init__(self, landscape: Landscape, weights: Mapping[str, Block], chunks: Sequence[Tensor]) -> None:
        self._landscape, self._weights, self._chunks = landscape, weights, chunks
        self._rows = sum(map(len, chunks))
        self._kept = None
        if len(chunks) == 1:
            self._kept = landscape.differentiable_gradient(weights, chunks[0])
            landscape.cost.add(self._rows)

    def product(self, vector: Vector, silo: str | None = None) -> Vector:
        """Return the product with a vector, or a silo's part of it; what the vector lacks is 0."""
        self._landscape.cost.add(self._rows)
        zeros = self._landscape.zeros(self._weights)
        sums = {key: tensor for key, tensor in zeros.items() if silo is None or key[0] == silo}
        for chunk in self._chunks:
            variables, gradient = self._kept or self._landscape.differentiable_gradient(self._weights, chunk)
            along = torch.stack([(gradient[key] * part).sum() for key, part in vector.items()]).sum()
            if not along.requires_grad:  # the gradient is constant
                continue
            wanted = [variables[key] for key in sums]
            pieces = torch.autograd.grad(along, wanted, materialize_grads=True, retain_graph=self._kept is not None)
            for key, piece in zip(sums, pieces, strict=True):
                sums[key].add_(piece, alpha=len(chunk) / self._rows)
        return sums


def squared_norm(vector: Mapping[tuple[str, str], Tensor]) -> float:
    """Return ‖v‖²."""
    return sum(float(part.double().square().sum()) for part in vector.values())
