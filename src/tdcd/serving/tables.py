"""Predictions from tables with the columns of the training.

IDs are read first, and matched; then every silo's rows are prepared and embedded a batch at a time, and only their
embeddings are kept. Of large tables, IDs are matched a part at a time, and all that grows with their number is on disk.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tdcd.compute import one_torch_thread
from tdcd.core.streams import borrow_stream
from tdcd.core.task import sum_embeddings
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.data.tables.client import ClientTable, encode_rows, for_each
from tdcd.data.tables.drift import ColumnDrift, Drift
from tdcd.data.tables.preparation import Preparation
from tdcd.errors import DataError, join_names
from tdcd.jobs.schema import TableJob
from tdcd.jobs.tables import overlap
from tdcd.serving.explain import shapley_values
from tdcd.serving.frames import class_names, numbered, per_class, prediction_frame, share_columns
from tdcd.serving.opened import Files, Matched, Opened, open_tables
from tdcd.training.metrics import measure
from tdcd.training.result import Result

WITHOUT = "without"
"""The column that marks partial predictions: the silos that were left out."""
Places = Mapping[str, Mapping[str, Array]]
"""For the files of each silo, the place of every row among the common IDs, or −1."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of samples."""

    frame: pl.DataFrame
    """A row for each ID: the prediction, and probabilities of classes; without rows where they went to a file."""
    count: int
    """How many there are."""
    measures: Mapping[str, float]
    """How good they are, where labels are known."""
    note: str
    """Of whom they are."""
    warnings: tuple[str, ...] = ()
    """Where the rows differ from those of the training."""
    drift: Mapping[str, tuple[ColumnDrift, ...]] = field(default_factory=dict)
    """How each column of each silo compares with the training."""


@dataclass(frozen=True)
class Room:
    """Where arrays lie that grow with the number of rows: in memory, or in a folder."""

    folder: Path | None = None

    def array(self, name: str, shape: tuple[int, ...], dtype: type[np.generic] | np.dtype[Any]) -> Array:
        """Return an array to be filled."""
        if self.folder is None or not all(shape):
            return np.empty(shape, dtype)
        return np.memmap(self.folder / name, dtype, mode="w+", shape=shape)


@dataclass(frozen=True)
class Found:
    """The common IDs of new tables."""

    ids: Sequence[Callable[[], pl.Series]]
    """How to get those of each part, one after the other in ascending order."""
    count: int
    places: Places
    labels: Tensor | None
    """Where the tables have them."""


def predict_tables(
    name: str,
    job: TableJob,
    result: Result,
    classes: Sequence[str],
    preparations: Mapping[str, Preparation],
    files: Files,
    *,
    without: Sequence[str],
    shares: bool,
    shapley: bool,
    on_progress: Callable[[int, int], None],
    write: Callable[[pl.DataFrame], None] | None = None,
    scratch: Path | None = None,
) -> Predictions:
    """Predict from tables. See ``Model``; ``name`` is what errors call it.

    Predictions go to ``write``, a part at a time, and not into a frame, where that is given.
    """
    opened = open_tables(name, job, result, files, without)
    with TemporaryDirectory(prefix=".tdcd-", dir=scratch, ignore_cleanup_errors=True) as folder:
        parts = opened.match_parts(Path(folder))
        first, second = next(parts), next(parts, None)
        room = Room(Path(folder) if second else None)
        found = _find(opened, chain([first], [second] if second else [], parts), classes, room)
        embedded, drifts = embed_tables(
            result, preparations, opened.tables, found.places, found.count, on_progress, room
        )

        def frame_of(ids: pl.Series, own: Mapping[str, Tensor]) -> pl.DataFrame:
            scores = sum_embeddings(own)
            frame = prediction_frame(result.objective, classes, ids, scores)
            more = dict(_columns(result, classes, scores, own, shares=shares, shapley=shapley))
            if without:
                more[WITHOUT] = pl.Series([", ".join(sorted(without))]).new_from_index(0, len(ids))
            return frame.with_columns(**more) if more else frame  # type: ignore[arg-type]

        frames, start = [], 0
        for get in found.ids:
            ids = get()
            frame = frame_of(ids, {silo: z[start : start + len(ids)] for silo, z in embedded.items()})
            start += len(ids)
            frames.append(frame if write is None else frame.clear())
            if write is not None:
                write(frame)
        measures = {}
        if found.labels is not None:
            scores = sum_embeddings(embedded)
            labels = result.objective.prepare(found.labels, scores.shape[1], result.settings.dtype)
            measures = measure(result.objective, scores, labels)
    note = overlap(found.count, opened.sizes) + (f"; partial: without {join_names(sorted(without))}" if without else "")
    drift = {silo: own.columns() for silo, own in drifts.items()}
    return Predictions(pl.concat(frames), found.count, measures, note, warnings_of(drifts), drift)


