"""Files that a crash cannot leave half-written, and flat views of settings."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tdcd.errors import JobError, RunError, TdcdError
from tdcd.failpoints import reach


def read_settings(path: Path, kind: type[TdcdError], passed: tuple[type[OSError], ...] = (FileNotFoundError,)) -> str:
    """Read a file that a user has written: a job, a sweep, a site. Some editors begin it with a mark.

    Args:
        path: Where.
        kind: The error to raise.
        passed: Errors that the caller explains.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except passed:
        raise
    except UnicodeDecodeError as error:
        raise kind(f"{path}: not a text in UTF-8; save it in UTF-8 ({error})") from error
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from error


def write_atomically(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Replace a file in one step: at any moment the path holds the whole old or the whole new content.

    Args:
        path: Where.
        content: What.
        private: Nobody but its owner may read it.

    Raises:
        RunError: it cannot be written, for want of space or of permission.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        reach(f"before writing {path.name}")
        if private:
            temporary.unlink(missing_ok=True)
            temporary.touch(0o600)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            reach(f"before fsync of {path.name}")
            os.fsync(file.fileno())
        reach(f"before rename to {path.name}")
        temporary.replace(path)
        reach(f"after rename to {path.name}")
        sync_directory(path.parent)
        reach(f"after writing {path.name}")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def replace_directory(made: Path, path: Path) -> None:
    """Give a complete directory its place; one that is there is removed once the new one has its place.

    Args:
        made: It lies beside its place.
        path: Its place.

    Raises:
        RunError: it cannot be put there; what was there is there again.
    """
    old = made.with_name(f"{made.name}.old")
    try:
        if path.exists():
            path.rename(old)
        try:
            made.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error
    shutil.rmtree(old, ignore_errors=True)


def rename(path: Path, target: Path) -> None:
    """Give a file another name, in place of what has it; it survives a power cut."""
    try:
        reach(f"before rename of {path.name}")
        path.replace(target)
        reach(f"after rename of {path.name}")
        sync_directory(target.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be renamed to {target.name}: {error.strerror}") from error


def remove(path: Path) -> None:
    """Remove a file."""
    try:
        reach(f"before removing {path.name}")
        path.unlink()
        reach(f"after removing {path.name}")
        sync_directory(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be removed: {error.strerror}") from error


def append(path: Path, line: str) -> None:
    """Add a line to a file; it is on the disk when this returns."""
    try:
        reach(f"before appending to {path.name}")
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            reach(f"before fsync of {path.name}")
            os.fsync(file.fileno())
        reach(f"after appending to {path.name}")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """Make a rename or a new file survive a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``("training.rate", 0.1)`` for every setting in nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{quoted_key(key)}.")
        else:
            yield f"{above}{quoted_key(key)}", value


def quoted_key(key: str) -> str:
    """Return a key as it stands in a dotted name: as TOML does, quoted if it has a dot of its own."""
    return key if _PLAIN_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def split_key(dotted: str) -> list[str]:
    """Return the keys of a dotted name: ``silos."north.bank".clients`` has three.

    Raises:
        JobError: it is none.
    """
    if not _DOTTED.fullmatch(dotted):
        raise JobError(f"{dotted}: not a name of keys with dots between them, such as training.rate")
    return [json.loads(key) if key.startswith('"') else key for key in re.findall(_KEY, dotted)]


_KEY = r'"(?:[^"\\]|\\.)*"|[^."]+'
_PLAIN_KEY, _DOTTED = re.compile(r'[^."]+'), re.compile(rf"(?:{_KEY})(?:\.(?:{_KEY}))*")
