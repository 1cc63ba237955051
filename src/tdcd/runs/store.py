"""Writing a run: what it was asked, what it saw, what it learned, and where to go on. See layout for its files."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
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
from tdcd.errors import RunError, join_names
from tdcd.files import append, write_atomically
from tdcd.runs.environment import describe_session
from tdcd.runs.layout import (
    BEST,
    BLOCKS,
    CHECKPOINT,
    EARLIER,
    ENVIRONMENT,
    FEDERATION,
    HISTORY,
    JOB,
    LOCK,
    RESULT,
    ROSTERS,
    check_no_run,
    holds_run,
    preparation_file,
)
from tdcd.runs.reader import read_history, read_outcome, read_sessions
from tdcd.runs.records import Evaluation, FederationRecord, Outcome, history_line, write_record
from tdcd.runs.stored_job import differences, refuse_another, stored_job
from tdcd.runs.tensors import flatten, nest, read_metadata, read_tensors, write_tensors


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


@dataclass(frozen=True)
class Selected:
    """The weights with the lowest validation loss so far."""

    round: int
    blocks: Mapping[str, Block]


class RunDirectory:
    """The files of one run, open to be written. ``open`` opens one."""

    def __init__(self, path: Path, job: Mapping[str, Any], *, keep_previous: bool = False) -> None:
        self.path = path
        self._job = job
        self._history = path / HISTORY
        self._checkpoint = path / CHECKPOINT
        self._earlier = path / EARLIER if keep_previous else None

    @property
    def is_hub(self) -> bool:
        """Whether it is a hub's: hubs go on together, perhaps after an earlier round than this one has reached."""
        return self._earlier is not None

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, job: Mapping[str, Any], *, resume: bool, keep_previous: bool = False
    ) -> Iterator["RunDirectory"]:
        """Open a directory for a run that nobody else writes to meanwhile.

        Args:
            path: Where; made if need be.
            job: What the run is asked to do.
            resume: Whether it may hold a run to go on with.
            keep_previous: Keep the last two checkpoints. Hubs that go on together need one that all of them have, and
                one of them may have been stopped before it wrote its last.

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
            yield cls(path, job, keep_previous=keep_previous)
        finally:
            lock.release()

    def history(self, up_to: int, due: Sequence[int]) -> list[Evaluation]:
        """Read the history up to the round that a session begins after; it must have the rounds that are due.

        What an earlier session recorded after that round is forgotten: it will happen again.
        """
        result = read_history(self.path) if self._history.exists() else []
        if not self.is_hub and not self.rounds() and any(evaluation.round > 0 for evaluation in result):
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

    def rounds(self) -> list[int]:
        """Return the rounds that there are checkpoints of, in ascending order."""
        return sorted(self._checkpoints())

    def begin(self, federation: FederationRecord, history: Iterable[Evaluation]) -> None:
        """Write down a session that now begins, and the history that it goes on with."""
        before = read_sessions(self.path) if holds_run(self.path) else []
        write_record(self.path / ENVIRONMENT, [*before, describe_session()])
        write_record(self.path / FEDERATION, federation)
        (self.path / RESULT).unlink(missing_ok=True)
        self.rewrite(history)
        if not before or differences(stored_job(self.path), self._job):  # it was given more rounds
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
        """Write the checkpoint, replacing the one before only when it is whole."""
        state = {
            "round": checkpoint.round,
            "seconds": checkpoint.seconds,
            "traffic": asdict(checkpoint.traffic),
            "silos": list(checkpoint.states),
            "inputs": dict(checkpoint.inputs),
            "job": dict(self._job),
        }
        if self._earlier and self._checkpoint.exists() and self.rounds()[-1] != checkpoint.round:
            write_atomically(self._earlier, self._checkpoint.read_bytes())
        weights = {silo: state.weights for silo, state in checkpoint.states.items()}
        memory = {silo: state.memory for silo, state in checkpoint.states.items()}
        write_tensors(self._checkpoint, flatten("block", weights) | flatten("memory", memory), state)

    def forget_after(self, round_: int) -> None:
        """Remove the checkpoints of later rounds: they will happen again, perhaps not in the same way."""
        result = self._checkpoints()
        if not self._earlier or all(number <= round_ for number in result):
            return
        if round_ in result:
            self._earlier.replace(self._checkpoint)
        else:
            self._earlier.unlink(missing_ok=True)
            self._checkpoint.unlink()

    def save_best(self, best: Selected) -> None:
        """Write the weights with the lowest validation loss so far."""
        path, state = self.path / BEST, {"round": best.round, "silos": list(best.blocks)}
        if path.exists() and (before := _best_state(path)["round"]) != best.round:
            path.replace(path.with_stem(f"{path.stem}-{before}"))
        write_tensors(path, flatten("block", best.blocks), state)
        bests = sorted(self._bests())
        back = [*self.rounds(), best.round]
        needed = {a for a, b in pairwise(bests) if any(a <= number <= b for number in back)}
        self.forget_bests({*needed, best.round})

    def load_best(self, number: int) -> Selected | None:
        """Read the weights of a round that had the lowest validation loss, if they are there."""
        path = self._bests().get(number)
        if path is None:
            return None
        return Selected(number, nest("block", read_tensors(path), _best_state(path)["silos"]))

    def forget_bests(self, but: Collection[int]) -> None:
        """Remove the best weights of all rounds but some."""
        for number, file in self._bests().items():
            if number not in but:
                file.unlink()

    def _bests(self) -> dict[int, Path]:
        """Return the best weights' files by their rounds: the last, and those of before that may be gone back to."""
        return {_best_state(file)["round"]: file for file in self.path.glob(f"{Path(BEST).stem}*.safetensors")}

    def load(self, round_: int | None = None) -> Checkpoint | None:
        """Read the checkpoint of a round, or the newest; a run that was stopped before its first has none."""
        result = self._checkpoints()
        file = result.get(max(result, default=0) if round_ is None else round_)
        return self._read(file) if file else None

    def _checkpoints(self) -> dict[int, Path]:
        """Return the checkpoints' files by their rounds."""
        files = [file for file in (self._earlier, self._checkpoint) if file and file.exists()]
        return {self._state(file)[0]: file for file in files}

    def _state(self, file: Path) -> tuple[int, dict[str, Any]]:
        """Read a checkpoint's round, and what else it tells besides its tensors, which may be large."""
        try:
            state = read_metadata(file)
            refuse_another(self.path, state["job"], self._job)
            return int(state["round"]), state
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{file}: not a checkpoint of tdcd ({error})") from error

    def _read(self, file: Path) -> Checkpoint:
        number, state = self._state(file)
        tensors = read_tensors(file)
        try:
            weights, memory = (nest(what, tensors, state["silos"]) for what in ("block", "memory"))
            return Checkpoint(
                round=number,
                states={silo: SiloState(block, memory[silo]) for silo, block in weights.items()},
                seconds=float(state["seconds"]),
                traffic=Traffic(**{str(way): int(sent) for way, sent in state["traffic"].items()}),
                inputs=dict(state["inputs"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{file}: not a checkpoint of tdcd ({error})") from error

    def finished(self, rounds: int) -> bool:
        """Tell whether a training of so many rounds has ended here and, as far as is known, everywhere."""
        outcome = read_outcome(self.path)
        return bool(outcome and outcome.status == "finished" and outcome.confirmed and outcome.rounds == rounds)

    def finish(self, outcome: Outcome, blocks: Blocks) -> None:
        """Write every hub's block and how the run ended."""
        save_blocks(self.path / BLOCKS, blocks)
        write_record(self.path / RESULT, outcome)


def _best_state(file: Path) -> dict[str, Any]:
    state = read_metadata(file)
    try:
        return {"round": int(state["round"]), "silos": list(state["silos"])}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: not written by tdcd ({error})") from error


def wait_until_free(path: Path, seconds: float) -> None:
    """Wait for whoever still writes to a run directory; after so many seconds, go on all the same."""
    if (path / LOCK).exists():
        with suppress(Timeout), FileLock(path / LOCK, timeout=seconds):
            pass


def save_blocks(directory: Path, blocks: Blocks) -> None:
    """Write each hub's block as ``SILO.safetensors``."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{directory}: cannot be made: {error.strerror}") from error
    for silo, block in blocks.items():
        write_tensors(directory / f"{silo}.safetensors", block, {"silo": silo})


def load_blocks(directory: Path | str) -> dict[str, Block]:
    """Read the hubs' blocks that a run wrote: ``load_blocks("runs/x")``."""
    files = sorted(Path(directory, BLOCKS).glob("*.safetensors"))
    if not files:
        raise RunError(f"{directory}: no blocks there ({BLOCKS}/SILO.safetensors)")
    return {file.stem: read_tensors(file) for file in files}


def _smallest(numbers: Tensor) -> Tensor:
    """Return numbers from 0 up in the smallest type that has room for them."""
    largest = int(numbers.max())
    return numbers.to(
        next(t for t in (torch.uint8, torch.int16, torch.int32, torch.int64) if largest <= torch.iinfo(t).max)
    )
