"""One silo's hub: set up, then round after round with the other hubs, to the end."""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tdcd.core.ledger import Traffic
from tdcd.core.network import named_tensors
from tdcd.core.script import plan_rounds
from tdcd.core.state import SiloState
from tdcd.data.holdout import Part
from tdcd.engines.base import Judge, Measurement, RewoundError, Verdict, block_bytes
from tdcd.errors import AbsentError, DeploymentError, join_names
from tdcd.files import write_atomically
from tdcd.sites.hub.context import HubContext
from tdcd.sites.hub.evaluation import Evaluator
from tdcd.sites.hub.link import Link
from tdcd.sites.hub.model_parts import SLACK, ModelParts
from tdcd.sites.hub.rounds import Rounds, exchange_holders
from tdcd.sites.hub.setup import HubSetup, Prepared
from tdcd.sites.messages.calls import ClientStatus, HubStatus, PeerStatus
from tdcd.sites.messages.frames import RefusedError, Stamp
from tdcd.sites.messages.types import ABSENT, FINISHED, Concluded, Farewell
from tdcd.sites.shared_job import VERSION

ANSWER = 2.0
"""Seconds that another hub has to say that it is there."""
INFORMED = "informed.json"
"""In a run directory: the clients that have heard that the training is finished."""
ALONE = (
    "this hub has finished without the others; if another hub still has to finish, restart this one with it, and they "
    "go on together"
)


