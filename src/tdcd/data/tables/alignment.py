"""Which IDs all silos have: found once, kept in a file, checked before every training.

The file is a Parquet table of the common IDs in ascending order, with the labels and the parts that were handed over,
and tells in its metadata what every client had.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.data.tables.reader import TableHead
from tdcd.errors import DataError, join_names
from tdcd.files import write_atomically

VERSION = 1
_DAMAGE = (
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError),
    *(LookupError, TypeError, ValueError, AttributeError),
)
"""What reading a damaged file may raise."""


@dataclass(frozen=True)
class Keys:
    """What a client tells to be aligned: the IDs of its rows, and what goes with them."""

    table: TableHead
    ids: pl.Series
    """Whole numbers or texts, in the order of the rows."""
    facts: Mapping[str, pl.Series]
    """Labels, parts and the like, by column: a text for each row; whole numbers without a point."""


@dataclass(frozen=True)
class PlacedKeys(Keys):
    """What a client tells, once the common IDs are known."""

    places: Array
    """The place of each row's ID among the common ones, or −1."""


@dataclass(frozen=True)
class Share:
    """What a client has of the common IDs."""

    rows: int
    """All of its rows."""
    common: int
    """Those whose ID all silos have."""
    fingerprint: str
    """A digest of the common IDs that it holds."""


@dataclass(frozen=True)
class Alignment:
    """The IDs that all silos have, and who holds them."""

    ids: pl.Series
    """Whole numbers or texts, in ascending order."""
    shares: Mapping[str, Mapping[str, Share]]
    """By silo and client."""
    handed: Mapping[str, pl.Series]
    """What was handed to all silos for each ID: "label", "part"."""

    @property
    def fingerprint(self) -> str:
        """A digest of the common IDs and of what was handed over."""
        whole = hashlib.blake2b(digest(self.ids).encode(), digest_size=16)
        for name in sorted(self.handed):
            whole.update(f"{name} {digest(self.handed[name])}".encode())
        return whole.hexdigest()

    def save(self, path: Path) -> None:
        """Write it to a file, replacing one that is there."""
        record = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "silos": {
                silo: {client: [share.rows, share.common, share.fingerprint] for client, share in shares.items()}
                for silo, shares in self.shares.items()
            },
        }
        buffer = io.BytesIO()
        frame = pl.DataFrame({"id": self.ids, **self.handed})
        frame.write_parquet(buffer, metadata={"tdcd": json.dumps(record)})
        write_atomically(path, buffer.getvalue(), private=True)

    @classmethod
    def load(cls, path: Path) -> "Alignment":
        """Read it from a file.

        Raises:
            DataError: there is none, or it is damaged.
        """
        if not path.exists():
            raise DataError(f"{path}: no such alignment; make it with: tdcd align JOB.toml")
        try:
            frame = pl.read_parquet(path, glob=False)
            record: Any = json.loads(pl.read_parquet_metadata(path)["tdcd"])
            if record["version"] != VERSION:
                raise DataError(f"{path}: made by another version of tdcd; make it again with: tdcd align JOB.toml")
            shares = {
                silo: {client: Share(int(a), int(b), str(c)) for client, (a, b, c) in clients.items()}
                for silo, clients in record["silos"].items()
            }
            handed = {name: frame[name] for name in frame.columns if name != "id"}
            result = cls(_checked_ids(frame["id"]), shares, handed)
        except _DAMAGE as error:
            raise DataError(f"{path}: damaged, not an alignment of tdcd ({type(error).__name__})") from error
        if result.fingerprint != record["fingerprint"]:
            raise DataError(f"{path}: damaged: its IDs do not have the fingerprint that it tells; make it again")
        return result

    def places(self, ids: pl.Series) -> Array:
        """Return the place of each ID among the common ones; −1 for those that not all silos have."""
        if kind_of(ids) != kind_of(self.ids):
            return np.full(len(ids), -1)
        common = pl.DataFrame({"id": self.ids, "place": np.arange(len(self.ids))})
        joined = pl.DataFrame({"id": ids}).join(common, on="id", how="left", maintain_order="left")
        return joined["place"].fill_null(-1).to_numpy()

    def place(self, keys: Sequence[Keys]) -> list[PlacedKeys]:
        """Find the places of a silo's rows: one join for all of its clients."""
        if not keys:
            return []
        ends = np.cumsum([len(key.ids) for key in keys])[:-1]
        places = np.split(self.places(pl.concat([key.ids for key in keys])), ends)
        return [PlacedKeys(key.table, key.ids, key.facts, own) for key, own in zip(keys, places, strict=True)]

    def share(self, key: PlacedKeys) -> Share:
        """Return what a client has of the common IDs."""
        held = self.ids.gather(np.sort(key.places[key.places >= 0]))
        return Share(len(key.ids), len(held), digest(held))

    def verify(self, keys: Mapping[str, Sequence[Keys]], where: str) -> dict[str, list[PlacedKeys]]:
        """Check that every client still holds the IDs that it held when they were aligned; return their places.

        Raises:
            DataError: one does not; names it and the first IDs.
        """
        again = "align again with: tdcd align JOB.toml"
        if set(keys) != set(self.shares):
            raise DataError(
                f"{where}: it is of the silos {join_names(self.shares)}, the job has {join_names(keys)}; {again}"
            )
        placed = {}
        for silo, clients in keys.items():
            unique_ids(clients)
            names = {key.table.client for key in clients}
            if odd := sorted(names ^ set(self.shares[silo])):
                raise DataError(f"{where}: these clients of silo '{silo}' are not in both it and the job: "
                                f"{join_names(odd)}; {again}")  # fmt: skip
            placed[silo] = self.place(clients)
            for key in placed[silo]:
                self.verify_client(key, where)
        return placed

    def verify_client(self, key: PlacedKeys, where: str) -> None:
        """Check that a client still holds the IDs that it held when they were aligned.

        Raises:
            DataError: it does not.
        """
        then, now = self.shares[key.table.silo].get(key.table.client), self.share(key)
        if then is None:
            raise DataError(f"{key.table}: it did not exist when {where} was made; align again")
        if now.fingerprint != then.fingerprint:
            raise DataError(
                f"{key.table}: it does not hold the IDs that it held when {where} was made: "
                f"{now.common} of the common ones now, {then.common} then; align again with: tdcd align JOB.toml"
            )


