"""How a silo's rows fall to its clients in a simulation: pure functions of the IDs, the labels and a seed."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tdcd.core.seeds import derive
from tdcd.data.arrays import Array
from tdcd.errors import DataError, nearest
from tdcd.strict import Strict

DEFAULT_CLIENTS = 5
"""K where a job does not say."""
Concentration = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class SiloRows:
    """A silo's rows, to be dealt."""

    silo: str
    ids: Array
    """In any order."""
    labels: Array
    attributes: Mapping[str, Array]
    """More facts of each row, by name."""


class RowSplit(Strict):
    """What all splits have in common. Nobody's rows are dropped, and every client has at least one."""

    @abstractmethod
    def deal(self, rows: SiloRows, clients: int | None, seed: int) -> dict[str, Array]:
        """Deal a silo's IDs to clients: their IDs by their names."""


class ByColumn(RowSplit):
    """A client for each value of a column, named after it."""

    kind: Literal["column"]
    column: str

    def deal(self, rows: SiloRows, clients: int | None, seed: int) -> dict[str, Array]:  # noqa: ARG002, D102
        where = f"silo '{rows.silo}'"
        if self.column not in rows.attributes:
            raise DataError(f"{where}: rows cannot be dealt by '{self.column}'{nearest(self.column, rows.attributes)}")
        values = rows.attributes[self.column]
        if clients not in (None, len(np.unique(values))):
            count = len(np.unique(values))
            raise DataError(
                f"{where}: '{self.column}' has {count} values, each of which makes a client; the job says {clients} "
                f"clients; set clients to {count}, or leave it out"
            )
        return {str(value): rows.ids[values == value] for value in np.unique(values)}


class Drawn(RowSplit):
    """Splits that draw at random."""

    same: bool = False
    """Give client k of every silo the same IDs, as the authors' program does. Otherwise silos are dealt independently:
    clients of different silos hold unrelated IDs."""

    def deal(self, rows: SiloRows, clients: int | None, seed: int) -> dict[str, Array]:  # noqa: D102
        ids, silo, clients = rows.ids, rows.silo, clients or DEFAULT_CLIENTS
        if clients > len(ids):
            raise DataError(
                f"silo '{silo}': {clients} clients for {len(ids)} rows would leave clients without rows; "
                f"set clients to {len(ids)} or fewer"
            )
        order = np.argsort(ids, kind="stable")
        generator = np.random.Generator(np.random.Philox(key=derive(seed, "deal", "" if self.same else silo)))
        owner = self._owners(rows.labels[order], clients, generator)
        counts = np.bincount(owner, minlength=clients)
        parts = np.split(ids[order][np.argsort(owner, kind="stable")], np.cumsum(counts)[:-1])
        digits = len(str(clients))
        return {f"{silo}-{k:0{digits}d}": part for k, part in enumerate(parts, start=1)}

    @abstractmethod
    def _owners(self, labels: Array, clients: int, generator: np.random.Generator) -> Array:
        """Return the client of each row 0 … M − 1, given the rows' labels."""


class Equal(Drawn):
    """At random to clients of equal size, as in the paper; remainders are dealt too."""

    kind: Literal["equal"] = "equal"

    def _owners(self, labels: Array, clients: int, generator: np.random.Generator) -> Array:
        each, more = divmod(len(labels), clients)
        return _in_turn(generator.permutation(len(labels)), each + (np.arange(clients) < more))


class SizeSkew(Drawn):
    """At random to clients whose shares are drawn from a Dirichlet distribution."""

    kind: Literal["size-skew"] = "size-skew"
    concentration: Concentration = 1.0
    """Small: a few clients have nearly everything. Large: clients are nearly equal."""

    def _owners(self, labels: Array, clients: int, generator: np.random.Generator) -> Array:
        exact = (len(labels) - clients) * generator.dirichlet(np.full(clients, self.concentration))
        counts = 1 + np.floor(exact).astype(np.int64)
        left = len(labels) - int(counts.sum())
        counts[np.argsort(np.floor(exact) - exact, kind="stable")[:left]] += 1  # to the largest remainders
        return _in_turn(generator.permutation(len(labels)), counts)


class LabelSkew(Drawn):
    """Each class to clients whose shares of it are drawn from a Dirichlet distribution."""

    kind: Literal["label-skew"] = "label-skew"
    concentration: Concentration = 0.5
    """Small: a client sees few of the classes. Large: classes are nearly equal everywhere."""

    def _owners(self, labels: Array, clients: int, generator: np.random.Generator) -> Array:
        if labels.ndim > 1 or not np.array_equal(labels, np.round(labels)):
            raise DataError("rows: a split by label skew needs classes; these labels are not whole numbers")
        owner = np.empty(len(labels), dtype=np.int64)
        for value in np.unique(labels):
            places = generator.permutation(np.flatnonzero(labels == value))
            cuts = np.cumsum(generator.dirichlet(np.full(clients, self.concentration)))[:-1]
            owner[places] = np.searchsorted(cuts, (np.arange(len(places)) + 0.5) / len(places))
        counts = np.bincount(owner, minlength=clients)
        for client in np.flatnonzero(counts == 0):  # the largest client gives a row
            largest = int(counts.argmax())
            owner[generator.choice(np.flatnonzero(owner == largest))] = client
            counts[largest], counts[client] = counts[largest] - 1, 1
        return owner


def _in_turn(order: Array, counts: Array) -> Array:
    """Give the first rows of this order to the first client, the next ones to the next."""
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = np.repeat(np.arange(len(counts)), counts)
    return owner


Rows = Annotated[Equal | SizeSkew | LabelSkew | ByColumn, Field(discriminator="kind")]
"""The type of ``data.rows``."""
ROWS_TAGS = frozenset({"equal", "size-skew", "label-skew", "column"})
