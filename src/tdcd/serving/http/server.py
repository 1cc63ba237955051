"""Listening, and stopping without losing what is under way."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from tdcd.errors import DeploymentError
from tdcd.serving.http.app import build_app
from tdcd.serving.http.guard import Guard
from tdcd.serving.http.service import Service
from tdcd.serving.http.settings import Address, Limits

log = logging.getLogger("tdcd.serve")

WATCH_SECONDS = 2.0
IDLE_SECONDS = 60
"""A connection that nobody uses is closed after."""


class _Server(uvicorn.Server):
    """Stops at SIGTERM and SIGINT, which are no failure: uvicorn would end the process by the signal again."""

    def __init__(self, config: uvicorn.Config, guard: Guard) -> None:
        super().__init__(config)
        self._guard = guard

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {kind: signal.signal(kind, self.handle_exit) for kind in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._guard.stopping = True
        super().handle_exit(sig, frame)


def listen(address: Address) -> socket.socket:
    """Take the port.

    Raises:
        DeploymentError: it is not available.
    """
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DeploymentError(
            f"cannot listen on {address.host}, port {address.port}: {reason}; choose another with --host and --port"
        ) from error


def check_tls(address: Address) -> None:
    """Check the certificate and its key.

    Raises:
        DeploymentError: they cannot be used.
    """
    if address.certificate is None:
        if address.key is not None:
            raise DeploymentError("--tls-key goes with --tls-certificate")
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            address.certificate, address.key, lambda: ""
        )
    except (OSError, ValueError) as error:
        raise DeploymentError(
            f"--tls-certificate {address.certificate}, --tls-key {address.key}: cannot be used: {error}"
        ) from error


def run(
    service: Service, listening: socket.socket, address: Address, limits: Limits, token: str | None, *, watch: bool,
    on_start: Callable[[], None],
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; SIGHUP loads the model anew.

    Args:
        service: What answers.
        listening: Where requests come in.
        address: The same, with the certificate.
        limits: What is refused.
        token: What requests must bring, if anything.
        watch: Load the model anew when its files change.
        on_start: Is called before the first request.
    """
    guard = Guard(limits, token, local=address.local)
    asked = asyncio.Event()

    async def reloads() -> None:
        loop = asyncio.get_running_loop()
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, asked.set)
        on_start()
        while True:
            try:
                async with asyncio.timeout(WATCH_SECONDS if watch else None):
                    await asked.wait()
            except TimeoutError:
                if not service.changed:
                    continue
            asked.clear()
            await asyncio.to_thread(service.reload)

    config = uvicorn.Config(
        build_app(service, guard, reloads),
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(limits.stop_seconds),
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
    )
    _Server(config, guard).run(sockets=[listening])
