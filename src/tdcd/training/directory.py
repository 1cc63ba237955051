"""A run on disk: what it was asked, what it saw, what it learned, and where to go on.

job.toml                 the job with every default filled in; `tdcd train` takes it as it is
environment.json         one entry a session: versions, machine, command, date
federation.json          silos, clients, rows, networks
history.jsonl            one evaluation a line
checkpoint.safetensors   all blocks after some round: where `--resume` goes on
blocks/SILO.safetensors  each hub's block at the end
result.json              how it ended
report.html              all of it to look at
"""

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import tomli_w
from torch import Tensor

from tdcd.core.network import Block, Blocks
from tdcd.errors import RunError
from tdcd.training.environment import environment
from tdcd.training.files import differences, write_atomically, write_json
from tdcd.training.result import Evaluation


@dataclass(frozen=True)
class Checkpoint:
    """A run after some round."""

    round: int
    blocks: Mapping[str, Mapping[str, Tensor]]
    seconds: float
    data: str
    """Fingerprint of the training data."""


class RunDirectory:
    """The files of one run. ``new`` or ``again`` open it; both leave it ready to be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._history = path / "history.jsonl"
        self._checkpoint = path / "checkpoint.safetensors"

    @classmethod
    def new(cls, path: Path, job: Mapping[str, Any]) -> "RunDirectory":
        """Start a run in a directory that holds none."""
        if (path / "job.toml").exists():
            raise RunError(f"{path} already holds a run; go on with it by --resume {path}, or choose another directory")
        try:
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path)
            write_json(path / "environment.json", [environment()])
            write_atomically(run._history, b"")
            write_atomically(path / "job.toml", tomli_w.dumps(dict(job)))
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}") from error
        return run

    @classmethod
    def again(cls, path: Path, job: Mapping[str, Any]) -> "RunDirectory":
        """Open a run to go on with it; refuse when the job is not the one it was started with."""
        changed = differences(stored_job(path), job)
        if changed:
            raise RunError(
                f"{path} was started with another job, so going on would mix two trainings. "
                f"It differs in:\n  " + "\n  ".join(changed)
            )
        sessions = json.loads((path / "environment.json").read_text())
        write_json(path / "environment.json", [*sessions, environment()])
        return cls(path)

    def describe(self, federation: Mapping[str, Any]) -> None:
        """Write down who takes part."""
        write_json(self.path / "federation.json", federation)

    def record(self, evaluation: Evaluation) -> None:
        """Append an evaluation to the history; it is on the disk before a checkpoint can follow it."""
        with self._history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(evaluation.as_dict()) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def history(self, up_to: int) -> list[Evaluation]:
        """Read the history back to a round and forget what came after it, whole line or half."""
        kept = []
        if self._history.exists():
            for line in self._history.read_text(encoding="utf-8").splitlines():
                try:
                    evaluation = Evaluation(**json.loads(line))
                except (json.JSONDecodeError, TypeError):
                    break
                if evaluation.round <= up_to:
                    kept.append(evaluation)
        write_atomically(self._history, "".join(json.dumps(e.as_dict()) + "\n" for e in kept))
        return kept

    def save(self, round_: int, blocks: Blocks, seconds: float, data: str) -> None:
        """Write the checkpoint, replacing the one before only when it is whole."""
        tensors = {f"{silo}/{name}": t for silo, block in blocks.items() for name, t in block.items()}
        metadata = {"round": str(round_), "seconds": f"{seconds:.3f}", "data": data}
        write_atomically(self._checkpoint, _packed(tensors, metadata))

    def load(self) -> Checkpoint | None:
        """Read the checkpoint; a run stopped before its first has none."""
        if not self._checkpoint.exists():
            return None
        tensors, metadata = _unpacked(self._checkpoint)
        try:
            blocks: dict[str, Block] = {}
            for key, tensor in tensors.items():
                silo, name = key.split("/", 1)
                blocks.setdefault(silo, {})[name] = tensor
            return Checkpoint(int(metadata["round"]), blocks, float(metadata["seconds"]), metadata["data"])
        except (KeyError, ValueError) as error:
            raise RunError(f"{self._checkpoint}: not a checkpoint of tdcd ({error})") from error

    def finish(self, result: Mapping[str, Any], blocks: Blocks) -> None:
        """Write every hub's block and how the run ended."""
        save_blocks(self.path / "blocks", blocks)
        write_json(self.path / "result.json", result)


def save_blocks(directory: Path, blocks: Blocks) -> None:
    """Write each hub's block as ``SILO.safetensors``."""
    directory.mkdir(parents=True, exist_ok=True)
    for silo, block in blocks.items():
        write_atomically(directory / f"{silo}.safetensors", _packed(block, {"silo": silo}))


def load_blocks(directory: Path | str) -> dict[str, Block]:
    """Read hubs' blocks that a run wrote: ``load_blocks("runs/x/blocks")``."""
    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise RunError(f"{directory}: no blocks there (SILO.safetensors)")
    return {file.stem: _unpacked(file)[0] for file in files}


def stored_job(path: Path) -> dict[str, Any]:
    """Read the job of a run."""
    file = path / "job.toml"
    if not file.exists():
        raise RunError(f"{path} is not a run: it has no job.toml")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{file}: damaged: {error}") from error


def import_path(path: Path) -> list[str]:
    """Return the folders that a run's first session imported Python modules from: its models may lie there."""
    try:
        sessions = json.loads((path / "environment.json").read_text(encoding="utf-8"))
        return [str(place) for place in sessions[0]["import_path"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{path / 'environment.json'}: damaged: {error}") from error


def _packed(tensors: Iterable[tuple[str, Tensor]] | Block, metadata: dict[str, str]) -> bytes:
    return safetensors.torch.save({name: t.contiguous() for name, t in dict(tensors).items()}, metadata)


def _unpacked(path: Path) -> tuple[Block, dict[str, str]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged, cannot be read: {error}") from error
