"""The default engine: every hub in this process, in turns; a silo's clients computed together."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from tdcd.compute import ComputeName, Threads, choose, draws, gains_by_workers, one_torch_thread
from tdcd.compute.choose import PathName
from tdcd.compute.fallback import fallback, join_fallbacks
from tdcd.compute.modules import never_draws
from tdcd.compute.worker import Worker
from tdcd.core.aggregators import aggregate
from tdcd.core.average import Mean, add_idle
from tdcd.core.codecs import Codecs
from tdcd.core.gradients import PrivateLabels
from tdcd.core.network import Block
from tdcd.core.script import NOTHING, Hub, Lost, Message, Outcome, Topic, communication_round, plan_rounds
from tdcd.core.state import SiloState, States
from tdcd.core.streams import borrow_stream, stream_state
from tdcd.core.task import Round, SiloTask, sum_embeddings
from tdcd.core.topology import deal
from tdcd.core.turns import Mail, run_in_turns
from tdcd.engines.base import Training, left_finite
from tdcd.engines.simulation import SimulationEngine
from tdcd.errors import ModelError

OnGradients = Callable[[str, Tensor, Tensor], None]
"""Is called with the logit gradients that a silo without labels receives: its name, samples (B,), gradients (B, E)."""


class LocalClients:
    """The clients of one hub as a group in memory, in one round. See the script's Clients."""

    def __init__(self, training: Training, silo: str, worker: Worker | None, round_: Round) -> None:
        self._training, self._silo, self._worker, self._round = training, silo, worker, round_

    @property
    def _trained(self) -> Worker:
        if self._worker is None:
            raise RuntimeError(f"silo '{self._silo}' has no features")
        return self._worker

    def _carry(self, rows: Tensor) -> Tensor:
        """Return rows that travel between the hub and its clients, a message each, as their receivers see them."""
        codecs = self._training.codecs
        if codecs.plain_rows or codecs.rows.elementwise:
            return codecs.carry_rows(rows)
        carried = torch.empty_like(rows)
        for own in self._each_client():
            carried[own] = codecs.carry_rows(rows[own])
        return carried

    def _each_client(self) -> Iterator[Tensor]:
        """Yield the rows of each client, as places in the mini-batch."""
        shards = deal(self._round.batch, self._training.silos[self._silo])
        for _, place in shards:
            yield shards.order[place]

    async def embed(self, state: SiloState) -> Tensor:  # noqa: D102
        task = self._trained.task
        self._state, self._sent = state, self._training.codecs.carry_block(task.sent(state), task.network.trainable)
        self._own = self._trained.embed(self._sent, self._round)
        return self._carry(self._own)

    async def step(self, gradients: Tensor) -> Tensor:  # noqa: D102
        return self._carry(self._trained.step(self._carry(gradients)))

    async def descend(self, rows: Tensor | Literal[0] | None) -> SiloState:  # noqa: D102
        if rows is None:
            rows = self._others
        else:
            rows = self._carry(torch.zeros_like(self._own) if isinstance(rows, int) else rows)
        task, changes = self._trained.task, self._training.codecs.changes
        gathered = self._trained.descend(rows)
        if isinstance(gathered, Mean):
            changed = task.network.trainable if changes else ()
            add_idle(gathered, task.averaging, task.participants, self._sent, changed)
        round_ = self._training.hub_round(self._silo, self._round.number)
        return aggregate(task.aggregator, self._state, gathered, round_, changes=changes)

    async def first_gradients(self, others: Tensor | Literal[0]) -> Tensor:  # noqa: D102
        if isinstance(others, int):
            raise TypeError("no other silo has embeddings")
        self._others = self._carry(others)
        return self._gradients("", self._others if self._worker is None else self._own + self._others, 0)

    async def gradients(self, scores: Mapping[str, Tensor], step: int) -> Mapping[str, Tensor]:  # noqa: D102
        return {silo: self._gradients(silo, self._carry(z), step) for silo, z in scores.items()}

    def _gradients(self, silo: str, scores: Tensor, step: int) -> Tensor:
        private = self._training.private
        if private is None:
            raise RuntimeError("nobody holds labels for others")
        noise, batch = private.noise(self._round.number, silo, step, scores), self._round.batch.to(scores.device)
        if self._training.codecs.plain_rows:
            return private.gradients(batch, scores, noise)
        gradients = torch.empty_like(scores)
        for own in self._each_client():  # as at sites, to the bit: what is rounded next may turn a last digit into more
            gradients[own] = private.gradients(batch[own], scores[own], None if noise is None else noise[own])
        return self._carry(gradients)

    def away(self) -> Lost:  # noqa: D102
        return NOTHING

    def diverged(self, state: SiloState) -> bool:  # noqa: D102
        return self._worker is not None and left_finite(state.weights, self._state.weights)


