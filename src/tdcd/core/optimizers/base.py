"""What every local optimizer offers."""

from typing import Protocol, runtime_checkable

from tdcd.core.network import Block
from tdcd.core.parts import calling, check_tensors, name_of
from tdcd.core.state import Memory
from tdcd.errors import ModelError


@runtime_checkable
class Optimizer(Protocol):
    """Moves a client's weights by its gradient (Equation 5). What it remembers from step to step is explicit."""

    @property
    def elementwise(self) -> bool:
        """Whether every number moves by itself: then clients can be stacked.

        All tensors may then have a leading dimension of clients.
        """

    def init(self, weights: Block) -> Memory:
        """Return what it remembers before the first step, as named tensors."""

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
        """Take a step: change the weights in place, and return the new memory.

        Args:
            gradient: At the weights that the loss depends on; any other has none, and does not move.
            memory: What it remembers; may be changed.
            weights: Those that gradient steps change.
            rate: η.
        """


def apply_checked(optimizer: Optimizer, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
    """Take a step with an optimizer that a user has written, and check what it does.

    Raises:
        ModelError: it fails, or makes of finite numbers what is no weight.
    """
    given = dict(weights)
    finite = all(bool(g.isfinite().all()) for g in gradient.values())
    with calling("optimizer", optimizer):
        new = optimizer.apply(gradient, memory, weights, rate)
    check_tensors(new, memory, "optimizer", optimizer, finite=False)
    for name, tensor in given.items():
        if weights.get(name) is not tensor:
            raise ModelError(
                f"optimizer {name_of(optimizer)}: it replaced '{name}'; weights are changed in place, as by "
                "weights[name].sub_(…)"
            )
        if finite and name in gradient and not tensor.isfinite().all():
            raise ModelError(f"optimizer {name_of(optimizer)}: '{name}' became numbers that are not finite")
    return new
