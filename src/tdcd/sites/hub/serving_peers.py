"""The other hubs, as the hub sees them that asks for predictions: asked all at once, over lines that stay open."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from tdcd.data.arrays import Array
from tdcd.errors import DeploymentError
from tdcd.sites.hub.alive import while_alive
from tdcd.sites.hub.link import SMALL
from tdcd.sites.hub.peers import Peer
from tdcd.sites.hub.served import ServedModel
from tdcd.sites.hub.serving_clients import SiloRows
from tdcd.sites.messages.frames import Frame, RefusedError, Stamp, message_in, one_frame
from tdcd.sites.messages.packing import check_numbers, pack, unpack
from tdcd.sites.messages.predictions import ANSWER, MOST_IDS, SiloLookedUp, SiloLookUp, check_present
from tdcd.sites.transport.base import AwayError, RefusalError, UnreachableError

WARM = 10.0
"""Seconds between two looks at a hub that nobody asks: lines stay open, and who is away is known."""
MOST_AWAY, LONGEST_AWAY = 10_000, 300
"""Clients that a hub may call away, and letters that it may use for each."""


@dataclass
class ServingPeers:
    """The other hubs."""

    silo: str
    job: str
    """The fingerprint of what all sites share."""
    model: ServedModel
    peers: Mapping[str, Peer]
    deadline: float
    log: Callable[[str], None]
    sent: int = 0
    received: int = 0
    _labels_only: set[str] = field(default_factory=set)
    """Silos that are known to have no features: nobody needs them."""

    async def look_up(self, ids: Array) -> dict[str, SiloRows | str]:
        """Ask all other hubs for their silos' embeddings of some IDs.

        Returns:
            What each silo has, or why its hub is of no use now.

        Raises:
            DeploymentError: one refuses, or answers with what is no answer.
        """
        question = one_frame(pack(SiloLookUp(self.model.run, self.model.round, ids), Stamp(self.job)))
        asked = [silo for silo in self.peers if silo not in self._labels_only]
        answers = await asyncio.gather(*(self._ask(self.peers[silo], question, len(ids)) for silo in asked))
        return {
            silo: answer
            for silo, answer in zip(asked, answers, strict=True)
            if isinstance(answer, str) or answer.features
        }

    async def _ask(self, peer: Peer, question: Frame, count: int) -> SiloRows | str:
        hub, deadline = peer.hub, self.deadline
        try:
            answer = await while_alive(hub.predict(self.silo, question, deadline + 1), hub.answers, deadline)
        except (UnreachableError, AwayError) as error:
            hub.renew()
            self._note(peer, present=False)
            return _cut(str(error)) if isinstance(error, AwayError) else "it is not there, or does not serve yet"
        except RefusalError as error:
            hub.renew()
            raise DeploymentError(
                f"the hub of silo '{peer.silo}' ({peer.address}) refuses: {_cut(str(error), 1000)}"
            ) from error
        self._note(peer, present=True)
        self.sent += len(question.chunk)
        self.received += len(answer.chunk)
        try:
            return self._checked(peer.silo, answer, count)
        except RefusedError as error:
            raise RefusedError(f"the hub of silo '{peer.silo}' sends {error}") from error

    def _checked(self, silo: str, frame: Frame, count: int) -> SiloRows:
        """Check an answer in full before anything is computed from it."""
        model = self.model
        message = message_in(frame, max(ANSWER, model.width * model.dtype.itemsize) + MOST_IDS + SMALL)
        if message.stamp.job != self.job:
            raise RefusedError("a message of another job")
        answer = unpack(message, SiloLookedUp)
        present = check_present(answer.present, count)
        rows = check_numbers(answer.rows, (int(present.sum()), model.width), model.dtype, "embeddings")
        if len(answer.away) > MOST_AWAY or any(len(text) > LONGEST_AWAY for text in answer.away):
            raise RefusedError("too long a list of clients that are away")
        if not answer.features:
            if len(rows):
                raise RefusedError("embeddings of a silo without features")
            self._labels_only.add(silo)
            return SiloRows.none(count, model.width, model.dtype)
        joined = torch.zeros(count, model.width, dtype=model.dtype)
        joined[present] = rows
        return SiloRows(present, joined, tuple(map(_cut, answer.away)))

    def _note(self, peer: Peer, *, present: bool) -> None:
        if present != peer.present:
            self.log(f"the hub of silo '{peer.silo}' ({peer.address}) is {'there' if present else 'away'}")
        peer.present = present

    async def keep_warm(self) -> NoReturn:
        """Look at all other hubs again and again."""

        async def look(peer: Peer) -> None:
            there = await peer.hub.answers(WARM / 2)
            self._note(peer, present=there)
            if not there:
                peer.hub.renew()

        while True:
            await asyncio.gather(*map(look, self.peers.values()))
            await asyncio.sleep(WARM)


def _cut(text: str, most: int = LONGEST_AWAY) -> str:
    """Return a text that comes from elsewhere, fit to be shown."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])
