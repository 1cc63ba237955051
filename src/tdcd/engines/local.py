"""The default engine: every hub in this process, in turns; a silo's clients computed together."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from tdcd.compute import ComputeName, Threads, choose, draws, gains_by_workers, one_torch_thread
from tdcd.compute.choose import PathName
from tdcd.compute.fallback import fallback, join_fallbacks
from tdcd.compute.modules import never_draws
from tdcd.compute.worker import Worker
from tdcd.core.average import Gathered
from tdcd.core.codecs import Codecs
from tdcd.core.network import Block
from tdcd.core.script import Hub, Lost, Message, Outcome, Topic, communication_round
from tdcd.core.state import SiloState, States
from tdcd.core.streams import borrow_stream, stream_state
from tdcd.core.task import Round, SiloTask, sum_embeddings
from tdcd.core.turns import Mail, run_in_turns
from tdcd.engines.base import Training
from tdcd.engines.clients import GroupClients
from tdcd.engines.simulation import SimulationEngine, simulated
from tdcd.errors import ModelError

OnGradients = Callable[[str, Tensor, Tensor], None]
"""Is called with the logit gradients that a silo without labels receives: its name, samples (B,), gradients (B, E)."""


class LocalGroup:
    """All clients of a silo, computed in this process. See Group."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def embed(self, block: Block, round_: Round) -> Tensor:  # noqa: D102
        return self._worker.embed(block, round_)

    async def step(self, gradients: Tensor) -> Tensor:  # noqa: D102
        return self._worker.step(gradients)

    async def descend(self, rows: Tensor) -> Gathered:  # noqa: D102
        return self._worker.descend(rows)


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
        self._recorder = recorder
        self._plan, tasks = simulated(training, recorded=recorder is not None)
        self._hubs = {silo: training.hub(silo) for silo in self._plan.silos}
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
        self._groups = {silo: LocalGroup(worker) for silo, worker in self._workers.items()}

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
        mask = self.training.silo_dropout.in_round(round_.number, round_.batch)

        def attempt(silo: str, lost: Lost, number: int) -> Hub[Tensor, SiloState]:  # noqa: ARG001
            clients = GroupClients(self._hubs[silo], self._groups.get(silo), round_.of(silo))
            return Hub(silo, self._plan, clients, LocalPeers(silo, mail, self.training.codecs, record), mask)

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
