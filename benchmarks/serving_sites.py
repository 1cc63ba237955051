"""Measure predictions across sites on one machine: also by lines with delay. Writes SERVING_SITES.md.

python benchmarks/serving_sites.py [FOLDER]
"""

import asyncio
import random
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np
import polars as pl
import tomli_w
import torch

from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import TableJob
from tdcd.runs.environment import describe_session
from tdcd.serving.frames import prediction_frame
from tdcd.serving.model import load_model
from tdcd.sites.asking import Asker, ask_all
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.participants import check_serves
from tdcd.sites.security.identity import Identity
from tdcd.sites.site_file import HubSite, read_site
from tdcd.sites.status import hub_of

HERE = Path(__file__).parent
SILOS, CLIENTS, PEOPLE = 4, 2, 100_000
TRAINED = 2_000
QUESTIONS = 100
DELAY, RATE = 0.010, 100e6 / 8
"""Seconds each way, and bytes a second, of lines between hubs."""
ROUNDED = 0.0005
"""Seconds by which an event loop's clock is late on average: it counts in milliseconds."""


def write(folder: Path, model: str, silos: int = SILOS) -> TableJob:
    """Write the tables that are trained on, and the larger ones to predict from."""
    generator = np.random.default_rng(3)
    truth = generator.normal(size=(PEOPLE, 3 * silos)).astype(np.float32).round(4)
    label = (truth.sum(1) + generator.normal(size=PEOPLE) > 0).astype(int)
    lines = [
        'labels = { silo = "silo-0", sharing = "shared" }\n[data]\nsource = "tables"',
        f"[model]\n{model}",
        '[training]\nloss = "binary-cross-entropy"\nrounds = 20\nlocal_steps = 3\nbatch_size = 200\nrate = 0.1',
        'evaluate_every = 20\n[deployment]\nalignment = "plain"',
    ]
    people = np.arange(1, PEOPLE + 1)
    for silo in range(silos):
        name = f"silo-{silo}"
        lines.append(f'[silos.{name}]\nid = "person"' + ('\nlabel = "ill"' if silo == 0 else ""))
        lines.append(f"[silos.{name}.clients]")
        owner = generator.integers(CLIENTS, size=PEOPLE)
        for client in range(CLIENTS):
            mine = np.flatnonzero(owner == client)
            columns = {"person": people[mine], **{f"x{k}": truth[mine, 3 * silo + k] for k in range(3)}}
            frame = pl.DataFrame(columns | ({"ill": label[mine]} if silo == 0 else {}))
            (folder / "new" / name).mkdir(parents=True, exist_ok=True)
            frame.drop("ill", strict=False).write_csv(folder / "new" / name / f"part-{client}.csv")
            frame.filter(pl.col("person") <= TRAINED).write_csv(folder / f"{name}-{client}.csv")
            lines.append(f'part-{client} = "{name}-{client}.csv"')
    (folder / "job.toml").write_text("\n".join(lines))
    return check_serves(load_job(folder / "job.toml"))


class SlowLine:
    """Passes on what comes to another address after a delay, at a rate; pieces under way overlap."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target, self.port = (host, int(port)), 0

    async def start(self) -> None:
        """Listen from now on."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._pass(reader, far), self._pass(far_reader, near))
            far.close()
        near.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free = loop.time()
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                free = max(free, loop.time()) + len(data) / RATE
                loop.call_at(free + DELAY - ROUNDED, writer.write, data)


