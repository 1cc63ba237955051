"""What a cluster must offer to be trained on, and one in this process, for tests and as the plainest example."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tdcd.cluster.bundle import Bundle, BundleSpec
from tdcd.cluster.hub import ClusterHub, Handle, HubSpec, LostError
from tdcd.cluster.version import check_version

T = TypeVar("T")
Spec = BundleSpec | HubSpec


@dataclass(frozen=True)
class Node:
    """A machine of a cluster."""

    name: str
    cores: int
    memory: int = 0
    """Bytes that are free on it; 0 where that is not known."""


@dataclass(frozen=True)
class Member:
    """An actor, and all that it is made of."""

    handle: Handle
    spec: Callable[[], Spec]
    """Makes what it is opened with: large, so it is not kept."""
    node: int
    """The node that it was placed on."""


Call = tuple[Handle, str, tuple[Any, ...]]


class Fleet(Protocol):
    """The actors of a cluster."""

    @property
    def description(self) -> str:
        """What and where it is."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The machines that there are."""

    @property
    def warnings(self) -> Sequence[str]:
        """What makes it slower than it could be."""

    def hire(self, name: str, node: int, *, hub: bool, device: str) -> Handle:
        """Return an actor that holds nothing yet, if possible at a node."""

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls at once; return their results in order.

        Raises:
            LostError: an actor is gone; the other calls may go on.
            TdcdError: a call failed.
        """

    def has_new_node(self) -> bool:
        """Tell whether a node has come in the place of a lost one: ``restore`` moves actors there."""

    def restore(self, members: Sequence[Member]) -> Sequence[Member]:
        """Wait until all actors are there again; return those that have lost what they hold.

        Raises:
            ClusterError: one does not come back.
        """

    def each(self, action: Callable[..., T], /, *arguments: Iterable[Any]) -> Iterator[T]:
        """Call an action with the first of all arguments, then the second …, at the nodes; yield results in order."""

    def release(self, handles: Sequence[Handle]) -> None:
        """Take back actors whose training is over."""


class Host:
    """An actor: holds a bundle or a hub, once it was opened."""

    def __init__(self) -> None:
        self._held: Bundle | ClusterHub | None = None

    def open(self, spec: Spec, version: str) -> None:
        """Make what the actor holds, for a driver of some version.

        Raises:
            ClusterError: this is another one.
        """
        check_version(version)
        self.close()  # two at once may not fit
        self._held = Bundle(spec) if isinstance(spec, BundleSpec) else ClusterHub(spec)

    def close(self) -> None:
        """Hold nothing."""
        if isinstance(self._held, ClusterHub):
            self._held.close()
        self._held = None

    def is_open(self) -> bool:
        """Tell whether it holds something; one that was started again does not."""
        return self._held is not None

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor itself, or of what it holds."""
        if method in ("open", "close", "is_open"):
            return getattr(self, method)(*arguments)
        if self._held is None:
            raise LostError("the actor was started again")
        return getattr(self._held, method)(*arguments)


class MemoryHandle:
    """An actor in this process. See Handle."""

    def __init__(self, name: str) -> None:
        self.name, self._host = name, Host()

    async def call(self, method: str, *arguments: Any) -> Any:
        """See Handle."""
        result = self._host.call(method, *arguments)
        return await result if inspect.isawaitable(result) else result

    def tell(self, method: str, *arguments: Any) -> None:
        """See Handle."""
        self._host.call(method, *arguments)

    def share(self, value: Any) -> Any:
        """See Handle."""
        return value


class MemoryFleet:
    """A cluster of so many nodes, all of them this process. See Fleet."""

    description = "in this process"
    warnings: Sequence[str] = ()

    def __init__(self, nodes: int = 1) -> None:
        self.nodes = [Node(f"node-{number}", 1) for number in range(nodes)]

    def hire(self, name: str, node: int, *, hub: bool, device: str) -> Handle:  # noqa: ARG002
        """See Fleet."""
        return MemoryHandle(name)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """See Fleet."""

        async def everything() -> list[Any]:
            results = await asyncio.gather(
                *(handle.call(method, *arguments) for handle, method, arguments in calls), return_exceptions=True
            )
            failures = [result for result in results if isinstance(result, BaseException)]
            if failures:
                raise next((one for one in failures if not isinstance(one, LostError)), failures[0])
            return list(results)

        return asyncio.run(everything())

    def has_new_node(self) -> bool:
        """See Fleet."""
        return False

    def restore(self, members: Sequence[Member]) -> Sequence[Member]:
        """See Fleet."""
        there = self.run([(member.handle, "is_open", ()) for member in members])
        return [member for member, is_open in zip(members, there, strict=True) if not is_open]

    def each(self, action: Callable[..., T], /, *arguments: Iterable[Any]) -> Iterator[T]:
        """See Fleet."""
        return map(action, *arguments)

    def release(self, handles: Sequence[Handle]) -> None:
        """See Fleet."""
        self.run([(handle, "close", ()) for handle in handles])
