"""A hub's end of its clients in a simulation, wherever these are computed: see the script's Clients."""

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor

from tdcd.core.aggregators import aggregate
from tdcd.core.average import Gathered, Mean, add_idle
from tdcd.core.network import Block
from tdcd.core.script import NOTHING, Lost
from tdcd.core.state import SiloState
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import deal
from tdcd.engines.base import HubTraining, left_finite


class Group(Protocol):
    """Computes all clients of a silo. Rows are those of the round's mini-batch, in its order."""

    async def embed(self, block: Block, round_: Round, /) -> Tensor:
        """Begin a round: embed the clients' rows (B, E)."""

    async def step(self, gradients: Tensor, /) -> Tensor:
        """Take one step of every client with logit gradients (B, E); return the new embeddings (B, E)."""

    async def descend(self, rows: Tensor, /) -> Gathered:
        """Take the steps that are left; return what the clients that have rows return, gathered.

        ``rows`` (B, E) are Φ_{-j} or, where labels are remote, logit gradients.
        """


class GroupClients:
    """The clients of one hub as a group, in one round."""

    def __init__(self, hub: HubTraining, group: Group | None, round_: Round) -> None:
        self._hub, self._group, self._round = hub, group, round_

    @property
    def _training(self) -> tuple[SiloTask, Group]:
        if self._group is None or self._hub.task is None:
            raise RuntimeError(f"silo '{self._hub.silo}' has no features")
        return self._hub.task, self._group

    def _carry(self, rows: Tensor) -> Tensor:
        """Return rows that travel between the hub and its clients, a message each, as their receivers see them."""
        codecs = self._hub.codecs
        if codecs.plain_rows or codecs.rows.elementwise:
            return codecs.carry_rows(rows)
        carried = torch.empty_like(rows)
        for own in self._each_client():
            carried[own] = codecs.carry_rows(rows[own])
        return carried

    def _each_client(self) -> Iterator[Tensor]:
        """Yield the rows of each client, as places in the mini-batch."""
        shards = deal(self._round.batch, self._hub.roster)
        for _, place in shards:
            yield shards.order[place]

    async def embed(self, state: SiloState) -> Tensor:  # noqa: D102
        task, group = self._training
        self._state, self._sent = state, self._hub.codecs.carry_block(task.sent(state), task.network.trainable)
        self._own = await group.embed(self._sent, self._round)
        return self._carry(self._own)

    async def step(self, gradients: Tensor) -> Tensor:  # noqa: D102
        _, group = self._training
        return self._carry(await group.step(self._carry(gradients)))

    async def descend(self, rows: Tensor | Literal[0] | None) -> SiloState:  # noqa: D102
        if rows is None:
            rows = self._others
        else:
            rows = self._carry(torch.zeros_like(self._own) if isinstance(rows, int) else rows)
        task, group = self._training
        changes = self._hub.codecs.changes
        gathered = await group.descend(rows)
        if isinstance(gathered, Mean):
            changed = task.network.trainable if changes else ()
            add_idle(gathered, task.averaging, task.participants, self._sent, changed)
        round_ = self._hub.round(self._round.number, task)
        return aggregate(task.aggregator, self._state, gathered, round_, changes=changes)

    async def first_gradients(self, others: Tensor | Literal[0]) -> Tensor:  # noqa: D102
        if isinstance(others, int):
            raise TypeError("no other silo has embeddings")
        self._others = self._carry(others)
        return self._gradients("", self._others if self._group is None else self._own + self._others, 0)

    async def gradients(self, scores: Mapping[str, Tensor], step: int) -> Mapping[str, Tensor]:  # noqa: D102
        return {silo: self._gradients(silo, self._carry(z), step) for silo, z in scores.items()}

    def _gradients(self, silo: str, scores: Tensor, step: int) -> Tensor:
        private = self._hub.private
        if private is None:
            raise RuntimeError("nobody holds labels for others")
        noise, batch = private.noise(self._round.number, silo, step, scores), self._round.batch.to(scores.device)
        if self._hub.codecs.plain_rows:
            return private.gradients(batch, scores, noise)
        gradients = torch.empty_like(scores)
        for own in self._each_client():  # as at sites, to the bit: what is rounded next may turn a last digit into more
            gradients[own] = private.gradients(batch[own], scores[own], None if noise is None else noise[own])
        return self._carry(gradients)

    def away(self) -> Lost:  # noqa: D102
        return NOTHING

    def diverged(self, state: SiloState) -> bool:  # noqa: D102
        return self._group is not None and left_finite(state.weights, self._state.weights)
