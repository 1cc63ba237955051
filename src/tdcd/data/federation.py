"""A federation's data: every silo's rows, joined by ID, and who holds them."""

import hashlib
import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tdcd.core.topology import Roster, roster_of
from tdcd.data.arrays import Array, Data, IDs, describe_value, fingerprint, places_in, to_ids, to_tensor
from tdcd.data.frames import Columns, index_of, take_frame
from tdcd.data.holdout import folds_of
from tdcd.data.samples import Samples
from tdcd.data.sources import RowSource, StoredRows
from tdcd.errors import DataError, join_names, nearest
from tdcd.summary import Summary

if TYPE_CHECKING:
    from tdcd.data.tables.preparation import Preparation


@dataclass(frozen=True)
class Silo:
    """One organisation's data, as arrays."""

    name: str
    features: Data | RowSource | None
    """X_j: a row for each ID, of any shape; numbers without gaps. A data frame of pandas or polars, too, and a
    torch dataset of rows or of pairs (row, label); an ``ArrayFile`` or a source of your own is read where its rows are
    computed. None for a silo that has labels only."""
    clients: Mapping[str, IDs] | Sequence[IDs]
    """The IDs that each client holds: named, or as a list of lists."""
    ids: IDs | str | None = None
    """The ID of each row, in any order; of a data frame also the name of the column that holds them. By default the
    index of a pandas frame or series, or 0, 1, 2, …; without features, IDs are those of the labels."""

    def __repr__(self) -> str:
        rows = f"{len(self.features)} rows" if isinstance(self.features, Sized) else "rows"
        rows = f"{self.features.shape[0]} rows" if isinstance(self.features, RowSource) else rows
        rows = "no features" if self.features is None else rows
        return f"Silo({self.name!r}: {rows}, {len(self.clients)} clients)"