NUMBERS, TEXTS = "i", "U"
"""Kinds of IDs, as sites tell each other."""


def kind_of(ids: pl.Series) -> str:
    """Tell whether IDs are whole numbers or texts."""
    return TEXTS if ids.dtype == pl.String else NUMBERS


def as_kind(ids: pl.Series, kind: str) -> pl.Series:
    """Return IDs as whole numbers or texts; numbers of a CSV file may count as texts."""
    return ids.cast(pl.String) if kind == TEXTS else ids


def id_series(values: Array) -> pl.Series:
    """Return an array of IDs as a series."""
    if values.dtype.kind == "U":
        return pl.Series("id", values.tolist(), dtype=pl.String)
    return pl.Series("id", values.astype(np.int64))


def _checked_ids(ids: pl.Series) -> pl.Series:
    if ids.dtype != pl.String and not ids.dtype.is_integer():
        raise TypeError(f"IDs of type {ids.dtype}")
    ids = ids if ids.dtype == pl.String else ids.cast(pl.Int64)
    if ids.null_count() or ids.n_unique() != len(ids) or not ids.is_sorted():
        raise ValueError("IDs that are missing, twice, or not in ascending order")
    return ids


def same_kind(keys: Sequence[Keys]) -> list[Keys]:
    """Bring the IDs of a silo's clients to one kind: whole numbers of a CSV file are texts where others have texts."""
    if len({kind_of(key.ids) for key in keys}) == 1:
        return list(keys)
    texts = next(key for key in keys if kind_of(key.ids) == TEXTS)
    typed = next((key for key in keys if kind_of(key.ids) == NUMBERS and not key.table.is_csv), None)
    if typed:
        raise DataError(
            f"silo '{typed.table.silo}': the IDs of client '{typed.table.client}' are whole numbers ({typed.ids[0]}), "
            f"those of '{texts.table.client}' texts ('{texts.ids[0]}'); write them in the same way"
        )
    return [Keys(key.table, as_kind(key.ids, TEXTS), key.facts) for key in keys]


def align(
    keys: Mapping[str, Sequence[Keys]], handed: Mapping[str, tuple[str, str]], *, may_be_empty: bool = False
) -> tuple[Alignment, dict[str, list[PlacedKeys]]]:
    """Find the IDs that all silos have, and their places at every client.

    Args:
        keys: What the clients of each silo tell.
        handed: What to hand to all silos for each ID, by name: whose, and which column.
        may_be_empty: Whether silos may have none in common.

    Raises:
        DataError: an ID stands for several rows in a silo, silos have IDs of different kinds, or none in common.
    """
    ids = {silo: unique_ids(clients) for silo, clients in keys.items()}
    names = list(ids)
    for name in names[1:]:
        if kind_of(ids[name]) != kind_of(ids[names[0]]):
            text = " and ".join(f"'{silo}' has {_kind(ids[silo])} ({_shown(keys[silo])})" for silo in (names[0], name))
            raise DataError(f"IDs are of different types: silo {text}; write them in the same way in all silos")
    common = common_ids(list(ids.values()))
    if not len(common) and not may_be_empty:
        text = "; ".join(f"'{silo}' has {len(result):,} ({_first(result)})" for silo, result in ids.items())
        raise DataError(f"no ID is in all silos: {text}. Do their ID columns mean the same?")
    bare = Alignment(common, {}, {})
    placed = {silo: bare.place(clients) for silo, clients in keys.items()}
    shares = {silo: {key.table.client: bare.share(key) for key in clients} for silo, clients in placed.items()}
    values = {name: gather_facts(placed[silo], column) for name, (silo, column) in handed.items()}
    return Alignment(common, shares, values), placed


