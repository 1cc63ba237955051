"""A client's table of those to predict: embedded as it is read, so that a question is answered by looking up IDs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tdcd.data.arrays import Array
from tdcd.data.tables.alignment import id_array, unique_ids
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.drift import Drift
from tdcd.data.tables.preparation import MOST_INPUTS, Preparation
from tdcd.data.tables.reader import Table
from tdcd.errors import DataError
from tdcd.jobs.schema import TableJob
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.security.identity import Identity
from tdcd.sites.site_file import ClientSite

Embed = Callable[[Tensor], Tensor]
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""Whole numbers as IDs of tables are read."""


@dataclass(frozen=True)
class Index:
    """IDs in ascending order, and the row of each."""

    ids: Array
    rows: Array

    @classmethod
    def of(cls, ids: pl.Series) -> "Index":
        """Sort the IDs of a table, in the order of its rows."""
        array = id_array(ids)
        order = np.argsort(array, kind="stable")
        return cls(array[order], order)

    def places(self, wanted: Array) -> Array:
        """Return the row of each wanted ID, or −1; whole numbers and texts that write them are the same."""
        if wanted.dtype.kind == "U" and self.ids.dtype.kind != "U":
            known = np.array([bool(_WHOLE.fullmatch(text)) for text in wanted.tolist()], dtype=bool)
            result = np.full(len(wanted), -1)
            result[known] = self.places(np.array([int(text) for text in wanted[known].tolist()], dtype=np.int64))
            return result
        if wanted.dtype.kind != "U" and self.ids.dtype.kind == "U":
            wanted = wanted.astype(np.str_)
        if not len(self.ids):
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return np.where(self.ids[at] == wanted, self.rows[at], -1)


@dataclass(frozen=True)
class ServedRows:
    """A table that was read."""

    table: Table
    index: Index
    embeddings: Tensor
    """(rows, E)."""


class ServedTable:
    """The table of a client for predictions. It is read again when the file has changed."""

    def __init__(self, job: TableJob, identity: Identity, site: ClientSite, log: Callable[[str], None]) -> None:
        self._job, self._identity, self._site, self._log = job, identity, site, log
        self._read: ServedRows | None = None
        self._failed: tuple[tuple[int, int] | None, str] | None = None
        """What the file looked like that could not be read, and why not."""

    def check(self) -> None:
        """See that the table is there, and has IDs.

        Raises:
            DataError: it is not, or has none.
        """
        self._table().need(self._job.silos[self._identity.silo].id or "", "id")

    def check_features(self, made: Preparation) -> None:
        """Check that a preparation is of columns that this client's own copy of the job does not exclude.

        Raises:
            RefusedError: it is not.
        """
        own, names = self._job.silos[self._identity.silo], [column.name for column in made.columns]
        never = {own.id, own.row_id, own.label, self._job.data.split_column, *own.exclude}
        allowed = set(names if own.columns is None else own.columns) - never
        if strange := sorted(set(names) - allowed):
            raise RefusedError(f"the hub asks for column '{strange[0][:80]}', which is no feature of the job")
        if len(made.outputs) > MOST_INPUTS * max(1, len(names)):
            raise RefusedError(f"a preparation of {len(made.outputs):,} inputs")

    def rows(self, made: Preparation, embed: Embed) -> ServedRows:
        """Return the embedded rows, read again if the file has changed.

        Args:
            made: How its columns become numbers.
            embed: Embeds some rows.

        Raises:
            DataError: it cannot be read; the log has said why.
        """
        if self._read is not None and self.is_read:
            return self._read
        stamp = self._stamp()
        if self._failed and self._failed[0] == stamp:
            raise DataError(self._failed[1])
        if self._read is not None:
            self._log(f"{self._read.table.path} has changed: reading it again")
        self._read = self._failed = None
        try:
            self._read = self._reading(made, embed)
        except Exception as error:  # what the hub hears must not tell what is in cells
            self._log(f"cannot predict: {error}")
            self._failed = stamp, f"{self._identity}: its table for predictions cannot be read; its own log says why"
            raise DataError(self._failed[1]) from error
        return self._read

    @property
    def is_read(self) -> bool:
        """Whether its rows are there, and the file has not changed."""
        try:
            return self._read is not None and not self._read.table.changed
        except DataError:  # it has gone
            return False

    def forget(self) -> None:
        """Another model makes other numbers of the rows."""
        self._read = self._failed = None

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = Path(self._site.serve or self._site.data or "").stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns

    def _table(self) -> Table:
        if not (file := self._site.serve or self._site.data):
            raise DataError(f'{self._identity}: its site file names no table to predict from: serve = "new-north.csv"')
        silo, client = self._identity.silo, self._identity.client or ""
        return Table(silo, client, Path(file), self._job.silos[silo].settings_of(client, self._site.table))

    def _reading(self, made: Preparation, embed: Embed) -> ServedRows:
        table = self._table()
        names = [column.name for column in made.columns]
        for name in names:
            table.need(name, "columns")
        if not table.rows:  # nobody new today
            self._log(f"{table.path} has no rows: this client has none of the people who may be asked about")
            nobody = np.empty(0, dtype=np.int64)
            return ServedRows(table, Index(nobody, nobody), embed(torch.empty(0, len(made.outputs))))
        opened = ClientTable(table)
        keys = opened.read_keys()
        unique_ids([keys])
        count, drift = len(keys.ids), Drift(made)
        nothing = embed(torch.empty(0, len(made.outputs)))
        embeddings = nothing.new_empty(count, nothing.shape[1])
        for places, numbers in opened.encode(made, np.arange(count), drift):
            embeddings[torch.from_numpy(places)] = embed(torch.from_numpy(numbers))
        self._log(f"{count:,} rows of {table.path} are ready for predictions")
        for line in drift.warnings(table.silo):
            self._log(f"drift: {line}")
        return ServedRows(table, Index.of(keys.ids), embeddings)
