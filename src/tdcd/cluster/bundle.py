"""Some clients of one silo, computed together on the rows that they hold."""

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tdcd.cluster.fold import Fold
from tdcd.cluster.rows import BundleRows
from tdcd.cluster.wire import Wire, pack, pack_block, unpack, unpack_block
from tdcd.compute import ComputeName, Threads, choose, draws, gains_by_workers, one_torch_thread
from tdcd.compute.choose import PathName
from tdcd.compute.fallback import fallback
from tdcd.compute.modules import never_draws
from tdcd.compute.worker import Worker
from tdcd.core.aggregators import gather
from tdcd.core.average import Held, Mean
from tdcd.core.network import Block, Network
from tdcd.core.streams import reseed, stream_state
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Roster
from tdcd.data.holdout import Part
from tdcd.errors import ClusterError, ModelError

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Which rows of a part a bundle holds."""

    rows: Numbers
    """Their numbers in the part, group after group, ascending within each; shape (n,)."""
    bounds: Sequence[int]
    """Where each of the bundle's groups begins among them, and the end."""


@dataclass(frozen=True)
class BundleSpec:
    """All that makes a bundle; a lost one is made again of it."""

    task: SiloTask
    """What its clients compute; without rows and labels."""
    clients: tuple[str, ...]
    """Their names, in the order of the silo's roster."""
    first: int
    """The place of the first of them in the roster."""
    silo_clients: int
    """K_j."""
    groups: range
    """The groups of the silo that they are."""
    owner: Numbers
    """For each training row the client that holds it, as a place among ``clients``; shape (n,)."""
    labels: Any
    """y of the training rows; nothing where labels are remote."""
    places: Mapping[Part, Place]
    rows: BundleRows
    suspendable: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Choice:
    """How a bundle would compute its clients."""

    path: PathName
    why: str
    fallback: str
    """What it costs to go without a kernel, if it does."""
    watched: bool
    """Whether its network might draw random numbers, though it is not known to."""


@dataclass(frozen=True)
class Descent:
    """What the clients of a bundle return in a round."""

    sums: Sequence[tuple[int, int, Wire | None, float]] = ()
    """Of parts of the tree of groups: the size and number of the part, the sum, and what it weighs."""
    clients: Sequence[int] = ()
    """Where the hub needs each client's weights: the places in the roster of those that have rows."""
    blocks: Wire = field(default_factory=dict)
    """Their weights, stacked."""
    drew: bool = False
    """Whether the network has drawn random numbers, though it was not expected to: then all this is of no use."""
    seconds: float = 0.0
    """How long the clients computed in this round."""


