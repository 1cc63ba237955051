"""How much each silo's columns matter, measured by all hubs together when the training has ended.

Every hub sends the embeddings of the held-out rows to the hub of the labels once. Then, for each of its own columns,
its clients deal the column's values anew among their own rows and embed these, and the hub of the labels measures them
beside what the other silos sent first. It does not learn which column it is of; nobody but the client sees rows.
Whatever goes wrong, the training has ended as it has.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite, nan

import numpy as np
import torch
from torch import Tensor

from tdcd.core.network import Block, named_tensors
from tdcd.core.state import SiloState
from tdcd.data.holdout import Part
from tdcd.data.tables.preparation import MOST_INPUTS, Preparation
from tdcd.engines.base import RewoundError
from tdcd.errors import TdcdError, join_names
from tdcd.runs.importance import ALL, Importance, Importances
from tdcd.runs.layout import IMPORTANCE
from tdcd.runs.records import write_record
from tdcd.runs.store import load_blocks
from tdcd.sites.hub.context import HubContext
from tdcd.sites.hub.evaluation import Dealt, Evaluator, PartResult
from tdcd.sites.hub.setup import Prepared
from tdcd.sites.messages.frames import RefusedError, Stamp
from tdcd.sites.messages.packing import known as need
from tdcd.sites.messages.types import EVERY, Fall, SiloScores

END = SiloScores((), (), ())
"""A silo's last word: it has no more columns."""
NOTHING = Fall(0, {}, {}, (), ())
FAREWELL = 10.0
"""Seconds to tell the hub of the labels so."""
MOST_COLUMNS = 100 * MOST_INPUTS
"""Of a silo: a hub that goes on beyond makes it up."""


