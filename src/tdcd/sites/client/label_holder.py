"""A client whose labels never leave it: it computes logit gradients, and adds up how good the model is on its rows."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tdcd.core.gradients import logit_gradients
from tdcd.data.holdout import Part
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.packing import check_numbers, fits
from tdcd.sites.messages.types import Judge, Tallies
from tdcd.training.labels import Labels
from tdcd.training.settings import Settings
from tdcd.training.tally import tally


def secret_noise(like: Tensor) -> Tensor:
    """Draw standard normal numbers from the system's source of secrets: a seed would let others subtract the noise."""
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

    def gradients(self, rows: Tensor, scores: Sequence[Tensor]) -> list[Tensor]:
        """Return ∂ℓ/∂z of training rows (n,) at several scores (n, E)."""
        objective, labels = self.settings.objective, self.labels[Part.TRAIN][rows]
        result = []
        for z in scores:
            check_numbers(z, (len(rows), self.width), self.settings.dtype, "scores")
            noise = secret_noise(z) if self.job.noise else None
            result.append(logit_gradients(objective, z, labels, self.job.privatizer, noise))
        return result

    def judge(self, request: Judge) -> Tallies:
        """Add up how good the model is on this client's rows, for every part that the hub sends scores of."""
        words = {part.word: part for part in self.labels}
        if not len(request.parts) == len(request.scores) == len(request.ranks) == len(request.present):
            raise RefusedError("the hub sends scores of some parts and ranks of others")
        record: dict[str, dict[str, list[float]]] = {}
        for word, z, ranked, present in zip(request.parts, request.scores, request.ranks, request.present, strict=True):
            if word not in words:
                raise RefusedError(f"the hub sends scores of {word[:20]} rows, of which there are none here")
            labels = self.labels[words[word]]
            there = fits(present, (len(labels),), torch.uint8, f"{word} rows").bool()
            shape = (int(there.sum()), self.width)
            check_numbers(z, shape, self.settings.dtype, f"{word} scores")
            check_numbers(ranked, shape, torch.float64, f"{word} ranks")
            if len(z):
                record[word] = dict(tally(self.settings.objective, z, labels[there], ranked))
        return Tallies(record)
