"""The terminal as all commands use it: what is printed is printed as it is.

Names of clients, columns, cases and directories are the user's: ``[a]`` in one of them is no markup, and ``:key:`` no
picture. Only commands' own words are styled, by the style of what is printed or by a Text.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

WIDE = 160
"""Columns where nobody says how many there are, in a file or a pipe."""


def terminal(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return what to print on."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(
        stderr=stderr, width=None if known else WIDE, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False
    )


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; yield what tells it how many of how many are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = terminal(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
