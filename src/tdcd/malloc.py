"""Memory that a process gives back to the system."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_SMALL, _USUAL = 1 << 17, 1 << 25
"""Bytes from which on memory goes back as soon as it is freed: while it should, and as the C library does by itself."""


def _set(*options: tuple[int, int]) -> None:
    with suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL("libc.so.6")
        for option, value in options:
            libc.mallopt(option, value)


def give_back_memory() -> None:
    """Give freed memory back at once from now on: for a process that holds large tensors for a short time."""
    _set((_MMAP_THRESHOLD, _SMALL), (_TRIM_THRESHOLD, _SMALL), (_ARENA_MAX, 1))


@contextmanager
def giving_back_memory() -> Iterator[None]:
    """Give freed memory back at once, for as long as many arrays are made and dropped."""
    _set((_MMAP_THRESHOLD, _SMALL), (_TRIM_THRESHOLD, _SMALL))
    try:
        yield
    finally:
        _set((_MMAP_THRESHOLD, _USUAL), (_TRIM_THRESHOLD, _USUAL))