@dataclass(frozen=True)
class Federation:
    """The training data of all silos, aligned. Make one with ``Federation.from_silos``."""

    samples: Samples
    """Sample p is the p-th ID in ascending order, in every silo."""
    rosters: Mapping[str, Roster]
    ids: Array
    """The common IDs in ascending order."""
    classes: tuple[str, ...] = ()
    """What the labels 0, 1, 2, … stand for, where that is known."""
    preparations: Mapping[str, "Preparation"] = field(default_factory=dict)
    """How each silo's tables became numbers; a run keeps it, to predict from tables."""
    notes: tuple[str, ...] = ()
    """What the user should know of the data."""
    columns: Mapping[str, Columns] = field(default_factory=dict)
    """Those of each silo that was given as a data frame."""

    @classmethod
    def from_silos(cls, silos: Sequence[Silo], labels: Data, label_ids: IDs | None = None) -> "Federation":
        """Join the silos' rows by ID.

        Args:
            silos: What each silo holds. Clients of different silos may hold unrelated samples.
            labels: y, a label for each ID; or a torch dataset of pairs (row, label).
            label_ids: The ID of each label; by default the index of a pandas series, or 0, 1, 2, …

        An index other than 0, 1, 2, … is taken for IDs only if everything has IDs: arrays beside it need theirs.

        Raises:
            DataError: something is missing, doubled, contradictory or not a number; the message says where.
        """
        if isinstance(silos, Mapping | Silo) or not all(isinstance(silo, Silo) for silo in silos):
            raise DataError(f"silos: a list of tdcd.Silo is wanted, not {describe_value(silos)}")
        if not silos:
            raise DataError("a federation needs at least one silo")
        names = [_name(silo) for silo in silos]
        if len(set(names)) < len(names):
            raise DataError(f"two silos have the same name: {join_names(_doubles(np.array(names)))}")
        y = to_tensor(labels, "labels", place=1)
        _check_default_ids(silos, labels, label_ids)
        label_ids = index_of(labels) if label_ids is None else label_ids
        frames = [_without_frame(silo) for silo in silos]
        columns = {silo.name: columns for silo, columns in frames if columns}
        silos = [silo for silo, _ in frames]
        stored = {
            silo.name: StoredRows.whole(silo.features, f"silo '{silo.name}'")
            for silo in silos
            if isinstance(silo.features, RowSource)
        }
        features = {
            silo.name: stored[silo.name].outline()
            if isinstance(silo.features, RowSource)
            else to_tensor(silo.features, f"silo '{silo.name}'")
            for silo in silos
            if silo.features is not None
        }
        if not features:
            raise DataError("a federation needs at least one silo with features")
        silos = [replace(silo, ids=label_ids) if silo.features is None and silo.ids is None else silo for silo in silos]
        row_ids = {silo.name: _row_ids(silo, len(features.get(silo.name, y))) for silo in silos}
        common = np.sort(row_ids[names[0]])
        for name in names[1:]:
            _same_ids(common, row_ids[name], f"silo '{names[0]}'", f"silo '{name}'")
        y_ids = np.arange(len(y)) if label_ids is None else to_ids(label_ids, "the labels")
        if len(y_ids) != len(y):
            raise DataError(f"there are {len(y)} labels and {len(y_ids)} label IDs")
        _same_ids(common, y_ids, f"silo '{names[0]}'", "the labels")
        rows = {name: _in_order(features[name], row_ids[name]) for name in features}
        stored = {name: rows.at(np.argsort(row_ids[name], kind="stable")) for name, rows in stored.items()}
        rosters = {silo.name: _roster(silo, common) for silo in silos}
        return cls(Samples(rows, _in_order(y, y_ids), stored=stored), rosters, common, columns=columns)

    @property
    def silos(self) -> tuple[str, ...]:
        """The silos' names, in the order they were given."""
        return tuple(self.rosters)

    @property
    def with_features(self) -> tuple[str, ...]:
        """Those of them that have features; a silo may have labels only."""
        return tuple(silo for silo in self.rosters if silo in self.samples.features)

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, silo: str) -> "Federation":
        """Return the federation of one silo alone: what it could train by itself."""
        if silo not in self.rosters:
            raise DataError(f"the federation has no silo '{silo}'{nearest(str(silo), self.rosters)}")
        if silo not in self.samples.features:
            raise DataError(f"silo '{silo}' has labels only; it cannot train by itself")
        return replace(
            self,
            samples=self.samples.only(silo),
            rosters={silo: self.rosters[silo]},
            preparations={name: made for name, made in self.preparations.items() if name == silo},
            columns={name: columns for name, columns in self.columns.items() if name == silo},
            notes=(),
        )

    def pooled(self) -> "Federation":
        """Return the federation with all rows of a silo at one client."""
        owner = torch.zeros(len(self), dtype=torch.int64)
        return replace(self, rosters={silo: Roster(("all",), owner) for silo in self.silos}, notes=())

    def fold(self, number: int, of: int = 5, seed: int = 2021) -> "tuple[Federation, Samples]":
        """Return the federation without a fold of its samples, and the samples of the fold to test on.

        Args:
            number: Which fold, from 1.
            of: How many there are. An ID's fold depends on the ID and the seed only.
            seed: Draws them.

        Raises:
            DataError: there is no such fold, or one of the two would have no samples.
        """
        if of < 2 or not 1 <= number <= of:
            raise DataError(f"there is no fold {number} of {of}; they are numbered from 1, and there are two at least")
        testing = folds_of(self.ids, of, seed) == number
        if testing.all() or not testing.any():
            raise DataError(f"fold {number} of {of} leaves no samples to {'train' if testing.any() else 'test'}")
        test = self._at(testing)
        holders = {silo: test.rosters[silo] for silo in self.with_features}
        columns = {silo: columns.names for silo, columns in self.columns.items()}
        return self._at(~testing), replace(test.samples, holders=holders, columns=columns)

    def _at(self, mask: Array) -> "Federation":
        """Return some of the samples."""
        places, every = np.flatnonzero(mask), self.samples
        stored = {silo: rows.at(places) for silo, rows in every.stored.items()}
        chosen = torch.from_numpy(places)
        features = {
            silo: stored[silo].outline() if silo in stored else rows[chosen] for silo, rows in every.features.items()
        }
        rosters = {silo: roster_of(held.owner.numpy()[places], held.clients) for silo, held in self.rosters.items()}
        samples = Samples(features, every.labels[chosen], every.columns, stored)
        return replace(self, samples=samples, rosters=rosters, ids=self.ids[places])

    def loaded(self) -> "Federation":
        """Return the federation with all rows in this process."""
        return replace(self, samples=self.samples.loaded())

    def numbers(self, ids: IDs, what: str = "a batch") -> Tensor:
        """Turn IDs into ascending sample numbers."""
        wanted = to_ids(ids, what)
        if len(wanted) == 0:
            raise DataError(f"{what} is empty")
        places = places_in(self.ids, wanted)
        strange = wanted[places < 0]
        if len(strange):
            raise DataError(f"{what} names IDs that the federation does not have: {join_names(strange)}")
        return torch.from_numpy(np.sort(places))

    def _summary(self) -> Summary:
        rows = []
        for silo, roster in self.rosters.items():
            own, counts = self.samples.features.get(silo), roster.counts()
            held = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
            what = "labels only" if own is None else f"{tuple(own.shape[1:])} {own.dtype}".replace("torch.", "")
            rows.append([silo, f"{len(roster.clients):,}", held, what])
        title = f"Federation of {len(self.rosters)} silos, {len(self):,} samples"
        return Summary(title, ["silo", "clients", "samples each", "a row"], rows)

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()

    def fingerprint(self) -> str:
        """Return a digest of all of the data: IDs, features, labels and who holds what."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr(self.ids.tolist()).encode())
        digest.update(samples_fingerprint(self.samples).encode())
        for name in sorted(self.rosters):
            digest.update(repr(self.rosters[name].clients).encode())
            digest.update(fingerprint({name: self.rosters[name].owner}).encode())
        return digest.hexdigest()


def samples_fingerprint(part: Samples) -> str:
    """Return a digest of samples: labels, and every silo's rows. A silo may be called "labels"."""
    here = {f"silo {name}": rows for name, rows in part.features.items() if name not in part.stored}
    elsewhere = {name: rows.digest() for name, rows in sorted(part.stored.items())}
    digest = fingerprint({"labels": part.labels, **here})
    return digest if not elsewhere else hashlib.blake2b(repr((digest, elsewhere)).encode(), digest_size=16).hexdigest()


