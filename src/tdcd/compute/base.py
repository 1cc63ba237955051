"""What every compute path offers, and how it reports failures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tdcd.compute.threads import Threads
from tdcd.core.aggregators import gather
from tdcd.core.average import Gathered, Held
from tdcd.core.codecs.base import carry, carry_each
from tdcd.core.local_steps import Steps, finish
from tdcd.core.network import Block, copy_block
from tdcd.core.objectives.base import logit_gradient
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards
from tdcd.errors import ModelError, TdcdError, join_names


class Compute(Protocol):
    """A way to compute a group of clients of one silo. Rows are in the order of ``shards.order``."""

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """Return the clients' embeddings (B, E). It is the forward pass of their first step, too."""

    def descend(self, block: Block, round_: Round, shards: Shards, rows: Tensor) -> Gathered:
        """Take every client's Q steps; return the sum of the clients that have rows, with its true weight.

        Where the task has ``updates``, it is the sum of what the clients changed. Where the aggregator is not linear,
        return the weights of each of them.

        ``rows`` (B, E) are Φ_{-j}, held still; where labels are remote, logit gradients for all steps.
        """


@dataclass(frozen=True)
class Piece:
    """Clients whose steps are taken together, and can be suspended at each."""

    places: Tensor | slice
    """Where their rows stand in shard order: (n,), or (G, n) of stacked clients."""
    steps: Steps
    clients: Sequence[int]
    """Their places in the roster."""
    weights: Tensor | float
    """In the hub's average: of one client, or (G,) of stacked ones."""
    release: Callable[[], None] = lambda: None
    """Gives back what the steps borrowed, once their result was used."""

    def add_to(self, gathered: Gathered, task: SiloTask, start: Block, block: Block) -> None:
        """Add the result of the steps from ``start`` to what other clients return."""
        if task.updates is not None:
            each = carry if isinstance(self.weights, float) else carry_each
            block |= {name: each(task.updates, block[name] - start[name]) for name in task.network.trainable}
        if isinstance(gathered, Held):
            if isinstance(self.weights, float):
                gathered.add(self.clients[0], copy_block(block))  # what was borrowed is given back
            else:
                gathered.add_stack(self.clients, block)
        elif isinstance(self.weights, float):
            gathered.add(block, self.weights)
        else:
            gathered.add_stack(block, self.weights)
        self.release()


@runtime_checkable
class Suspendable(Compute, Protocol):
    """A way to compute clients that can wait for logit gradients between two steps."""

    def pieces(self, block: Block, round_: Round, shards: Shards) -> Iterable[Piece]:
        """Return the clients' steps, none of them begun."""


def gradient_at(task: SiloTask, shards: Shards, rows: Tensor, places: Tensor | slice) -> Callable[[Tensor], Tensor]:
    """Return what computes ∂ℓ/∂z at embeddings of some places; ``rows`` as in ``Compute.descend``."""
    given = rows[places]
    if task.remote_labels:
        return lambda _: given
    labels, objective = task.labels[shards.samples[places]], task.objective
    return lambda embeddings: logit_gradient(objective, embeddings + given, labels)


def descend_pieces(
    task: SiloTask, block: Block, shards: Shards, rows: Tensor, pieces: Iterable[Piece], pool: Threads
) -> Gathered:
    """Run all steps of pieces through, one piece after the other or one a worker; add up in their order."""

    def one(piece: Piece) -> tuple[Piece, Block]:
        gradient = gradient_at(task, shards, rows, piece.places)
        return piece, finish(piece.steps, next(piece.steps), gradient)

    gathered = gather(task.aggregator, block)
    for piece, new in pool.stream(one, pieces):
        piece.add_to(gathered, task, block, new)
    return gathered


class Suspended:
    """All clients of a group, suspended between two steps. Rows are in shard order."""

    def __init__(self, task: SiloTask, block: Block, pieces: Iterable[Piece], pool: Threads) -> None:
        self._task, self._block, self._pieces, self._pool = task, block, list(pieces), pool
        self._embeddings = pool.map(lambda piece: next(piece.steps), self._pieces)

    def step(self, gradients: Tensor) -> Tensor:
        """Take one step with logit gradients (B, E); return the new embeddings (B, E)."""

        def one(piece: Piece) -> Tensor:
            return piece.steps.send(gradients[piece.places])

        self._embeddings = self._pool.map(one, self._pieces)
        joined = torch.empty_like(gradients)
        for piece, embeddings in zip(self._pieces, self._embeddings, strict=True):
            joined[piece.places] = embeddings  # a padded place repeats a row of its client, and so its embedding
        return joined

    def finish(self, gradients: Tensor) -> Gathered:
        """Take the steps that are left with these gradients; return what ``Compute.descend`` does."""

        def one(item: tuple[Piece, Tensor]) -> tuple[Piece, Block]:
            piece, embeddings = item
            given = gradients[piece.places]
            return piece, finish(piece.steps, embeddings, lambda _: given)

        gathered = gather(self._task.aggregator, self._block)
        for piece, new in self._pool.stream(one, zip(self._pieces, self._embeddings, strict=True)):
            piece.add_to(gathered, self._task, self._block, new)
        return gathered

    def close(self) -> None:
        """Give up the steps that are left."""
        for piece in self._pieces:
            piece.steps.close()
            piece.release()


def weight_of(task: SiloTask, rows: int) -> float:
    """Return a client's weight in the hub's average, given its number of rows in the batch."""
    return 1.0 if task.averaging == "uniform" else float(rows)


def check_embedding(embedding: Tensor, rows: int, task: SiloTask) -> Tensor:
    """Return an embedding if it is one: a tensor (rows, E)."""
    shape = tuple(embedding.shape) if isinstance(embedding, Tensor) else type(embedding).__name__
    if shape != (rows, task.width):
        raise ValueError(f"it returned {shape} for {rows} rows in training mode, not ({rows}, {task.width})")
    return embedding


@contextmanager
def blame(task: SiloTask, clients: list[int], stage: str) -> Iterator[None]:
    """Turn whatever a silo's network raises into an error that names the silo, the clients and the stage."""
    try:
        yield
    except TdcdError:
        raise
    except Exception as error:
        names = join_names(f"'{task.roster.clients[k]}'" for k in clients)
        who = f", client {names}" if clients else ""
        hint = ""
        if "Expected more than 1 value per channel" in str(error):
            hint = (
                ". BatchNorm cannot train on a single row: use a larger batch_size or fewer clients, so that every "
                "client has two rows or none in a batch, or a norm that does not mix rows"
            )
        raise ModelError(
            f"silo '{task.silo}'{who}: its network failed in {stage}: {type(error).__name__}: {error}{hint}"
        ) from error
