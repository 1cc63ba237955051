"""Where a job's own models are imported from."""

import sys
from pathlib import Path


def importable(*directories: Path) -> None:
    """Let a job name models in files beside it, or in the folder tdcd was or is started from; its own come first."""
    new = dict.fromkeys(str(directory.resolve()) for directory in (*directories, Path.cwd()))
    sys.path[:0] = [place for place in new if place not in sys.path]


def import_path(run: Path) -> list[Path]:
    """Return where a run's first session found Python modules: its models may lie there."""
    from tdcd.runs.reader import read_sessions

    return [Path(place) for place in read_sessions(run)[0].import_path]
