"""The terminal as all commands use it: what is printed is printed as it is.

Names of clients, columns, cases and directories are the user's: ``[a]`` in one of them is no markup, and ``:key:`` no
picture. Only commands' own words are styled, by the style of what is printed or by a Text.
"""

import os
import sys

from rich.console import Console

WIDE = 160
"""Columns where nobody says how many there are, in a file or a pipe."""


def terminal(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return what to print on."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(
        stderr=stderr, width=None if known else WIDE, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False
    )
