"""A client whose labels never leave it: it answers for them, and adds up how good the model is on its rows."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tdcd.core.gradients import logit_gradients
from tdcd.data.holdout import Part
from tdcd.deployment.messages import Message, RefusedError
from tdcd.training.labels import Labels
from tdcd.training.settings import Settings
from tdcd.training.tally import Tally, tally


def secret_noise(like: Tensor) -> Tensor:
    """Draw standard normal numbers from the system's source of secrets: who knew a seed could take the noise away."""
    drawn = np.frombuffer(secrets.token_bytes(8 * like.numel()), dtype=np.uint64) >> np.uint64(11)
    uniform = torch.from_numpy((drawn.astype(np.float64) + 0.5) / 2.0**53)
    normal: Tensor = torch.special.ndtri(uniform)
    return normal.reshape(like.shape).to(like)


@dataclass
class LabelHolder:
    """The labels of one client."""

    job: Labels
    settings: Settings
    width: int
    labels: Mapping[Part, Tensor]
    """As the loss wants them."""

    def gradients(self, rows: Tensor, scores: Mapping[str, Tensor]) -> Message:
        """Return ∂ℓ/∂z of training rows (n,) at their scores (n, E), field by field."""
        objective, labels = self.settings.objective, self.labels[Part.TRAIN][rows]
        record = {}
        for who, z in scores.items():
            if z.shape != (len(rows), self.width) or z.dtype != self.settings.dtype:
                raise RefusedError(f"the hub sends scores of another shape or type: {tuple(z.shape)}")
            record[who] = logit_gradients(
                objective, z, labels, self.job.privatizer, secret_noise(z) if self.job.noise else None
            )
        return Message("gradients", {}, record)

    def judged(self, question: Message) -> Message:
        """Add up how good the model is on this client's rows, for every part that the hub sends scores of."""
        record: dict[str, Tally] = {}
        for part, labels in self.labels.items():
            if f"{part.word} z" not in question.tensors:
                continue
            z, ranked = question.tensors[f"{part.word} z"], question.tensors[f"{part.word} ranks"]
            there = question.tensors[f"{part.word} there"].bool()
            if not len(z) == len(ranked) == int(there.sum()) or len(there) != len(labels):
                raise RefusedError(f"the hub sends scores of {len(z)} {part.word} rows of {len(labels)}")
            if len(z):
                record[part.word] = tally(self.settings.objective, z, labels[there], ranked)
        return Message("tallies", dict(record))
