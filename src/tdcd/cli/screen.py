"""What displays have in common that may own the terminal's screen."""

from types import TracebackType
from typing import Self


class Screen:
    """A context manager; one that draws takes the screen on entering and gives it back on leaving."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the screen back."""
