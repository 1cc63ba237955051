"""A hub's part of every round.

A round is Algorithm 1 with one rule more. If a client does not do its part, in whatever stage, its rows leave the
mini-batch in all silos and the round begins again on the rest: so whatever happens, a round computes what a simulation
would on that smaller mini-batch. At the end of each round the hubs tell each other whose clients are away, so that the
next one begins without them.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tdcd.core.ledger import Traffic
from tdcd.core.sampling import Holders
from tdcd.core.script import NOTHING, EmptyBatch, Hub, Lost, Plan, communication_round
from tdcd.core.state import SiloState
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.errors import AbsentError
from tdcd.sites.event_loop import now
from tdcd.sites.hub.context import HubContext, Pause
from tdcd.sites.hub.driver import SiteClients, SitePeers, samples_tensor
from tdcd.sites.hub.setup import Prepared
from tdcd.sites.messages.frames import RefusedError, Stamp
from tdcd.sites.messages.packing import fits, samples_in
from tdcd.sites.messages.types import SiloHolders, Waiting

RECENT = 20
"""Rounds that the speed is of."""
REDRAWS = 50
"""How often clients are drawn for a round in which nothing is left without those that were lost."""


@dataclass
class Rounds:
    """The rounds of one epoch at one hub."""

    context: HubContext
    prepared: Prepared
    plan: Plan
    """The roles of all silos in a round."""
    holders: Mapping[str, Holders] | None = None
    """Who holds which sample in every silo, where not all clients take part in each round."""
    _away: Lost = NOTHING
    """Samples of the next mini-batch whose clients are away, in whatever silo."""
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    async def run(self, state: SiloState, number: int, version: int) -> tuple[SiloState, Traffic]:
        """Run this silo's part of a round; ``version`` names the weights that it begins with."""
        context = self.context
        context.progress.stage = f"round {number}"
        await context.wait_for_clients(self.prepared.plan.roster.clients)
        context.peers.advance(number)
        before, pause = self._counted(), Pause(context.job.deployment.hub_deadline)
        away, first = self._away, 0
        while True:
            try:
                outcome = await communication_round(partial(self.attempt, number, version), state, away, first)
                break
            except EmptyBatch as error:
                away, first = (
                    await self._wait_for_someone(Stamp("", 0, number, error.attempt), pause),
                    error.attempt + 1,
                )
        self._away = outcome.away
        self._count_left_out(number, outcome.lost)
        context.progress.round = number
        self._ends.append(now())
        sent = (after - then for after, then in zip(self._counted(), before, strict=True))
        return outcome.state, Traffic(*sent)

    def attempt(self, number: int, version: int, lost: Lost, attempt: int) -> Hub[Tensor, SiloState] | None:
        """Open an attempt at a round, if samples are left."""
        batch = self.left(number, lost)
        if not len(batch):
            return None
        context, prepared, stamp = self.context, self.prepared, Stamp("", 0, number, attempt)
        like = torch.empty(len(batch), prepared.model.width, dtype=prepared.settings.dtype)
        round_ = prepared.hub_round(number, len(self.plan.features))
        clients = SiteClients(
            context.clients, prepared, round_, batch, lost, stamp, version, lambda: self._away_in(number + 1)
        )
        peers = SitePeers(context.peers, context.silo, self.plan, batch, like, prepared.codecs.rows, stamp)
        mask = prepared.settings.make_silo_dropout().in_round(number, batch)
        return Hub(context.silo, self.plan, clients, peers, mask)

    def left(self, number: int, lost: Lost) -> Tensor:
        """Return a round's mini-batch without lost samples.

        Where clients take turns, others are drawn if nothing is left: by all hubs alike, who agree on what was lost.
        """
        for again in range(REDRAWS if self.holders else 1):
            batch = self._batch(number, again)
            batch = batch[[sample not in lost for sample in batch.tolist()]] if lost else batch
            if len(batch):
                break
        return torch.from_numpy(batch)

    @property
    def speed(self) -> float:
        """Rounds a second, over the last ones."""
        ends = self._ends
        return (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 and ends[-1] > ends[0] else 0.0

    def _counted(self) -> tuple[int, int, int]:
        """Return the bytes of rounds so far, as counted where they were put into frames."""
        clients = self.context.clients.meters.rounds
        return clients.received, clients.sent, self.context.peers.meter.sent

    def _count_left_out(self, number: int, lost: Lost) -> None:
        """Count the clients whose rows of a mini-batch were all lost."""
        if lost:
            left, plan, counts = self.left(number, lost).numpy(), self.prepared.plan, self.context.clients.left_out
            for name in plan.roster.clients:
                held = plan.training(name)
                if not lost.isdisjoint(held.tolist()) and not np.isin(held, left).any():
                    counts[name] = counts.get(name, 0) + 1

    async def _wait_for_someone(self, stamp: Stamp, pause: Pause) -> Lost:
        """Wait a while for clients, as all hubs do where nothing of a mini-batch is left; return who is away then.

        Raises:
            AbsentError: some hub has waited for too long.
        """
        context = self.context
        if not pause.times:
            context.log("waiting for clients: those there, in all silos, hold no sample of the mini-batch in common")
        await pause.wait()
        await context.wait_for_clients(self.prepared.plan.roster.clients)
        away, late = self._away_in(stamp.round), pause.over
        replies = await context.peers.exchange(Waiting(late, samples_tensor(away)), stamp)
        if late or any(reply.late for reply in replies.values()):
            raise AbsentError(
                f"the clients that are there, in all silos, hold no sample of the mini-batch of round {stamp.round} in "
                "common, so that there is nothing to train on. What was done is kept: start the hubs again when more "
                "clients are back"
            )
        return away.union(*(samples_in(r.away, f"the hub of silo '{silo}'") for silo, r in replies.items()))

    def _batch(self, number: int, again: int = 0) -> Array:
        """Return the mini-batch of a round, before anybody is lost."""
        settings, samples = self.prepared.settings, self.prepared.plan.counts[Part.TRAIN]
        batch: Array = settings.sample_batch(number, samples, self.holders, again).numpy()
        return batch

    def _away_in(self, number: int) -> Lost:
        """Return the samples of a round's mini-batch whose clients are away now, where a round needs them."""
        plan = self.prepared.plan
        away = set(plan.roster.clients) - self.context.clients.present()
        idle = plan.label_only and not self.context.job.labels.private  # its labels were handed over: it has no part
        if not away or idle or number > self.prepared.settings.rounds:
            return NOTHING
        held = np.concatenate([plan.training(name) for name in sorted(away)])
        return frozenset(np.intersect1d(self._batch(number), held, assume_unique=True).tolist())


async def exchange_holders(context: HubContext, prepared: Prepared, plan: Plan) -> Mapping[str, Holders] | None:
    """Exchange with the other hubs which samples lie at the same client, if each round draws its clients.

    Clients have no names in it: they are numbered by the smallest sample that each holds.

    Raises:
        RefusedError: another hub's numbers are impossible.
        RewoundError: all hubs meet again.
    """
    if prepared.settings.participation == 1:
        return None
    roster, samples = prepared.plan.roster, prepared.plan.counts[Part.TRAIN]
    nobody = SiloHolders(torch.empty(0, dtype=torch.int32), 0)
    takes_part = context.silo in plan.active
    mine = SiloHolders(roster.owner.to(torch.int32), len(roster.clients)) if takes_part else nobody
    everybody = {context.silo: mine, **await context.peers.exchange(mine)}
    for silo, held in everybody.items():
        who = f"the hub of silo '{silo}' sends 'holders'"
        if silo not in plan.active:
            fits(held.owner, (0,), torch.int32, f"{who}: owner")
            continue
        owner = fits(held.owner, (samples,), torch.int32, f"{who}: owner")
        if len(torch.unique(owner)) != held.clients or int(owner.min()) != 0 or int(owner.max()) != held.clients - 1:
            raise RefusedError(f"{who}: its clients are not numbered from 0 to {held.clients - 1}")
    return {silo: Holders(held.owner.numpy(), held.clients) for silo, held in everybody.items() if silo in plan.active}
