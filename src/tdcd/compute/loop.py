"""One client after another: works for every module, and is what all other paths fall back on."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from tdcd.compute.interface import blame, checked, mean_with_idle, weight_of
from tdcd.compute.workers import ALONE, Workers
from tdcd.core.average import Mean
from tdcd.core.client import descend, gradient_of
from tdcd.core.network import Block, Network, tensor_places
from tdcd.core.round import Round
from tdcd.core.seeds import client_seed
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards


class Loop:
    """Compute a silo's clients one at a time, or one a worker."""

    def __init__(self, task: SiloTask, workers: Workers = ALONE) -> None:
        self._task = task
        self._draws = draws(task)
        self._workers = ALONE if self._draws else workers
        self._replicas: SimpleQueue[Replica] = SimpleQueue()

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        task, rows = self._task, shards.samples

        def one(shard: tuple[int, slice]) -> Tensor:
            client, part = shard
            x = task.features[rows[part]]
            with self._client(block, round_, client, "the forward pass") as replica, torch.no_grad():
                return checked(replica.module(x), len(x), task)

        return torch.cat(self._workers.map(one, shards))

    def descend(self, block: Block, round_: Round, shards: Shards, others: Tensor) -> Mean:
        """See Compute."""
        task, rows = self._task, shards.samples
        mean = mean_with_idle(task, block, shards)

        def one(shard: tuple[int, slice]) -> Mean:
            client, part = shard
            x, y, stale = task.features[rows[part]], task.labels[rows[part]], others[part]
            with self._client(block, round_, client, "the local steps") as replica:

                def gradient(now: Block) -> Block:
                    loss = task.objective.losses(replica.module(x) + stale, y).mean()
                    return gradient_of(loss, now)

                descend(gradient, replica.weights, task.steps, round_.rate)
                result = Mean(block)
                result.add(replica.block(), weight_of(task, len(x)))
                return result

        for part in self._workers.stream(one, shards):
            mean.merge(part)
        return mean

    @contextmanager
    def _client(self, block: Block, round_: Round, client: int, stage: str) -> Iterator["Replica"]:
        """Lend a module with the hub's weights, its random stream at its start."""
        task = self._task
        try:
            replica = self._replicas.get_nowait()
        except Empty:
            replica = Replica(task.network)
        with blame(task, [client], stage):
            replica.load(block)
            if self._draws:
                with torch.random.fork_rng(devices=[]):
                    seed = client_seed(task.seed, round_.number, task.silo, task.roster.clients[client])
                    torch.manual_seed(seed)
                    yield replica
            else:
                yield replica
        self._replicas.put(replica)


class Replica:
    """A worker's own copy of a silo's module: used as a module, which costs less than as a function."""

    def __init__(self, network: Network) -> None:
        self.module = copy.deepcopy(network.module).train()
        parameters = dict(self.module.named_parameters())
        self._names = list(parameters)
        self._parameters: list[Tensor] = list(parameters.values())
        self._buffers = [
            (home, key, name) for _, home, key, name in tensor_places(self.module) if name not in parameters
        ]
        self.weights: Block = {name: parameters[name] for name in network.trainable}

    def load(self, block: Block) -> None:
        """Take over a block's weights and buffers."""
        if self._parameters:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, [block[name] for name in self._names])
        for home, key, name in self._buffers:
            home[key] = block[name].clone()

    def block(self) -> Block:
        """Return what the module holds now."""
        block = {name: p.detach() for name, p in zip(self._names, self._parameters, strict=True)}
        for home, key, name in self._buffers:
            tensor = home[key]
            assert tensor is not None  # noqa: S101
            block[name] = tensor.detach()
        return block


def draws(task: SiloTask) -> bool:
    """Tell whether a silo's network draws random numbers in training, as dropout does."""
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            with torch.no_grad():
                task.network(task.network.initial(), task.features[:2], training=True)
        except Exception:
            return True  # what fails here will fail in training, where it can be told properly
        return not torch.equal(before, torch.get_rng_state())
