"""Where a job's own models are imported from."""

import sys
from pathlib import Path


def importable(*directories: Path) -> None:
    """Let a job name models in files of some folders.

    What is installed comes first: a file torch.py or rich.py that lies there is never taken for the library.
    """
    new = dict.fromkeys(str(directory.resolve()) for directory in directories)
    sys.path.extend(place for place in new if place not in sys.path)


def import_path(run: Path) -> list[Path]:
    """Return where a run's first session found Python modules: its models may lie there.

    A run directory may come from somebody else, so nothing is imported from inside it.
    """
    from tdcd.runs.reader import read_sessions

    inside = run.resolve()
    places = (Path(place).resolve() for place in read_sessions(run)[0].import_path)
    return [place for place in places if not place.is_relative_to(inside)]
