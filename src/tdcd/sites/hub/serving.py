"""A hub whose training has finished: it keeps its part of the model ready, and answers questions about IDs.

A program at the silo that may ask (``deployment.predict_at``) asks its own hub. That hub asks all other hubs at once,
and its own clients; every hub asks its clients, and returns its silo's embeddings. Only the hub that asks adds up
scores.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdcd.core.task import sum_embeddings
from tdcd.data.arrays import Array
from tdcd.errors import DataError, DeploymentError, TdcdError, join_names
from tdcd.jobs.schema import TableJob
from tdcd.sites.hub.batches import Batches
from tdcd.sites.hub.peers import Peer
from tdcd.sites.hub.reception import Door, first_message
from tdcd.sites.hub.served import ServedModel, load_served
from tdcd.sites.hub.serving_clients import ServingClients, SiloRows
from tdcd.sites.hub.serving_peers import ServingPeers
from tdcd.sites.messages.calls import ClientStatus, Hello, HubStatus, Opening, PeerStatus
from tdcd.sites.messages.frames import Frame, Message, RefusedError, Stamp, message_in, one_frame
from tdcd.sites.messages.packing import kind_of, pack, unpack
from tdcd.sites.messages.predictions import (
    QUESTION,
    Describe,
    Described,
    Predict,
    Predicted,
    SiloLookedUp,
    SiloLookUp,
    check_ids,
)
from tdcd.sites.messages.types import STOPPED, Farewell
from tdcd.sites.security.identity import Identity
from tdcd.sites.shared_job import VERSION, SharedJob
from tdcd.sites.transport.base import AwayError, NotAllowedError, Stream

MOST_QUESTIONS = 1024
"""Under way at a time."""
SHOWN = 5
"""IDs that an error names."""


@dataclass(frozen=True)
class Exchanged:
    """What all silos have of some IDs."""

    ids: Array
    scores: Tensor
    """The sum of the embeddings of the silos that have each, (n, E)."""
    silos: tuple[str, ...]
    without: Tensor
    """Which silos lack which ID, (n, silos)."""
    reasons: Mapping[str, str]
    """Why a silo's hub is of no use now; or which of its clients are away, who may have the IDs that it lacks."""


@dataclass
class Counters:
    """What a hub has answered since it serves."""

    requests: int = 0
    ids: int = 0
    errors: int = 0
    under_way: int = 0
    last_error: str = ""


