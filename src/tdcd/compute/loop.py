"""One client after another: works for every module, and is what all other paths fall back on."""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from tdcd.compute.base import Piece, blame, check_embedding, descend_pieces, weight_of
from tdcd.compute.footprint import KEPT, bytes_per_row
from tdcd.compute.modules import leaves_rows_alone
from tdcd.compute.threads import ALONE, Threads
from tdcd.core.average import Gathered
from tdcd.core.local_steps import Backward, Steps, autograd, local_steps
from tdcd.core.modules import Attributes
from tdcd.core.network import Block, Network, tensor_places
from tdcd.core.seeds import client_seed
from tdcd.core.state import carried
from tdcd.core.streams import borrow_stream, reseed, set_stream, stream_state
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards
from tdcd.core.torch_extras import copy_all_, writes


@dataclass(frozen=True)
class First:
    """A client's forward pass in the exchange, which is also that of its first local step."""

    embedding: Tensor
    """Φ_{k,j} with the graph behind it."""
    weights: Block
    """The weights that the graph leads to."""
    buffers: Block
    """What the pass left in the module's buffers."""
    stream: list[Tensor]
    """Where the pass left the client's random numbers."""


class Loop:
    """Compute a silo's clients one at a time, or one a worker."""

    def __init__(self, task: SiloTask, pool: Threads = ALONE, *, seeded: bool = False) -> None:
        """Prepare it. With ``seeded``, every client has a random stream, though the network seemed not to draw."""
        self._task = task
        self._device = task.features.device
        self._draws = seeded or draws(task)
        self._pool = ALONE if self._draws else pool
        self._per_row, self._pure = bytes_per_row(task), pure(task)
        self._copies = not leaves_rows_alone(task.network.module)
        """Whether each pass needs rows of its own, as it may write to them."""
        self._embedding: SimpleQueue[Replica] = SimpleQueue()
        self._descending: SimpleQueue[Replica] = SimpleQueue()
        self._first: dict[int, First] = {}

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        task = self._task
        share = self._pure and self._per_row is not None and self._per_row * len(shards.samples) <= KEPT
        loading = object() if self._pure else None  # once a round will do if embedding leaves the weights alone

        def one(shard: tuple[int, slice]) -> Tensor:
            client, part = shard
            with blame(task, [client], "the forward pass"), torch.set_grad_enabled(share):
                replica = self._borrow(self._embedding)
                replica.load(block, loading)
                replica.copy_buffers(block)
                self._seed(round_, client)
                x = task.features[shards.samples[part]]
                embedding = check_embedding(replica.module(x), len(x), task)
                if share and not replica.forget():
                    stream = stream_state(self._device) if self._draws else []
                    self._first[client] = First(embedding, replica.weights, replica.buffers(), stream)
                self._embedding.put(replica)
                return embedding.detach()

        self._first = {}
        with self._stream():
            return torch.cat(self._pool.map(one, shards))

    def descend(self, block: Block, round_: Round, shards: Shards, rows: Tensor) -> Gathered:
        """See Compute."""
        pieces = self.pieces(block, round_, shards)
        with self._stream():
            return descend_pieces(self._task, block, shards, rows, pieces, self._pool)

    def pieces(self, block: Block, round_: Round, shards: Shards) -> Iterator[Piece]:
        """See Suspendable."""
        first, self._first = self._first, {}
        for client, part in shards:
            borrowed: list[Replica] = []
            steps = self._steps(block, round_, client, shards.samples[part], first.pop(client, None), borrowed)
            release = partial(self._give_back, borrowed)
            yield Piece(part, steps, [client], weight_of(self._task, part.stop - part.start), release)

    def _steps(
        self,
        block: Block,
        round_: Round,
        client: int,
        samples: Tensor,
        first: First | None,
        borrowed: "list[Replica]",
    ) -> Steps:
        """Take a client's steps with a replica of its own, which lies in ``borrowed`` meanwhile."""
        task, device = self._task, self._device
        with blame(task, [client], "the local steps"):
            # rows of its own, not a part of others': where numbers lie in memory may decide how a product is rounded
            replica, x = self._borrow(self._descending), task.features[samples]
            borrowed.append(replica)
            replica.load(block)
            if first:
                replica.set_buffers(first.buffers)
                stream = first.stream
            else:
                replica.copy_buffers(block)
                self._seed(round_, client)
                stream = stream_state(device) if self._draws else []

            def forward(weights: Block) -> tuple[Tensor, Backward]:
                nonlocal first, stream
                if first:
                    embedding, weights, first = first.embedding, first.weights, None
                else:
                    if self._draws:  # other clients may have drawn since
                        set_stream(device, stream)
                    with torch.enable_grad():
                        embedding = replica.module(x.clone() if self._copies else x)
                    if self._draws:
                        stream = stream_state(device)
                return embedding.detach(), autograd(embedding, weights)

            trainable, known = tuple(replica.weights), carried(block)
            new = yield from local_steps(
                forward, replica.weights, trainable, known, 1 / len(x), task.steps, round_.rate
            )
            return replica.block() | carried(new)

    def _give_back(self, borrowed: "list[Replica]") -> None:
        while borrowed:
            self._descending.put(borrowed.pop())

    def _borrow(self, replicas: "SimpleQueue[Replica]") -> "Replica":
        try:
            return replicas.get_nowait()
        except Empty:
            return Replica(self._task.network)

    def _stream(self) -> AbstractContextManager[None]:
        return borrow_stream(self._device) if self._draws else nullcontext()

    def _seed(self, round_: Round, client: int) -> None:
        """Put the client's random stream at its start."""
        task = self._task
        if self._draws:
            reseed(self._device, client_seed(task.seed, round_.number, task.silo, task.roster.clients[client]))


