"""How a data set's features fall to silos: pure functions of a row's shape and a seed."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import EllipsisType
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tdcd.core.seeds import derive
from tdcd.data.arrays import Array
from tdcd.errors import DataError, nearest
from tdcd.strict import Strict

Index = tuple[EllipsisType | slice | Array | int, ...]
"""What to take of every row; stands after the axis of the rows."""
Silos = Annotated[int, Field(gt=0)]

_LAYOUTS = {
    1: ("a table's rows of {} columns", "contiguous, random or columns"),
    2: ("series of {} steps and columns", "contiguous, random or columns"),
    3: ("images of {} (channels, height, width)", "strips or tiles"),
    4: ("views of {} (views, channels, height, width)", "views"),
}


class FeatureSplit(Strict):
    """What all splits have in common. A silo's features keep their order."""

    @abstractmethod
    def blocks(self, shape: tuple[int, ...], columns: Sequence[str], seed: int) -> Mapping[str, Index]:
        """Return what each silo takes of rows of this shape, by the silos' names.

        Args:
            shape: One row: (columns,), (steps, columns), (channels, height, width) or (views, channels, height, width).
            columns: The columns' names, where they have some.
            seed: Draws what is drawn.

        Raises:
            DataError: rows of this shape cannot be split so.
        """

    def _refuse(self, kind: str, shape: tuple[int, ...]) -> DataError:
        what, fit = _LAYOUTS[len(shape)]
        size = shape[0] if len(shape) == 1 else shape
        return DataError(f"data.features: {what.format(size)} cannot be split by kind {kind}; use {fit}")


class Contiguous(FeatureSplit):
    """Columns in their order; where they do not divide, the first silos take one more, as in the paper."""

    kind: Literal["contiguous"] = "contiguous"
    silos: Silos

    def blocks(self, shape: tuple[int, ...], columns: Sequence[str], seed: int) -> Mapping[str, Index]:  # noqa: ARG002, D102
        if len(shape) > 2:
            raise self._refuse(self.kind, shape)
        return _named("silo", [(..., slice(a, b)) for a, b in _cuts(shape[-1], self.silos, "columns")])


class Random(FeatureSplit):
    """Columns drawn at random, as many for each silo as if they were contiguous."""

    kind: Literal["random"] = "random"
    silos: Silos

    def blocks(self, shape: tuple[int, ...], columns: Sequence[str], seed: int) -> Mapping[str, Index]:  # noqa: ARG002, D102
        if len(shape) > 2:
            raise self._refuse(self.kind, shape)
        drawn = np.random.Generator(np.random.Philox(key=derive(seed, "features"))).permutation(shape[-1])
        return _named("silo", [(..., np.sort(drawn[a:b])) for a, b in _cuts(shape[-1], self.silos, "columns")])


class Columns(FeatureSplit):
    """Columns listed for each silo, by name or by number from 0. A column may be left out, or be in several silos."""

    kind: Literal["columns"] = "columns"
    silos: Annotated[dict[str, list[str | int]], Field(min_length=1)]

    def blocks(self, shape: tuple[int, ...], columns: Sequence[str], seed: int) -> Mapping[str, Index]:  # noqa: ARG002, D102
        if len(shape) > 2:
            raise self._refuse(self.kind, shape)
        return {silo: (..., self._numbers(silo, wanted, shape[-1], columns)) for silo, wanted in self.silos.items()}

    def _numbers(self, silo: str, wanted: Sequence[str | int], width: int, columns: Sequence[str]) -> Array:
        where = f"data.features.silos.{silo}"
        numbers = []
        for column in wanted:
            if isinstance(column, str) and column not in columns:
                raise DataError(f"{where}: the data has no column '{column}'{nearest(column, columns)}")
            number = columns.index(column) if isinstance(column, str) else column
            if not 0 <= number < width:
                raise DataError(f"{where}: there is no column {number}; they are numbered 0 to {width - 1}")
            numbers.append(number)
        if not numbers or len(set(numbers)) < len(numbers):
            raise DataError(f"{where}: list at least one column, and none twice")
        return np.array(numbers)


class Strips(FeatureSplit):
    """Images cut into upright strips from left to right: two silos have the left and the right halves."""

    kind: Literal["strips"] = "strips"
    silos: Silos = 2

    def blocks(self, shape: tuple[int, ...], columns: Sequence[str], seed: int) -> Mapping[str, Index]:  # noqa: ARG002, D102
        if len(shape) != 3:
            raise self._refuse(self.kind, shape)
        parts: list[Index] = [(..., slice(a, b)) for a, b in _cuts(shape[-1], self.silos, "pixels")]
        return dict(zip(("left", "right"), parts, strict=True)) if self.silos == 2 else _named("strip", parts)


class Tiles(FeatureSplit):
    """Images cut both ways: two rows and two columns are the quadrants. Silos are counted as one reads."""

    kind: Literal["tiles"] = "tiles"
    rows: Silos = 2
    columns: Silos = 2

    def blocks(self, shape: tuple[int, ...], columns: Sequence[str], seed: int) -> Mapping[str, Index]:  # noqa: ARG002, D102
        if len(shape) != 3:
            raise self._refuse(self.kind, shape)
        down, across = _cuts(shape[-2], self.rows, "pixels"), _cuts(shape[-1], self.columns, "pixels")
        return _named("tile", [(..., slice(a, b), slice(c, d)) for a, b in down for c, d in across])


class Views(FeatureSplit):
    """One view of every object for each silo."""

    kind: Literal["views"] = "views"

    def blocks(self, shape: tuple[int, ...], columns: Sequence[str], seed: int) -> Mapping[str, Index]:  # noqa: ARG002, D102
        if len(shape) != 4:
            raise self._refuse(self.kind, shape)
        return _named("view", [(view,) for view in range(shape[0])])


def _cuts(width: int, silos: int, what: str) -> list[tuple[int, int]]:
    if silos > width:
        raise DataError(f"data.features: {width} {what} cannot be split among {silos} silos; use {width} or fewer")
    each, more = divmod(width, silos)
    ends = np.cumsum([0, *(each + (silo < more) for silo in range(silos))]).tolist()
    return list(pairwise(ends))


def _named(word: str, found: Sequence[Index]) -> dict[str, Index]:
    digits = len(str(len(found)))
    return {f"{word}-{number:0{digits}d}": index for number, index in enumerate(found, start=1)}


Features = Annotated[Contiguous | Random | Columns | Strips | Tiles | Views, Field(discriminator="kind")]
"""The type of ``data.features``."""
FEATURES_TAGS = frozenset({"contiguous", "random", "columns", "strips", "tiles", "views"})
