"""Many clients at once: their weights stacked, a chunk of clients for each pass.

Clients have unequal numbers of rows. Where no row can influence another, shorter clients are padded with rows of
weight zero. Where rows are coupled (BatchNorm) or might be, padding would corrupt the statistics, so only clients
of equal size are stacked.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.compute.base import Piece, blame, check_embedding, descend_pieces
from tdcd.compute.modules import rows_are_independent
from tdcd.compute.threads import ALONE, Threads
from tdcd.core.average import Gathered
from tdcd.core.local_steps import Steps
from tdcd.core.network import Block
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards

PIECE = 4096
"""Rows embedded in one pass where rows are independent."""


@dataclass(frozen=True)
class Chunk:
    """Clients that are computed together."""

    clients: list[int]
    places: Tensor
    """Where their rows stand in shard order, shape (G, n). A padded place repeats the client's first row."""
    real: Tensor | None
    """Which places are rows and not padding, shape (G, n); nothing when all are."""
    counts: Tensor
    """Rows of each client, shape (G,), in the main memory."""


class Chunked(ABC):
    """What the stacked paths have in common: cutting a batch into chunks and adding up what comes of them."""

    cache = 1 << 20
    """Bytes that a chunk's weights, rows and activations may take, so that its Q steps stay in the cache."""

    def __init__(self, task: SiloTask, pool: Threads = ALONE) -> None:
        self.task, self.pool = task, pool
        self.padded = rows_are_independent(task.network.module)
        initial = task.network.initial()
        weights = sum(tensor.numel() for tensor in initial.values())
        floating = [tensor.dtype for tensor in initial.values() if tensor.is_floating_point()]
        self._dtype = floating[0] if floating else task.features.dtype
        self._client_bytes = weights * task.features.element_size()
        self._row_bytes = (task.features[0].numel() + self.activations()) * task.features.element_size()

    @abstractmethod
    def activations(self) -> int:
        """Return about how many numbers a row's pass through the network makes."""

    @abstractmethod
    def steps(self, block: Block, x: Tensor, share: Tensor, rate: float) -> Steps:
        """Take all steps of a chunk's clients from the hub's block; return their blocks, stacked.

        Args:
            block: θ_j, not to be changed.
            x: Rows, shape (G, n, …).
            share: Weight of each row in its client's loss: 1/n_k, or 0 for padding; shape (G, n, 1).
            rate: η.
        """

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:  # noqa: ARG002
        """See Compute. Rows that cannot influence each other are embedded whoever holds them."""
        task = self.task

        def piece(rows: Tensor) -> Tensor:
            with torch.no_grad(), blame(task, shards.clients.tolist(), "the forward pass"):
                return check_embedding(task.network(block, task.features[rows], training=True), len(rows), task)

        return torch.cat(self.pool.map(piece, torch.split(shards.samples, PIECE)))

    def descend(self, block: Block, round_: Round, shards: Shards, rows: Tensor) -> Gathered:
        """See Compute."""
        return descend_pieces(self.task, block, shards, rows, self.pieces(block, round_, shards), self.pool)

    def pieces(self, block: Block, round_: Round, shards: Shards) -> Iterator[Piece]:
        """See Suspendable."""
        uniform = self.task.averaging == "uniform"
        for chunk in self.chunks(shards):
            weights = torch.ones(len(chunk.counts)) if uniform else chunk.counts
            yield Piece(chunk.places, self._steps(block, shards, chunk, round_.rate), chunk.clients, weights)

    def _steps(self, block: Block, shards: Shards, chunk: Chunk, rate: float) -> Steps:
        task = self.task
        x = task.features[shards.samples[chunk.places]]
        counts = chunk.counts.unsqueeze(1).to(x.device, self._dtype)
        share = (1 / counts).expand(chunk.places.shape) if chunk.real is None else chunk.real / counts
        with blame(task, chunk.clients, "the local steps"):
            return (yield from self.steps(block, x, share.unsqueeze(-1), rate))

    def chunks(self, shards: Shards) -> Iterator[Chunk]:
        """Cut the clients into chunks of similar size, smallest clients first, without a loop over clients."""
        counts, by_size = torch.sort(shards.counts, stable=True)
        starts, clients = shards.starts[by_size], shards.clients[by_size]
        for first, last in self._bounds(counts):
            part = slice(first, last)
            longest = int(counts[last - 1])
            offsets = torch.arange(longest)
            if int(counts[first]) == longest:
                real, places = None, starts[part, None] + offsets
            else:
                real = offsets < counts[part, None]
                places = starts[part, None] + offsets * real
            device = self.task.features.device
            real = real if real is None else real.to(device)
            yield Chunk(clients[part].tolist(), places.to(device), real, counts[part])

    def _bounds(self, counts: Tensor) -> Iterator[tuple[int, int]]:
        """Yield the first and last client of each chunk, given the clients' rows in ascending order."""
        same = torch.unique_consecutive(counts, return_counts=True)[1]
        groups = [len(counts)] if self.padded else same.tolist()
        first = 0
        for group in groups:
            end = first + group
            while first < end:
                last = first + self._fitting(counts[first:end])
                yield first, last
                first = last

    def _fitting(self, counts: Tensor) -> int:
        """Return how many of these clients fit into the cache, padded to the largest; their rows ascend."""
        most = 1 + self.cache // (self._client_bytes + int(counts[0]) * self._row_bytes)
        padded = self._client_bytes + counts[:most] * self._row_bytes
        sizes = torch.arange(1, len(padded) + 1) * padded
        return max(1, int(torch.searchsorted(sizes, self.cache, right=True)))
