"""Small models to serve, and a server for them in a thread."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w
import uvicorn

import tdcd
from tdcd.serving.http.app import build_app
from tdcd.serving.http.guard import Guard
from tdcd.serving.http.server import listen
from tdcd.serving.http.service import Service
from tdcd.serving.http.settings import Address, Limits
from tdcd.serving.model import load_model

BANK = ("age", "since", "job", "code", "fee, per %")
"""Numbers, dates, texts, codes of categories, and numbers with flags for what means no value."""


def make_tables(people: int = 120) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of a bank and of an insurer, in the same order, with gaps."""
    generator = np.random.default_rng(5)
    ids = [f"P{n:03d}" for n in range(people)]
    age = generator.normal(40, 10, people).round(2)
    days = [str(np.datetime64("2020-01-01") + int(n)) for n in generator.integers(0, 900, people)]
    jobs = generator.choice(["cook", "nurse", "smith"], people).tolist()
    fees = [("refused" if n % 11 == 3 else "NA" if n % 7 == 2 else f"{n * 1.5}") for n in range(people)]
    bank = pl.DataFrame(
        {
            "person": ids,
            "age": [None if n % 9 == 4 else float(value) for n, value in enumerate(age)],
            "since": days,
            "job": [None if n % 13 == 5 else job for n, job in enumerate(jobs)],
            "code": generator.integers(1, 4, people),
            "fee, per %": fees,
            "default": (age + generator.normal(0, 5, people) > 40).astype(int),
        }
    )
    insurer = pl.DataFrame({"person": ids, "claims": generator.integers(0, 9, people), "car": jobs[::-1]})
    return bank, insurer


def train_tables(folder: Path, rounds: int = 3) -> Path:
    """Train on these tables; return the assembled model."""
    bank, insurer = make_tables()
    bank.write_csv(folder / "bank.csv")
    insurer.sample(fraction=1, shuffle=True, seed=1).write_parquet(folder / "insurer.parquet")
    table = {
        "name": "loans",
        "labels": {"silo": "bank", "sharing": "shared"},
        "data": {"source": "tables", "test_fraction": 0.2},
        "silos": {
            "bank": {
                "id": "person", "label": "default", "clients": {"all": str(folder / "bank.csv")},
                "categories": ["code"], "missing": ["NA", "refused"], "missing_flags": ["refused"], "rare": 1,
            },
            "insurer": {"id": "person", "clients": {"all": str(folder / "insurer.parquet")}, "rare": 1},
        },
        "model": {"kind": "mlp", "hidden": [5]},
        "training": {"loss": "binary-cross-entropy", "rounds": rounds, "local_steps": 2, "rate": 0.5},
    }  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(table))
    run = folder / f"run-{rounds}"
    tdcd.run_job(tdcd.load_job(folder / "job.toml"), run)
    return tdcd.assemble([run], folder / f"model-{rounds}")


def rows_of(bank: pl.DataFrame, insurer: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of requests: as these tables are, where a cell of a CSV file that is a number is one."""
    result = []
    for one, two in zip(bank.to_dicts(), insurer.to_dicts(), strict=True):
        cells = {column: one[column] for column in BANK}
        fee = str(cells["fee, per %"])
        cells["fee, per %"] = fee if fee in ("NA", "refused") else float(fee)
        result.append({"id": one["person"], "bank": cells, "insurer": {"claims": two["claims"], "car": two["car"]}})
    return result


@dataclass(frozen=True)
class Answer:
    """What a server replied."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Serving:
    """A server in a thread of this process."""

    port: int
    service: Service
    guard: Guard

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask something; a body that is no text is written as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = {"content-type": "application/json"} if body is not None else {}
        data = body if isinstance(body, bytes | type(None)) or hasattr(body, "__next__") else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, content | named, encode_chunked=hasattr(body, "__next__"))
        response = connection.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        connection.close()
        return answer

    def predict(self, rows: list[Any], **more: Any) -> Answer:
        """Ask for predictions."""
        return self.ask("POST", "/predict", {"rows": rows, **more})


@contextmanager
def serving(model: Path, limits: Limits | None = None, token: str | None = None) -> Iterator[Serving]:
    """Serve a model until the block ends."""
    limits = limits or Limits()
    service = Service(partial(load_model, model), limits.rows, model)
    guard = Guard(limits, token, local=True)
    listening = listen(Address(port=0))
    config = uvicorn.Config(build_app(service, guard), http="h11", ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    port = listening.getsockname()[1]
    thread.start()
    try:
        yield Serving(port, service, guard)
    finally:
        server.should_exit = True
        thread.join()
