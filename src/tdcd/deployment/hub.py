"""A hub at its site: it meets the other hubs, and does its part of every round.

A round is Algorithm 1 with one rule more. If a client does not do its part, in whatever stage, its rows leave the
mini-batch in all silos and the round is begun again on the rest: so whatever happens, what a round computes is what a
simulation would on that smaller mini-batch. The hubs tell each other at the end of each round who is away, so
that the next one begins without.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdcd.core.average import Mean
from tdcd.core.ledger import Traffic
from tdcd.core.network import Block, Blocks
from tdcd.core.round import sum_of_others, summed
from tdcd.core.topology import deal
from tdcd.data.arrays import Array
from tdcd.data.splits import Part
from tdcd.deployment.clients import Question
from tdcd.deployment.gathering import Gatherer
from tdcd.deployment.messages import Message, RefusedError, Stamp
from tdcd.deployment.shared import VERSION
from tdcd.deployment.wire.tdcd_pb2 import ClientStatus, PeerStatus, StatusReply
from tdcd.errors import DeploymentError, listed
from tdcd.training.loop import RewoundError
from tdcd.training.metrics import measure

RECENT = 20
"""Rounds that the speed is told of."""


@dataclass
class Hub(Gatherer):
    """One silo's hub. Its coroutines run in one event loop; the loop over rounds runs in another thread."""

    round: int = 0
    last_error: str = ""
    evaluation: dict[str, Any] = field(default_factory=dict)
    _away: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Samples of the next mini-batch whose clients are away, in whatever silo."""
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _started: float = field(default_factory=time.monotonic)

    # Rounds

    async def agreed(self, rounds: Sequence[int]) -> int:
        """Meet the other hubs, and find the newest round that all can go on after."""
        self.stage = "gathering clients"
        await self.clients.all_or(self.job.deployment.minimum_clients, self.job.deployment.hub_deadline)
        while True:
            self.stage = "meeting the other hubs"
            mine = {"alignment": self.plan.fingerprint, "rounds": [0, *rounds], **self.brought}
            everybody = await self.peers.meeting("start", mine)
            if any(not told["alignment"] for told in everybody.values()):
                with suppress(RewoundError):
                    await self.align_again(everybody)
                continue
            different = [name for name, told in everybody.items() if told["alignment"] != self.plan.fingerprint]
            if different:
                raise DeploymentError(
                    f"the common IDs, or labels handed over with them, are not the same here and at the hub of silo "
                    f"{', '.join(different)}; align again: remove alignment.parquet at all hubs, and start new runs"
                )
            self._away = np.empty(0, dtype=np.int64)
            every = sum(self.plan.counts.values())
            self.peers.most = every * (self.model.width * self.job.training.dtype.itemsize + 16) + (1 << 20)
            found = _common_round({name: told["rounds"] for name, told in everybody.items()})
            self.round = found
            return found

    async def one_round(self, block: Block, number: int) -> tuple[Block, Traffic]:
        """Do this silo's part of a round."""
        self.stage = f"round {number}"
        await self._enough()
        self.peers.advance(number)
        batch = self._batch(number)
        lost, attempt, traffic = self._away, 0, Traffic()
        while True:
            zeta = torch.from_numpy(np.setdiff1d(batch, lost, assume_unique=True))
            stamp = Stamp("", 0, number, attempt)
            found, sent = await self._attempt(block, zeta, lost, stamp)
            traffic += sent
            if isinstance(found, dict):
                break
            lost, attempt = np.union1d(lost, found), attempt + 1
        for name in self.plan.roster.clients if len(lost) else ():
            if np.isin(self._training(name), lost).any() and not np.isin(self._training(name), zeta.numpy()).any():
                self.clients.left_out[name] = self.clients.left_out.get(name, 0) + 1
        self.round = number
        self._ends.append(time.monotonic())
        return found, traffic

    async def _attempt(self, block: Block, zeta: Tensor, lost: Array, stamp: Stamp) -> tuple[Block | Array, Traffic]:
        """Try a round on a mini-batch; return the new block, or the samples that it must be begun again without."""
        roster, width = self.plan.roster, self.model.width
        shards = deal(zeta, roster)
        rows = {roster.clients[client]: shards.order[place] for client, place in shards}
        weights = _packed(block)
        heavy, light = _nbytes(block), width * self.job.training.dtype.itemsize

        # Lines 8 to 15: the clients embed their rows.
        phi = torch.zeros(len(zeta), width, dtype=self.job.training.dtype)
        questions = {}
        for name, own in rows.items():
            without = np.intersect1d(self._training(name), lost, assume_unique=True)
            tensors = weights | ({"without": torch.from_numpy(without)} if len(without) else {})
            expected = {"phi": phi[own]}
            questions[name] = Question(Message("embed", {}, tensors, stamp), len(own) * light, like(expected))
        answers, missing = await self.clients.ask(questions)
        for name, answer in answers.items():
            phi[rows[name]] = answer.tensors["phi"]
        traffic = Traffic(
            hub_to_client=heavy * len(answers), client_to_hub=light * sum(len(rows[name]) for name in answers)
        )

        # Lines 16 to 18: the hubs exchange.
        gone = _samples(zeta, rows, missing)
        told = await self.peers.exchange(Message("embeddings", {}, {"phi": phi, "lost": gone}, stamp))
        traffic += Traffic(hub_to_hub=phi.nbytes * len(self.peers.peers))
        if len(lost_anywhere := _lost(zeta, gone, told)):
            return lost_anywhere, traffic
        for message in told.values():
            check_tensor({"phi": phi}, "phi", message.tensors.get("phi"))
        embeddings = {self.silo: phi} | {name: message.tensors["phi"] for name, message in told.items()}
        others = sum_of_others(embeddings, self.silo)

        # Lines 19 to 31: the clients take Q steps, the hub averages.
        questions = {
            name: Question(Message("descend", {}, {"others": others[own]}, stamp), heavy + 8 * len(block), like(block))
            for name, own in rows.items()
        }
        uniform = self.job.training.averaging == "uniform"
        mean = Mean(block)
        counts = {name: 1.0 if uniform else float(len(own)) for name, own in rows.items()}

        def add(name: str, part: str, tensor: Tensor) -> None:
            check_tensor(block, part, tensor)
            mean.add_tensor(part, tensor, counts[name])

        answered, missing = await self.clients.ask(questions, add)
        mean.count(sum(counts[name] for name in answered))
        idle = len(roster.clients) - len(answered)
        if (uniform and idle) or not rows:
            mean.add(block, float(max(idle, 1)))
        traffic += Traffic(
            hub_to_client=light * sum(len(own) for own in rows.values()), client_to_hub=heavy * len(answered)
        )

        # All hubs have come so far, or none has.
        gone = _samples(zeta, rows, missing)
        away = torch.from_numpy(self._away_in(stamp.round + 1))
        told = await self.peers.exchange(Message("done", {}, {"lost": gone, "away": away}, stamp))
        if len(lost_anywhere := _lost(zeta, gone, told)):
            return lost_anywhere, traffic
        self._away = _united("away", away, told)
        return mean.result(), traffic

    async def _enough(self) -> None:
        """Wait until as many clients are there as the job wants at least."""
        deployment = self.job.deployment
        least = min(deployment.minimum_clients, len(self.plan.roster.clients))
        await self.clients.enough(least, deployment.hub_deadline)

    def _batch(self, number: int) -> Array:
        """Return the mini-batch of a round, before anybody is lost."""
        batch: Array = self.job.training.drawn(number, self.plan.counts[Part.TRAIN]).numpy()
        return batch

    def _training(self, client: str) -> Array:
        return self.plan.holdings[client][Part.TRAIN]

    def _away_in(self, number: int) -> Array:
        """Return the samples of a round's mini-batch whose clients are away now."""
        away = set(self.plan.roster.clients) - self.clients.present()
        if not away or number > self.job.training.rounds:
            return np.empty(0, dtype=np.int64)
        held = np.concatenate([self._training(name) for name in sorted(away)])
        return np.intersect1d(self._batch(number), held, assume_unique=True)

    # Evaluation

    @property
    def judge(self) -> str:
        """The silo where labels are: its hub measures, and tells the others."""
        owners = [name for name, silo in self.job.silos.items() if silo.label]
        return self.job.labels.silo or (owners[0] if owners else self.peers.chair)

    async def measured(self, block: Block, number: int) -> dict[Part, dict[str, float]]:
        """Measure the whole model on all samples whose clients are there, in every silo."""
        self.stage = f"evaluating after round {number}"
        attempt, end = 0, time.monotonic() + self.job.deployment.hub_deadline
        while True:
            await self._enough()
            found = await self._measured(block, Stamp("", 0, number, attempt))
            missing = [part.word for part in self.plan.counts if not found[part]]
            if not missing:
                break
            if time.monotonic() > end:
                raise DeploymentError(
                    f"the clients that are there, in all silos, hold no {missing[0]} sample in common, so that the "
                    "model cannot be measured. What was done is kept: start the hubs again when more clients are back"
                )
            if attempt == 0:
                self.told(f"waiting for clients: those there, in all silos, hold no {missing[0]} sample in common")
            await asyncio.sleep(min(2.0, 0.1 * 2**attempt))
            attempt += 1
        self.evaluation = {"round": number, **{part.word: measures for part, measures in found.items() if measures}}
        return found

    async def _measured(self, block: Block, stamp: Stamp) -> dict[Part, dict[str, float]]:
        dtype, width = self.job.training.dtype, self.model.width
        holders = {n: held for n, held in self.plan.holdings.items() if any(map(len, held.values()))}
        message = Message("score", {}, _packed(block), stamp)
        questions = {}
        for name, held in holders.items():
            wanted = {p.word: torch.empty(len(n), width, dtype=dtype) for p, n in held.items() if len(n)}
            questions[name] = Question(message, _nbytes(wanted) + 8 * len(wanted), like(wanted))
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
        if self.judge != self.silo:
            await self.peers.send(self.judge, Message("scores", {}, tensors, stamp))
            verdict = await self.peers.receive(self.judge, "metrics", stamp)
            found = {part: dict(verdict.facts.get(part.word, {})) for part in Part}
        else:
            others = {name: await self.peers.receive(name, "scores", stamp) for name in self.peers.peers}
            parts = {self.silo: tensors} | {name: dict(message.tensors) for name, message in others.items()}
            found = {part: self._verdict(part, parts) if part in self.plan.counts else {} for part in Part}
            metrics = Message("metrics", {part.word: measures for part, measures in found.items()}, {}, stamp)
            await asyncio.gather(*(self.peers.send(name, metrics) for name in self.peers.peers))
        return found

    def _verdict(self, part: Part, silos: Mapping[str, Mapping[str, Tensor]]) -> dict[str, float]:
        shape = (self.plan.counts[part], self.model.width)
        there = torch.ones(shape[0], dtype=torch.bool)
        embeddings = {}
        for silo, tensors in silos.items():
            phi, mask = tensors.get(f"{part.word} phi"), tensors.get(f"{part.word} there")
            if phi is None or mask is None or phi.shape != shape or mask.shape != shape[:1]:
                raise RefusedError(f"the hub of silo '{silo}' sends scores of another shape")
            embeddings[silo], there = phi, there & mask.bool()
        if not there.any():
            return {}
        if not there.all():
            self.told(f"measured on {int(there.sum()):,} of {len(there):,} {part.word} samples: clients are away")
        scores = summed(embeddings)[there]
        if not scores.isfinite().all():
            return {"loss": float("nan")}
        return measure(self.job.training.objective, scores, self.model.labels[part][there])

    # The end

    async def concluded(self, number: int) -> None:
        """Wait until all hubs have written what they hold at the end: one that was killed may need this one."""
        self.stage = "waiting for the other hubs to end"
        try:
            await self.peers.exchange(Message("concluded", {}, {}, Stamp("", 0, number)))
        except DeploymentError as error:
            self.told(f"this hub has all it needs, but ends alone: {error}")

    async def farewell(self, status: str) -> None:
        """Tell the clients that it is over."""
        self.stage = status
        for name, count in sorted(self.clients.left_out.items()):
            self.told(f"client '{name}' was left out of {count:,} rounds: it was away, or did not answer")
        for link in list(self.clients.links.values()):
            try:
                await asyncio.wait_for(link.say(Message("farewell", {"status": status})), 2.0)
            except Exception as error:
                self.told(f"client '{link.name}' does not hear the end: {error}")

    def status(self) -> StatusReply:
        """Tell how it goes."""
        sent, received = self.clients.traffic
        ends = self._ends
        speed = (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 and ends[-1] > ends[0] else 0.0
        now = time.monotonic()
        rows = {n: len(held.get(Part.TRAIN, ())) for n, held in self.plan.holdings.items()} if self._plan else {}
        return StatusReply(
            silo=self.silo,
            job=self.job.name,
            stage=self.stage,
            round=self.round,
            rounds=self.job.training.rounds,
            rounds_per_second=speed,
            clients=[
                ClientStatus(
                    name=name,
                    present=name in self.clients.links,
                    rows=rows.get(name, 0),
                    left_out=self.clients.left_out.get(name, 0),
                    seconds_since_seen=now - self.clients.links[name].seen if name in self.clients.links else -1.0,
                )
                for name in self.clients.names
            ],
            peers=[PeerStatus(silo=p.silo, address=p.address, present=p.present) for p in self.peers.peers.values()],
            bytes_sent=sent + self.peers.sent,
            bytes_received=received + self.peers.received,
            last_error=self.last_error,
            evaluation=json.dumps(self.evaluation) if self.evaluation else "",
            seconds=now - self._started,
            version=VERSION,
        )


@dataclass(frozen=True)
class HubParty:
    """A hub as the loop over rounds sees it. See Party."""

    hub: Hub
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine in the hub's event loop and waits for it."""

    @property
    def paths(self) -> Mapping[str, str]:
        """Clients compute as they see fit."""
        return {self.hub.silo: "at its clients' sites"}

    def agreed(self, rounds: Sequence[int]) -> int:
        """See Party."""
        found: int = self.run(self.hub.agreed(rounds))
        return found

    def round(self, blocks: Blocks, number: int) -> tuple[Blocks, Traffic]:
        """See Party."""
        block, traffic = self.run(self.hub.one_round(blocks[self.hub.silo], number))
        return {self.hub.silo: block}, traffic

    def concluded(self, number: int) -> None:
        """See Party."""
        self.run(self.hub.concluded(number))

    def measured(self, blocks: Blocks) -> Mapping[Part, Mapping[str, float]]:
        """See Party."""
        found: Mapping[Part, Mapping[str, float]] = self.run(self.hub.measured(blocks[self.hub.silo], self.hub.round))
        return found


def _common_round(rounds: Mapping[str, Sequence[int]]) -> int:
    """Return the newest round that all hubs can go on after, given by silo.

    Raises:
        DeploymentError: it would be the beginning, though some hub is well past that: then files were lost.
    """
    found = max(set.intersection(*(set(of_silo) for of_silo in rounds.values())))
    if found == 0 and any(sum(number > 0 for number in of_silo) > 1 for of_silo in rounds.values()):
        own = {silo: listed(str(number) for number in of_silo if number) for silo, of_silo in sorted(rounds.items())}
        told = "; ".join(f"silo '{silo}' has {found or 'none'}" for silo, found in own.items())
        raise DeploymentError(
            f"the hubs' checkpoints have no round in common ({told}): did one lose its run directory? Put it back; or, "
            "to begin anew, remove the run directories of all hubs"
        )
    return found


def _packed(block: Block) -> dict[str, Tensor]:
    return {f"w {name}": tensor for name, tensor in block.items()}


def _nbytes(block: Block) -> int:
    return sum(tensor.nbytes for tensor in block.values())


def _samples(zeta: Tensor, rows: Mapping[str, Tensor], names: set[str]) -> Tensor:
    """Return the samples of a mini-batch that some clients hold."""
    return torch.cat([torch.empty(0, dtype=torch.int64), *(zeta[rows[name]] for name in sorted(names))])


def _lost(zeta: Tensor, own: Tensor, told: Mapping[str, Message]) -> Array:
    """Return the samples of the mini-batch that this hub or another has lost."""
    found = _united("lost", own, told)
    if not np.isin(found, zeta.numpy()).all():
        raise RefusedError(f"a hub has lost samples that are not in the mini-batch: one of {', '.join(sorted(told))}")
    return found


def _united(name: str, own: Tensor, told: Mapping[str, Message]) -> Array:
    """Return the samples that this hub or another tells of, each once."""
    found = [own]
    for silo, message in told.items():
        numbers = message.tensors.get(name)
        if numbers is None or numbers.dtype != torch.int64 or numbers.ndim != 1:
            raise RefusedError(
                f"the hub of silo '{silo}' sends '{message.kind}' without '{name}', or with a strange one"
            )
        found.append(numbers)
    return np.unique(torch.cat(found).numpy())


def like(expected: Block) -> Callable[[Message], None]:
    """Return a check that a message has these tensors, in this type and shape, and no others."""

    def check(message: Message) -> None:
        for name in {**expected, **message.tensors}:
            check_tensor(expected, name, message.tensors.get(name))

    return check


def check_tensor(expected: Block, name: str, found: Tensor | None) -> None:
    """Check that a tensor that has come is one that was asked for.

    Raises:
        RefusedError: it is not.
    """
    wanted = expected.get(name)
    if wanted is None:
        raise RefusedError(f"it comes with '{name[:40]}', which nobody asked for")
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise RefusedError(f"it comes without '{name}' of shape {tuple(wanted.shape)}")
