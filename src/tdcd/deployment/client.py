"""A client's site: it dials its hub and answers what the hub asks. Its rows never leave it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from tdcd.compute import Workers, choose, cores, make, one_torch_thread
from tdcd.compute.whole import embed_whole
from tdcd.core.network import Block, Network, named_tensors
from tdcd.core.round import Round
from tdcd.core.streams import borrowed_stream
from tdcd.core.task import SiloTask
from tdcd.core.topology import Roster
from tdcd.data.alignment import Alignment, Keys, read_keys
from tdcd.data.arrays import Array
from tdcd.data.preparation import Facts, Preparation
from tdcd.data.splits import Part
from tdcd.data.tables import Table
from tdcd.data.tabular import encoded, surveyed
from tdcd.deployment.identity import Identity
from tdcd.deployment.messages import PROTOCOL, Assembler, Message, RefusedError, array_tensors, frames
from tdcd.deployment.peers import FIRST_WAIT, LARGEST, LONGEST_WAIT
from tdcd.deployment.shared import VERSION, SharedJob
from tdcd.deployment.site import ClientSite
from tdcd.deployment.tls import Open, Trust
from tdcd.deployment.wire import tdcd_pb2_grpc
from tdcd.engines.local import LocalClients
from tdcd.errors import DataError, DeploymentError, TdcdError
from tdcd.experiments.data import load_data
from tdcd.experiments.job import Job, TableData
from tdcd.experiments.tables import silo_features
from tdcd.training.setup import build_network, device_of


class ToldSurvey(BaseModel):
    """What a client tells of its columns. See Survey."""

    facts: dict[str, Facts]
    empty: dict[str, int]
    problems: dict[str, str]


@dataclass
class Party:
    """What a client can do, once its hub has told it enough."""

    job: Job
    identity: Identity
    site: ClientSite
    told: Callable[[str], None]
    _keys: Keys | None = None
    _rows: dict[Part, Tensor] = field(default_factory=dict)
    _numbers: dict[Part, Array] = field(default_factory=dict)
    """The numbers of its samples, ascending."""
    _alignment: Alignment | None = None
    _parts: Array | None = None
    _network: Network | None = None
    _clients: LocalClients | None = None
    _population: int = 0
    _open: int = 0
    """The round whose embeddings were given."""

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
            "descend": self._descend,
            "score": self._score,
        }
        way = ways.get(question.kind)
        if way is None:
            raise RefusedError(f"the hub asks something that this version does not know: '{question.kind[:40]}'")
        try:
            return way(question)
        except (KeyError, ValueError, TypeError, IndexError, AssertionError) as error:
            raise RefusedError(f"'{question.kind}' cannot be answered: {type(error).__name__}: {error}") from error

    def check(self) -> None:
        """See that the site's table is there, and has the columns that it must have, before the hub is dialled.

        Raises:
            DataError: it is not, or has not.
        """
        if isinstance(self.job.data, TableData):
            table = self._table
            for column, key in ((table.settings.id, "id"), (table.settings.label, "label")):
                if column:
                    table.need(column, key)

    @property
    def _table(self) -> Table:
        if not self.site.data:
            raise DataError(f'{self.identity}: its site file names no table: data = "north.csv"')
        silo, client = self.identity.silo, self.identity.client or ""
        return Table(silo, client, Path(self.site.data), self.job.silos[silo])

    def _tell_keys(self, _: Message) -> Message:
        """Tell the IDs of all rows, and labels and parts where there are some."""
        table = self._table
        self.told(f"reading the IDs of {table.path}")
        assert isinstance(self.job.data, TableData)  # noqa: S101
        label, split = table.settings.label, self.job.data.split_column
        wanted = [table.need(label, "label")] if label else []
        wanted += [split] if split and split in table.header else []
        self._keys = read_keys(table, wanted)
        tensors = array_tensors("ids", self._keys.ids)
        for column, values in self._keys.facts.items():
            tensors |= array_tensors(f"fact {column}", values)
        facts = {"csv": table.is_csv, "columns": list(table.header), "file": table.path.name, "facts": wanted}
        return Message("keys", facts, tensors)

    def _survey(self, question: Message) -> Message:
        """Tell what the columns hold in training rows: sums and counts, no values."""
        self._place(question)
        assert self._alignment is not None and self._parts is not None  # noqa: S101, PT018
        columns = list(question.facts["columns"])
        if strange := set(columns) - set(silo_features(self.job, self.identity.silo, [self._table])):
            raise RefusedError(f"the hub asks about column '{min(strange)}', which is no feature of the job")
        self.told("looking at the columns")
        survey = surveyed(self._table, columns, self._alignment, self._parts)
        told = ToldSurvey(facts=survey.facts, empty=survey.empty, problems=survey.problems)
        text = bytearray(told.model_dump_json().encode())
        return Message("survey", {}, {"json": torch.frombuffer(text, dtype=torch.uint8)})

    def _place(self, question: Message) -> None:
        """Learn which of its rows have common IDs, and what they are for."""
        assert self._keys is not None  # noqa: S101
        common = question.tensors["common"].numpy().astype(bool)
        ids = self._keys.ids[common]
        ids = np.sort(ids.astype(np.str_) if question.facts["kind"] == "U" else ids)
        self._alignment = Alignment(ids, {}, {})
        self._parts = question.tensors["parts"].numpy()

    def _begin(self, question: Message) -> Message:
        """Prepare the rows and build the network."""
        facts, settings = question.facts, self.job.training
        device = device_of(self.site.device)
        self._numbers = {part: question.tensors[part.word].numpy() for part in Part if part.word in question.tensors}
        self._population = int(facts["population"])
        rows = self._from_table(question) if isinstance(self.job.data, TableData) else self._from_set()
        self._rows = {
            part: (x.to(settings.dtype) if x.is_floating_point() else x).to(device) for part, x in rows.items()
        }
        shape = tuple(next(iter(self._rows.values())).shape[1:]) if self._rows else tuple(facts["shape"])
        if list(shape) != list(facts["shape"]):
            raise DataError(f"{self.identity}: its rows have the shape {shape}, the silo's {tuple(facts['shape'])}")
        silo = self.identity.silo
        network = build_network(silo, self.job.model_of(silo), shape, int(facts["outputs"]), settings, device)
        self._network, self._clients, self._open = network, None, 0
        if len(self._rows.get(Part.TRAIN, ())):
            labels = question.tensors["labels"].to(device)
            task = SiloTask(
                silo=silo,
                network=network,
                features=self._rows[Part.TRAIN],
                labels=labels,
                roster=Roster((self.identity.client or "",), torch.zeros(len(labels), dtype=torch.int64)),
                objective=settings.objective,
                steps=settings.steps,
                averaging=settings.averaging,
                seed=settings.seed,
                width=int(facts["width"]),
            )
            threads = self.site.workers or cores()
            workers = Workers(1)
            name, why = choose(task, self.site.compute)
            self._clients = LocalClients(task, make(task, name, workers, threads), workers)
            self.told(f"ready: {len(labels):,} training rows; {why}")
        return Message("begun", {"rows": {part.word: len(x) for part, x in self._rows.items()}})

    def _from_table(self, question: Message) -> dict[Part, Tensor]:
        self._place(question)
        assert self._alignment is not None and self._parts is not None  # noqa: S101, PT018
        text = question.tensors["preparation"].numpy().tobytes().decode()
        preparation = Preparation.model_validate_json(text)
        self.told("reading the rows")
        found = encoded([self._table], preparation, self._alignment, self._parts, lambda table: None)  # noqa: ARG005
        return {part: torch.from_numpy(numbers) for part, numbers in found.items()}

    def _from_set(self) -> dict[Part, Tensor]:
        self.told("reading the data set")
        data = load_data(self.job)
        whole = {Part.TRAIN: data.federation.samples, **data.held_out}
        silo = self.identity.silo
        return {part: whole[part].features[silo][torch.from_numpy(n)] for part, n in self._numbers.items()}

    def _embed(self, question: Message) -> Message:
        """Embed its rows of the mini-batch (lines 10 to 14 of Algorithm 1)."""
        assert self._clients is not None and self._network is not None  # noqa: S101, PT018
        settings, number = self.job.training, question.stamp.round
        batch = settings.drawn(number, self._population).numpy()
        if "without" in question.tensors:
            batch = np.setdiff1d(batch, question.tensors["without"].numpy(), assume_unique=True)
        mine = np.flatnonzero(np.isin(self._numbers[Part.TRAIN], batch, assume_unique=True))
        round_ = Round(number, torch.from_numpy(mine), settings.rate_of(number))
        self._open = number
        with one_torch_thread():
            return Message("embeddings", {}, {"phi": self._clients.embed(self._block(question), round_)})

    def _descend(self, question: Message) -> Message:
        """Take Q local steps (lines 23 to 29)."""
        assert self._clients is not None  # noqa: S101
        if question.stamp.round != self._open:
            raise RefusedError(f"round {question.stamp.round} goes on here without having begun")
        with one_torch_thread():
            return Message("weights", {}, self._clients.descend(question.tensors["others"].to(self._device)))

    def _score(self, question: Message) -> Message:
        """Embed all of its rows for an evaluation."""
        assert self._network is not None  # noqa: S101
        block = self._block(question)
        found = {}
        for part, rows in self._rows.items():
            if not len(rows):
                continue
            with one_torch_thread(), borrowed_stream(self._device):
                if self._clients is not None:
                    found[part.word] = self._clients.embed_whole(block, rows)
                else:
                    found[part.word] = embed_whole(self.identity.silo, self._network, block, rows)
        return Message("scores", {}, found)

    @property
    def _device(self) -> torch.device:
        assert self._network is not None  # noqa: S101
        return self._network.device

    def _block(self, question: Message) -> Block:
        assert self._network is not None  # noqa: S101
        block = {}
        for name, tensor in named_tensors(self._network.module):
            block[name] = question.tensors[f"w {name}"].to(self._device)
            if block[name].shape != tensor.shape or block[name].dtype != tensor.dtype:
                raise RefusedError(f"the hub's weights '{name}' do not fit the network here")
        return block


@dataclass
class ClientProcess:
    """A client that keeps a stream to its hub."""

    party: Party
    shared: SharedJob
    trust: Trust | Open
    told: Callable[[str], None]
    patience: float
    """Seconds that it tries to reach its hub."""
    _heard: bool = False
    """Whether the hub has said anything on the stream that is open, or was last."""

    async def run(self) -> None:
        """Answer until the hub says that the training is finished; when the hub stops before, wait for it.

        Raises:
            DeploymentError: the hub refuses this client, or cannot be reached.
        """
        address, silo = self.party.site.hub, self.party.identity.silo
        wait, alone = FIRST_WAIT, time.monotonic()
        warned = False
        while True:
            async with self.trust.channel(address, silo) as channel:
                self._heard = False
                try:
                    stream = tdcd_pb2_grpc.HubStub(channel).Attend()
                    if await self._talk(stream) == "finished":
                        return
                except grpc.aio.AioRpcError as error:
                    self._heard = self._heard or error.code() == grpc.StatusCode.CANCELLED
                    if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION):
                        raise DeploymentError(f"the hub at {address} refuses this client: {error.details()}") from error
            if self._heard:
                wait, alone, warned = FIRST_WAIT, time.monotonic(), False
                self.told("the hub is gone; trying to reach it again")
            elif not warned:
                warned = True
                self.told(f"waiting for the hub at {address}: {await self.trust.explain(address, silo)}")
            if time.monotonic() - alone > self.patience:
                why = await self.trust.explain(address, silo)
                raise DeploymentError(f"the hub at {address} was not reached for {self.patience:g} seconds: {why}")
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _talk(self, stream: Any) -> str:
        """Answer questions until the stream ends; return how the training ended, if the hub says it."""
        identity = self.party.identity
        facts = {
            "protocol": PROTOCOL,
            "version": VERSION,
            "job": self.shared.table,
            "silo": identity.silo,
            "client": identity.client,
        }
        for frame in frames(Message("join", facts)):
            await stream.write(frame)
        assembler = Assembler(LARGEST)
        while (frame := await stream.read()) is not grpc.aio.EOF:
            if not self._heard:
                self._heard = True
                self.told("the hub answers")
            question = assembler.feed(frame)
            if question is None:
                continue
            if question.kind == "farewell":
                return str(question.facts.get("status"))
            try:
                answer = self.party.answer(question)  # nothing else happens here: gRPC's own threads keep the line
            except TdcdError as error:
                self.told(f"cannot answer '{question.kind}': {error}")
                answer = Message("failed", {"why": str(error)})
            for reply in frames(answer.stamped(question.stamp)):
                await stream.write(reply)
        status = await stream.code()
        if status not in (grpc.StatusCode.OK, None):
            raise grpc.aio.AioRpcError(
                status, await stream.initial_metadata(), await stream.trailing_metadata(), await stream.details()
            )
        return ""
