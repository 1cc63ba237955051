"""How hubs find the IDs that all silos have, and hand over what goes with them."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from tdcd.compute import cores
from tdcd.data.tables.alignment import (
    Alignment,
    Keys,
    PlacedKeys,
    common_ids,
    digest,
    gather_facts,
    kind_of,
    unique_ids,
)
from tdcd.errors import DataError, join_names
from tdcd.jobs.schema import TableJob
from tdcd.jobs.tables import LABEL, PART, columns_to_hand_over, has_split_column
from tdcd.sites.hub.peers import Peers
from tdcd.sites.hub.psi import Done, Member, check_set, common_places, ring
from tdcd.sites.messages.frames import Stamp
from tdcd.sites.messages.types import AllIDs, CommonPlaces, Digests, HandedOver, MaskedPoints

Progress = Callable[[int, int], None]
"""Takes the points that are masked, and how many there are."""


def describe_ids(job: TableJob, keys: list[Keys]) -> dict[str, Any]:
    """Return what a hub tells all others before they align."""
    ids = unique_ids(keys)
    split = has_split_column(job.data, [key.table for key in keys])
    return {"kind": kind_of(ids), "count": len(ids), "split": split}


async def align_silos(
    job: TableJob,
    silo: str,
    keys: list[Keys],
    everybody: Mapping[str, Mapping[str, Any]],
    peers: Peers,
    progress: Progress,
    folder: Path | None = None,
) -> Alignment:
    """Find the common IDs together with all other hubs.

    Args:
        job: The job.
        silo: The own one.
        keys: What its clients tell.
        everybody: What all hubs brought.
        peers: The other hubs.
        progress: Follows the masking.
        folder: Where to keep what is done until all is: a hub that is started again goes on.

    Raises:
        DataError: there are none, or silos contradict each other.
    """
    kinds = {name: text["kind"] for name, text in everybody.items()}
    if len(set(kinds.values())) > 1:
        text = join_names(f"'{name}' has {'texts' if kind == 'U' else 'whole numbers'}" for name, kind in kinds.items())
        raise DataError(f"IDs are of different types: silo {text}; write them in the same way in all silos")
    ids = unique_ids(keys)
    counts = {name: int(text["count"]) for name, text in everybody.items()}
    if job.deployment.alignment == "private":
        done = Done(folder, f"{silo} {digest(ids)}")
        common = await _privately(silo, ids, counts, peers, progress, Member(cores(), done))
    else:
        common = await _plainly(ids, peers)
    if not len(common):
        text = join_names(f"'{name}' has {count:,}" for name, count in counts.items())
        raise DataError(f"no ID is in all silos: {text}. Do their ID columns mean the same?")
    found = Alignment(common, {}, {})
    placed = found.place(keys)
    shares = {silo: {key.table.client: found.share(key) for key in placed}}
    splits = [name for name in sorted(job.silos) if everybody[name]["split"]]
    if job.data.split_column and not splits:
        raise DataError(f"data.split_column: no silo's tables have a column '{job.data.split_column}'")
    wanted = columns_to_hand_over(job, splits)
    handed = await _handed(silo, len(common), placed, wanted, peers)
    result = Alignment(common, shares, handed)
    columns: dict[str, dict[str, str | None]] = {
        LABEL: {name: own.label for name, own in job.silos.items() if own.label},
        PART: dict.fromkeys(splits, job.data.split_column),
    }
    await _uncontradicted(silo, placed, columns, peers)
    return result


async def _plainly(ids: pl.Series, peers: Peers) -> pl.Series:
    """Tell each other all IDs."""
    replies = await peers.exchange(AllIDs(ids))
    return common_ids([ids, *(reply.ids for reply in replies.values())])


async def _privately(
    silo: str, ids: pl.Series, counts: Mapping[str, int], peers: Peers, progress: Progress, member: Member
) -> pl.Series:
    """Let all sets go round the ring of hubs. See psi."""
    names = sorted(counts)
    total, done = sum(counts.values()), 0

    def advanced(points: int) -> None:
        nonlocal done
        done += points
        progress(done, total)

    def place(origin: str) -> int:
        return ring(names, origin).index(silo)

    def at(origin: str, number: int) -> str:
        return ring(names, origin)[number]

    def about(origin: str, *, full: bool = False) -> Stamp:
        """Return the stamp of messages about a silo's set: on its way, or masked by all."""
        return Stamp(attempt=int(full), step=names.index(origin))

    last = len(names) - 1
    full = {}
    for origin in sorted(names, key=place):  # one's own first, then as they come
        if origin == silo:
            points = await asyncio.to_thread(member.hashed, ids)
        else:
            points = (await peers.receive(at(origin, place(origin) - 1), MaskedPoints, about(origin))).points.numpy()
        masked = await asyncio.to_thread(member.masked, origin, points, advanced, counts[origin])
        done_here = place(origin) == last
        to = peers.chair if done_here else at(origin, place(origin) + 1)
        if done_here and to == silo:
            full[origin] = masked
        else:
            await peers.send(to, MaskedPoints(torch.from_numpy(masked)), about(origin, full=done_here))
    places = {}
    if peers.chair == silo:
        for origin in names:
            if origin not in full:
                reply = await peers.receive(at(origin, last), MaskedPoints, about(origin, full=True))
                full[origin] = reply.points.numpy()
                check_set(origin, full[origin], counts[origin])
        places = await asyncio.to_thread(common_places, full)
        for origin in names:
            if at(origin, last) != silo:
                common = torch.from_numpy(places.pop(origin))
                await peers.send(at(origin, last), CommonPlaces(common), about(origin))
    mine = np.empty(0, dtype=np.int64)
    for origin in sorted(names, key=place, reverse=True):
        if origin not in places:
            sender = peers.chair if place(origin) == last else at(origin, place(origin) + 1)
            places[origin] = (await peers.receive(sender, CommonPlaces, about(origin))).places.numpy()
        before = member.unshuffled(origin, places[origin])
        if origin == silo:
            mine = before
        else:
            back = CommonPlaces(torch.from_numpy(before))
            await peers.send(at(origin, place(origin) - 1), back, about(origin))
    return ids.gather(mine)


async def _handed(
    silo: str, common: int, keys: list[PlacedKeys], wanted: Mapping[str, tuple[str, str]], peers: Peers
) -> dict[str, pl.Series]:
    """Hand over labels and parts, in the order of the common IDs."""
    result = {}
    for number, (name, (owner, column)) in enumerate(sorted(wanted.items())):
        if owner == silo:
            result[name] = gather_facts(keys, column)
            await peers.send_all(HandedOver(result[name]), Stamp(step=number))
        else:
            result[name] = (await peers.receive(owner, HandedOver, Stamp(step=number))).values
        if len(result[name]) != common:
            raise DataError(f"silo '{owner}' hands over {len(result[name])} values of '{name}' for {common} common IDs")
    return result


async def _uncontradicted(
    silo: str, keys: list[PlacedKeys], columns: Mapping[str, Mapping[str, str | None]], peers: Peers
) -> None:
    """Check that silos that know the same thing say the same of it: by a digest, which tells nothing more."""
    known = {
        what: digest(gather_facts(keys, column or ""))
        for what, own in columns.items()
        if len(own) > 1 and (column := own.get(silo))
    }
    replies = await peers.exchange(Digests(known))
    for what, mine in known.items():
        for other in columns[what]:
            if other != silo and replies[other].known.get(what) != mine:
                raise DataError(f"silos '{silo}' and '{other}' contradict each other: a {what} differs for a common ID")