class Replica:
    """A worker's own copy of a silo's module: used as a module, which costs less than as a function."""

    def __init__(self, network: Network) -> None:
        self.module = copy.deepcopy(network.module).train()
        parameters = dict(self.module.named_parameters())
        self._names = list(parameters)
        self._parameters: list[Tensor] = list(parameters.values())
        self._places = [
            (home, key, name) for _, home, key, name in tensor_places(self.module) if name not in parameters
        ]
        self.weights: Block = {name: parameters[name] for name in network.trainable}
        self._loading: object = None
        self._attributes = Attributes(self.module)

    def forget(self) -> bool:
        """Put back what the module remembers besides weights and buffers; tell whether anything had changed."""
        return bool(self._attributes) and self._attributes.put_back()

    def load(self, block: Block, loading: object = None) -> None:
        """Take over a block's weights, unless that was done in the same ``loading``; nothing of before is left."""
        self.forget()
        if self._parameters and (loading is None or self._loading is not loading):
            with torch.no_grad():
                copy_all_(self._parameters, [block[name] for name in self._names])
            self._loading = loading

    def copy_buffers(self, block: Block) -> None:
        """Take over a block's buffers as copies that the module may write to."""
        copies = {name: block[name].clone() for _, _, name in self._places}
        self.set_buffers(copies)

    def buffers(self) -> Block:
        """Return the module's buffers as they are now."""
        result: Block = {}
        for home, key, name in self._places:
            tensor = home[key]
            assert tensor is not None  # noqa: S101
            result[name] = tensor.detach()
        return result

    def set_buffers(self, buffers: Block) -> None:
        """Give the module these buffers."""
        for home, key, name in self._places:
            home[key] = buffers[name]

    def block(self) -> Block:
        """Return what the module holds now."""
        return {name: p.detach() for name, p in zip(self._names, self._parameters, strict=True)} | self.buffers()


def draws(task: SiloTask) -> bool:
    """Tell whether a silo's network draws random numbers in training, as dropout does."""
    device = task.features.device
    with borrow_stream(device):
        before = stream_state(device)
        try:
            with torch.no_grad():
                task.network(task.network.initial(), task.features[:2].clone(), training=True)
        except Exception:
            return True  # what fails here will fail in training, where it gets a proper error
        return not all(map(torch.equal, before, stream_state(device)))


def pure(task: SiloTask) -> bool:
    """Tell whether a forward pass leaves all but buffers alone; torch counts the writes to each tensor."""
    replica, x = Replica(task.network), task.features[:2].clone()
    watched = [x, *replica.module.parameters()]
    before = [writes(tensor) for tensor in watched]
    with borrow_stream(task.features.device), torch.no_grad():
        try:
            replica.module(x)
        except Exception:
            return False  # what fails here will fail in training, where it gets a proper error
    return before == [writes(tensor) for tensor in watched] and not replica.forget()
