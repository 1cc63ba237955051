"""What happens at a hub before the first round.

It hears what its clients hold, finds the common IDs together with the other hubs, surveys the columns, and brings every
client that comes to where it can take part.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdcd.core.aggregators import Aggregator, HubRound, check_room
from tdcd.core.codecs import Codecs, row_size
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Block, Network, named_tensors
from tdcd.core.state import SiloState
from tdcd.data.holdout import Part
from tdcd.engines.base import block_bytes
from tdcd.errors import JobError
from tdcd.jobs.data import JobData
from tdcd.jobs.schema import TableJob
from tdcd.sites.hub.context import HubContext, News
from tdcd.sites.hub.link import Link
from tdcd.sites.hub.plan import SiloPlan, plan_from_set
from tdcd.sites.messages.types import Begin, Begun, Resume, Resumed
from tdcd.training.settings import Settings
from tdcd.training.setup import build_network, check_finite, no_steps, width_of

if TYPE_CHECKING:
    from tdcd.data.tables.preparation import Preparation
    from tdcd.sites.hub.silo_tables import SiloTables


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
    steps: LocalSteps
    codecs: Codecs
    aggregator: Aggregator
    """What the hub makes of its clients' weights."""
    largest_update: float | None = None
    """How far a client's weights may move in a round."""

    @cached_property
    def row_size(self) -> tuple[int, int]:
        """The bytes of a row in a message, and of the message besides its rows."""
        return row_size(self.codecs.rows, self.model.width, self.settings.dtype)

    def sent(self, state: SiloState) -> Block:
        """Return what clients receive of the silo's state."""
        network = self.model.network
        return self.steps.sent(state, network.trainable) if network else {}

    @property
    def trainable(self) -> Collection[str]:
        """The weights that gradient steps change."""
        return self.model.network.trainable if self.model.network else ()

    def hub_round(self, number: int, silos: int) -> HubRound:
        """Return what the hub knows of a round, in which so many silos have features."""
        return HubRound.of(number, self.settings.rate_of, silos, self.trainable)


@dataclass
class HubSetup:
    """A hub before the first round."""

    context: HubContext
    prepared: Prepared | None = None
    """All that it finds out, once it is known."""
    _news: News = field(default_factory=News)
    tables: "SiloTables | None" = field(init=False, default=None)
    """What its clients' tables hold, where they have tables."""

    def __post_init__(self) -> None:
        job = self.context.job
        if isinstance(job, TableJob):
            from tdcd.sites.hub.silo_tables import SiloTables  # brings polars

            self.tables = SiloTables(job, self.context, self._news)

    @property
    def settings(self) -> Settings:
        """How the silo trains."""
        return self.context.job.settings_of(self.context.silo)

    @property
    def plan(self) -> SiloPlan | None:
        """Who holds what, once that is known."""
        return self.prepared.plan if self.prepared else self.tables.plan if self.tables else None

    @property
    def preparation(self) -> "Preparation | None":
        """How tables become numbers, where clients have tables."""
        return self.tables.preparation if self.tables else None

    @property
    def brought(self) -> Mapping[str, Any]:
        """What other hubs hear of this silo's IDs before an alignment."""
        return self.tables.brought if self.tables else {}

    async def prepare(self, data: JobData | None) -> None:
        """Gather the clients, find the common IDs, and survey the columns.

        Args:
            data: A data set that every site has; none if clients have tables.
        """
        context, settings = self.context, self.settings
        shape: tuple[int, ...] | None
        if self.tables:
            plan = await self.tables.prepare()
            shape = (len(self.tables.preparation.outputs),) if self.tables.preparation else None
        elif data is None:
            raise RuntimeError("a job on a data set, without its data")
        else:
            plan = plan_from_set(context.job, context.silo, data)
            rows = data.federation.samples.features.get(context.silo)
            shape = None if rows is None else tuple(rows.shape[1:])
        if shape is None and settings is not context.job.training:
            raise JobError(no_steps(context.silo))
        model = self._build(plan, shape)
        steps, aggregator, bound = settings.steps, settings.make_aggregator(), context.job.deployment.largest_update
        if model.network:
            sent = steps.sent(SiloState(dict(named_tensors(model.network.module))), model.network.trainable)
            check_room(aggregator, len(plan.roster.clients), block_bytes(sent), context.silo)
        self.prepared = Prepared(settings, plan, model, steps, settings.codecs, aggregator, bound)
        await self._news.tell()

    def end_alignment(self) -> None:
        """All hubs know the common IDs."""
        if self.tables:
            self.tables.end_alignment()

    async def align_again(self, everybody: Mapping[str, Mapping[str, Any]]) -> None:
        """Help a hub that does not know the common IDs to find them."""
        if self.tables:
            await self.tables.align_again(everybody)

    def _build(self, plan: SiloPlan, shape: tuple[int, ...] | None) -> Model:
        """Build the network, from its specification alone, and see that it works."""
        context, settings, outputs = self.context, self.settings, plan.outputs
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

    async def welcome(self, link: Link) -> None:
        """Bring a client that has come to where it can take part."""
        if self.prepared and (await link.ask(Resume(self._setup(link.name)), Resumed)).ready:
            return
        if self.tables:
            await self.tables.hear(link)
        await self._news.wait(lambda: self.prepared is not None)
        await link.ask(self._begin(link.name), Begun)

    def _begin(self, client: str) -> Begin:
        """Return what a client needs to take part."""
        prepared = self.ready()
        plan, model = prepared.plan, prepared.model
        nothing = {part: np.empty(0, dtype=np.int64) for part in plan.counts}  # of one that came after the alignment
        holding = plan.holdings.get(client, nothing)
        held = {part.word: torch.from_numpy(numbers) for part, numbers in holding.items()}
        common, places = self.tables.placed(client) if self.tables else (None, None)
        return Begin(
            setup=self._setup(client),
            population=plan.counts[Part.TRAIN],
            shape=model.shape,
            outputs=plan.outputs,
            width=model.width,
            parts=tuple(held),
            numbers=tuple(held.values()),
            labels=model.labels[Part.TRAIN][held[Part.TRAIN.word]] if model.labels else None,
            kind=self.tables.kind if self.tables else "",
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
