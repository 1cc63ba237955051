"""How to serve: where to listen, limits, the token."""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from tdcd.errors import DeploymentError

TOKEN_VARIABLE = "TDCD_TOKEN"  # noqa: S105 - the name of a variable
SHORTEST = 16
"""Characters that a token must have."""


@dataclass(frozen=True)
class Limits:
    """What a server takes before it refuses."""

    body: int = 10_000_000
    """Bytes of a request."""
    rows: int = 10_000
    """Of a request."""
    waiting: int = 256
    """Requests for predictions under way at once."""
    connections: int = 1_000
    """Open at once, idle ones too."""
    seconds: float = 30.0
    """For a request to arrive, and again to be answered."""
    stop_seconds: float = 30.0
    """For requests under way when the server is stopped."""

    @property
    def held(self) -> int:
        """Bytes of all requests under way."""
        return max(8 * self.body, 64_000_000)


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    """Of TLS, with its chain, PEM; plain HTTP without one."""
    key: Path | None = None

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    def url(self, port: int) -> str:
        """Return the address to ask, where it listens on some port."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - which is not listened on
        return f"{'https' if self.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def read_token(file: Path | None) -> str | None:
    """Read the token that requests must bring: from a file, or else from the environment; none if neither has one.

    Raises:
        DeploymentError: the file cannot be read, or the token is too short or not plain.
    """
    if file is None:
        token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    else:
        try:
            token, where = file.read_text(encoding="ascii").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "a token is of ASCII letters"
            raise DeploymentError(f"--token-file {file}: cannot be read: {reason}") from error
    if token is None:
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise DeploymentError(
            f"{where}: a token has at least {SHORTEST} letters, digits or signs of ASCII, and no spaces; make one: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token
