"""The actors of a cluster of Ray.

Ray schedules, carries, restarts and shows; tdcd places actors once and calls them. Actors of a training reserve no
cores, so that those of a lost node can always start again on the others: a cluster belongs to one training at a time.
Those of a sweep reserve theirs.
"""

import os
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tdcd.cluster.ray_session import GLANCE, join  # before Ray: it says so where that is not installed

# isort: split
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tdcd.cluster.fleet import Call, Host, Member, Node
from tdcd.cluster.hub import Handle, LostError
from tdcd.cluster.survey import NodeFacts, check_versions, describe_shortage, look, memory_kills, memory_use, read_tail
from tdcd.cluster.version import VERSION, check_version
from tdcd.cluster.wire import nbytes
from tdcd.errors import ClusterError, LostClusterError, TdcdError

T = TypeVar("T")

SMALL = 100_000
"""Bytes up to which a message travels in its call, rather than through the shared memory of the nodes."""
PATIENCE = 300.0
"""Seconds to wait for an actor that is started again; nobody knows how long one computes."""
ASIDE = "aside"
"""The group of calls that need not wait for the one before."""
RESERVED = 1 << 20
"""Bytes that an actor reserves: Ray heeds the node that is wished for only where an actor needs something."""
KILLS = 3
"""An actor that was ended so often for want of memory will be again."""


class Place(NamedTuple):
    """What an actor is good for."""

    node: str
    hub: bool
    device: str
    folders: tuple[str, ...]
    """Where it finds users' modules."""


_joined: "RayFleet | None" = None


class BundleHost(Host):
    """An actor that computes: one call after the other."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        sys.path.extend(path for path in paths if path not in sys.path)


class HubHost(Host):
    """An actor that waits: many calls at once."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        sys.path.extend(path for path in paths if path not in sys.path)

    async def call(self, method: str, *arguments: Any) -> Any:
        """See Host."""
        result = super().call(method, *arguments)
        return await result if isinstance(result, Awaitable) else result


