"""Named moments at which a test may end a process: before and after whatever makes a file last.

    with watching(end_at("before fsync of checkpoint.safetensors")):
        …

Nothing watches outside of tests, and a moment then costs a look at one variable.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watch = Callable[[str], None]
"""Takes the name of a moment; may raise, or end the process."""
_watch: Watch | None = None


def reach(moment: str) -> None:
    """Say that a moment has come."""
    if _watch is not None:
        _watch(moment)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Hear of every moment from now on."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before
