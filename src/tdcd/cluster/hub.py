"""One silo's hub on a cluster: it runs the round script, with its clients in bundles and its peers elsewhere."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tdcd.cluster.bundle import Descent, mean_of_sums, merged
from tdcd.cluster.fold import Fold
from tdcd.cluster.wire import Wire, pack, pack_block, pack_state, unpack, unpack_state
from tdcd.core.average import Gathered, Held, Mean
from tdcd.core.network import Block
from tdcd.core.script import Diverged, Hub, Lost, Message, Plan, Topic, communication_round
from tdcd.core.state import SiloState
from tdcd.core.task import Round, sum_embeddings
from tdcd.data.holdout import Part
from tdcd.engines.base import HubTraining, Measure
from tdcd.engines.clients import GroupClients
from tdcd.engines.simulation import measure_scores


class LostError(Exception):
    """An actor is gone, or cannot be reached."""


class AbandonedError(LostError):
    """Another actor of this attempt is gone."""


class Handle(Protocol):
    """An actor, from elsewhere."""

    name: str

    def call(self, method: str, *arguments: Any) -> Awaitable[Any]:
        """Call a method; return its result.

        Raises:
            LostError: the actor is gone.
        """

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method; nobody waits for it."""

    def share(self, value: Any) -> Any:
        """Return what stands for a value in calls of several actors: a large one is then sent once a node."""


@dataclass(frozen=True)
class HubSpec:
    """All that makes a hub; a lost one is made again of it."""

    training: HubTraining
    """Its task is without rows."""
    plan: Plan
    groups: int
    """Into how many groups its clients are cut."""
    bundles: Sequence[Handle]
    peers: Mapping[str, Handle]
    """The hubs of all other silos."""
    measure: Measure | None = None
    labels: Mapping[Part, Any] = field(default_factory=dict)
    """y of the parts to evaluate on, at the hub that measures."""


@dataclass(frozen=True)
class Report:
    """What a hub says at the end of a round."""

    state: tuple[Wire, Wire] = field(default_factory=lambda: ({}, {}))
    """The silo's new state; empty if the training has diverged."""
    diverged: tuple[str, ...] = ()
    drew: bool = False
    """Whether a network has drawn random numbers, though it was not expected to."""
    seconds: float = 0.0
    """From the beginning to the end of the round."""
    computing: float = 0.0
    """Of these, how long the slowest of the bundles computed, call by call."""
    waiting: float = 0.0
    """How long the hub waited for other hubs."""
    bundles: Sequence[float] = ()
    """How long each bundle computed."""


