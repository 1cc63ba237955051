"""A hub's links to its own clients: they dial in and keep a stream open; the hub asks, they answer."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from tdcd.errors import AbsentError, DeploymentError, join_names
from tdcd.sites.event_loop import now
from tdcd.sites.hub.link import GoneError, Link, Meters, ReceiveSlot, Take
from tdcd.sites.messages.frames import RefusedError, Stamp
from tdcd.sites.messages.packing import UnboundedError, pack
from tdcd.sites.messages.types import FINISHED, Farewell
from tdcd.sites.transport.base import SLOWEST, Stream

T = TypeVar("T")
FAILURES = 3
"""Consecutive requests that every client fails before the hub gives up."""
OFFENCES, FORGOTTEN = 3, 10
"""A client is refused that sends so often what cannot be computed with, each time within so many rounds of the last."""
ON_ITS_WAY = 1 << 20
"""Bytes that may wait on this side of a slow line after they were sent."""
LARGE = 1 << 23
"""Bytes of replies that are taken one at a time."""


@dataclass(frozen=True)
class Request(Generic[T]):
    """What a hub asks one client, and what it expects."""

    message: object
    reply: type[T]
    most: int
    """Bytes of tensors that the reply may have."""
    check: Callable[[T], None]
    """Raises RefusedError if a reply is not as it should be."""


Welcome = Callable[[Link], Awaitable[None]]
"""Brings a client that has just come to where it can take part."""


@dataclass
class Clients:
    """The clients of a silo, seen from its hub. Everything happens in one event loop."""

    silo: str
    names: tuple[str, ...]
    """Who may come."""
    job: str
    deadline: float
    """Seconds that a client may take to do its part of a stage."""
    log: Callable[[str], None]
    welcome: Welcome
    links: dict[str, Link] = field(default_factory=dict)
    informed: set[str] = field(default_factory=set)
    """Who has heard that the training is finished."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Rounds that each client was left out of, though it holds rows of their mini-batches."""
    meters: Meters = field(default_factory=Meters)
    """Count the numbers that are sent to and received from all clients."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _failures: int = 0
    _offences: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How often each client has sent numbers that are of no use, and the last round in which it did."""
    _bytes: tuple[int, int] = (0, 0)
    """Sent to and received from clients whose streams have ended."""

    async def attend(self, name: str, stream: Stream) -> None:
        """Keep a client's stream until it ends.

        Raises:
            RefusedError: something came that does not belong here.
        """
        link = Link(name, stream, self.job, self.meters)
        if before := self.links.get(name):
            self.log(f"client '{name}' connects again; its earlier stream is closed")
            before.dismiss(f"another process has come as client '{name}', and takes its place")
        self.links[name] = link
        self.log(f"client '{name}' connected")
        listening, welcoming = asyncio.ensure_future(link.listen()), asyncio.ensure_future(self._welcomed(link))
        dismissed = asyncio.ensure_future(link.dismissed.wait())
        try:
            await asyncio.wait({listening, welcoming, dismissed}, return_when=asyncio.FIRST_COMPLETED)
            if welcoming.done():
                await welcoming  # it may have failed
                await asyncio.wait({listening, dismissed}, return_when=asyncio.FIRST_COMPLETED)
            if link.dismissed.is_set():
                raise RefusedError(link.dismissal)
            await listening
        finally:
            listening.cancel()
            welcoming.cancel()
            dismissed.cancel()
            link.close()
            self._bytes = (self._bytes[0] + link.sent, self._bytes[1] + link.received)
            if self.links.get(name) is link:
                del self.links[name]
                self.log(f"client '{name}' disconnected")
            await self._announce()

    async def _welcomed(self, link: Link) -> None:
        try:
            await self.welcome(link)
        except GoneError:
            return
        link.ready = True
        await self._announce()

    async def _announce(self) -> None:
        async with self._news:
            self._news.notify_all()

    def present(self) -> set[str]:
        """Return who can be asked now."""
        return {name for name, link in self.links.items() if link.ready and link.free}

    async def enough(self, count: int, of: Collection[str], seconds: float) -> None:
        """Wait until so many of some clients are there.

        Raises:
            DeploymentError: they have not come in time.
        """
        end = now() + seconds
        warned = False
        while len(there := self.present() & set(of)) < count:
            absent = sorted(set(of) - there)
            if not warned:
                warned = True
                self.log(f"waiting for clients: {len(there)} of {len(of)} are there, without {join_names(absent)}")
            left = end - now()
            if left <= 0:
                raise AbsentError(
                    f"silo '{self.silo}': {len(there)} of at least {count} clients are there after "
                    f"{seconds:g} seconds; absent: {join_names(absent, most=16)}. What was done is kept: start the hub "
                    "again to go on"
                )
            async with self._news:
                try:
                    # nothing signals that a busy client is free again
                    await asyncio.wait_for(self._news.wait(), min(left, 0.5))
                except TimeoutError:
                    continue

    async def tell(self, farewell: Farewell, *, wait: bool = True) -> None:
        """Tell the clients that are there how the training ended; those that come soon, too, if it is finished."""
        await asyncio.gather(*(self._tell_one(link, farewell) for link in list(self.links.values())))
        if not wait or farewell.status != FINISHED or not (away := set(self.names) - self.informed):
            return
        self.log(f"waiting {self.deadline:g} seconds to tell {join_names(sorted(away))} that the training is finished")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.deadline), self._news:
                await self._news.wait_for(lambda: self.informed.issuperset(self.names))

    async def tell_late(self, link: Link, farewell: Farewell) -> None:
        """Tell a client that comes when all is over."""
        await self._tell_one(link, farewell)
        await self._announce()

    async def _tell_one(self, link: Link, farewell: Farewell) -> None:
        try:
            await asyncio.wait_for(link.say(farewell), 2.0)
        except (GoneError, TimeoutError) as error:
            self.log(f"client '{link.name}' could not be informed how the training ended: {error}")
        else:
            self.informed.add(link.name)

    async def all_or(self, holders: Collection[str], count: int, seconds: float) -> None:
        """Wait for all clients that hold rows as long as a stage may take; then so many are enough."""
        try:
            await self.enough(len(holders), holders, self.deadline)
        except DeploymentError:
            await self.enough(count, holders, seconds)

    async def ask(
        self, requests: Mapping[str, Request[T]], stamp: Stamp, take: Take | None = None
    ) -> tuple[dict[str, T], dict[str, Exception | None]]:
        """Ask several clients at once; return the replies, and who is left out because it gave none that is of use.

        Args:
            requests: What to ask each.
            stamp: The round and attempt that they belong to.
            take: Takes the tensors of every reply, in the order of the requests; those of large replies as soon as they
                come, one reply at a time: then also those of a client that is left out after all. They are not kept.

        Raises:
            DeploymentError: nobody could do what was asked.
        """
        present = self.present()
        large = [name for name, one in requests.items() if name in present and one.most > LARGE]
        end_of = self._deadlines(requests.keys() & present)
        slot = ReceiveSlot(take, large, self.deadline / 4, end_of) if take else None
        tasks = {
            name: self.links[name].asked(
                pack(one.message, stamp), one.reply, one.most, slot if one.most > LARGE else None
            )
            for name, one in requests.items()
            if name in present
        }
        if slot:
            for name in large:
                tasks[name].add_done_callback(partial(slot.replied, name))
        if tasks:
            await self._waited(tasks, slot, end_of)
        if slot:
            await slot.close()
        replies: dict[str, T] = {}
        failed: dict[str, RefusedError] = {}
        lost: dict[str, str] = {name: "it is not there" for name in requests if name not in tasks}
        for name, task in tasks.items():
            if not task.done():
                lost[name] = f"it has not replied in {self.deadline:g} seconds"
                continue
            try:
                reply = task.result()
                requests[name].check(reply)
                replies[name] = reply
            except GoneError:
                lost[name] = "it disconnected"
            except RefusedError as error:
                failed[name], lost[name] = error, str(error)
        for name, why in lost.items():
            if name in tasks:
                self.log(f"client '{name}' is left out: {why}")
        for name, one in requests.items():
            if take and name in replies and one.most <= LARGE:
                for part, tensor in pack(replies[name]).tensors.items():
                    take(name, part, tensor)
        if requests:
            self._failures = self._failures + 1 if len(failed) == len(requests) else 0
        if self._failures == FAILURES:
            name, why = next((name, str(failure)) for name, failure in failed.items())
            raise DeploymentError(f"silo '{self.silo}': no client can do its part; client '{name}': {why}")
        if any(name not in failed for name in tasks):  # where all fail alike, it is not they who are at fault
            self._count_offences(failed, stamp.round)
        return replies, {name: failed.get(name) for name in lost}

    def _count_offences(self, failed: Mapping[str, RefusedError], round_: int) -> None:
        """Refuse a client that sends numbers again and again that cannot be computed with: each costs an attempt."""
        for name, error in failed.items():
            if not isinstance(error, UnboundedError):
                continue
            count, last = self._offences.get(name, (0, round_))
            count = count + 1 if round_ - last <= FORGOTTEN else 1
            self._offences[name] = count, round_
            if count >= OFFENCES and (link := self.links.get(name)):
                self.log(f"client '{name}' is refused: {count} times it sent what is of no use: {error}")
                link.dismiss(f"client '{name}' sends what is of no use: {error}. Look at its rows and its network")

    def _deadlines(self, names: Iterable[str]) -> Callable[[str], float]:
        """Return what tells until when a client is waited for: longer while bytes come and go, not all too slowly."""
        began, links = now(), {name: self.links[name] for name in names}
        before = {name: link.moved for name, link in links.items()}

        def end_of(name: str) -> float:
            link = links[name]
            moved = link.moved - before[name]  # of what was sent last, some may still be on its way
            return self.deadline + max(
                began, min(began + moved / SLOWEST, link.stirred + min(moved, ON_ITS_WAY) / SLOWEST)
            )

        return end_of

    async def _waited(
        self, tasks: Mapping[str, "asyncio.Task[T]"], slot: ReceiveSlot | None, end_of: Callable[[str], float]
    ) -> None:
        """Wait as long as a stage may take, and longer while large replies wait for room."""
        last = now() + self.deadline * (1 + len(tasks))
        pending = set(tasks)
        while pending:
            time = now()
            ends = {name: end_of(name) for name in pending}
            left = min(ends.values()) - time
            if slot and slot.busy() and time < max(last, *ends.values()):
                left = max(left, self.deadline / 8)
            elif left <= 0:
                pending = {name for name in pending if ends[name] > time}
                continue
            await asyncio.wait({tasks[name] for name in pending}, timeout=left)
            pending = {name for name in pending if not tasks[name].done()}

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of tensors sent to and received from clients."""
        links = self.links.values()
        return self._bytes[0] + sum(link.sent for link in links), self._bytes[1] + sum(link.received for link in links)
