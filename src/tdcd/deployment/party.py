"""What a client does when its hub asks. Its rows never leave it, nor do its labels where they are kept."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tdcd.compute import choose, cores, one_torch_thread
from tdcd.compute.modules import never_draws
from tdcd.compute.whole import embed_whole
from tdcd.compute.worker import Worker
from tdcd.core.network import Block, Network, named_tensors
from tdcd.core.round import Round
from tdcd.core.streams import borrow_stream
from tdcd.core.task import SiloTask
from tdcd.core.topology import Roster
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.data.label_encoding import encode_labels_alone
from tdcd.data.tables.alignment import Alignment, Keys, as_kind, gather_facts, id_array
from tdcd.data.tables.client import ClientTable, encode_rows
from tdcd.data.tables.preparation import Preparation
from tdcd.data.tables.reader import Table
from tdcd.data.tables.survey import SurveyReport
from tdcd.deployment.identity import Identity
from tdcd.deployment.label_holder import LabelHolder
from tdcd.deployment.messages import (
    EMBEDDINGS,
    GRADIENTS,
    OTHERS,
    ROWS,
    WITHOUT,
    Message,
    RefusedError,
    array_tensors,
    gradient_requests,
    packed,
    weight,
)
from tdcd.deployment.site import ClientSite
from tdcd.errors import DataError
from tdcd.experiments.data import JobData, load_data
from tdcd.experiments.job import Job, TableData
from tdcd.experiments.tables import silo_features
from tdcd.training.setup import build_network, device_of

T = TypeVar("T")


def known(value: T | None, what: str) -> T:
    """Return what an earlier message of the hub has brought.

    Raises:
        RefusedError: it has not come.
    """
    if value is None:
        raise RefusedError(f"out of order: the hub has not sent {what}")
    return value


@dataclass
class Party:
    """What a client can do, once its hub has told it enough."""

    job: Job
    identity: Identity
    site: ClientSite
    log: Callable[[str], None]
    _opened: ClientTable | None = None
    """Its table, since its IDs were read: rows are known by their number from then on."""
    _keys: Keys | None = None
    _rows: dict[Part, Tensor] = field(default_factory=dict)
    _numbers: dict[Part, Array] = field(default_factory=dict)
    """The numbers of its samples, ascending."""
    _alignment: Alignment | None = None
    _parts: Array | None = None
    _places: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Where each row of its table stands among its common IDs, or −1."""
    _network: Network | None = None
    _worker: Worker | None = None
    _label_holder: LabelHolder | None = None
    """Its labels, where they are kept."""
    _width: int = 0
    _population: int = 0
    _open: int = 0
    """The round whose embeddings were given."""
    _mine: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """Its rows of that round's mini-batch."""
    _phi: Tensor | None = None
    """Their embeddings."""
    _others: Tensor | None = None
    """The summed embeddings of the other silos, where it has received them."""

    def answer(self, question: Message) -> Message:
        """Do what the hub asks.

        Raises:
            RefusedError: it asks something strange.
            TdcdError: it cannot be done.
        """
        ways = {
            "keys": self._tell_keys,
            "survey": self._survey,
            "begin": self._begin,
            "embed": self._embed,
            "gradients": self._gradients,
            "step": self._step,
            "descend": self._descend,
            "score": self._score,
            "judge": self._judge,
        }
        way = ways.get(question.kind)
        if way is None:
            raise RefusedError(f"the hub asks something that this version does not know: '{question.kind[:40]}'")
        try:
            return way(question)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise RefusedError(f"'{question.kind}' cannot be answered: {type(error).__name__}: {error}") from error

    def check(self) -> None:
        """See that the site's table is there, and has the columns that it must have, before the hub is dialled.

        Labels that are kept are looked at, too: nobody else can tell that they are wrong.

        Raises:
            DataError: it is not, or has not.
        """
        if isinstance(self.job.data, TableData):
            table = self._table
            for column, key in ((table.settings.id, "id"), (table.settings.label, "label")):
                if column:
                    table.need(column, key)
            if self._keeps:
                label = table.settings.label or ""
                self._coded(ClientTable(table).read_keys([label]).facts[label])

    @property
    def _table(self) -> Table:
        if not self.site.data:
            raise DataError(f'{self.identity}: its site file names no table: data = "north.csv"')
        silo, client = self.identity.silo, self.identity.client or ""
        return Table(silo, client, Path(self.site.data), self.job.silos[silo])

    def _tell_keys(self, _: Message) -> Message:
        """Tell the IDs of all rows, and labels and parts where there are some."""
        table = self._table
        self._opened = ClientTable(table)
        self.log(f"reading the IDs of {table.path}")
        if not isinstance(self.job.data, TableData):
            raise RefusedError("the hub asks for IDs of a table, and this job has none")
        label, split = table.settings.label, self.job.data.split_column
        wanted = [table.need(label, "label")] if label else []
        wanted += [split] if split and split in table.header else []
        self._keys = self._opened.read_keys(wanted)
        tensors = array_tensors("ids", id_array(self._keys.ids))
        parts = [column for column in wanted if not (self.job.labels.private and column == label)]
        for number, column in enumerate(parts):
            tensors |= array_tensors(f"fact {number}", self._keys.facts[column])
        facts = {"csv": table.is_csv, "columns": list(table.header), "file": table.path.name, "facts": parts}
        return Message("keys", facts, tensors)

    def _survey(self, question: Message) -> Message:
        """Tell what the columns hold in training rows: sums and counts, no values."""
        self._place(question)
        parts = known(self._parts, "which IDs are common")
        columns = list(question.facts["columns"])
        if strange := set(columns) - set(silo_features(self.job, self.identity.silo, [self._table])):
            raise RefusedError(f"the hub asks about column '{min(strange)}', which is no feature of the job")
        self.log("looking at the columns")
        survey = (self._opened or ClientTable(self._table)).survey(columns, self._places, parts)
        text = bytearray(TypeAdapter(SurveyReport).dump_json(survey.report))
        return Message("survey", {}, {"json": torch.frombuffer(text, dtype=torch.uint8)})

    def _place(self, question: Message) -> None:
        """Learn which of its rows have common IDs, and what they are for."""
        keys = known(self._keys, "a request for IDs")
        common = question.tensors["common"].numpy().astype(bool)
        self._keys = replace(keys, ids=as_kind(keys.ids, str(question.facts["kind"])))
        self._alignment = Alignment(self._keys.ids.filter(pl.Series(common)).sort(), {}, {})
        self._places = self._alignment.places(self._keys.ids)
        self._parts = question.tensors["parts"].numpy()

    @property
    def _keeps(self) -> bool:
        """Whether it has labels that never leave it."""
        return self.identity.silo == self.job.labels.label_holder

    @property
    def _asks(self) -> bool:
        """Whether the labels of its rows are kept elsewhere."""
        return self.job.labels.private and not self._keeps

    def _begin(self, question: Message) -> Message:
        """Prepare the rows and build the network."""
        facts, settings, silo = question.facts, self.job.training, self.identity.silo
        device = device_of(self.site.device)
        self._numbers = {part: question.tensors[part.word].numpy() for part in Part if part.word in question.tensors}
        self._population, self._width = int(facts["population"]), int(facts["width"])
        self._abandon()
        self._network, self._worker, self._open = None, None, 0
        tables = isinstance(self.job.data, TableData)
        if tables:
            self._place(question)
        data = None if tables else self._read_set()
        self._label_holder = self._with_labels(data) if self._keeps else None
        if facts["shape"] is None:
            self.log(f"ready: labels of {len(self._numbers.get(Part.TRAIN, ())):,} training rows, and no features")
            return Message("begun", {"rows": {part.word: len(n) for part, n in self._numbers.items()}})
        rows = self._from_table(question) if data is None else self._from_set(data)
        self._rows = {
            part: (x.to(settings.dtype) if x.is_floating_point() else x).to(device) for part, x in rows.items()
        }
        shape = tuple(next(iter(self._rows.values())).shape[1:]) if self._rows else tuple(facts["shape"])
        if list(shape) != list(facts["shape"]):
            raise DataError(f"{self.identity}: its rows have the shape {shape}, the silo's {tuple(facts['shape'])}")
        network = build_network(silo, self.job.model_of(silo), shape, int(facts["outputs"]), settings, device)
        self._network = network
        if len(self._rows.get(Part.TRAIN, ())):
            labels = self._labels(question)
            task = SiloTask(
                silo=silo,
                network=network,
                features=self._rows[Part.TRAIN],
                labels=labels.to(device),
                roster=Roster((self.identity.client or "",), torch.zeros(len(labels), dtype=torch.int64)),
                objective=settings.objective,
                steps=settings.steps,
                averaging="uniform",  # one client alone: its mean is itself, to the bit
                seed=settings.seed,
                width=self._width,
                remote_labels=self._asks,
            )
            threads = self.site.workers or cores()
            suspendable = self._asks and self.job.labels.sharing == "exact" and settings.local_steps > 1
            name, why = choose(task, self.site.compute, suspendable=suspendable)
            seeded = not never_draws(network.module)
            if seeded and name in ("stacked", "mixed"):  # torch cannot stack clients that draw, and here is one alone
                name, why = "loop", "loop (one client, whose network may draw random numbers)"
            self._worker = Worker(task, name, threads=threads, suspendable=suspendable, seeded=seeded)
            self.log(f"ready: {len(labels):,} training rows; {why}")
        return Message("begun", {"rows": {part.word: len(x) for part, x in self._rows.items()}})

    def _labels(self, question: Message) -> Tensor:
        """Return the labels of its training rows; where another silo holds them, nothing that could be used."""
        if self._label_holder:
            return self._label_holder.labels[Part.TRAIN]
        return torch.zeros(len(self._rows[Part.TRAIN])) if self._asks else question.tensors["labels"]

    def _with_labels(self, data: JobData | None) -> LabelHolder:
        """Look up the labels of its own rows; nobody else is told."""
        settings, job = self.job.training, self.job.labels
        if data is None:
            keys, alignment = known(self._keys, "a request for IDs"), known(self._alignment, "which IDs are common")
            own = known(self._parts, "which IDs are common")
            texts = gather_facts(alignment.place([keys]), self.job.silos[self.identity.silo].label or "")
            try:
                numbers = self._coded(texts)
            except DataError as error:  # what the hub hears must not tell labels
                self.log(str(error))
                raise DataError(f"{self.identity}: its labels do not fit the job; its own log says why") from error
            record = {part: torch.from_numpy(numbers[own == part]) for part in self._numbers}
        else:
            record = {part: data.parts[part].labels[torch.from_numpy(n)] for part, n in self._numbers.items()}
        prepared = {
            part: settings.objective.prepare(labels, self._width, settings.dtype) for part, labels in record.items()
        }
        return LabelHolder(job, settings, self._width, prepared)

    def _coded(self, texts: Array) -> Array:
        job = self.job.labels
        try:
            return encode_labels_alone(texts, self.job.training.loss, job.positive, job.classes)
        except DataError as error:
            raise DataError(f"{self._table}: {error}") from error

    def _from_table(self, question: Message) -> dict[Part, Tensor]:
        parts = known(self._parts, "which IDs are common")
        text = question.tensors["preparation"].numpy().tobytes().decode()
        preparation = Preparation.model_validate_json(text)
        self.log("reading the rows")
        places = {self.identity.client or "": self._places}
        result = encode_rows([self._opened or ClientTable(self._table)], preparation, places, parts)
        return {part: torch.from_numpy(numbers) for part, numbers in result.items()}

    def _read_set(self) -> JobData:
        self.log("reading the data set")
        return load_data(self.job)

    def _from_set(self, data: JobData) -> dict[Part, Tensor]:
        silo = self.identity.silo
        return {part: data.parts[part].features[silo][torch.from_numpy(n)] for part, n in self._numbers.items()}

    def _open_round(self, question: Message) -> Round:
        """Find its rows of a round's mini-batch."""
        settings, number = self.job.training, question.stamp.round
        batch = settings.sample_batch(number, self._population).numpy()
        if WITHOUT in question.tensors:
            batch = np.setdiff1d(batch, question.tensors[WITHOUT].numpy(), assume_unique=True)
        mine = np.flatnonzero(np.isin(self._numbers[Part.TRAIN], batch, assume_unique=True))
        if not len(mine):
            raise RefusedError(f"none of this client's rows is in the mini-batch of round {number}")
        self._abandon()
        self._open, self._mine, self._phi, self._others = number, torch.from_numpy(mine), None, None
        return Round(number, self._mine, settings.rate_of(number))

    def _begun(self, question: Message) -> None:
        if question.stamp.round != self._open:
            raise RefusedError(f"received a message for round {question.stamp.round} before its start")

    def _embed(self, question: Message) -> Message:
        """Embed its rows of the mini-batch (lines 10 to 14 of Algorithm 1)."""
        worker, round_ = self._trained(), self._open_round(question)
        with one_torch_thread():
            self._phi = worker.embed(self._block(question), round_)
        return Message("embeddings", {}, {EMBEDDINGS: self._phi})

    def _gradients(self, question: Message) -> Message:
        """Compute ∂ℓ/∂z of its rows: first at the exchanged embeddings, later at the scores of each silo."""
        if self._label_holder is None:
            raise RefusedError("the hub requests logit gradients, and this client has no labels")
        others = question.tensors.get(OTHERS)
        if others is None:
            self._begun(question)
            return self._label_holder.gradients(self._mine, gradient_requests(question.tensors))
        if self._network is None:
            self._open_round(question)
        self._begun(question)
        self._others = self._rows_of_width(others)
        scores = others if self._phi is None else self._phi.cpu() + others
        return self._label_holder.gradients(self._mine, {OTHERS: scores})

    def _step(self, question: Message) -> Message:
        """Take one local step with logit gradients; return the new embeddings."""
        worker = self._trained()
        self._begun(question)
        gradients = self._rows_of_width(question.tensors[GRADIENTS]).to(self._device)
        with one_torch_thread():
            return Message("embeddings", {}, {EMBEDDINGS: worker.step(gradients)})

    def _descend(self, question: Message) -> Message:
        """Take the local steps that are left (lines 25 to 29)."""
        worker = self._trained()
        self._begun(question)
        rows = self._others if self._label_holder and self._others is not None else question.tensors[ROWS]
        with one_torch_thread():
            mean = worker.descend(self._rows_of_width(rows).to(self._device))
        return Message("weights", {}, packed(mean.result()))

    def _trained(self) -> Worker:
        if self._worker is None:
            raise RefusedError("a message of a round for a client that has no training rows, or has not begun")
        return self._worker

    def _rows_of_width(self, rows: Tensor) -> Tensor:
        """Check that there is a vector of width E for each of its rows in the mini-batch."""
        dtype, shape = self.job.training.dtype, (len(self._mine), self._width)
        if rows.shape != shape or rows.dtype != dtype:
            raise RefusedError(f"the hub sends {rows.dtype} of shape {tuple(rows.shape)}, not {dtype} of shape {shape}")
        return rows

    def _abandon(self) -> None:
        """Give up local steps that wait for gradients: their round is begun again, or over."""
        if self._worker is not None:
            self._worker.abandon()

    def _score(self, question: Message) -> Message:
        """Embed all of its rows for an evaluation."""
        network, block = known(self._network, "the beginning"), self._block(question)
        record = {}
        for part, rows in self._rows.items():
            if not len(rows):
                continue
            with one_torch_thread(), borrow_stream(self._device):
                if self._worker is not None:
                    record[part.word] = self._worker.embed_all(block, rows)
                else:
                    record[part.word] = embed_whole(self.identity.silo, network, block, rows)
        return Message("scores", {}, record)

    def _judge(self, question: Message) -> Message:
        """Add up how good the model is on its rows."""
        if self._label_holder is None:
            raise RefusedError("the hub asks how good the model is, and here are no labels")
        return self._label_holder.judged(question)

    @property
    def _device(self) -> torch.device:
        return known(self._network, "the beginning").device

    def _block(self, question: Message) -> Block:
        block = {}
        for name, tensor in named_tensors(known(self._network, "the beginning").module):
            block[name] = question.tensors[weight(name)].to(self._device)
            if block[name].shape != tensor.shape or block[name].dtype != tensor.dtype:
                raise RefusedError(f"the hub's weights '{name}' do not fit the network here")
        return block
