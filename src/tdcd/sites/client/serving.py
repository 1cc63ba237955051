"""What a client does at a hub that serves: it embeds the rows of its table for predictions that its hub asks for."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tdcd.compute import one_torch_thread
from tdcd.compute.whole import embed_whole
from tdcd.core.network import Block, Network
from tdcd.core.streams import borrow_stream
from tdcd.errors import DataError, TdcdError
from tdcd.jobs.schema import TableJob
from tdcd.sites.client.beginning import check_network_sizes
from tdcd.sites.messages.frames import LARGEST, Message, RefusedError
from tdcd.sites.messages.packing import check_weight, kind_of, known, named, unpack
from tdcd.sites.messages.predictions import LookedUp, LookUp, Serve, Serving, check_ids
from tdcd.sites.security.identity import Identity
from tdcd.sites.site_file import ClientSite
from tdcd.training.setup import build_network, device_of, width_of

if TYPE_CHECKING:
    from tdcd.data.tables.preparation import Preparation
    from tdcd.sites.client.served_table import ServedRows

REQUESTS = frozenset(map(kind_of, (Serve, LookUp)))
"""Kinds of requests of a hub that serves."""
MOST = LARGEST >> 2
"""Bytes that such a request may have: the weights of a network that the client does not know yet."""
SMALL = 1 << 10
"""Bytes of the IDs of a question that is answered at once."""


@dataclass(frozen=True)
class Model:
    """The silo's part of the model, as the hub has sent it."""

    run: str
    round: int
    width: int
    network: Network
    block: Block
    preparation: "Preparation"


class Server:
    """A client that serves. Its replies may be asked for from several threads."""

    def __init__(self, job: TableJob, identity: Identity, site: ClientSite, log: Callable[[str], None]) -> None:
        from tdcd.sites.client.served_table import ServedTable  # brings polars

        self.job, self.identity, self.site = job, identity, site
        self.table = ServedTable(job, identity, site, log)
        self._model: Model | None = None
        self._lock = threading.Lock()

    def is_quick(self, request: Message) -> bool:
        """Tell whether a reply takes no time worth speaking of: a few rows, of a table that is read and unchanged."""
        small = request.kind == kind_of(LookUp) and request.nbytes <= SMALL
        return small and not self._lock.locked() and self.table.is_read

    def reply(self, request: Message) -> object:
        """Do what the hub asks.

        Raises:
            RefusedError: the request is malformed, out of order, or about another model.
            TdcdError: it cannot be done.
        """
        typed: Any = unpack(request, Serve, LookUp)
        try:
            with self._lock:
                return self._serve(typed) if isinstance(typed, Serve) else self._look_up(typed)
        except TdcdError:
            raise
        except Exception as error:  # whatever a hub sends, the client goes on
            raise RefusedError(f"'{request.kind}' cannot be done: {type(error).__name__}: {error}") from error

    def _serve(self, request: Serve) -> Serving:
        """Take the model, and read the table."""
        from tdcd.sites.client.own_table import parse_preparation

        check_network_sizes(request.shape, request.outputs, request.width)
        made = parse_preparation(request.preparation)
        self.table.check_features(made)
        if request.shape != (len(made.outputs),):
            raise RefusedError(f"rows of the shape {request.shape}, where columns make {len(made.outputs)} inputs")
        self._model = None
        silo, settings = self.identity.silo, self.job.settings_of(self.identity.silo)
        device = device_of(self.site.device)
        network = build_network(silo, self.job.model_of(silo), request.shape, request.outputs, settings, device)
        width = width_of(silo, network, torch.zeros(2, *request.shape, dtype=settings.dtype, device=device))
        if width != request.width:
            raise RefusedError(f"the hub speaks of embeddings of width {request.width}, and the network makes {width}")
        likes = network.initial()
        block = dict(named(likes, request.weights, "the hub's weights"))
        for name, tensor in block.items():
            check_weight(tensor, likes[name], f"the hub's weights '{name}'")
            block[name] = tensor.to(device)
        self.table.forget()
        self._model = Model(request.run, request.round, width, network, block, made)
        try:
            return Serving(len(self._held(self._model).embeddings))
        except DataError:
            return Serving(-1)

    def _look_up(self, request: LookUp) -> LookedUp:
        """Return the embeddings of those of the wanted rows that are here."""
        model = known(self._model, "the model that it serves")
        if (request.run, request.round) != (model.run, model.round):
            raise RefusedError(f"this client has the weights of round {model.round} of run {model.run}, and no others")
        check_ids(request.ids)
        held = self._held(model)
        places = torch.from_numpy(held.index.places(request.ids))
        present = places >= 0
        return LookedUp(present.byte(), held.embeddings[places[present]], len(held.embeddings))

    def _held(self, model: Model) -> "ServedRows":
        """Return the embedded rows of the table as it is now."""
        return self.table.rows(model.preparation, partial(self._embed, model))

    def _embed(self, model: Model, rows: torch.Tensor) -> torch.Tensor:
        settings, device = self.job.settings_of(self.identity.silo), model.network.device
        if not len(rows):
            return torch.zeros(0, model.width, dtype=settings.dtype)
        with one_torch_thread(), borrow_stream(device):
            own = rows.to(settings.dtype).to(device)
            return embed_whole(self.identity.silo, model.network, model.block, own).cpu()
