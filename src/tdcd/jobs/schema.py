"""The job file: its settings, and reading it."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tdcd.compute import ComputeName
from tdcd.data.features import FEATURES_TAGS, Features
from tdcd.data.rows import ROWS_TAGS, Equal, Rows
from tdcd.data.sets import SETS, SetName
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import JobError, join_names, nearest
from tdcd.files import quoted_key, split_key
from tdcd.models import MODEL_TAGS, Model, ModelSpec
from tdcd.strict import Strict, problems
from tdcd.training.labels import Labels
from tdcd.training.schedules import SCHEDULE_TAGS
from tdcd.training.settings import Count, Settings
from tdcd.training.train import EngineName

EMBEDDED = ("digits", "breast-cancer", "cifar10", "idx", "mimic3", "modelnet", "physionet2012")
"""Jobs that come with tdcd, by name. Those on published data need to be told where its files are."""

TEMPLATES = ("tables",)
"""Jobs to fill in before they can run."""

Baseline = Literal["central", "alone", "one-tier"]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class _Split(Strict):
    """What is held out of any data."""

    test_fraction: Fraction | None = None
    """About so many of the IDs are held out for testing. Default: what the publisher holds out, or else 0.2."""
    validation_fraction: Fraction | None = None
    """About so many of the others are held out for validation; default: none."""
    clients: Count | None = None
    """K: clients in each silo that does not say otherwise; default: 5."""
    rows: Rows = Equal()
    """How a silo's rows fall to its clients."""
    seed: Annotated[int, Field(ge=0)] = 2021
    """Chooses what is held out, and deals features to silos and rows to clients."""


class SetData(_Split):
    """A published or built-in data set, and how it is dealt to silos."""

    source: SetName
    directory: str | None = None
    """Where its files are; not for the built-in ones."""
    pixels: Count | None = None
    """Scale pictures to this width and height; for ModelNet."""
    features: Features | None = None
    """How silos share the features; default: as fits the data set."""


class TableData(_Split):
    """Tables that the silos' clients have."""

    source: Literal["tables"]
    alignment: str | None = None
    """The file that ``tdcd align`` made; default: align anew for every training."""
    split_column: str | None = None
    """A column of one or more silos that says "train", "validation" or "test", instead of fractions."""

    @model_validator(mode="after")
    def _one_way(self) -> "TableData":
        if self.split_column and (self.test_fraction or self.validation_fraction):
            raise ValueError("split_column says what is held out; leave out test_fraction and validation_fraction")
        return self


class Deployment(Strict):
    """How sites work together; a simulation takes no notice of it."""

    client_deadline: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that a client may take for its part of a stage; then the round goes on without its rows."""
    hub_deadline: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that a hub waits for another hub, or for enough clients; then it stops, and can be started again."""
    minimum_clients: Count = 1
    """With fewer clients than this a silo waits."""
    alignment: Literal["private", "plain"] = "private"
    """How hubs find the common IDs: "private" by private set intersection; "plain" by telling each other all IDs."""


def _clients(value: Any) -> Any:
    if isinstance(value, list):
        wrong = [name for name in value if not isinstance(name, str) or not name]
        if wrong or not value or len(set(value)) < len(value):
            raise ValueError(f'names each client once: ["north", "south"] (is {value!r})')
    elif isinstance(value, dict):
        wrong = [name for name, path in value.items() if not isinstance(path, str) or not path]
        if wrong or not value:
            raise ValueError(
                'names a file for each client: { north = "north.csv" }'
                f"{'; not so: ' if wrong else ''}{join_names(wrong)}"
            )
    elif value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(
            f"is a number of clients, a list of names, or a table that names a file for each (is {value!r})"
        )
    return value


