"""Asking a hub how it is doing."""

import tomllib
from pathlib import Path
from typing import Any

import grpc

from tdcd.deployment.background import event_loop
from tdcd.deployment.identity import Identity, judged, read_certificate
from tdcd.deployment.site import ClientSite, HubSite, check_loopback, read_site
from tdcd.deployment.tls import Open, Trust
from tdcd.deployment.wire import tdcd_pb2_grpc
from tdcd.deployment.wire.tdcd_pb2 import StatusReply, StatusRequest
from tdcd.errors import DeploymentError

WAIT = 10.0
"""Seconds."""


def ask(path: Path, *, insecure: bool = False) -> StatusReply:
    """Ask the hub that a site file is about.

    Args:
        path: The site file of the hub itself, or of one of its clients.
        insecure: Do without TLS, on this machine only.

    Raises:
        DeploymentError: it does not answer, or refuses.
    """
    site = _site(path)
    address = _reachable(site.listen) if isinstance(site, HubSite) else site.hub
    if insecure:
        check_loopback(address)
        trust: Trust | Open = Open(Identity(""))
    elif site.tls is None:
        raise DeploymentError(f"{path}: it names no certificates ([tls]); on one machine --insecure does without")
    else:
        own = _whose(Path(site.tls.certificate), Path(site.tls.ca))
        trust = Trust.of(site.tls, own)

    async def asked() -> StatusReply:
        async with trust.channel(address, trust.own.silo) as channel:
            reply: StatusReply = await tdcd_pb2_grpc.HubStub(channel).Status(StatusRequest(), timeout=WAIT)
            return reply

    with event_loop() as run:
        try:
            return run(asked())
        except grpc.aio.AioRpcError as error:
            why: Any = error.details()
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                why = run(trust.explain(address, trust.own.silo))
            raise DeploymentError(f"the hub at {address} does not answer: {why}") from error


def _site(path: Path) -> HubSite | ClientSite:
    try:
        hub = "hub" not in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        hub = True  # read_site tells what is wrong
    return read_site(path, HubSite) if hub else read_site(path, ClientSite)


def _whose(certificate: Path, authority: Path) -> Identity:
    """Find out whose certificate a site file names."""
    shown = read_certificate(certificate)
    for identity in Identity.all_in(shown):
        return judged(shown, {identity.silo: read_certificate(authority)})
    raise DeploymentError(f"{certificate}: it names no hub or client of tdcd; make it with: tdcd certs")


def _reachable(listen: str) -> str:
    """Return where a hub that answers everywhere can be asked on its own machine."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::") else listen  # noqa: S104
