"""What a server refuses, and how it says so."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from serving.http_models import Serving, make_tables, rows_of, serving, train_tables
from tdcd.errors import DeploymentError
from tdcd.serving.http import problems
from tdcd.serving.http.batcher import Batcher
from tdcd.serving.http.settings import Address, Limits, read_token

TOKEN = "0123456789abcdef"  # noqa: S105
Body = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tables(tmp_path_factory.mktemp("http"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Serving]:
    with serving(model, Limits(rows=5)) as one:
        yield one


@pytest.fixture
def row() -> dict[str, Any]:
    return rows_of(*make_tables())[0]


def bank(**cells: Any) -> Body:
    """Make a request of two rows, the second with other cells; ``...`` leaves a column out."""

    def body(row: dict[str, Any]) -> Any:
        changed = {**row["bank"], **cells}
        return {"rows": [row, {**row, "bank": {k: v for k, v in changed.items() if v is not ...}}]}

    return body


CASES: Sequence[tuple[Body, str, dict[str, Any]]] = [
    (bank(age="old"), "numbers; the text 'old' is not", {"row": 2, "silo": "bank", "column": "age"}),
    (bank(age=True), "numbers; true is not", {"pointer": "/rows/1/bank/age"}),
    (bank(age=[1]), "numbers; a list is not", {"column": "age"}),
    (bank(age=1e300), "a number too large", {"row": 2, "column": "age"}),
    (bank(age=10**400), "a number too large", {"row": 2, "column": "age"}),
    (bank(age=...), "the column is missing; write null", {"row": 2, "column": "age"}),
    (bank(aged=3), "unknown column; did you mean 'age'?", {"row": 2, "silo": "bank", "column": "aged"}),
    (bank(job=3), "texts; the number 3 is not", {"row": 2, "column": "job"}),
    (bank(since="soon"), "dates, written as 2026-01-28; 'soon' is not", {"row": 2, "column": "since"}),
    (bank(since=5), "dates, written as 2026-01-28; the number 5 is not", {"column": "since"}),
    (bank(since="41"), "dates, written as 2026-01-28; '41' is not", {"column": "since"}),
    (bank(job="2021-02-03"), "", {"row": 2, "column": "job"}),
    (bank(**{"fee, per %": "none"}), "numbers", {"pointer": "/rows/1/bank/fee, per %"}),
    (lambda row: {"rows": [{**row, "banc": {}}]}, "unknown silo 'banc'; did you mean 'bank'?", {"silo": "banc"}),
    (lambda row: {"rows": [{"bank": row["bank"]}]}, '"without": ["insurer"]', {"row": 1, "silo": "insurer"}),
    (lambda row: {"rows": [{**row, "bank": 3}]}, "the number 3 instead of a row", {"silo": "bank"}),
    (lambda row: {"rows": [{**row, "id": 1.5}]}, "", {"row": 1}),
    (lambda row: {"rows": [row, 3]}, "", {"row": 2}),
    (lambda row: {"rows": [row] * 6}, "rows: List should have at most 5 items", {}),
    (lambda row: {"rows": []}, "rows: ", {}),
    (lambda row: {"rows": row}, "rows: ", {}),
    (lambda row: {"rows": [row], "share": True}, "share: unknown key", {}),
    (lambda row: {"rows": [row], "shares": "yes"}, "shares: ", {}),
    (lambda row: {"rows": [row], "without": ["bnk"]}, "without", {}),
    (lambda row: {"rows": [row], "without": ["bank", "insurer"]}, "without: ", {}),
    (lambda row: [row], "", {}),
]


@pytest.mark.parametrize(("body", "words", "fields"), CASES)
def test_what_does_not_fit_the_model(
    server: Serving, row: dict[str, Any], body: Body, words: str, fields: dict[str, Any]
) -> None:
    reply = server.ask("POST", "/predict", body(row))
    assert reply.status == 422, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    entry = reply.json["errors"][0]
    assert words in reply.json["detail"]
    assert words in f"{entry['detail']}"
    assert fields.items() <= entry.items()
    assert "Traceback" not in reply.body.decode()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"rows": [NaN', b"[" * 100_000, b'{"rows": "\\ud800"}'])
def test_what_is_no_json(server: Serving, body: bytes) -> None:
    reply = server.ask("POST", "/predict", body)
    assert reply.status == 400
    assert reply.json["detail"].startswith("the body is not JSON")


@pytest.mark.parametrize(
    ("count", "says", "named"),
    [(21, "(and 20 or more others)", 20), (20, "(and 19 more)", 20), (10_001, "it has 10,001 errors; /docs", 1)],
)
def test_errors_without_number_are_not_all_looked_at(
    server: Serving, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, count: int, says: str, named: int
) -> None:
    compared: list[str] = []

    def nearest(name: str, _known: object) -> str:
        compared.append(name)
        return ""

    monkeypatch.setattr(problems, "nearest", nearest)
    unknown = {f"{number:03}{'x' * 300}": 1 for number in range(count)}
    for body in ({"rows": [{**row, "bank": {**row["bank"], **unknown}}]}, {"rows": [{**row, **unknown}]}):
        reply = server.ask("POST", "/predict", body)
        assert reply.status == 422
        assert says in reply.json["detail"]
        assert len(reply.json["errors"]) == named
    assert len(compared) == 2 * min(count, 21) * (named > 1)
    assert all(len(name) == 200 for name in compared)


def test_infinite_numbers(server: Serving, row: dict[str, Any]) -> None:
    for number in ("NaN", "Infinity", "1e999"):
        body = json.dumps({"rows": [{**row, "bank": {**row["bank"], "age": 7654321}}]}).replace("7654321", number)
        reply = server.ask("POST", "/predict", body.encode())
        assert reply.status == 422, number
        assert reply.json["errors"][0]["column"] == "age"


def test_only_json_that_is_not_compressed(server: Serving) -> None:
    for headers in ({"content_type": "text/plain"}, {"content_encoding": "gzip"}):
        assert server.ask("POST", "/predict", b"{}", **headers).status == 415


def test_bodies_are_counted_while_they_arrive(model: Path, row: dict[str, Any]) -> None:
    with serving(model, Limits(body=2000)) as server:
        assert server.predict([row]).status == 200
        assert server.predict([row] * 20).status == 413
        reply = server.ask("POST", "/predict", iter([b'{"rows": [', *[b" " * 500] * 10]))
        assert reply.status == 413
        assert "2,000 bytes" in reply.json["detail"]
        with socket.create_connection(("127.0.0.1", server.port)) as connection:  # which says so, and sends nothing
            connection.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 999999\r\n\r\n"
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
        assert server.guard.under_way == 0


def test_a_body_must_arrive_in_time(model: Path) -> None:
    with serving(model, Limits(seconds=0.2)) as server, socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99\r\n\r\n{"
        )
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_a_server_with_too_much_to_do_says_so(
    model: Path, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(model, Limits(waiting=2)) as server:
        began, go = threading.Event(), threading.Event()
        answer = server.service.batcher._answer

        def held(bodies: Sequence[bytes]) -> Any:
            began.set()
            go.wait()
            return answer(bodies)

        monkeypatch.setattr(server.service.batcher, "_answer", held)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(server.predict, [row])
            began.wait()
            second = pool.submit(server.predict, [row])
            while server.guard.under_way < 2:
                time.sleep(0.001)
            third = server.predict([row])
            go.set()
            assert (first.result().status, second.result().status) == (200, 200)
        assert third.status == 503
        assert third.headers["retry-after"] == "1"


def test_tokens(model: Path, row: dict[str, Any]) -> None:
    with serving(model, token=TOKEN) as server:
        for path in ("/model", "/metrics", "/docs", "/openapi.json", "/"):
            reply = server.ask("GET", path)
            assert reply.status == 401, path
            assert reply.headers["www-authenticate"].startswith("Bearer")
        for wrong in (f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", TOKEN, "Bearer \xff"):
            assert server.ask("POST", "/predict", {"rows": [row]}, authorization=wrong).status == 401
        assert server.ask("POST", "/predict", {"rows": [row]}, authorization=f"Bearer {TOKEN}").status == 200
        assert server.ask("GET", "/health").status == 200


def test_tokens_are_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TDCD_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("TDCD_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    (tmp_path / "token").write_text(f"{TOKEN[::-1]}\n")
    assert read_token(tmp_path / "token") == TOKEN[::-1]
    for text in ("short", "0123456789 abcdef", ""):
        (tmp_path / "token").write_text(text)
        with pytest.raises(DeploymentError, match="at least 16 letters"):
            read_token(tmp_path / "token")
    with pytest.raises(DeploymentError, match="No such file"):
        read_token(tmp_path / "none")


def test_other_paths_and_methods(server: Serving) -> None:
    assert server.ask("GET", "/predict").status == 405
    assert server.ask("GET", "/nothing").status == 404
    assert server.ask("GET", "/nothing").json["title"] == "Not Found"
    assert server.ask("DELETE", "/model").status == 405


def test_what_describes_the_model(server: Serving) -> None:
    info = server.ask("GET", "/model").json
    assert info["model"]["name"] == "loans"
    assert info["classes"] == ["0", "1"]
    columns = {silo["name"]: [column["name"] for column in silo["columns"]] for silo in info["silos"]}
    assert columns == {"bank": ["age", "since", "job", "code", "fee, per %"], "insurer": ["claims", "car"]}
    assert {part["part"] for part in info["measures"]} == {"train", "validation", "test"}
    health = server.ask("GET", "/health").json
    assert (health["live"], health["ready"]) == (True, True)
    page = server.ask("GET", "/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    text = page.body.decode()
    assert "fee, per %" in text
    outside = re.findall(r"(?:src|href|action)=[\"']?([^\"'> ]+)|url\(([^)]*)\)|@import", text)
    assert outside == [("openapi.json", "")]
    assert server.ask("GET", "/").headers["location"] == "docs"


def test_the_description_has_the_columns_of_the_model(server: Serving, row: dict[str, Any]) -> None:
    schema = server.ask("GET", "/openapi.json").json
    assert schema["openapi"].startswith("3.1")
    content = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert set(schema["components"]["schemas"]["bank_row"]["properties"]) == set(row["bank"])
    validator = jsonschema_rs.validator_for({**content["schema"], "components": schema["components"]})
    assert validator.is_valid(content["example"])
    assert validator.is_valid({"rows": [row]})
    for body, words, fields in CASES:
        if fields.get("column") in ("aged", "job") or "age" in fields.get("pointer", ""):
            assert validator.is_valid(body(row)) == ("2021" in str(body(row)["rows"][1]["bank"]["job"])), words
    assert server.ask("POST", "/predict", content["example"]).status == 200


def test_figures(model: Path, row: dict[str, Any]) -> None:
    with serving(model) as server:
        strange = {**row, "bank": {**row["bank"], "job": "astronaut", "age": None}}
        assert server.predict([row, strange]).status == 200
        assert server.predict([{}]).status == 422
        text = server.ask("GET", "/metrics").body.decode()
    for line in (
        'tdcd_requests_total{path="/predict",status="200"} 1.0',
        'tdcd_requests_total{path="/predict",status="422"} 1.0',
        "tdcd_predicted_rows_total 2.0",
        'tdcd_column_unknown_rows_total{column="job",silo="bank"} 1.0',
        'tdcd_column_missing_rows_total{column="age",silo="bank"} 1.0',
        "tdcd_predict_seconds_count 1.0",
        "tdcd_batch_requests_count 2.0",
    ):
        assert line in text
    assert "astronaut" not in text


def test_a_defect_is_no_end(model: Path, row: dict[str, Any]) -> None:
    """The reply does not tell what happened, and the next request is answered."""
    with serving(model) as server:
        for where in ("_predict", "read", "answer"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server.service.predictor, where, lambda _: 1 / 0)
                reply = server.predict([row])
            assert reply.status == 500, where
            assert b"division" not in reply.body
            assert server.predict([row]).status == 200


def test_requests_that_wait_are_answered_together() -> None:
    sizes = []
    began, go = threading.Event(), threading.Event()

    def answer(bodies: Sequence[bytes]) -> list[bytes]:
        began.set()
        go.wait()
        sizes.append(len(bodies))
        return list(bodies)

    async def ask() -> list[bytes]:
        batcher = Batcher(answer)
        first = asyncio.create_task(batcher.submit(b"0"))
        await asyncio.to_thread(began.wait)
        others = [asyncio.create_task(batcher.submit(str(n).encode())) for n in range(1, 8)]
        given_up = asyncio.create_task(batcher.submit(b"late"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        go.set()
        result = [await task for task in (first, *others)]
        await asyncio.to_thread(batcher.close)
        return result

    assert asyncio.run(ask()) == [str(n).encode() for n in range(8)]
    assert sizes == [1, 7]


def test_addresses() -> None:
    assert Address().local
    assert Address("::1").local
    assert Address("localhost").local
    assert not Address("0.0.0.0").local  # noqa: S104
    assert not Address("example.org").local
    assert Address("::1").url(9) == "http://[::1]:9"
    assert Address("0.0.0.0", certificate=Path("x")).url(9) == "https://127.0.0.1:9"  # noqa: S104


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("evil.example", 421), ("10.0.0.1:8000", 421)],
)
def test_without_a_token_only_this_machine_is_served(
    server: Serving, row: dict[str, Any], host: str, status: int
) -> None:
    """A page of another site, whose name leads here, asks by that name."""
    for method, path, body in (("POST", "/predict", {"rows": [row]}), ("GET", "/docs", None)):
        answer = server.ask(method, path, body, host=host)
        assert answer.status == status, answer.body
    assert status == 200 or "start tdcd serve with a token" in server.ask("GET", "/model", host=host).json["detail"]


def test_with_a_token_any_name_will_do(model: Path, row: dict[str, Any]) -> None:
    with serving(model, token=TOKEN) as one:
        answer = one.ask(
            "POST", "/predict", {"rows": [row]}, host="models.bank.example", authorization=f"Bearer {TOKEN}"
        )
        assert answer.status == 200
