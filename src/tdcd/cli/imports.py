"""Where a job's own code is imported from."""

import sys
from pathlib import Path

from tdcd.runs.layout import ENVIRONMENT, FEDERATION


def importable(*directories: Path) -> None:
    """Let a job name code in files of some folders.

    What is installed comes first: a file torch.py or rich.py that lies there is never taken for the library. Nothing
    is imported from a run directory, which may come from somebody else.
    """
    places = (directory.resolve() for directory in directories)
    new = dict.fromkeys(
        str(place) for place in places if not any((folder / FEDERATION).exists() for folder in (place, *place.parents))
    )
    sys.path.extend(place for place in new if place not in sys.path)


def importable_for(file: Path | None) -> None:
    """Let a job name code beside its file and in the present folder; the job of a run, where the run found it."""
    beside = file.parent if file else Path()
    importable(*(import_path(beside) if (beside / ENVIRONMENT).exists() else [beside]), Path())


def import_path(run: Path) -> list[Path]:
    """Return where a run's first session found Python modules: its models may lie there."""
    from tdcd.runs.reader import read_sessions

    return [Path(place) for place in read_sessions(run)[0].import_path]
