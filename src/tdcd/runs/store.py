"""Writing a run: what it was asked, what it saw, what it learned, and where to go on. See layout for its files."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from tdcd.core.ledger import Traffic
from tdcd.core.network import Block, Blocks
from tdcd.core.state import SiloState, States
from tdcd.core.topology import Roster
from tdcd.errors import DamagedError, RunError, join_names
from tdcd.files import append, remove, rename, write_atomically
from tdcd.runs.digests import digest_file
from tdcd.runs.environment import describe_session
from tdcd.runs.layout import (
    BEST,
    BLOCKS,
    CHECKPOINT,
    EARLIER,
    ENVIRONMENT,
    FEDERATION,
    HISTORY,
    IMPORTANCE,
    JOB,
    LOCK,
    PREPARATION,
    QUALITY,
    RESULT,
    ROSTERS,
    check_no_run,
    holds_run,
    preparation_file,
)
from tdcd.runs.quality import QualityRecord
from tdcd.runs.reader import read_history, read_outcome, read_sessions
from tdcd.runs.records import Evaluation, FederationRecord, Outcome, history_line, read_record, write_record
from tdcd.runs.stored_job import differences, refuse_another, stored_job, without_rounds
from tdcd.runs.tensors import flatten, nest, read_tensors, write_tensors


@dataclass(frozen=True)
class Checkpoint:
    """A run after some round."""

    round: int
    states: States
    """What every silo carries from round to round."""
    seconds: float
    traffic: Traffic
    """What the rounds so far have sent."""
    inputs: Mapping[str, str]
    """Fingerprints of what the training was given: its data, networks, first weights."""
    lineage: str = ""
    """Names the training that the round belongs to: the same at all hubs, another after every restart."""


@dataclass(frozen=True)
class Selected:
    """The best weights so far."""

    round: int
    blocks: Mapping[str, Block]


class RunDirectory:
    """The files of one run, open to be written. ``open`` opens one."""

    def __init__(self, path: Path, job: Mapping[str, Any], *, is_hub: bool = False) -> None:
        self.path, self.is_hub = path, is_hub
        self.run = read_record(path / FEDERATION, FederationRecord).run if (path / FEDERATION).exists() else ""
        """The run's ID, once it has begun."""
        self._job = job
        self._history = path / HISTORY
        self._checkpoint, self._earlier = path / CHECKPOINT, path / EARLIER
        self._whole: dict[Path, tuple[int, str]] = {}
        """Checkpoints that were verified: the round and lineage of each."""

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, job: Mapping[str, Any], *, resume: bool, is_hub: bool = False
    ) -> Iterator["RunDirectory"]:
        """Open a directory for a run that nobody else writes to meanwhile.

        Args:
            path: Where; made if need be.
            job: What the run is asked to do.
            resume: Whether it may hold a run to go on with.
            is_hub: Whether it is a hub's: hubs go on together, perhaps after an earlier round than this one reached.

        Raises:
            RunError: it holds a run and ``resume`` was not asked for, or a run of another job, or is in use.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path / LOCK)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RunError(f"{path} is in use by another training; wait until that ends, or stop it") from error
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}") from error
        try:
            if not resume:
                check_no_run(path)
            elif holds_run(path):
                refuse_another(path, stored_job(path), job)
            yield cls(path, job, is_hub=is_hub)
        finally:
            lock.release()

    def history(self, up_to: int, due: Sequence[int]) -> list[Evaluation]:
        """Read the history up to the round that a session begins after; it must have the rounds that are due.

        What an earlier session recorded after that round is forgotten: it will happen again.
        """
        result = read_history(self.path) if self._history.exists() else []
        if not self.is_hub and not self._files() and any(evaluation.round > 0 for evaluation in result):
            raise RunError(
                f"{self._checkpoint}: missing, though {self._history.name} has rounds; put it back, or start a new run"
            )
        kept = [evaluation for evaluation in result if evaluation.round <= up_to]
        lost = sorted(set(due) - {evaluation.round for evaluation in kept})
        if lost:
            raise RunError(f"{self._history}: damaged: it lacks the evaluations after round {join_names(lost)}")
        return kept

    def rewrite(self, history: Iterable[Evaluation]) -> None:
        """Rewrite the history."""
        write_atomically(self._history, "".join(history_line(evaluation) + "\n" for evaluation in history))

    def identify(self, inputs: Mapping[str, str]) -> str:
        """Return an ID for a run of this job on some inputs: the same one for the same training."""
        text = json.dumps([without_rounds(self._job), dict(inputs)], sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def begin_run(self, run: str) -> None:
        """Give the run an ID, at its beginning; one that has begun before, and begins again, gets another."""
        self.run = run
        file = self.path / FEDERATION
        if file.exists():
            write_record(file, replace(read_record(file, FederationRecord), run=run))

    def checkpoints(self, on_damage: Callable[[str], None] = lambda text: None) -> dict[int, str]:  # noqa: ARG005
        """Return the lineage of every round that can be gone on after, the beginning included once it has begun.

        A run keeps its last two checkpoints. Hubs that go on together need one that all of them have, and one of them
        may have been stopped before it wrote its last; and where one is damaged, there is the other.

        Raises:
            DamagedError: no checkpoint is whole.
        """
        damage: list[DamagedError] = []
        for file in self._files():
            if file not in self._whole:
                try:
                    checkpoint = self._read(file)
                    self._whole[file] = checkpoint.round, checkpoint.lineage
                except DamagedError as error:
                    damage.append(error)
        found = {round_: lineage for file, (round_, lineage) in self._whole.items() if file.exists()}
        if damage and not found:
            raise damage[-1]
        for one in damage:
            on_damage(f"{one}. Going on with the other checkpoint, of round {max(found)}")
        return ({0: self.run} if self.run else {}) | found

    def _files(self) -> list[Path]:
        return [file for file in (self._earlier, self._checkpoint) if file.exists()]

    def begin(
        self, federation: FederationRecord, history: Iterable[Evaluation], inputs: Mapping[str, str] | None = None
    ) -> None:
        """Write down a session that now begins, what it is given, and the history that it goes on with."""
        before = read_sessions(self.path) if holds_run(self.path) else []
        changed = not before or bool(differences(stored_job(self.path), self._job))  # it may be given more rounds
        for name in (RESULT, QUALITY, IMPORTANCE):  # once all that could be damaged was read
            (self.path / name).unlink(missing_ok=True)
        compiled = any(silo.compute.startswith("kernel") for silo in federation.silos)
        write_record(self.path / ENVIRONMENT, [*before, describe_session(inputs, compiled=compiled)])
        write_record(self.path / FEDERATION, replace(federation, run=self.run))
        self.rewrite(history)
        if changed:
            write_atomically(self.path / JOB, tomli_w.dumps(dict(self._job)))

    def save_preparation(self, silo: str, text: str) -> None:
        """Write how a silo's tables became numbers."""
        file = preparation_file(self.path, silo)
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, text)

    def save_rosters(self, rosters: Mapping[str, Roster], batches: Sequence[Tensor]) -> None:
        """Write who holds which sample, and the mini-batches where they were not drawn from the seed."""
        tensors = {f"owner/{silo}": _smallest(roster.owner) for silo, roster in rosters.items()}
        for number, batch in enumerate(batches, start=1):
            tensors[f"batch/{number}"] = batch
        names = {silo: list(roster.clients) for silo, roster in rosters.items()}
        write_tensors(self.path / ROSTERS, tensors, {"clients": names})

    def record(self, evaluation: Evaluation) -> None:
        """Append an evaluation to the history; it is on the disk before a checkpoint can follow it."""
        append(self._history, history_line(evaluation))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint, replacing the one before only when it is whole; that one is kept, too."""
        state = {
            "round": checkpoint.round,
            "seconds": checkpoint.seconds,
            "traffic": asdict(checkpoint.traffic),
            "silos": list(checkpoint.states),
            "inputs": dict(checkpoint.inputs),
            "lineage": checkpoint.lineage,
            "job": dict(self._job),
        }
        if self._checkpoint in self._whole and self._whole[self._checkpoint][0] != checkpoint.round:
            rename(self._checkpoint, self._earlier)
            self._whole[self._earlier] = self._whole.pop(self._checkpoint)
        weights = {silo: state.weights for silo, state in checkpoint.states.items()}
        memory = {silo: state.memory for silo, state in checkpoint.states.items()}
        write_tensors(self._checkpoint, flatten("block", weights) | flatten("memory", memory), state)
        self._whole[self._checkpoint] = checkpoint.round, checkpoint.lineage

    def forget_after(self, round_: int) -> None:
        """Remove the checkpoints of later rounds: they will happen again, perhaps not in the same way."""
        for file in self._files():
            if file not in self._whole or self._whole[file][0] > round_:
                remove(file)
                self._whole.pop(file, None)

    def save_best(self, best: Selected) -> None:
        """Write the best weights so far."""
        path = self.path / BEST.format(best.round)
        write_tensors(path, flatten("block", best.blocks), {"round": best.round, "silos": list(best.blocks)})
        bests = sorted(self._bests())
        back = [*filter(None, self.checkpoints()), best.round]
        needed = {a for a, b in pairwise(bests) if any(a <= number <= b for number in back)}
        self.forget_bests({*needed, best.round})

    def load_best(self, number: int) -> Selected | None:
        """Read the weights of a round that were the best, if they are there."""
        path = self._bests().get(number)
        if path is None:
            return None
        tensors, record = read_tensors(path)
        try:
            if record["round"] != number:
                raise DamagedError(f"{path}: damaged: it holds weights of round {record['round']}")
            return Selected(number, nest("block", tensors, record["silos"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path}: not written by tdcd ({error})") from error

    def forget_bests(self, but: Collection[int]) -> None:
        """Remove the best weights of all rounds but some."""
        for number, file in self._bests().items():
            if number not in but:
                remove(file)

    def _bests(self) -> dict[int, Path]:
        """Return the best weights' files by their rounds: the last, and those of before that may be gone back to."""
        files = self.path.glob(BEST.format("*"))
        return {int(number): file for file in files if (number := file.stem.rpartition("-")[2]).isdecimal()}

    def load(self, round_: int | None = None) -> Checkpoint | None:
        """Read the checkpoint of a round, or the newest; a run that was stopped before its first has none."""
        self.checkpoints()
        rounds = {number: file for file, (number, _) in self._whole.items()}
        file = rounds.get(max(rounds, default=0) if round_ is None else round_)
        return self._read(file) if file else None

    def _read(self, file: Path) -> Checkpoint:
        tensors, state = read_tensors(file)
        try:
            refuse_another(self.path, state["job"], self._job)
            weights, memory = (nest(what, tensors, state["silos"]) for what in ("block", "memory"))
            return Checkpoint(
                round=int(state["round"]),
                states={silo: SiloState(block, memory[silo]) for silo, block in weights.items()},
                seconds=float(state["seconds"]),
                traffic=Traffic(**{str(way): int(sent) for way, sent in state["traffic"].items()}),
                inputs=dict(state["inputs"]),
                lineage=str(state["lineage"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{file}: not a checkpoint of tdcd ({error})") from error

    def save_quality(self, record: QualityRecord) -> None:
        """Write how good the weights are that the run ends with."""
        write_record(self.path / QUALITY, record)

    def finished(self, rounds: int) -> bool:
        """Tell whether a training of so many rounds has ended here and, as far as is known, everywhere."""
        outcome = read_outcome(self.path)
        return bool(outcome and outcome.status == "finished" and outcome.confirmed and outcome.rounds == rounds)

    def finish(self, outcome: Outcome, blocks: Blocks) -> None:
        """Write every hub's block and how the run ended, with digests of what predictions rest on."""
        save_blocks(self.path / BLOCKS, blocks, self.run)
        files = [self.path / name for name in (JOB, FEDERATION, HISTORY, ROSTERS, QUALITY)]
        files += sorted([*(self.path / BLOCKS).glob("*.safetensors"), *(self.path / PREPARATION).glob("*.json")])
        digests = {str(file.relative_to(self.path)): digest_file(file) for file in files if file.exists()}
        write_record(self.path / RESULT, replace(outcome, files=digests))


def wait_until_free(path: Path, seconds: float) -> None:
    """Wait for whoever still writes to a run directory; after so many seconds, go on all the same."""
    if (path / LOCK).exists():
        with suppress(Timeout), FileLock(path / LOCK, timeout=seconds):
            pass


def save_blocks(directory: Path, blocks: Blocks, run: str) -> None:
    """Write each hub's block as ``SILO.safetensors``."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{directory}: cannot be made: {error.strerror}") from error
    for silo, block in blocks.items():
        write_tensors(directory / f"{silo}.safetensors", block, {"silo": silo, "run": run})


def load_blocks(directory: Path | str) -> dict[str, Block]:
    """Read the hubs' blocks that a run wrote: ``load_blocks("runs/x")``.

    Raises:
        RunError: there are none, one is damaged, or of another silo or run.
    """
    files = sorted(Path(directory, BLOCKS).glob("*.safetensors"))
    if not files:
        raise RunError(f"{directory}: no blocks there ({BLOCKS}/SILO.safetensors)")
    blocks, runs = {}, set()
    for file in files:
        blocks[file.stem], record = read_tensors(file)
        if record.get("silo") != file.stem:
            raise RunError(f"{file}: it holds the block of silo '{record.get('silo')}'; put each file in its place")
        runs.add(record.get("run"))
    if len(runs) > 1:
        raise RunError(f"{Path(directory, BLOCKS)}: blocks of {len(runs)} runs, and no model together")
    return blocks


def _smallest(numbers: Tensor) -> Tensor:
    """Return numbers from 0 up in the smallest type that has room for them."""
    largest = int(numbers.max())
    return numbers.to(
        next(t for t in (torch.uint8, torch.int16, torch.int32, torch.int64) if largest <= torch.iinfo(t).max)
    )
