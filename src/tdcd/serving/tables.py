"""Predictions from tables with the columns of the training.

IDs are read first, and matched; then every silo's rows are prepared and embedded a batch at a time, and only their
embeddings are kept: memory grows with the number of IDs, not with columns.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tdcd.compute import one_torch_thread
from tdcd.core.streams import borrow_stream
from tdcd.core.task import sum_embeddings
from tdcd.core.topology import Roster, roster_of
from tdcd.data.holdout import Part
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
from tdcd.data.tables.client import ClientTable, encode_rows, for_each
from tdcd.data.tables.drift import ColumnDrift, Drift
from tdcd.data.tables.preparation import Preparation
from tdcd.data.tables.reader import Table
from tdcd.errors import DataError, join_names, nearest
from tdcd.jobs.schema import TableJob
from tdcd.jobs.tables import overlap
from tdcd.serving.explain import shapley_values
from tdcd.serving.frames import class_names, numbered, per_class, prediction_frame, share_columns
from tdcd.training.metrics import measure
from tdcd.training.result import Result

Files = Mapping[str, Sequence[Path | str]]
"""The files of each silo; those under "SILO/CLIENT" are written as that client's files are."""
WITHOUT = "without"
"""The column that marks partial predictions: the silos that were left out."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of samples."""

    frame: pl.DataFrame
    """A row for each ID: the prediction, and probabilities of classes."""
    measures: Mapping[str, float]
    """How good they are, where labels are known."""
    note: str
    """Of whom they are."""
    warnings: tuple[str, ...] = ()
    """Where the rows differ from those of the training."""
    drift: Mapping[str, tuple[ColumnDrift, ...]] = field(default_factory=dict)
    """How each column of each silo compares with the training."""


@dataclass(frozen=True)
class NewTable(Table):
    """A table of new rows, written as those of the training: a model's settings stay as they are."""

    def __str__(self) -> str:
        return f"silo '{self.silo}' ({self.path})"

    def advise(self, key: str) -> str:
        """Say how to have it read as it is written."""
        return f"Its {key} must be that of the training's files; --table {self.silo}/CLIENT=FILE reads it as CLIENT's"


@dataclass(frozen=True)
class Opened:
    """New tables of some silos, with their IDs matched."""

    tables: Mapping[str, Sequence[ClientTable]]
    keys: Mapping[str, Sequence[PlacedKeys]]
    ids: pl.Series
    """Those that all of these silos have, in ascending order."""
    note: str
    label: tuple[str, str] | None
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


def _names(files: Files, silo: str, keys: Sequence[PlacedKeys]) -> list[str]:
    given: dict[str, str] = {}
    for key, paths in files.items():
        name, _, client = key.partition("/")
        given |= {str(path): client or Path(path).name for path in paths if name == silo}
    return [given[key.table.client] for key in keys]


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
) -> Predictions:
    """Predict from tables. See ``Model``; ``name`` is what errors call it."""
    opened = open_tables(name, job, result, files, without)
    embedded, drifts = embed_tables(result, preparations, opened, on_progress)
    scores = sum_embeddings(embedded)
    objective = result.objective
    frame = prediction_frame(objective, classes, opened.ids, scores)
    more: dict[str, object] = {}
    if shares:
        more |= share_columns(objective, classes, scores, embedded)
    if shapley:
        for silo, values in shapley_values(objective, embedded).items():
            what = f"Shapley value of {silo}"
            if objective.meaning == "numbers":
                more |= numbered(what, values.numpy())
            else:
                more |= per_class(f"{what} for", class_names(classes, scores.shape[1]), values.numpy())
    if without:
        more[WITHOUT] = pl.Series([", ".join(sorted(without))]).new_from_index(0, len(opened.ids))
    frame = frame.with_columns(**more) if more else frame  # type: ignore[arg-type]
    measures = {}
    if opened.label:
        labels = objective.prepare(opened.labels(classes), scores.shape[1], result.settings.dtype)
        measures = measure(objective, scores, labels)
    note = opened.note + (f"; partial: without {join_names(sorted(without))}" if without else "")
    drift = {silo: own.columns() for silo, own in drifts.items()}
    return Predictions(frame, measures, note, warnings_of(drifts), drift)


def warnings_of(drifts: Mapping[str, Drift]) -> tuple[str, ...]:
    """Tell where rows differ from those of the training."""
    return tuple(line for silo, own in drifts.items() for line in own.warnings(silo))


def open_tables(name: str, job: TableJob, result: Result, files: Files, without: Sequence[str] | None = None) -> Opened:
    """Open the tables of all silos, but for some, and match their IDs.

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

    def keys_of(silo: str) -> list[Keys]:
        columns = [label] if label and silo == owner else []
        return same_kind([client.read_keys(columns) for client in tables[silo]])

    alignment, keys = align({silo: keys_of(silo) for silo in tables}, {})
    return Opened(tables, keys, alignment.ids, overlap(alignment), (owner, label) if owner and label else None)


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


def embed_tables(
    result: Result,
    preparations: Mapping[str, Preparation],
    opened: Opened,
    on_progress: Callable[[int, int], None] = lambda done, rows: None,  # noqa: ARG005
) -> tuple[dict[str, Tensor], dict[str, Drift]]:
    """Prepare and embed all rows, a batch at a time; return each silo's embeddings (M, E), and how its rows differ."""
    silos = [silo for silo in opened.tables if silo in preparations]
    count = len(opened.ids)
    embedded = {silo: torch.empty(count, result.description.embedding, dtype=result.settings.dtype) for silo in silos}
    drifts = {silo: Drift(preparations[silo]) for silo in silos}
    places = {silo: client_places(opened.keys[silo]) for silo in silos}
    done, lock = [0], Lock()

    def embed(silo: str, client: ClientTable) -> None:
        own = Drift(preparations[silo])
        with one_torch_thread():
            for rows, numbers in client.encode(preparations[silo], places[silo][client.table.client], own):
                embedded[silo][torch.from_numpy(rows)] = result.embed(silo, torch.from_numpy(numbers))
                with lock:
                    done[0] += len(rows)
                    on_progress(done[0], count * len(silos))
        with lock:
            drifts[silo].add(own)

    pairs = [(silo, client) for silo in silos for client in opened.tables[silo]]
    with ExitStack() as borrowed:
        for device in {result.networks[silo].device for silo in silos}:
            borrowed.enter_context(borrow_stream(device))
        list(for_each(embed, *zip(*pairs, strict=True)))
    return embedded, drifts


def encode_tables(preparations: Mapping[str, Preparation], opened: Opened) -> dict[str, Tensor]:
    """Return the prepared rows of all silos, in the order of the IDs."""
    parts = np.full(len(opened.ids), Part.TEST)
    return {
        silo: torch.from_numpy(encode_rows(own, preparations[silo], client_places(opened.keys[silo]), parts)[Part.TEST])
        for silo, own in opened.tables.items()
        if silo in preparations
    }
