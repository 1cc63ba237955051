"""What a model directory holds.

model.json               what the model is, how it was trained and measured, and digests of all other files
blocks/SILO.safetensors  each silo's weights
preparation/SILO.json    how its tables become numbers, where it was trained on tables
quality.json             curves, thresholds and clients, where the run that it is of measured them
README.md                the model card

Nothing in it is code. ``model.json`` has a digest of itself: a changed byte in any file is noticed, and it is named.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcd.errors import DamagedError, RunError
from tdcd.runs.digests import unseal
from tdcd.runs.records import Evaluation, FederationRecord, Finding, parse_record, read_text

MODEL = "model.json"
CARD = "README.md"
FORMAT = 1


@dataclass(frozen=True)
class ModelRecord:
    """What a model is: model.json."""

    format: int
    name: str
    """The job's."""
    run: str
    """The ID of the training that its weights are of."""
    round: int
    """The round that they are of."""
    rounds: int
    """The rounds that the job asks for."""
    ended: bool
    """Whether the training had ended; else these are the weights of a checkpoint."""
    assembled: str
    """When, as a date and time of UTC."""
    sources: Mapping[str, str]
    """The name of the run directory that each silo's part is from."""
    versions: Mapping[str, str]
    """Of Python and the packages that made it."""
    job: Mapping[str, Any]
    """As in job.toml."""
    federation: FederationRecord
    history: tuple[Evaluation, ...]
    """Evaluations up to its round, as the hub has them that knows the most measures."""
    files: Mapping[str, str]
    """Digests of all other files, by their names in the directory."""
    findings: tuple[Finding, ...] = ()
    """What the training shows about itself, once it has ended: as the hub has it that knows the most measures."""


def holds_model(path: Path) -> bool:
    """Tell whether a directory is a model."""
    return (path / MODEL).exists()


def read_model(path: Path) -> ModelRecord:
    """Read what a model is; every byte of ``model.json`` counts, blanks too.

    Raises:
        RunError: it is missing, or of another version of tdcd.
        DamagedError: it is not what was written.
    """
    file = path / MODEL
    text = read_text(file)
    with suppress(json.JSONDecodeError, RecursionError):  # then it is damaged
        table = json.loads(text)
        format_ = unseal(table, str(file)).get("format") if isinstance(table, dict) else FORMAT
        if format_ != FORMAT:
            raise RunError(f"{file}: a model of format {format_}, and this version of tdcd reads {FORMAT}")
        if text != json.dumps(table, indent=2, ensure_ascii=False) + "\n":
            raise DamagedError(f"{file}: damaged: its content is not what was written")
    return parse_record(text, ModelRecord, str(file))
