"""The parts of a model as modules that torch's exporters take."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tdcd.core.objectives import Objective
from tdcd.core.task import sum_embeddings
from tdcd.errors import ModelError
from tdcd.serving.export.inputs import SiloInput
from tdcd.serving.model import Model

TRIED = 6
"""Rows of the batch that networks are traced with: neither 0 nor 1, which exporters take for constants."""


class Head(nn.Module):
    """What an objective makes of scores (batch, E): probabilities and classes, or numbers."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, scores: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities and class numbers; of a regression, the predictions only."""
        if self.objective.meaning == "numbers":
            return (self.objective.predictions(scores) + 0,)
        return self.objective.probabilities(scores), self.objective.predictions(scores)


class Whole(nn.Module):
    """All silos and the head: rows by the silos' names in, everything by its name out."""

    def __init__(self, networks: Mapping[str, nn.Module], objective: Objective) -> None:
        super().__init__()
        self.silos = tuple(networks)
        self.networks = nn.ModuleList(networks.values())  # by number: a silo's name may be no name of a module
        self.head = Head(objective)

    def forward(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return scores, what the head makes of them, and each silo's embedding."""
        embeddings = {silo: network(rows[silo]) for silo, network in zip(self.silos, self.networks, strict=True)}
        scores = sum_embeddings(embeddings)
        given = {f"{silo}.embedding": embedding for silo, embedding in embeddings.items()}
        return {"scores": scores} | dict(zip(said_of(self.head.objective), self.head(scores), strict=True)) | given


def said_of(objective: Objective) -> Sequence[str]:
    """Return the names of what the head gives out."""
    return ("prediction",) if objective.meaning == "numbers" else ("probabilities", "class")


class AsType(nn.Module):
    """A network of another precision than its rows."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.dtype = network, dtype

    def forward(self, rows: Tensor) -> Tensor:
        """Embed rows."""
        embedding: Tensor = self.network(rows.to(self.dtype))
        return embedding


def silo_module(model: Model, own: SiloInput) -> nn.Module:
    """Return a silo's trained network, on the CPU."""
    result = model.result
    network = result.networks[own.silo].with_weights(result.blocks[own.silo]).cpu().requires_grad_(requires_grad=False)
    return network if own.fed == own.row_type else AsType(network, own.row_type)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters' warnings and logs, which speak of torch's own parts."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def exporting(what: str, format_: str) -> Iterator[None]:
    """Say what could not be exported.

    Raises:
        ModelError: it could not.
    """
    try:
        yield
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        cause = error.__cause__
        while cause is not None and cause.__cause__ is not None:
            cause = cause.__cause__
        why = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}" if cause and str(cause).strip() else first
        raise ModelError(
            f"{what} cannot be exported to {format_}: {why[:300]}. Its forward pass must be one chain of tensor "
            "operations for every batch: without branches on values, and without Python objects that torch.export "
            "does not know"
        ) from error