def _check_default_ids(silos: Sequence[Silo], labels: Data, label_ids: IDs | None) -> None:
    """Refuse to join rows that are numbered by default with an index that may be a shuffled numbering of them."""
    unnamed: dict[str, Data | RowSource] = {
        f"silo '{silo.name}'": silo.features for silo in silos if silo.features is not None and silo.ids is None
    }
    if label_ids is None:
        unnamed["the labels"] = labels
    indexes = {who: index_of(values) for who, values in unnamed.items()}
    numbered = next((who for who, index in indexes.items() if index is None), None)
    for who, index in indexes.items():
        if numbered and index is not None and index.tolist() != list(range(len(index))):
            option = "label_ids" if numbered == "the labels" else "ids"
            raise DataError(
                f"{who}: the index is not 0, 1, 2, … in this order, and no IDs are given for {numbered}: which rows "
                f"belong together? Give {option}= for {numbered}; or, if all stand in the same order, drop the index "
                f"of {who} with to_numpy()"
            )


def _without_frame(silo: Silo) -> tuple[Silo, Columns | None]:
    """Return a silo with an array in place of its data frame, and the frame's columns."""
    column = silo.ids if isinstance(silo.ids, str) else None
    if (silo.features is None and column is None) or isinstance(silo.features, RowSource):
        return silo, None
    taken = take_frame(silo.features, f"silo '{silo.name}'", column)
    ids = taken.ids if silo.ids is None or column else silo.ids
    return replace(silo, features=taken.rows, ids=ids), Columns(taken.names, column or "") if taken.names else None


