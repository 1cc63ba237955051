"""The numbers of each client in a round: its loss, its gradient and how far its weights drift from the hub's.

They are no part of a training, whose fast paths never have them: the round is computed once more for them, client by
client, and its result thrown away. So looking changes no bit of what is trained.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tdcd.core.aggregators import Average, HubRound, check_room
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Block
from tdcd.core.objectives import Loss
from tdcd.core.objectives.base import logit_gradient
from tdcd.core.state import Memory, States
from tdcd.core.topology import deal
from tdcd.engines import LocalEngine, Training
from tdcd.engines.base import block_bytes


@dataclass(frozen=True)
class ClientRound:
    """What a round was to one client."""

    rows: int
    """Its rows in the mini-batch, n."""
    loss: float
    """Its mean loss on them at the weights that it received, as in its first local step."""
    gradient_norm: float
    """‖g‖ of that loss over all trained weights, before decay and clipping."""
    drift: float
    """‖θ_k − θ_j‖ over all trained weights: from the hub's at the beginning to its own after Q local steps."""


Clients = Mapping[str, Mapping[str, ClientRound]]
"""Of the clients that have rows in the mini-batch, by silo and client."""


class ClientMeter:
    """Measures clients."""

    def __init__(self, training: Training) -> None:
        self._training = training
        tasks = training.tasks
        for silo, task in tasks.items():
            check_room(_Receiver(), len(task.roster.clients), block_bytes(task.network.initial()), silo)
        self._receivers = {silo: _Receiver() for silo in tasks}
        self._losses = {silo: _Losses(task.objective) for silo, task in tasks.items()}
        self._norms = {silo: _Norms() for silo in tasks}
        received = {silo: replace(task, aggregator=self._receivers[silo]) for silo, task in tasks.items()}
        first = {
            silo: replace(
                task,
                steps=LocalSteps(1, self._norms[silo]),
                objective=self._losses[silo],
                aggregator=Average(),
                updates=None,
            )
            for silo, task in tasks.items()
        }
        self._whole = LocalEngine(replace(training, tasks=received), "loop")
        self._first = LocalEngine(replace(training, tasks=first, private=None), "loop")

    def measure(self, states: States, number: int) -> Clients:
        """Return the numbers of all clients in round ``number``, which begins with these states."""
        round_ = self._training.round(number)
        self._first.compute_round(states, round_)
        self._whole.compute_round(states, round_)
        result = {}
        for silo, task in self._training.tasks.items():
            shards, weights = deal(round_.batch, task.roster), states[silo].weights
            clients = len(shards.clients)
            columns = (
                shards.counts.tolist(),
                self._losses[silo].numbers[-clients:],  # the round may have been computed twice
                self._norms[silo].numbers[-clients:],
                self._receivers[silo].drifts({name: weights[name] for name in task.network.trainable}, clients),
            )
            names = [task.roster.clients[client] for client in shards.clients.tolist()]
            result[silo] = {name: ClientRound(*numbers) for name, *numbers in zip(names, *columns, strict=True)}
            self._losses[silo].numbers.clear()
            self._norms[silo].numbers.clear()
        return result


@dataclass
class _Receiver:
    """An aggregator that keeps what clients return, and leaves the hub's weights alone."""

    linear = False
    received: Block = field(default_factory=dict)

    def init(self, weights: Block) -> Memory:  # noqa: ARG002
        return {}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:  # noqa: ARG002
        self.received = received
        return weights, memory

    def drifts(self, weights: Block, clients: int) -> list[float]:
        """Return how far each client is from these weights, and forget them all."""
        squares = torch.zeros(clients, dtype=torch.float64)
        for name, tensor in weights.items():
            squares += (self.received[name].double() - tensor.double()).square().reshape(clients, -1).sum(1).cpu()
        self.received = {}
        return squares.sqrt().tolist()


class _Losses(Loss):
    """A loss that notes each client's mean."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.numbers: list[float] = []

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self._loss.losses(scores, labels)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        self.numbers.append(self._loss.losses(scores, labels).double().mean().item())
        return logit_gradient(self._loss, scores, labels)


class _Norms:
    """An optimizer that notes the norm of each client's gradient, and leaves its weights alone."""

    elementwise = False  # one client at a time

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def init(self, weights: Block) -> Memory:  # noqa: ARG002
        return {}

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:  # noqa: ARG002
        self.numbers.append(math.sqrt(sum(g.double().square().sum().item() for g in gradient.values())))
        return memory
