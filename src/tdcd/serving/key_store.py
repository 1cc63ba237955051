"""IDs of tables that are too large for memory: on disk, to be matched a part at a time.

A first pass over the IDs finds out how they are written, and where to cut them: a sample tells which IDs divide all of
them into parts of about equal size. A second pass writes every batch to a file of its own, in the order of its IDs, so
that a part is a piece of each file. Parts follow one another: what is matched part by part is in ascending order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.tables.alignment import TEXTS, Keys, as_kind, kind_of
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.reader import TableHead

SAMPLED = 500
"""IDs of a part that are looked at to find where to cut."""
FACT = "fact "
"""Begins the names of columns that go with IDs."""


@dataclass(frozen=True)
class _Piece:
    """The keys of some rows of a file, on disk."""

    path: Path
    cuts: tuple[int, ...]
    """Where each part begins, and the last ends."""

    def part(self, number: int) -> pl.DataFrame:
        """Return those of a part."""
        begin, end = self.cuts[number : number + 2]
        return pl.scan_ipc(self.path).slice(begin, end - begin).collect()


@dataclass(frozen=True)
class KeyStore:
    """The keys of the files of each silo."""

    pieces: Mapping[str, Sequence[tuple[TableHead, Sequence[_Piece]]]]

    @classmethod
    def of(
        cls,
        tables: Mapping[str, Sequence[ClientTable]],
        columns: Callable[[str], Sequence[str]],
        parts: int,
        folder: Path,
    ) -> "KeyStore | None":
        """Read the IDs of some tables, and the columns that go with them; nothing if they are of different kinds.

        Args:
            tables: The files of each silo.
            columns: Of a silo: what goes with its IDs.
            parts: How many parts to cut them into.
            folder: Where to keep them.
        """
        step = max(1, sum(client.table.rows for own in tables.values() for client in own) // (parts * SAMPLED))
        kinds, sampled = set[str](), list[pl.Series]()
        for own in tables.values():
            for client in own:
                some = [piece.ids.gather_every(step) for piece in client.key_pieces()]
                found = {kind_of(ids) for ids in some}
                kinds.add(TEXTS if TEXTS in found else found.pop())
                sampled += some
        if len(kinds) > 1:
            return None
        (kind,) = kinds
        ids = pl.concat([as_kind(own, kind) for own in sampled]).sort()
        cuts = ids.gather(np.linspace(0, len(ids), parts, endpoint=False).astype(np.int64)[1:])
        stored = {
            silo: [
                (client.table, _written(client, columns(silo), kind, cuts, folder / f"{silo}-{number}"))
                for number, client in enumerate(own)
            ]
            for silo, own in tables.items()
        }
        return cls(stored)

    def part(self, number: int) -> tuple[dict[str, list[Keys]], dict[str, list[Array]]]:
        """Return the keys of a part by silo, and the numbers of their rows in each file."""
        keys: dict[str, list[Keys]] = {}
        rows: dict[str, list[Array]] = {}
        for silo, own in self.pieces.items():
            frames = [pl.concat([piece.part(number) for piece in pieces], rechunk=True) for _, pieces in own]
            rows[silo] = [frame["row"].to_numpy() for frame in frames]
            keys[silo] = [
                Keys(table, frame["id"], {name.removeprefix(FACT): frame[name] for name in frame.columns[2:]})
                for (table, _), frame in zip(own, frames, strict=True)
            ]
        return keys, rows


def _written(client: ClientTable, columns: Sequence[str], kind: str, cuts: pl.Series, folder: Path) -> list[_Piece]:
    """Write the keys of a file, a batch of its rows at a time."""
    folder.mkdir()
    pieces, done = [], 0
    for number, keys in enumerate(client.key_pieces(columns)):
        count = len(keys.ids)
        frame = pl.DataFrame(
            {"id": as_kind(keys.ids, kind), "row": np.arange(done, done + count)}
            | {FACT + name: keys.facts[name] for name in columns}
        ).sort("id", maintain_order=True)
        places = frame["id"].search_sorted(cuts, side="left").to_list()
        path = folder / f"{number}.arrow"
        frame.write_ipc(path)
        pieces.append(_Piece(path, (0, *places, count)))
        done += count
    return pieces