def yields_shared_numbers(private: PrivateLabels, codecs: Codecs) -> bool:
    """Tell whether private labels train what shared ones do: logit gradients at every step, as they are.

    A simulation then computes each gradient where it is used, and all of a client's steps at once. What would travel
    is the ledger's concern, which counts it all the same.
    """
    return private.sharing == "exact" and private.privatizer is None and codecs.plain_rows


class LocalPeers:
    """The other hubs in the same process. See the script's Peers."""

    def __init__(
        self, silo: str, mail: Mail[Message[Tensor]], codecs: Codecs, record: Callable[[str, Tensor], None] | None
    ) -> None:
        self._silo, self._mail, self._codecs, self._record = silo, mail, codecs, record

    async def send(self, topic: Topic, messages: Mapping[str, Message[Tensor]]) -> None:  # noqa: D102
        codecs = self._codecs
        for receiver, message in messages.items():
            if message.rows is not None and not codecs.plain_rows:
                message = message._replace(rows=codecs.carry_rows(message.rows))
            if self._record and topic.kind == "gradients" and message.rows is not None:
                self._record(receiver, message.rows)
            self._mail.put(self._silo, receiver, topic, message)

    async def receive(self, topic: Topic, senders: Collection[str]) -> Mapping[str, Message[Tensor]]:  # noqa: D102
        return await self._mail.take(self._silo, topic, senders)


