"""Asking a hub how it is doing."""

from pathlib import Path

from tdcd.errors import DeploymentError
from tdcd.sites.event_loop import event_loop
from tdcd.sites.messages.calls import HubStatus
from tdcd.sites.security.identity import Identity, authenticate, read_certificates
from tdcd.sites.security.tls import Open, Trust
from tdcd.sites.site_file import ClientSite, HubSite, check_loopback, is_client, read_site
from tdcd.sites.transport.base import RefusalError, UnreachableError
from tdcd.sites.transport.grpc import GrpcHub

WAIT = 10.0
"""Seconds."""


def ask(path: Path, *, insecure: bool = False) -> HubStatus:
    """Ask the hub that a site file is about.

    Args:
        path: The site file of the hub itself, or of one of its clients.
        insecure: Do without TLS, on this machine only.

    Raises:
        DeploymentError: it does not answer, or refuses.
    """
    hub = hub_of(path, _site(path), insecure=insecure)
    with event_loop() as run:
        try:
            return run(hub.report(WAIT))
        except UnreachableError as error:
            raise DeploymentError(f"the hub at {hub.address} does not answer: {run(hub.explain())}") from error
        except RefusalError as error:
            raise DeploymentError(f"the hub at {hub.address} does not answer: {error}") from error


def hub_of(path: Path, site: HubSite | ClientSite, *, insecure: bool) -> GrpcHub:
    """Return the hub that a site file is about, as its own site reaches it.

    Raises:
        DeploymentError: the file names no certificates, or they are not in order.
    """
    address = _reachable(site.listen) if isinstance(site, HubSite) else site.hub
    if insecure:
        check_loopback(address)
        trust: Trust | Open = Open(Identity(""))
    elif site.tls is None:
        raise DeploymentError(f"{path}: it names no certificates ([tls]); on one machine --insecure does without")
    else:
        own = _whose(Path(site.tls.certificate), Path(site.tls.ca))
        trust = Trust.of(site.tls, own)
    return GrpcHub(trust, address, trust.own.silo)


def _site(path: Path) -> HubSite | ClientSite:
    return read_site(path, ClientSite) if is_client(path) else read_site(path, HubSite)


def _whose(certificate: Path, authority: Path) -> Identity:
    """Find out whose certificate a site file names."""
    shown, *_ = read_certificates(certificate)
    for identity in Identity.all_in(shown):
        return authenticate(shown, {identity.silo: read_certificates(authority)})
    raise DeploymentError(f"{certificate}: it names no hub or client of tdcd; make it with: tdcd certs")


def _reachable(listen: str) -> str:
    """Return where a hub that answers everywhere can be asked on its own machine."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::") else listen  # noqa: S104
