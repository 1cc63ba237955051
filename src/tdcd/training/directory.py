"""A run on disk: what it was asked, what it saw, what it learned, and where to go on.

job.toml                 the job with every default filled in; `tdcd train` takes it as it is
environment.json         one entry a session: versions, machine, command, date
federation.json          silos, clients, rows, networks
rosters.safetensors      which client of each silo holds which sample; with it any run can be priced again
history.jsonl            one evaluation a line
checkpoint.safetensors   all blocks after some round: where `--resume` goes on
earlier.safetensors      those of the checkpoint before, at a hub
best.safetensors         all blocks of the lowest validation loss, with keep = "best"; best-ROUND: of before
blocks/SILO.safetensors  each hub's block at the end
preparation/SILO.json    how its tables became numbers, where it has tables
result.json              how it ended
report.html              all of it to look at
"""

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import tomli_w
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from tdcd.core.ledger import Traffic
from tdcd.core.network import Block, Blocks
from tdcd.core.state import SiloState, States
from tdcd.core.topology import Roster
from tdcd.errors import RunError, join_names
from tdcd.files import append, check_no_run, check_run, flat, read_lines, write_atomically, write_json
from tdcd.training.environment import environment
from tdcd.training.result import Evaluation


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


BEST = "best.safetensors"


@dataclass(frozen=True)
class Kept:
    """The weights with the lowest validation loss so far."""

    round: int
    blocks: Mapping[str, Block]


class RunDirectory:
    """The files of one run, open to be written. ``opened`` opens one."""

    def __init__(self, path: Path, job: Mapping[str, Any], *, keep_previous: bool = False) -> None:
        self.path = path
        self._job = job
        self._history = path / "history.jsonl"
        self._checkpoint = path / "checkpoint.safetensors"
        self._earlier = path / "earlier.safetensors" if keep_previous else None

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
            lock = FileLock(path / ".lock")
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RunError(f"{path} is in use by another training; wait until that ends, or stop it") from error
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}") from error
        try:
            if not resume:
                check_no_run(path)
            elif (path / "job.toml").exists():
                _refuse_another(path, stored_job(path), job)
            yield cls(path, job, keep_previous=keep_previous)
        finally:
            lock.release()

    def history(self, up_to: int, due: Sequence[int]) -> list[Evaluation]:
        """Read the history up to the round that a session begins after; it must have the rounds that are due.

        What an earlier session recorded after that round is forgotten: it will happen again.
        """
        result = read_history(self._history)
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
        """Write the history anew."""
        write_atomically(self._history, "".join(_line(evaluation) + "\n" for evaluation in history))

    def rounds(self) -> list[int]:
        """Return the rounds that there are checkpoints of, in ascending order."""
        return sorted(self._checkpoints())

    def begin(self, federation: Mapping[str, Any], history: Iterable[Evaluation]) -> None:
        """Write down a session that now begins, and the history that it goes on with."""
        file = self.path / "job.toml"
        write_json(self.path / "environment.json", [*(sessions(self.path) if file.exists() else []), environment()])
        write_json(self.path / "federation.json", federation)
        (self.path / "result.json").unlink(missing_ok=True)
        self.rewrite(history)
        if not file.exists() or differences(stored_job(self.path), self._job):  # it was given more rounds
            write_atomically(file, tomli_w.dumps(dict(self._job)))

    def attach(self, name: str, text: str) -> None:
        """Keep a text file with the run."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text)

    def keep_rosters(self, rosters: Mapping[str, Roster], batches: Sequence[Tensor]) -> None:
        """Write who holds which sample, and the mini-batches where they were not drawn from the seed."""
        tensors = {f"owner/{silo}": _smallest(roster.owner) for silo, roster in rosters.items()}
        for number, batch in enumerate(batches, start=1):
            tensors[f"batch/{number}"] = batch
        names = {silo: list(roster.clients) for silo, roster in rosters.items()}
        write_atomically(self.path / "rosters.safetensors", _pack(tensors, {"clients": json.dumps(names)}))

    def record(self, evaluation: Evaluation) -> None:
        """Append an evaluation to the history; it is on the disk before a checkpoint can follow it."""
        append(self._history, _line(evaluation))

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
        tensors = _flat("block", weights) | _flat("memory", memory)
        write_atomically(self._checkpoint, _pack(tensors, {"tdcd": json.dumps(state)}))

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

    def save_best(self, best: Kept) -> None:
        """Write the weights with the lowest validation loss so far."""
        path, state = self.path / BEST, {"round": best.round, "silos": list(best.blocks)}
        if path.exists() and (before := _best_state(path)["round"]) != best.round:
            path.replace(path.with_stem(f"{path.stem}-{before}"))
        write_atomically(path, _pack(_flat("block", best.blocks), {"tdcd": json.dumps(state)}))
        bests = sorted(self._bests())
        back = [*self.rounds(), best.round]
        needed = {a for a, b in pairwise(bests) if any(a <= number <= b for number in back)}
        self.forget_bests({*needed, best.round})

    def load_best(self, number: int) -> Kept | None:
        """Read the weights of a round that had the lowest validation loss, if they are there."""
        path = self._bests().get(number)
        if path is None:
            return None
        state, (tensors, _) = _best_state(path), _unpack(path)
        return Kept(number, _nest("block", tensors, state["silos"]))

    def forget_bests(self, but: Collection[int]) -> None:
        """Remove the best weights of all rounds but some."""
        for number, file in self._bests().items():
            if number not in but:
                file.unlink()

    def _bests(self) -> dict[int, Path]:
        """Return the best weights' files by their rounds: the last, and those of before that may be gone back to."""
        return {_best_state(file)["round"]: file for file in self.path.glob("best*.safetensors")}

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
            state = json.loads(_metadata(file)["tdcd"])
            _refuse_another(self.path, state["job"], self._job)
            return int(state["round"]), state
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{file}: not a checkpoint of tdcd ({error})") from error

    def _read(self, file: Path) -> Checkpoint:
        number, state = self._state(file)
        tensors, _ = _unpack(file)
        try:
            weights, memory = (_nest(what, tensors, state["silos"]) for what in ("block", "memory"))
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
        file = self.path / "result.json"
        if not file.exists():
            return False
        try:
            result = json.loads(file.read_text(encoding="utf-8"))
            return bool(result["status"] == "finished" and result["confirmed"] and result["rounds"] == rounds)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{file}: not written by tdcd ({error})") from error

    def finish(self, result: Mapping[str, Any], blocks: Blocks) -> None:
        """Write every hub's block and how the run ended."""
        save_blocks(self.path / "blocks", blocks)
        write_json(self.path / "result.json", result)


