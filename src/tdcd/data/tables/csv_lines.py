"""The lines of a CSV file, looked at before anything is read.

A reader takes what it gets: cells that a short line lacks become missing values, a stray quote swallows lines. Here
every line is checked to have as many cells as the first, and every quote to open or close a cell.
"""

from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from tdcd.data.arrays import Array

CHUNK = 2**20
"""Bytes looked at at a time."""
SPAN = 2**23
"""Bytes of the rows that are read together, about."""
LONGEST = 2**26
"""Bytes of one line; more than that is a quote that was never closed."""
_NEWLINE, _RETURN, _QUOTE = b"\n"[0], b"\r"[0], b'"'[0]


class LineError(Exception):
    """A line that is not as the first; its message says which and how."""


class Span(NamedTuple):
    """Whole rows of a file that lie one after the other."""

    begin: int
    """The first byte."""
    end: int
    """The byte after the last."""
    rows: int


@dataclass
class _Look:
    """What is known of the lines so far."""

    separator: int
    width: int
    rows: int = 0
    """Rows so far, with the first line, up to the last that is not empty."""
    empty: int = 0
    """Empty lines since then; the number of the first of them."""
    lines: int = 0
    """Line ends so far, also those within quotes."""
    header: int = 0
    """Bytes of the first row."""


def find_spans(file: BinaryIO, separator: str, width: int) -> tuple[Span, ...]:
    """Return where the rows of a CSV file below the first line lie; empty lines at the end do not count.

    Raises:
        LineError: a line has not ``width`` cells, or is empty, or has a quote out of place.
    """
    look, rest, at = _Look(ord(separator), width), b"", 0
    spans, known = list[Span](), 1

    def cut(least: int) -> None:
        nonlocal known
        begin = spans[-1].end if spans else look.header
        if look.rows > known and at - begin >= least:
            spans.append(Span(begin, at, look.rows - known))
            known = look.rows

    while chunk := file.read(CHUNK):
        data = rest + chunk
        whole = _checked(data, look)
        at, rest = at + whole, data[whole:]
        if len(rest) > LONGEST:
            raise LineError(f"a quote that opens in line {look.lines + 1} is not closed")
        cut(SPAN)
    if rest.strip(b"\r\n") and _checked(rest + b"\n", look) <= len(rest):
        raise LineError(f"a quote that opens in line {look.lines + 1} is not closed")
    at += len(rest)
    cut(0)
    return tuple(spans)


def _checked(data: bytes, look: _Look) -> int:
    """Check the whole rows that data begins with; return where they end."""
    array = np.frombuffer(data, dtype=np.uint8)
    newline, separators = array == _NEWLINE, array == look.separator
    ends = newline
    if _QUOTE in data:
        quote = array == _QUOTE
        inside = np.logical_xor.accumulate(quote) & ~quote
        ends, separators = newline & ~inside, separators & ~inside
    else:
        quote = None
    last = np.flatnonzero(ends)
    if not len(last):
        return 0
    length = int(last[-1]) + 1
    look.header = look.header or int(last[0]) + 1
    starts = np.concatenate([[0], last[:-1] + 1])
    if quote is None:
        lines = look.lines + 1 + np.arange(len(starts))
    else:  # a cell may have lines of its own
        lines = look.lines + 1 + np.concatenate([[0], np.cumsum(newline[:length])[last[:-1]]])
        _check_quotes(array[:length], quote[:length], look.separator, starts, lines)
    cells = np.add.reduceat(separators[:length], starts, dtype=np.int32) + 1
    empty = (last == starts) | ((array[starts] == _RETURN) & (last - starts == 1))
    _check_cells(cells, empty, lines, look)
    look.lines += len(starts) if quote is None else int(newline[:length].sum())
    return length


def _check_quotes(array: Array, quote: Array, separator: int, starts: Array, lines: Array) -> None:
    """Check that every quote opens or closes a cell, or is doubled within one."""
    places = np.flatnonzero(quote)
    opens = places[0::2]
    closes = places[1::2]
    before = np.where(opens > 0, array[opens - 1], _NEWLINE)
    after = array[np.minimum(closes + 1, len(array) - 1)]
    well = np.concatenate(
        [
            np.isin(before, (separator, _NEWLINE, _QUOTE)) | ((opens == 3) & (array[0] == 0xEF)),  # UTF-8's mark
            np.isin(after, (separator, _NEWLINE, _RETURN, _QUOTE)),
        ]
    )
    if not well.all():
        place = np.concatenate([opens, closes])[~well].min()
        line = lines[np.searchsorted(starts, place, side="right") - 1]
        raise LineError(f"line {line} has a quote within a cell; such a cell is quoted as a whole, its quotes doubled")


def _check_cells(cells: Array, empty: Array, lines: Array, look: _Look) -> None:
    full = np.flatnonzero(~empty)
    if not len(full):
        look.empty = look.empty or int(lines[0])
        return
    gap = np.flatnonzero(empty[: full[-1]])
    if look.empty or len(gap):
        raise LineError(f"line {look.empty or lines[gap[0]]} is empty; remove it")
    wrong = full[cells[full] != look.width]
    if len(wrong):
        raise LineError(
            f"line {lines[wrong[0]]} has {cells[wrong[0]]} cells, the first line {look.width}; is it cut off, or does "
            "a text in it hold the separator?"
        )
    look.rows += len(full)
    after = full[-1] + 1
    look.empty = int(lines[after]) if after < len(empty) else 0
