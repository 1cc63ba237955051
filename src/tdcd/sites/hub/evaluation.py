"""How hubs evaluate the model together: where the labels are, and nowhere else.

Every hub gathers its clients' embeddings of all rows and sends them to the hub of the silo that has the labels. Where
they are shared, that hub measures. Where they are private, its clients do, each on its own rows, and send it sums; see
tally.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.objectives import Tally
from tdcd.core.objectives.classification import Classification
from tdcd.core.rows import Rows
from tdcd.core.task import sum_embeddings
from tdcd.data.holdout import Part
from tdcd.engines.base import Judge, Measurement, Verdict, block_bytes
from tdcd.errors import AbsentError
from tdcd.sites.hub.clients import Request
from tdcd.sites.hub.context import HubContext, Pause
from tdcd.sites.hub.setup import Prepared
from tdcd.sites.messages.frames import RefusedError, Stamp
from tdcd.sites.messages.packing import UnboundedError, check_numbers, fits
from tdcd.sites.messages.types import Evaluated, Score, Scores, SiloScores, Tallies
from tdcd.sites.messages.types import Judge as JudgeRequest
from tdcd.training.metrics import class_areas, measure
from tdcd.training.rank_bins import choose_edges
from tdcd.training.tally import added, areas_of, bins_of, measured, ranks, why_not_tally

Outcome = tuple[Measurement, Verdict, tuple[str, ...]]
"""What was measured, the verdict, and the parts that nothing could be measured on."""


@dataclass(frozen=True)
class PartResult:
    """What was measured on a part of the samples."""

    measures: Mapping[str, float] = field(default_factory=dict)
    """Loss and metrics."""
    rows: int = 0
    """How many of its rows were measured."""
    by_class: tuple[float, ...] = ()
    """The area under the ROC curve of each class, if that was wanted."""


@dataclass(frozen=True)
class Dealt:
    """What clients do with their rows before they embed them: they deal values of columns anew among them."""

    column: int
    """Of the preparation, or ``EVERY``."""
    repeat: int


@dataclass(frozen=True)
class Evaluator:
    """A hub's part of evaluations."""

    context: HubContext
    prepared: Prepared
    by_class: bool = False
    """Whether to measure each class, too."""

    @property
    def label_silo(self) -> str:
        """The silo where labels are: its hub measures, and tells the others what they may know."""
        job = self.context.job
        owners = job.label_owners()
        return job.labels.silo or (owners[0] if owners else self.context.peers.chair)

    async def evaluate(self, block: Block, number: int, version: int, judge: Judge) -> tuple[Measurement, Verdict]:
        """Measure the whole model on all samples whose clients are there, in every silo.

        Args:
            block: θ_j.
            number: The round that it is of.
            version: Names it: clients that have it are not sent it again.
            judge: Judges measures against those before.
        """
        context = self.context
        context.progress.stage = f"evaluating after round {number}"
        pause = Pause(context.job.deployment.hub_deadline)
        while True:
            await context.wait_for_clients(self.prepared.plan.roster.clients)
            result, verdict, missing = await self._attempt(block, version, Stamp("", 0, number, pause.times), judge)
            if not missing:
                break
            if pause.times and pause.over:
                raise AbsentError(
                    f"the clients that are there, in all silos, hold no {missing[0]} sample in common, so that the "
                    "model cannot be measured. What was done is kept: start the hubs again when more clients are back"
                )
            if not pause.times:
                context.log(f"waiting for clients: those there, in all silos, hold no {missing[0]} sample in common")
            await pause.wait()
        known = {part.word: measures for part, measures in result.measures.items() if measures}
        partial = {p.word: [rows.measured, rows.every] for p, rows in result.rows.items() if not result.whole(p)}
        context.progress.evaluation = {"round": number, **known, "partial": partial}
        for part, (there, every) in partial.items():
            ignored = "; this evaluation decides nothing" if part == Part.VALIDATION.word else ""
            context.log(f"measured on {there:,} of {every:,} {part} samples: clients are away{ignored}")
        return result, verdict

    async def _attempt(self, block: Block, version: int, stamp: Stamp, judge: Judge) -> Outcome:
        peers, plan = self.context.peers, self.prepared.plan
        own = await self.own_scores(block, version, stamp, list(plan.counts))
        if self.label_silo != self.context.silo:
            await peers.send(self.label_silo, own, stamp)
            reply = await peers.receive(self.label_silo, Evaluated, stamp)
            measures = reply.measures or {}
            rows = {part: self._rows(part, reply.rows.get(part.word, 0)) for part in plan.counts}
            return Measurement({p: measures.get(p.word, {}) for p in Part}, rows), reply.verdict, reply.missing
        every = {name: await peers.receive(name, SiloScores, stamp) for name in peers.peers}
        if not plan.label_only:
            every[self.context.silo] = own
        results = await self.measure({part: self.joined(part, every) for part in plan.counts}, stamp)
        missing = tuple(part.word for part in plan.counts if not results[part].measures)
        counts = {part: self._rows(part, results[part].rows) for part in plan.counts}
        record = Measurement({part: result.measures for part, result in results.items()}, counts)
        verdict: Verdict = "worse" if missing else judge(record)
        shown = {part.word: dict(result.measures) for part, result in results.items()} if self.tells else None
        measured_rows = {part.word: rows.measured for part, rows in counts.items()}
        await peers.send_all(Evaluated(verdict, missing, measured_rows, shown), stamp)
        return record, verdict, missing

    @property
    def tells(self) -> bool:
        """Whether hubs without labels hear what is measured."""
        labels = self.context.job.labels
        return not labels.private or labels.tell_metrics

    async def measure(self, scores: Mapping[Part, tuple[Tensor, Tensor]], stamp: Stamp) -> dict[Part, PartResult]:
        """Measure scores (M, E) of some parts, of those rows that are there (M,): at the hub of the labels."""
        if self.context.job.labels.private:
            found = await self._measure_at_clients(scores, stamp)
        else:
            found = {part: self._measure(part, *scores[part]) for part in scores}
        return {part: found.get(part, PartResult()) for part in Part}

    def _rows(self, part: Part, count: int) -> Rows:
        every = self.prepared.plan.counts[part]
        if not 0 <= count <= every:
            raise RefusedError(
                f"the hub of silo '{self.label_silo}' says that it measured {count:,} of {every:,} {part.word} samples"
            )
        return Rows(count, every)

    async def own_scores(
        self, block: Block, version: int, stamp: Stamp, parts: Sequence[Part], dealt: Dealt | None = None
    ) -> SiloScores:
        """Gather embeddings of all rows of some parts, and whose clients are there."""
        plan, clients = self.prepared.plan, self.context.clients
        if plan.label_only:
            return SiloScores((), (), ())
        dtype, width = self.prepared.settings.dtype, self.prepared.model.width
        holders = {n: held for n, held in plan.holdings.items() if any(map(len, held.values()))}
        requests = {}
        for name, held in holders.items():
            wanted = {p.word: torch.empty(len(held[p]), width, dtype=dtype) for p in parts if len(held[p])}
            if not wanted:
                continue
            link = clients.links.get(name)
            weights = None if link and link.version == version else tuple(block.values())
            if link:
                link.version = version
            size = block_bytes(wanted) + 8 * len(wanted)
            column, repeat = (dealt.column, dealt.repeat) if dealt else (None, 0)
            message = Score(version, weights, tuple(wanted), column, repeat)
            requests[name] = Request(message, Scores, size, partial(_check_scores, wanted))
        replies, missing = await clients.ask(requests, stamp)
        for name in missing:
            if link := clients.links.get(name):
                link.version = -1  # it may or may not have received them
        if missing and all(isinstance(missing.get(name), UnboundedError) for name in requests):
            return self._infinite_scores(parts)
        rows, present = [], []
        found = {name: dict(zip(reply.parts, reply.rows, strict=True)) for name, reply in replies.items()}
        for part in parts:
            phi, there = torch.zeros(plan.counts[part], width, dtype=dtype), torch.zeros(plan.counts[part]).byte()
            for name, own in found.items():
                numbers = torch.from_numpy(holders[name][part])
                if len(numbers):
                    phi[numbers] = own[part.word]
                    there[numbers] = 1
            rows.append(phi)
            present.append(there)
        return SiloScores(tuple(part.word for part in parts), tuple(rows), tuple(present))

    def _infinite_scores(self, wanted: Sequence[Part]) -> SiloScores:
        """Return scores that say that none of this silo's clients has finite ones."""
        parts = {part.word: torch.ones(self.prepared.plan.counts[part]) for part in wanted}
        rows = (torch.full((len(there), self.prepared.model.width), torch.nan) for there in parts.values())
        typed = tuple(phi.to(self.prepared.settings.dtype) for phi in rows)
        return SiloScores(tuple(parts), typed, tuple(there.byte() for there in parts.values()))

    def joined(self, part: Part, silos: Mapping[str, SiloScores]) -> tuple[Tensor, Tensor]:
        """Return the scores of a part's samples, and which of them all silos have embedded."""
        shape = (self.prepared.plan.counts[part], self.prepared.model.width)
        there = torch.ones(shape[0], dtype=torch.bool)
        embeddings = {}
        for silo, scores in silos.items():
            if not len(scores.parts) == len(scores.rows) == len(scores.present) or part.word not in scores.parts:
                raise RefusedError(f"the hub of silo '{silo}' sends no scores of {part.word} samples")
            place = scores.parts.index(part.word)
            who = f"the hub of silo '{silo}': its {part.word} scores"
            embeddings[silo] = fits(scores.rows[place], shape, self.prepared.settings.dtype, who)
            there = there & fits(scores.present[place], shape[:1], torch.uint8, who).bool()
        return sum_embeddings(embeddings), there

    def _measure(self, part: Part, scores: Tensor, there: Tensor) -> PartResult:
        """Measure, at a hub that has the labels."""
        count = int(there.sum())
        if not count:
            return PartResult()
        if not scores[there].isfinite().all():
            return PartResult({"loss": float("nan")}, count)
        labels, objective = self.prepared.model.labels[part][there], self.prepared.settings.objective
        by_class = class_areas(objective, scores[there], labels) if self.by_class else ()
        return PartResult(measure(objective, scores[there], labels), count, by_class)

    def _check_tallies(self, rows: Mapping[str, int], edges: Mapping[str, Tensor], reply: Tallies) -> None:
        """Check that sums could be those of a client's rows, so many of each part, counted in these bins."""
        objective, width = self.prepared.settings.objective, self.prepared.model.width
        if set(reply.tallies) != set(rows):
            raise RefusedError("tallies of other parts than it was asked for")
        for part, sums in reply.tallies.items():
            if why := why_not_tally(objective, width, sums, rows[part], bins_of(objective, edges[part])):
                raise RefusedError(f"a tally of {part} samples that cannot be: {why}")

    async def _measure_at_clients(
        self, scores: Mapping[Part, tuple[Tensor, Tensor]], stamp: Stamp
    ) -> dict[Part, PartResult]:
        """Let the clients that hold the labels add up; a client that is lost on the way is left out."""
        objective, holdings = self.prepared.settings.objective, self.prepared.plan.holdings
        clients = self.context.clients
        names = {name for name, held in holdings.items() if any(map(len, held.values()))}
        while names := names & clients.present():
            result: dict[Part, PartResult] = {}
            own: dict[str, list[tuple[str, Tensor, Tensor, Tensor, Tensor]]] = {name: [] for name in names}
            edges: dict[str, Tensor] = {}
            for part, (z, embedded) in scores.items():
                owner = torch.full(embedded.shape, -1)
                for number, name in enumerate(names):
                    owner[torch.from_numpy(holdings[name][part])] = number
                there = embedded & (owner >= 0)
                if not there.any():
                    continue
                if not z[there].isfinite().all():
                    result[part] = PartResult({"loss": float("nan")}, int(there.sum()))
                    continue
                ranked = torch.zeros(z.shape, dtype=torch.float64)
                ranked[there] = ranks(objective, z[there])
                edges[part.word] = self._edges(ranked[there], owner[there])
                for name in names:
                    numbers = torch.from_numpy(holdings[name][part])
                    mine = numbers[there[numbers]]
                    present = there[numbers].to(torch.uint8)
                    own[name].append((part.word, z[mine], ranked[mine], present, edges[part.word]))
            requests = {
                name: Request(
                    JudgeRequest(*map(tuple, zip(*parts, strict=True))),
                    Tallies,
                    0,
                    partial(self._check_tallies, {word: len(z) for word, z, *_ in parts if len(z)}, edges),
                )
                for name, parts in own.items()
                if any(len(z) for _, z, *_ in parts)
            }
            replies, missing = await clients.ask(requests, stamp)
            if missing:
                names -= set(missing)
                continue
            for part in scores:
                tallies: list[Tally] = [r.tallies[part.word] for r in replies.values() if part.word in r.tallies]
                if tallies and part not in result:
                    total = added(objective, tallies)
                    by_class = areas_of(objective, total) if self.by_class else ()
                    result[part] = PartResult(measured(objective, total), int(total["rows"][0]), by_class)
            return result
        return {}

    def _edges(self, ranked: Tensor, owner: Tensor) -> Tensor:
        """Return the bins of ranks for clients to count in; none where counts would be of no use."""
        if not isinstance(self.prepared.settings.objective, Classification):
            return torch.empty(ranked.shape[1], 0, dtype=torch.float64)
        return choose_edges(ranked, owner)


def _check_scores(wanted: Mapping[str, Tensor], reply: Scores) -> None:
    if set(reply.parts) != set(wanted) or len(reply.parts) != len(reply.rows):
        raise RefusedError("scores of other parts than it was asked for")
    for part, rows in zip(reply.parts, reply.rows, strict=True):
        check_numbers(rows, tuple(wanted[part].shape), wanted[part].dtype, f"{part} scores")