class SiloJob(TableSettings):
    """What is particular to one silo."""

    clients: Annotated[int | dict[str, str] | list[str] | None, BeforeValidator(_clients)] = None
    """K_j, when it is not data.clients; or, for tables, the file of each client by its name. In a job file also a
    pattern such as "bank/*.csv", whose files name the clients. At real sites names are enough: every client knows
    its own file."""
    file: str | None = None
    """For tables: one file with all of the silo's rows, dealt to simulated clients by ``rows``."""
    rows: Rows | None = None
    """How its rows fall to its clients, when it is not data.rows."""
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
    baselines: list[Baseline] = []
    """What to train for comparison: "central" all data in one place, by as many plain steps; "alone" the same for
    each silo by itself; "one-tier" every silo with all of its rows at one client."""
    data: Annotated[SetData | TableData, Field(discriminator="source")]
    labels: Labels = Labels()
    model: Model
    """The network of every silo that does not have its own."""
    silos: dict[str, SiloJob] = {}
    """What is particular to single silos, by name."""
    training: Settings
    deployment: Deployment = Deployment()
    """For ``tdcd hub`` and ``tdcd client``."""

    @model_validator(mode="after")
    def _consistent(self) -> "Job":
        if isinstance(self.data, TableData):
            return self._tables()
        for name, silo in self.silos.items():
            for key in TableSettings.model_fields.keys() | {"file"}:
                if getattr(silo, key) != SiloJob.model_fields[key].default:
                    raise ValueError(f'silos.{name}.{key} goes with data.source = "tables" only')
            if isinstance(silo.clients, dict | list):
                raise ValueError(f'silos.{name}.clients: names and files go with data.source = "tables" only')
        for key in ("positive", "classes"):
            if getattr(self.labels, key) is not None:
                raise ValueError(f'labels.{key} goes with data.source = "tables" only')
        if self.labels.silo is not None and self.labels.sharing is None:
            raise ValueError('labels.silo: say what becomes of them: sharing = "shared", "exact" or "stale"')
        return self

    def _tables(self) -> "Job":
        if not self.silos:
            raise ValueError("silos: tables need a [silos.NAME] for every silo, with its clients' files")
        for name, silo in self.silos.items():
            if isinstance(silo.clients, dict | list) == (silo.file is not None):
                raise ValueError(
                    f'silos.{name}: name a file for each client, clients = {{ north = "north.csv" }}; '
                    'or one file for all, file = "all.csv"'
                )
            if not silo.id:
                raise ValueError(f"silos.{name}.id: name the column that holds the IDs")
            if isinstance(silo.clients, dict | list) and silo.rows:
                raise ValueError(f"silos.{name}.rows: its clients have files of their own, so no rows are dealt")
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ValueError(f"silos: '{name}': a name has letters, digits, dots, dashes and underscores")
        if all(isinstance(silo.clients, dict | list) for silo in self.silos.values()):
            for key in ("clients", "rows"):
                if getattr(self.data, key) != TableData.model_fields[key].default:
                    raise ValueError(f"data.{key}: all clients have files of their own, so no rows are dealt")
        if self.labels.silo is not None and self.labels.silo not in self.silos:
            raise ValueError(f"labels.silo: '{self.labels.silo}' is no silo{nearest(self.labels.silo, self.silos)}")
        if self.labels.positive is not None and self.training.loss != "binary-cross-entropy":
            raise ValueError("labels.positive goes with the loss binary-cross-entropy")
        classes, positive = self.labels.classes, self.labels.positive
        if classes is not None and self.training.loss == "squared-error":
            raise ValueError("labels.classes: a regression has none")
        if classes is not None and self.training.loss == "binary-cross-entropy":
            wanted = "1" if positive is None else str(positive)
            if len(classes) != 2 or wanted not in classes:
                raise ValueError(f"labels.classes: the binary loss wants two, one of them '{wanted}' (labels.positive)")
        if self.labels.private:
            others = [name for name, silo in self.silos.items() if silo.label and name != self.labels.silo]
            if others:
                raise ValueError(
                    f'silos.{others[0]}.label: with sharing = "{self.labels.sharing}" only silo '
                    f"'{self.labels.silo}' has labels; leave it out, and exclude the column"
                )
        return self

    def model_of(self, silo: str) -> ModelSpec:
        """Return a silo's network: its own, or that of the job."""
        own = self.silos.get(silo)
        return (own.model if own else None) or self.model

    def as_table(self) -> dict[str, Any]:
        """Return the job with every default filled in, as it is written to job.toml."""
        unused = {} if isinstance(self.data, TableData) else {"silos": {"__all__": set(TableSettings.model_fields)}}
        return self.model_dump(exclude_none=True, exclude=unused)


