"""The engine of a cluster: opens hubs and bundles, starts rounds, and repeats those that lost an actor."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdcd.cluster.bundle import BundleSpec, Choice, Place
from tdcd.cluster.fleet import Call, Fleet, Member
from tdcd.cluster.fold import cut, group_count
from tdcd.cluster.hub import Handle, HubSpec, LostError, Report
from tdcd.cluster.rows import BundleRows
from tdcd.cluster.version import VERSION
from tdcd.cluster.wire import pack, pack_block, pack_state, unpack, unpack_state
from tdcd.compute import ComputeName
from tdcd.compute.fallback import join_fallbacks
from tdcd.compute.whole import embed_whole
from tdcd.core.network import Block
from tdcd.core.script import Diverged
from tdcd.core.state import SiloState, States
from tdcd.core.streams import borrow_stream
from tdcd.core.task import Round, SiloTask, sum_embeddings
from tdcd.core.topology import Roster
from tdcd.core.usage import ClusterUsage, NodeUsage
from tdcd.data.holdout import Part
from tdcd.engines.base import Training
from tdcd.engines.simulation import SimulationEngine, simulated
from tdcd.errors import ClusterError, LostClusterError

TRIES = 20
"""So often a round is repeated before the engine gives up."""
LOST = f"an actor of the cluster was lost {TRIES} times in a row: too little memory, perhaps; then resume the run"
_stamps = count(1)
"""One for each attempt at anything, of all engines of this process: a released actor serves the next of them, and what
an earlier attempt still sends must never be taken for the latest."""


@dataclass
class Times:
    """Where the time of rounds went, in seconds."""

    rounds: int = 0
    seconds: float = 0.0
    computing: float = 0.0
    """In the slowest bundles, call by call; a mean over the hubs."""
    waiting: float = 0.0
    """Of hubs for each other; a mean over them."""
    nodes: dict[int, float] = field(default_factory=dict)
    """How long the bundles of each node computed, together."""
    repeated: int = 0
    """Rounds that were begun again since an actor was lost."""


class ClusterEngine(SimulationEngine):
    """Simulate the federation on a cluster."""

    def __init__(
        self,
        training: Training,
        fleet: Fleet,
        compute: ComputeName = "auto",
        workers: int | None = None,
        device: str = "cpu",
    ) -> None:
        """Open all actors.

        Args:
            training: What to compute.
            fleet: The cluster.
            compute: How clients are computed.
            workers: Threads of a node that may share the work; default: one for each core.
            device: Where its nodes compute.

        Raises:
            ClusterError: they cannot be opened.
        """
        super().__init__(training)
        self._fleet, self._device, self._threads = fleet, device, workers
        self._plan, self._tasks = simulated(training)
        self._stamp, self.times = 0, Times()
        self._bundles: dict[str, list[Member]] = {}
        self._hubs: dict[str, Member] = {}
        self._choices: dict[str, Choice] = {}
        self._seeded = False
        self._unopened: set[Member] = set()
        """Those that must be opened again, even if they hold something: of an opening that was cut short, perhaps."""
        self._unbuilt: set[Member] = set()
        self._judge = training.private.silo if training.private else self._plan.silos[0]
        try:
            self._open(compute)
        except BaseException:
            self.close()
            raise

    def _open(self, compute: ComputeName) -> None:
        """Open all bundles, choose how each silo is computed, and open the hubs."""
        self._check_memory()
        for number, silo in enumerate(self._tasks):
            self._bundles[silo] = self._place_bundles(silo, number)
            self._restore()  # silo by silo: all silos' rows at once may not fit
        first = [own[0].handle for own in self._bundles.values()]
        choices: list[Choice] = self._repeat(lambda _: [(handle, "choose", (compute,)) for handle in first])
        self._choices = dict(zip(self._bundles, choices, strict=True))
        nodes = len(self._fleet.nodes)
        handles = {
            silo: self._fleet.hire(f"hub {silo}", number % nodes, hub=True, device="cpu")
            for number, silo in enumerate(self._plan.silos)
        }
        for number, (silo, handle) in enumerate(handles.items()):
            peers = {other: handles[other] for other in self._plan.others[silo]}
            self._hubs[silo] = Member(handle, partial(self._hub_spec, silo, peers), number % nodes)
        self._restore()

    def _check_memory(self) -> None:
        """Refuse rows that the nodes have no memory for."""
        nodes = self._fleet.nodes
        room = sum(node.memory for node in nodes)
        features = [task.features for task in self._tasks.values()]
        features += [rows for samples in self.training.parts.values() for rows in samples.features.values()]
        rows = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in features}.values())
        if all(node.memory for node in nodes) and rows > room:
            raise ClusterError(
                f"the rows take {rows / 1e9:,.1f} GB, and the cluster's {len(nodes)} node{'s' * (len(nodes) > 1)} "
                f"{'have' if len(nodes) > 1 else 'has'} {room / 1e9:,.1f} GB of memory; add nodes"
            )

    def _place_bundles(self, silo: str, number: int) -> list[Member]:
        """Cut a silo's clients into bundles, at most one a node, and hire an actor for each."""
        groups, nodes = group_count(len(self._tasks[silo].roster.clients)), len(self._fleet.nodes)
        count = min(groups, nodes)
        members = []
        for index, (start, stop) in enumerate(pairwise(cut(groups, count))):
            node = (number + index) % nodes
            handle = self._fleet.hire(f"{silo} {index + 1}/{count}", node, hub=False, device=self._device)
            members.append(Member(handle, partial(self._bundle_spec, silo, range(start, stop)), node))
        return members

    def _bundle_spec(self, silo: str, groups: range) -> BundleSpec:
        """Return what a bundle is made of."""
        task = self._tasks[silo]
        clients = len(task.roster.clients)
        every = group_count(clients)
        bounds = cut(clients, every)[groups.start : groups.stop + 1]
        owner = task.roster.owner.numpy()
        own = np.flatnonzero((owner >= bounds[0]) & (owner < bounds[-1]))
        group = np.searchsorted(bounds, owner[own], side="right") - 1
        own = own[np.argsort(group, kind="stable")]
        places = {Part.TRAIN: Place(own, np.searchsorted(np.sort(group), np.arange(len(groups) + 1)).tolist())}
        for part, samples in self.training.parts.items():
            if part is not Part.TRAIN:
                ends = cut(len(samples), every)[groups.start : groups.stop + 1]
                rows = np.arange(len(samples))
                if silo in samples.stored:  # what lies together is read together
                    rows = np.argsort(samples.stored[silo].numbers, kind="stable")
                places[part] = Place(rows[ends[0] : ends[-1]], [end - ends[0] for end in ends])
        return BundleSpec(
            task=stripped(task),
            clients=task.roster.clients[bounds[0] : bounds[-1]],
            first=bounds[0],
            silo_clients=clients,
            groups=groups,
            owner=owner[own] - bounds[0],
            labels=None if task.remote_labels else pack(task.labels[torch.from_numpy(own)]),
            places=places,
            rows=self._rows(silo, places),
            suspendable=self._plan.requests.get(silo, 0) > 1,
            device=self._device,
        )

    def _rows(self, silo: str, places: Mapping[Part, Place]) -> BundleRows:
        """Say where a bundle gets its rows from."""
        parts = self.training.parts
        stored = {part: samples.stored[silo] for part, samples in parts.items() if silo in samples.stored}
        here = {part: samples.features[silo] for part, samples in parts.items()}
        here |= {Part.TRAIN: self._tasks[silo].features}
        return BundleRows(
            silo,
            {part: pack(here[part][torch.from_numpy(p.rows)]) for part, p in places.items() if part not in stored},
            {part: stored[part].at(place.rows) for part, place in places.items() if part in stored},
        )

    def _hub_spec(self, silo: str, peers: Mapping[str, Handle]) -> HubSpec:
        """Return what a hub is made of."""
        training, task = self.training.hub(silo), self._tasks.get(silo)
        roster = Roster(("",) * len(training.roster.clients), training.roster.owner)
        holds = training.private is not None and training.private.silo == silo and bool(self._plan.requests)
        labels = {part: pack(samples.labels) for part, samples in self.training.parts.items()}
        return HubSpec(
            replace(
                training,
                task=replace(stripped(task), roster=roster) if task else None,
                roster=roster,
                private=training.private if holds else None,
            ),
            self._plan,
            group_count(len(roster.clients)),
            [member.handle for member in self._bundles.get(silo, [])],
            peers,
            self.training.measure if silo == self._judge else None,
            labels if silo == self._judge else {},
        )

    def _building(self, members: Collection[Member]) -> list[Call]:
        """Return the calls that prepare bundles to compute; those of a node share its cores."""
        every = [member for own in self._bundles.values() for member in own]
        on_node = Counter(member.node for member in every)
        calls: list[Call] = []
        for silo, own in self._bundles.items():
            for member in own:
                if member in members:
                    cores = self._fleet.nodes[member.node].cores
                    threads = max(1, min(cores, self._threads or cores) // on_node[member.node])
                    calls.append((member.handle, "build", (self._choices[silo].path, threads, self._seeded)))
        return calls

    def _opening(self, member: Member) -> Call:
        return member.handle, "open", (member.spec(), VERSION)

    @property
    def compute_plan(self) -> Mapping[str, str]:
        """See Engine."""
        nodes = self._fleet.nodes
        plan = {}
        for silo, own in self._bundles.items():
            where = f"{len(own)} bundle{'s' * (len(own) > 1)} on {len({member.node for member in own})} of {len(nodes)}"
            plan[silo] = f"{self._choices[silo].why}; {where} node{'s' * (len(nodes) > 1)}"
        return plan

    @property
    def notes(self) -> Sequence[str]:
        """See SimulationEngine."""
        nodes, bundles = self._fleet.nodes, sum(map(len, self._bundles.values()))
        cluster = (
            f"{self._fleet.description}: {len(nodes)} node{'s' * (len(nodes) > 1)}, {sum(n.cores for n in nodes)} "
            f"cores; {bundles + len(self._hubs)} actors: {bundles} bundles of clients, {len(self._hubs)} hubs"
        )
        fallbacks = {silo: choice.fallback for silo, choice in self._choices.items()}
        return (cluster, *self._fleet.warnings, *join_fallbacks(fallbacks))

    @property
    def usage(self) -> ClusterUsage:
        """See SimulationEngine."""
        times = self.times
        bundles = Counter(member.node for own in self._bundles.values() for member in own)
        hubs = Counter(member.node for member in self._hubs.values())
        nodes = tuple(
            NodeUsage(node.name, node.cores, bundles[number], hubs[number], round(times.nodes.get(number, 0.0), 3))
            for number, node in enumerate(self._fleet.nodes)
        )
        return ClusterUsage(
            nodes=nodes,
            rounds=times.rounds,
            seconds=round(times.seconds, 3),
            computing=round(times.computing, 3),
            waiting=round(times.waiting, 3),
            repeated=times.repeated,
        )

    def compute_round(self, states: States, round_: Round) -> dict[str, SiloState]:
        """See SimulationEngine."""
        batch = pack(round_.batch)
        wires = {silo: pack_state(states[silo]) for silo in self._hubs}

        def calls(stamp: int) -> list[Call]:
            some = next(iter(self._hubs.values())).handle
            shared = some.share(batch)
            return [
                (
                    member.handle,
                    "round",
                    (stamp, some.share(wires[silo]), round_.number, shared, round_.of(silo).rate),
                )
                for silo, member in self._hubs.items()
            ]

        if self._fleet.has_new_node():
            self.note("a node has come in the place of a lost one; its actors move there")
            self._restore()
        begun = time.perf_counter()
        reports: dict[str, Report] = dict(zip(self._hubs, self._repeat(calls), strict=True))
        if not self._seeded and any(report.drew for report in reports.values()):
            self._seeded = True
            self._unbuilt = {member for own in self._bundles.values() for member in own}
            self._restore()
            reports = dict(zip(self._hubs, self._repeat(calls), strict=True))
        if diverged := {silo for report in reports.values() for silo in report.diverged}:
            raise Diverged(diverged)
        self._count(reports, time.perf_counter() - begun)
        return {silo: unpack_state(reports[silo].state) for silo in states}

    def _count(self, reports: Mapping[str, Report], seconds: float) -> None:
        times, hubs = self.times, [reports[silo] for silo in self._bundles]
        times.rounds += 1
        times.seconds += seconds
        times.computing += sum(report.computing for report in hubs) / len(hubs)
        times.waiting += sum(report.waiting for report in hubs) / len(hubs)
        for silo, own in self._bundles.items():
            for member, busy in zip(own, reports[silo].bundles, strict=True):
                times.nodes[member.node] = times.nodes.get(member.node, 0.0) + busy

    def measure(self, states: States, part: Part) -> Mapping[str, float]:
        """See SimulationEngine."""
        result: Mapping[str, float] = self._embed(
            {silo: state.weights for silo, state in states.items()}, part, "measure"
        )
        return result

    def part_scores(self, weights: Mapping[str, Block], part: Part) -> Tensor:
        """See SimulationEngine."""
        scores: Tensor = unpack(self._embed(weights, part, "add_scores"))
        return scores

    def _embed(self, weights: Mapping[str, Block], part: Part, then: str) -> Any:
        """Embed a part of the samples at all hubs, and call a method of the one that measures; return its result."""
        judge = self._hubs[self._judge].handle

        def calls(stamp: int) -> list[Call]:
            embedding: list[Call] = [
                (
                    self._hubs[silo].handle,
                    "embed_part",
                    (stamp, part, judge.share(pack_block(weights[silo])), None if silo == self._judge else judge),
                )
                for silo in self._bundles
            ]
            return [*embedding, (judge, then, (stamp, part))]

        return self._repeat(calls)[-1]

    def scores(self, weights: Mapping[str, Block], features: Mapping[str, Tensor]) -> Tensor:
        """See SimulationEngine. Rows that are given here are embedded here."""
        with borrow_stream(torch.device("cpu")):
            return sum_embeddings(
                {j: embed_whole(j, task.network, weights[j], features[j]) for j, task in self._tasks.items()}
            )

    def _repeat(self, calls: Callable[[int], list[Call]]) -> list[Any]:
        """Make calls; where an actor was lost, wait until all are there again and make them anew."""
        for _ in range(TRIES):
            self._stamp = next(_stamps)
            try:
                return self._fleet.run(calls(self._stamp))
            except LostError as error:
                self.note(f"{error}; it is started again, and what it computed is repeated")
                self.times.repeated += 1
                for member in self._hubs.values():
                    member.handle.tell("abandon", self._stamp)
                self._restore()
        raise LostClusterError(LOST)

    def _restore(self) -> None:
        """Open all actors that hold nothing, and prepare all bundles, also if more are lost meanwhile."""
        hubs = list(self._hubs.values())
        for _ in range(TRIES):
            try:
                bundles = [member for own in self._bundles.values() for member in own]
                self._unopened.update(self._fleet.restore([*bundles, *hubs]))
                for own in (*self._bundles.values(), hubs):
                    self._fleet.run([self._opening(member) for member in own if member in self._unopened])
                self._unbuilt |= self._unopened
                self._unopened = set()
                if self._choices:
                    self._fleet.run(self._building(self._unbuilt))
                    self._unbuilt = set()
            except LostError as error:
                self.note(f"{error}; it is started again")
            else:
                return
        raise LostClusterError(LOST)

    def close(self) -> None:
        """Give the actors back."""
        self._fleet.release([m.handle for own in self._bundles.values() for m in own])
        self._fleet.release([member.handle for member in self._hubs.values()])
        self._bundles, self._hubs = {}, {}


def stripped(task: SiloTask) -> SiloTask:
    """Return a task without its rows and labels."""
    shape = (0, *task.features.shape[1:])
    features = torch.empty(shape, dtype=task.features.dtype)
    owner = torch.empty(0, dtype=torch.int64)
    return replace(task, features=features, labels=torch.empty(0), roster=Roster((), owner))
