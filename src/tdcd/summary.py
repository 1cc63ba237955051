"""Short texts and small tables of what users print."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MOST = 8
"""Rows that are shown."""


@dataclass(frozen=True)
class Summary:
    """A title and a table: as text for a terminal, as HTML for a notebook."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def _shown(self) -> list[Sequence[str]]:
        more = len(self.rows) - MOST
        return [*self.rows[:MOST], *([[f"… and {more} more", *[""] * (len(self.header) - 1)]] if more > 0 else [])]

    def text(self) -> str:
        """Return lines of aligned columns."""
        table = [self.header, *self._shown()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
        return "\n".join([self.title, *(f"  {line}".rstrip() for line in lines)])

    def html(self) -> str:
        """Return a table with the title as its caption."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.header)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._shown())
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        caption = f"<caption>{escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
