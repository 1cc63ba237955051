"""The job file: its settings, and reading it."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tdcd.compute import ComputeName
from tdcd.data.rows import ROWS_TAGS, Equal, Rows
from tdcd.data.sources import SourceName
from tdcd.errors import JobError, nearest
from tdcd.models import MODEL_TAGS, Model
from tdcd.strict import Strict, problems
from tdcd.training.schedules import SCHEDULE_TAGS
from tdcd.training.settings import Count, Settings
from tdcd.training.train import EngineName

EMBEDDED = ("digits", "breast-cancer")
"""Jobs that come with tdcd, by name."""


class Data(Strict):
    """What to train on, and how rows are dealt to clients."""

    source: SourceName
    """A built-in data set, which also names the silos."""
    clients: Count = 5
    """K: clients in each silo that does not say otherwise."""
    rows: Rows = Equal()
    """How a silo's rows fall to its clients."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """About so many of the IDs are held out for testing."""
    seed: Annotated[int, Field(ge=0)] = 2021
    """Chooses the test IDs and deals the rows to clients."""


class SiloJob(Strict):
    """What is particular to one silo."""

    clients: Count | None = None
    """K_j, when it is not data.clients."""
    model: Model | None = None
    """h_j, when it is not the job's model."""


class Job(Strict):
    """A whole job file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "job"
    """Names the run directory."""
    engine: EngineName = "local"
    """Where to run: "local" in this process; "oracle" by the slow pseudocode."""
    compute: ComputeName = "auto"
    """How the local engine computes a silo's clients."""
    workers: Count | None = None
    """Threads that may share the work; default: one for each core. The numbers do not depend on it."""
    device: str = "cpu"
    """Where to compute: "cpu", or "cuda", "cuda:1" … for a graphics card."""
    baselines: list[Literal["alone"]] = []
    """What to train for comparison: "alone" trains each silo by itself with the same settings."""
    data: Data
    model: Model
    """The network of every silo that does not have its own."""
    silos: dict[str, SiloJob] = {}
    """What is particular to single silos, by name."""
    training: Settings

    def as_table(self) -> dict[str, Any]:
        """Return the job with every default filled in, as it is written to job.toml."""
        return self.model_dump(exclude_none=True)


def load_job(path: Path | str, overrides: Mapping[str, Any] | None = None, clients: int | None = None) -> Job:
    """Read a job file.

    Args:
        path: A TOML file, or the name of an embedded job: "digits" or "breast-cancer".
        overrides: Settings that replace the file's, by their dotted names: ``{"training.rounds": 10}``.
        clients: K for every silo, also for those that have a number of their own in the file.

    Raises:
        JobError: it cannot be read or is not a valid job; names every problem by its key.
    """
    where, text = _text(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{where}: not TOML: {error}") from error
    for key, value in (overrides or {}).items():
        _set(table, key, value)
    if clients is not None:
        _set(table, "data.clients", clients)
        silos = table.get("silos", {})
        for silo in silos if isinstance(silos, dict) else ():
            _set(table, f"silos.{silo}.clients", clients)
    return parse_job(table, where)


def parse_job(table: Mapping[str, Any], where: str) -> Job:
    """Check a job given as nested tables; ``where`` names it in errors."""
    try:
        return Job.model_validate(table)
    except ValidationError as error:
        found = problems(error, tags=MODEL_TAGS | SCHEDULE_TAGS | ROWS_TAGS)
        raise JobError("\n".join(f"{where}: {problem}" for problem in found)) from error


def parse_override(text: str) -> tuple[str, Any]:
    """Read ``training.rate=0.1`` as a key and a TOML value; a bare word is a text."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise JobError(f"--set {text}: write it as KEY=VALUE, such as training.rate=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def embedded(name: str) -> str:
    """Return the text of a job that comes with tdcd."""
    return files("tdcd.experiments").joinpath("jobs", f"{name}.toml").read_text(encoding="utf-8")


def known_silos(names: Iterable[str], silos: Iterable[str], where: str) -> None:
    """Check the names of ``[silos.NAME]`` tables against the silos that the data has."""
    silos = list(silos)
    for name in names:
        if name not in silos:
            raise JobError(f"{where}: silos.{name}: the data has no such silo{nearest(name, silos)}")


def _text(path: Path | str) -> tuple[str, str]:
    if str(path) in EMBEDDED:
        return f"{path} (embedded job)", embedded(str(path))
    file = Path(path)
    try:
        return str(file), file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        beside = {p.stem: p for p in file.parent.glob("*.toml")} if file.parent.is_dir() else {}
        close = difflib.get_close_matches(file.stem, beside, n=1)
        hint = f"did you mean '{beside[close[0]]}'?" if close else "make one with: tdcd init digits"
        raise JobError(f"{file}: no such job file; {hint}") from error
    except IsADirectoryError as error:
        run = f"; to go on with a run: tdcd train --resume {file}" if (file / "job.toml").exists() else ""
        raise JobError(f"{file}: a directory, not a job file{run}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{file}: cannot be read: {error}") from error


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise JobError(f"{key}: '{part}' is a value in the job, not a table")
    table[last] = value
