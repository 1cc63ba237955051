"""The round script at a hub's site: its clients and the other hubs are reached over the network."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tdcd.core.average import Mean
from tdcd.core.script import Lost, LostClients, Plan, Topic
from tdcd.core.script import Message as HubMessage
from tdcd.core.state import HubUpdate, SiloState
from tdcd.core.topology import deal
from tdcd.data.arrays import Array
from tdcd.deployment.clients import Question, check_tensor, like
from tdcd.deployment.gathering import Gatherer
from tdcd.deployment.messages import (
    AWAY,
    EMBEDDINGS,
    GRADIENTS,
    LOST,
    OTHERS,
    ROWS,
    WITHOUT,
    Message,
    RefusedError,
    Stamp,
    packed,
    requester,
    unpacked,
)
from tdcd.deployment.peers import Peers
from tdcd.engines.base import block_bytes, left_finite


class SiteClients:
    """The clients of this hub, each in a process of its own, in one attempt at a round. See the script's Clients."""

    def __init__(self, hub: Gatherer, batch: Tensor, lost: Lost, stamp: Stamp, away: Callable[[], Lost]) -> None:
        """Plan it: ``batch`` is what is left of the mini-batch without ``lost`` samples.

        ``away`` returns the samples of the next mini-batch whose clients are away at the end of this round.
        """
        self._clients, self._plan, self._model, self._silo = hub.clients, hub.plan, hub.model, hub.silo
        self._settings, self._stamp, self._away = hub.job.training, stamp, away
        self._update: HubUpdate = hub.update
        self._batch, self._lost = batch, samples_array(lost)
        shards = deal(batch, hub.plan.roster)
        self._rows = {hub.plan.roster.clients[client]: shards.order[place] for client, place in shards}

    async def embed(self, state: SiloState) -> Tensor:  # noqa: D102
        self._state = state
        weights = packed(state.weights)
        return await self._embeddings("embed", {name: weights | self._without(name) for name in self._rows})

    async def step(self, gradients: Tensor) -> Tensor:  # noqa: D102
        return await self._embeddings("step", {name: {GRADIENTS: gradients[own]} for name, own in self._rows.items()})

    async def _embeddings(self, kind: str, tensors: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """Ask clients for embeddings of their rows (B, E)."""
        return (await self._collect(kind, tensors, [EMBEDDINGS]))[EMBEDDINGS]

    async def first_gradients(self, others: Tensor | Literal[0]) -> Tensor:  # noqa: D102
        scores = self._zeros() if isinstance(others, int) else others
        tensors = {name: {OTHERS: scores[own]} for name, own in self._rows.items()}
        if self._plan.label_only:  # here the round begins for these clients
            tensors = {name: own | self._without(name) for name, own in tensors.items()}
        return (await self._collect("gradients", tensors, [OTHERS]))[OTHERS]

    async def gradients(self, scores: Mapping[str, Tensor], step: int) -> Mapping[str, Tensor]:  # noqa: ARG002, D102
        fields = {requester(silo): silo for silo in scores}
        tensors = {
            name: {field: scores[silo][own] for field, silo in fields.items()} for name, own in self._rows.items()
        }
        replies = await self._collect("gradients", tensors, fields)
        return {silo: replies[field] for field, silo in fields.items()}

    async def _collect(
        self, kind: str, tensors: Mapping[str, Mapping[str, Tensor]], fields: Collection[str]
    ) -> dict[str, Tensor]:
        """Ask clients for vectors of their rows, in some fields; join them in the order of the mini-batch."""
        joined = {field: self._zeros() for field in fields}
        questions = {}
        for name, own in self._rows.items():
            expected = {field: rows[own] for field, rows in joined.items()}
            message = Message(kind, {}, tensors[name], self._stamp)
            questions[name] = Question(message, block_bytes(expected) + 8 * len(expected), like(expected))
        answers, missing = await self._clients.ask(questions)
        self._raise_if_lost(missing)
        for name, answer in answers.items():
            for field, rows in joined.items():
                rows[self._rows[name]] = answer.tensors[field]
        return joined

    async def descend(self, rows: Tensor | Literal[0] | None) -> SiloState:  # noqa: D102
        block, uniform = self._state.weights, self._settings.averaging == "uniform"
        rows, travels = self._zeros() if isinstance(rows, int) else rows, packed(self._state.weights)
        mean = Mean(block)
        counts = {name: 1.0 if uniform else float(len(own)) for name, own in self._rows.items()}
        questions = {}
        for name, own in self._rows.items():
            message = Message("descend", {}, {} if rows is None else {ROWS: rows[own]}, self._stamp)
            questions[name] = Question(message, block_bytes(block) + 8 * len(block), like(travels))

        def add(name: str, part: str, tensor: Tensor) -> None:
            check_tensor(travels, part, tensor)
            mean.add_tensor(unpacked(part), tensor, counts[name])

        _, missing = await self._clients.ask(questions, add)
        self._raise_if_lost(missing)
        mean.count(sum(counts.values()))
        idle = len(self._plan.roster.clients) - len(counts)
        if uniform and idle:
            mean.add(block, float(idle))
        return self._update(self._state, mean.result(), self._stamp.round)

    def away(self) -> Lost:  # noqa: D102
        return self._away()

    def diverged(self, state: SiloState) -> bool:  # noqa: D102
        return bool(state.weights) and left_finite(state.weights, self._state.weights)

    def _raise_if_lost(self, missing: Collection[str]) -> None:
        if missing:
            raise LostClients(sample for name in missing for sample in self._batch[self._rows[name]].tolist())

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self._batch), self._model.width, dtype=self._settings.dtype)

    def _without(self, name: str) -> dict[str, Tensor]:
        """Return which of a client's rows have left the mini-batch, as a field."""
        held = np.intersect1d(self._plan.training(name), self._lost, assume_unique=True)
        return {WITHOUT: torch.from_numpy(held)} if len(held) else {}


