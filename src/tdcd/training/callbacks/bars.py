"""Bars with a line below them."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.progress import Progress
from rich.text import Text


class Bars(Progress):
    """Rich's bars, with a line below that belongs to none of them."""

    footer = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """See Progress."""
        yield from super().get_renderables()
        if self.footer:
            yield Text(self.footer, style="dim")