@dataclass
class ServingHub:
    """A hub that serves. See HubService."""

    job: TableJob
    silo: str
    shared: SharedJob
    model: ServedModel
    clients: ServingClients
    peers: ServingPeers
    log: Callable[[str], None]
    counters: Counters = field(default_factory=Counters)
    _batches: Batches[Exchanged] = field(init=False)
    _background: set["asyncio.Task[Any]"] = field(default_factory=set)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._batches = Batches(self.exchange, self.model.most)

    @property
    def door(self) -> Door:
        """Who may call."""
        return Door(self.silo, self.clients.names, tuple(self.peers.peers))

    def open(self) -> None:
        """Begin to keep the lines to the other hubs open, where this hub asks."""
        asker = self.job.predict_at
        self.log(
            f"serving the weights of round {self.model.round:,} of run {self.model.run}; predictions are asked for at "
            f"silo '{asker}'. {self.clients.describe_ready()}"
        )
        if self.silo == asker:
            self._background.add(asyncio.ensure_future(self.peers.keep_warm()))

    async def close(self) -> None:
        """Tell the clients that this hub ends, perhaps to be started again."""
        for task in self._background:
            task.cancel()
        await self.clients.farewell(Farewell(STOPPED, ""))

    # What others call

    async def attend(self, caller: Identity | None, stream: Stream) -> None:
        """Keep a client's stream until it ends."""
        if caller is not None:
            self.door.check_client(caller)
        join = await first_message(stream)
        who = caller or Identity(join.silo, join.client)
        self.door.check_client(who)
        self.shared.check(join.protocol, join.version, join.job, str(who))
        await self.clients.attend(who.client or "", stream, serves=join.serves)

    async def meet(self, caller: Identity | None, hello: Hello) -> Opening:
        """Refuse a hub that wants to train."""
        self.door.check_peer(caller, hello.silo)
        self.shared.check(hello.protocol, hello.version, hello.job, f"the hub of silo '{hello.silo}'")
        raise DeploymentError(
            f"the hub of silo '{self.silo}' has finished this training and serves its model; if yours has lost its run "
            "directory, put it back. To train again, start all hubs without --serve, with another run directory"
        )

    async def deliver(self, caller: Identity | None, silo: str, frames: AsyncIterator[Frame]) -> str:
        """Take a message of a training that is over."""
        self.door.check_peer(caller, silo)
        async for _ in frames:
            pass
        return "the training is over here"

    async def report(self, caller: Identity | None) -> HubStatus:
        """Tell how the hub is doing, to anybody of its silo; errors may say which silo lacks an ID: to itself alone."""
        if caller is not None:
            self.door.check_silo(caller)
        peers = self.peers.peers.values()
        answers = await asyncio.gather(*(peer.hub.answers(2.0) for peer in peers))
        for peer, answer in zip(peers, answers, strict=True):
            peer.present = answer
        status = self.status()
        if caller is None or caller.client is None or not status.last_error:
            return status
        return replace(status, last_error="at the hub alone, as it may tell of other silos")

    async def predict(self, caller: Identity | None, silo: str, frame: Frame) -> Frame:
        """Answer a question about IDs: of the hub that may ask, or of a program at this hub."""
        message = message_in(frame, QUESTION)
        if message.kind == kind_of(Describe):
            self._check_own(caller)
            unpack(message, Describe)
            return self._reply(self._describe())
        if message.stamp.job != self.shared.fingerprint:
            raise RefusedError("a message of another job")
        if message.kind == kind_of(SiloLookUp):
            self._check_asker(caller, silo)
            return self._reply(await self._counted(self._look_up, message))
        self._check_own(caller)
        return self._reply(await self._counted(self._predict, message))

    def _check_own(self, caller: Identity | None) -> None:
        """Check that a program shows the certificate of this very hub, and may ask here."""
        if caller is not None and caller != Identity(self.silo):
            raise NotAllowedError(
                f"predictions are asked for with the certificate of the hub of silo '{self.silo}', not of {caller}"
            )
        if self.silo != (asker := self.job.predict_at):
            raise RefusedError(
                f"predictions are asked for at silo '{asker}', not at '{self.silo}'; the job may name another silo: "
                "deployment.predict_at"
            )

    def _check_asker(self, caller: Identity | None, silo: str) -> None:
        """Check that another hub may ask."""
        self.door.check_peer(caller, silo)
        if silo != self.job.predict_at:
            raise NotAllowedError(
                f"only the hub of silo '{self.job.predict_at}' may ask for predictions (deployment.predict_at), not "
                f"that of '{silo}'"
            )

    async def _counted(self, answer: Callable[[Message], Awaitable[tuple[object, int]]], message: Message) -> object:
        """Answer a question, and count it."""
        counters = self.counters
        counters.requests += 1
        if counters.under_way >= MOST_QUESTIONS:
            raise RefusedError(f"{MOST_QUESTIONS:,} questions are under way here; ask again later")
        counters.under_way += 1
        try:
            reply, ids = await answer(message)
        except TdcdError as error:
            counters.errors += 1
            counters.last_error = str(error)
            raise
        finally:
            counters.under_way -= 1
        counters.ids += ids
        return reply

    def _reply(self, message: object) -> Frame:
        return one_frame(pack(message, Stamp(self.shared.fingerprint)))

    def _describe(self) -> Described:
        model = self.model
        return Described(self.shared.text, model.run, model.round, model.classes, model.width, model.most)

    async def _look_up(self, message: Message) -> tuple[SiloLookedUp, int]:
        """Return this silo's embeddings, for the hub that asks."""
        question = unpack(message, SiloLookUp)
        self.model.check(question.run, question.round)
        check_ids(question.ids, self.model.most)
        found = await self.clients.look_up(question.ids)
        present = found.present
        reply = SiloLookedUp(found.features, present.byte(), found.rows[present], found.away)
        return reply, int(present.sum())

    async def _predict(self, message: Message) -> tuple[Predicted, int]:
        """Return scores to a program."""
        question = unpack(message, Predict)
        self.model.check(question.run, question.round)
        check_ids(question.ids, self.model.most)
        result, place = await self._batches.ask(question.ids)
        self._check_complete(result, place)
        return Predicted(result.scores[place], result.silos, result.without[place].byte()), len(question.ids)

    async def exchange(self, ids: Array) -> Exchanged:
        """Ask all silos for their embeddings of some IDs, and add them up."""
        others, own = await asyncio.gather(self.peers.look_up(ids), self.clients.look_up(ids))
        answers: dict[str, SiloRows | str] = {**others, **({self.silo: own} if own.features else {})}
        model, reasons = self.model, dict[str, str]()
        rows, without = dict[str, Tensor](), dict[str, Tensor]()
        for silo, answer in sorted(answers.items()):
            if isinstance(answer, str):
                reasons[silo], without[silo] = answer, torch.ones(len(ids), dtype=torch.bool)
                continue
            if answer.away:
                reasons[silo] = join_names((f"client {text}" for text in answer.away), SHOWN)
            rows[silo], without[silo] = answer.rows, ~answer.present
        scores = sum_embeddings(rows) if rows else torch.zeros(len(ids), model.width, dtype=model.dtype)
        columns = list(without.values())
        missing = torch.stack(columns, 1) if columns else torch.zeros(len(ids), 0, dtype=torch.bool)
        return Exchanged(ids, scores, tuple(without), missing, reasons)

    def _check_complete(self, result: Exchanged, place: slice) -> None:
        """Check that enough silos have every ID.

        Raises:
            AwayError: somebody is away who may have it.
            DataError: a silo does not have it, or no silo has.
        """
        ids, without = result.ids[place], result.without[place]
        if self.job.deployment.partial_predictions:
            if bool((nowhere := without.all(1)).any()):
                raise DataError(f"no silo has {_named(ids, nowhere)}{_reasons(result.reasons)}")
            return
        parts, away = [], False
        for number, silo in enumerate(result.silos):
            if not bool((lacks := without[:, number]).any()):
                continue
            reason = result.reasons.get(silo, "")
            away = away or bool(reason)
            if bool(lacks.all()) and silo in result.reasons and not reason.startswith("client "):
                parts.append(f"the hub of silo '{silo}' is away: {reason}")
            else:
                where = f", which may be at {reason}" if reason else ""
                parts.append(f"silo '{silo}' does not have {_named(ids, lacks)}{where}")
        if parts:
            text = ". ".join(parts)
            raise (AwayError if away else DataError)(
                f"{text}. Such IDs are predicted without these silos only if the job has "
                "deployment.partial_predictions = true"
            )

    def status(self) -> HubStatus:
        """Tell how the hub is doing."""
        counters, model, clock = self.counters, self.model, asyncio.get_running_loop().time()
        links = self.clients.links
        return HubStatus(
            silo=self.silo,
            job=self.job.name,
            stage="serving",
            round=model.round,
            rounds=self.job.training.rounds,
            rounds_per_second=0.0,
            clients=tuple(
                ClientStatus(
                    name=name,
                    present=name in links,
                    rows=0,
                    left_out=0,
                    seconds_since_seen=clock - links[name].seen if name in links else -1.0,
                    serves=max(0, links[name].rows or 0) if name in links else 0,
                )
                for name in self.clients.names
            ),
            peers=tuple(PeerStatus(peer.silo, peer.address, peer.present) for peer in self.peers.peers.values()),
            bytes_sent=self.peers.sent + sum(link.sent for link in links.values()),
            bytes_received=self.peers.received + sum(link.received for link in links.values()),
            evaluation_bytes=0,
            last_error=counters.last_error,
            evaluation="",
            seconds=time.monotonic() - self._started,
            version=VERSION,
            prediction_requests=counters.requests,
            predicted=counters.ids,
            prediction_errors=counters.errors,
        )


def build_serving(
    job: TableJob, silo: str, clients: tuple[str, ...], peers: Mapping[str, Peer], directory: Path,
    log: Callable[[str], None],
) -> ServingHub:  # fmt: skip
    """Put a hub together that serves what its run directory holds.

    Raises:
        RunError: that is not a finished training, or no longer what was written.
    """
    shared, deadline = SharedJob.of(job), job.deployment.client_deadline
    model = load_served(job, silo, directory)
    own = ServingClients(silo, clients, shared.fingerprint, model, deadline, log)
    others = ServingPeers(silo, shared.fingerprint, model, peers, deadline + 5, log)
    return ServingHub(job, silo, shared, model, own, others, log)


def _named(ids: Array, mask: Tensor) -> str:
    """Name some of the IDs that a mask tells, and say how many there are."""
    some = ids[mask.numpy()]
    plural = "s" if len(some) > 1 else ""
    return f"{len(some):,} of the {len(ids):,} IDs: {join_names(some.tolist(), SHOWN)}" if plural else f"ID {some[0]}"


def _reasons(reasons: Mapping[str, str]) -> str:
    return "".join(f"; silo '{silo}': {reason}" for silo, reason in reasons.items())