def _best_state(file: Path) -> dict[str, Any]:
    try:
        state = json.loads(_metadata(file)["tdcd"])
        return {"round": int(state["round"]), "silos": list(state["silos"])}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: not written by tdcd ({error})") from error


def wait_until_free(path: Path, seconds: float) -> None:
    """Wait for whoever still writes to a run directory; after so many seconds, go on all the same."""
    if (path / ".lock").exists():
        with suppress(Timeout), FileLock(path / ".lock", timeout=seconds):
            pass


def save_blocks(directory: Path, blocks: Blocks) -> None:
    """Write each hub's block as ``SILO.safetensors``."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{directory}: cannot be made: {error.strerror}") from error
    for silo, block in blocks.items():
        write_atomically(directory / f"{silo}.safetensors", _pack(block, {"silo": silo}))


def load_blocks(directory: Path | str) -> dict[str, Block]:
    """Read the hubs' blocks that a run wrote: ``load_blocks("runs/x")``."""
    files = sorted(Path(directory, "blocks").glob("*.safetensors"))
    if not files:
        raise RunError(f"{directory}: no blocks there (blocks/SILO.safetensors)")
    return {file.stem: _unpack(file)[0] for file in files}


def read_history(path: Path) -> list[Evaluation]:
    """Read a run's history; its last line may be half written."""
    result: list[Evaluation] = []
    for number, line in enumerate(read_lines(path) if path.exists() else [], start=1):
        try:
            result.append(Evaluation.from_dict(line))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise RunError(f"{path}: line {number} is damaged: {error}") from error
    return result


def stored_job(path: Path) -> dict[str, Any]:
    """Read the job of a run."""
    check_run(path)
    file = path / "job.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{file}: damaged: {error}") from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name every setting that differs: ``training.rate: 0.1 there, 0.2 here``."""
    before, after = dict(flat(old)), dict(flat(new))
    return [
        f"{key}: {before.get(key, 'not set')!s} there, {after.get(key, 'not set')!s} here"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def sessions(path: Path) -> list[dict[str, Any]]:
    """Read the environments of a run's sessions, the first one first."""
    file = path / "environment.json"
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: damaged: {error}") from error
    if not isinstance(result, list) or not result or not all(isinstance(entry, dict) for entry in result):
        raise RunError(f"{file}: damaged: it is no list of sessions")
    return result


def more_rounds(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether a job is another with more rounds, which change nothing of the rounds before them."""
    before, after = dict(flat(old)), dict(flat(new))
    rounds = [int(job.pop("training.rounds", 0)) for job in (before, after)]
    return before == after and rounds[0] < rounds[1] and after.get("training.schedule.kind") in ("constant", "step")


def _refuse_another(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to go on with a run of another job, unless it is the same with more rounds."""
    changed = differences(old, new)
    if changed and not more_rounds(old, new):
        raise RunError(
            f"{path} was started with another job, so going on would mix two trainings. "
            f"It differs in:\n  " + "\n  ".join(changed)
        )


def _flat(what: str, blocks: Mapping[str, Mapping[str, Tensor]]) -> Block:
    return {f"{what}/{silo}/{name}": t for silo, block in blocks.items() for name, t in block.items()}


def _nest(what: str, tensors: Block, silos: Iterable[str]) -> dict[str, Block]:
    blocks: dict[str, dict[str, Tensor]] = {silo: {} for silo in silos}
    for key, tensor in tensors.items():
        kind, silo, name = key.split("/", 2)
        if kind == what:
            blocks[silo][name] = tensor
    return dict(blocks)


def _line(evaluation: Evaluation) -> str:
    return json.dumps(evaluation.as_dict())


def _smallest(numbers: Tensor) -> Tensor:
    """Return numbers from 0 up in the smallest type that has room for them."""
    largest = int(numbers.max())
    return numbers.to(
        next(t for t in (torch.uint8, torch.int16, torch.int32, torch.int64) if largest <= torch.iinfo(t).max)
    )


def _pack(tensors: Iterable[tuple[str, Tensor]] | Block, metadata: dict[str, str]) -> bytes:
    packed: Block = {}
    places: set[int] = set()
    for name, tensor in dict(tensors).items():
        tensor = tensor.contiguous()
        shared = tensor.untyped_storage().data_ptr() in places  # safetensors refuses memory that two names share
        packed[name] = tensor.clone() if shared else tensor
        places.add(packed[name].untyped_storage().data_ptr())
    return safetensors.torch.save(packed, metadata)


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged, cannot be read: {error}") from error


def _unpack(path: Path) -> tuple[Block, dict[str, str]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged, cannot be read: {error}") from error