def _name(silo: Silo) -> str:
    if not isinstance(silo.name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", silo.name):
        raise DataError(f"silo '{silo.name}': a name is a text of letters, digits, dots, dashes and underscores")
    return silo.name


def _row_ids(silo: Silo, rows: int) -> Array:
    if silo.ids is None:
        return np.arange(rows)
    ids = to_ids(silo.ids, f"silo '{silo.name}'")
    if silo.features is not None and len(ids) != rows:
        raise DataError(f"silo '{silo.name}': {rows} rows of features but {len(ids)} IDs")
    doubles = _doubles(ids)
    if len(doubles):
        raise DataError(f"silo '{silo.name}': IDs that stand for several rows: {join_names(doubles)}")
    return ids


def _same_ids(common: Array, ids: Array, here: str, there: str) -> None:
    if np.array_equal(common, ids):
        return
    if not _comparable(common, ids):
        raise DataError(f"IDs differ: {here} has {_sort(common)}, {there} has {_sort(ids)}")
    missing, extra = np.setdiff1d(common, ids), np.setdiff1d(ids, common)
    if len(missing) or len(extra):
        parts = []
        if len(missing):
            parts.append(f"{len(missing)} are not in {there}: {join_names(missing)}")
        if len(extra):
            parts.append(f"{len(extra)} are not in {here}: {join_names(extra)}")
        raise DataError(f"IDs differ between {here} and {there}: {'; '.join(parts)}. Train on the IDs that all have")
    if len(ids) != len(common):
        raise DataError(f"{there}: IDs that occur several times: {join_names(_doubles(ids))}")


def _comparable(one: Array, two: Array) -> bool:
    return one.dtype.kind == two.dtype.kind


def _sort(ids: Array) -> str:
    return "texts" if ids.dtype.kind == "U" else "numbers"


def _doubles(ids: Array) -> Array:
    values, counts = np.unique(ids, return_counts=True)
    return values[counts > 1]


def _in_order(rows: Tensor, ids: Array) -> Tensor:
    if np.all(ids[:-1] < ids[1:]):
        return rows
    return rows[torch.from_numpy(np.argsort(ids))]


def _roster(silo: Silo, common: Array) -> Roster:
    where = f"silo '{silo.name}'"
    if isinstance(silo.clients, str) or not isinstance(silo.clients, Mapping | Sequence | np.ndarray):
        raise DataError(f"{where}: clients must be lists of IDs, named or not, not {describe_value(silo.clients)}")
    held: dict[str, IDs] = (
        dict(silo.clients)
        if isinstance(silo.clients, Mapping)
        else {f"client-{k}": ids for k, ids in enumerate(silo.clients)}
    )
    if not held:
        raise DataError(f"{where}: it needs at least one client")
    owner = np.full(len(common), -1)
    for k, (client, values) in enumerate(held.items()):
        if not isinstance(client, str):
            raise DataError(f"{where}: a client's name must be a text, not {describe_value(client)}")
        ids = to_ids(values, f"{where}, client '{client}'")
        if len(ids) == 0:
            raise DataError(f"{where}, client '{client}': it holds no rows; leave it out or give it some")
        if not _comparable(common, ids):
            raise DataError(f"{where}, client '{client}': its IDs are {_sort(ids)}, the silo's {_sort(common)}")
        places = places_in(common, ids)
        strange = ids[places < 0]
        if len(strange):
            raise DataError(f"{where}, client '{client}': IDs without a row of features: {join_names(strange)}")
        taken = owner[places] >= 0
        if taken.any():
            other = list(held)[owner[places][taken][0]]
            raise DataError(
                f"{where}: IDs held by two clients, '{other}' and '{client}': {join_names(ids[taken])}; "
                "every row belongs to one client"
            )
        doubles = _doubles(ids)
        if len(doubles):
            raise DataError(f"{where}, client '{client}': IDs listed several times: {join_names(doubles)}")
        owner[places] = k
    orphans = common[owner < 0]
    if len(orphans):
        raise DataError(f"{where}: {len(orphans)} IDs that no client holds: {join_names(orphans)}")
    return roster_of(owner, list(held))
