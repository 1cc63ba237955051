"""A hub whose clients have tables: what they hold, the common IDs, and how columns become numbers."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from tdcd.data.tables.alignment import Alignment, Keys, as_kind, kind_of, same_kind
from tdcd.data.tables.preparation import Preparation, fit
from tdcd.data.tables.reader import RemoteTable
from tdcd.data.tables.survey import Facts, NumberFacts, Survey, SurveyReport
from tdcd.engines.base import RewoundError
from tdcd.errors import DataError, join_names
from tdcd.files import write_atomically
from tdcd.jobs.schema import TableJob
from tdcd.jobs.tables import silo_features
from tdcd.runs.layout import preparation_file
from tdcd.sites.event_loop import now
from tdcd.sites.hub.align import align_silos, describe_ids
from tdcd.sites.hub.context import HubContext, News
from tdcd.sites.hub.link import GoneError, Link
from tdcd.sites.hub.plan import SiloPlan, plan_from_tables
from tdcd.sites.hub.psi import remove_done
from tdcd.sites.messages.frames import LARGEST, RefusedError
from tdcd.sites.messages.types import ClientKeys, RequestKeys, RequestSurvey, SurveyReply
from tdcd.sites.shared_job import data_fingerprint


@dataclass
class SiloTables:
    """The tables of a silo's clients, as its hub knows them."""

    job: TableJob
    context: HubContext
    news: News
    alignment: Alignment | None = None
    preparation: Preparation | None = None
    plan: SiloPlan | None = None
    brought: Mapping[str, Any] = field(default_factory=dict)
    """What other hubs hear of this silo's IDs before an alignment."""
    keys: dict[str, Keys] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    """Of the keys, as the clients tell."""
    _surveys: dict[str, Survey] = field(default_factory=dict)
    _columns: list[str] = field(default_factory=list)
    _masking_began: float = 0.0

    async def prepare(self) -> SiloPlan:
        """Find the common IDs together with the other hubs, and survey the columns, unless both are known."""
        context = self.context
        file = context.directory / "alignment.parquet"
        if file.exists():
            self.alignment = Alignment.load(file)
            remove_done(self._aligning)  # it may have ended just before that
            if set(self.alignment.shares) != {context.silo}:
                raise DataError(
                    f"{file}: it is not the alignment of silo '{context.silo}' alone; remove it to align again"
                )
        else:
            self.alignment = await self._first_alignment()
            context.directory.mkdir(parents=True, exist_ok=True)
            self.alignment.save(file)
            remove_done(self._aligning)
        await self.news.tell()
        stored, planned = preparation_file(context.directory, context.silo), context.directory / "silo.safetensors"
        before = SiloPlan.load(planned) if planned.exists() else None
        whole = before and (before[0].label_only or stored.exists())
        job = data_fingerprint(self.job)
        if before and whole and before[0].fingerprint == self.alignment.fingerprint and before[1].get("job") == job:
            self.plan, self.brought = before[0], before[1]["brought"]
            self.preparation = None if self.plan.label_only else Preparation.from_file(stored)
            return self.plan
        context.progress.stage = "gathering clients"
        keys = await self.all_keys()
        self.alignment.verify({context.silo: keys}, str(file))
        self.plan = plan_from_tables(self.job, context.silo, self.alignment, keys, "this job")
        self.brought = describe_ids(self.job, keys)
        self._columns = silo_features(self.job, context.silo, [key.table for key in keys])
        self.plan.save(planned, {"brought": self.brought, "job": job})
        await self.news.tell()
        self.preparation = None if self.plan.label_only else await self._fit_preparation(stored)
        return self.plan

    async def _fit_preparation(self, file: Path) -> Preparation:
        """Survey the columns."""
        context = self.context
        context.progress.stage = "surveying the columns"
        names = self._aligned
        await self.news.wait_for_clients(context, lambda: set(self._surveys) >= names, "report what their columns hold")
        result = fit(self._surveys.values(), self._columns, self.job.silos[context.silo].rare)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, result.to_json())
        context.log(result.describe())
        return result

    async def _first_alignment(self) -> Alignment:
        """Find the common IDs together with all other hubs."""
        context = self.context
        context.progress.stage = "gathering clients"
        keys = await self.all_keys()
        while True:
            context.progress.stage = "aligning"
            everybody = await context.peers.meeting("start", {"alignment": "", **describe_ids(self.job, keys)})
            began = now()
            try:
                result = await self._align(keys, everybody)
            except RewoundError:
                context.log("a hub was restarted: aligning again")
                continue
            context.log(f"{len(result.ids):,} IDs are in all silos, found in {now() - began:.1f} s")
            return result

    async def _align(self, keys: list[Keys], everybody: Mapping[str, Mapping[str, Any]]) -> Alignment:
        context = self.context
        try:
            self._masking_began = time.monotonic()
            return await align_silos(
                self.job, context.silo, keys, everybody, context.peers, self._masking, self._aligning
            )
        except DataError:  # it would end in the same way again
            remove_done(self._aligning)
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RefusedError(f"another hub's messages do not make an alignment: {error!r}") from error

    @property
    def _aligning(self) -> Path:
        """Where it is kept what is done of an alignment."""
        return self.context.directory / "aligning"

    def _masking(self, done: int, total: int) -> None:
        """Log every tenth of the way."""
        tenths, progress = 10 * done // max(total, 1), self.context.progress
        stage = f"aligning {'█' * tenths}{'░' * (10 - tenths)} {10 * tenths} % of {total:,} points masked"
        if not progress.stage.startswith(stage):
            left = (time.monotonic() - self._masking_began) * (total - done) / max(done, 1)
            progress.stage = f"{stage}, about {left:.0f} s left" if done < total else stage
            self.context.log(progress.stage)

    def end_alignment(self) -> None:
        """Remove what was kept of an alignment: all hubs know the common IDs."""
        remove_done(self._aligning)

    async def align_again(self, everybody: Mapping[str, Mapping[str, Any]]) -> None:
        """Help a hub that does not know the common IDs to find them."""
        result = await self._align(await self.all_keys(), everybody)
        if self.plan is None or result.fingerprint != self.plan.fingerprint:
            raise DataError("the common IDs are not those that this training began with; start a new one")
        remove_done(self._aligning)

    @property
    def _aligned(self) -> set[str]:
        """The clients whose IDs were aligned; before that, all."""
        return set(self.alignment.shares[self.context.silo] if self.alignment else self.context.clients.names)

    async def all_keys(self) -> list[Keys]:
        """Wait until all clients have sent their IDs; before an alignment, perhaps until enough have."""
        names, links = self._aligned, self.context.clients.links
        missing = [link for name, link in links.items() if name not in self.keys and link.ready and link.free]
        for result in await asyncio.gather(*map(self._hear_keys, missing), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, GoneError):
                raise result
        if not self.alignment:
            await self._wait_for_enough()
            names = names & set(self.keys)
        await self.news.wait_for_clients(self.context, lambda: set(self.keys) >= names, "send their IDs")
        every = same_kind([self.keys[name] for name in self.context.clients.names if name in names])
        self.keys |= {keys.table.client: keys for keys in every}
        return every

    async def _wait_for_enough(self) -> None:
        """Wait for the IDs of all clients; if fewer are enough to start with, for the rest as long as a stage takes."""
        deployment, names = self.job.deployment, set(self.context.clients.names)
        enough = len(names) if deployment.start_with == "all" else min(deployment.start_with, len(names))
        if enough < len(names):
            with suppress(TimeoutError):
                async with asyncio.timeout(deployment.client_deadline):
                    await self.news.wait(lambda: set(self.keys) >= names)
        await self.news.wait_for_clients(self.context, lambda: len(self.keys) >= enough, "send their IDs")
        if away := sorted(names - set(self.keys)):
            self.context.log(f"starting without the rows of {join_names(away)}, as deployment.start_with allows")

    # Clients that come

    async def hear(self, link: Link) -> None:
        """Hear a client's IDs and, where that is not known yet, what its columns hold."""
        await self._hear_keys(link)
        await self.news.wait(lambda: self.plan is not None)
        if link.name not in self._aligned:
            self.context.log(f"client '{link.name}' came after the IDs were aligned: it waits for the next training")
        if self.preparation is None and self.plan and not self.plan.label_only and link.name in self._aligned:
            await self._hear_survey(link)

    async def _hear_keys(self, link: Link) -> None:
        reply = await link.ask(RequestKeys(self._digests.get(link.name, "")), ClientKeys, LARGEST)
        if reply.unchanged:
            if link.name not in self.keys or reply.digest != self._digests[link.name]:
                raise RefusedError(f"client '{link.name}' has no IDs that this hub knows")
            return
        keys = self._keys_of(link, reply)
        if self.alignment and link.name in self._aligned:
            self.alignment.verify_client(self.alignment.place([keys])[0], "this training")
        self.keys[link.name], self._digests[link.name] = keys, reply.digest
        await self.news.tell()

    def _keys_of(self, link: Link, reply: ClientKeys) -> Keys:
        context = self.context
        own, private = self.job.silos[context.silo], self.job.labels.private
        table = RemoteTable(context.silo, link.name, Path(reply.file), own, reply.csv, reply.columns)
        if len(reply.named) != len(reply.facts):
            raise RefusedError(f"client '{link.name}' sends {len(reply.facts)} columns and names {len(reply.named)}")
        values, ids = dict(zip(reply.named, reply.facts, strict=True)), reply.ids
        if any(len(column) != len(ids) or column.dtype != pl.String for column in values.values()):
            raise RefusedError(f"client '{link.name}' sends values of an unexpected number or type with its IDs")
        if not len(ids):
            raise RefusedError(f"client '{link.name}' sends no IDs")
        if own.label in values and private:
            raise RefusedError(f"client '{link.name}' sends labels, which are private")
        if own.label and own.label not in values and not private:
            raise RefusedError(f"client '{link.name}' sends IDs without the labels '{own.label}'")
        return Keys(table, as_kind(ids, self.kind), values)

    async def _hear_survey(self, link: Link) -> None:
        common, places = self.placed(link.name)
        request = RequestSurvey(tuple(self._columns), self.kind, common, places)
        reply = await link.ask(request, SurveyReply, LARGEST)
        try:
            report = TypeAdapter(SurveyReport).validate_json(reply.report)
        except ValidationError as error:
            raise RefusedError(f"client '{link.name}': its survey is malformed: {error!r}"[:500]) from error
        counts = (count for marks in report.marked.values() for count in marks.values())
        if not all(map(_plausible, report.facts.values())) or any(count < 0 for count in counts):
            raise RefusedError(f"client '{link.name}' reports impossible counts or sums")
        if {*report.facts, *report.empty, *report.problems, *report.marked} - set(self._columns):
            raise RefusedError(f"client '{link.name}' reports columns that it was not asked about")
        self._surveys[link.name] = Survey(self.keys[link.name].table, self._columns, report)
        await self.news.tell()

    @property
    def kind(self) -> str:
        """Whether IDs are whole numbers or texts, once that is known."""
        return kind_of(self.alignment.ids) if self.alignment else ""

    def placed(self, client: str) -> tuple[Tensor, Tensor]:
        """Return which of a client's rows have common IDs, and what those are for."""
        if self.alignment is None or self.plan is None:
            raise RuntimeError("the common IDs are not known")
        places = self.alignment.places(self.keys[client].ids)
        if client not in self._aligned:
            places = np.full_like(places, -1)
        common = torch.from_numpy((places >= 0).astype(np.uint8))
        return common, torch.from_numpy(self.plan.parts[np.sort(places[places >= 0])])


def _plausible(facts: Facts) -> bool:
    """Tell whether counts and sums could be those of some rows."""
    if isinstance(facts, NumberFacts):
        return facts.count >= 0 and facts.missing >= 0 and not facts.spread < 0
    return facts.missing >= 0 and all(count > 0 for count in facts.counts.values())
