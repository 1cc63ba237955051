"""The default engine: every silo in this process, a silo's clients computed together."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from tdcd.compute import Compute, ComputeName, Workers, choose, draws, gains_by_workers, make, one_torch_thread
from tdcd.compute.choose import PathName
from tdcd.compute.fused import Fused
from tdcd.compute.modules import never_draws
from tdcd.compute.whole import embed_whole
from tdcd.core.labels import FixedGradient, PrivateLabels, RemoteGradient
from tdcd.core.network import Block, Blocks, named_tensors
from tdcd.core.objective import Loss
from tdcd.core.round import Round, communication_round, sum_embeddings, sum_of_others
from tdcd.core.streams import borrow_stream, stream_state
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards, deal
from tdcd.errors import ModelError

T = TypeVar("T")

GradientRecorder = Callable[[str, Tensor, Tensor], None]
"""Is told what a silo without labels hears: its name, samples (…), and answers (…, E)."""


class LocalClients:
    """A hub's clients as a group in memory."""

    def __init__(self, task: SiloTask, compute: Compute, workers: Workers) -> None:
        self._task, self._compute, self._workers = task, compute, workers
        self._open: tuple[Block, Round, Shards] | None = None
        self._known: tuple[Block, Tensor] | None = None
        """A block and its embeddings of all training rows, from an evaluation: the next exchange needs some of them."""

    def embed(self, block: Block, round_: Round) -> Tensor:
        """See Clients."""
        shards = deal(round_.batch, self._task.roster, self._task.features.device)
        self._open = block, round_, shards
        known, self._known = self._known, None
        if known and known[0] is block:
            return known[1][round_.batch]
        grouped = self._compute.embed(block, round_, shards)
        return torch.empty_like(grouped).index_copy_(0, shards.order, grouped)

    def descend(self, others: Tensor) -> Block:
        """See Clients."""
        assert self._open is not None, "a round starts with embed"  # noqa: S101
        block, round_, shards = self._open
        self._open = None
        return self._compute.descend(block, round_, shards, others[shards.order]).result()

    def embed_whole(self, block: Block, features: Tensor) -> Tensor:
        """Embed any rows for an evaluation."""
        if isinstance(self._compute, Fused):
            embedding = self._compute.embed_whole(block, features)
            if features is self._task.features:
                self._known = block, embedding
            return embedding
        return embed_whole(self._task.silo, self._task.network, block, features, self._workers)


