"""New tables with the columns of the training: opened, and their IDs matched, all at once or a part at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from tdcd.core.topology import Roster, roster_of
from tdcd.data.arrays import Array
from tdcd.data.label_encoding import LabelError, again
from tdcd.data.tables.alignment import (
    Keys,
    PlacedKeys,
    align,
    client_places,
    find_fact,
    gather_facts,
    owners,
    same_kind,
)
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.reader import Table
from tdcd.errors import DataError, join_names, nearest
from tdcd.jobs.schema import TableJob
from tdcd.serving.key_store import KeyStore
from tdcd.training.result import Result

Files = Mapping[str, Sequence[Path | str]]
"""The files of each silo; those under "SILO/CLIENT" are written as that client's files are."""
PART = 200_000
"""IDs, counted over all silos, that are matched at a time."""


@dataclass(frozen=True)
class NewTable(Table):
    """A table of new rows, written as those of the training: a model's settings stay as they are."""

    def __str__(self) -> str:
        return f"silo '{self.silo}' ({self.path})"

    def advise(self, key: str) -> str:
        """Say how to have it read as it is written."""
        return f"Its {key} must be that of the training's files; --table {self.silo}/CLIENT=FILE reads it as CLIENT's"


@dataclass(frozen=True)
class Matched:
    """IDs that all silos have, of all or of a part of them."""

    ids: pl.Series
    """In ascending order."""
    keys: Mapping[str, Sequence[PlacedKeys]]
    """Of the files of each silo."""
    rows: Mapping[str, Sequence[Array]] | None = None
    """The numbers of the rows of these keys in their files, from 0; nothing where they are all of them."""
    label: tuple[str, str] | None = None
    """The silo and the column that hold labels, where the tables have them."""

    def labels(self, classes: Sequence[str]) -> Tensor:
        """Return the labels of all IDs.

        Raises:
            DataError: one is none that the training knew.
        """
        if self.label is None:
            raise DataError(
                "the new tables have no labels, so nothing can be measured; the silo that has them in training needs "
                "its column of labels in every file. To predict without measuring: tdcd predict"
            )
        silo, column = self.label
        keys = self.keys[silo]
        try:
            return torch.from_numpy(again(gather_facts(keys, column), classes))
        except LabelError as error:
            where = find_fact(keys, column, error.label)
            raise DataError(
                f"silo '{silo}', column '{column}': {error}{where}. To predict without measuring, leave the column out"
            ) from error

    def holders(self, files: Files) -> dict[str, Roster]:
        """Return who holds each row of each silo: the client that a file was given for, or the file."""
        return {silo: roster_of(owners(own), _names(files, silo, own)) for silo, own in self.keys.items()}

    def places(self) -> dict[str, dict[str, Array]]:
        """Return, for the files of each silo, the place of every row among the IDs, or −1."""
        return {silo: client_places(own) for silo, own in self.keys.items()}


@dataclass(frozen=True)
class Opened:
    """New tables of some silos."""

    tables: Mapping[str, Sequence[ClientTable]]
    label: tuple[str, str] | None
    """The silo and the column that hold labels, where the tables have them."""

    @property
    def sizes(self) -> dict[str, int]:
        """The number of rows of each silo."""
        return {silo: sum(client.size for client in own) for silo, own in self.tables.items()}

    def columns(self, silo: str) -> list[str]:
        """Return the columns of a silo that go with its IDs."""
        return [self.label[1]] if self.label and self.label[0] == silo else []

    def match(self) -> Matched:
        """Match all IDs at once.

        Raises:
            DataError: they do not fit, or none is in all silos.
        """
        keys = {
            silo: same_kind([client.read_keys(self.columns(silo)) for client in own])
            for silo, own in self.tables.items()
        }
        alignment, placed = align(keys, {})
        return Matched(alignment.ids, placed, label=self.label)

    def match_parts(self, folder: Path) -> Iterator[Matched]:
        """Match the IDs a part at a time, the smallest first; what does not fit in memory goes to a folder.

        Raises:
            DataError: they do not fit, or none is in all silos.
        """
        parts = -(-sum(client.table.rows for own in self.tables.values() for client in own) // PART)
        store = KeyStore.of(self.tables, self.columns, parts, folder) if parts > 1 else None
        if store is None:
            yield self.match()
            return
        some = False
        for number in range(parts):
            keys, rows = store.part(number)
            try:
                alignment, placed = align(keys, {}, may_be_empty=True)
            except DataError:
                self.match()  # says the same of all of them
                raise
            if len(alignment.ids):
                some = True
                yield Matched(alignment.ids, placed, rows, self.label)
        if not some:
            self.match()  # says so


def _names(files: Files, silo: str, keys: Sequence[Keys]) -> list[str]:
    given: dict[str, str] = {}
    for key, paths in files.items():
        name, _, client = key.partition("/")
        given |= {str(path): client or Path(path).name for path in paths if name == silo}
    return [given[key.table.client] for key in keys]


def open_tables(name: str, job: TableJob, result: Result, files: Files, without: Sequence[str] | None = None) -> Opened:
    """Open the tables of all silos, but for some.

    Args:
        name: What errors call the model.
        job: What it was trained by.
        result: Its networks and weights.
        files: The tables.
        without: Silos that are left out; nothing where none may be.

    Raises:
        DataError: a silo has no table, or one does not fit.
    """
    may, without = without is not None, without or ()
    for silo in without:
        if silo not in result.blocks:
            raise DataError(f"--without {silo}: it is no silo of {name}{nearest(silo, result.blocks)}")
    tables = _opened(name, job, result, files)
    if both := sorted(set(without) & set(tables)):
        raise DataError(f"silo '{both[0]}' has a table, and is to be left out; choose one of them")
    if missing := [silo for silo in result.networks if silo not in tables and silo not in without]:
        advice = f" To leave a silo out of the sum, and have partial predictions, say so: --without {missing[0]}"
        raise DataError(
            f"a table of every silo is needed; there is none for {join_names(missing)}: --table {missing[0]}=FILE."
            + advice * may
        )
    if not set(tables) & set(result.networks):
        raise DataError("nothing is left to predict from: every silo is left out")
    owner = _label_owner(job, tables)
    label = job.silos[owner].label if owner else None
    return Opened(tables, (owner, label) if owner and label else None)


def _opened(name: str, job: TableJob, result: Result, files: Files) -> dict[str, list[ClientTable]]:
    """Open the tables of each silo, in the order of the silos."""
    given: dict[str, list[ClientTable]] = {}
    for key, paths in files.items():
        silo, slash, client = key.partition("/")
        if silo not in result.blocks:
            raise DataError(f"'{silo}' is no silo of {name}{nearest(silo, result.blocks)}")
        own = job.silos[silo]
        if slash and client not in own.client_names:
            raise DataError(f"'{client}' is no client of silo '{silo}'{nearest(client, own.client_names)}")
        settings = own.settings_of(client)
        given.setdefault(silo, []).extend(ClientTable(NewTable(silo, str(p), Path(p), settings), keep=0) for p in paths)
    return {silo: given[silo] for silo in result.blocks if given.get(silo)}


def _label_owner(job: TableJob, tables: Mapping[str, Sequence[ClientTable]]) -> str | None:
    """Return a silo whose new tables all have the column of labels."""
    for silo, own in tables.items():
        label = job.silos[silo].label
        if label and all(label in client.table.header for client in own):
            return silo
    return None
