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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdcd.core.ledger import Traffic
from tdcd.core.script import NOTHING, EmptyBatch, Lost, Plan, communication_round, plan_rounds
from tdcd.core.script import Hub as ScriptHub
from tdcd.core.state import SiloState, States
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.deployment.driver import SiteClients, SitePeers, read_samples, samples_tensor
from tdcd.deployment.evaluation import Evaluator
from tdcd.deployment.messages import AWAY, Message, Stamp
from tdcd.deployment.shared import VERSION
from tdcd.deployment.wire.tdcd_pb2 import ClientStatus, PeerStatus, StatusReply
from tdcd.engines.base import Judge, Measures, RewoundError, Verdict
from tdcd.errors import AbsentError, DeploymentError, join_names

ALONE = (
    "this hub has all it needs, and ends alone; when a hub that has not ended is back, start this one again, too, and "
    "they go on together"
)
RECENT = 20
"""Rounds that the speed is told of."""


@dataclass
class Hub(Evaluator):
    """One silo's hub. Its coroutines run in one event loop; the loop over rounds runs in another thread."""

    round: int = 0
    last_error: str = ""
    _away: Lost = NOTHING
    """Samples of the next mini-batch whose clients are away, in whatever silo."""
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _started: float = field(default_factory=time.monotonic)

    # Rounds

    async def agree(self, rounds: Sequence[int]) -> int:
        """Meet the other hubs, and find the newest round that all can go on after."""
        self.stage = "gathering clients"
        await self.clients.all_or(self.job.deployment.minimum_clients, self.job.deployment.hub_deadline)
        while True:
            self.stage = "meeting the other hubs"
            mine = {
                "alignment": self.plan.fingerprint,
                "rounds": [0, *rounds],
                "bare": self.plan.label_only,
                **self.brought,
            }
            mine["width"] = self.model.width
            everybody = await self.peers.meeting("start", mine)
            if any(not text["alignment"] for text in everybody.values()):
                with suppress(RewoundError):
                    await self.align_again(everybody)
                continue
            different = [name for name, text in everybody.items() if text["alignment"] != self.plan.fingerprint]
            if different:
                raise DeploymentError(
                    f"the common IDs, or labels handed over with them, are not the same here and at the hub of silo "
                    f"{', '.join(different)}; align again: remove alignment.parquet at all hubs, and start new runs"
                )
            widths = {name: text["width"] for name, text in everybody.items()}
            if len(set(widths.values())) > 1:
                text = join_names((f"{name} {width}" for name, width in sorted(widths.items())), most=16)
                raise DeploymentError(
                    f"embedding widths differ between silos: {text}; every silo's network must end in the same number "
                    "of outputs, and where one has labels only, in as many as there are classes"
                )
            self._away = NOTHING
            self.label_only = frozenset(name for name, text in everybody.items() if text["bare"])
            every = sum(self.plan.counts.values())
            self.peers.most = every * (self.model.width * self.job.training.dtype.itemsize + 16) + (1 << 20)
            result = _common_round({name: text["rounds"] for name, text in everybody.items()})
            self.round = result
            return result

    async def one_round(self, state: SiloState, number: int) -> tuple[SiloState, Traffic]:
        """Run this silo's part of a round."""
        self.stage = f"round {number}"
        await self.enough()
        self.peers.advance(number)
        before, waiting = self._counted(), Waiting(self.job.deployment.hub_deadline)
        away, first = self._away, 0
        while True:
            try:
                outcome = await communication_round(partial(self._attempt, number), state, away, first)
                break
            except EmptyBatch as error:
                stamp = Stamp("", 0, number, error.attempt)
                away, first = await self._someone(stamp, waiting), error.attempt + 1
        self._away = outcome.away
        self._count_left_out(number, outcome.lost)
        self.round = number
        self._ends.append(time.monotonic())
        sent = (now - then for now, then in zip(self._counted(), before, strict=True))
        return outcome.state, Traffic(*sent)

    def _attempt(self, number: int, lost: Lost, attempt: int) -> ScriptHub[Tensor, SiloState] | None:
        """Open an attempt at a round, if samples are left."""
        batch = self._left(number, lost)
        if not len(batch):
            return None
        stamp = Stamp("", 0, number, attempt)
        like = torch.empty(len(batch), self.model.width, dtype=self.job.training.dtype)
        clients = SiteClients(self, batch, lost, stamp, lambda: self._away_in(number + 1))
        plan = self.round_plan
        return ScriptHub(self.silo, plan, clients, SitePeers(self.peers, self.silo, plan, batch, like, stamp))

    @property
    def round_plan(self) -> Plan:
        """The roles of all silos in a round, once the hubs have met."""
        labels, steps = self.job.labels, self.job.training.local_steps
        silos = {self.silo, *self.peers.peers}
        features = dict.fromkeys(silos - self.label_only, steps)
        return plan_rounds(features, labels.sharing or "shared", labels.label_holder, self.label_only)

    def _left(self, number: int, lost: Lost) -> Tensor:
        """Return a round's mini-batch without lost samples."""
        batch = self._batch(number)
        return torch.from_numpy(batch[[sample not in lost for sample in batch.tolist()]] if lost else batch)

    def _counted(self) -> tuple[int, int, int]:
        """Return the bytes of rounds so far, as counted where they were put into frames."""
        clients = self.clients.meter
        return clients.received, clients.sent, self.peers.meter.sent

    def _count_left_out(self, number: int, lost: Lost) -> None:
        """Count the clients whose rows of a mini-batch were all lost."""
        if lost:
            left = self._left(number, lost).numpy()
            for name in self.plan.roster.clients:
                held = self.plan.training(name)
                if not lost.isdisjoint(held.tolist()) and not np.isin(held, left).any():
                    self.clients.left_out[name] = self.clients.left_out.get(name, 0) + 1

    async def _someone(self, stamp: Stamp, waiting: "Waiting") -> Lost:
        """Wait a while for clients, as all hubs do where nothing of a mini-batch is left; return who is away then.

        Raises:
            DeploymentError: some hub has waited for too long.
        """
        if not waiting.times:
            self.log("waiting for clients: those there, in all silos, hold no sample of the mini-batch in common")
        await waiting.pause()
        await self.enough()
        away, late = self._away_in(stamp.round), waiting.over
        answers = await self.peers.exchange(Message("anybody", {"late": late}, {AWAY: samples_tensor(away)}, stamp))
        if late or any(message.facts.get("late") is True for message in answers.values()):
            raise DeploymentError(
                f"the clients that are there, in all silos, hold no sample of the mini-batch of round {stamp.round} in "
                "common, so that there is nothing to train on. What was done is kept: start the hubs again when more "
                "clients are back"
            )
        others = (read_samples(message, AWAY, f"the hub of silo '{silo}'") for silo, message in answers.items())
        return away.union(*others)

    def _batch(self, number: int) -> Array:
        """Return the mini-batch of a round, before anybody is lost."""
        batch: Array = self.job.training.sample_batch(number, self.plan.counts[Part.TRAIN]).numpy()
        return batch

    def _away_in(self, number: int) -> Lost:
        """Return the samples of a round's mini-batch whose clients are away now, where a round needs them."""
        away = set(self.plan.roster.clients) - self.clients.present()
        idle = self.plan.label_only and not self.job.labels.private  # its labels were handed over: it has no part
        if not away or idle or number > self.job.training.rounds:
            return NOTHING
        held = np.concatenate([self.plan.training(name) for name in sorted(away)])
        return frozenset(np.intersect1d(self._batch(number), held, assume_unique=True).tolist())

    # The end

    async def conclude(self, number: int, kept: int) -> bool:
        """Wait until all hubs have written what they hold at the end: one that was killed may need this one.

        Returns:
            Whether all have. One that has not may still need this hub, which then goes on when it is started again.

        Raises:
            DeploymentError: another hub ends with the weights of another round.
        """
        self.stage = "waiting for the other hubs to end"
        try:
            text = await self.peers.exchange(Message("concluded", {"kept": kept}, {}, Stamp("", 0, number)))
        except AbsentError as error:
            self.log(f"{ALONE}: {error}")
            return False
        other = {silo: message.facts.get("kept") for silo, message in text.items()}
        if odd := [f"that of silo '{silo}' of round {round_}" for silo, round_ in other.items() if round_ != kept]:
            raise DeploymentError(
                f"the hubs end with weights of different rounds: this one of round {kept}, {join_names(odd)}; together "
                "they are no model. Start all hubs again"
            )
        return True

    async def farewell(self, status: str) -> None:
        """Tell the clients that it is over."""
        self.stage = status
        for name, count in sorted(self.clients.left_out.items()):
            self.log(f"client '{name}' was left out of {count:,} rounds: it was away, or did not answer")
        for link in list(self.clients.links.values()):
            try:
                await asyncio.wait_for(link.say(Message("farewell", {"status": status})), 2.0)
            except Exception as error:
                self.log(f"client '{link.name}' does not hear the end: {error}")

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


