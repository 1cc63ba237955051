"""Where a job's own code is imported from."""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
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


@dataclass(frozen=True)
class Allowed:
    """The modules whose code may run: those named, and those that are found in some folders.

    A folder allows no module that is found elsewhere first, such as one of Python's own, nor what is installed in an
    environment below it.
    """

    modules: Collection[str]
    folders: Collection[Path]

    def __contains__(self, module: object) -> bool:
        return module in self.modules or _home(str(module)) in [folder.resolve() for folder in self.folders]


def _home(module: str) -> Path | None:
    """Return the folder that a module is imported from, or the package that it is in; nothing if it is from no file."""
    try:
        spec = find_spec(module.partition(".")[0])  # of a package, which imports nothing
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    homes = {Path(place).parent.resolve() for place in places}
    return homes.pop() if len(homes) == 1 else None