class Bundle:
    """Computes the clients of a bundle."""

    def __init__(self, spec: BundleSpec) -> None:
        device = _device(spec.device)
        kind = spec.task.features.dtype
        self._rows = {part: rows.to(device, kind) for part, rows in spec.rows.read().items()}
        self._spec, self._places = spec, spec.places
        features = self._rows[Part.TRAIN]
        labels = torch.arange(len(features)) if spec.labels is None else unpack(spec.labels)
        network = Network(spec.task.network.module, spec.task.network.dtype, device)
        roster = Roster(spec.clients, torch.from_numpy(spec.owner.copy()))
        self.task = replace(spec.task, network=network, features=features, labels=labels.to(device), roster=roster)
        self._device = device
        self._order = np.argsort(spec.places[Part.TRAIN].rows, kind="stable")
        self._held = spec.places[Part.TRAIN].rows[self._order]
        self._workers: list[Worker] = []
        self._stamp = -1
        self._parts: list[tuple[int, slice]] = []
        self._seconds = 0.0

    def choose(self, compute: ComputeName) -> Choice:
        """Choose how the silo is computed; all of its bundles then are."""
        names, task = ("",) * self._spec.silo_clients, self.task
        whole = replace(task, roster=Roster(names, task.roster.owner))
        path, why = choose(whole, compute, suspendable=self._spec.suspendable)
        cost = fallback(whole, compute, path, suspendable=self._spec.suspendable)
        return Choice(path, why, cost, not never_draws(task.network.module))

    def build(self, path: PathName, threads: int, seeded: bool) -> None:
        """Prepare to compute every group by a path."""
        task, suspendable = self.task, self._spec.suspendable
        if seeded and path in ("stacked", "mixed"):  # torch cannot stack clients that draw
            path = "loop"
        drawing = seeded or draws(task)
        shares = not drawing and not suspendable and gains_by_workers(task, path, threads)
        pool = Threads(threads if shares else 1)
        self._watched = not seeded and not never_draws(task.network.module)
        self._workers = [
            Worker(task, path, pool, threads, suspendable=suspendable, seeded=seeded) for _ in self._spec.groups
        ]

    def embed(self, stamp: int, block: Wire, number: int, batch: Any, rate: float) -> tuple[Any, Any, float]:
        """Begin a round on a mini-batch; return the positions of this bundle's rows in it, and their embeddings.

        One that was begun before and not ended is given up.
        """
        begun = time.perf_counter()
        if stamp < self._stamp:
            raise RuntimeError(f"a call of attempt {stamp} after attempt {self._stamp} has begun")
        self._stamp, self._block = stamp, unpack_block(block, self._device)
        reseed(self._device, 0)
        self._stream = stream_state(self._device)
        found = np.searchsorted(self._held, batch).clip(max=len(self._held) - 1)
        hits = np.flatnonzero(self._held[found] == batch)
        rows = self._order[found[hits]]
        order = np.argsort(rows, kind="stable")
        rows, positions = rows[order], hits[order]
        cuts = np.searchsorted(rows, self._places[Part.TRAIN].bounds)
        self._parts = [(group, slice(a, b)) for group, (a, b) in enumerate(pairwise(cuts.tolist())) if a < b]
        embeddings = torch.empty(len(rows), self.task.width, dtype=self.task.network.dtype)
        with one_torch_thread():
            for group, part in self._parts:
                round_ = Round(number, torch.from_numpy(rows[part]), rate)
                embeddings[part] = self._workers[group].embed(self._block, round_).cpu()
        self._seconds = time.perf_counter() - begun
        return positions, pack(embeddings), self._seconds

    def step(self, stamp: int, gradients: Any) -> tuple[Any, float]:
        """Take one step of every client with logit gradients; return the new embeddings. Rows are as ``embed``'s."""
        begun = self._begin(stamp)
        given = unpack(gradients).to(self._device)
        embeddings = torch.empty(given.shape, dtype=given.dtype)
        with one_torch_thread():
            for group, part in self._parts:
                embeddings[part] = self._workers[group].step(given[part]).cpu()
        self._seconds += time.perf_counter() - begun
        return pack(embeddings), time.perf_counter() - begun

    def descend(self, stamp: int, rows: Any) -> Descent:
        """Take the steps that are left with Φ_{-j} or, where labels are remote, with logit gradients."""
        begun = self._begin(stamp)
        given = unpack(rows).to(self._device)
        try:
            with one_torch_thread():
                result = self._descend(given)
        except ModelError as error:
            if not self._watched or "randomness" not in str(error.__cause__):  # as torch says of stacked clients
                raise
            return Descent(drew=True)
        drew = self._watched and not all(map(torch.equal, self._stream, stream_state(self._device)))
        self._block = {}
        return replace(result, drew=drew, seconds=self._seconds + time.perf_counter() - begun)

    def _descend(self, given: Tensor) -> Descent:
        parts, first = dict(self._parts), self._spec.groups.start
        held = None if self.task.aggregator.linear else gather(self.task.aggregator, self._block)
        fold = Fold(merged)
        for group, worker in enumerate(self._workers):
            gathered = worker.descend(given[parts[group]]) if group in parts else None
            if isinstance(held, Held) and isinstance(gathered, Held):
                held.merge(gathered)
            else:
                fold.add(1, first + group, gathered if isinstance(gathered, Mean) else None)
        if isinstance(held, Held):
            clients = [self._spec.first + client for client in held.clients]
            return Descent(clients=clients, blocks=pack_block(held.stacked()) if clients else {})
        return Descent(
            sums=[
                (size, index, *((None, 0.0) if mean is None else (pack_block(mean.sums()), mean.weight)))
                for size, index, mean in fold.nodes()
            ]
        )

    def _begin(self, stamp: int) -> float:
        if stamp != self._stamp:
            raise RuntimeError(f"a call of attempt {stamp} in attempt {self._stamp}")
        return time.perf_counter()

    def embed_part(self, part: Part, block: Wire) -> tuple[Any, Any]:
        """Embed this bundle's rows of a part, the network in evaluation mode; return their numbers and embeddings."""
        weights, place = unpack_block(block, self._device), self._places[part]
        rows = self._rows[part]
        embeddings = torch.empty(len(rows), self.task.width, dtype=self.task.network.dtype)
        with one_torch_thread():
            for worker, (a, b) in zip(self._workers, pairwise(place.bounds), strict=True):
                if a < b:
                    reseed(self._device, 0)
                    embeddings[a:b] = worker.embed_all(weights, rows[a:b]).cpu()
        return place.rows, pack(embeddings)


def _device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ClusterError(
            f'device: node {socket.gethostname()} has no "{name}" for an actor of tdcd: ray start --num-gpus=… says '
            'how many cards a node has; or use device = "cpu"'
        )
    return device


def merged(left: Mean, right: Mean) -> Mean:
    """Add one sum to another."""
    left.merge(right)
    return left


def mean_of_sums(like: Block, sums: Wire | None, weight: float) -> Mean | None:
    """Return a sum as it was before it was sent."""
    return None if sums is None else Mean.of(like, unpack_block(sums), weight)
