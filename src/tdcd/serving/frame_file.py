"""A file of predictions, written a part at a time: CSV or Parquet."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import polars as pl

from tdcd.errors import DataError, JobError

SUFFIXES = (".csv", ".parquet")


class FrameFile:
    """A file that frames are written to; one that was there is replaced only by a whole one.

    Parts of a Parquet file lie in a folder beside it until the last has been written.
    """

    def __init__(self, path: Path) -> None:
        """Prepare to write.

        Args:
            path: Where; its name says what kind of file.

        Raises:
            JobError: it says no known kind.
            DataError: nothing can be written there.
        """
        if path.suffix not in SUFFIXES:
            raise JobError(f"{path}: name a .csv or a .parquet file")
        self.path = path
        try:
            self._folder = TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent, ignore_cleanup_errors=True)
        except OSError as error:
            raise self._failed(error) from error
        self._parts: list[Path] = []

    def write(self, frame: pl.DataFrame) -> None:
        """Add rows.

        Raises:
            DataError: they cannot be written.
        """
        part = Path(self._folder.name, f"{len(self._parts)}{self.path.suffix}")
        try:
            if self.path.suffix == ".parquet":
                frame.write_parquet(part)
                self._parts.append(part)
                return
            with Path(self._folder.name, "rows.csv").open("ab") as file:
                frame.write_csv(file, include_header=not file.tell())
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the file in its place, if nothing went wrong."""
        try:
            if kind is None:
                self._finish()
        except OSError as wrong:
            raise self._failed(wrong) from wrong
        finally:
            with suppress(OSError):
                self._folder.cleanup()

    def _finish(self) -> None:
        whole = Path(self._folder.name, "rows.csv")
        if self.path.suffix == ".parquet":
            whole = self._parts[0]
            if len(self._parts) > 1:
                whole = Path(self._folder.name, "rows.parquet")
                pl.scan_parquet(self._parts, glob=False).sink_parquet(whole)
        whole.replace(self.path)

    def _failed(self, error: OSError) -> DataError:
        return DataError(f"{self.path}: cannot be written: {error.strerror or error}")
