"""What happens at a hub before the first round.

It hears what its clients hold, finds the common IDs together with the other hubs, surveys the columns, and brings every
client that comes to where it can take part.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from tdcd.core.network import Block, Network
from tdcd.core.state import HubUpdate, SiloState, take_average
from tdcd.data.holdout import Part
from tdcd.engines.base import RewoundError
from tdcd.errors import DataError, DeploymentError
from tdcd.files import write_atomically
from tdcd.jobs.data import JobData
from tdcd.jobs.schema import TableData
from tdcd.runs.layout import preparation_file
from tdcd.sites.event_loop import now
from tdcd.sites.hub.context import HubContext
from tdcd.sites.hub.link import Link
from tdcd.sites.hub.peers import LARGEST
from tdcd.sites.hub.plan import SiloPlan, plan_from_set, plan_from_tables
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.types import (
    Begin,
    Begun,
    ClientKeys,
    RequestKeys,
    RequestSurvey,
    Resume,
    Resumed,
    SurveyReply,
)
from tdcd.training.momentum import hub_updates
from tdcd.training.settings import Settings
from tdcd.training.setup import build_network, check_finite, width_of

if TYPE_CHECKING:  # polars is imported only where clients have tables
    from tdcd.data.tables.alignment import Alignment, Keys
    from tdcd.data.tables.preparation import Preparation
    from tdcd.data.tables.survey import Survey


@dataclass(frozen=True)
class Model:
    """What a hub's silo trains."""

    network: Network | None
    """For names and shapes: its weights are not kept here. None in a silo that has labels only."""
    shape: tuple[int, ...] | None
    """Of a row."""
    width: int
    labels: Mapping[Part, Tensor]
    """As the loss wants them; none where they are private."""


@dataclass(frozen=True)
class Prepared:
    """What a hub knows once it is set up."""

    settings: Settings
    plan: SiloPlan
    model: Model
    update: HubUpdate
    """What the hub makes of its clients' average."""