def gather_facts(keys: Sequence[PlacedKeys], column: str) -> pl.Series:
    """Return what a silo's clients tell of the common IDs, in their order."""
    return pl.concat([key.facts[column] for key in keys]).gather(_rows_by_id(keys))


def find_fact(keys: Sequence[PlacedKeys], column: str, value: str) -> str:
    """Say where a value first stands in a column, among rows with common IDs; nothing where that is not known."""
    for key in keys:
        if column not in key.facts:
            continue
        there = (key.facts[column] == value).to_numpy() & (key.places >= 0)
        if there.any():
            place = int(np.argmax(there))
            row = f"at ID {key.ids[place]}" if key.table.settings.aggregate else f"in row {place + 1}"
            return f"; the first '{value}' is {row} of {key.table}"
    return ""


def client_places(keys: Sequence[PlacedKeys]) -> dict[str, Array]:
    """Return, for each client of a silo, the place of every row of its file among the common IDs, or −1."""
    return {key.table.client: key.places for key in keys}


def owners(keys: Sequence[PlacedKeys]) -> Array:
    """Return the number of the client that holds each common ID."""
    owner: Array = np.repeat(np.arange(len(keys)), [len(key.ids) for key in keys])[_rows_by_id(keys)]
    return owner


def _rows_by_id(keys: Sequence[PlacedKeys]) -> Array:
    """Return, for each common ID, its row among the clients' rows one after the other; one client has it."""
    places = np.concatenate([key.places for key in keys])
    held = np.flatnonzero(places >= 0)
    rows = np.empty_like(held)
    rows[places[held]] = held
    return rows


def parts_from(values: pl.Series, column: str) -> Array:
    """Turn the words of a split column into parts."""
    words = {part.word: int(part) for part in Part}
    strange = sorted(set(values.unique().to_list()) - set(words))
    if strange:
        raise DataError(f"data.split_column: '{column}' says {join_names(strange)}; it may say {join_names(words)}")
    return values.replace_strict(words, return_dtype=pl.Int8).to_numpy()


def unique_ids(keys: Sequence[Keys]) -> pl.Series:
    """Return a silo's IDs in ascending order; none may occur twice."""
    ids = pl.concat([key.ids for key in keys])
    if ids.n_unique() == len(ids):
        return ids.sort()
    owner = np.repeat(np.arange(len(keys)), [len(key.ids) for key in keys])
    frame = pl.DataFrame({"id": ids, "owner": owner}).filter(pl.col("id").is_duplicated())
    doubles = frame["id"].unique().sort()
    parts = []
    for identity in doubles.head(5).to_list():
        at = frame.filter(pl.col("id") == identity)["owner"].head(4).to_list()
        parts.append(f"{identity} ({', '.join(keys[k].table.client for k in at)})")
    more = f" and {len(doubles) - 5} more" if len(doubles) > 5 else ""
    table = keys[0].table
    if table.settings.aggregate:
        raise DataError(
            f"silo '{table.silo}': {len(doubles)} IDs have rows at several clients: {', '.join(parts)}{more}; a client "
            "makes one row of its own rows only, so bring those of an ID to one client"
        )
    raise DataError(
        f"silo '{table.silo}': {len(doubles)} IDs stand for several rows: {', '.join(parts)}{more}; an ID may occur "
        f"once in a silo. To make one row of those at a client, set silos.{table.silo}.aggregate"
    )


def common_ids(ids: Sequence[pl.Series]) -> pl.Series:
    """Return the IDs that all lists have, in ascending order; no list has one twice."""
    frames = [pl.DataFrame({"id": own}) for own in ids]
    return reduce(lambda a, b: a.join(b, on="id", how="semi"), frames)["id"].sort()


def id_array(series: pl.Series) -> Array:
    """Return IDs, or texts that go with them, as an array of whole numbers or of texts of one width."""
    if series.dtype == pl.String:
        return series.to_numpy().astype(np.str_)
    return series.to_numpy(writable=True)


def digest(series: pl.Series) -> str:
    """Return a digest of whole numbers or texts without NUL, in their order."""
    if series.dtype == pl.String:
        content = ("texts\0" + (series.str.join("\0").item() or "") if len(series) else "texts").encode()
    else:
        content = b"numbers" + series.cast(pl.Int64).to_numpy().astype("<i8").tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _kind(ids: pl.Series) -> str:
    return "texts" if kind_of(ids) == TEXTS else "whole numbers"


def _shown(keys: Sequence[Keys]) -> str:
    """Show an ID for which those of a silo count as texts, if there is one; else the first ones."""
    for key in keys if kind_of(keys[0].ids) == TEXTS else ():
        odd = key.ids.filter(~key.ids.str.contains(r"^(0|-?[1-9][0-9]*)$"))
        if len(odd):
            return f"'{odd[0]}' at client '{key.table.client}'"
    return _first(pl.concat([key.ids for key in keys]).sort())


def _first(ids: pl.Series) -> str:
    return f"{', '.join(repr(identity) for identity in ids.head(3).to_list())} …"