def slow_lines(federation: LocalFederation) -> None:
    """Put a slow line in front of every hub, for the other hubs."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True).start()
    hubs = {who.silo: site for who, site in federation.sites.items() if who.client is None}
    lines = {silo: SlowLine(tomllib.loads(site.file.read_text())["listen"]) for silo, site in hubs.items()}
    for line in lines.values():
        asyncio.run_coroutine_threadsafe(line.start(), loop).result()
    for site in hubs.values():
        table = tomllib.loads(site.file.read_text())
        table["peers"] = {silo: f"127.0.0.1:{lines[silo].port}" for silo in table["peers"]}
        site.file.write_text(tomli_w.dumps(table))


@contextmanager
def deployed(job: TableJob, folder: Path, *, slow: bool = False) -> Iterator[Path]:
    """Train and serve; yield the site file of the hub that may ask."""
    federation = LocalFederation.laid_out(job, folder / "sites", serve=True, new=folder / "new")
    if slow:
        slow_lines(federation)
    federation.start(quiet=True)
    try:
        logs = [site.log for who, site in federation.sites.items() if who.client is None]
        end = time.monotonic() + 600
        while any(f"{CLIENTS} of {CLIENTS} clients are ready" not in log.read_text() for log in logs if log.exists()):
            if time.monotonic() > end or any(one.poll() is not None for one in federation.processes.values()):
                raise SystemExit("\n".join(site.log.read_text() for site in federation.sites.values()))
            time.sleep(0.2)
        yield federation.sites[Identity(job.predict_at)].file
    finally:
        federation.kill()


def milliseconds(times: list[float]) -> str:
    """Describe how long something took."""
    ordered = sorted(times)
    return f"{1000 * median(ordered):.1f} ms (95 % within {1000 * ordered[int(0.95 * len(ordered))]:.1f})"


async def measure(file: Path, counts: tuple[int, ...]) -> dict[int, list[float]]:
    """Ask for so many IDs again and again, one question after the other; return the seconds of each."""
    asker, generator = await dialled(file), random.Random(1)  # noqa: S311
    result: dict[int, list[float]] = {}
    for count in counts:
        times = []
        for number in range(QUESTIONS + 20):
            ids = np.array(generator.sample(range(1, PEOPLE + 1), count))
            began = time.perf_counter()
            await asker.ask(ids)
            if number >= 20:  # lines and processes are warm
                times.append(time.perf_counter() - began)
        result[count] = times
    return result


async def dialled(file: Path) -> Asker:
    """Open a line to the hub."""
    return await Asker.open(hub_of(file, read_site(file, HubSite), insecure=False), "silo-0")


async def together(file: Path, callers: int) -> float:
    """Return the questions a second of many callers who ask for one ID each."""
    asker, done = await dialled(file), 0

    async def call(number: int) -> None:
        nonlocal done
        generator = random.Random(number)  # noqa: S311
        for _ in range(50):
            await asker.ask(np.array([generator.randint(1, PEOPLE)]))
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*map(call, range(callers)))
    return done / (time.perf_counter() - began)


async def everybody(file: Path) -> tuple[float, Any]:
    """Ask for all IDs; return the seconds, and the scores."""
    asker = await dialled(file)
    began = time.perf_counter()
    scores = await ask_all(asker, np.arange(1, PEOPLE + 1), lambda _: None)
    return time.perf_counter() - began, scores.values


def distance(job: TableJob, folder: Path, scores: Any) -> float:
    """Return how far the predictions are from those of one place at most."""
    together = job.model_copy(update={"baselines": []})
    run_job(together, folder / "central")
    run = load_model(folder / "central")
    files: dict[str, list[Path | str]] = {
        f"{silo}/{client}": [folder / "new" / silo / f"{client}.csv"] for silo in job.silos for client in
        job.silos[silo].client_names
    }  # fmt: skip
    frame = run.predict_tables(files).frame.sort("id")
    own = prediction_frame(job.training.objective, (), np.arange(1, PEOPLE + 1), scores)
    return float(np.abs(frame[:, 2].to_numpy() - own[:, 2].to_numpy()).max())


def main() -> None:
    """Measure all of it."""
    lines: list[str] = []

    def note(what: str, measured: str) -> None:
        lines.append(f"| {what} | {measured} |")
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)
        models: dict[str, str] = {"linear": 'kind = "linear"', "mlp": 'kind = "mlp"\nhidden = [32]'}
        for name, model in models.items():
            place = folder / name
            place.mkdir(parents=True)
            job = write(place, model)
            with deployed(job, place) as file:
                if name == "mlp":
                    for count, times in asyncio.run(measure(file, (1, 10, 50))).items():
                        note(f"{count} ID{'s' * (count > 1)} a question, loopback", milliseconds(times))
                    rate = asyncio.run(together(file, 64))
                    note("64 callers at once, an ID a question", f"{rate:,.0f} questions a second")
                seconds, scores = asyncio.run(everybody(file))
            if name == "mlp":
                note(f"{PEOPLE:,} IDs", f"{seconds:.1f} s")
            note(f"{name}: farthest from the predictions in one place", f"{distance(job, place, scores):.1g}")
        for silos in (SILOS, 2):
            place = folder / f"slow-{silos}"
            place.mkdir()
            with deployed(write(place, models["mlp"], silos), place, slow=True) as file:
                for count, times in asyncio.run(measure(file, (1, 10, 50))).items():
                    ids = f"{count} ID{'s' * (count > 1)} a question"
                    note(f"{ids}, {silos} silos, 10 ms each way between hubs, 100 Mbit/s", milliseconds(times))
    here = describe_session()
    text = f"""# Predictions across sites

{SILOS} silos with {CLIENTS} clients each, twelve processes on one machine, mutual TLS; {PEOPLE:,} people, three
columns a silo. A question is one of a program with an open line to its hub. Made by
`python benchmarks/serving_sites.py`; other programs share the machine.

{here.processor}, {here.cores} cores; torch {torch.__version__}; {datetime.now(UTC):%Y-%m-%d}.

| what | measured |
|---|---|
"""
    (HERE / "SERVING_SITES.md").write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
