"""What one run, or one hub, brings to a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcd.core.network import Block
from tdcd.errors import DamagedError, RunError
from tdcd.runs.digests import check_files
from tdcd.runs.layout import FEDERATION, QUALITY, check_run, preparation_file
from tdcd.runs.reader import read_history, read_outcome
from tdcd.runs.records import Evaluation, FederationRecord, Finding, read_record, read_text
from tdcd.runs.store import RunDirectory, load_blocks
from tdcd.runs.stored_job import stored_job
from tdcd.serving.record import holds_model

TRIES = 5
"""A run that is under way may replace a checkpoint while it is read."""


@dataclass(frozen=True)
class Part:
    """The weights of some silos, and all that a model tells of them."""

    source: str
    """The name of the run that it is of."""
    job: Mapping[str, Any]
    federation: FederationRecord
    history: tuple[Evaluation, ...]
    round: int
    """The round that its weights are of."""
    finished: bool
    """Whether the training has ended with the last round."""
    blocks: Mapping[str, Block]
    preparations: Mapping[str, str]
    """As they are written, by silo."""
    quality: str | None = None
    """The record of its quality, as it is written."""
    findings: tuple[Finding, ...] = ()
    """What the training shows about itself, once it has ended."""

    @property
    def silos(self) -> list[str]:
        """The silos whose weights it has."""
        return [silo.name for silo in self.federation.silos]


@dataclass(frozen=True)
class Run:
    """A run that has ended or is under way."""

    path: Path
    job: Mapping[str, Any]
    federation: FederationRecord
    rounds: frozenset[tuple[int, str]]
    """The rounds that it has weights of, each with its lineage; the selected one alone, once it has ended."""
    under_way: bool
    finished: bool
    findings: tuple[Finding, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Read a run, which may be under way.

        Raises:
            RunError: it is no run, has no checkpoint yet, or is damaged.
        """
        if holds_model(path):
            raise RunError(f"{path} is a model already, not a run")
        check_run(path)
        job, federation = stored_job(path), read_record(path / FEDERATION, FederationRecord)
        outcome = read_outcome(path)
        if outcome is not None:
            check_files(path, outcome.files)
            rounds = frozenset([(outcome.selected, "")])
        else:
            rounds = frozenset(_checkpoints(path, job).items()) - {(0, federation.run)}
            if not rounds:
                raise RunError(f"{path}: it is under way, and has no checkpoint yet; try again later")
        finished = outcome is not None and outcome.status == "finished"
        return cls(path, job, federation, rounds, outcome is None, finished, outcome.findings if outcome else ())

    def part(self, round_: int) -> Part:
        """Return what it brings, with the weights of a round.

        Raises:
            DamagedError: it does not have them any more.
        """
        if self.under_way:
            checkpoint = RunDirectory(self.path, self.job).load(round_)
            if checkpoint is None or checkpoint.round != round_:
                raise DamagedError(f"{self.path}: its checkpoint of round {round_} is gone")
            blocks = {silo: state.weights for silo, state in checkpoint.states.items()}
        else:
            blocks = load_blocks(self.path)
        files = {silo.name: preparation_file(self.path, silo.name) for silo in self.federation.silos}
        quality = self.path / QUALITY  # of the weights that it ended with
        return Part(
            source=self.path.resolve().name,
            job=self.job,
            federation=self.federation,
            history=tuple(read_history(self.path)),
            round=round_,
            finished=self.finished,
            blocks=blocks,
            preparations={silo: read_text(file) for silo, file in files.items() if file.exists()},
            quality=read_text(quality) if quality.exists() and not self.under_way else None,
            findings=self.findings,
        )


def _checkpoints(path: Path, job: Mapping[str, Any]) -> dict[int, str]:
    for _ in range(TRIES - 1):
        try:
            return RunDirectory(path, job).checkpoints()
        except RunError:
            continue
    return RunDirectory(path, job).checkpoints()
