"""What every compute path offers, and how its failures are told."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from tdcd.core.average import Mean
from tdcd.core.network import Block
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards
from tdcd.errors import ModelError, TdcdError, join_names


class Compute(Protocol):
    """A way to compute a group of clients of one silo."""

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """Return the clients' embeddings (B, E), rows in the order of ``shards.order``."""

    def descend(self, block: Block, round_: Round, shards: Shards, others: Tensor) -> Mean:
        """Take every client's Q steps, its rows of Φ_{-j} (B, E) held still, and return the running mean.

        ``others`` has its rows in the order of ``shards.order``.
        """


def weight_of(task: SiloTask, rows: int) -> float:
    """Return a client's weight in the hub's average, given its number of rows in the batch."""
    return 1.0 if task.averaging == "uniform" else float(rows)


def mean_with_idle(task: SiloTask, block: Block, shards: Shards) -> Mean:
    """Start a mean that already holds the clients without rows in the batch: their weights are still θ_j."""
    mean = Mean(block)
    idle = shards.idle * weight_of(task, 0)
    if idle:
        mean.add(block, idle)
    return mean


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
