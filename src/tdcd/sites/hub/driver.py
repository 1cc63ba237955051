"""The round script at a hub's site: its clients and the other hubs are reached over the network."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import hypot
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tdcd.core.aggregators import HubRound, aggregate, gather
from tdcd.core.average import Mean, add_idle
from tdcd.core.codecs.base import Codec, decode, encode
from tdcd.core.sampling import participants
from tdcd.core.script import Lost, LostClients, Plan, Topic
from tdcd.core.script import Message as HubMessage
from tdcd.core.state import SiloState
from tdcd.core.topology import deal
from tdcd.data.arrays import Array
from tdcd.engines.base import block_bytes, left_finite
from tdcd.sites.hub.clients import Clients, Request
from tdcd.sites.hub.peers import Peers
from tdcd.sites.hub.setup import Prepared
from tdcd.sites.messages.frames import RefusedError, Stamp
from tdcd.sites.messages.packing import UnboundedError, check_coded, check_weight, named, place_of, samples_in
from tdcd.sites.messages.types import (
    Descend,
    Embed,
    Embeddings,
    End,
    FirstGradients,
    LaterGradients,
    LogitGradients,
    SiloEmbeddings,
    SiloGradients,
    Step,
    Weights,
)


class SiteClients:
    """The clients of this hub, each in a process of its own, in one attempt at a round. See the script's Clients."""

    def __init__(
        self,
        clients: Clients,
        prepared: Prepared,
        round_: HubRound,
        batch: Tensor,
        lost: Lost,
        stamp: Stamp,
        version: int,
        away: Callable[[], Lost],
    ) -> None:
        """Plan it.

        Args:
            clients: The links to them.
            prepared: The silo's plan and model.
            round_: What the aggregator may know of the round.
            batch: What is left of the mini-batch without lost samples.
            lost: These.
            stamp: The round and the attempt.
            version: Names the weights that the round begins with.
            away: Returns the samples of the next mini-batch whose clients are away at the end of this round.
        """
        self._clients, self._plan, self._model = clients, prepared.plan, prepared.model
        self._settings, self._prepared, self._round = prepared.settings, prepared, round_
        self._codecs = prepared.codecs
        self._stamp, self._version, self._away = stamp, version, away
        self._batch, self._lost = batch, samples_array(lost)
        self._largest_update = prepared.largest_update
        shards = deal(batch, self._plan.roster)
        self._rows = {self._plan.roster.clients[client]: shards.order[place] for client, place in shards}

    async def embed(self, state: SiloState) -> Tensor:  # noqa: D102
        self._state, self._sent = state, self._prepared.sent(state)
        self._travels = self._codecs.encode_block(self._sent, self._prepared.trainable)
        weights = tuple(self._travels.values())
        messages = {
            name: Embed(self._version, weights, self._samples(name), self._without(name)) for name in self._rows
        }
        asked = {name: self._clients.links.get(name) for name in self._rows}
        embeddings = await self._embeddings(messages)
        for link in asked.values():  # a client that has come again since does not have them
            if link:
                link.version = -1 if self._codecs.changes else self._version  # evaluations are of the exact weights
        return embeddings

    async def step(self, gradients: Tensor) -> Tensor:  # noqa: D102
        return await self._embeddings({name: Step(self._encode(gradients[own])) for name, own in self._rows.items()})

    async def _embeddings(self, messages: Mapping[str, Embed | Step]) -> Tensor:
        """Ask clients for embeddings of their rows (B, E)."""
        requests = {
            name: Request(message, Embeddings, self._bytes(name), partial(self._check_embeddings, name))
            for name, message in messages.items()
        }
        replies, missing = await self._clients.ask(requests, self._stamp)
        self._raise_if_lost(missing)
        return self._joined({name: self._decode(name, reply.rows) for name, reply in replies.items()})

    async def first_gradients(self, others: Tensor | Literal[0]) -> Tensor:  # noqa: D102
        scores = self._zeros() if isinstance(others, int) else others
        begins = self._plan.label_only  # where clients have labels only, here the round begins for them
        messages = {
            name: FirstGradients(
                self._encode(scores[own]),
                self._samples(name) if begins else samples_tensor(()),
                self._without(name) if begins else samples_tensor(()),
            )
            for name, own in self._rows.items()
        }
        return (await self._gradients(messages, 1))[0]

    async def gradients(self, scores: Mapping[str, Tensor], step: int) -> Mapping[str, Tensor]:  # noqa: ARG002, D102
        messages = {
            name: LaterGradients(tuple(self._encode(rows[own]) for rows in scores.values()))
            for name, own in self._rows.items()
        }
        return dict(zip(scores, await self._gradients(messages, len(scores)), strict=True))

    async def _gradients(self, messages: Mapping[str, FirstGradients | LaterGradients], count: int) -> list[Tensor]:
        """Ask clients for logit gradients of their rows (B, E), at several scores."""

        def check(name: str, reply: LogitGradients) -> None:
            if len(reply.rows) != count:
                raise RefusedError(f"{len(reply.rows)} logit gradients, not {count}")
            for rows in reply.rows:
                self._check(name, rows)

        requests = {
            name: Request(message, LogitGradients, count * self._bytes(name), partial(check, name))
            for name, message in messages.items()
        }
        replies, missing = await self._clients.ask(requests, self._stamp)
        self._raise_if_lost(missing)
        return [
            self._joined({name: self._decode(name, reply.rows[k]) for name, reply in replies.items()})
            for k in range(count)
        ]

    def _bytes(self, name: str) -> int:
        """Return the bytes of the vectors of a client's rows, as they travel."""
        row, message = self._prepared.row_size
        return len(self._rows[name]) * row + message + 8

    def _like(self, name: str) -> Tensor:
        return torch.zeros(len(self._rows[name]), self._model.width, dtype=self._settings.dtype)

    def _encode(self, rows: Tensor) -> Tensor:
        """Return rows as they travel."""
        return encode(self._codecs.rows, rows)

    def _decode(self, name: str, rows: Tensor) -> Tensor:
        """Return a client's rows, of which the form was checked."""
        return decode(self._codecs.rows, rows, self._like(name))

    def _check_embeddings(self, name: str, reply: Embeddings) -> None:
        self._check(name, reply.rows)

    def _check(self, name: str, rows: Tensor) -> None:
        check_coded(self._codecs.rows, rows, self._like(name), "rows")

    def _joined(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Join the vectors of all clients' rows in the order of the mini-batch."""
        joined = self._zeros()
        for name, own in rows.items():
            joined[self._rows[name]] = own
        return joined

    async def descend(self, rows: Tensor | Literal[0] | None) -> SiloState:  # noqa: D102
        block, uniform = self._sent, self._settings.averaging == "uniform"
        rows = self._zeros() if isinstance(rows, int) else rows
        names, aggregator = list(block), self._prepared.aggregator
        changed = frozenset(self._prepared.trainable if self._codecs.changes else ())
        gathered, places = gather(aggregator, block), {name: k for k, name in enumerate(self._plan.roster.clients)}
        moved: dict[str, float] = dict.fromkeys(self._rows, 0.0)
        checked: set[str] = set()
        counts = {name: 1.0 if uniform else float(len(own)) for name, own in self._rows.items()}

        def add(client: str, field: str, tensor: Tensor) -> None:
            place = place_of("weights", field)
            if place >= len(names):
                raise RefusedError(f"more than {len(names)} tensors of weights")
            name = names[place]
            tensor = decoded(name, tensor) if client in checked else check_one(client, name, tensor)
            if isinstance(gathered, Mean):
                gathered.add_tensor(name, tensor, counts[client])
            else:
                gathered.add_tensor(places[client], name, tensor)

        def decoded(name: str, tensor: Tensor) -> Tensor:
            return decode(self._codecs.weights, tensor, block[name]) if name in changed else tensor

        def check_one(client: str, name: str, tensor: Tensor) -> Tensor:
            like = block[name]
            bounded = self._largest_update is not None and name in self._state.weights
            if name in changed:
                tensor = check_coded(self._codecs.weights, tensor, like, f"changes of '{name}'")
                trains = True
            else:
                trains = check_weight(tensor, like, f"weights '{name}'")
            if trains and bounded:
                change = tensor if name in changed else tensor - like
                moved[client] = hypot(moved[client], float(change.double().norm()))
                if self._largest_update is not None and moved[client] > self._largest_update:
                    raise UnboundedError(
                        f"its weights have moved by {moved[client]:.4g} in a round, more than "
                        f"deployment.largest_update = {self._largest_update:g}"
                    )
            return tensor

        def check(client: str, reply: Weights) -> None:
            for name, tensor in named(self._travels, reply.weights, "weights"):
                if not tensor.is_meta:  # those were checked as they came
                    check_one(client, name, tensor)
            checked.add(client)

        requests = {
            name: Request(
                Descend(None if rows is None else self._encode(rows[own])),
                Weights,
                block_bytes(self._travels) + 8 * len(block),
                partial(check, name),
            )
            for name, own in self._rows.items()
        }
        _, missing = await self._clients.ask(requests, self._stamp, add)
        self._raise_if_lost(missing)
        if isinstance(gathered, Mean):
            gathered.count(sum(counts.values()))
            there = participants(len(places), self._settings.participation)
            add_idle(gathered, self._settings.averaging, there, block, changed)
        return aggregate(aggregator, self._state, gathered, self._round, changes=self._codecs.changes)

    def away(self) -> Lost:  # noqa: D102
        return self._away()

    def diverged(self, state: SiloState) -> bool:  # noqa: D102
        return bool(state.weights) and left_finite(state.weights, self._state.weights)

    def _raise_if_lost(self, missing: Mapping[str, Exception | None]) -> None:
        if missing:
            samples = (sample for name in missing for sample in self._batch[self._rows[name]].tolist())
            unbounded = sum(isinstance(error, UnboundedError) for error in missing.values())
            everybody = len(missing) == len(self._rows)  # some may be away: most are enough to tell
            raise LostClients(samples, diverged=everybody and 2 * unbounded > len(self._rows))

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self._batch), self._model.width, dtype=self._settings.dtype)

    def _samples(self, name: str) -> Tensor:
        """Return a client's samples in the mini-batch, where it cannot draw it by itself."""
        return self._batch[self._rows[name]] if self._settings.participation < 1 else samples_tensor(())

    def _without(self, name: str) -> Tensor:
        """Return which of a client's rows have left the mini-batch that it draws by itself."""
        if not len(self._lost) or self._settings.participation < 1:
            return samples_tensor(())
        return torch.from_numpy(np.intersect1d(self._plan.training(name), self._lost, assume_unique=True))


