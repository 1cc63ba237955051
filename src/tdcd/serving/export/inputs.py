"""What an exported model takes of each silo, and rows to try it on."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tdcd.data.arrays import Array
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.preparation import Category, Number, Preparation
from tdcd.data.tables.reader import Table
from tdcd.data.tables.settings import TableFormat, TableSettings
from tdcd.serving.model import Model

Kind = Literal["cells", "prepared", "rows"]
BATCH = "batch"
"""The name of the first axis of all inputs and outputs."""
BATCHES = (1, 2, 7, 64)
"""Rows of the batches that an export is tried on."""
LARGE = 30.0
"""Some of the rows that are tried are so many times as large as others."""


@dataclass(frozen=True)
class SiloInput:
    """What goes in for a silo."""

    silo: str
    kind: Kind
    """Cells of a table as texts, the numbers they are prepared as, or rows of an array."""
    shape: tuple[int, ...]
    """Of a row."""
    row_shape: tuple[int, ...]
    """Of a row as the network takes it."""
    row_type: torch.dtype
    """That the network takes."""
    names: tuple[str, ...]
    """The columns of cells, or what prepared numbers stand for, in order."""
    preparation: Preparation | None = None
    settings: TableSettings | None = None
    """How cells are written, where they go in."""

    @property
    def fed(self) -> torch.dtype:
        """The type of the rows as they come to the network; prepared ones are float32, whatever it computes in."""
        return self.row_type if self.kind == "rows" else torch.float32

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the input, as an array."""
        return np.dtype(object) if self.kind == "cells" else torch.empty(0, dtype=self.fed).numpy().dtype

    def draw(self, generator: np.random.Generator, rows: int) -> Array:
        """Return random rows, some of zeros, large numbers or empty cells among them."""
        if self.kind == "cells" and self.preparation and self.settings:
            choices = [_cells(column, self.settings) for column in self.preparation.columns]
            drawn = [[str(generator.choice(own)) for own in choices] for _ in range(rows)]
            return np.array(
                [[""] * len(choices) if row == 4 else cells for row, cells in enumerate(drawn)], dtype=object
            )
        if not self.row_type.is_floating_point:
            return generator.integers(0, 2, (rows, *self.shape)).astype(self.dtype)
        numbers = generator.standard_normal((rows, *self.shape))
        numbers[2:3] = 0
        numbers[3:4] *= LARGE
        return numbers.astype(self.dtype)

    def rows(self, given: Array) -> Tensor:
        """Return what the network takes, made by tdcd itself."""
        if self.preparation and self.settings and self.kind == "cells":
            given = prepare_cells(self.silo, given, self.preparation, self.settings)
        return torch.from_numpy(given).to(self.row_type)


def _cells(column: Number | Category, settings: TableSettings) -> list[str]:
    """Return cells that a column may hold."""
    if isinstance(column, Category):
        known = [*column.values, "a text that training did not know"]
    else:
        near = [column.mean + step * (column.deviation or 1.0) for step in (-3, -1, -0.1, 0, 0.1, 1, 3)]
        known = [*map(repr, near), "0", "-1", str(round(column.mean)), f"{near[1]:.3e}"]
    return known + ["", *settings.missing] * 2


def prepare_cells(silo: str, cells: Array, preparation: Preparation, settings: TableSettings) -> Array:
    """Return the numbers (rows, inputs) that tdcd makes of cells (rows, columns) in a CSV file."""
    names = [column.name for column in preparation.columns]
    number = next(name for name in ("row", "row ", "row  ") if name not in names)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cells.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([number, *names])
            writer.writerows([str(row), *own] for row, own in enumerate(cells))
        plain = settings.with_formats(TableFormat(separator=",", encoding="utf-8"))
        table = ClientTable(Table(silo, "export", path, plain))
        parts = [numbers for _, numbers in table.encode(preparation, np.arange(len(cells)))]
    return np.concatenate(parts)


def embed(model: Model, inputs: Sequence[SiloInput], given: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return each silo's embeddings (batch, E) as tdcd computes them."""
    return {own.silo: model.result.embed(own.silo, own.rows(given[own.silo])) for own in inputs}