class LocalPeers:
    """All hubs in one memory: the exchange is a sum."""

    def __init__(self, heard: Callable[[Tensor], None] | None = None) -> None:
        self._heard = heard
        """Is told the summed embeddings, by clients that have labels to answer with."""

    def exchange(self, embeddings: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See Peers."""
        if self._heard:
            self._heard(sum_embeddings(embeddings))
        return {silo: sum_of_others(embeddings, silo) for silo in embeddings}


class Answers:
    """The clients with labels, in the same memory as those without, who ask them."""

    def __init__(
        self, private: PrivateLabels, tasks: Mapping[str, SiloTask], witness: GradientRecorder | None = None
    ) -> None:
        self._private, self._witness = private, witness
        askers = [task for silo, task in tasks.items() if silo != private.silo]
        self._given = FixedGradient(_answers_like(askers[0])) if askers and private.sharing == "stale" else None
        """The answers of a round are the same for all who ask but once."""
        self._losses: dict[str, Loss] = {
            task.silo: self._given or RemoteGradient(partial(self._asked, task.silo)) for task in askers
        }
        self._round: Round | None = None
        self._noise: dict[str, Tensor] = {}
        self._times: dict[str, Tensor] = {}
        """How often each row of the mini-batch was asked about: the step that its client is at."""
        self._most = max((task.steps.count for task in tasks.values()), default=0)

    def without_labels(self, task: SiloTask) -> SiloTask:
        """Return what a silo's clients compute if the labels are elsewhere; as it is if they are in that silo."""
        loss = self._losses.get(task.silo)
        if loss is None:
            return task
        return replace(task, objective=loss, labels=torch.arange(len(task.labels), device=task.labels.device))

    def open(self, round_: Round, scores: Tensor) -> None:
        """Hear the scores (B, E) of a round's mini-batch at the exchange."""
        private, batch = self._private, round_.batch
        self._round = round_
        if self._given:
            samples = batch.to(scores.device)
            answers = private.answers(samples, scores, private.drawn(round_.number, "", 0, scores))
            self._given.table[samples] = answers
            for silo in self._losses:
                self._record(silo, samples, answers)
        elif private.noisy:
            for silo in self._losses:
                noise = [private.drawn(round_.number, silo, step, scores) for step in range(self._most)]
                self._noise[silo] = torch.stack([drawn for drawn in noise if drawn is not None])
                self._times[silo] = torch.zeros_like(batch)

    def _asked(self, silo: str, samples: Tensor, scores: Tensor) -> Tensor:
        """Answer clients of a silo."""
        if silo not in self._noise or self._round is None:
            return self._record(silo, samples, self._private.answers(samples, scores))
        places = torch.searchsorted(self._round.batch, samples.cpu())
        steps = self._times[silo][places]
        self._times[silo][places] = steps + 1
        return self._record(silo, samples, self._private.answers(samples, scores, self._noise[silo][steps, places]))

    def _record(self, silo: str, samples: Tensor, answers: Tensor) -> Tensor:
        if self._witness and self._round is not None:
            self._witness(silo, samples, answers)
        return answers


def _answers_like(task: SiloTask) -> Tensor:
    """Return room for an answer about each sample, in the type of the network's weights: rows may be whole numbers."""
    dtypes = [tensor.dtype for _, tensor in named_tensors(task.network.module) if tensor.is_floating_point()]
    dtype = dtypes[0] if dtypes else task.features.dtype
    return torch.ones(len(task.labels), task.width, dtype=dtype, device=task.features.device)


class LocalEngine:
    """Simulate the federation in this process, with at most so many workers.

    Compiled kernels have threads of their own. Other paths share out the silos to the workers or, where there are fewer
    silos, the clients of one silo after the other; but only networks whose operations are long enough gain by it. With
    a network that draws random numbers there is one worker: torch has one stream of them. A network may hide that it
    draws, for example by doing so for many rows only: if torch's stream has moved after a round, that round is
    computed again with a stream for each client.
    """

    def __init__(
        self,
        tasks: Mapping[str, SiloTask],
        compute: ComputeName = "auto",
        workers: int = 1,
        private: PrivateLabels | None = None,
        witness: GradientRecorder | None = None,
    ) -> None:
        self._answers = Answers(private, tasks, witness) if private else None
        if self._answers:
            tasks = {silo: self._answers.without_labels(task) for silo, task in tasks.items()}
        if any(task.features.device.type != "cpu" for task in tasks.values()):
            workers = 1  # the device has enough to do
        self._device = next(iter(tasks.values())).features.device
        self._watched = not all(never_draws(task.network.module) for task in tasks.values())
        """Whether a network might draw random numbers, though it is not known to."""
        with borrow_stream(self._device):
            chosen = {silo: choose(task, compute) for silo, task in tasks.items()}
            self._build(tasks, chosen, workers, seeded=False)
        self._build_seeded = partial(self._build, tasks, chosen, workers, seeded=True)

    def _build(
        self, tasks: Mapping[str, SiloTask], chosen: Mapping[str, tuple[PathName, str]], workers: int, *, seeded: bool
    ) -> None:
        if seeded:  # torch cannot stack clients that draw
            why = "loop (its clients draw random numbers)"
            chosen = {j: ("loop", why) if c[0] in ("stacked", "mixed") else c for j, c in chosen.items()}
        drawing = seeded or any(draws(task) for task in tasks.values())
        gains = not drawing and any(gains_by_workers(tasks[silo], name, workers) for silo, (name, _) in chosen.items())
        by_silo = gains and len(tasks) >= workers
        self._silo_workers = Workers(workers if by_silo else 1)
        shared = Workers(workers if gains and not by_silo else 1)
        threads = 1 if by_silo else workers
        self.paths = {silo: why for silo, (_, why) in chosen.items()}
        self._silos = {
            silo: LocalClients(task, make(task, chosen[silo][0], shared, threads, seeded=seeded), shared)
            for silo, task in tasks.items()
        }

    def round(self, blocks: Blocks, round_: Round) -> Blocks:
        """See Engine."""
        if not self._watched:
            return self._round(blocks, round_)
        with borrow_stream(self._device):
            before = stream_state(self._device)
            try:
                result = self._round(blocks, round_)
            except ModelError as error:
                if "randomness" not in str(error.__cause__):  # what torch says of stacked clients that draw
                    raise
            else:
                if all(map(torch.equal, before, stream_state(self._device))):
                    return result
            self._watched = False
            self._build_seeded()
        return self._round(blocks, round_)

    def _round(self, blocks: Blocks, round_: Round) -> Blocks:
        peers = LocalPeers(partial(self._answers.open, round_) if self._answers else None)
        with one_torch_thread():
            return {**blocks, **communication_round(blocks, round_, self._silos, peers, self._each)}

    def scores(self, blocks: Blocks, features: Mapping[str, Tensor]) -> Tensor:
        """See Engine."""
        with one_torch_thread(), borrow_stream(self._device):
            return sum_embeddings(self._each(lambda j: self._silos[j].embed_whole(blocks[j], features[j]), self._silos))

    def _each(self, function: Callable[[str], T], silos: Iterable[str], /) -> dict[str, T]:
        names = list(silos)
        return dict(zip(names, self._silo_workers.map(function, names), strict=True))
