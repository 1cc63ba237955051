"""A client's own table: its IDs, its survey, its rows and labels, as its hub asks for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.data.label_encoding import LabelError, encode_labels_alone
from tdcd.data.tables.alignment import (
    NUMBERS,
    TEXTS,
    Alignment,
    Keys,
    PlacedKeys,
    as_kind,
    digest,
    find_fact,
    gather_facts,
    kind_of,
)
from tdcd.data.tables.client import ClientTable, encode_rows
from tdcd.data.tables.preparation import MOST_INPUTS, Preparation
from tdcd.data.tables.reader import Table
from tdcd.data.tables.survey import SurveyReport
from tdcd.errors import DataError
from tdcd.jobs.schema import TableJob
from tdcd.jobs.tables import silo_features
from tdcd.sites.client.beginning import check_places
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.packing import fits, known
from tdcd.sites.messages.types import ClientKeys, RequestKeys, RequestSurvey, SurveyReply
from tdcd.sites.security.identity import Identity
from tdcd.sites.site_file import ClientSite
from tdcd.strict import problems


@dataclass(frozen=True)
class Keyed:
    """The client has read its IDs: rows are known by their number from then on."""

    table: ClientTable
    keys: Keys


@dataclass(frozen=True)
class Placed:
    """The client knows which of its rows have common IDs."""

    places: Array
    """Where each row of its table stands among its common IDs, or −1."""
    parts: Array
    """What these IDs are for."""

    @property
    def counts(self) -> dict[Part, int]:
        """How many rows are of each part."""
        own = self.parts[self.places[self.places >= 0]]
        return {part: int((own == part).sum()) for part in Part}


class OwnTable:
    """A client's table, from its file to its rows."""

    def __init__(self, job: TableJob, identity: Identity, site: ClientSite, log: Callable[[str], None]) -> None:
        self._job, self._identity, self._site, self._log = job, identity, site, log
        self._keyed: Keyed | None = None
        self._placed: Placed | None = None
        self.digest = ""
        """Of the IDs, and of what is sent with them."""

    def check(self, *, labels: bool) -> None:
        """See that the table is there, and has the columns that it must have; and its ``labels``, if they are private.

        Raises:
            DataError: the table or a required column is missing, or labels do not fit.
        """
        table = self._table()
        for key in ("id", "row_id", "label", "order"):
            if column := getattr(table.settings, key):
                table.need(column, key)
        if labels:
            label = table.settings.label or ""
            keys = ClientTable(table).read_keys([label])
            own = PlacedKeys(table, keys.ids, keys.facts, np.arange(len(keys.ids)))
            self._encode_labels(keys.facts[label], own)

    def _table(self) -> Table:
        if not self._site.data:
            raise DataError(f'{self._identity}: its site file names no table: data = "north.csv"')
        silo, client = self._identity.silo, self._identity.client or ""
        settings = self._job.silos[silo].settings_of(client, self._site.table)
        return Table(silo, client, Path(self._site.data), settings)

    def check_unchanged(self) -> None:
        """Check that the file is as it was when it was read.

        Raises:
            DataError: it is not.
        """
        if self._keyed:
            self._keyed.table.table.check_unchanged()

    def send_keys(self, request: RequestKeys) -> ClientKeys:
        """Send the IDs of all rows, and labels and parts where they are handed over."""
        table, private = self._table(), self._job.labels.private
        label, split = table.settings.label, self._job.data.split_column
        wanted = [table.need(label, "label")] if label else []
        wanted += [split] if split and split in table.header else []
        shown = [column for column in wanted if not (private and column == label)]
        self._log(f"reading the IDs of {table.path}")
        opened = ClientTable(table)
        keys = opened.read_keys(wanted)
        whole = digest(keys.ids) + "".join(digest(keys.facts[column]) for column in shown)
        self._keyed = Keyed(opened, keys)
        if whole != self.digest:
            self._placed, self.digest = None, whole
        same = request.known == whole
        return ClientKeys(
            digest=whole,
            unchanged=same,
            csv=table.is_csv,
            columns=tuple(table.header),
            file=table.path.name,
            named=() if same else tuple(shown),
            ids=keys.ids.clear() if same else keys.ids,
            facts=() if same else tuple(keys.facts[column] for column in shown),
        )

    def survey(self, request: RequestSurvey) -> SurveyReply:
        """Report what the columns hold in training rows: sums and counts, no values."""
        keyed, columns = known(self._keyed, "a request for IDs"), list(request.columns)
        placed = self.place(request.kind, request.common, request.parts)
        if not columns or len(set(columns)) < len(columns):
            raise RefusedError("the hub asks about no column, or about one twice")
        if strange := set(columns) - set(silo_features(self._job, self._identity.silo, [keyed.table.table])):
            raise RefusedError(f"the hub asks about column '{min(strange)}', which is no feature of the job")
        self._log("surveying the columns")
        survey = keyed.table.survey(columns, placed.places, placed.parts)
        return SurveyReply(TypeAdapter(SurveyReport).dump_json(survey.report))

    def place(self, kind: str, common: Tensor, parts: Tensor | None) -> Placed:
        """Learn which rows have common IDs, and what they are for."""
        keys = known(self._keyed, "a request for IDs").keys
        mask = fits(common, (len(keys.ids),), torch.uint8, "which rows have common IDs").numpy().astype(bool)
        checked = fits(parts, (int(mask.sum()),), torch.int8, "parts of the common IDs")
        check_places(checked)
        if kind not in (NUMBERS, TEXTS) or (kind == NUMBERS and kind_of(keys.ids) == TEXTS):
            raise RefusedError(f"IDs of the kind '{kind[:20]}', where those here are of the kind '{kind_of(keys.ids)}'")
        ids = as_kind(keys.ids, kind)
        places = Alignment(ids.filter(pl.Series(mask)).sort(), {}, {}).places(ids)
        self._placed = Placed(places, checked.numpy())
        return self._placed

    def encode(self, preparation: bytes) -> tuple[dict[Part, Tensor], dict[str, range]]:
        """Return the rows of every part, as the network takes them, and which of their numbers each column becomes."""
        keyed, placed = known(self._keyed, "a request for IDs"), known(self._placed, "which IDs are common")
        self._log("encoding the rows")
        made = read_preparation(preparation, silo_features(self._job, self._identity.silo, [keyed.table.table]))
        rows = encode_rows([keyed.table], made, {self._identity.client or "": placed.places}, placed.parts)
        return {part: torch.from_numpy(numbers) for part, numbers in rows.items()}, made.inputs

    def labels(self, parts: Mapping[Part, Array]) -> dict[Part, Tensor]:
        """Look up the labels of its own rows; nobody else hears of them."""
        keyed, placed = known(self._keyed, "a request for IDs"), known(self._placed, "which IDs are common")
        own = PlacedKeys(keyed.keys.table, keyed.keys.ids, keyed.keys.facts, placed.places)
        texts = gather_facts([own], self._job.silos[self._identity.silo].label or "")
        try:
            encoded = self._encode_labels(texts, own)
        except DataError as error:  # what the hub hears must not tell labels
            self._log(str(error))
            raise DataError(f"{self._identity}: its labels do not fit the job; its own log says why") from error
        return {part: torch.from_numpy(encoded[placed.parts == part]) for part in parts}

    def _encode_labels(self, texts: pl.Series, own: PlacedKeys) -> Array:
        labels = self._job.labels
        try:
            return encode_labels_alone(texts, self._job.training.objective.meaning, labels.positive, labels.classes)
        except DataError as error:
            column = own.table.settings.label or ""
            where = find_fact([own], column, error.label) if isinstance(error, LabelError) else ""
            raise DataError(f"{own.table}: {error}{where}") from error


def read_preparation(text: bytes, features: Sequence[str]) -> Preparation:
    """Read how columns become numbers: only those that this client's own copy of the job names as features."""
    made = parse_preparation(text)
    if strange := sorted({column.name for column in made.columns} - {*features}):
        raise RefusedError(f"the hub asks for column '{strange[0][:80]}', which is no feature of the job")
    if len(made.outputs) > MOST_INPUTS * max(1, len(features)):
        raise RefusedError(f"a preparation of {len(made.outputs):,} inputs")
    return made


def parse_preparation(text: bytes) -> Preparation:
    """Read how columns become numbers; whether they may is another question."""
    try:
        made = Preparation.model_validate_json(text)
    except ValidationError as error:
        raise RefusedError(f"a malformed preparation: {next(problems(error))}"[:300]) from error
    names = [column.name for column in made.columns]
    if len(set(names)) < len(names) or not all(column.valid for column in made.columns):
        raise RefusedError("a preparation with a column twice, or with numbers that cannot be computed with")
    return made
