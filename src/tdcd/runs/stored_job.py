"""The job that a run was started with, and whether another may go on with it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdcd.errors import RunError
from tdcd.files import flat
from tdcd.runs.layout import JOB, check_run
from tdcd.runs.records import read_text


def stored_job(path: Path) -> dict[str, Any]:
    """Read the job of a run.

    Raises:
        RunError: there is no run, or its job is damaged.
    """
    check_run(path)
    try:
        return tomllib.loads(read_text(path / JOB))
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{path / JOB}: damaged: {error}") from error


WHERE = ("address", "workers")
"""Settings that change no number: a run may go on elsewhere."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name every setting that differs: ``training.rate: 0.1 there, 0.2 here``."""
    before, after = dict(flat(old)), dict(flat(new))
    return [
        f"{key}: {before.get(key, 'not set')!s} there, {after.get(key, 'not set')!s} here"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def has_more_rounds(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether a job is another with more rounds, which change nothing of the rounds before them."""
    rounds = [int(dict(flat(job)).get("training.rounds", 0)) for job in (old, new)]
    return without_rounds(old) == without_rounds(new) and rounds[0] < rounds[1]


def without_rounds(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job, flat, without the number of rounds where it changes nothing of the rounds."""
    settings = {key: value for key, value in flat(job) if key not in WHERE}
    if settings.get("training.schedule.kind") in ("constant", "step") or "training.schedule.over" in settings:
        settings.pop("training.rounds", None)
    return settings


def refuse_another(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to go on with a run of another job, unless it is the same with more rounds."""
    old, new = ({key: value for key, value in job.items() if key not in WHERE} for job in (old, new))
    changed = differences(old, new)
    if changed and not has_more_rounds(old, new):
        raise RunError(
            f"{path} was started with another job, so going on would mix two trainings. "
            f"It differs in:\n  " + "\n  ".join(changed)
        )
