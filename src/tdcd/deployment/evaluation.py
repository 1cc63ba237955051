"""How hubs find out together how good the model is: where the labels are, and nowhere else.

Every hub gathers its clients' embeddings of all rows and sends them to the hub that judges. Where labels are shared,
that hub measures. Where they are kept, its clients do, each on its own rows, and tell it sums; see tally.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.round import sum_embeddings
from tdcd.data.holdout import Part
from tdcd.deployment.clients import Question, like
from tdcd.deployment.gathering import Gatherer
from tdcd.deployment.messages import Message, RefusedError, Stamp, packed
from tdcd.engines.base import Judge, Measures, Verdict, block_bytes
from tdcd.errors import DeploymentError
from tdcd.training.metrics import measure
from tdcd.training.tally import Tally, added, measured, ranks


@dataclass
class Evaluator(Gatherer):
    """A hub that evaluates."""

    evaluation: dict[str, Any] = field(default_factory=dict)

    @property
    def judge(self) -> str:
        """The silo where labels are: its hub measures, and tells the others what they may know."""
        owners = sorted(name for name, silo in self.job.silos.items() if silo.label)
        return self.job.labels.silo or (owners[0] if owners else self.peers.chair)

    async def evaluate(self, block: Block, number: int, judge: Judge) -> tuple[Measures, Verdict]:
        """Measure the whole model on all samples whose clients are there, in every silo."""
        self.stage = f"evaluating after round {number}"
        attempt, end = 0, time.monotonic() + self.job.deployment.hub_deadline
        while True:
            await self.enough()
            result, verdict, missing = await self._measured(block, Stamp("", 0, number, attempt), judge)
            if not missing:
                break
            if time.monotonic() > end:
                raise DeploymentError(
                    f"the clients that are there, in all silos, hold no {missing[0]} sample in common, so that the "
                    "model cannot be measured. What was done is kept: start the hubs again when more clients are back"
                )
            if attempt == 0:
                self.log(f"waiting for clients: those there, in all silos, hold no {missing[0]} sample in common")
            await asyncio.sleep(min(2.0, 0.1 * 2**attempt))
            attempt += 1
        self.evaluation = {"round": number, **{part.word: measures for part, measures in result.items() if measures}}
        return result, verdict

    async def _measured(self, block: Block, stamp: Stamp, judge: Judge) -> tuple[Measures, Verdict, list[str]]:
        """Return measures, verdict, and the parts that nothing was measured on."""
        tensors = await self._scored(block, stamp)
        if self.judge != self.silo:
            await self.peers.send(self.judge, Message("scores", {}, tensors, stamp))
            text = (await self.peers.receive(self.judge, "metrics", stamp)).facts
            record: Measures = {part: dict(text.get("measures", {}).get(part.word, {})) for part in Part}
            verdict, missing = text.get("verdict"), text.get("missing")
            if verdict not in ("better", "worse", "diverged") or not isinstance(missing, list):
                raise RefusedError(f"the hub of silo '{self.judge}' sends a strange verdict")
            return record, verdict, [str(part) for part in missing]
        others = {name: await self.peers.receive(name, "scores", stamp) for name in self.peers.peers}
        parts = {name: dict(message.tensors) for name, message in others.items()}
        if not self.plan.label_only:
            parts[self.silo] = tensors
        scores = {part: self._joined(part, parts) for part in self.plan.counts}
        if self.job.labels.private:
            measures = await self._judged(scores, stamp)
        else:
            measures = {part: self._measure(part, *scores[part]) for part in scores}
        record = {part: measures.get(part, {}) for part in Part}
        missing = [part.word for part in self.plan.counts if not record[part]]
        verdict = "worse" if missing else judge(record)
        facts: dict[str, Any] = {"verdict": verdict, "missing": missing}
        if not self.job.labels.private or self.job.labels.tell_metrics:
            facts["measures"] = {part.word: measures for part, measures in record.items()}
        await asyncio.gather(
            *(self.peers.send(name, Message("metrics", facts, {}, stamp)) for name in self.peers.peers)
        )
        return record, verdict, missing

    async def _scored(self, block: Block, stamp: Stamp) -> dict[str, Tensor]:
        """Gather embeddings of all rows of every part, and whose clients are there."""
        if self.plan.label_only:
            return {}
        dtype, width = self.job.training.dtype, self.model.width
        holders = {n: held for n, held in self.plan.holdings.items() if any(map(len, held.values()))}
        message = Message("score", {}, packed(block), stamp)
        questions = {}
        for name, held in holders.items():
            wanted = {p.word: torch.empty(len(n), width, dtype=dtype) for p, n in held.items() if len(n)}
            questions[name] = Question(message, block_bytes(wanted) + 8 * len(wanted), like(wanted))
        answers, _ = await self.clients.ask(questions)
        tensors: dict[str, Tensor] = {}
        for part, count in self.plan.counts.items():
            phi, there = torch.zeros(count, width, dtype=dtype), torch.zeros(count, dtype=torch.uint8)
            for name, answer in answers.items():
                numbers = torch.from_numpy(holders[name][part])
                if len(numbers):
                    phi[numbers] = answer.tensors[part.word]
                    there[numbers] = 1
            tensors |= {f"{part.word} phi": phi, f"{part.word} there": there}
        return tensors

    def _joined(self, part: Part, silos: Mapping[str, Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the scores of a part's samples, and which of them all silos have embedded."""
        shape = (self.plan.counts[part], self.model.width)
        there = torch.ones(shape[0], dtype=torch.bool)
        embeddings = {}
        for silo, tensors in silos.items():
            phi, mask = tensors.get(f"{part.word} phi"), tensors.get(f"{part.word} there")
            if phi is None or mask is None or phi.shape != shape or mask.shape != shape[:1]:
                raise RefusedError(f"the hub of silo '{silo}' sends scores of another shape")
            embeddings[silo], there = phi, there & mask.bool()
        return sum_embeddings(embeddings), there

    def _measure(self, part: Part, scores: Tensor, there: Tensor) -> dict[str, float]:
        """Measure, at a hub that has the labels."""
        if not there.any():
            return {}
        self._tell_absent(part, int(there.sum()))
        if not scores[there].isfinite().all():
            return {"loss": float("nan")}
        return measure(self.job.training.objective, scores[there], self.model.labels[part][there])

    def _tell_absent(self, part: Part, there: int) -> None:
        if there < self.plan.counts[part]:
            every = self.plan.counts[part]
            self.log(f"measured on {there:,} of {every:,} {part.word} samples: clients are away")

    async def _judged(self, scores: Mapping[Part, tuple[Tensor, Tensor]], stamp: Stamp) -> dict[Part, dict[str, float]]:
        """Let the clients that keep the labels add up; a client that is lost on the way is left out."""
        objective, holdings = self.job.training.objective, self.plan.holdings
        names = {name for name, held in holdings.items() if any(map(len, held.values()))}
        while names := names & self.clients.present():
            result: dict[Part, dict[str, float]] = {}
            tensors: dict[str, dict[str, Tensor]] = {name: {} for name in names}
            for part, (z, embedded) in scores.items():
                held = torch.zeros_like(embedded)
                for name in names:
                    held[torch.from_numpy(holdings[name][part])] = True
                there = embedded & held
                if not there.any():
                    continue
                if not z[there].isfinite().all():
                    result[part] = {"loss": float("nan")}
                    continue
                ranked = torch.zeros(z.shape, dtype=torch.float64)
                ranked[there] = ranks(objective, z[there])
                for name in names:
                    numbers = torch.from_numpy(holdings[name][part])
                    own = numbers[there[numbers]]
                    tensors[name] |= {
                        f"{part.word} z": z[own],
                        f"{part.word} ranks": ranked[own],
                        f"{part.word} there": there[numbers].to(torch.uint8),
                    }
            questions = {
                name: Question(Message("judge", {}, own, stamp), 0, like({})) for name, own in tensors.items() if own
            }
            answers, missing = await self.clients.ask(questions)
            if missing:
                names -= missing
                continue
            for part in scores:
                tallies = [_tally(name, answer, part) for name, answer in answers.items() if part.word in answer.facts]
                if tallies and part not in result:
                    total = added(tallies)
                    result[part] = measured(objective, total)
                    self._tell_absent(part, int(total["rows"][0]))
            return result
        return {}


def _tally(name: str, answer: Message, part: Part) -> Tally:
    try:
        return {str(key): [float(value) for value in values] for key, values in answer.facts[part.word].items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise RefusedError(f"client '{name}' sends sums that are none") from error
