"""From a job over tables to the rows that it trains on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tdcd.core.topology import Roster, roster_of
from tdcd.data.arrays import Array
from tdcd.data.federation import Federation
from tdcd.data.holdout import Part
from tdcd.data.label_encoding import LabelError, encode_labels, same_numbers
from tdcd.data.rows import ByColumn, RowSplit, SiloRows
from tdcd.data.samples import Samples
from tdcd.data.sources import StoredRows
from tdcd.data.tables.alignment import (
    Alignment,
    Keys,
    PlacedKeys,
    align,
    client_places,
    find_fact,
    gather_facts,
    id_array,
    owners,
    parts_from,
    same_kind,
)
from tdcd.data.tables.client import KEPT, ClientTable, Each, TableRows, encode_rows, for_each, read_keys
from tdcd.data.tables.features import feature_columns
from tdcd.data.tables.preparation import fit
from tdcd.data.tables.reader import Table, TableHead
from tdcd.errors import DataError, JobError, join_names
from tdcd.jobs.data import JobData, Log, add_validation, count, draw_parts, row_splits
from tdcd.jobs.schema import Job, TableJob
from tdcd.jobs.sources import TableData

DEALT = "all"
"""The name of the one file whose rows are dealt to simulated clients."""
Placed = Mapping[str, Sequence[PlacedKeys]]
"""What the clients of each silo tell, with the places of their rows among the common IDs."""
LABEL, PART = "label", "part"
"""What is handed over, by its name in an alignment."""


@dataclass(frozen=True)
class OpenTables:
    """A job over tables, opened."""

    job: TableJob
    clients: dict[str, tuple[ClientTable, ...]]
    """Those of each silo, with their files."""
    splits: tuple[str, ...]
    """The silos whose tables have the column that says what is held out."""
    log: Log
    each: Each = for_each
    """Where their files are read."""

    @classmethod
    def open(cls, job: Job, log: Log, each: Each = for_each) -> "OpenTables":
        """Open a job's tables and check their columns, before anything else is read."""
        if not isinstance(job, TableJob):
            raise JobError(f'data.source is "{job.data.source}", not "tables": its silos need no alignment')
        tables = {}
        for name, silo in job.silos.items():
            if isinstance(silo.clients, list):
                raise JobError(
                    f"silos.{name}.clients names clients without files, as is enough for tdcd hub and tdcd client. "
                    f'To have all in one place, name the files: clients = {{ {silo.clients[0]} = "FILE.csv" }}'
                )
            files = {client: own.file for client, own in silo.files.items()} or {DEALT: silo.file or ""}
            tables[name] = tuple(
                Table(name, client, Path(path), silo.settings_of(client)) for client, path in files.items()
            )
            for table in tables[name]:
                for key in ("id", "row_id", "label", "order"):
                    if column := getattr(silo, key):
                        table.need(column, key)
        column = job.data.split_column
        splits = tuple(sorted(silo for silo, files in tables.items() if has_split_column(job.data, files)))
        if column and not splits:
            raise DataError(f"data.split_column: no silo's tables have a column '{column}'")
        clients = {silo: tuple(ClientTable(table, KEPT // len(own)) for table in own) for silo, own in tables.items()}
        return cls(job, clients, splits, log, each)

    def align(self) -> tuple[Alignment, Placed]:
        """Find the common IDs, and hand over what all silos need to know of them."""
        alignment, keys = align(self._keys(), columns_to_hand_over(self.job, self.splits))
        self._check(alignment, keys)
        return alignment, keys

    def alignment(self) -> tuple[Alignment, Placed]:
        """Read the job's alignment and verify it at every client; align if it has none."""
        if self.job.data.alignment is None:
            return self.align()
        path = Path(self.job.data.alignment)
        result = Alignment.load(path)
        keys = result.verify(self._keys(), str(path))
        wanted = columns_to_hand_over(self.job, self.splits)
        if set(wanted) != set(result.handed):
            parts = [join_names(sorted(names)) or "nothing" for names in (result.handed, wanted)]
            raise DataError(
                f"{path}: it hands over {parts[0]}, the job wants {parts[1]}; align again with: tdcd align JOB.toml"
            )
        for name, (silo, column) in wanted.items():
            now = gather_facts(keys[silo], column)
            if not now.equals(result.handed[name]):
                raise DataError(
                    f"{path}: column '{column}' of silo '{silo}' has changed since it was made; "
                    "align again with: tdcd align JOB.toml"
                )
        self._check(result, keys)
        return result, keys

    def labels(self, alignment: Alignment, keys: Placed) -> pl.Series:
        """Return the label of every common ID."""
        silo = self.job.labels.label_holder or next(iter(self.clients))
        return labels_of_ids(self.job, silo, alignment, keys[silo])

    def features(self, silo: str) -> list[str]:
        """Return a silo's columns of features."""
        return silo_features(self.job, silo, [own.table for own in self.clients[silo]], self.dealt_by(silo))

    def dealt_by(self, silo: str) -> str | None:
        """Return the column by which a silo's rows are dealt to simulated clients, if they are."""
        own = self.job.silos[silo]
        split = own.rows or self.job.data.rows
        return split.column if own.file and isinstance(split, ByColumn) else None

    def _keys(self) -> dict[str, list[Keys]]:
        """Read what every client tells to be aligned."""
        result = {}
        for silo, clients in self.clients.items():
            columns = [self.job.silos[silo].label, self.job.data.split_column if silo in self.splits else None]
            if column := self.dealt_by(silo):
                columns.append(clients[0].table.need(column, "rows.column"))
            wanted = [column for column in columns if column]
            known, keys = [], []
            for own, read in self.each(read_keys, clients, repeat(wanted)):
                self.log(f"IDs of {silo}, {own.table.client}")
                known.append(own)
                keys.append(read)
            self.clients[silo] = tuple(known)
            result[silo] = same_kind(keys)
        return result

    def _check(self, alignment: Alignment, keys: Placed) -> None:
        """Check that silos that know the same thing say the same of it."""
        owners = {silo: self.job.silos[silo].label for silo in self.clients if self.job.silos[silo].label}
        known = {"label": owners, "part": dict.fromkeys(self.splits, self.job.data.split_column)}
        for what, columns in known.items():
            if len(columns) < 2:  # nobody to contradict
                continue
            values = {silo: gather_facts(keys[silo], column or "") for silo, column in columns.items()}
            first = next(iter(values))
            for silo, result in values.items():
                differ = result != values[first]
                if differ.any():
                    raise DataError(
                        f"silos '{first}' and '{silo}' contradict each other: the {what} of {int(differ.sum())} IDs "
                        f"differs: {join_names(alignment.ids.filter(differ).to_list())}"
                    )


def has_split_column(data: TableData, tables: Sequence[TableHead]) -> bool:
    """Tell whether a silo's tables have the column that says what is held out: all of them, or none.

    Raises:
        DataError: some have it.
    """
    column = data.split_column
    lacking = [table for table in tables if column not in table.header]
    if column is None or len(lacking) == len(tables):
        return False
    if lacking:
        raise DataError(f"{lacking[0]}: it has no column '{column}' (data.split_column), as others of its silo do")
    return True


def silo_features(job: TableJob, silo: str, tables: Sequence[TableHead], dealt_by: str | None = None) -> list[str]:
    """Return a silo's columns of features: all that mean nothing else to the job."""
    own = job.silos[silo]
    also = {own.id: "the ID", own.row_id: "the ID of a row", own.label: "the label", dealt_by: "what rows are dealt by"}
    if has_split_column(job.data, tables):
        also[job.data.split_column] = "what says what is held out"
    known = {column: what for column, what in also.items() if column}
    return feature_columns(tables, known, none=own.label is not None and job.labels.silo == silo)


def labels_of_ids(job: TableJob, silo: str, alignment: Alignment, keys: Sequence[PlacedKeys]) -> pl.Series:
    """Return the label of every common ID: as was handed over with it, or as a silo has it."""
    if LABEL in alignment.handed:
        return alignment.handed[LABEL]
    return gather_facts(keys, job.silos[silo].label or "")


def encode_silo_labels(
    job: TableJob, silo: str, texts: pl.Series, keys: Sequence[PlacedKeys]
) -> tuple[Array, tuple[str, ...]]:
    """Turn labels of the common IDs into those of the loss, and name the classes.

    Raises:
        DataError: they do not fit; names the column, and the client and the row where ``keys`` show them.
    """
    column = job.silos[silo].label or ""
    try:
        return encode_labels(texts, job.training.objective.meaning, job.labels.positive, job.labels.classes)
    except DataError as error:
        where = ""
        if isinstance(error, LabelError):
            where = find_fact(keys, column, error.label) or f"; the hub of silo '{silo}' names the client and the row"
        raise DataError(f"silo '{silo}', column '{column}': {error}{where}") from error


def parts_of_ids(job: TableJob, alignment: Alignment, where: str) -> Array:
    """Return the part of every common ID: as was handed over with it, or drawn."""
    if PART in alignment.handed:
        parts = add_validation(parts_from(alignment.handed[PART], job.data.split_column or ""), job.data, where)
    else:
        parts = draw_parts(id_array(alignment.ids), job.data, where)
    if not (parts == Part.TRAIN).any():
        raise DataError(f"{where}: none of the {len(parts)} common IDs is for training")
    return parts


def columns_to_hand_over(job: TableJob, splits: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Say what is handed to all silos with the common IDs: whose column.

    Args:
        job: The job.
        splits: The silos whose tables have the column that says what is held out.

    Raises:
        JobError: nobody has labels, or nobody may hand them over.
    """
    labels = job.labels
    owners = job.label_owners()
    if labels.silo is not None and labels.silo not in owners:
        raise JobError(f"labels.silo: silo '{labels.silo}' names no column of labels (silos.{labels.silo}.label)")
    if not owners:
        raise JobError("no silo has labels: name the column that holds them, silos.NAME.label")
    handed = {}
    lacking = [silo for silo in job.silos if silo not in owners]
    if lacking and not labels.private:
        if labels.sharing is None:
            raise JobError(
                f"only silo {join_names(owners)} has labels. If {join_names(lacking)} may be handed them, say so: "
                f'labels = {{ silo = "{owners[0]}", sharing = "shared" }}; with "exact" or "stale" they stay there'
            )
        if labels.silo is None and len(owners) > 1:
            raise JobError(f"labels.silo: say whose labels are handed over; {join_names(owners)} have them")
        owner = labels.silo or owners[0]
        handed[LABEL] = (owner, job.silos[owner].label or "")
    if splits:
        handed[PART] = (splits[0], job.data.split_column or "")
    return handed


def from_tables(job: TableJob, where: str, log: Log, at_nodes: Each | None = None) -> JobData:
    """Read a job's tables, align and prepare them. See ``load_data``."""
    opened = OpenTables.open(job, log, at_nodes or for_each)
    columns = {silo: result for silo in opened.clients if (result := opened.features(silo))}
    if not columns:
        raise DataError("no silo's tables have a column of features")
    splits = row_splits(job, [silo for silo in job.silos if job.silos[silo].file], where)
    alignment, keys = opened.alignment()
    parts = parts_of_ids(job, alignment, where)
    owner = job.labels.silo or next(silo for silo in job.silos if job.silos[silo].label)
    labels, classes = encode_silo_labels(job, owner, opened.labels(alignment, keys), keys[owner])
    ids = {part: id_array(alignment.ids.filter(pl.Series(parts == part))) for part in Part if (parts == part).any()}
    holders = {silo: _holders(own, parts) for silo, own in keys.items() if silo not in splits}
    rosters = {
        silo: _dealt(opened, silo, splits[silo], alignment, own, parts, labels)
        if silo in splits
        else holders[silo][Part.TRAIN]
        for silo, own in keys.items()
    }
    places = {silo: client_places(keys[silo]) for silo in columns}
    del keys  # a million texts take as much memory as their rows
    preparations, rows, stored = {}, dict[str, Mapping[Part, Tensor]](), dict[str, StoredRows]()
    for silo, features in columns.items():
        clients, own, surveys = opened.clients[silo], places.pop(silo), []
        if at_nodes:  # what is parsed would be kept there
            clients = tuple(replace(client, keep=0) for client in clients)
        each_place = [own[client.table.client] for client in clients]
        for survey in opened.each(ClientTable.survey, clients, repeat(features), each_place, repeat(parts)):
            log(f"columns of {silo}, {survey.table.client}")
            surveys.append(survey)
        preparations[silo] = fit(surveys, features, job.silos[silo].rare)
        if at_nodes:
            every = TableRows(clients, preparations[silo], alignment.fingerprint).of_common(own, len(parts))
            stored[silo] = every
            rows[silo] = {part: every.at(parts == part).outline() for part in ids}
        else:
            encoded = encode_rows(clients, preparations[silo], own, parts)
            rows[silo] = {part: torch.from_numpy(encoded[part]) for part in ids}
    samples = {
        part: Samples(
            {silo: result[part] for silo, result in rows.items()},
            torch.from_numpy(labels[parts == part]),
            stored={silo: every.at(parts == part) for silo, every in stored.items()},
            holders={silo: own[part] for silo, own in holders.items()} if part is not Part.TRAIN else {},
        )
        for part in ids
    }
    notes = [
        *_notes(opened, alignment, rosters),
        *(f"{silo}: {made.describe()}" for silo, made in preparations.items()),
    ]
    if twice := same_numbers(classes):
        notes.append(
            f"labels: {twice[0][0]} and {twice[0][1]} are two classes, as there are texts beside these numbers"
        )
    federation = Federation(samples.pop(Part.TRAIN), rosters, ids[Part.TRAIN], classes, preparations, tuple(notes))
    return JobData(federation, samples, ids)


def _holders(keys: Sequence[PlacedKeys], parts: Array) -> dict[Part, Roster]:
    """Return which client of a silo holds each sample of every part."""
    names, owner = [key.table.client for key in keys], owners(keys)
    return {part: roster_of(owner[parts == part], names) for part in Part}


def _dealt(
    opened: OpenTables,
    silo: str,
    split: RowSplit,
    alignment: Alignment,
    keys: Sequence[PlacedKeys],
    parts: Array,
    labels: Array,
) -> Roster:
    """Deal the training rows of a silo's one file to simulated clients."""
    training = parts == Part.TRAIN
    column = opened.dealt_by(silo)
    facts = {column: id_array(gather_facts(keys, column))[training]} if column else {}
    rows = SiloRows(silo, id_array(alignment.ids)[training], labels[training], facts)
    owner = np.empty(len(rows.ids), dtype=np.int64)
    clients = split.deal(rows, count(opened.job, silo), opened.job.data.seed)
    for number, ids in enumerate(clients.values()):
        owner[np.searchsorted(rows.ids, ids)] = number
    return roster_of(owner, list(clients))


def _notes(opened: OpenTables, alignment: Alignment, rosters: Mapping[str, Roster]) -> Iterator[str]:
    """Tell how many rows the silos have in common, and who has none."""
    sizes = {silo: sum(share.rows for share in shares.values()) for silo, shares in alignment.shares.items()}
    yield overlap(len(alignment.ids), sizes)
    for silo, clients in opened.clients.items():
        if opened.job.silos[silo].aggregate:
            rows, ids = (sum(counts) for counts in zip(*((own.table.rows, own.size) for own in clients), strict=True))
            yield f"{silo}: {rows:,} rows of {ids:,} IDs become one row each"
    for silo, clients in opened.clients.items():
        idle = [own.table.client for own in clients if own.table.client not in (*rosters[silo].clients, DEALT)]
        if idle:
            yield f"{silo}: {join_names(idle)} has no training row of a common ID and takes no part"


def overlap(common: int, rows: Mapping[str, int]) -> str:
    """Tell how many of the rows of silos have IDs in common."""
    lost = join_names((f"{silo} {count - common:,} of {count:,}" for silo, count in rows.items()), most=16)
    return f"{common:,} IDs are in all silos; rows without them: {lost}"