class RayHandle:
    """An actor of Ray. See Handle."""

    def __init__(self, name: str, actor: "ActorHandle[Any]", place: Place) -> None:
        self.name, self.actor, self.place = name, actor, place

    def start(self, method: str, *arguments: Any) -> Any:
        """Call a method; return what stands for its result."""
        return self.actor.call.remote(method, *arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        """See Handle."""
        try:
            return await self.start(method, *arguments)
        except RayError as error:
            raise cause_of(error, self.name) from None

    def tell(self, method: str, *arguments: Any) -> None:
        """See Handle."""
        self.start(method, *arguments)

    def ask(self) -> Any:
        """Ask whether it holds something; it answers also while it computes."""
        call: Any = self.actor.call if self.place.hub else self.actor.call.options(concurrency_group=ASIDE)
        return call.remote("is_open")

    def share(self, value: Any) -> Any:
        """See Handle."""
        return value if isinstance(value, ray.ObjectRef) or nbytes(value) < SMALL else ray.put(value)


class LoneActor:
    """An actor that is never started again: who needs it places another."""

    def __init__(self, name: str, actor: "ActorHandle[Any]") -> None:
        self._name, self._actor = name, actor

    def start(self, method: str, *arguments: Any) -> Any:
        """Call a method; return what stands for its result."""
        return self._actor.call.remote(method, *arguments)

    def result(self, started: Any, seconds: float | None = None) -> Any:
        """Wait for the result of a call.

        Raises:
            TimeoutError: it takes longer.
            LostError: the actor is gone.
            TdcdError: the call failed.
        """
        try:
            return ray.get(started, timeout=seconds)
        except GetTimeoutError as error:
            raise TimeoutError from error
        except RayError as error:
            raise cause_of(error, self._name) from None

    def kill(self) -> None:
        """End it at once."""
        ray.kill(self._actor)


def _call(version: str, action: Callable[..., T], *arguments: Any) -> T:
    check_version(version)
    return action(*arguments)


def missing_module(error: Exception) -> str:
    """Return which module a node lacks, if that is what an error says, and what to do."""
    for line in str(error).splitlines():
        if "ModuleNotFoundError" in line:
            return f"{line.strip()}; install the same on all nodes"
    return ""


def cause_of(error: Exception, name: str) -> Exception:
    """Return what is behind an error of Ray: one of a call, or that an actor is lost."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, RayError):
            return cause_of(cause, name)
        if isinstance(cause, TdcdError | LostError):
            return cause
        return ClusterError(f"actor '{name}': {str(cause).strip() or type(cause).__name__}\n{error}")
    if isinstance(error, RayActorError) and (missing := missing_module(error)):
        return ClusterError(f"actor '{name}' cannot start: {missing}")
    return LostError(f"actor '{name}' was lost ({type(error).__name__})")


def _able_nodes() -> list[dict[str, Any]]:
    """Return the nodes that have a core."""
    every: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in every if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def users_folders() -> list[str]:
    """Return the folders that this process imports users' modules from."""
    own = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    rays = os.path.dirname(ray.__file__)  # it brings packages of its own
    return [
        path
        for path in sys.path
        if os.path.isdir(path) and os.path.realpath(path) not in own and not path.startswith(rays)
    ]


def connect(address: str | None) -> "RayFleet":
    """Join a cluster of Ray, or start one on this machine; a process is in one at a time.

    Args:
        address: Of the cluster, "HOST:PORT" or "auto"; without one, that of RAY_ADDRESS, or a cluster is started here.

    Raises:
        ClusterError: there is none, or it does not fit.
    """
    global _joined
    address = address or os.environ.get("RAY_ADDRESS")
    if _joined is None or not ray.is_initialized() or address not in (None, _joined.address):
        _joined = RayFleet(address)
    return _joined


class RayFleet:
    """A cluster of Ray. See Fleet."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self._idle: dict[Place, list[RayHandle]] = {}
        self.session = join(address)
        self._looked = time.monotonic()
        known = _able_nodes()
        if not known:
            raise ClusterError("the Ray cluster has no node with a core; give it some: ray start --num-cpus=…")
        known.sort(key=lambda node: (node["NodeName"], node["NodeID"]))
        self._ids = [node["NodeID"] for node in known]
        self._logs = {
            node["NodeID"]: str(Path(node["RayletSocketName"]).parents[1] / "logs" / "raylet.out") for node in known
        }
        self._cards = sum(node["Resources"].get("GPU", 0) for node in known)
        self.nodes = [
            Node(node["NodeManagerAddress"], int(node["Resources"]["CPU"]), int(node["Resources"].get("memory", 0)))
            for node in known
        ]
        facts = self._survey()
        check_versions(facts)
        wanted = [int(node["Resources"].get("object_store_memory", 0)) for node in known]
        self.warnings = [text for text in map(describe_shortage, facts, wanted) if text]

    def _survey(self) -> list[NodeFacts]:
        """Ask every node what it has, before anything that it might not understand is sent there."""
        facts: list[NodeFacts] = []
        for started, node in zip([self._at(node, look) for node in self._ids], self.nodes, strict=True):
            try:
                facts.append(ray.get(started, timeout=PATIENCE))
            except RayError as error:
                why = missing_module(error) or type(error).__name__
                if isinstance(error, GetTimeoutError):
                    why = f"it does not answer within {PATIENCE:.0f} seconds"
                if use := memory_use(str(error)):
                    why = f"too little memory is left: {use}"
                raise ClusterError(f"node {node.name} cannot be used: {why}; {self.session.where_logs_are()}") from None
        return facts

    def _at(self, node: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start a function at a node; return what stands for its result."""
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        task: Any = ray.remote(function)
        return task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(*arguments)

    def has_new_node(self) -> bool:
        """See Fleet."""
        now = time.monotonic()
        if now - self._looked < GLANCE:
            return False
        self._looked = now
        return bool(self._successors())

    def _successors(self) -> dict[str, str]:
        """Return which new node takes the place of which lost one."""
        able = [node["NodeID"] for node in _able_nodes()]
        lost = [own for own in self._ids if own not in able]
        return dict(zip(lost, (node for node in able if node not in self._ids), strict=False))

    @property
    def description(self) -> str:
        """See Fleet."""
        where = f"Ray cluster at {self.address}" if self.address else "a Ray cluster, started on this machine"
        return f"{where}, dashboard {self.session.dashboard}" if self.session.dashboard else where

    def hire(self, name: str, node: int, *, hub: bool, device: str) -> Handle:
        """See Fleet."""
        if device.startswith("cuda") and not self._cards:
            raise ClusterError(
                f'device: no node of the Ray cluster has a graphics card for "{device}"; use device = "cpu", or '
                "tell Ray how many a node has: ray start --num-gpus=…"
            )
        place = Place(self._ids[node], hub, device, tuple(users_folders()))
        if idle := self._idle.get(place):
            handle = idle.pop()
            handle.name = name
            return handle
        return RayHandle(name, self._start(place), place)

    def _start(self, place: Place) -> "ActorHandle[Any]":
        remote: Any = ray.remote
        kind = remote(HubHost) if place.hub else remote(concurrency_groups={ASIDE: 1})(BundleHost)
        actor: ActorHandle[Any] = kind.options(
            num_cpus=0,
            memory=RESERVED,
            num_gpus=0.01 if place.device.startswith("cuda") else 0,
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=True),
        ).remote(place.folders)
        return actor

    def place(self, kind: type, *, cores: int, gpus: int) -> LoneActor:
        """Start an actor of some class at any node, as soon as one has so many free; it takes two calls at once."""
        remote: Any = ray.remote(kind)
        actor = remote.options(num_cpus=cores, num_gpus=gpus, max_concurrency=2, scheduling_strategy="SPREAD").remote()
        return LoneActor(kind.__name__, actor)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """See Fleet."""
        started = [
            (handle, handle.start(method, *more)) for handle, method, more in calls if isinstance(handle, RayHandle)
        ]
        results, names = {}, {ref: handle.name for handle, ref in started}
        waiting = [ref for _, ref in started]
        while waiting:
            self.session.check_head()
            done, waiting = ray.wait(waiting, num_returns=1, timeout=GLANCE)
            for ref in done:
                try:
                    results[ref] = ray.get(ref)
                except RayError as error:
                    raise cause_of(error, names[ref]) from None
        return [results[ref] for _, ref in started]

    def each(self, action: Callable[..., T], /, *arguments: Iterable[Any]) -> Iterator[T]:
        """Call an action with the first of all arguments, then the second …, on all nodes; yield the results in order.

        Ray calls it again where a node is lost.
        """
        shared: dict[int, Any] = {}

        def sent(value: Any) -> Any:
            if nbytes(value) < SMALL:
                return value
            return shared.setdefault(id(value), (value, ray.put(value)))[1]

        task: Any = ray.remote(num_cpus=1, max_retries=-1)(_call)
        for ref in [task.remote(VERSION, action, *map(sent, given)) for given in zip(*arguments, strict=False)]:
            while not ray.wait([ref], timeout=GLANCE)[0]:
                self.session.check_head()
            try:
                yield ray.get(ref)
            except RayError as error:
                raise cause_of(error, action.__qualname__) from None

    def restore(self, members: Sequence[Member]) -> Sequence[Member]:
        """See Fleet."""
        self.session.wait_for_head()
        successors = self._successors()
        self._ids = [successors.get(node, node) for node in self._ids]
        handles = [member.handle for member in members if isinstance(member.handle, RayHandle)]
        asked = [handle.ask() for handle in handles]  # all at once: they may all be starting
        is_open = {handle: self._wait_for(handle, ref) for handle, ref in zip(handles, asked, strict=True)}
        for handle, answer in is_open.items():
            if not answer:
                self._check_memory(handle)
        gone = [handle for handle, answer in is_open.items() if answer is None or handle.place.node in successors]
        for handle in gone:
            ray.kill(handle.actor)  # it may only seem gone, or it is elsewhere
            handle.place = handle.place._replace(node=successors.get(handle.place.node, handle.place.node))
            handle.actor = self._start(handle.place)
        lost = {handle for handle, answer in is_open.items() if not answer} | set(gone)
        if gone:  # hubs know others by what is gone
            lost |= {handle for handle in handles if handle.place.hub}
        return [member for member in members if member.handle in lost]

    def _wait_for(self, handle: RayHandle, asked: Any) -> bool | None:
        """Tell whether an actor holds something, once it answers; nothing if it never will."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self.session.check_head()
            try:
                is_open: bool = ray.get(asked, timeout=GLANCE)
            except GetTimeoutError:
                continue
            except ActorUnavailableError:  # it is being started
                time.sleep(0.2)
                asked = handle.ask()
            except RayActorError:
                return None
            else:
                return is_open
        raise LostClusterError(
            f"actor '{handle.name}' has not come back within {PATIENCE:.0f} s; see ray status, then resume the run; "
            f"{self.session.where_logs_are()}"
        )

    def _check_memory(self, handle: RayHandle) -> None:
        """Fail if an actor is ended for want of memory again and again."""
        node, actor = handle.place.node, handle.actor._actor_id.hex()
        try:
            log = ray.get(self._at(node, read_tail, self._logs[node]), timeout=GLANCE)
        except (KeyError, RayError):  # the node is gone, or new
            return
        count, why = memory_kills(log, actor)
        if count >= KILLS:
            raise ClusterError(
                f"actor '{handle.name}' was ended {count} times for want of memory: {why}; add nodes or memory, or end "
                f"other programs there; {self.session.where_logs_are()}"
            )

    def release(self, handles: Sequence[Handle]) -> None:
        """See Fleet."""
        for handle in handles:
            if isinstance(handle, RayHandle) and ray.is_initialized():  # a call would start a cluster of its own
                handle.tell("close")
                self._idle.setdefault(handle.place, []).append(handle)
