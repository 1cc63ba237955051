"""The clients of a hub that serves: each embeds those of the wanted IDs that it has."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tdcd.data.arrays import Array
from tdcd.errors import DataError, TdcdError, join_names
from tdcd.sites.hub.alive import while_alive
from tdcd.sites.hub.link import SMALL, GoneError
from tdcd.sites.hub.served import ServedModel
from tdcd.sites.hub.serving_link import ServingLink
from tdcd.sites.messages.frames import Message, RefusedError
from tdcd.sites.messages.packing import check_numbers, pack
from tdcd.sites.messages.predictions import ANSWER, MOST_IDS, LookedUp, LookUp, Serving, check_present
from tdcd.sites.messages.types import FINISHED, Farewell
from tdcd.sites.transport.base import AwayError, Stream

MOST_ROWS = 1 << 40
PATIENT = 0.3
"""Seconds that a client which has just come has to get ready, when somebody asks."""


@dataclass(frozen=True)
class SiloRows:
    """What a silo has of some IDs."""

    present: Tensor
    """Which of them, (n,)."""
    rows: Tensor
    """Their embeddings, (n, E), and zeros for the others."""
    away: tuple[str, ...] = ()
    """Clients that could not be asked, and may have the others."""
    features: bool = True
    """Whether the silo has features; else it adds nothing, whoever is there."""

    @classmethod
    def none(cls, count: int, width: int, dtype: torch.dtype) -> "SiloRows":
        """Return what a silo has that has labels only."""
        return cls(torch.zeros(count, dtype=torch.bool), torch.zeros(count, width, dtype=dtype), features=False)


@dataclass
class ServingClients:
    """The clients of a silo, seen from its hub. Everything happens in one event loop."""

    silo: str
    names: tuple[str, ...]
    job: str
    """The fingerprint of what all sites share."""
    model: ServedModel
    deadline: float
    log: Callable[[str], None]
    links: dict[str, ServingLink] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def attend(self, name: str, stream: Stream, *, serves: bool) -> None:
        """Keep a client's stream until it ends; one that does not serve hears that the training is finished.

        Raises:
            RefusedError: it sends what does not belong here, or cannot serve.
        """
        most = max(ANSWER, self.model.width * self.model.dtype.itemsize) + MOST_IDS + SMALL
        link = ServingLink(name, stream, self.job, most)
        if not serves:
            await link.say(pack(Farewell(FINISHED, "")))
            return
        if before := self.links.get(name):
            self.log(f"client '{name}' connects again; its earlier stream is closed")
            before.dismiss(f"another process has come as client '{name}', and takes its place")
        self.links[name] = link
        listening, preparing = asyncio.ensure_future(link.listen()), asyncio.ensure_future(self._prepare(link))
        dismissed = asyncio.ensure_future(link.dismissed.wait())
        try:
            await asyncio.wait({listening, preparing, dismissed}, return_when=asyncio.FIRST_COMPLETED)
            if preparing.done():
                await preparing  # it may have failed
                await asyncio.wait({listening, dismissed}, return_when=asyncio.FIRST_COMPLETED)
            if link.dismissed.is_set():
                raise RefusedError(link.dismissal)
            await listening
        finally:
            for task in (listening, preparing, dismissed):
                task.cancel()
            link.close()
            if self.links.get(name) is link:
                del self.links[name]
                self.log(f"client '{name}' disconnected")

    async def _prepare(self, link: ServingLink) -> None:
        """Send a client what it needs to serve."""
        if self.model.serve is None:
            link.rows = 0
            return
        try:
            rows = (await link.ask(pack(self.model.serve), Serving)).rows
        except GoneError:
            return
        if not -1 <= rows < MOST_ROWS:
            raise RefusedError(f"client '{link.name}' speaks of {rows} rows")
        link.rows = rows
        self._news.set()
        self._news = asyncio.Event()
        self.log(
            f"client '{link.name}' serves {rows:,} rows; {len(self.ready)} of {len(self.names)} clients are ready"
            if rows >= 0
            else f"client '{link.name}' is there, but cannot read its table for predictions; its own log says why"
        )

    @property
    def ready(self) -> list[str]:
        """Who can be asked."""
        return [name for name, link in self.links.items() if link.rows is not None]

    async def look_up(self, ids: Array) -> SiloRows:
        """Ask all clients for the embeddings of those IDs that they have.

        Raises:
            DataError: several clients have one of them.
        """
        model, count = self.model, len(ids)
        result = SiloRows.none(count, model.width, model.dtype)
        if model.serve is None:
            return result
        question = pack(LookUp(model.run, model.round, ids))
        answers = await asyncio.gather(*(self._ask(name, question, count) for name in self.names))
        owner, away = torch.full((count,), -1), []
        for number, (name, answer) in enumerate(zip(self.names, answers, strict=True)):
            if isinstance(answer, str):
                away.append(f"{name} ({answer})")
                continue
            present, rows = answer
            if bool((twice := present & (owner >= 0)).any()):
                place = int(twice.nonzero()[0])
                other = self.names[int(owner[place])]
                raise DataError(
                    f"silo '{self.silo}': ID {ids[place]} is in the tables of clients '{other}' and '{name}'; an ID "
                    "may occur once in a silo"
                )
            owner[present] = number
            result.rows[present] = rows
        return SiloRows(owner >= 0, result.rows, tuple(away))

    async def _ask(self, name: str, question: Message, count: int) -> tuple[Tensor, Tensor] | str:
        """Ask a client; return which IDs it has and their embeddings, or why it is of no use now."""
        link = self.links.get(name)
        if link and link.rows is None:
            await self._wait_for(link)
        if link is None:
            return "it is not connected"
        if link.rows is None:
            return "it is still reading its table"
        try:
            answer = await while_alive(link.ask(question, LookedUp), link.alive, self.deadline)
            present = check_present(answer.present, count)
            shape = int(present.sum()), self.model.width
            rows = check_numbers(answer.rows, shape, self.model.dtype, "embeddings")
            if not int(bool(shape[0])) <= answer.held < MOST_ROWS:  # an ID may be asked about more than once
                raise RefusedError(f"it speaks of {answer.held} rows")
        except GoneError:
            return "it does not answer" if self.links.get(name) is link else "it has disconnected"
        except AwayError as error:
            return str(error)
        except TdcdError as error:
            self.log(f"client '{name}' cannot answer: {error}")
            return "it cannot answer; its log says why"
        link.rows = answer.held
        return present, rows

    async def _wait_for(self, link: ServingLink) -> None:
        """Wait a little for a client that has just come."""
        try:
            async with asyncio.timeout(PATIENT):
                while link.rows is None:
                    await self._news.wait()
        except TimeoutError:
            return

    async def farewell(self, farewell: Farewell) -> None:
        """Tell all clients that the hub ends."""

        async def tell(link: ServingLink) -> None:
            try:
                await asyncio.wait_for(link.say(pack(farewell)), 2.0)
            except (GoneError, TimeoutError):
                return

        await asyncio.gather(*(tell(link) for link in list(self.links.values())))

    def describe_ready(self) -> str:
        """Tell who is ready, for the log."""
        absent = [name for name in self.names if name not in self.ready]
        return f"waiting for clients: {join_names(absent)}" if absent else "all clients are ready"
