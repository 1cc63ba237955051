"""One try at a round, as a hub does its part of it: Algorithm 1, with labels at every client or kept in one silo.

Whenever clients are lost, here or in another silo, all hubs hear of it before the round is over, and begin again on a
smaller mini-batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdcd.core.average import Mean
from tdcd.core.ledger import Traffic, gradient_requests
from tdcd.core.network import Block
from tdcd.core.round import sum_embeddings, sum_of_others
from tdcd.core.topology import deal
from tdcd.data.arrays import Array
from tdcd.deployment.clients import Question, check_tensor, like
from tdcd.deployment.gathering import Gatherer
from tdcd.deployment.messages import (
    AWAY,
    LOST,
    OTHERS,
    WITHOUT,
    Message,
    RefusedError,
    Stamp,
    asker,
    packed,
    unpacked,
)
from tdcd.errors import DivergedError
from tdcd.training.loop import left_finite


class LostError(Exception):
    """Samples whose clients did not do their part, in whatever silo."""

    def __init__(self, samples: Array) -> None:
        super().__init__(f"{len(samples)} samples are lost")
        self.samples = samples


class Attempt:
    """A round on a mini-batch ζ from which ``lost`` samples have left already."""

    def __init__(
        self, hub: Gatherer, block: Block, zeta: Tensor, lost: Array, stamp: Stamp, away: Callable[[], Tensor]
    ) -> None:
        """Plan it. ``away`` tells the samples of the next mini-batch whose clients are away at the end of this one."""
        self._clients, self._peers, self._plan, self._model = hub.clients, hub.peers, hub.plan, hub.model
        self._silo, self._settings, self._sharing = hub.silo, hub.job.training, hub.job.labels.sharing
        self._label_holder, self._times = (
            hub.job.labels.label_holder,
            gradient_requests(self._sharing, self._settings.local_steps),
        )
        self._block, self._zeta, self._lost, self._stamp, self._away = block, zeta, lost, stamp, away
        shards = deal(zeta, hub.plan.roster)
        self._rows = {hub.plan.roster.clients[client]: shards.order[place] for client, place in shards}
        self._light = self._model.width * self._settings.dtype.itemsize
        self._bare = hub.label_only
        self._gone: set[str] = set()
        """Clients that were lost on the way."""
        self._before = self._counted()

    def _counted(self) -> tuple[int, int, int]:
        clients = self._clients.meter
        return clients.received, clients.sent, self._peers.meter.sent

    @property
    def traffic(self) -> Traffic:
        """What was sent so far, as counted where it was put into frames."""
        return Traffic(*(now - before for now, before in zip(self._counted(), self._before, strict=True)))

    async def run(self) -> tuple[Block, Array]:
        """Return the new block, and the samples of the next mini-batch that are away.

        Raises:
            LostError: it must be begun again without some samples.
            DivergedError: the numbers of another silo are no longer finite.
        """
        if self._label_holder is None or not self._peers.peers:
            mean = await self._with_labels()
        elif self._label_holder == self._silo:
            mean = await self._answering()
        else:
            mean = await self._label_holder_of()
        result, away = mean.result(), self._away()
        done = self._said("done", {AWAY: away})
        text = await self._peers.exchange(replace(done, facts={"finite": not left_finite(result, self._block)}))
        self._agree(text)
        for silo, message in text.items():
            if message.facts.get("finite") is False:
                raise DivergedError(
                    f"training diverged: the weights of silo '{silo}' are no longer finite after round "
                    f"{self._stamp.round}. Try a smaller rate than {self._settings.rate:g}"
                )
        return result, united(AWAY, away, text)

    # Labels at every client

    async def _with_labels(self) -> Mean:
        phi = self._scores() if self._plan.label_only else await self._embed()
        silent = self._said("embeddings", {})
        own = silent if self._plan.label_only else self._said("embeddings", {"phi": phi})
        text = await self._peers.exchange(own, dict.fromkeys(self._bare, silent))
        self._agree(text)
        if self._plan.label_only:
            return self._unchanged()
        others = self._phis({silo: message for silo, message in text.items() if silo not in self._bare}, phi)
        return await self._descend("descend", {"others": sum_of_others({self._silo: phi, **others}, self._silo)})

    # Labels kept in one silo: this one asks

    async def _label_holder_of(self) -> Mean:
        answers = await self._asked(0, await self._embed())
        for step in range(1, self._times):
            phi = await self._embed_rows("step", {name: {"answers": answers[own]} for name, own in self._rows.items()})
            answers = await self._asked(step, phi)
        return await self._descend("step" if self._sharing == "exact" else "descend", {"answers": answers})

    async def _asked(self, step: int, phi: Tensor) -> Tensor:
        """Tell the hub with the labels the newest embeddings (B, E); return ∂ℓ/∂z (B, E)."""
        label_holder = self._label_holder or ""
        await self._peers.send(label_holder, self._said(f"embeddings {step}", {"phi": phi}))
        text = await self._peers.receive(label_holder, f"answers {step}", self._stamp)
        self._agree({label_holder: text})
        check_tensor({"answers": phi}, "answers", text.tensors.get("answers"))
        return text.tensors["answers"]

    # Labels kept in one silo: this one answers

    async def _answering(self) -> Mean:
        mean = self._unchanged()
        phi = None if self._plan.label_only else await self._embed()
        first: dict[str, Tensor] = {} if phi is None else {self._silo: phi}
        for step in range(self._times):
            record = {
                silo: await self._peers.receive(silo, f"embeddings {step}", self._stamp) for silo in self._peers.peers
            }
            await self._agree_and_tell(step, record)
            now = self._phis(record, self._scores())
            if step == 0:
                first |= now
                answers = dict.fromkeys(now, (await self._answered({OTHERS: sum_embeddings(now)}))[OTHERS])
            else:
                z = {silo: sum_of_others(first, silo) + own for silo, own in now.items()}
                result = await self._answered({asker(silo): scores for silo, scores in z.items()})
                answers = {silo: result[asker(silo)] for silo in z}
            await self._agree_and_tell(step, record)
            for silo, own in answers.items():
                await self._peers.send(silo, self._said(f"answers {step}", {"answers": own}))
            if step == 0 and phi is not None:
                mean = await self._descend("descend", {})
        return mean

    async def _answered(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Ask the clients for ∂ℓ/∂z at scores (B, E): at the exchange's, or for each silo that asks."""
        result = {who: self._scores() for who in scores}
        questions = {}
        for name, own in self._rows.items():
            tensors = {who: z[own] for who, z in scores.items()}
            if self._plan.label_only:
                tensors |= self._without(name)
            expected = {who: z[own] for who, z in result.items()}
            message = Message("answer", {}, tensors, self._stamp)
            questions[name] = Question(message, nbytes(expected) + 8 * len(expected), like(expected))
        answers, missing = await self._clients.ask(questions)
        self._gone |= missing
        for name, answer in answers.items():
            for who, tensor in result.items():
                tensor[self._rows[name]] = answer.tensors[who]
        return result

    async def _agree_and_tell(self, step: int, log: Mapping[str, Message]) -> None:
        """Tell the hubs that wait for answers, if samples are lost, that there will be none."""
        try:
            self._agree(log)
        except LostError as error:
            lost = Message(f"answers {step}", {}, {LOST: torch.from_numpy(error.samples)}, self._stamp)
            for silo in self._peers.peers:
                await self._peers.send(silo, lost)
            raise

    # What clients do

    async def _embed(self) -> Tensor:
        """Let the clients embed their rows (lines 8 to 15): (B, E)."""
        weights = packed(self._block)
        return await self._embed_rows("embed", {name: weights | self._without(name) for name in self._rows})

    async def _embed_rows(self, kind: str, tensors: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """Ask clients for embeddings of their rows; those of lost clients are zeros."""
        phi = self._scores()
        questions = {
            name: Question(
                Message(kind, {}, tensors[name], self._stamp), len(own) * self._light, like({"phi": phi[own]})
            )
            for name, own in self._rows.items()
        }
        answers, missing = await self._clients.ask(questions)
        self._gone |= missing
        for name, answer in answers.items():
            phi[self._rows[name]] = answer.tensors["phi"]
        return phi

    async def _descend(self, kind: str, log: Mapping[str, Tensor]) -> Mean:
        """Let the clients take their steps, with their rows of what they are told, and average (lines 19 to 31)."""
        block, travels = self._block, packed(self._block)
        uniform = self._settings.averaging == "uniform"
        mean = Mean(block)
        counts = {name: 1.0 if uniform else float(len(own)) for name, own in self._rows.items()}
        questions = {}
        for name, own in self._rows.items():
            message = Message(kind, {}, {word: tensor[own] for word, tensor in log.items()}, self._stamp)
            questions[name] = Question(message, nbytes(block) + 8 * len(block), like(travels))

        def add(name: str, part: str, tensor: Tensor) -> None:
            check_tensor(travels, part, tensor)
            mean.add_tensor(unpacked(part), tensor, counts[name])

        answered, missing = await self._clients.ask(questions, add)
        self._gone |= missing
        mean.count(sum(counts[name] for name in answered))
        idle = len(self._plan.roster.clients) - len(answered)
        if (uniform and idle) or not self._rows:
            mean.add(block, float(max(idle, 1)))
        return mean

    def _unchanged(self) -> Mean:
        """Return what a silo without features trains: nothing."""
        mean = Mean(self._block)
        mean.add(self._block, 1.0)
        return mean

    # What hubs say to each other

    def _said(self, kind: str, tensors: Mapping[str, Tensor]) -> Message:
        """Return a message that also tells which samples were lost here."""
        return Message(kind, {}, {**tensors, LOST: self._lost_here()}, self._stamp)

    def _lost_here(self) -> Tensor:
        held = [self._zeta[self._rows[name]] for name in sorted(self._gone & set(self._rows))]
        return torch.cat([torch.empty(0, dtype=torch.int64), *held])

    def _agree(self, log: Mapping[str, Message]) -> None:
        """Check that nobody has lost anything.

        Raises:
            LostError: somebody has.
        """
        result = united(LOST, self._lost_here(), log)
        if not np.isin(result, self._zeta.numpy()).all():
            who = ", ".join(sorted(log))
            raise RefusedError(f"a hub has lost samples that are not in the mini-batch: one of {who}")
        if len(result):
            raise LostError(result)

    def _phis(self, log: Mapping[str, Message], wanted: Tensor) -> dict[str, Tensor]:
        """Return the embeddings that other hubs tell, all of the right shape."""
        for message in log.values():
            check_tensor({"phi": wanted}, "phi", message.tensors.get("phi"))
        return {silo: message.tensors["phi"] for silo, message in log.items()}

    def _scores(self) -> Tensor:
        return torch.zeros(len(self._zeta), self._model.width, dtype=self._settings.dtype)

    def _without(self, name: str) -> dict[str, Tensor]:
        """Tell a client which of its rows have left the mini-batch."""
        held = np.intersect1d(self._plan.training(name), self._lost, assume_unique=True)
        return {WITHOUT: torch.from_numpy(held)} if len(held) else {}


def nbytes(block: Mapping[str, Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.nbytes for tensor in block.values())


def united(name: str, own: Tensor, log: Mapping[str, Any]) -> Array:
    """Return the samples that this hub or another tells of, each once."""
    parts = [own]
    for silo, message in log.items():
        numbers = message.tensors.get(name)
        if numbers is None or numbers.dtype != torch.int64 or numbers.ndim != 1:
            raise RefusedError(
                f"the hub of silo '{silo}' sends '{message.kind}' without '{name}', or with a strange one"
            )
        parts.append(numbers)
    return np.unique(torch.cat(parts).numpy())
