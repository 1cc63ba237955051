"""A run as its files tell it."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcd.core.script import Sharing
from tdcd.errors import RunError
from tdcd.files import check_run, read_lines


@dataclass(frozen=True)
class RunFiles:
    """What a run directory holds, read."""

    path: Path
    variant: str
    """"federation", "central", "one-tier" or "SILO alone"."""
    job: Mapping[str, Any]
    federation: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]
    sessions: tuple[Mapping[str, Any], ...]
    result: Mapping[str, Any]
    """Empty while the run is under way."""
    baselines: Mapping[str, "RunFiles"]
    """Runs to compare with: "central", "one-tier", "SILO alone"."""

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
        """What becomes of them."""
        result: Sharing = self.job.get("labels", {}).get("sharing") or "shared"
        return result

    @property
    def final(self) -> Mapping[str, Any]:
        """The evaluation of the weights that were kept; while the run is under way, the last one."""
        kept = self.result.get("kept")
        return next((line for line in self.history if line["round"] == kept), self.history[-1])


def read_run(path: Path | str, variant: str = "federation") -> RunFiles:
    """Read a run directory. ``variant`` says what of its job it is.

    Raises:
        RunError: it is not one, or a file of it is damaged; names the file.
    """
    path = Path(path)
    check_run(path)
    try:
        return _read_run(path, variant)
    except (LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: a file of it is damaged: {type(error).__name__}: {error}") from error


def variant_of(path: Path) -> str:
    """Tell what a run directory holds, from where it lies: under the job it is a baseline of, or in a sweep."""
    path = path.resolve()
    above, further = path.parent, path.parent.parent
    if (above / "job.toml").exists():
        return path.name
    if above.name == "alone" and (further / "job.toml").exists():
        return f"{path.name} alone"
    if (further / "sweep.json").exists():
        place = f"{above.name}/{path.name}"
        for combination in _read(further / "sweep.json", json.loads)["combinations"]:
            if any(run["path"] == place for run in (*combination["runs"], *combination["trials"])):
                return str(combination["variant"])  # the first: one tier by single steps is central training
    return "federation"


def _read_run(path: Path, variant: str) -> RunFiles:
    federation = _read(path / "federation.json", json.loads)
    if any("features" not in silo for silo in federation["silos"]):
        raise RunError(f"{path}: made by an earlier version of tdcd, which did not tell who has features; train again")
    parts = {name: path / name for name in ("central", "one-tier")}
    parts |= {f"{silo['name']} alone": path / "alone" / silo["name"] for silo in federation["silos"]}
    return RunFiles(
        path=path,
        variant=variant,
        job=_read(path / "job.toml", tomllib.loads),
        federation=federation,
        history=tuple(_history(path / "history.jsonl")),
        sessions=tuple(_read(path / "environment.json", json.loads)),
        result=_read(path / "result.json", json.loads) if (path / "result.json").exists() else {},
        baselines={name: read_run(part, name) for name, part in parts.items() if (part / "federation.json").exists()},
    )


def _history(path: Path) -> list[Any]:
    if not path.exists():
        raise RunError(f"{path}: missing")
    return read_lines(path)


def _read(path: Path, parse: Any) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path}: missing") from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: damaged: {error}") from error