class Inbox:
    """Messages from other hubs, by attempt and topic."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, str], dict[str, Any]] = {}
        self._arrived: dict[tuple[int, str], asyncio.Event] = {}
        self._begun, self._over = 0, -1

    def begin(self, stamp: int) -> None:
        """Forget earlier attempts."""
        self._begun = stamp
        for key in [key for key in self._boxes if key[0] < stamp]:
            del self._boxes[key]
        self._arrived = {key: event for key, event in self._arrived.items() if key[0] >= stamp}

    def put(self, stamp: int, topic: str, sender: str, message: Any) -> None:
        """Take a message; one of an attempt that is over is of no use."""
        if stamp >= self._begun:
            self._boxes.setdefault((stamp, topic), {})[sender] = message
            self._event(stamp, topic).set()

    async def take(self, stamp: int, topic: str, senders: int) -> dict[str, Any]:
        """Wait for a message from so many hubs.

        Raises:
            AbandonedError: the attempt is given up.
        """
        event = self._event(stamp, topic)
        while stamp > self._over and len(self._boxes.get((stamp, topic), {})) < senders:
            event.clear()
            await event.wait()
        self._arrived.pop((stamp, topic), None)
        if stamp <= self._over:
            raise AbandonedError(f"attempt {stamp} was given up")
        return self._boxes.pop((stamp, topic), {})

    def abandon(self, stamp: int) -> None:
        """Give up all attempts up to one."""
        self._over = max(self._over, stamp)
        for event in self._arrived.values():
            event.set()

    def _event(self, stamp: int, topic: str) -> asyncio.Event:
        return self._arrived.setdefault((stamp, topic), asyncio.Event())


class BundleGroup:
    """A silo's clients in bundles, in one attempt at a round. See Group."""

    def __init__(self, spec: HubSpec, stamp: int) -> None:
        self._spec, self._stamp = spec, stamp
        self._active: list[Handle] = []
        self.computing = 0.0
        self.bundles: Sequence[float] = ()
        self.drew = False

    async def embed(self, block: Block, round_: Round) -> Tensor:  # noqa: D102
        handles = self._spec.bundles
        wire = handles[0].share(pack_block(block))
        batch = handles[0].share(pack(round_.batch))
        replies = await asyncio.gather(
            *(handle.call("embed", self._stamp, wire, round_.number, batch, round_.rate) for handle in handles)
        )
        self._like = block
        self._active = [handle for handle, (places, _, _) in zip(handles, replies, strict=True) if len(places)]
        self._seconds = {handle.name: seconds for handle, (_, _, seconds) in zip(handles, replies, strict=True)}
        self._places = [torch.from_numpy(np.array(places)) for places, _, _ in replies if len(places)]
        self._count(seconds for _, _, seconds in replies)
        return self._join([rows for places, rows, _ in replies if len(places)], len(round_.batch))

    async def step(self, gradients: Tensor) -> Tensor:  # noqa: D102
        replies = await asyncio.gather(
            *(
                handle.call("step", self._stamp, pack(gradients[places]))
                for handle, places in zip(self._active, self._places, strict=True)
            )
        )
        self._count(seconds for _, seconds in replies)
        return self._join([rows for rows, _ in replies], len(gradients))

    async def descend(self, rows: Tensor) -> Gathered:  # noqa: D102
        replies: list[Descent] = await asyncio.gather(
            *(
                handle.call("descend", self._stamp, pack(rows[places]))
                for handle, places in zip(self._active, self._places, strict=True)
            )
        )
        before = dict(self._seconds)
        self._seconds |= {handle.name: r.seconds for handle, r in zip(self._active, replies, strict=True)}
        self._count(self._seconds[handle.name] - before[handle.name] for handle in self._active)
        self.bundles = [self._seconds[handle.name] for handle in self._spec.bundles]
        self.drew = any(reply.drew for reply in replies)
        if any(reply.clients for reply in replies):
            held = Held()
            for reply in replies:
                if reply.clients:
                    held.add_stack(reply.clients, {name: unpack(value) for name, value in reply.blocks.items()})
            return held
        return self._mean(replies)

    def _mean(self, replies: Sequence[Descent]) -> Mean:
        fold: Fold[Mean] = Fold(merged)
        given = {(size, index) for reply in replies for size, index, _, _ in reply.sums}
        for reply in replies:
            for size, index, sums, weight in reply.sums:
                fold.add(size, index, mean_of_sums(self._like, sums, weight))
        for group in _missing(given, self._spec.groups):
            fold.add(1, group, None)
        total = fold.total(self._spec.groups)
        return Mean(self._like) if total is None else total

    def _join(self, parts: Sequence[Any], rows: int) -> Tensor:
        joined: Tensor | None = None
        for places, part in zip(self._places, parts, strict=True):
            own = unpack(part)
            if joined is None:
                joined = own.new_empty(rows, own.shape[1])
            joined[places] = own
        if joined is None:
            raise RuntimeError("no client has rows of the mini-batch")
        return joined

    def _count(self, seconds: Any) -> None:
        self.computing += max(seconds, default=0.0)


def _missing(nodes: Collection[tuple[int, int]], groups: int) -> list[int]:
    """Return the groups that no node of the tree covers: their bundles have no rows."""
    covered = np.zeros(groups, dtype=np.bool_)
    for size, index in nodes:
        covered[size * index : size * (index + 1)] = True
    return [int(group) for group in np.flatnonzero(~covered)]


