"""A site's certificates: checked before they are shown, used to tell who calls, and to explain failed handshakes."""

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from cryptography import x509

from tdcd.errors import DeploymentError
from tdcd.sites.security.identity import Identity, Pair, authenticate, check_own, expires, host_name, read_certificates
from tdcd.sites.site_file import ClientTLS, HubTLS

TRUSTED = 10.0
"""Seconds after which a certificate that was found good is looked at again."""
MOST_KNOWN = 10_000
DAY = 86_400.0


@dataclass(frozen=True)
class Trust:
    """A site's certificates, checked."""

    own: Identity
    pair: Pair
    authorities: Mapping[str, Path]
    """The CA of every silo that this site talks to."""
    _known: dict[bytes, tuple[float, Identity]] = field(default_factory=dict, repr=False, compare=False)
    """Certificates that were checked: when, and whose they are."""
    _read: dict[Path, list[x509.Certificate]] = field(default_factory=dict, repr=False, compare=False)
    """What was last read of the CAs' files."""

    @classmethod
    def of(cls, tls: ClientTLS, own: Identity) -> "Trust":
        """Check a site's certificates before anybody sees them.

        Raises:
            DeploymentError: one is missing, damaged, expired, or not this site's.
        """
        pair = Pair(Path(tls.certificate), Path(tls.key))
        authorities = {own.silo: Path(tls.ca)}
        if isinstance(tls, HubTLS):
            authorities |= {silo: Path(file) for silo, file in tls.peers.items()}
        check_own(pair, authorities[own.silo], own)
        for authority in authorities.values():
            read_certificates(authority)
        return cls(own, pair, authorities)

    def stamp(self) -> tuple[int, ...]:
        """Return what changes when certificates are renewed."""
        try:
            files = (self.pair.certificate, self.pair.key, *self.authorities.values())
            return tuple(file.stat().st_mtime_ns for file in files)
        except OSError:
            return ()  # a file is just being replaced

    def authenticate(self, shown: bytes) -> Identity:
        """Tell whose certificate, in PEM form, was shown.

        Raises:
            DeploymentError: its holder may not take part.
        """
        now = time.monotonic()
        when, who = self._known.get(shown, (-inf, self.own))
        if now - when < TRUSTED:
            return who
        try:
            certificate = x509.load_pem_x509_certificate(shown)
        except ValueError as error:
            raise DeploymentError("the certificate cannot be read") from error
        who = authenticate(certificate, {silo: self._authority(file) for silo, file in self.authorities.items()})
        if len(self._known) == MOST_KNOWN:
            self._known.clear()
        self._known[shown] = now, who
        return who

    def _authority(self, file: Path) -> list[x509.Certificate]:
        """Read a CA's certificates; while a file is being replaced, or cannot be read, those of before count."""
        try:
            self._read[file] = read_certificates(file)
        except DeploymentError:
            if file not in self._read:
                raise
        return self._read[file]

    def certificates(self) -> dict[Path, list[x509.Certificate]]:
        """Return all certificates of the site, by file."""
        return {file: read_certificates(file) for file in (self.pair.certificate, *self.authorities.values())}

    def expiring(self) -> list[str]:
        """Return a warning for every certificate of this site that expires soon."""
        try:
            files = self.certificates()
        except DeploymentError:
            return []  # a file is just being replaced
        return [f"{file}: {soon}" for file, found in files.items() for one in found if (soon := expires(one))]

    async def explain(self, address: str, silo: str) -> str:
        """Find out why a hub cannot be reached: dial it once more, and look at every step."""
        return await asyncio.to_thread(self._explained, address, silo)

    def _explained(self, address: str, silo: str) -> str:
        try:
            check_own(self.pair, self.authorities[self.own.silo], self.own)
        except DeploymentError as error:
            return Refusal(str(error))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.authorities[silo])
            context.load_cert_chain(self.pair.certificate, self.pair.key)
        except OSError as error:
            return f"this site's certificates cannot be read: {error}"
        context.set_alpn_protocols(["h2"])
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as plain:
                try:
                    with context.wrap_socket(plain, server_hostname=host_name(silo)) as line:
                        # In TLS 1.3 a server refuses a certificate after the handshake; else it speaks first.
                        if line.recv(1):
                            return "it can be reached, and certificates are in order"
                        there = _setting_there(self.own)
                        return Refusal(f"it closes the line at once; is [tls] {there} there this silo's ca.pem?")
                except TimeoutError:
                    return "it can be reached, but says nothing; does it run, and is it busy?"
        except ssl.SSLCertVerificationError as error:
            setting = f"{'ca' if silo == self.own.silo else f'peers.{silo}'} = {self.authorities[silo]}"
            return Refusal(f"its certificate is refused here: {_verdict(error.verify_message, setting)}")
        except ssl.SSLError as error:
            return _alert(error, self.pair.certificate, self.own)
        except TimeoutError:
            return "it does not answer at that address; is it started, and does a firewall let it through?"
        except OSError as error:
            return f"it cannot be reached ({error.strerror or error}); is it started, and is the address right?"


