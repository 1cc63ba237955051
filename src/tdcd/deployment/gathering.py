"""What happens at a hub before the first round.

It hears what its clients hold, finds the common IDs together with the other hubs, and finds out what the columns hold.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tdcd.core.network import Block, Network
from tdcd.core.state import HubUpdate, SiloState, take_average
from tdcd.data.holdout import Part
from tdcd.data.tables.alignment import Alignment, Keys, as_kind, id_series, kind_of, same_kind
from tdcd.data.tables.preparation import Preparation, fit
from tdcd.data.tables.reader import RemoteTable
from tdcd.data.tables.survey import Survey, SurveyReport
from tdcd.deployment.aligning import aligned, brought
from tdcd.deployment.clients import Clients, Link
from tdcd.deployment.messages import Message, RefusedError, tensors_array
from tdcd.deployment.peers import LARGEST, Peers
from tdcd.deployment.silo import SiloPlan, plan_from_set, plan_from_tables
from tdcd.engines.base import RewoundError
from tdcd.errors import DataError, DeploymentError
from tdcd.experiments.data import JobData
from tdcd.experiments.job import Job, TableData
from tdcd.experiments.tables import silo_features
from tdcd.files import write_atomically
from tdcd.training.momentum import hub_updates
from tdcd.training.setup import build_network, check_finite, width_of


@dataclass
class Model:
    """What a hub's silo trains."""

    network: Network | None
    """For names and shapes: its weights are not kept here. None in a silo that has labels only."""
    shape: tuple[int, ...] | None
    """Of a row."""
    width: int
    labels: Mapping[Part, Tensor]
    """As the loss wants them; none where they are kept."""


