"""The routes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tdcd.serving.http.guard import AGAIN, Guard
from tdcd.serving.http.openapi import openapi, page
from tdcd.serving.http.predictor import Answered, fault
from tdcd.serving.http.problems import MEDIA_TYPE, RequestError
from tdcd.serving.http.schema import Health
from tdcd.serving.http.service import Service

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
Handler = Callable[[Request], Awaitable[Response]]


def build_app(service: Service, guard: Guard, watch: Callable[[], Awaitable[None]] | None = None) -> Starlette:
    """Return the application.

    Args:
        service: What answers.
        guard: What refuses.
        watch: Runs beside it, to its end.
    """
    service.metrics.waiting.set_function(lambda: guard.under_way)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(watch()) if watch else None
        yield
        if watching:
            watching.cancel()
        await asyncio.to_thread(service.batcher.close)

    async def predict(request: Request) -> Response:
        began = time.perf_counter()
        async with guard.body(request) as body:
            try:
                async with asyncio.timeout(guard.limits.seconds):
                    outcome = await service.batcher.submit(body)
            except TimeoutError:
                what = f"not answered in {guard.limits.seconds:g} seconds: the server has too much to do"
                raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, what, headers=AGAIN) from None
        if not isinstance(outcome, Answered):
            raise outcome
        service.metrics.rows.inc(outcome.rows)
        service.metrics.seconds.observe(time.perf_counter() - began)
        return Response(outcome.body, media_type="application/json")

    async def health(_request: Request) -> Response:
        ready = service.batcher.alive and not guard.stopping
        reply = Health(live=True, ready=ready, model=service.predictor.identity)
        return _json(reply, 200 if ready else 503)

    async def model(_request: Request) -> Response:
        return _json(service.predictor.info)

    async def schema(_request: Request) -> Response:
        return _json(openapi(service.predictor, guard.limits, token=guard.needs_token))

    async def docs(request: Request) -> Response:
        text = page(service.predictor, guard.limits, str(request.base_url), token=guard.needs_token)
        return Response(text, media_type="text/html", headers=PAGE_HEADERS)

    async def metrics(_request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def root(_request: Request) -> Response:
        return RedirectResponse("docs")

    def counted(path: str, handler: Handler, *, open_: bool = False) -> Handler:
        async def answer(request: Request) -> Response:
            try:
                if not open_:
                    guard.check_token(request)
                response = await handler(request)
            except RequestError as error:
                response = refused(error)
            except Exception as error:
                response = refused(fault(error))
            service.metrics.requests.labels(path, str(response.status_code)).inc()
            return response

        return answer

    async def unknown(_request: Request, error: Exception) -> Response:
        status, headers = HTTPStatus(getattr(error, "status_code", 500)), getattr(error, "headers", None)
        service.metrics.requests.labels("other", str(status.value)).inc()
        return refused(RequestError(status, status.phrase, headers=headers or {}))

    pages = {"/": root, "/openapi.json": schema, "/docs": docs, "/model": model, "/metrics": metrics}
    return Starlette(
        routes=[
            Route("/predict", counted("/predict", predict), methods=["POST"]),
            Route("/health", counted("/health", health, open_=True)),
            *(Route(path, counted(path, handler)) for path, handler in pages.items()),
        ],
        exception_handlers={HTTPException: unknown},
        lifespan=lifespan,
    )


def refused(error: RequestError) -> Response:
    """Return the reply to a request that is refused."""
    return Response(error.body, error.status, media_type=MEDIA_TYPE, headers=dict(error.headers))


def _json(value: object, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
