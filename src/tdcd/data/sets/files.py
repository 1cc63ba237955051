"""What readers of published files have in common: finding them, and naming those that are wrong."""

from collections.abc import Iterable
from pathlib import Path

from tdcd.errors import DataError, join_names


def found_in(directory: Path, *below: str, holds: str) -> Path:
    """Return the directory, or that of the ones below it, which holds something; archives unpack in both ways."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    for place in (directory, *(directory / name for name in below)):
        if (place / holds).exists():
            return place
    raise DataError(f"{directory}: {holds} is not there, so it is not this data set; it has {_there(directory)}")


def check_size(path: Path, expected: int) -> Path:
    """Check that a file is there and of its size."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: missing") from error
    if size != expected:
        what = "truncated" if size < expected else "not what it should be"
        raise DataError(f"{path}: {what}: {size:,} bytes instead of {expected:,}; get it again")
    return path


def text_of(path: Path) -> str:
    """Read a text file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def folders(directory: Path) -> list[Path]:
    """Return the directories in a directory, sorted by name; hidden ones do not count."""
    return sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))


def _there(directory: Path) -> str:
    names: Iterable[str] = sorted(path.name for path in directory.iterdir())
    return join_names(names) or "nothing"