@dataclass
class HubSetup:
    """A hub before the first round."""

    context: HubContext
    alignment: "Alignment | None" = None
    preparation: "Preparation | None" = None
    brought: Mapping[str, Any] = field(default_factory=dict)
    """What other hubs hear of this silo's IDs before an alignment."""
    plan: SiloPlan | None = None
    prepared: Prepared | None = None
    """All of it, once it is known."""
    _keys: dict[str, "Keys"] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    """Of the keys, as the clients tell."""
    _surveys: dict[str, "Survey"] = field(default_factory=dict)
    _columns: list[str] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def prepare(self, data: JobData | None) -> None:
        """Gather the clients, find the common IDs, and survey the columns.

        Args:
            data: A data set that every site has; none if clients have tables.
        """
        context = self.context
        if data is None:
            plan = await self._prepare_tables()
            shape: tuple[int, ...] | None = (len(self.preparation.outputs),) if self.preparation else None
        else:
            plan = plan_from_set(context.job, context.silo, data)
            rows = data.federation.samples.features.get(context.silo)
            shape = None if rows is None else tuple(rows.shape[1:])
        self.plan = plan
        model, settings = self._build(plan, shape), context.job.training
        networks = {context.silo: model.network} if model.network else {}
        update = hub_updates(settings, networks).get(context.silo, take_average)
        self.prepared = Prepared(settings, plan, model, update)
        await self._tell()

    async def _prepare_tables(self) -> SiloPlan:
        from tdcd.data.tables.alignment import Alignment
        from tdcd.data.tables.preparation import Preparation
        from tdcd.jobs.tables import silo_features
        from tdcd.sites.hub.align import describe_ids

        context = self.context
        file = context.directory / "alignment.parquet"
        if file.exists():
            self.alignment = Alignment.load(file)
            if set(self.alignment.shares) != {context.silo}:
                raise DataError(
                    f"{file}: it is not the alignment of silo '{context.silo}' alone; remove it to align again"
                )
        else:
            self.alignment = await self._first_alignment()
            context.directory.mkdir(parents=True, exist_ok=True)
            self.alignment.save(file)
        await self._tell()
        stored, planned = preparation_file(context.directory, context.silo), context.directory / "silo.safetensors"
        before = SiloPlan.load(planned) if planned.exists() else None
        whole = before and (before[0].label_only or stored.exists())
        if before and whole and before[0].fingerprint == self.alignment.fingerprint:
            self.plan, self.brought = before
            self.preparation = None if self.plan.label_only else Preparation.from_file(stored)
            return self.plan
        context.progress.stage = "gathering clients"
        keys = await self.all_keys()
        self.alignment.verify({context.silo: keys}, str(file))
        self.plan = plan_from_tables(context.job, context.silo, self.alignment, keys, "this job")
        self.brought = describe_ids(context.job, keys)
        self._columns = silo_features(context.job, context.silo, [key.table for key in keys])
        self.plan.save(planned, self.brought)
        await self._tell()
        self.preparation = None if self.plan.label_only else await self._fit_preparation(stored)
        return self.plan

    async def _fit_preparation(self, file: Path) -> "Preparation":
        """Survey the columns."""
        from tdcd.data.tables.preparation import fit

        context = self.context
        context.progress.stage = "surveying the columns"
        await self._until(lambda: set(self._surveys) >= set(context.clients.names), "report what their columns hold")
        result = fit(self._surveys.values(), self._columns, context.job.silos[context.silo].rare)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, result.to_json())
        context.log(result.describe())
        return result

    async def _first_alignment(self) -> "Alignment":
        """Find the common IDs together with all other hubs."""
        from tdcd.sites.hub.align import describe_ids

        context = self.context
        context.progress.stage = "gathering clients"
        keys = await self.all_keys()
        while True:
            context.progress.stage = "aligning"
            everybody = await context.peers.meeting("start", {"alignment": "", **describe_ids(context.job, keys)})
            began = now()
            try:
                result = await self._align(keys, everybody)
            except RewoundError:
                context.log("a hub was started again: the alignment begins anew")
                continue
            context.log(f"{len(result.ids):,} IDs are in all silos, found in {now() - began:.1f} s")
            return result

    async def _align(self, keys: "list[Keys]", everybody: Mapping[str, Mapping[str, Any]]) -> "Alignment":
        from tdcd.sites.hub.align import align_silos

        context = self.context
        try:
            return await align_silos(context.job, context.silo, keys, everybody, context.peers, self._masking)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RefusedError(f"another hub's messages do not make an alignment: {error!r}") from error

    def _masking(self, done: int, total: int) -> None:
        """Log every tenth of the way."""
        progress, stage = (
            self.context.progress,
            f"aligning: {10 * (10 * done // max(total, 1))} % of {total:,} points masked",
        )
        if stage != progress.stage:
            progress.stage = stage
            self.context.log(stage)

    async def align_again(self, everybody: Mapping[str, Mapping[str, Any]]) -> None:
        """Help a hub that does not know the common IDs to find them."""
        result = await self._align(await self.all_keys(), everybody)
        if self.plan is None or result.fingerprint != self.plan.fingerprint:
            raise DataError("the common IDs are not those that this training began with; start a new one")

    async def all_keys(self) -> "list[Keys]":
        """Wait until all clients have sent their IDs."""
        from tdcd.data.tables.alignment import same_kind

        names = self.context.clients.names
        await self._until(lambda: set(self._keys) >= set(names), "send their IDs")
        result = same_kind([self._keys[name] for name in names])
        self._keys |= {keys.table.client: keys for keys in result}
        return result

    def _build(self, plan: SiloPlan, shape: tuple[int, ...] | None) -> Model:
        """Build the network, from its specification alone, and see that it works."""
        context, settings, outputs = self.context, self.context.job.training, plan.outputs
        network, width = None, outputs
        if shape is not None:
            network = build_network(context.silo, context.job.model_of(context.silo), shape, outputs, settings)
            width = width_of(context.silo, network, torch.zeros(2, *shape, dtype=settings.dtype))
        labels = {
            part: settings.objective.prepare(values, width, settings.dtype) for part, values in plan.labels.items()
        }
        if network:
            network.release_weights()
        return Model(network, shape, width, labels)

    def first_state(self) -> SiloState:
        """Return what the silo carries into the first round."""
        return SiloState(self.first_block())

    def first_block(self) -> Block:
        """Return the silo's first weights, drawn from the seed; none in a silo that has labels only."""
        prepared, silo = self.ready(), self.context.silo
        if prepared.model.shape is None:
            return {}
        model, outputs = self.context.job.model_of(silo), prepared.plan.outputs
        network = build_network(silo, model, prepared.model.shape, outputs, prepared.settings)
        check_finite({silo: network.initial()}, {silo: network}, "")
        return network.release_weights()

    def ready(self) -> Prepared:
        """Return what the hub knows once it is set up."""
        if self.prepared is None:
            raise RuntimeError("the hub is not set up")
        return self.prepared

    # Clients that come

    async def welcome(self, link: Link) -> None:
        """Bring a client that has come to where it can take part."""
        if self.prepared and (await link.ask(Resume(self._setup(link.name)), Resumed)).ready:
            return
        tables = isinstance(self.context.job.data, TableData)
        if tables:
            await self._hear_keys(link)
            await self._known(lambda: self.plan is not None)
            if self.preparation is None and self.plan and not self.plan.label_only:
                await self._hear_survey(link)
        await self._known(lambda: self.prepared is not None)
        await link.ask(self._begin(link.name), Begun)

    def _begin(self, client: str) -> Begin:
        """Return what a client needs to take part."""
        prepared = self.ready()
        plan, model = prepared.plan, prepared.model
        held = {part.word: torch.from_numpy(numbers) for part, numbers in plan.holdings[client].items()}
        common, places = self._placed(client) if isinstance(self.context.job.data, TableData) else (None, None)
        return Begin(
            setup=self._setup(client),
            population=plan.counts[Part.TRAIN],
            shape=model.shape,
            outputs=plan.outputs,
            width=model.width,
            parts=tuple(held),
            numbers=tuple(held.values()),
            labels=model.labels[Part.TRAIN][held[Part.TRAIN.word]] if model.labels else None,
            kind=self._kind,
            common=common,
            places=places,
            preparation=self.preparation.to_json().encode() if self.preparation else b"",
        )

    def _setup(self, client: str) -> str:
        """Return the fingerprint of what a client is sent to begin with."""
        prepared = self.ready()
        text = f"{client} {prepared.plan.fingerprint} {prepared.model.shape} {prepared.model.width}"
        text += self.preparation.to_json() if self.preparation else ""
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    async def _hear_keys(self, link: Link) -> None:
        reply = await link.ask(RequestKeys(self._digests.get(link.name, "")), ClientKeys, LARGEST)
        if reply.unchanged:
            if link.name not in self._keys or reply.digest != self._digests[link.name]:
                raise RefusedError(f"client '{link.name}' has no IDs that this hub knows")
            return
        keys = self._keys_of(link, reply)
        if self.alignment:
            self.alignment.verify_client(self.alignment.place([keys])[0], "this training")
        self._keys[link.name], self._digests[link.name] = keys, reply.digest
        await self._tell()

    def _keys_of(self, link: Link, reply: ClientKeys) -> "Keys":
        from tdcd.data.tables.alignment import Keys, as_kind, id_series
        from tdcd.data.tables.reader import RemoteTable

        context = self.context
        own, private = context.job.silos[context.silo], context.job.labels.private
        table = RemoteTable(context.silo, link.name, Path(reply.file), own, reply.csv, reply.columns)
        if len(reply.named) != len(reply.facts):
            raise RefusedError(f"client '{link.name}' sends {len(reply.facts)} columns and names {len(reply.named)}")
        values, ids = dict(zip(reply.named, reply.facts, strict=True)), reply.ids
        if ids.dtype.kind not in "iuU" or any(array.shape != (ids.size,) for array in (ids, *values.values())):
            raise RefusedError(f"client '{link.name}' sends IDs, or values with them, of a strange shape or type")
        if own.label in values and private:
            raise RefusedError(f"client '{link.name}' sends labels, which are private")
        if own.label and own.label not in values and not private:
            raise RefusedError(f"client '{link.name}' sends IDs without the labels '{own.label}'")
        return Keys(table, as_kind(id_series(ids), self._kind), values)

    async def _hear_survey(self, link: Link) -> None:
        from tdcd.data.tables.survey import Survey, SurveyReport

        common, places = self._placed(link.name)
        request = RequestSurvey(tuple(self._columns), self._kind, common, places)
        reply = await link.ask(request, SurveyReply, LARGEST)
        try:
            report = TypeAdapter(SurveyReport).validate_json(reply.report)
        except ValidationError as error:
            raise RefusedError(f"client '{link.name}': its survey is malformed: {error!r}"[:500]) from error
        if {*report.facts, *report.empty, *report.problems} - set(self._columns):
            raise RefusedError(f"client '{link.name}' reports columns that it was not asked about")
        self._surveys[link.name] = Survey(self._keys[link.name].table, self._columns, report)
        await self._tell()

    @property
    def _kind(self) -> str:
        """Whether IDs are whole numbers or texts."""
        if self.alignment is None:
            return ""
        from tdcd.data.tables.alignment import kind_of

        return kind_of(self.alignment.ids)

    def _placed(self, client: str) -> tuple[Tensor, Tensor]:
        """Return which of a client's rows have common IDs, and what those are for."""
        if self.alignment is None or self.plan is None:
            raise RuntimeError("the common IDs are not known")
        places = self.alignment.places(self._keys[client].ids)
        common = torch.from_numpy((places >= 0).astype(np.uint8))
        return common, torch.from_numpy(self.plan.parts[np.sort(places[places >= 0])])

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for clients."""
        seconds, clients = self.context.job.deployment.hub_deadline, self.context.clients
        async with self._news:
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait_for(done)
            except TimeoutError as error:
                absent = sorted(set(clients.names) - set(clients.links))
                raise DeploymentError(
                    f"silo '{self.context.silo}': after {seconds:g} seconds not all clients have come to {what}; "
                    f"absent: {', '.join(absent) or 'none, but some have not replied'}. All of them are needed to begin"
                ) from error

    async def _known(self, done: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(done)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()