@dataclass
class Hub:
    """A hub. Its coroutines run in one event loop; the loop over rounds runs in another thread."""

    context: HubContext
    setup: HubSetup = field(init=False)
    parts: ModelParts = field(init=False)
    rounds: Rounds | None = None
    """Those of the present epoch."""
    _version: int = 0
    """Names the weights that the silo has now."""
    _last_word: Farewell | None = None
    """What a client hears that comes when all is over."""
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.setup, self.parts = HubSetup(self.context), ModelParts(self.context)

    @property
    def prepared(self) -> Prepared:
        """What the hub knows once it is set up."""
        return self.setup.ready()

    async def welcome(self, link: Link) -> None:
        """Bring a client that has come to where it can take part."""
        if self._last_word:
            await self.context.clients.tell_late(link, self._last_word)
        else:
            await self.setup.welcome(link)

    async def agree(self, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        """Meet the other hubs, and find the newest round that all can go on after. See Engine."""
        context, prepared = self.context, self.prepared
        job, peers, plan = context.job, context.peers, prepared.plan
        context.progress.stage = "gathering clients"
        needed = min(job.deployment.minimum_clients, len(plan.roster.clients))
        await context.clients.all_or(plan.roster.clients, needed, job.deployment.hub_deadline)
        while True:
            context.progress.stage = "meeting the other hubs"
            mine = {
                "alignment": plan.fingerprint,
                "parts": plan.parts_digest,
                "checkpoints": {str(number): lineage for number, lineage in checkpoints.items()},
                "token": secrets.token_hex(8),
                "label_only": plan.label_only,
                "part": self._part_bytes,
                "width": prepared.model.width,
                **self.setup.brought,
            }
            brought = await peers.meeting("start", mine)
            everybody = {silo: _read_brought(silo, theirs) for silo, theirs in brought.items()}
            if any(not theirs.alignment for theirs in everybody.values()):
                with suppress(RewoundError):
                    await self.setup.align_again(brought)
                continue
            different = [
                name
                for name, theirs in everybody.items()
                if (theirs.alignment, theirs.parts) != (plan.fingerprint, plan.parts_digest)
            ]
            if different:
                raise DeploymentError(
                    f"the common IDs, labels handed over with them, or what is held out are not the same here and at "
                    f"the hub of silo {', '.join(different)}; align again: remove alignment.parquet at all hubs, and "
                    "start new runs"
                )
            self.setup.end_alignment()
            widths = {name: theirs.width for name, theirs in everybody.items()}
            if len(set(widths.values())) > 1:
                text = join_names((f"{name} {width}" for name, width in sorted(widths.items())), most=16)
                raise DeploymentError(
                    f"embedding widths differ between silos: {text}; every silo's network must end in the same number "
                    "of outputs, and where one has labels only, in as many as there are classes"
                )
            label_only = {name for name, theirs in everybody.items() if theirs.label_only}
            steps = {silo: job.settings_of(silo).local_steps for silo in set(everybody) - label_only}
            roles = plan_rounds(steps, job.labels.sharing or "shared", job.labels.label_holder, label_only)
            every = sum(plan.counts.values())
            part = max(theirs.part for theirs in everybody.values())
            peers.most = part + every * (prepared.model.width * job.training.dtype.itemsize + 16) + (1 << 20)
            try:
                holders = await exchange_holders(context, prepared, roles)
            except RewoundError:
                continue
            self.rounds = Rounds(context, prepared, roles, holders)
            self._version += 1
            tokens = " ".join(theirs.token for _, theirs in sorted(everybody.items()))
            start, lineage = common_round({name: theirs.checkpoints for name, theirs in everybody.items()})
            context.progress.round = start
            return start, hashlib.blake2b(f"{lineage} {tokens}".encode(), digest_size=8).hexdigest()

    @property
    def _part_bytes(self) -> int:
        """The bytes of this silo's part of a model."""
        if self.parts.at in (None, self.context.silo):
            return 0
        network, made = self.prepared.model.network, self.setup.preparation
        weights = block_bytes(dict(named_tensors(network.module))) if network else 0
        return weights + (len(made.to_json().encode()) if made else 0) + SLACK

    async def run_round(self, state: SiloState, number: int) -> tuple[SiloState, Traffic]:
        """Run this silo's part of a round."""
        if self.rounds is None:
            raise RuntimeError("the hubs have not met")
        result = await self.rounds.run(state, number, self._version)
        self._version += 1
        if self.parts.is_due(number):
            await self.parts.gather(result[0].weights, number, finished=False)
        return result

    async def evaluate(self, state: SiloState, judge: Judge) -> tuple[Measurement, Verdict]:
        """Measure the whole model, together with the other hubs."""
        evaluator = Evaluator(self.context, self.prepared)
        return await evaluator.evaluate(
            self.setup.ready().sent(state), self.context.progress.round, self._version, judge
        )

    async def measure_importance(self) -> None:
        """Measure how much this silo's columns matter to the model that the training ended with."""
        from tdcd.sites.hub.importance import ColumnImportance  # brings polars

        self._version += 1
        await ColumnImportance(self.context, self.prepared, self.setup.preparation, self._version).measure()

    async def conclude(self, number: int, selected: int) -> bool:
        """Wait until all hubs have written what they hold at the end: one that was killed may need this one.

        Returns:
            Whether all have. One that has not may still need this hub, which then goes on when it is started again.

        Raises:
            DeploymentError: another hub ends with the weights of another round.
        """
        context = self.context
        context.progress.stage = "waiting for the other hubs to end"
        try:
            replies = await context.peers.exchange(Concluded(selected), Stamp("", 0, number))
        except AbsentError as error:
            context.log(f"{ALONE}: {error}")
            return False
        others = {silo: reply.selected for silo, reply in replies.items()}
        if odd := [f"that of silo '{silo}' of round {round_}" for silo, round_ in others.items() if round_ != selected]:
            raise DeploymentError(
                f"the hubs end with weights of different rounds: this one of round {selected}, {join_names(odd)}; "
                "together they are no model. Start all hubs again"
            )
        return True

    async def farewell(self, status: str, why: str = "", *, wait: bool = True) -> None:
        """Tell the clients that it is over; the other hubs, too, if it is because somebody was away for too long.

        Args:
            status: How it ends.
            why: Who was away.
            wait: Wait for clients that are away now, to tell them that it is finished.
        """
        context = self.context
        context.progress.stage = status
        self._last_word = Farewell(status, why)
        if status == ABSENT:
            await context.peers.leave(why)
        for name, count in sorted(context.clients.left_out.items()):
            context.log(
                f"client '{name}' was left out of {count:,} rounds: its samples were lost, here or in another silo"
            )
        file = context.directory / INFORMED
        if status == FINISHED:
            context.clients.informed |= _read_informed(file)
        await context.clients.tell(self._last_word, wait=wait)
        if status == FINISHED and context.directory.exists():
            write_atomically(file, json.dumps(sorted(context.clients.informed)))

    async def snapshot(self) -> HubStatus:
        """Tell how the hub is doing, and which other hubs answer now: those that wait for clients have sent nothing."""
        peers = self.context.peers.peers.values()
        answers = await asyncio.gather(*(peer.hub.answers(ANSWER) for peer in peers))
        for peer, answer in zip(peers, answers, strict=True):
            peer.present = answer
        return self.status()

    def status(self) -> HubStatus:
        """Tell how the hub is doing; only in its event loop, where nothing changes meanwhile."""
        context, plan = self.context, self.setup.plan
        clients, peers, progress = context.clients, context.peers, context.progress
        sent, received = clients.traffic
        evaluations = clients.meters.evaluations
        clock = asyncio.get_running_loop().time()
        rows = {name: len(held.get(Part.TRAIN, ())) for name, held in plan.holdings.items()} if plan else {}
        return HubStatus(
            silo=context.silo,
            job=context.job.name,
            stage=progress.stage,
            round=progress.round,
            rounds=context.job.training.rounds,
            rounds_per_second=self.rounds.speed if self.rounds else 0.0,
            clients=tuple(
                ClientStatus(
                    name=name,
                    present=name in clients.links,
                    rows=rows.get(name, 0),
                    left_out=clients.left_out.get(name, 0),
                    seconds_since_seen=clock - clients.links[name].seen if name in clients.links else -1.0,
                )
                for name in clients.names
            ),
            peers=tuple(PeerStatus(peer.silo, peer.address, peer.present) for peer in peers.peers.values()),
            bytes_sent=sent + peers.sent,
            bytes_received=received + peers.received,
            evaluation_bytes=evaluations.sent + evaluations.received + peers.evaluations.sent,
            last_error=progress.last_error,
            evaluation=json.dumps(progress.evaluation) if progress.evaluation else "",
            seconds=time.monotonic() - self._started,
            version=VERSION,
        )


@dataclass(frozen=True)
class Brought:
    """What a hub brings to the meeting before rounds; one that has yet to align brings no more than that."""

    alignment: str
    parts: str = ""
    checkpoints: Mapping[int, str] = field(default_factory=dict)
    """The lineage of every round that it can go on after."""
    token: str = ""
    """Drawn for this meeting: what follows has another lineage than what came of others."""
    label_only: bool = False
    width: int = 0
    part: int = 0
    """Bytes of what it brings to a model, where the job says that one hub makes it."""


_BROUGHT = TypeAdapter(Brought)
_NAMES = TypeAdapter(list[str])


def _read_brought(silo: str, brought: Mapping[str, Any]) -> Brought:
    try:
        return _BROUGHT.validate_json(json.dumps(brought), strict=True)
    except ValidationError as error:
        raise RefusedError(
            f"the hub of silo '{silo}' brings something malformed to the meeting: {error}"[:500]
        ) from error


def _read_informed(file: Path) -> set[str]:
    """Return the clients that have heard before that the training is finished."""
    try:
        return set(_NAMES.validate_json(file.read_bytes()))
    except (OSError, ValidationError):
        return set()


def common_round(checkpoints: Mapping[str, Mapping[int, str]]) -> tuple[int, str]:
    """Return the newest round that all hubs can go on after, and its lineage, given by silo.

    Raises:
        DeploymentError: there is none, though some hub is past the beginning: files were lost, or put back from before.
    """
    common = set.intersection(*(set(of_silo.items()) for of_silo in checkpoints.values()))
    start, lineage = max(common, default=(0, ""))
    past = {silo: [number for number in sorted(of_silo) if number] for silo, of_silo in sorted(checkpoints.items())}
    most = max(len(rounds) for rounds in past.values())
    if start or most <= len(common):  # one checkpoint: another hub may have been stopped just before its own
        return start, lineage
    text = "; ".join(f"silo '{silo}' has {join_names(rounds) or 'none'}" for silo, rounds in past.items())
    if lost := [silo for silo, rounds in past.items() if not rounds]:
        why = f"did the hub of silo {join_names(lost)} lose its run directory, or files of it? Put it back"
    else:
        why = "did one lose its run directory, or was it put back from an old backup? Put the newest one back"
    raise DeploymentError(
        f"the hubs have no checkpoint of one training in common ({text}): {why}; or, to restart from round 0, remove "
        "the run directories of all hubs"
    )
