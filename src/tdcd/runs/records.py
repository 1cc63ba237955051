"""The records in a run directory's files, one type each.

``read_record`` and ``write_record`` alone know how they look in JSON. A job and a preparation are documents, which
their owners validate.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tdcd.core.ledger import Traffic
from tdcd.core.objectives.base import NULL_LOSS
from tdcd.core.rows import Rows
from tdcd.core.usage import ClusterUsage
from tdcd.errors import DamagedError, RunError
from tdcd.files import write_atomically
from tdcd.runs.digests import seal, unseal

T = TypeVar("T")
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Evaluation:
    """A line of the history: how good the global model is after a round."""

    round: int
    """Communication rounds so far."""
    iteration: int
    """Local steps so far: round × Q."""
    seconds: float
    """Wall time of the training so far, over all its sessions."""
    traffic: Traffic
    """Bytes that the rounds so far have sent."""
    rows: Mapping[str, Rows]
    """Of "train", "validation" and "test", as far as there are such samples: how many were measured."""
    train: Mapping[str, float]
    """Loss and metrics on the training rows; empty at a hub that does not receive them."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Loss and metrics on the validation rows; empty without a validation set."""
    test: Mapping[str, float] = field(default_factory=dict)
    """Loss and metrics on the test rows; empty without a test set."""
    better: bool = False
    """Whether these weights are the best so far on the validation samples, measured on all rows."""

    @property
    def partial(self) -> tuple[str, ...]:
        """The parts that were not measured on all of their rows: these decide nothing."""
        return tuple(part for part, rows in self.rows.items() if rows.measured < rows.every)

    def as_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, as they stand in history.jsonl."""
        return asdict(self)

    def measures(self, part: str) -> Mapping[str, float]:
        """Return loss and metrics on "train", "validation" or "test"."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[part]

    def shown(self, part: str) -> Mapping[str, float]:
        """Return what differs from round to round of these, for tables that people read."""
        return {name: value for name, value in self.measures(part).items() if name != NULL_LOSS}

    def as_row(self) -> dict[str, Any]:
        """Return a row of a table of evaluations: rounds, time, rows measured, ``PART_NAME`` of all measures, bytes."""
        return {
            "round": self.round,
            "iteration": self.iteration,
            "seconds": self.seconds,
            "partial": " ".join(self.partial),
            **{f"rows_{part}": self.rows[part].measured if part in self.rows else None for part in PARTS},
            **{f"{part}_{name}": value for part in PARTS for name, value in self.measures(part).items()},
            **asdict(self.traffic),
        }

    def __repr__(self) -> str:
        return self.describe()

    def describe(self, most: int | None = None) -> str:
        """Return round and measures as a line, of each part so many measures or all."""
        parts = (
            f"{part} {' '.join(f'{name} {value:.4g}' for name, value in [*self.shown(part).items()][:most])}"
            for part in PARTS
            if self.measures(part)
        )
        return "; ".join([f"round {self.round:,}", *parts])


@dataclass(frozen=True)
class Finding:
    """What a training shows about itself, with its numbers, and what to do about it."""

    kind: str
    """Names it for programs, such as "overfitting"."""
    level: Literal["failure", "warning", "note"]
    """A failure means that the model is of no use."""
    text: str
    advice: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.text}. {self.advice}"


@dataclass(frozen=True)
class Outcome:
    """How a session ended: result.json."""

    status: Literal["finished", "interrupted", "diverged"]
    confirmed: bool
    """Whether all hubs are known to have ended."""
    round: int
    rounds: int
    selected: int
    """The round whose weights are in the blocks."""
    iteration: int
    seconds: float
    evaluated: Evaluation | None
    """The evaluation of these weights."""
    files: Mapping[str, str]
    """Digests of the files that predictions rest on, by their names in the directory."""
    stopped: str = ""
    """Which callback ended it before its last round, and why."""
    cluster: ClusterUsage | None = None
    """What computed the session's rounds, if that was a cluster."""
    findings: tuple[Finding, ...] = ()
    """What the training shows about itself, failures first."""


@dataclass(frozen=True)
class ClientRecord:
    """A client."""

    name: str
    rows: int
    """Its training rows."""


@dataclass(frozen=True)
class ColumnRecord:
    """A column of a silo's tables."""

    name: str
    holds: str
    inputs: int
    """Inputs of the network that it becomes."""


