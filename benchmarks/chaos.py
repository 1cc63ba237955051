"""Bad lines between the sites of a federation on one machine: connections go through relays that can harm them."""

import asyncio
import random
import tomllib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Literal, TypeVar

import tomli_w

from tdcd.sites.local_deployment import LocalFederation

T = TypeVar("T")
Harm = Literal["cut", "reset", "half-close", "black hole", "flip", "swap", "slow"]
HARMS: tuple[Harm, ...] = ("cut", "reset", "half-close", "black hole", "flip", "swap", "slow")


@dataclass(eq=False)
class Connection:
    """A connection through a relay."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    flip: int = 0
    """Bits to flip in what comes next."""
    swap: bool = False
    slow: float = 0.0
    """Seconds before each piece."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing passes while it is not set."""

    def __post_init__(self) -> None:
        self.held.set()


class Relay:
    """Listens on a port of this machine and passes on what comes to another address, or does harm to it."""

    def __init__(self, target: str, generator: random.Random, rate: float | None = None) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._random = (host, int(port)), generator
        self._rate = rate
        """Bytes a second that each connection carries either way, if there is a limit."""
        self.connections: set[Connection] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen from now on."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
        except OSError:
            near.close()
            return
        connection = Connection(near, far)
        self.connections.add(connection)
        try:
            await asyncio.gather(self._pass(reader, far, connection), self._pass(far_reader, near, connection))
        finally:
            self.connections.discard(connection)
            for writer in (near, far):
                writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(1 << 16 if self._rate is None else 1 << 12):
                await connection.held.wait()
                if self._rate:
                    await asyncio.sleep(len(data) / self._rate)
                if connection.slow:
                    await asyncio.sleep(connection.slow)
                writer.write(self._harmed(data, connection))
                await writer.drain()
            with suppress(OSError, RuntimeError):
                writer.write_eof()

    def _harmed(self, data: bytes, connection: Connection) -> bytes:
        changed = bytearray(data)
        for _ in range(connection.flip):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        if connection.swap and len(changed) > 1:
            place = self._random.randrange(len(changed) - 1)
            changed[place], changed[place + 1] = changed[place + 1], changed[place]
        connection.flip, connection.swap = 0, False
        return bytes(changed)

    async def harm(self, how: Harm, seconds: float = 1.0) -> bool:
        """Do something to one of the connections; return whether there was one."""
        if not self.connections:
            return False
        connection = self._random.choice(sorted(self.connections, key=id))
        if how == "cut":
            connection.near.close()
            connection.far.close()
        elif how == "reset":
            connection.near.transport.abort()
            connection.far.transport.abort()
        elif how == "half-close":
            with suppress(OSError, RuntimeError):
                self._random.choice([connection.near, connection.far]).write_eof()
        elif how == "flip":
            connection.flip += 1
        elif how == "swap":
            connection.swap = True
        else:
            if how == "slow":
                connection.slow = 0.05
            else:
                connection.held.clear()
            await asyncio.sleep(seconds)
            connection.slow = 0.0
            connection.held.set()
        return True


class Lines:
    """Relays in front of every hub of a federation: one for its clients, one for the other hubs."""

    def __init__(self, federation: LocalFederation, generator: random.Random, rate: float | None = None) -> None:
        """Start them, and put their addresses into the site files."""
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        hubs = {who.silo: site for who, site in federation.sites.items() if who.client is None}
        addresses = {silo: tomllib.loads(site.file.read_text())["listen"] for silo, site in hubs.items()}
        self.clients = {silo: Relay(address, generator, rate) for silo, address in addresses.items()}
        self.peers = {silo: Relay(address, generator, rate) for silo, address in addresses.items()}
        for relay in (*self.clients.values(), *self.peers.values()):
            self._run(relay.start)
        for who, site in federation.sites.items():
            table = tomllib.loads(site.file.read_text())
            if who.client is None:
                table["peers"] = {silo: f"127.0.0.1:{self.peers[silo].port}" for silo in table["peers"]}
            else:
                table["hub"] = f"127.0.0.1:{self.clients[who.silo].port}"
            site.file.write_text(tomli_w.dumps(table))

    def harm(self, relay: Relay, how: Harm, seconds: float = 1.0) -> bool:
        """Do something to a connection of a relay; return whether there was one."""
        return self._run(lambda: relay.harm(how, seconds))

    def _run(self, action: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
