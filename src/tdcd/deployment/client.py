"""A client's process: it dials its hub, and answers what the hub asks. What it can do is in party.py."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from tdcd.deployment.messages import PROTOCOL, Assembler, Message, frames
from tdcd.deployment.party import Party
from tdcd.deployment.peers import FIRST_WAIT, LARGEST, LONGEST_WAIT
from tdcd.deployment.shared import VERSION, SharedJob
from tdcd.deployment.tls import Open, Trust
from tdcd.deployment.wire import tdcd_pb2_grpc
from tdcd.errors import DeploymentError, TdcdError


@dataclass
class ClientProcess:
    """A client that keeps a stream to its hub."""

    party: Party
    shared: SharedJob
    trust: Trust | Open
    log: Callable[[str], None]
    patience: float
    """Seconds that it tries to reach its hub."""
    _heard: bool = False
    """Whether the hub has said anything on the stream that is open, or was last."""

    async def run(self) -> None:
        """Answer until the hub says that the training is finished; when the hub stops before, wait for it.

        Raises:
            DeploymentError: the hub refuses this client, or cannot be reached.
        """
        address, silo = self.party.site.hub, self.party.identity.silo
        wait, alone = FIRST_WAIT, time.monotonic()
        warned = False
        while True:
            async with self.trust.channel(address, silo) as channel:
                self._heard = False
                try:
                    stream = tdcd_pb2_grpc.HubStub(channel).Attend()
                    if await self._talk(stream) == "finished":
                        return
                except grpc.aio.AioRpcError as error:
                    self._heard = self._heard or error.code() == grpc.StatusCode.CANCELLED
                    if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION):
                        raise DeploymentError(f"the hub at {address} refuses this client: {error.details()}") from error
            if self._heard:
                wait, alone, warned = FIRST_WAIT, time.monotonic(), False
                self.log("the hub is gone; trying to reach it again")
            elif not warned:
                warned = True
                self.log(f"waiting for the hub at {address}: {await self.trust.explain(address, silo)}")
            if time.monotonic() - alone > self.patience:
                why = await self.trust.explain(address, silo)
                raise DeploymentError(f"the hub at {address} was not reached for {self.patience:g} seconds: {why}")
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _talk(self, stream: Any) -> str:
        """Answer questions until the stream ends; return how the training ended, if the hub says it."""
        identity = self.party.identity
        facts = {
            "protocol": PROTOCOL,
            "version": VERSION,
            "job": self.shared.table,
            "silo": identity.silo,
            "client": identity.client,
        }
        for frame in frames(Message("join", facts)):
            await stream.write(frame)
        assembler = Assembler(LARGEST)
        while (frame := await stream.read()) is not grpc.aio.EOF:
            if not self._heard:
                self._heard = True
                self.log("the hub answers")
            question = assembler.feed(frame)
            if question is None:
                continue
            if question.kind == "farewell":
                return str(question.facts.get("status"))
            try:
                answer = self.party.answer(question)  # nothing else happens here: gRPC's own threads keep the line
            except TdcdError as error:
                self.log(f"cannot answer '{question.kind}': {error}")
                answer = Message("failed", {"why": str(error)})
            for reply in frames(answer.stamped(question.stamp)):
                await stream.write(reply)
        status = await stream.code()
        if status not in (grpc.StatusCode.OK, None):
            raise grpc.aio.AioRpcError(
                status, await stream.initial_metadata(), await stream.trailing_metadata(), await stream.details()
            )
        return ""
