"""What a client does when its hub asks. Its rows never leave it, nor do its labels where they are private.

Its life has explicit states, each a value that later requests need and that is replaced as a whole:

    Keyed, Placed   of its own table: it has read its IDs, and knows the common ones    RequestKeys, RequestSurvey
    Ready           it has its rows, its network and a worker                           Begin
    OpenRound       it has embedded its rows of a mini-batch                            Embed, FirstGradients

A state outlives the stream: a client that reconnects to the same hub is ready at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdcd.compute import choose, cores, one_torch_thread
from tdcd.compute.fallback import fallback
from tdcd.compute.modules import never_draws
from tdcd.compute.whole import embed_whole
from tdcd.compute.worker import Worker
from tdcd.core.average import mean_of
from tdcd.core.codecs import Codecs, Plain
from tdcd.core.codecs.base import encode
from tdcd.core.network import Block, Network, named_tensors
from tdcd.core.state import SiloState
from tdcd.core.streams import borrow_stream
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Roster
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.errors import DataError, TdcdError
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.schema import Job, TableJob
from tdcd.sites.client.beginning import check_sizes, check_together, sample_numbers, shared_labels
from tdcd.sites.client.dealing import Dealer
from tdcd.sites.client.label_holder import LabelHolder
from tdcd.sites.client.states import BEGINNING, OpenRound, Ready
from tdcd.sites.messages import types
from tdcd.sites.messages.frames import Message, RefusedError
from tdcd.sites.messages.packing import check_coded, check_weight, known, named, samples_in, unpack
from tdcd.sites.security.identity import Identity
from tdcd.sites.site_file import ClientSite
from tdcd.training.setup import build_network, device_of, width_of

if TYPE_CHECKING:
    from tdcd.sites.client.own_table import OwnTable

IN_ROUND = (types.Embed, types.FirstGradients, types.LaterGradients, types.Step, types.Descend)
"""Requests of a round."""


class Session:
    """A client, as its hub asks it."""

    def __init__(self, job: Job, identity: Identity, site: ClientSite, log: Callable[[str], None]) -> None:
        self.job, self.identity, self.site, self.log = job, identity, site, log
        self._table = self._open_table(job) if isinstance(job, TableJob) else None
        self._settings = job.settings_of(identity.silo)
        self._codecs = self._settings.codecs
        self._ready: Ready | None = None
        self._round: OpenRound | None = None
        self._weights: tuple[int, Block] | None = None
        """The last ones that the hub sent, and their version."""
        self._replies: dict[type, Callable[[Any], object]] = {
            types.Resume: self._resume,
            types.RequestKeys: self._send_keys,
            types.RequestSurvey: self._survey,
            types.Begin: self._begin,
            types.Embed: self._embed,
            types.FirstGradients: self._first_gradients,
            types.LaterGradients: self._later_gradients,
            types.Step: self._step,
            types.Descend: self._descend,
            types.Score: self._score,
            types.Judge: self._judge,
        }

    def reply(self, request: Message) -> object:
        """Do what the hub asks.

        Raises:
            RefusedError: the request is malformed, or out of order.
            TdcdError: it cannot be done.
        """
        typed: Any = unpack(request, *self._replies)
        try:
            if isinstance(typed, IN_ROUND):
                self._enter_round(typed, request.stamp.round)
            return self._replies[type(typed)](typed)
        except TdcdError:
            raise
        except Exception as error:  # whatever a hub sends, the client goes on
            raise RefusedError(f"'{request.kind}' cannot be done: {type(error).__name__}: {error}") from error

    def _enter_round(self, typed: Any, number: int) -> None:
        """Open a round, if a request does that; any other must be of the round that is open."""
        if isinstance(typed, types.Embed) or (isinstance(typed, types.FirstGradients) and self._labels_only):
            self._open(number, typed.samples, typed.without)
        elif self._round is None or self._round.number != number:
            raise RefusedError(f"received a message for round {number} before its start")

    @property
    def most(self) -> int:
        """Bytes that a request of the hub may have: weights and vectors of the own rows, and what begins a training."""
        return self._ready.most if self._ready else BEGINNING

    # Before the first round

    def _open_table(self, job: TableJob) -> "OwnTable":
        from tdcd.sites.client.own_table import OwnTable  # brings polars

        return OwnTable(job, self.identity, self.site, lambda line: self.log(line))

    def check(self) -> None:
        """See that the site's table is there, and has the columns that it must have, before the hub is dialled.

        Labels that are private are looked at, too: nobody else can tell that they are wrong.

        Raises:
            DataError: the table or a required column is missing, or labels do not fit.
        """
        if self._table:
            self._table.check(labels=self._holds_labels)

    @property
    def _holds_labels(self) -> bool:
        """Whether it has labels that never leave it."""
        return self.identity.silo == self.job.labels.label_holder

    @property
    def _lacks_labels(self) -> bool:
        """Whether another silo holds the labels of its rows."""
        return self.job.labels.private and not self._holds_labels

    @property
    def _labels_only(self) -> bool:
        return self._ready is not None and self._ready.network is None

    def _resume(self, request: types.Resume) -> types.Resumed:
        """Tell whether all that the hub sent before is still there and valid."""
        ready = self._ready is not None and self._ready.setup == request.setup
        if ready and self._table:
            try:
                self._table.check_unchanged()
            except DataError as error:
                self.log(str(error))
                ready = False
        self._abandon()
        return types.Resumed(ready)

    def _own_table(self) -> "OwnTable":
        if self._table is None:
            raise RefusedError("the hub asks for a table, but this job has none")
        return self._table

    def _send_keys(self, request: types.RequestKeys) -> types.ClientKeys:
        table = self._own_table()
        before = table.digest
        reply = table.send_keys(request)
        if reply.digest != before:
            self._ready = None
        return reply

    def _survey(self, request: types.RequestSurvey) -> types.SurveyReply:
        return self._own_table().survey(request)

    def _begin(self, request: types.Begin) -> types.Begun:
        """Prepare the rows and build the network."""
        settings, silo = self._settings, self.identity.silo
        device = device_of(self.site.device)
        check_sizes(request)
        self._abandon()
        self._ready, self._weights = None, None
        data = None
        if self._table:
            counts = self._table.place(request.kind, known(request.common, "common IDs"), request.places).counts
            numbers = sample_numbers(request, None)
            check_together(numbers, counts)
        else:
            data = self._read_set()
            numbers = sample_numbers(request, {part: len(samples.labels) for part, samples in data.parts.items()})
        holder = self._hold_labels(request.width, numbers, data) if self._holds_labels else None
        if request.shape is None:
            self._ready = Ready(request.setup, numbers, {}, request.population, request.width, None, None, holder)
            self.log(f"ready: labels of {len(numbers.get(Part.TRAIN, ())):,} training rows, and no features")
            return types.Begun()
        found, columns = (
            self._own_table().encode(request.preparation) if data is None else (self._rows_of_set(data, numbers), {})
        )
        rows = {part: (x.to(settings.dtype) if x.is_floating_point() else x).to(device) for part, x in found.items()}
        shape = tuple(next(iter(rows.values())).shape[1:]) if rows else request.shape
        if shape != request.shape:
            raise DataError(f"{self.identity}: its rows have the shape {shape}, the silo's {request.shape}")
        network = build_network(silo, self.job.model_of(silo), shape, request.outputs, settings, device)
        width = width_of(silo, network, torch.zeros(2, *shape, dtype=settings.dtype, device=device))
        if width != request.width:
            raise RefusedError(f"the hub speaks of embeddings of width {request.width}, and the network makes {width}")
        worker = None
        if len(rows.get(Part.TRAIN, ())):
            labels = self._training_labels(request, holder, len(rows[Part.TRAIN]))
            worker = self._worker(network, rows[Part.TRAIN], labels.to(device), request.width)
        received = settings.steps.sent(SiloState(dict(named_tensors(network.module))), network.trainable)
        self._ready = Ready(
            request.setup, numbers, rows, request.population, request.width, network, worker, holder, received,
            self._codecs.encode_block(received, network.trainable),
            Dealer(self.identity, settings.seed, self.job.deployment.importance, columns),
        )  # fmt: skip
        return types.Begun()

    def _worker(self, network: Network, rows: Tensor, labels: Tensor, width: int) -> Worker:
        settings = self._settings
        task = SiloTask(
            silo=self.identity.silo,
            network=network,
            features=rows,
            labels=labels,
            roster=Roster((self.identity.client or "",), torch.zeros(len(labels), dtype=torch.int64)),
            objective=settings.objective,
            steps=settings.steps,
            averaging="uniform",  # one client alone: its mean is itself, to the bit
            seed=settings.seed,
            width=width,
            updates=Plain() if self._codecs.changes else None,  # changes are encoded where they are sent
            remote_labels=self._lacks_labels,
        )
        suspendable = self._lacks_labels and self.job.labels.sharing == "exact" and settings.local_steps > 1
        name, why = choose(task, self.site.compute, suspendable=suspendable)
        seeded = not never_draws(network.module)
        if seeded and name in ("stacked", "mixed"):  # torch cannot stack clients that draw, and here is one alone
            name, why = "loop", "loop (one client, whose network may draw random numbers)"
        self.log(f"ready: {len(labels):,} training rows; {why}")
        if text := fallback(task, self.site.compute, name, suspendable=suspendable):
            self.log(text)
        return Worker(task, name, threads=self.site.workers or cores(), suspendable=suspendable, seeded=seeded)

    def _training_labels(self, request: types.Begin, holder: LabelHolder | None, rows: int) -> Tensor:
        """Return the labels of its training rows; where another silo holds them, nothing that could be used."""
        if holder:
            return holder.labels[Part.TRAIN]
        if self._lacks_labels:
            return torch.zeros(rows)
        settings = self._settings
        return shared_labels(request.labels, rows, request.width, settings.objective, settings.dtype)

    def _hold_labels(self, width: int, numbers: Mapping[Part, Array], data: JobData | None) -> LabelHolder:
        """Look up the labels of its own rows; nobody else hears of them."""
        settings = self._settings
        if data is None:
            found = self._own_table().labels(numbers)
        else:
            found = {part: data.parts[part].labels[torch.from_numpy(n)] for part, n in numbers.items()}
        prepared = {part: settings.objective.prepare(y, width, settings.dtype) for part, y in found.items()}
        return LabelHolder(self.job.labels, settings, width, prepared)

    def _read_set(self) -> JobData:
        self.log("reading the data set")
        return load_data(self.job)

    def _rows_of_set(self, data: JobData, numbers: Mapping[Part, Array]) -> dict[Part, Tensor]:
        silo = self.identity.silo
        return {part: data.parts[part].features[silo][torch.from_numpy(n)] for part, n in numbers.items()}

    # Rounds

    def _open(self, number: int, samples: Tensor, without: Tensor) -> None:
        """Find its rows of a round's mini-batch."""
        ready = known(self._ready, "the beginning")
        if not 0 < number <= self._settings.rounds:
            raise RefusedError(f"there is no round {number} of {self._settings.rounds}")
        held, sent = ready.numbers[Part.TRAIN], samples_in(samples, "samples of the mini-batch")
        if self._settings.participation < 1:
            batch = np.array(sorted(sent), dtype=np.int64)
            if not np.isin(batch, held).all():
                raise RefusedError(f"the mini-batch of round {number} has samples that this client does not hold")
        elif sent:
            raise RefusedError(f"unexpected samples of the mini-batch of round {number}")
        else:
            batch = self._settings.sample_batch(number, ready.population).numpy()
        if lost := samples_in(without, "samples that were lost"):
            batch = np.setdiff1d(batch, np.array(sorted(lost)), assume_unique=True)
        mine = np.flatnonzero(batch[batch.searchsorted(held) % len(batch)] == held) if len(batch) else ()  # both ascend
        if not len(mine):
            raise RefusedError(f"none of this client's rows is in the mini-batch of round {number}")
        self._abandon()
        self._round = OpenRound(number, torch.from_numpy(mine))

    def _embed(self, request: types.Embed) -> types.Embeddings:
        """Embed its rows of the mini-batch (lines 10 to 14 of Algorithm 1)."""
        worker, now = self._trained(), known(self._round, "the start of the round")
        block = self._take_weights(request.version, request.weights, self._codecs, known(self._ready, "").encoded)
        with one_torch_thread():
            now.embeddings = worker.embed(block, Round(now.number, now.mine, self._settings.rate_of(now.number)))
        return types.Embeddings(encode(self._codecs.rows, now.embeddings))

    def _first_gradients(self, request: types.FirstGradients) -> types.LogitGradients:
        """Compute ∂ℓ/∂z of its rows at the exchanged embeddings."""
        holder, now = self._labels(), known(self._round, "the start of the round")
        now.others = self._decode(request.others)
        scores = now.others if now.embeddings is None else now.embeddings.cpu() + now.others
        return self._encode(holder.gradients(now.mine, [scores]))

    def _later_gradients(self, request: types.LaterGradients) -> types.LogitGradients:
        """Compute ∂ℓ/∂z of its rows at the newest scores of each silo."""
        mine = known(self._round, "the start of the round").mine
        return self._encode(self._labels().gradients(mine, [self._decode(rows) for rows in request.scores]))

    def _encode(self, gradients: Sequence[Tensor]) -> types.LogitGradients:
        return types.LogitGradients(tuple(encode(self._codecs.rows, rows) for rows in gradients))

    def _step(self, request: types.Step) -> types.Embeddings:
        """Take one local step with logit gradients; return the new embeddings."""
        worker = self._trained()
        with one_torch_thread():
            embeddings = worker.step(self._decode(request.gradients).to(self._device))
        return types.Embeddings(encode(self._codecs.rows, embeddings))

    def _descend(self, request: types.Descend) -> types.Weights:
        """Take the local steps that are left (lines 25 to 29)."""
        worker, now = self._trained(), known(self._round, "the start of the round")
        given = None if request.rows is None else self._decode(request.rows)
        rows = known(now.others if given is None else given, "the sums of the other silos' embeddings")
        with one_torch_thread():
            returned = mean_of(worker.descend(rows.to(self._device)))
        encoded = self._codecs.encode_block(returned, worker.task.network.trainable)
        return types.Weights(tuple(encoded.values()))

    def _trained(self) -> Worker:
        if self._ready is None or self._ready.worker is None:
            raise RefusedError("a message of a round for a client that has no training rows, or has not begun")
        return self._ready.worker

    def _labels(self) -> LabelHolder:
        if self._ready is None or self._ready.label_holder is None:
            raise RefusedError("the hub asks for what depends on labels, but this client has none")
        return self._ready.label_holder

    def _decode(self, rows: Tensor) -> Tensor:
        """Return what the hub sends: a vector of width E for each of its rows in the mini-batch."""
        ready, now = known(self._ready, "the beginning"), known(self._round, "the start of the round")
        like = torch.zeros(len(now.mine), ready.width, dtype=self._settings.dtype)
        return check_coded(self._codecs.rows, rows, like, "the hub sends rows")

    def rest(self) -> None:
        """Let go of the rows and the network: the training is finished."""
        self._abandon()
        self._ready = self._weights = None

    def _abandon(self) -> None:
        """Give up local steps that wait for gradients: their round is begun again, or over."""
        self._round = None
        if self._ready and self._ready.worker:
            self._ready.worker.abandon()

    # Evaluations

    def _score(self, request: types.Score) -> types.Scores:
        """Embed all of its rows of some parts for an evaluation."""
        ready = known(self._ready, "the beginning")
        network, dealer = known(ready.network, "a network"), known(ready.dealer, "columns")
        dealer.check(request)
        if request.weights is not None:
            self._take_weights(request.version, request.weights, Codecs(), ready.received)
        version, block = known(self._weights, "weights")
        if version != request.version:
            raise RefusedError(f"the hub has sent weights of version {version}, not {request.version}")
        record = {}
        for part, rows in ready.rows.items():
            if not len(rows) or part.word not in request.parts:
                continue
            if request.column is not None:
                rows = dealer.deal(rows, request.column, request.repeat)
            with one_torch_thread(), borrow_stream(self._device):
                if ready.worker is not None:
                    record[part.word] = ready.worker.embed_all(block, rows)
                else:
                    record[part.word] = embed_whole(self.identity.silo, network, block, rows)
        return types.Scores(tuple(record), tuple(record.values()))

    def _judge(self, request: types.Judge) -> types.Tallies:
        """Add up how good the model is on its rows."""
        return self._labels().judge(request)

    @property
    def _device(self) -> torch.device:
        return known(known(self._ready, "the beginning").network, "a network").device

    def _take_weights(self, version: int, weights: tuple[Tensor, ...], codecs: Codecs, travel: Block) -> Block:
        """Check that weights travel as they should, and decode them; keep them for evaluations, if they are exact."""
        network = known(known(self._ready, "the beginning").network, "a network")
        likes = known(self._ready, "the beginning").received
        encoded = dict(named(travel, weights, "the hub's weights"))
        block = codecs.decode_block(encoded, likes, network.trainable)
        for name, tensor in block.items():
            check_weight(tensor, likes[name], f"the hub's weights '{name}'")
            block[name] = tensor.to(network.device)
        self._weights = None if codecs.changes else (version, block)
        return block
