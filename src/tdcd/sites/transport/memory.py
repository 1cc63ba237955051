"""Sites in one process, without a network: everything else is as it is at real sites."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from tdcd.errors import TdcdError
from tdcd.sites.messages.calls import Hello, HubStatus, Opening
from tdcd.sites.messages.frames import Frame
from tdcd.sites.security.identity import Identity
from tdcd.sites.transport.base import AwayError, EarlyError, HubService, RefusalError, Stream, UnreachableError

T = TypeVar("T")


class MemoryStream:
    """One end of a stream."""

    def __init__(self, outgoing: "asyncio.Queue[Frame | None]", incoming: "asyncio.Queue[Frame | None]") -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._cut = False

    @classmethod
    def pair(cls) -> tuple["MemoryStream", "MemoryStream"]:
        """Return both ends of a stream."""
        one: asyncio.Queue[Frame | None] = asyncio.Queue()
        two: asyncio.Queue[Frame | None] = asyncio.Queue()
        return cls(one, two), cls(two, one)

    async def send(self, frame: Frame) -> None:  # noqa: D102
        if self._cut:
            raise UnreachableError("the stream was cut")
        await self._outgoing.put(frame)

    async def receive(self) -> Frame | None:  # noqa: D102
        frame = await self._incoming.get()
        self._cut = self._cut or frame is None
        return frame

    def cut(self) -> None:
        """End the stream, for both ends."""
        self._cut = True
        self._incoming.put_nowait(None)
        self._outgoing.put_nowait(None)


class MemoryHub:
    """A hub in this process. See RemoteHub."""

    def __init__(self, service: HubService | None = None, caller: Identity | None = None) -> None:
        self.service, self.caller = service, caller
        """The hub, if it is started; and who calls it, if that is known."""

    @asynccontextmanager
    async def attend(self) -> AsyncIterator[Stream]:  # noqa: D102
        near, far = MemoryStream.pair()
        service, refused = self._started(), list[TdcdError]()

        async def serve() -> None:
            try:
                await service.attend(self.caller, far)
            except TdcdError as error:
                refused.append(error)
            finally:
                far.cut()

        serving = asyncio.ensure_future(serve())
        try:
            yield near
        finally:
            near.cut()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
        if refused:
            raise RefusalError(str(refused[0]))

    async def meet(self, hello: Hello, timeout: float) -> Opening:  # noqa: D102
        return await self._called(self._started().meet(self.caller, hello), timeout)

    async def deliver(self, silo: str, frames: AsyncIterator[Frame], timeout: float) -> str:  # noqa: D102
        return await self._called(self._started().deliver(self.caller, silo, frames), timeout)

    async def predict(self, silo: str, frame: Frame, timeout: float) -> Frame:  # noqa: D102
        return await self._called(self._started().predict(self.caller, silo, frame), timeout)

    async def _called(self, call: Coroutine[Any, Any, T], timeout: float) -> T:
        try:
            return await asyncio.wait_for(call, timeout)
        except (EarlyError, AwayError, TimeoutError) as error:
            raise UnreachableError(str(error)) from error
        except UnreachableError:
            raise
        except TdcdError as error:
            raise RefusalError(str(error)) from error

    async def report(self, timeout: float) -> HubStatus:  # noqa: ARG002, D102
        return await self._started().report(self.caller)

    async def answers(self, timeout: float) -> bool:  # noqa: ARG002, D102
        return self.service is not None

    async def explain(self) -> str:  # noqa: D102
        return "it is not started"

    def renew(self) -> bool:  # noqa: D102
        return False

    def _started(self) -> HubService:
        if self.service is None:
            raise UnreachableError("it is not started")
        return self.service