@dataclass
class Waiting:
    """Waits again and again, each time longer, up to an end."""

    seconds: float
    """Before the end."""
    times: int = 0
    _began: float = 0.0

    async def pause(self) -> None:
        """Wait a little."""
        if not self.times:
            self._began = time.monotonic()
        await asyncio.sleep(min(2.0, 0.1 * 2**self.times))
        self.times += 1

    @property
    def over(self) -> bool:
        """Whether the end has come."""
        return time.monotonic() - self._began > self.seconds


@dataclass(frozen=True)
class HubEngine:
    """One hub's part of a training, as the loop over rounds sees it. See Engine."""

    hub: Hub
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine in the hub's event loop and waits for it."""

    @property
    def compute_plan(self) -> Mapping[str, str]:
        """Clients compute as they see fit."""
        return {self.hub.silo: "at its clients' sites"}

    def agree(self, rounds: Sequence[int]) -> int:
        """See Engine."""
        start: int = self.run(self.hub.agree(rounds))
        return start

    def round(self, states: States, number: int) -> tuple[States, Traffic]:
        """See Engine."""
        state, traffic = self.run(self.hub.one_round(states[self.hub.silo], number))
        return {self.hub.silo: state}, traffic

    def conclude(self, number: int, selected: int) -> bool:
        """See Engine."""
        confirmed: bool = self.run(self.hub.conclude(number, selected))
        return confirmed

    def evaluate(self, states: States, judge: Judge) -> tuple[Measures, Verdict]:
        """See Engine."""
        weights = states[self.hub.silo].weights
        result: tuple[Measures, Verdict] = self.run(self.hub.evaluate(weights, self.hub.round, judge))
        return result


def _common_round(rounds: Mapping[str, Sequence[int]]) -> int:
    """Return the newest round that all hubs can go on after, given by silo.

    Raises:
        DeploymentError: it would be the beginning, though some hub is well past that: then files were lost.
    """
    result = max(set.intersection(*(set(of_silo) for of_silo in rounds.values())))
    if result == 0 and any(sum(number > 0 for number in of_silo) > 1 for of_silo in rounds.values()):
        own = {
            silo: join_names(str(number) for number in of_silo if number) for silo, of_silo in sorted(rounds.items())
        }
        text = "; ".join(f"silo '{silo}' has {result or 'none'}" for silo, result in own.items())
        raise DeploymentError(
            f"the hubs' checkpoints have no round in common ({text}): did one lose its run directory? Put it back; or, "
            "to begin anew, remove the run directories of all hubs"
        )
    return result