class SitePeers:
    """The other hubs, each at its own site, in one attempt at a round. See the script's Peers."""

    def __init__(
        self, peers: Peers, silo: str, plan: Plan, batch: Tensor, like: Tensor, codec: Codec, stamp: Stamp
    ) -> None:
        """Reach them; ``like`` has the shape and type of rows, before ``codec`` encodes them."""
        self._peers, self._silo, self._plan, self._stamp, self._like = peers, silo, plan, stamp, like
        self._codec = codec
        self._batch = frozenset(batch.tolist())

    async def send(self, topic: Topic, messages: Mapping[str, HubMessage[Tensor]]) -> None:  # noqa: D102
        stamp = self._stamp.at(topic.step)
        await asyncio.gather(
            *(self._peers.send(silo, self._typed(topic, message), stamp) for silo, message in messages.items())
        )

    async def receive(self, topic: Topic, senders: Collection[str]) -> Mapping[str, HubMessage[Tensor]]:  # noqa: D102
        stamp, kind = self._stamp.at(topic.step), _KINDS[topic.kind]
        received = {silo: await self._peers.receive(silo, kind, stamp) for silo in senders}
        return {silo: self._checked(topic, silo, message) for silo, message in received.items()}

    def _checked(self, topic: Topic, silo: str, message: SiloEmbeddings | SiloGradients | End) -> HubMessage[Tensor]:
        """Check a message in full before anything is computed from it.

        Raises:
            RefusedError: it is not what this hub expects now.
        """
        who = f"the hub of silo '{silo}' sends '{topic.kind}'"
        lost = samples_in(message.lost, who)
        if not lost <= self._batch:
            raise RefusedError(f"{who}: it has lost samples that are not in the mini-batch")
        diverged = frozenset(message.diverged)
        if not diverged <= set(self._plan.silos):
            raise RefusedError(f"{who}: silos have diverged that are not in this job")
        if isinstance(message, End):
            return HubMessage(None, lost, diverged, samples_in(message.away, who))
        if lost or diverged:
            return HubMessage(None, lost, diverged)
        if self._expects_rows(topic, silo):
            return HubMessage(check_coded(self._codec, message.rows, self._like, f"{who}: rows"))
        if message.rows is not None:
            raise RefusedError(f"{who} with unexpected rows")
        return HubMessage()

    def _typed(self, topic: Topic, message: HubMessage[Tensor]) -> SiloEmbeddings | SiloGradients | End:
        """Return a message of the script as it travels."""
        lost, diverged = samples_tensor(message.lost), tuple(sorted(message.diverged))
        if topic.kind == "end":
            return End(lost, samples_tensor(message.away), diverged)
        rows = None if message.rows is None else encode(self._codec, message.rows)
        return (SiloEmbeddings if topic.kind == "embeddings" else SiloGradients)(rows, lost, diverged)

    def _expects_rows(self, topic: Topic, silo: str) -> bool:
        """Tell whether a message of another hub has rows, unless somebody was lost."""
        plan = self._plan
        if plan.requests:
            return topic.step < plan.requests.get(silo if topic.kind == "embeddings" else self._silo, 0)
        return {silo, self._silo} <= plan.features


_KINDS: dict[str, type[SiloEmbeddings | SiloGradients | End]] = {
    "embeddings": SiloEmbeddings,
    "gradients": SiloGradients,
    "end": End,
}


def samples_array(samples: Collection[int]) -> Array:
    """Return samples as an array, ascending."""
    return np.array(sorted(samples), dtype=np.int64)


def samples_tensor(samples: Collection[int]) -> Tensor:
    """Return samples as a tensor, ascending."""
    return torch.from_numpy(samples_array(samples))