def load_job(path: Path | str, overrides: Mapping[str, Any] | None = None, clients: int | None = None) -> Job:
    """Read a job file.

    Args:
        path: A TOML file, or the name of an embedded job such as "digits".
        overrides: Settings that replace the file's, by their dotted names: ``{"training.rounds": 10}``.
        clients: K for every silo, also for those that have a number of their own in the file.

    Paths in a job file are relative to it, paths in ``overrides`` to the current directory.

    Raises:
        JobError: it cannot be read or is not a valid job; names every problem by its key.
    """
    where, text = _text(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{where}: not TOML: {error}") from error
    if {"iterations", "grid", "cases"} & table.keys():
        raise JobError(f"{where}: this is a sweep file; run it with: tdcd sweep {quote(str(path))}")
    resolve_paths(table, Path(path).parent)
    for key, value in (overrides or {}).items():
        _set(table, key, value)
    resolve_paths(table, Path())
    if clients is not None:
        _set(table, "data.clients", clients)
        silos = table.get("silos", {})
        for silo, own in silos.items() if isinstance(silos, dict) else ():
            if isinstance(own, dict) and isinstance(own.get("clients"), dict):
                raise JobError(f"{where}: the number of clients cannot be set: those of silo '{silo}' have files")
            _set(table, f"silos.{quoted_key(silo)}.clients", clients)
    return parse_job(table, where)


def parse_job(table: Mapping[str, Any], where: str) -> Job:
    """Check a job given as nested tables; ``where`` names it in errors."""
    try:
        return Job.model_validate(table)
    except ValidationError as error:
        result = problems(error, tags=MODEL_TAGS | SCHEDULE_TAGS | ROWS_TAGS | FEATURES_TAGS | SETS.keys() | {"tables"})
        raise JobError("\n".join(f"{where}: {problem}" for problem in result)) from error


def embedded_job_text(name: str) -> str:
    """Return the text of a job that comes with tdcd."""
    return files("tdcd.jobs").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def known_silos(names: Iterable[str], silos: Iterable[str], where: str) -> None:
    """Check the names of ``[silos.NAME]`` tables against the silos that the data has."""
    silos = list(silos)
    for name in names:
        if name not in silos:
            raise JobError(f"{where}: silos.{name}: the data has no such silo{nearest(name, silos)}")


def resolve_paths(table: Mapping[str, Any], beside: Path) -> None:
    """Make the paths of a job absolute; they are relative to the job file."""

    def resolve(where: Any, *keys: str) -> None:
        for key in keys if isinstance(where, dict) else ():
            if isinstance(where.get(key), str) and where[key]:
                where[key] = str(_absolute(beside, where[key]))

    resolve(table.get("data"), "directory", "alignment")
    silos = table.get("silos")
    for silo in silos.values() if isinstance(silos, dict) else ():
        resolve(silo, "file")
        if isinstance(silo, dict) and isinstance(silo.get("clients"), str):
            silo["clients"] = _matching(beside, silo["clients"])
        if isinstance(silo, dict) and isinstance(silo.get("clients"), dict):
            resolve(silo["clients"], *silo["clients"])


def _absolute(beside: Path, path: str) -> Path:
    try:
        return (beside / Path(path).expanduser()).resolve()
    except (RuntimeError, ValueError, OSError) as error:
        raise JobError(f"{path!r} is not a path: {error}") from error


def _matching(beside: Path, pattern: str) -> dict[str, str]:
    """Return the files that a pattern such as ``bank/*.csv`` names, by their stems."""
    folder, name = _absolute(beside, pattern).parent, Path(pattern).name
    result = sorted(path for path in folder.glob(name) if path.is_file()) if name and folder.is_dir() else []
    if not result:
        raise JobError(f'clients = "{pattern}": no file is called so in {folder.resolve()}')
    stems = [path.stem for path in result]
    if len(set(stems)) < len(stems):
        raise JobError(f'clients = "{pattern}": two files name the same client; name clients and files one by one')
    return dict(zip(stems, map(str, result), strict=True))


def _text(path: Path | str) -> tuple[str, str]:
    if str(path) in EMBEDDED:
        return f"{path} (embedded job)", embedded_job_text(str(path))
    file = Path(path)
    try:
        return str(file), file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        beside = {p.stem: p for p in file.parent.glob("*.toml")} if file.parent.is_dir() else {}
        close = difflib.get_close_matches(file.stem, beside, n=1)
        hint = f"did you mean '{beside[close[0]]}'?" if close else "make one with: tdcd init digits"
        raise JobError(f"{file}: no such job file; {hint}") from error
    except IsADirectoryError as error:
        run = f"; to go on with a run: tdcd train --resume {quote(str(file))}" if (file / "job.toml").exists() else ""
        raise JobError(f"{file}: a directory, not a job file{run}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{file}: cannot be read: {error}") from error


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *above, last = split_key(key)
    for part in above:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise JobError(f"{key}: '{part}' is a value in the job, not a table")
    table[last] = value