class SitePeers:
    """The other hubs, each at its own site, in one attempt at a round. See the script's Peers."""

    def __init__(self, peers: Peers, silo: str, plan: Plan, batch: Tensor, like: Tensor, stamp: Stamp) -> None:
        """Reach them; ``like`` has the shape and type of rows."""
        self._peers, self._silo, self._plan, self._stamp, self._like = peers, silo, plan, stamp, like
        self._batch = frozenset(batch.tolist())

    async def send(self, topic: Topic, messages: Mapping[str, HubMessage[Tensor]]) -> None:  # noqa: D102
        await asyncio.gather(
            *(self._peers.send(silo, self._packed(topic, message)) for silo, message in messages.items())
        )

    def _packed(self, topic: Topic, message: HubMessage[Tensor]) -> Message:
        tensors = {LOST: samples_tensor(message.lost)}
        facts = {}
        if message.rows is not None:
            tensors[ROWS] = message.rows
        if topic.kind == "end":
            tensors[AWAY], facts = samples_tensor(message.away), {"diverged": message.diverged}
        return Message(topic.kind, facts, tensors, self._stamp.at(topic.step))

    async def receive(self, topic: Topic, senders: Collection[str]) -> Mapping[str, HubMessage[Tensor]]:  # noqa: D102
        received = {silo: await self._peers.receive(silo, topic.kind, self._stamp.at(topic.step)) for silo in senders}
        return {silo: self._unpacked(topic, silo, message) for silo, message in received.items()}

    def _unpacked(self, topic: Topic, silo: str, message: Message) -> HubMessage[Tensor]:
        """Check a message in full before anything is computed from it.

        Raises:
            RefusedError: it is not what this hub expects now.
        """
        who = f"the hub of silo '{silo}' sends '{topic.kind}'"
        expected = {LOST, AWAY} if topic.kind == "end" else {LOST, ROWS}
        if strange := set(message.tensors) - expected:
            raise RefusedError(f"{who} with an unexpected tensor '{min(strange)[:40]}'")
        lost = read_samples(message, LOST, who)
        if not lost <= self._batch:
            raise RefusedError(f"{who}: it has lost samples that are not in the mini-batch")
        if topic.kind == "end":
            diverged = message.facts.get("diverged")
            if not isinstance(diverged, bool):
                raise RefusedError(f"{who} without saying whether its weights are finite")
            return HubMessage(None, lost, diverged, read_samples(message, AWAY, who))
        rows = message.tensors.get(ROWS)
        if self._expects_rows(topic, silo) and not lost:
            check_tensor({ROWS: self._like}, ROWS, rows)
        elif rows is not None and not lost:
            raise RefusedError(f"{who} with an unexpected tensor '{ROWS}'")
        return HubMessage(None if lost else rows, lost)

    def _expects_rows(self, topic: Topic, silo: str) -> bool:
        """Tell whether a message of another hub has rows, unless somebody was lost."""
        plan = self._plan
        if plan.requests:
            return topic.step < plan.requests.get(silo if topic.kind == "embeddings" else self._silo, 0)
        return {silo, self._silo} <= plan.features


def samples_array(samples: Lost) -> Array:
    """Return samples as an array, ascending."""
    return np.array(sorted(samples), dtype=np.int64)


def samples_tensor(samples: Lost) -> Tensor:
    """Return samples as a tensor, ascending."""
    return torch.from_numpy(samples_array(samples))


def read_samples(message: Message, field: str, who: str) -> Lost:
    """Return the samples in a field of another hub's message.

    Raises:
        RefusedError: the field is not there, or holds something else.
    """
    numbers = message.tensors.get(field)
    if numbers is None or numbers.dtype != torch.int64 or numbers.ndim != 1:
        raise RefusedError(f"{who} without '{field}', or with a strange one")
    return frozenset(numbers.tolist())
