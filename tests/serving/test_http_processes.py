"""``tdcd serve`` as a process: how it starts, stops, and takes another model."""

import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import tdcd
from serving.http_models import make_tables, rows_of, train_tables
from tdcd.cli.main import main
from tdcd.serving.http.server import listen
from tdcd.serving.http.settings import Address

SECRET = "0123456789abcdef"  # noqa: S105


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("http")
    train_tables(place, 3)
    train_tables(place, 4)
    return place


@dataclass(frozen=True)
class Process:
    """A server in a process of its own."""

    process: "subprocess.Popen[str]"
    port: int
    said: str
    log: Path

    def predict(self, rows: list[Any]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", "/predict", json.dumps({"rows": rows}), {"Content-Type": "application/json"})
        with closing(connection), connection.getresponse() as response:
            return response.status, json.loads(response.read())

    def round(self, row: Any) -> int:
        status, reply = self.predict([row])
        assert status == 200
        return int(reply["model"]["round"])

    def wait_for(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not what():
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)


@contextmanager
def started(model: Path, *options: str) -> Iterator[Process]:
    log = model.parent / "log"
    command = [sys.executable, "-m", "tdcd", "serve", str(model), "--port", "0", *options]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    said = ""
    for line in process.stdout or ():
        said += line
        if line.startswith("try: "):
            break
    found = re.search(r"serving at https?://127.0.0.1:(\d+),", said)
    assert found, log.read_text()
    try:
        yield Process(process, int(found[1]), said, log)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def row() -> dict[str, Any]:
    return rows_of(*make_tables())[0]


def test_it_says_what_it_serves_and_stops_when_all_is_answered(models: Path, row: dict[str, Any]) -> None:
    with started(models / "model-3") as server:
        assert re.search(r"model-3: loans, run \w+, round 3; assembled", server.said)
        assert f"described at http://127.0.0.1:{server.port}/docs" in server.said
        example = re.search("try: curl .* -d '(.*)'", server.said)
        assert example
        assert server.predict(json.loads(example[1])["rows"])[0] == 200
        body = json.dumps({"rows": [row]}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as under_way:
            head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}"
            under_way.sendall(head.encode() + b"\r\n\r\n" + body[:10])
            server.wait_for(lambda: server.predict([row])[0] == 200)  # so the other has arrived, too
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: not reachable(server.port))
            under_way.sendall(body[10:])
            assert under_way.recv(1000).startswith(b"HTTP/1.1 200")
        assert server.process.wait(30) == 0
        log = server.log.read_text()
    assert log.splitlines()[-1].endswith("stopped")
    assert "Traceback" not in log


def reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("watch", [True, False])
def test_another_model_takes_its_place_without_a_request_lost(
    models: Path, row: dict[str, Any], tmp_path: Path, watch: bool
) -> None:
    path = tmp_path / "model"
    shutil.copytree(models / "model-3", path)
    with started(path, *(["--watch"] if watch else [])) as server:
        statuses, stop = set(), threading.Event()

        def ask() -> None:
            while not stop.is_set():
                statuses.add(server.predict([row])[0])

        asking = threading.Thread(target=ask)
        asking.start()

        def reload() -> None:
            if not watch:
                server.process.send_signal(signal.SIGHUP)

        assert server.round(row) == 3
        tdcd.assemble([models / "run-4"], path, force=True)
        reload()
        server.wait_for(lambda: server.round(row) == 4)
        weights = path / "blocks" / "bank.safetensors"
        damaged = bytearray(weights.read_bytes())
        damaged[-1] ^= 1
        weights.write_bytes(bytes(damaged))
        (path / "model.json").write_text((path / "model.json").read_text())
        reload()
        server.wait_for(lambda: "the new model is refused" in server.log.read_text())
        assert server.round(row) == 4
        stop.set()
        asking.join()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
        assert statuses == {200}
        assert "bank.safetensors" in server.log.read_text()


def test_logs_have_no_values_of_rows(models: Path, row: dict[str, Any]) -> None:
    with started(models / "model-3", "--log", "json") as server:
        assert server.predict([{**row, "bank": {**row["bank"], "job": "spy-4711", "age": 1e300}}])[0] == 422
        assert server.predict([{**row, "bank": {**row["bank"], "job": "spy-4711"}}])[0] == 200
        assert server.predict([{**row, "id": "spy-4711", "bank": "spy-4711"}])[0] == 422
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert "spy-4711" not in server.log.read_text()
        assert json.loads(server.log.read_text())["message"] == "stopped"


def test_https(models: Path, tmp_path: Path, row: dict[str, Any]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), datetime.now(UTC)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 7, now - timedelta(1), now + timedelta(1))
    signed = certificate.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "cert.pem").write_bytes(signed.sign(key, hashes.SHA256()).public_bytes(pem))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    options = ["--tls-certificate", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    (tmp_path / "token").write_text(SECRET)
    with started(models / "model-3", *options, "--token-file", str(tmp_path / "token"), "--host", "0.0.0.0") as server:  # noqa: S104
        assert "Authorization: Bearer TOKEN" in server.said
        assert SECRET not in server.said
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=30, context=trusting)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}"}
        connection.request("POST", "/predict", json.dumps({"rows": [row]}), headers)
        with closing(connection), connection.getresponse() as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "require a token with --token-file or TDCD_TOKEN, or say --insecure"),  # noqa: S104
        (["--host", "nowhere.invalid", "--insecure"], "cannot listen on nowhere.invalid, port 8000: "),
        (["--tls-key", "key.pem"], "--tls-key goes with --tls-certificate"),
        (["--tls-certificate", "none.pem"], "cannot be used: "),
        (["--token-file", "none"], "--token-file none: cannot be read: No such file"),
        (["--log", "xml"], "'xml' is not known"),
    ],
)
def test_what_it_does_not_start_with(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["tdcd", "serve", str(models / "model-3"), *options])
    monkeypatch.delenv("TDCD_TOKEN", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_port_that_is_taken_and_a_model_that_is_none(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with listen(Address(port=0)) as taken:
        port = taken.getsockname()[1]
        for model, words in ((models / "model-3", f"port {port}: Address already in use"), (tmp_path, "is not a run")):
            monkeypatch.setattr(sys, "argv", ["tdcd", "serve", str(model), "--port", str(port)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 2
            assert words in capsys.readouterr().err


def test_other_commands_do_not_load_the_web() -> None:
    code = "import sys, tdcd, tdcd.cli.main; print({'starlette', 'uvicorn', 'prometheus_client'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