@dataclass
class ColumnImportance:
    """A hub's part of it."""

    context: HubContext
    prepared: Prepared
    preparation: Preparation | None
    """How this silo's tables become numbers; none in a silo that has labels only."""
    version: int
    """Names the weights, as in evaluations."""
    _judge: "_Judge | None" = field(init=False, default=None)
    """At the hub of the labels."""
    _step: int = 1
    """Of the exchange that is under way."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The hub asks its clients one thing at a time."""

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.context, self.prepared, by_class=True)

    async def measure(self) -> None:
        """Measure how much this silo's columns matter, and write it to the run directory, or say why not."""
        counts = self.prepared.plan.counts
        part = next((part for part in (Part.TEST, Part.VALIDATION) if counts.get(part)), None)
        if part is None:
            self.context.log("the importance of columns is not measured: no samples are held out")
            return
        self.context.progress.stage = "measuring the importance of columns"
        try:
            leads = self.evaluator.label_silo == self.context.silo
            record = await (self._lead(part) if leads else self._follow(part))
            if record:
                write_record(self.context.directory / IMPORTANCE, record)
                self.context.log(f"measured the importance of {len(record.sorted())} columns: {IMPORTANCE}")
        except (TdcdError, RewoundError, OSError) as error:
            self.context.log(f"the importance of columns was not measured: {str(error) or 'the hubs meet again'}")
        except Exception as error:  # the training has ended well
            self.context.log(f"the importance of columns was not measured: {type(error).__name__}: {error}")

    def _block(self) -> Block:
        """Return the weights that the training ended with, as clients receive them."""
        if (network := self.prepared.model.network) is None:
            return {}
        block = load_blocks(self.context.directory)[self.context.silo]  # in the order of their names
        return self.prepared.sent(SiloState({name: block[name] for name, _ in named_tensors(network.module)}))

    async def _follow(self, part: Part) -> Importances | None:
        """Have this silo's columns measured by the hub of the labels."""
        serves = True
        try:
            block = self._block()
            first = await self._exchange(await self._scores(block, part), part)
            serves = self.evaluator.tells and first.rows > 0
            return await self._columns(block, part, first)
        finally:
            if serves:  # it need not wait for more
                with suppress(TdcdError, RewoundError, TimeoutError):
                    async with asyncio.timeout(FAREWELL):
                        await self.context.peers.send(self.evaluator.label_silo, END, self._stamp(self._step))

    async def _lead(self, part: Part) -> Importances | None:
        """Measure for all silos: at the hub of the labels."""
        peers, first, served = self.context.peers, NOTHING, []
        try:
            try:
                block = self._block()
                every = {} if self.prepared.plan.label_only else {self.context.silo: await self._scores(block, part)}
                every |= {silo: await peers.receive(silo, SiloScores, self._stamp(1)) for silo in peers.peers}
                self._judge = _Judge(self.evaluator, part, every)
                first = await self._exchange(None, part)
            finally:
                shown = first if self.evaluator.tells else NOTHING
                served = [asyncio.ensure_future(self._serve(silo, shown)) for silo in peers.peers]
            return await self._columns(block, part, first)
        finally:
            results = await asyncio.gather(*served, return_exceptions=True)
            for silo, error in zip(peers.peers, results, strict=True):
                if error is not None:
                    self.context.log(f"the columns of silo '{silo}' were not all measured: {error}")

    async def _columns(self, block: Block, part: Part, first: Fall) -> Importances | None:
        """Measure each of this silo's columns."""
        log, repeats = self.context.log, self.context.job.deployment.importance
        if self.preparation is None:
            return None
        if not self.evaluator.tells and self._judge is None:
            log("the importance of columns is not measured here: labels.tell_metrics keeps metrics from this hub")
            return None
        primary = self.prepared.settings.objective.primary
        metric = primary if primary in first.before else "loss"
        known = first.before.get(metric, nan)
        if not first.rows or not isfinite(known):
            log(
                f"the importance of columns was not measured: the hub of '{self.evaluator.label_silo}' measured nothing"
            )
            return None
        entries, missing, fewest, inputs = [], [], first.rows, self.preparation.inputs
        for column, name in enumerate([ALL, *inputs], start=EVERY):
            falls = []
            for repeat in range(repeats if name == ALL or inputs[name] else 0):  # a constant column has no inputs
                scores = await self._scores(block, part, Dealt(column, repeat))
                falls.append(await self._exchange(scores, part))
            if all(isfinite(one.get(metric, nan)) for fall in falls for one in (fall.before, fall.after)):
                entries.append(self._importance(name, metric, falls))
                fewest = min([fewest, *(fall.rows for fall in falls)])
            else:
                missing.append(name or "all columns together")
        notes = [f"not measured, as clients were away: {join_names(missing)}"] if missing else []
        if fewest < first.rows:
            notes.append(f"clients were away: some columns were measured on {fewest:,} of {first.rows:,} rows")
        return Importances(metric, known, first.rows, repeats, tuple(entries), within_clients=True, notes=tuple(notes))

    def _importance(self, name: str, metric: str, falls: Sequence[Fall]) -> Importance:
        sign = -1.0 if metric == "loss" else 1.0
        each = [sign * (fall.before[metric] - fall.after[metric]) for fall in falls] or [0.0]
        areas = [one for fall in falls for one in (fall.before_by_class, fall.after_by_class)]
        width = len(areas[0]) if areas else 0
        by_class: dict[str, float] = {}
        if width and all(len(one) == width and np.isfinite(one).all() for one in areas):
            own = self.prepared.plan.classes
            names = own if len(own) == width else tuple(map(str, range(width)))
            means = np.mean([np.subtract(fall.before_by_class, fall.after_by_class) for fall in falls], axis=0)
            by_class = dict(zip(names, means.tolist(), strict=True))
        return Importance(self.context.silo, name, float(np.mean(each)), float(np.std(each)), by_class)

    async def _scores(self, block: Block, part: Part, dealt: Dealt | None = None) -> SiloScores:
        async with self._asking:
            return await self.evaluator.own_scores(block, self.version, self._stamp(self._step), [part], dealt)

    async def _exchange(self, scores: SiloScores | None, part: Part) -> Fall:
        """Let the hub of the labels measure."""
        stamp, peers = self._stamp(self._step), self.context.peers
        if self._judge is not None:
            self._step += 1
            return await self._judged({self.context.silo: scores} if scores else {}, stamp)
        await peers.send(self.evaluator.label_silo, scores, stamp)
        self._step += 1
        fall = await peers.receive(self.evaluator.label_silo, Fall, stamp)
        if not 0 <= fall.rows <= self.prepared.plan.counts[part]:
            raise RefusedError(
                f"the hub of silo '{self.evaluator.label_silo}' says that it measured {fall.rows:,} rows"
            )
        return fall

    async def _serve(self, silo: str, first: Fall) -> None:
        """Tell another hub what was measured first, then measure its columns."""
        peers, most = self.context.peers, self.context.job.deployment.importance * MOST_COLUMNS
        await peers.send(silo, first, self._stamp(1))
        if not first.rows:
            return
        for step in range(2, 2 + most):
            stamp, fall = self._stamp(step), NOTHING
            scores = await peers.receive(silo, SiloScores, stamp)
            if not scores.parts:
                return
            try:
                fall = await self._judged({silo: scores}, stamp)
            finally:
                await peers.send(silo, fall, stamp)
        raise RefusedError("it has more columns than it may have")

    async def _judged(self, changed: Mapping[str, SiloScores], stamp: Stamp) -> Fall:
        async with self._asking:
            return await need(self._judge, "scores").fall(changed, stamp)

    def _stamp(self, step: int) -> Stamp:
        return Stamp("", 0, self.context.peers.now, 0, step)


@dataclass
class _Judge:
    """Measures at the hub of the labels: what the silos sent first, with the scores of one of them replaced."""

    evaluator: Evaluator
    part: Part
    every: Mapping[str, SiloScores]
    """As all values are."""
    _before: PartResult = field(default_factory=PartResult)
    _of: Tensor | None = None
    """The rows that that was measured on."""

    def __post_init__(self) -> None:
        self._scores, self._there = self.evaluator.joined(self.part, self.every)

    async def fall(self, changed: Mapping[str, SiloScores], stamp: Stamp) -> Fall:
        """Measure before and after on the same rows, whoever is away."""
        scores, there = self.evaluator.joined(self.part, {**self.every, **changed})
        there = there & self._there
        after = await self._measure(scores, there, stamp)
        if not changed:
            self._before, self._of = after, there
        if self._of is None or not torch.equal(there, self._of) or after.rows != self._before.rows:
            self._before, self._of = await self._measure(self._scores, there, stamp), there
        before = self._before
        if after.rows != before.rows:  # a client was lost in between
            return NOTHING
        return Fall(after.rows, dict(before.measures), dict(after.measures), before.by_class, after.by_class)

    async def _measure(self, scores: Tensor, there: Tensor, stamp: Stamp) -> PartResult:
        return (await self.evaluator.measure({self.part: (scores, there)}, stamp))[self.part]
