"""What every aggregator offers, and what the hub does with it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tdcd.core.average import Gathered, Held, Mean
from tdcd.core.network import Block
from tdcd.core.parts import calling, check_tensors, is_foreign
from tdcd.core.state import Memory, SiloState, carried
from tdcd.errors import ModelError

PREFIX = "aggregator/"
"""Of an aggregator's memory in a silo's state."""


@dataclass(frozen=True)
class HubRound:
    """What an aggregator may know of a round."""

    number: int
    rate: float
    """η of this round."""
    last_rate: float
    """η of the round before; 0 in the first."""
    silos: int
    """N, the number of silos that have features."""
    trainable: Collection[str]
    """The weights that gradient steps change; all others are running statistics or frozen."""

    @classmethod
    def of(cls, number: int, rate: Callable[[int], float], silos: int, trainable: Collection[str]) -> "HubRound":
        """Return what is known of round ``number`` of 1 … R."""
        return cls(number, rate(number), rate(number - 1) if number > 1 else 0.0, silos, trainable)


@runtime_checkable
class Aggregator(Protocol):
    """Makes a silo's new weights of those that its clients return (line 32). What it remembers is explicit."""

    @property
    def linear(self) -> bool:
        """Whether it needs the clients' mean only. Otherwise the hub holds the weights of each client."""

    def init(self, weights: Block) -> Memory:
        """Return what it remembers before the first round, as named tensors."""

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        """Return the silo's new weights and the new memory; change nothing that is given.

        Args:
            received: The mean of all clients. Unless ``linear``, the weights of each client that took part, in
                the order of the roster: every tensor has a leading dimension of clients.
            memory: What it remembers.
            weights: θ_j, which the clients began with.
            round_: The round that is over.
        """


def gather(aggregator: Aggregator, block: Block) -> Gathered:
    """Return what takes the clients' weights, in the form that an aggregator needs."""
    return Mean(block) if aggregator.linear else Held()


def aggregate(
    aggregator: Aggregator, state: SiloState, gathered: Gathered, round_: HubRound, *, changes: bool = False
) -> SiloState:
    """Return a silo's state after a round, given what its clients returned: their weights, or changes of these.

    Raises:
        ModelError: the aggregator fails, or returns what cannot be a silo's weights.
    """
    linear = isinstance(gathered, Mean)
    received = gathered.result() if isinstance(gathered, Mean) else gathered.stacked()
    travelled = {name: received.pop(name) if linear else received.pop(name).mean(0) for name in carried(received)}
    if changes:
        received |= {name: state.weights[name] + received[name] for name in round_.trainable}
    own = {name: tensor for name, tensor in state.memory.items() if name.startswith(PREFIX)}
    with calling("aggregator", aggregator):
        memory = {n.removeprefix(PREFIX): t for n, t in own.items()} or dict(aggregator.init(state.weights))
        result = aggregator.apply(received, memory, state.weights, round_)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError("apply returns the weights and the memory, two values")
        weights, remembered = result
    if is_foreign(aggregator):
        check_tensors(weights, state.weights, "aggregator", aggregator, finite=_finite(received))
        check_tensors(remembered, memory, "aggregator", aggregator, finite=False)
    kept = {name: tensor for name, tensor in state.memory.items() if name not in own}
    return SiloState(weights, kept | travelled | {PREFIX + name: tensor for name, tensor in remembered.items()})


def _finite(block: Block) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in block.values())


LARGEST = 1 << 33
"""Bytes of clients' weights that a hub holds at most, for an aggregator that needs each client's."""


def check_room(aggregator: Aggregator, clients: int, block_bytes: int, silo: str) -> None:
    """Check that a hub can hold what an aggregator needs.

    Raises:
        ModelError: it cannot.
    """
    if not aggregator.linear and clients * block_bytes > LARGEST:
        raise ModelError(
            f"silo '{silo}': the aggregator holds the weights of each of its {clients:,} clients, "
            f"{clients * block_bytes / 2**30:.1f} GB, and at most {LARGEST / 2**30:.0f} GB are held; use a smaller "
            'network, fewer clients, or an aggregator that needs their mean only, such as "hub-step"'
        )
