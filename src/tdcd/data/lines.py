"""The lines of a CSV file, looked at before anything else: short ones would silently be read as missing values."""

from pathlib import Path

import numpy as np

CHUNK = 2**20
"""Bytes looked at at a time."""


def odd_line(path: Path, separator: str, width: int) -> tuple[int, int] | None:
    """Return the first line that has not ``width`` cells, counted from 1, and how many it has; empty ones do not count.

    Where cells are quoted, separators and line ends may be part of them; then only the reader can tell.
    """
    before, rest = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if b'"' in whole:
                return None
            if newline:
                odd, count = _odd(whole + newline, ord(separator), width)
                if odd:
                    return before + odd[0], odd[1]
                before += count
    if not rest.strip() or b'"' in rest:
        return None
    odd, _ = _odd(rest + b"\n", ord(separator), width)
    return (before + odd[0], odd[1]) if odd else None


def empty_at_the_end(path: Path) -> int:
    """Return the number of empty lines at the end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        tail = file.read()
    return max(0, tail[len(tail.rstrip(b"\r\n")) :].count(b"\n") - 1)


def _odd(lines: bytes, separator: int, width: int) -> tuple[tuple[int, int] | None, int]:
    """Look at whole lines: the first odd one, and how many lines there are."""
    data = np.frombuffer(lines, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    cells = np.add.reduceat(data == separator, starts, dtype=np.int32) + 1
    empty = (ends == starts) | ((data[starts] == ord("\r")) & (ends - starts == 1))
    wrong = np.flatnonzero((cells != width) & ~empty)
    return (int(wrong[0]) + 1, int(cells[wrong[0]])) if len(wrong) else None, len(ends)
