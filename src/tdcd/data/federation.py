"""A federation's data: every silo's rows, joined by ID, and who holds them."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tdcd.core.topology import Roster, Samples
from tdcd.errors import DataError, listed

Array = npt.NDArray[Any]
ArrayLike = Tensor | npt.ArrayLike
IDs = Sequence[int] | Sequence[str] | Array | Tensor


@dataclass(frozen=True)
class Silo:
    """One organisation's data, as arrays."""

    name: str
    features: ArrayLike
    """X_j: a row for each ID, of any shape; numbers without gaps."""
    clients: Mapping[str, IDs] | Sequence[IDs]
    """The IDs that each client holds: named, or as a list of lists."""
    ids: IDs | None = None
    """The ID of each row, in any order. By default rows are numbered 0, 1, 2, …"""


@dataclass(frozen=True)
class Federation:
    """The training data of all silos, aligned. Make one with ``Federation.from_silos``."""

    samples: Samples
    """Sample p is the p-th ID in ascending order, in every silo."""
    rosters: Mapping[str, Roster]
    ids: Array
    """The common IDs in ascending order."""

    @classmethod
    def from_silos(cls, silos: Sequence[Silo], labels: ArrayLike, label_ids: IDs | None = None) -> "Federation":
        """Join the silos' rows by ID.

        Args:
            silos: What each silo holds. Clients of different silos may hold unrelated samples.
            labels: y, a label for each ID.
            label_ids: The ID of each label; by default labels are numbered 0, 1, 2, …

        Raises:
            DataError: something is missing, doubled, contradictory or not a number; the message says where.
        """
        if not silos:
            raise DataError("a federation needs at least one silo")
        names = [silo.name for silo in silos]
        if len(set(names)) < len(names):
            raise DataError(f"two silos have the same name: {listed(_doubles(np.array(names)))}")
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise DataError(f"silo '{name}': a name is made of letters, digits, dots, dashes and underscores")
        y = to_tensor(labels, "labels")
        row_ids = {silo.name: _row_ids(silo) for silo in silos}
        common = np.sort(row_ids[names[0]])
        for name in names[1:]:
            _same_ids(common, row_ids[name], f"silo '{names[0]}'", f"silo '{name}'")
        y_ids = np.arange(len(y)) if label_ids is None else _ids(label_ids, "the labels")
        if len(y_ids) != len(y):
            raise DataError(f"there are {len(y)} labels and {len(y_ids)} label IDs")
        _same_ids(common, y_ids, f"silo '{names[0]}'", "the labels")
        return cls(
            samples=Samples(
                {silo.name: _in_order(to_tensor(silo.features, f"silo '{silo.name}'"), row_ids[silo.name])
                 for silo in silos},
                _in_order(y, y_ids),
            ),
            rosters={silo.name: _roster(silo, common) for silo in silos},
            ids=common,
        )  # fmt: skip

    @property
    def silos(self) -> tuple[str, ...]:
        """The silos' names, in the order they were given."""
        return tuple(self.rosters)

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, silo: str) -> "Federation":
        """Return the federation of one silo alone: what it could train by itself."""
        return Federation(self.samples.only(silo), {silo: self.rosters[silo]}, self.ids)

    def numbers(self, ids: IDs, what: str = "a batch") -> Tensor:
        """Turn IDs into ascending sample numbers."""
        wanted = _ids(ids, what)
        places = np.searchsorted(self.ids, wanted) if _comparable(self.ids, wanted) else np.array([])
        found = self.ids[places.clip(max=len(self.ids) - 1)] == wanted if len(places) else np.array([False])
        if not np.all(found):
            strange = wanted[~found] if len(places) else wanted
            raise DataError(f"{what} names IDs that the federation does not have: {listed(strange)}")
        return torch.from_numpy(np.sort(places))

    def fingerprint(self) -> str:
        """Return a digest of all of the data: IDs, features, labels and who holds what."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.ids.dtype.str, self.ids.tolist())).encode())
        digest.update(_bytes(self.samples.labels))
        for name in sorted(self.rosters):
            features = self.samples.features[name]
            digest.update(repr((name, self.rosters[name].clients, tuple(features.shape))).encode())
            digest.update(_bytes(self.rosters[name].owner))
            digest.update(_bytes(features))
        return digest.hexdigest()


def samples(features: Mapping[str, ArrayLike], labels: ArrayLike) -> Samples:
    """Make a test set: a row of every silo and a label for each sample, all in the same order."""
    y = to_tensor(labels, "test labels")
    tensors = {name: to_tensor(x, f"test rows of silo '{name}'") for name, x in features.items()}
    for name, x in tensors.items():
        if len(x) != len(y):
            raise DataError(f"test set: silo '{name}' has {len(x)} rows, and there are {len(y)} labels")
    return Samples(tensors, y)


def to_tensor(values: ArrayLike, what: str) -> Tensor:
    """Return numbers as a tensor without copying where possible.

    Raises:
        DataError: not numbers, no rows, or something not finite.
    """
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{what}: not numbers but {array.dtype}; encode text and dates as numbers first")
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if tensor.ndim == 0 or len(tensor) == 0:
        raise DataError(f"{what}: no rows")
    if tensor.is_floating_point() and not (finite := torch.isfinite(tensor)).all():
        bad = (~finite.flatten(1).all(1) if tensor.ndim > 1 else ~finite).nonzero()[:, 0]
        raise DataError(
            f"{what}: NaN or infinite numbers in {len(bad)} of {len(tensor)} rows "
            f"(row {listed(bad.tolist())}); fill or drop them first"
        )
    return tensor


def _ids(values: IDs, what: str) -> Array:
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise DataError(f"{what}: IDs must be a list of whole numbers or of texts, not {array.dtype}")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _row_ids(silo: Silo) -> Array:
    rows = len(to_tensor(silo.features, f"silo '{silo.name}'"))
    if silo.ids is None:
        return np.arange(rows)
    ids = _ids(silo.ids, f"silo '{silo.name}'")
    if len(ids) != rows:
        raise DataError(f"silo '{silo.name}': {rows} rows of features but {len(ids)} IDs")
    doubles = _doubles(ids)
    if len(doubles):
        raise DataError(f"silo '{silo.name}': IDs that stand for several rows: {listed(doubles)}")
    return ids


def _same_ids(common: Array, ids: Array, here: str, there: str) -> None:
    if not _comparable(common, ids):
        raise DataError(f"IDs differ: {here} has {_sort(common)}, {there} has {_sort(ids)}")
    missing, extra = np.setdiff1d(common, ids), np.setdiff1d(ids, common)
    if len(missing) or len(extra):
        parts = []
        if len(missing):
            parts.append(f"{len(missing)} are not in {there}: {listed(missing)}")
        if len(extra):
            parts.append(f"{len(extra)} are not in {here}: {listed(extra)}")
        raise DataError(f"IDs differ between {here} and {there}: {'; '.join(parts)}. Train on the IDs that all have")
    if len(ids) != len(common):
        raise DataError(f"{there}: IDs that occur several times: {listed(_doubles(ids))}")


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
    named = isinstance(silo.clients, Mapping)
    held = dict(silo.clients) if isinstance(silo.clients, Mapping) else {str(k): c for k, c in enumerate(silo.clients)}
    if not held:
        raise DataError(f"{where}: it needs at least one client")
    owner = np.full(len(common), -1)
    first: list[int] = []
    for k, (client, values) in enumerate(held.items()):
        if len(values) == 0:
            raise DataError(f"{where}, client '{client}': it holds no rows; leave it out or give it some")
        ids = _ids(values, f"{where}, client '{client}'")
        if not _comparable(common, ids):
            raise DataError(f"{where}, client '{client}': its IDs are {_sort(ids)}, the silo's {_sort(common)}")
        places = np.searchsorted(common, ids).clip(max=len(common) - 1)
        strange = ids[common[places] != ids]
        if len(strange):
            raise DataError(f"{where}, client '{client}': IDs without a row of features: {listed(strange)}")
        taken = owner[places] >= 0
        if taken.any():
            other = list(held)[owner[places][taken][0]]
            raise DataError(
                f"{where}: IDs held by two clients, '{other}' and '{client}': {listed(ids[taken])}; "
                "every row belongs to one client"
            )
        doubles = _doubles(ids)
        if len(doubles):
            raise DataError(f"{where}, client '{client}': IDs listed several times: {listed(doubles)}")
        owner[places] = k
        first.append(int(places.min()))
    orphans = common[owner < 0]
    if len(orphans):
        raise DataError(f"{where}: {len(orphans)} IDs that no client holds: {listed(orphans)}")
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    names = list(held)
    clients = tuple(names[k] for k in order) if named else tuple(f"client-{k}" for k in range(len(order)))
    return Roster(clients, torch.from_numpy(rank[owner]))


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().numpy().reshape(-1).view(np.uint8).data
