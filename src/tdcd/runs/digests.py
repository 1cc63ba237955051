"""Digests in and of a run's files: what was written is what is read, or it is refused."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tdcd.errors import DamagedError, RunError

DIGEST = "digest"
_METADATA = "tdcd"
"""The key in the metadata of a safetensors file: a single one, since it writes several in any order."""
Buffer = bytes | memoryview
Content = Iterable[tuple[str, str, tuple[int, ...], Buffer]]
"""Arrays by name, type and shape, as bytes."""


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with a digest of all its values."""
    return {**record, DIGEST: _digest(record)}


def unseal(value: Any, where: str) -> Any:
    """Return a record, or each of a list of them, without its digest, which was verified.

    Raises:
        DamagedError: it is not what was written.
    """
    if isinstance(value, list):
        return [unseal(one, f"{where}: entry {number}") for number, one in enumerate(value, start=1)]
    if not isinstance(value, dict) or DIGEST not in value:
        raise DamagedError(f"{where}: damaged: it has no digest")
    record = {key: one for key, one in value.items() if key != DIGEST}
    if value[DIGEST] != _digest(record):
        raise DamagedError(f"{where}: damaged: its content is not what was written")
    return record


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=8).hexdigest()


def describe_content(record: str, arrays: Content) -> dict[str, str]:
    """Return the metadata of a safetensors file: a record as JSON, and a digest of it and the arrays."""
    return {_METADATA: json.dumps({DIGEST: _digest_arrays(record, arrays), "record": record})}


def check_content(path: Path, metadata: Mapping[str, str], arrays: Content) -> dict[str, Any]:
    """Return the record in a file's metadata, verified together with its arrays.

    Raises:
        DamagedError: they are not what was written.
        RunError: it is not a file of tdcd.
    """
    try:
        described = json.loads(metadata[_METADATA])
        digest, text = described[DIGEST], described["record"]
        whole = _digest_arrays(text, arrays) == digest
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{path}: damaged, or not written by tdcd") from error
    if not whole:
        raise DamagedError(f"{path}: damaged: its content is not what was written")
    record: dict[str, Any] = json.loads(text)
    return record


def _digest_arrays(record: str, arrays: Content) -> str:
    digest = hashlib.blake2b(record.encode(), digest_size=16)
    for name, dtype, shape, data in sorted(arrays, key=lambda array: array[0]):
        digest.update(f"\n{name} {dtype} {tuple(shape)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def digest_file(path: Path) -> str:
    """Digest a file.

    Raises:
        RunError: it is missing, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except FileNotFoundError as error:
        raise RunError(f"{path}: missing") from error
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read: {error.strerror}") from error


def check_files(root: Path, digests: Mapping[str, str], advice: str = "train again") -> None:
    """Check that files below a directory are what they were.

    Raises:
        RunError: one is missing.
        DamagedError: one has changed.
    """
    for name, digest in digests.items():
        if digest_file(root / name) != digest:
            raise DamagedError(f"{root / name}: it is no longer what was written; put it back, or {advice}")