def _find(opened: Opened, parts: Iterator[Matched], classes: Sequence[str], room: Room) -> Found:
    """Gather what is matched part by part."""
    places: dict[str, dict[str, Array]] = {silo: {} for silo in opened.tables}
    ids: list[Callable[[], pl.Series]] = []
    labels: list[Tensor] = []
    count = 0
    for number, part in enumerate(parts):
        if part.rows is None:
            places = part.places()
        else:
            for silo, keys in part.keys.items():
                for k, (key, rows) in enumerate(zip(keys, part.rows[silo], strict=True)):
                    client = key.table.client
                    if client not in places[silo]:
                        places[silo][client] = room.array(
                            f"places-{silo}-{k}", (opened.tables[silo][k].size,), np.int64
                        )
                        places[silo][client][:] = -1
                    places[silo][client][rows] = np.where(key.places >= 0, key.places + count, -1)
        if opened.label:
            labels.append(_labels(opened, part, classes))
        count += len(part.ids)
        ids.append(_keep(part.ids, room, f"ids-{number}.arrow"))
    return Found(ids, count, places, torch.cat(labels) if labels else None)


def _labels(opened: Opened, part: Matched, classes: Sequence[str]) -> Tensor:
    try:
        return part.labels(classes)
    except DataError:
        if part.rows is not None:
            opened.match().labels(classes)  # names the first that does not fit, of all
        raise


def _keep(ids: pl.Series, room: Room, name: str) -> Callable[[], pl.Series]:
    """Keep some IDs; return how to get them."""
    if room.folder is None:
        return lambda: ids
    path = room.folder / name
    pl.DataFrame({"id": ids}).write_ipc(path)
    return lambda: pl.read_ipc(path)["id"]


def _columns(
    result: Result,
    classes: Sequence[str],
    scores: Tensor,
    embedded: Mapping[str, Tensor],
    *,
    shares: bool,
    shapley: bool,
) -> Iterator[tuple[str, object]]:
    """Yield columns that explain predictions."""
    objective = result.objective
    if shares:
        yield from share_columns(objective, classes, scores, embedded).items()
    if shapley:
        for silo, values in shapley_values(objective, embedded).items():
            what = f"Shapley value of {silo}"
            if objective.meaning == "numbers":
                yield from numbered(what, values.numpy()).items()
            else:
                yield from per_class(f"{what} for", class_names(classes, scores.shape[1]), values.numpy()).items()


def warnings_of(drifts: Mapping[str, Drift]) -> tuple[str, ...]:
    """Tell where rows differ from those of the training."""
    return tuple(line for silo, own in drifts.items() for line in own.warnings(silo))


def embed_tables(
    result: Result,
    preparations: Mapping[str, Preparation],
    tables: Mapping[str, Sequence[ClientTable]],
    places: Places,
    count: int,
    on_progress: Callable[[int, int], None] = lambda done, rows: None,  # noqa: ARG005
    room: Room = Room(),  # noqa: B008 - frozen
) -> tuple[dict[str, Tensor], dict[str, Drift]]:
    """Prepare and embed all rows, a batch at a time; return each silo's embeddings (M, E), and how its rows differ.

    Args:
        result: The networks and weights.
        preparations: How the columns of each silo become numbers.
        tables: The files of each silo.
        places: Of their rows.
        count: The number of common IDs, M.
        on_progress: Is called with how many rows of how many have been embedded.
        room: Where embeddings lie.
    """
    silos = [silo for silo in tables if silo in preparations]
    kind = torch.empty(0, dtype=result.settings.dtype).numpy().dtype
    embedded = {silo: room.array(f"embedded-{silo}", (count, result.description.embedding), kind) for silo in silos}
    drifts = {silo: Drift(preparations[silo]) for silo in silos}
    done, lock = [0], Lock()

    def embed(silo: str, client: ClientTable) -> None:
        own = Drift(preparations[silo])
        with one_torch_thread():
            for rows, numbers in client.encode(preparations[silo], places[silo][client.table.client], own):
                embedded[silo][rows] = result.embed(silo, torch.from_numpy(numbers)).numpy()
                with lock:
                    done[0] += len(rows)
                    on_progress(done[0], count * len(silos))
        with lock:
            drifts[silo].add(own)

    pairs = [(silo, client) for silo in silos for client in tables[silo]]
    with ExitStack() as borrowed:
        for device in {result.networks[silo].device for silo in silos}:
            borrowed.enter_context(borrow_stream(device))
        list(for_each(embed, *zip(*pairs, strict=True)))
    return {silo: torch.from_numpy(z) for silo, z in embedded.items()}, drifts


def encode_tables(preparations: Mapping[str, Preparation], opened: Opened, matched: Matched) -> dict[str, Tensor]:
    """Return the prepared rows of all silos, in the order of the IDs."""
    parts, places = np.full(len(matched.ids), Part.TEST), matched.places()
    return {
        silo: torch.from_numpy(encode_rows(own, preparations[silo], places[silo], parts)[Part.TEST])
        for silo, own in opened.tables.items()
        if silo in preparations
    }