@dataclass(frozen=True)
class SiloRecord:
    """A silo, its network and its clients."""

    name: str
    features: bool
    """Whether it has features, and so a network."""
    row_shape: tuple[int, ...]
    network: str
    parameters: int
    block_bytes: int
    """Of its weights, as they travel."""
    compute: str
    columns: tuple[ColumnRecord, ...]
    clients: tuple[ClientRecord, ...]
    row_type: str = "float32"
    """Of the rows that it was trained on; new ones are brought to it."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The specification that its network is built from; nothing for a module of the user's own."""
    frame_columns: tuple[str, ...] = ()
    """The columns of features of the data frame that it was given as, in order."""
    id_column: str = ""
    """The column of that frame which held the IDs, if one did."""


@dataclass(frozen=True)
class FederationRecord:
    """What was trained and who took part: federation.json."""

    samples: int
    validation_samples: int
    test_samples: int
    loss: str
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    embedding: int
    """E."""
    embedding_bytes: int
    """Of a row in a message."""
    silos: tuple[SiloRecord, ...]
    variant: str
    """"federation", or the baseline that it is: "central", "one-tier" or "SILO alone"."""
    message_bytes: int = 0
    """Of a message with rows, besides these."""
    run: str = ""
    """The run's ID: of one training, at all of its hubs."""
    peers: tuple[str, ...] = ()
    """The other silos, in the run of one hub, which does not know their clients."""


@dataclass(frozen=True)
class Session:
    """The machine, software, data and command of one session: an entry of environment.json."""

    date: str
    command: str
    directory: str
    import_path: tuple[str, ...]
    code: Mapping[str, str]
    """The git commit of each repository that code may come from, and whether files were changed since."""
    python: str
    packages: Mapping[str, str]
    compiler: str
    """Of the kernels, where some are used."""
    system: str
    processor: str
    cores: int
    threads: int
    thread_variables: Mapping[str, str]
    """Variables of the environment that decide on threads."""
    inputs: Mapping[str, str]
    """Fingerprints of the data, the networks and the first weights."""


@dataclass(frozen=True)
class TrialRecord:
    """A short run of a sweep that tries a learning rate."""

    rate: float
    path: str
    loss: float | None
    """What decides on rates: the training loss it ended with, or the validation loss; none if it diverged."""


@dataclass(frozen=True)
class SeedRecord:
    """A run of a sweep."""

    seed: int
    path: str


@dataclass(frozen=True)
class CombinationRecord:
    """One combination of a sweep's grid, or one of its baselines."""

    name: str
    variant: str
    values: Mapping[str, Any]
    """What it varies, by the names that figures use."""
    trials: tuple[TrialRecord, ...]
    rate: float | None
    runs: tuple[SeedRecord, ...]

    @property
    def hopeless(self) -> bool:
        """Whether every rate diverged, so that it has no runs."""
        return bool(self.trials) and self.rate is None


@dataclass(frozen=True)
class SweepRecord:
    """A sweep's plan: sweep.json."""

    sweep: Mapping[str, Any]
    """The sweep file."""
    lines: str
    """The setting whose values are the lines of a figure."""
    combinations: tuple[CombinationRecord, ...]


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def parse_record(text: str | bytes, kind: type[T], where: str) -> T:
    """Read a record from JSON; ``where`` names it in errors.

    Raises:
        RunError: it is not one; names the key.
    """
    try:
        if kind not in _ADAPTERS:  # making one takes longer than reading a file
            _ADAPTERS[kind] = TypeAdapter(kind)
        return cast(T, _ADAPTERS[kind].validate_json(json.dumps(unseal(json.loads(text), where)), strict=True))
    except (json.JSONDecodeError, RecursionError) as error:
        raise DamagedError(f"{where}: damaged: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DamagedError(f"{where}: damaged: {key + ': ' if key else ''}{first['msg']}") from error


def read_record(path: Path, kind: type[T]) -> T:
    """Read a file that holds one record.

    Raises:
        RunError: it is missing or damaged; names the file and the key.
    """
    return parse_record(read_text(path), kind, str(path))


def read_text(path: Path) -> str:
    """Read a text file of a run.

    Raises:
        RunError: it is missing, or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RunError(f"{path}: missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path}: damaged: {error}") from error


def write_record(path: Path, record: Any) -> None:
    """Write a record, or a list of them, as indented JSON, atomically."""
    value = [seal(asdict(one)) for one in record] if isinstance(record, list) else seal(asdict(record))
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def pack_record(record: Any) -> bytes:
    """Return a record as ``parse_record`` reads it."""
    return json.dumps(seal(asdict(record))).encode()


def history_line(evaluation: Evaluation) -> str:
    """Return an evaluation as a line of the history."""
    return json.dumps(seal(evaluation.as_dict()))