class LocalEngine(SimulationEngine):
    """Simulate the federation in this process, with at most so many workers.

    Compiled kernels have threads of their own. Other paths share out the silos to the workers or, where there are fewer
    silos, the clients of one silo after the other; but only networks whose operations are long enough gain by it. With
    a network that draws random numbers there is one worker: torch has one stream of them. A network may hide that it
    draws, for example by doing so for many rows only: if torch's stream has moved after a round, that round is
    computed again with a stream for each client.
    """

    def __init__(
        self,
        training: Training,
        compute: ComputeName = "auto",
        workers: int = 1,
        recorder: OnGradients | None = None,
    ) -> None:
        super().__init__(training)
        self._plan, self._recorder = training.plan, recorder
        tasks: Mapping[str, SiloTask] = training.tasks
        if training.private and not recorder and yields_shared_numbers(training.private, training.codecs):
            labels = training.private.labels
            self._plan = plan_rounds(training.steps, label_only=set(self._plan.silos) - set(tasks))
            tasks = {silo: replace(task, labels=labels) for silo, task in tasks.items()}
        tasks = {silo: replace(task, remote_labels=silo in self._plan.requests) for silo, task in tasks.items()}
        if any(task.features.device.type != "cpu" for task in tasks.values()):
            workers = 1  # the device has enough to do
        self._device = next(iter(tasks.values())).features.device
        self._watched = not all(never_draws(task.network.module) for task in tasks.values())
        """Whether a network might draw random numbers, though it is not known to."""
        suspended = {silo for silo, requests in self._plan.requests.items() if requests > 1}
        with borrow_stream(self._device):
            chosen = {silo: choose(task, compute, suspendable=silo in suspended) for silo, task in tasks.items()}
            self._build(tasks, chosen, workers, suspended, seeded=False)
            self._fallbacks = {
                silo: fallback(task, compute, chosen[silo][0], suspendable=silo in suspended)
                for silo, task in tasks.items()
            }
        self._build_seeded = partial(self._build, tasks, chosen, workers, suspended, seeded=True)

    def _build(
        self,
        tasks: Mapping[str, SiloTask],
        chosen: Mapping[str, tuple[PathName, str]],
        workers: int,
        suspended: Collection[str],
        *,
        seeded: bool,
    ) -> None:
        if seeded:  # torch cannot stack clients that draw
            why = "loop (its clients draw random numbers)"
            chosen = {j: ("loop", why) if c[0] in ("stacked", "mixed") else c for j, c in chosen.items()}
        drawing = seeded or any(draws(task) for task in tasks.values())
        gains = not drawing and any(gains_by_workers(tasks[silo], name, workers) for silo, (name, _) in chosen.items())
        gains = gains and not suspended  # a single step is too short to be worth a thread
        by_silo = gains and len(tasks) >= workers
        self._silo_workers = Threads(workers if by_silo else 1)
        shared = Threads(workers if gains and not by_silo else 1)
        threads = 1 if by_silo else workers
        self._chosen = {silo: why for silo, (_, why) in chosen.items()}
        self._workers = {
            silo: Worker(task, chosen[silo][0], shared, threads, suspendable=silo in suspended, seeded=seeded)
            for silo, task in tasks.items()
        }

    @property
    def compute_plan(self) -> Mapping[str, str]:
        """See Engine."""
        return self._chosen

    @property
    def notes(self) -> Sequence[str]:
        """See SimulationEngine."""
        return join_fallbacks(self._fallbacks)

    def compute_round(self, states: States, round_: Round) -> dict[str, SiloState]:
        """See SimulationEngine."""
        if not self._watched:
            return self._round(states, round_)
        with borrow_stream(self._device):
            before = stream_state(self._device)
            try:
                new = self._round(states, round_)
            except ModelError as error:
                if "randomness" not in str(error.__cause__):  # what torch says of stacked clients that draw
                    raise
            else:
                if all(map(torch.equal, before, stream_state(self._device))):
                    return new
            self._watched = False
            self._build_seeded()
        return self._round(states, round_)

    def _round(self, states: States, round_: Round) -> dict[str, SiloState]:
        mail: Mail[Message[Tensor]] = Mail()
        record = partial(self._record, round_.batch) if self._recorder else None

        def attempt(silo: str, lost: Lost, number: int) -> Hub[Tensor, SiloState]:  # noqa: ARG001
            clients = LocalClients(self.training, silo, self._workers.get(silo), round_.of(silo))
            return Hub(silo, self._plan, clients, LocalPeers(silo, mail, self.training.codecs, record))

        hubs = {silo: communication_round(partial(attempt, silo), states[silo]) for silo in self._plan.silos}
        with one_torch_thread():
            each = self._silo_workers.map if self._silo_workers.count > 1 else None
            outcomes: dict[str, Outcome[SiloState]] = run_in_turns(hubs, mail, each)
        return {silo: outcomes[silo].state for silo in states}

    def _record(self, batch: Tensor, silo: str, gradients: Tensor) -> None:
        if self._recorder:
            self._recorder(silo, batch, gradients)

    def scores(self, weights: Mapping[str, Block], features: Mapping[str, Tensor]) -> Tensor:
        """See SimulationEngine."""
        silos = list(self._workers)
        with one_torch_thread(), borrow_stream(self._device):
            embed = partial(self._embed_all, weights, features)
            return sum_embeddings(dict(zip(silos, self._silo_workers.map(embed, silos), strict=True)))

    def _embed_all(self, weights: Mapping[str, Block], features: Mapping[str, Tensor], silo: str) -> Tensor:
        return self._workers[silo].embed_all(weights[silo], features[silo])