@dataclass
class Gatherer:
    """A hub before the first round, and what it has found out then."""

    job: Job
    silo: str
    directory: Path
    clients: Clients
    peers: Peers
    log: Callable[[str], None]
    stage: str = "starting"
    alignment: Alignment | None = None
    preparation: Preparation | None = None
    brought: Mapping[str, Any] = field(default_factory=dict)
    """What other hubs are told of this silo's IDs before an alignment."""
    label_only: frozenset[str] = frozenset()
    """Silos that have labels only, once the hubs have met."""
    _plan: SiloPlan | None = None
    _model: Model | None = None
    _keys: dict[str, Keys] = field(default_factory=dict)
    _surveys: dict[str, Survey] = field(default_factory=dict)
    _columns: list[str] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def update(self) -> HubUpdate:
        """What the hub makes of its clients' average."""
        networks = {self.silo: self.model.network} if self.model.network else {}
        return hub_updates(self.job.training, networks).get(self.silo, take_average)

    @property
    def plan(self) -> SiloPlan:
        """Who holds what, once that is known."""
        assert self._plan is not None  # noqa: S101
        return self._plan

    @property
    def model(self) -> Model:
        """What is trained, once that is known."""
        assert self._model is not None  # noqa: S101
        return self._model

    async def prepare(self, data: JobData | None) -> None:
        """Gather the clients, find the common IDs, and find out what the columns hold.

        Args:
            data: A data set that every site has; none if clients have tables.
        """
        if data is None:
            await self._prepare_tables()
        else:
            self._plan = plan_from_set(self.job, self.silo, data)
            rows = data.federation.samples.features.get(self.silo)
            self._model = self._modelled(None if rows is None else tuple(rows.shape[1:]))
        await self._tell()

    async def _prepare_tables(self) -> None:
        file = self.directory / "alignment.parquet"
        if file.exists():
            self.alignment = Alignment.load(file)
            if set(self.alignment.shares) != {self.silo}:
                raise DataError(
                    f"{file}: it is not the alignment of silo '{self.silo}' alone; remove it to align again"
                )
        else:
            self.alignment = await self._first_alignment()
            self.directory.mkdir(parents=True, exist_ok=True)
            self.alignment.save(file)
        await self._tell()
        stored, planned = self.directory / "preparation" / f"{self.silo}.json", self.directory / "silo.safetensors"
        before = SiloPlan.load(planned) if planned.exists() else None
        whole = before and (before[0].label_only or stored.exists())
        if before and whole and before[0].fingerprint == self.alignment.fingerprint:
            self._plan, self.brought = before
            self.preparation = None if self._plan.label_only else Preparation.from_file(stored)
        else:
            self.stage = "gathering clients"
            keys = await self.all_keys()
            self.alignment.verify({self.silo: keys}, str(file))
            self._plan = plan_from_tables(self.job, self.silo, self.alignment, keys, "this job")
            self.brought = brought(self.job, keys)
            self._columns = silo_features(self.job, self.silo, [key.table for key in keys])
            self._plan.save(planned, self.brought)
            await self._tell()
            self.preparation = None if self._plan.label_only else await self._fit_preparation(stored)
        self._model = self._modelled((len(self.preparation.outputs),) if self.preparation else None)

    async def _fit_preparation(self, file: Path) -> Preparation:
        """Find out what the columns hold."""
        self.stage = "looking at the columns"
        await self._until(lambda: set(self._surveys) >= set(self.clients.names), "tell what their columns hold")
        settings = self.job.silos[self.silo]
        result = fit(self._surveys.values(), self._columns, settings.rare)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, result.to_json())
        self.log(result.describe())
        return result

    async def _first_alignment(self) -> Alignment:
        """Find the common IDs together with all other hubs."""
        self.stage = "gathering clients"
        keys = await self.all_keys()
        while True:
            self.stage = "aligning"
            everybody = await self.peers.meeting("start", {"alignment": "", **brought(self.job, keys)})
            began = time.monotonic()
            try:
                result = await self._aligned(keys, everybody)
            except RewoundError:
                self.log("a hub was started again: the alignment begins anew")
                continue
            self.log(f"{len(result.ids):,} IDs are in all silos, found in {time.monotonic() - began:.1f} s")
            return result

    async def _aligned(self, keys: list[Keys], everybody: Mapping[str, Mapping[str, Any]]) -> Alignment:
        try:
            return await aligned(self.job, self.silo, keys, everybody, self.peers, self._masking)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RefusedError(f"another hub's messages do not make an alignment: {error!r}") from error

    def _masking(self, done: int, total: int) -> None:
        """Tell every tenth of the way."""
        before, self.stage = self.stage, f"aligning: {10 * (10 * done // max(total, 1))} % of {total:,} points masked"
        if self.stage != before:
            self.log(self.stage)

    async def all_keys(self) -> list[Keys]:
        """Wait until all clients have told their IDs."""
        await self._until(lambda: set(self._keys) >= set(self.clients.names), "tell their IDs")
        result = same_kind([self._keys[name] for name in self.clients.names])
        self._keys |= {keys.table.client: keys for keys in result}
        return result

    def _modelled(self, shape: tuple[int, ...] | None) -> Model:
        """Build the network, from its specification alone, and see that it works."""
        settings, outputs = self.job.training, self.plan.outputs
        network, width = None, outputs
        if shape is not None:
            network = build_network(self.silo, self.job.model_of(self.silo), shape, outputs, settings)
            width = width_of(self.silo, network, torch.zeros(2, *shape, dtype=settings.dtype))
        labels = {
            part: settings.objective.prepare(values, width, settings.dtype) for part, values in self.plan.labels.items()
        }
        if network:
            network.release_weights()
        return Model(network, shape, width, labels)

    def first_state(self) -> SiloState:
        """Return what the silo carries into the first round."""
        return SiloState(self.first_block())

    def first_block(self) -> Block:
        """Return the silo's first weights, drawn from the seed; none in a silo that has labels only."""
        settings, shape = self.job.training, self.model.shape
        if shape is None:
            return {}
        network = build_network(self.silo, self.job.model_of(self.silo), shape, self.plan.outputs, settings)
        check_finite({self.silo: network.initial()}, {self.silo: network}, "")
        return network.release_weights()

    async def welcome(self, link: Link) -> None:
        """Bring a client that has come to where it can take part."""
        tables = isinstance(self.job.data, TableData)
        if tables:
            await self._hear_keys(link)
            await self._known(lambda: self._plan is not None)
            if self.preparation is None and not self.plan.label_only:
                await self._hear_survey(link)
        await self._known(lambda: self._model is not None)
        plan, model = self.plan, self.model
        held = plan.holdings[link.name]
        tensors = {part.word: torch.from_numpy(numbers) for part, numbers in held.items()}
        if model.labels:
            tensors["labels"] = model.labels[Part.TRAIN][tensors[Part.TRAIN.word]]
        if tables:
            tensors |= self._placed(link.name)
        if self.preparation:
            text = bytearray(self.preparation.to_json().encode())
            tensors["preparation"] = torch.frombuffer(text, dtype=torch.uint8)
        facts = {
            "population": plan.counts[Part.TRAIN],
            "shape": None if model.shape is None else list(model.shape),
            "outputs": plan.outputs,
            "width": model.width,
            "kind": self._kind,
        }
        await link.ask(Message("begin", facts, tensors))

    async def _hear_keys(self, link: Link) -> None:
        answer = await link.ask(Message("keys"), LARGEST)
        with _understood(link, answer):
            keys = self._keys_of(link, answer)
        if self.alignment:
            self.alignment.verify_client(self.alignment.place([keys])[0], "this training")
        self._keys[link.name] = keys
        await self._tell()

    def _keys_of(self, link: Link, answer: Message) -> Keys:
        facts, own = answer.facts, self.job.silos[self.silo]
        columns = tuple(str(column) for column in facts["columns"])
        table = RemoteTable(self.silo, link.name, Path(str(facts["file"])), own, bool(facts["csv"]), columns)
        values = {str(column): tensors_array(f"fact {number}", answer) for number, column in enumerate(facts["facts"])}
        ids = tensors_array("ids", answer)
        if ids.dtype.kind not in "iuU" or any(array.shape != (ids.size,) for array in (ids, *values.values())):
            raise RefusedError(f"client '{link.name}' sends IDs, or values with them, of a strange shape or type")
        if own.label in values and self.job.labels.private:
            raise RefusedError(f"client '{link.name}' sends labels, which are to be kept")
        if own.label and own.label not in values and not self.job.labels.private:
            raise RefusedError(f"client '{link.name}' sends IDs without the labels '{own.label}'")
        return Keys(table, as_kind(id_series(ids), self._kind), values)

    async def _hear_survey(self, link: Link) -> None:
        facts: dict[str, Any] = {"columns": self._columns, "kind": self._kind}
        answer = await link.ask(Message("survey", facts, self._placed(link.name)), LARGEST)
        with _understood(link, answer):
            text = TypeAdapter(SurveyReport).validate_json(answer.tensors["json"].numpy().tobytes())
            if {*text.facts, *text.empty, *text.problems} - set(self._columns):
                raise RefusedError(f"client '{link.name}' tells of columns that it was not asked about")
        table = self._keys[link.name].table
        self._surveys[link.name] = Survey(table, self._columns, text)
        await self._tell()

    @property
    def _kind(self) -> str:
        """Whether IDs are whole numbers or texts."""
        return kind_of(self.alignment.ids) if self.alignment else ""

    def _placed(self, client: str) -> dict[str, Tensor]:
        """Tell a client which of its rows have common IDs, and what those are for."""
        assert self.alignment  # noqa: S101
        places = self.alignment.places(self._keys[client].ids)
        return {
            "common": torch.from_numpy((places >= 0).astype(np.uint8)),
            "parts": torch.from_numpy(self.plan.parts[np.sort(places[places >= 0])]),
        }

    async def enough(self) -> None:
        """Wait until as many clients are there as the job wants at least."""
        deployment = self.job.deployment
        least = min(deployment.minimum_clients, len(self.plan.roster.clients))
        await self.clients.enough(least, deployment.hub_deadline)

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for clients."""
        seconds = self.job.deployment.hub_deadline
        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(done), seconds)
            except TimeoutError as error:
                absent = sorted(set(self.clients.names) - set(self.clients.links))
                raise DeploymentError(
                    f"silo '{self.silo}': after {seconds:g} seconds not all clients have come to {what}; absent: "
                    f"{', '.join(absent) or 'none, but some have not answered'}. All of them are needed to begin"
                ) from error

    async def _known(self, done: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(done)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def align_again(self, everybody: Mapping[str, Mapping[str, Any]]) -> None:
        """Help a hub that does not know the common IDs to find them."""
        result = await self._aligned(await self.all_keys(), everybody)
        if result.fingerprint != self.plan.fingerprint:
            raise DataError("the common IDs are not those that this training began with; start a new one")


@contextmanager
def _understood(link: Link, answer: Message) -> Iterator[None]:
    """Whatever is strange in an answer is a reason to refuse it, and none to stop."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RefusedError(
            f"client '{link.name}': its '{answer.kind}' cannot be understood: {error!r}"[:500]
        ) from error