@dataclass(frozen=True)
class Open:
    """No certificates: everybody is believed. For one machine only."""

    own: Identity

    def stamp(self) -> tuple[int, ...]:
        """Nothing changes."""
        return ()

    def expiring(self) -> list[str]:
        """Nothing expires."""
        return []

    async def explain(self, address: str, silo: str) -> str:  # noqa: ARG002
        """Say why a hub cannot be reached."""
        return "is it started, and is the address right?"


async def warn_of_expiry(trust: Trust | Open, log: Callable[[str], None]) -> None:
    """Say once a day which of this site's certificates expire soon."""
    while True:
        for line in trust.expiring():
            log(line)
        await asyncio.sleep(DAY)


class Refusal(str):
    """Why TLS is refused: somebody has to change something first, so that trying again at once is of no use."""

    __slots__ = ()


_ALERTS = {
    "certificate_expired": "it has expired; renew it: tdcd certs --renew",
    "unknown_ca": "it does not know the CA that signed it. There, [tls] {there} must be this silo's ca.pem",
    "certificate_required": "none was shown",
}


def _alert(error: ssl.SSLError, shown: Path, own: Identity) -> str:
    reason = (error.reason or str(error)).lower()
    if "wrong_version_number" in reason:
        return Refusal("it does not speak TLS; was it started with --insecure?")
    why = next((text for word, text in _ALERTS.items() if word in reason), "")
    if not why:
        return f"TLS fails: {error.reason or error}; is it a hub that answers there, and not something else?"
    why = why.format(there=_setting_there(own))
    return Refusal(f"it refuses this site's certificate ([tls] certificate = {shown}): {why}")


def _setting_there(own: Identity) -> str:
    """Return the setting at a hub that names the CA of whoever dials it."""
    return "ca" if own.client else f"peers.{own.silo}"


def _verdict(message: str, setting: str) -> str:
    if "expired" in message:
        return "it has expired; whoever runs it renews it: tdcd certs --renew"
    if "mismatch" in message.lower():
        return f"it has another name ({message}); is the address that of another hub?"
    if "purpose" in message:
        return "it is a client's certificate, and a hub's is wanted"
    if "issuer" in message or "self-signed" in message or "self signed" in message:
        return f"another CA has signed it than [tls] {setting}. Ask that silo for its ca.pem"
    return message


_HANDSHAKE = re.compile(r"Handshake failed with error SSL_ERROR_SSL: (?P<why>.*)")


def refusal(line: str) -> str | None:
    """Turn what gRPC prints about a failed handshake into a sentence; None if the line is about something else."""
    match = _HANDSHAKE.search(line)
    if not match:
        return None
    why = match["why"]
    for word, text in {
        "certificate has expired": "its certificate has expired",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
        "local issuer": "its certificate is signed by a CA that this site does not know",
        "self signed": "its certificate is signed by a CA that this site does not know",
        "self-signed": "its certificate is signed by a CA that this site does not know",
        "certificate purpose": "its certificate is not for what it is used for",
        "not yet valid": "its certificate is not valid yet; is a clock wrong?",
        "WRONG_VERSION_NUMBER": "it does not speak TLS",
        "HTTP_REQUEST": "it does not speak TLS",
    }.items():
        if word in why:
            return f"refused a connection: {text}"
    return f"refused a connection: {why}"