class RemotePeers:
    """The other hubs, as actors. See the script's Peers.

    They do not meet at the end of a round: the driver hears from all of them, also of those that have diverged.
    """

    def __init__(self, spec: HubSpec, stamp: int, inbox: Inbox) -> None:
        self._spec, self._stamp, self._inbox = spec, stamp, inbox
        self.waiting = 0.0

    async def send(self, topic: Topic, messages: Mapping[str, Message[Tensor]]) -> None:  # noqa: D102
        if topic.kind == "end":
            return
        codecs, shared, sent = self._spec.training.codecs, dict[int, Any](), list[Awaitable[None]]()
        for receiver, message in messages.items():
            peer, rows = self._spec.peers[receiver], message.rows
            if rows is not None and id(rows) not in shared:  # most often all receive the same
                shared[id(rows)] = peer.share(pack(codecs.carry_rows(rows)))
            value = None if rows is None else shared[id(rows)]
            plain = message._replace(rows=None)
            sent.append(peer.call("deliver", self._stamp, _name(topic), self._spec.training.silo, value, plain))
        await asyncio.gather(*sent)  # nobody waits in vain for a message that was lost

    async def receive(self, topic: Topic, senders: Collection[str]) -> Mapping[str, Message[Tensor]]:  # noqa: D102
        if topic.kind == "end":
            return {silo: Message() for silo in senders}
        begun = time.perf_counter()
        received = await self._inbox.take(self._stamp, _name(topic), len(senders))
        self.waiting += time.perf_counter() - begun
        return {
            silo: message._replace(rows=None if rows is None else unpack(rows))
            for silo, (rows, message) in received.items()
        }


def _name(topic: Topic) -> str:
    return f"{topic.kind} {topic.step}"


class ClusterHub:
    """Runs the rounds of one silo."""

    def __init__(self, spec: HubSpec) -> None:
        self._spec, self._inbox = spec, Inbox()

    def deliver(self, stamp: int, topic: str, sender: str, rows: Any, message: Any) -> None:
        """Take a message of another hub."""
        self._inbox.put(stamp, topic, sender, (rows, message))

    def abandon(self, stamp: int) -> None:
        """Give up an attempt that waits for a hub that is gone."""
        self._inbox.abandon(stamp)

    def close(self) -> None:
        """Give up whatever is under way."""
        self._inbox.abandon(sys.maxsize)

    async def round(self, stamp: int, state: tuple[Wire, Wire], number: int, batch: Any, rate: float) -> Report:
        """Run this silo's part of a round, from a state of its own."""
        begun, spec = time.perf_counter(), self._spec
        self._inbox.begin(stamp)
        group = BundleGroup(spec, stamp) if spec.training.task else None
        peers = RemotePeers(spec, stamp, self._inbox)
        round_ = Round(number, unpack(batch), rate)
        mask = spec.training.silo_dropout.in_round(number, round_.batch)

        def attempt(lost: Lost, number: int) -> Hub[Tensor, SiloState]:  # noqa: ARG001
            return Hub(spec.training.silo, spec.plan, GroupClients(spec.training, group, round_), peers, mask)

        try:
            outcome = await communication_round(attempt, unpack_state(state))
        except Diverged as error:
            return Report(diverged=error.silos, drew=bool(group and group.drew))
        return Report(
            pack_state(outcome.state),
            drew=bool(group and group.drew),
            seconds=time.perf_counter() - begun,
            computing=group.computing if group else 0.0,
            waiting=peers.waiting,
            bundles=group.bundles if group else (),
        )

    async def embed_part(self, stamp: int, part: Part, weights: Wire, judge: Handle | None) -> None:
        """Embed all rows of a part, and send the embeddings to the hub that measures."""
        spec = self._spec
        if spec.training.task is None:
            return
        shared = spec.bundles[0].share(weights)
        replies = await asyncio.gather(*(handle.call("embed_part", part, shared) for handle in spec.bundles))
        joined = np.empty((sum(len(places) for places, _ in replies), *replies[0][1].shape[1:]), replies[0][1].dtype)
        for places, rows in replies:
            joined[places] = rows
        message = (stamp, _part_topic(part), spec.training.silo)
        if judge is None:
            self._inbox.put(*message, joined)
        else:
            await judge.call("embedded", *message, judge.share(joined))

    def embedded(self, stamp: int, topic: str, sender: str, rows: Any) -> None:
        """Take the embeddings of another silo."""
        self._inbox.put(stamp, topic, sender, rows)

    async def measure(self, stamp: int, part: Part) -> Mapping[str, float]:
        """Return the loss and metrics of a part, once all silos have sent their embeddings of it."""
        scores = unpack(await self.add_scores(stamp, part))
        return measure_scores(self._spec.measure, scores, unpack(self._spec.labels[part]))

    async def add_scores(self, stamp: int, part: Part) -> Any:
        """Return the scores of a part, once all silos have sent their embeddings of it."""
        received = await self._inbox.take(stamp, _part_topic(part), len(self._spec.plan.features))
        return pack(sum_embeddings({silo: unpack(rows) for silo, rows in received.items()}))


def _part_topic(part: Part) -> str:
    return f"scores {part.word}"
