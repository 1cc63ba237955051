"""The description of the interface, made from what reads and writes it, and a page for people."""

import json
from typing import Any

from jinja2 import Environment, PackageLoader
from pydantic import TypeAdapter

from tdcd.runs.environment import installed_packages
from tdcd.serving.http.predictor import Predictor
from tdcd.serving.http.problems import MEDIA_TYPE, ProblemReply
from tdcd.serving.http.schema import Health, ModelInfo, Reply
from tdcd.serving.http.settings import Limits

REFUSALS = {
    "400": "The body is not JSON, or did not arrive whole.",
    "401": "The bearer token is missing, or another one.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is of another kind than JSON, or compressed.",
    "422": "The request does not fit the model; the errors name row, silo and column.",
    "500": "The server failed.",
    "503": "The server has too much to do, or is about to stop: try again after Retry-After seconds.",
}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "reply": TypeAdapter(Reply),
    "problem": TypeAdapter(ProblemReply),
    "health": TypeAdapter(Health),
    "model": TypeAdapter(ModelInfo),
}


def openapi(predictor: Predictor, limits: Limits, *, token: bool) -> dict[str, Any]:
    """Return the description of the interface, OpenAPI 3.1, with the columns of the model."""
    schemas, defined = TypeAdapter.json_schemas(
        [
            ("request", "validation", predictor.adapter),
            *((name, "serialization", adapter) for name, adapter in _ADAPTERS.items()),
        ],
        ref_template="#/components/schemas/{model}",
    )
    of = {name: schema for (name, _), schema in schemas.items()}

    def replies(schema: Any, description: str, *refusals: str, kind: str = "application/json") -> dict[str, Any]:
        refused = {
            code: {"description": REFUSALS[code], "content": {MEDIA_TYPE: {"schema": of["problem"]}}}
            for code in (*refusals, *(["401"] if token else []))
        }
        return {"200": {"description": description, "content": {kind: {"schema": schema}}}, **refused}

    def get(summary: str, responses: dict[str, Any], *, open_: bool = False) -> dict[str, Any]:
        return {"get": {"summary": summary, "responses": responses, **({"security": []} if open_ else {})}}

    text = {"type": "string"}
    health = replies(of["health"], "It takes requests.")
    health.pop("401", None)
    health["503"] = {"description": "It takes none.", "content": {"application/json": {"schema": of["health"]}}}
    predict = {
        "summary": "Predict from raw columns",
        "description": (
            f"One row or many, at most {limits.rows:,} and {limits.body:,} bytes. Every row has all columns of every "
            "silo, but for silos that are left out; null says that there is no value."
        ),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": of["request"], "example": predictor.example}},
        },
        "responses": replies(
            of["reply"],
            "The predictions, in the order of the rows.",
            "400",
            "408",
            "413",
            "415",
            "422",
            "500",
            "503",
        ),
    }
    components: dict[str, Any] = {"schemas": defined.get("$defs", {}) if defined else {}}
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Predictions of {predictor.identity['name']}",
            "version": f"{predictor.identity['run'] or 'run'}-{predictor.identity['round']}",
            "description": f"Served by tdcd {installed_packages().get('tdcd', '')}.",
        },
        "paths": {
            "/predict": {"post": predict},
            "/model": get("What the model is", replies(of["model"], "The model.")),
            "/health": get("Whether it takes requests", health, open_=True),
            "/metrics": get("Figures for Prometheus", replies(text, "Figures.", kind="text/plain")),
            "/openapi.json": get("This description", replies({"type": "object"}, "The description.")),
            "/docs": get("A page of this description", replies(text, "The page.", kind="text/html")),
        },
        "components": components,
        **({"security": [{"token": []}]} if token else {}),
    }


def page(predictor: Predictor, limits: Limits, url: str, *, token: bool) -> str:
    """Return a page of the interface that needs nothing from elsewhere."""
    environment = Environment(loader=PackageLoader("tdcd.serving.http"), autoescape=True)
    return environment.get_template("docs.html").render(
        info=predictor.info,
        identity=predictor.identity,
        limits=limits,
        version=installed_packages().get("tdcd", ""),
        token=token,
        curl=curl(predictor, url, token=token),
        paths=openapi(predictor, limits, token=token)["paths"],
        refusals={code: text for code, text in REFUSALS.items() if token or code != "401"},
    )


def curl(predictor: Predictor, url: str, *, token: bool) -> str:
    """Return a command that asks for an example."""
    header = " -H 'Authorization: Bearer TOKEN'" if token else ""
    body = json.dumps(predictor.example, ensure_ascii=False).replace("'", "'\\''")
    return f"curl {url.rstrip('/')}/predict{header} -H 'Content-Type: application/json' -d '{body}'"
