"""What a request must pass before it is answered: the token, the size of its body, requests under way."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from ipaddress import ip_address

from starlette.requests import ClientDisconnect, Request

from tdcd.serving.http.problems import RequestError
from tdcd.serving.http.settings import Limits

AGAIN = {"Retry-After": "1"}


class Guard:
    """Refuses what a server does not take."""

    def __init__(self, limits: Limits, token: str | None, *, local: bool = False) -> None:
        """Refuse by these rules; ``local``: the server listens on this machine only."""
        self.limits, self._local = limits, local
        self.under_way = 0
        self.stopping = False
        self._held = 0
        self._digest = None if token is None else sha256(token.encode()).digest()

    @property
    def needs_token(self) -> bool:
        """Whether requests must bring a token."""
        return self._digest is not None

    def check_token(self, request: Request) -> None:
        """Check the token of a request.

        Raises:
            RequestError: it is missing, or another one.
        """
        if self._digest is None:
            self._check_host(request)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(sha256(given.strip().encode()).digest(), self._digest)
        if scheme.lower() != "bearer" or not same:
            raise RequestError(
                HTTPStatus.UNAUTHORIZED,
                "a bearer token is needed: Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": 'Bearer realm="tdcd"'},
            )

    def _check_host(self, request: Request) -> None:
        """Check that a request without a token means this machine.

        A page of another site may have its name resolved to 127.0.0.1, and would ask on behalf of whoever looks at it.

        Raises:
            RequestError: it asks for another host.
        """
        if not self._local:
            return
        host = request.url.hostname or ""
        try:
            local = host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            local = False
        if not local:
            raise RequestError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "without a token only this machine is served, as localhost or 127.0.0.1; start tdcd serve with a token "
                "to be asked under other names",
            )

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Take a request for a prediction: give its body, and count it as under way.

        Raises:
            RequestError: it is too large, too slow, no JSON by its header, or there are too many.
        """
        check_type(request)
        limit = self.limits.body
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise self._too_large()
        if self.stopping or self.under_way >= self.limits.waiting:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are under way", headers=AGAIN)
        self.under_way += 1
        taken = 0
        try:
            chunks = []
            try:
                async with asyncio.timeout(self.limits.seconds):
                    async for chunk in request.stream():
                        taken += len(chunk)
                        self._held += len(chunk)
                        if taken > limit:
                            raise self._too_large()
                        if self._held > self.limits.held:
                            raise RequestError(
                                HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests are under way", headers=AGAIN
                            )
                        chunks.append(chunk)
            except TimeoutError:
                what = f"the request did not arrive in {self.limits.seconds:g} seconds"
                raise RequestError(HTTPStatus.REQUEST_TIMEOUT, what, headers={"Connection": "close"}) from None
            except ClientDisconnect:
                raise RequestError(HTTPStatus.BAD_REQUEST, "the request did not arrive whole") from None
            yield b"".join(chunks)
        finally:
            self.under_way -= 1
            self._held -= taken

    def _too_large(self) -> RequestError:
        return RequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a request has at most {self.limits.body:,} bytes; send fewer rows at once",
            headers={"Connection": "close"},
        )


def check_type(request: Request) -> None:
    """Check that a body is JSON, as far as headers say. A page of another site cannot send that unasked.

    Raises:
        RequestError: it is something else.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "write the request as JSON, uncompressed: Content-Type: application/json"
        )
