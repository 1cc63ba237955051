"""How many predictions a second ``tdcd serve`` gives over HTTP, and how long each takes: asked by another process.

python benchmarks/serving_http.py                    # the tables of examples/bank_insurer, from built-in data
python benchmarks/serving_http.py --credit FILE      # from credit_default.csv, as the example's own

Requests are sent at a fixed rate, whether or not earlier ones are answered, over connections that stay open; a request
that must wait for a free connection counts from when it was due.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from measures import resident
from results import Section, Table, write_sections

EXAMPLE = Path(__file__).parents[1] / "examples" / "bank_insurer"
CONNECTIONS = 64
WARM_UP = 2.0
ROUNDS = 50


@dataclass(frozen=True)
class Load:
    """What came of some seconds of requests."""

    sent: int
    failed: int
    seconds: float
    latencies: Sequence[float]
    """In seconds, each from when its request was due."""
    server: float
    """Cores that the server kept busy."""
    client: float
    """Cores that this process kept busy."""

    def percentile(self, percent: float) -> str:
        """Return a percentile of the latencies, in milliseconds."""
        return f"{np.percentile(self.latencies, percent) * 1e3:.1f} ms"


def prepare(folder: Path, credit: str | None) -> Path:
    """Make the tables, train the example's model for a few rounds, and assemble it."""
    for name in ("loans.toml", "make_tables.py"):
        (folder / name).write_bytes((EXAMPLE / name).read_bytes())
    job = folder / "loans.toml"
    job.write_text(re.sub("^baselines.*$", "", job.read_text(), flags=re.M))
    made = [sys.executable, "make_tables.py", *(["--credit", str(Path(credit).resolve())] if credit else [])]
    tdcd = [sys.executable, "-m", "tdcd"]
    settings = ["--set", f"training.rounds={ROUNDS}", "--set", f"training.evaluate_every={ROUNDS}"]
    for command in (made, [*tdcd, "align", "loans.toml"], [*tdcd, "train", "loans.toml", *settings]):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    (run,) = (folder / "runs").glob("loans-*")
    subprocess.run([*tdcd, "assemble", run, "--out", "model"], cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return folder / "model"


def read_rows(folder: Path) -> list[dict[str, object]]:
    """Return the people who came later, as rows of requests."""
    silos = {silo: pl.read_csv(folder / "loans" / f"new-{silo}.csv") for silo in ("bank", "insurer")}
    rows = {
        silo: {row.pop("customer"): row for row in frame.drop("default", strict=False).to_dicts()}
        for silo, frame in silos.items()
    }
    common = [person for person in rows["bank"] if person in rows["insurer"]]
    return [{"id": person, **{silo: own[person] for silo, own in rows.items()}} for person in common]


def request(rows: Sequence[object]) -> bytes:
    """Return a request as it travels."""
    body = json.dumps({"rows": rows}).encode()
    size = f"Content-Length: {len(body)}"
    lines = ["POST /predict HTTP/1.1", "Host: localhost", "Content-Type: application/json", size]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], message: bytes) -> bool:
    """Send a request over an open connection; tell whether it was answered well."""
    reader, writer = connection
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    await reader.readexactly(int(length[1]) if length else 0)
    return head.startswith(b"HTTP/1.1 200")


async def send(port: int, messages: Sequence[bytes], rate: float, seconds: float) -> tuple[list[float], int]:
    """Send requests at a rate; return latencies and how many failed."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    latencies, failed, tasks = list[float](), 0, set[asyncio.Task[None]]()

    async def one(due: float, message: bytes) -> None:
        nonlocal failed
        connection = await free.get()
        good = await ask(connection, message)
        latencies.append(time.perf_counter() - due)
        failed += not good
        free.put_nowait(connection)

    start = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = start + number / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(one(due, messages[number % len(messages)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    while not free.empty():
        free.get_nowait()[1].close()
    return latencies, failed


def busy(process: int) -> float:
    """Return the seconds that a process has computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, server: int, messages: Sequence[bytes], rate: float, seconds: float) -> Load:
    """Load the server for some seconds, once it is warm."""
    asyncio.run(send(port, messages, rate, WARM_UP))
    before, own, start = busy(server), time.process_time(), time.perf_counter()
    latencies, failed = asyncio.run(send(port, messages, rate, seconds))
    passed = time.perf_counter() - start
    used, mine = busy(server) - before, time.process_time() - own
    return Load(len(latencies), failed, passed, latencies, used / passed, mine / passed)


def serve(model: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a server; return it and its port."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tdcd", "serve", str(model), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603
    for line in server.stdout or ():
        if found := re.search(r"serving at http://127.0.0.1:(\d+)", line):
            return server, int(found[1])
    raise SystemExit("the server did not start")


def points(options: argparse.Namespace) -> Table:
    """Yield a line for each rate."""
    yield [
        "requests",
        "a second",
        "p50",
        "p99",
        "longest",
        "failed",
        "cores: server",
        "cores: client",
        "memory",
        "load",
    ]
    with TemporaryDirectory() as made:
        folder = Path(made)
        model = prepare(folder, options.credit)
        rows = read_rows(folder)
        single = [request([row]) for row in rows]
        many = [request((rows * 100)[:1000])]
        server, port = serve(model)
        try:
            yield from _lines(options, server.pid, port, single, many)
        finally:
            server.terminate()
            if server.wait(60):
                raise SystemExit("the server did not stop well")


def _lines(
    options: argparse.Namespace, server: int, port: int, single: Sequence[bytes], many: Sequence[bytes]
) -> Iterator[list[str]]:
    cases = [("1 row", single, rate) for rate in options.rates] + [("1,000 rows", many, 10.0)]
    for name, messages, rate in cases:
        before = os.getloadavg()[0]
        load = measure(port, server, messages, rate, options.seconds)
        if load.failed == load.sent:
            raise SystemExit(f"{name}: every request was refused")
        yield [
            name, f"{load.sent / load.seconds:.0f}", load.percentile(50), load.percentile(99), load.percentile(100),
            str(load.failed), f"{load.server:.2f}", f"{load.client:.2f}", f"{resident(server):.0f} MB", f"{before:.1f}",
        ]  # fmt: skip


SECTIONS: dict[str, Section] = {
    "serving": (
        "Predictions over HTTP",
        points,
        (
            "`tdcd serve` with the model of `examples/bank_insurer` (two silos, MLPs with 32 hidden units), asked by "
            f"another process on the same machine over {CONNECTIONS} open connections at a fixed rate. Latencies count "
            "from when a request was due; load is that of the machine before, over a minute."
        ),
    )
}


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--credit", help="credit_default.csv; default: built-in data")
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 500.0, 750.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    write_sections(SECTIONS, list(SECTIONS), parser.parse_args())


if __name__ == "__main__":
    main()
