"""Reading runs and sweeps: for reports, predictions and sweeps alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors

from tdcd.core.script import Sharing
from tdcd.errors import DamagedError, RunError
from tdcd.runs.digests import check_content
from tdcd.runs.history import History
from tdcd.runs.importance import Importances
from tdcd.runs.layout import (
    ENVIRONMENT,
    FEDERATED,
    FEDERATION,
    HISTORY,
    IMPORTANCE,
    QUALITY,
    RESULT,
    ROSTERS,
    SWEEP,
    THEORY,
    variant_directory,
)
from tdcd.runs.quality import QualityRecord
from tdcd.runs.records import (
    Evaluation,
    FederationRecord,
    Outcome,
    Session,
    SweepRecord,
    parse_record,
    read_record,
    read_text,
)
from tdcd.runs.stored_job import stored_job
from tdcd.runs.theory import TheoryRecord

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class RunRecord:
    """What a run directory holds."""

    path: Path
    variant: str
    """"federation", "central", "one-tier" or "SILO alone"."""
    job: Mapping[str, Any]
    federation: FederationRecord
    history: History
    sessions: tuple[Session, ...]
    outcome: Outcome | None
    """None while the run is under way."""
    baselines: Mapping[str, "RunRecord"]
    """Runs to compare with: "central", "one-tier", "SILO alone"."""
    quality: QualityRecord | None = None
    """How good its weights are on held-out samples; none while it is under way, and at hubs."""
    importance: Importances | None = None
    """How much columns and silos matter, if that was measured."""
    theory: TheoryRecord | None = None
    """Its gradients beside the bound of Theorem 1, if these were measured."""

    @property
    def status(self) -> str:
        """How the run ended, or "under way"."""
        return self.outcome.status if self.outcome else "under way"

    @property
    def is_hub(self) -> bool:
        """Tell whether this is what one hub knows: it has its own silo's clients and bytes only."""
        return bool(self.federation.peers)

    @property
    def in_one_place(self) -> bool:
        """Tell whether all data was in one place, so that nothing had to be sent."""
        return self.variant == "central" or self.variant.endswith(" alone")

    @property
    def label_silo(self) -> str | None:
        """The silo that the job says has the labels."""
        result: str | None = self.job.get("labels", {}).get("silo")
        return result

    @property
    def sharing(self) -> Sharing:
        """How the labels are shared."""
        result: Sharing = self.job.get("labels", {}).get("sharing") or "shared"
        return result

    @property
    def kept(self) -> Evaluation:
        """The evaluation of the weights that are kept; while the run is under way, the last one."""
        selected = self.outcome.selected if self.outcome else None
        return self.history.kept(selected)


def read_run(path: Path | str, variant: str | None = None) -> RunRecord:
    """Read a run directory.

    Args:
        path: The directory.
        variant: See it as another variant of its job than the one it records: a run may stand for several.

    Raises:
        RunError: it is not a run, or a file of it is missing or damaged; names the file.
    """
    path = Path(path)
    job, federation = stored_job(path), read_record(path / FEDERATION, FederationRecord)
    variants = ["central", "one-tier", *(f"{silo.name} alone" for silo in federation.silos)]
    places = {name: variant_directory(path, name) for name in variants}
    return RunRecord(
        path=path,
        variant=variant or federation.variant,
        job=job,
        federation=federation,
        history=History(read_history(path)),
        sessions=tuple(read_sessions(path)),
        outcome=read_outcome(path),
        baselines={
            name: read_run(place)
            for name, place in places.items()
            if federation.variant == FEDERATED and (place / FEDERATION).exists()
        },
        quality=read_quality(path),
        importance=read_importance(path),
        theory=read_theory(path),
    )


def read_outcome(path: Path) -> Outcome | None:
    """Read how a run ended; nothing if it has not.

    Raises:
        RunError: the file is damaged.
    """
    return read_record(path / RESULT, Outcome) if (path / RESULT).exists() else None


def read_quality(path: Path) -> QualityRecord | None:
    """Read how good the weights of a run are on held-out samples; nothing if it has not ended, or had no such samples.

    Raises:
        RunError: the file is damaged.
    """
    return read_record(path / QUALITY, QualityRecord) if (path / QUALITY).exists() else None


def read_importance(path: Path) -> Importances | None:
    """Read how much columns and silos matter to a run's model; nothing if that was not measured.

    Raises:
        RunError: the file is damaged.
    """
    return read_record(path / IMPORTANCE, Importances) if (path / IMPORTANCE).exists() else None


def read_theory(path: Path) -> TheoryRecord | None:
    """Read a run's gradients beside the bound of Theorem 1; nothing if these were not measured.

    Raises:
        RunError: the file is damaged.
    """
    return read_record(path / THEORY, TheoryRecord) if (path / THEORY).exists() else None


def read_sessions(path: Path) -> list[Session]:
    """Read the sessions of a run, the first one first.

    Raises:
        RunError: the file is missing or damaged.
    """
    sessions = read_record(path / ENVIRONMENT, list[Session])
    if not sessions:
        raise RunError(f"{path / ENVIRONMENT}: damaged: no session")
    return sessions


def read_history(path: Path) -> list[Evaluation]:
    """Read a run's history. A last line without its end is being written, or was cut off, and does not count.

    Raises:
        RunError: it is missing, or another line is damaged; names the line.
    """
    file = path / HISTORY
    lines = read_text(file).split("\n")[:-1]
    return [parse_record(line, Evaluation, f"{file}: line {n}") for n, line in enumerate(lines, start=1)]


@dataclass(frozen=True)
class Rosters:
    """Who holds what in a run: rosters.safetensors."""

    owners: Mapping[str, Integers]
    """For each silo and sample the client that holds it; shape (M,)."""
    clients: Mapping[str, tuple[str, ...]]
    """The names of every silo's clients."""
    batches: Mapping[int, npt.NDArray[np.int64]]
    """The mini-batches that the run was given, by round; none if they were drawn."""


def read_rosters(path: Path) -> Rosters:
    """Read who holds what in a run.

    Raises:
        RunError: the file is missing or damaged.
    """
    file = path / ROSTERS
    try:
        with safetensors.safe_open(file, framework="numpy") as held:
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
            metadata = held.metadata() or {}
        content = ((n, str(t.dtype), t.shape, t.data if t.size else b"") for n, t in tensors.items())
        names = check_content(file, metadata, content)["clients"]
        return Rosters(
            owners={name.removeprefix("owner/"): t for name, t in tensors.items() if name.startswith("owner/")},
            clients={str(silo): tuple(map(str, clients)) for silo, clients in names.items()},
            batches={int(name.removeprefix("batch/")): t for name, t in tensors.items() if name.startswith("batch/")},
        )
    except FileNotFoundError as error:
        raise RunError(f"{file}: missing; without it the run cannot be priced") from error
    except (safetensors.SafetensorError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{file}: damaged: {error}") from error


def read_sweep(path: Path) -> SweepRecord:
    """Read the plan of a sweep.

    Raises:
        RunError: it is missing or damaged.
    """
    return read_record(path / SWEEP, SweepRecord)
