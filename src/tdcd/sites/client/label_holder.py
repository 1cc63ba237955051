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
from tdcd.training.rank_bins import MOST_BINS, why_not_count
from tdcd.training.settings import Settings
from tdcd.training.tally import bins_of, tally


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
        each = (request.scores, request.ranks, request.present, request.edges)
        if any(len(tensors) != len(request.parts) for tensors in each):
            raise RefusedError("the hub sends scores of some parts and ranks of others")
        record: dict[str, dict[str, list[float]]] = {}
        for word, z, ranked, present, edges in zip(request.parts, *each, strict=True):
            if word not in words:
                raise RefusedError(f"the hub sends scores of {word[:20]} rows, of which there are none here")
            labels = self.labels[words[word]]
            there = fits(present, (len(labels),), torch.uint8, f"{word} rows").bool()
            shape = (int(there.sum()), self.width)
            check_numbers(z, shape, self.settings.dtype, f"{word} scores")
            check_numbers(ranked, shape, torch.float64, f"{word} ranks")
            if len(z):
                self._check_edges(edges, ranked, word)
                record[word] = dict(tally(self.settings.objective, z, labels[there], ranked, edges))
        return Tallies(record)

    def _check_edges(self, edges: Tensor, ranked: Tensor, word: str) -> None:
        """Refuse to count in bins that are not bins, or that have too few of this client's rows."""
        if edges.dtype != torch.float64 or edges.ndim != 2 or len(edges) != self.width:
            raise RefusedError(f"the hub sends {word} bins that do not fit the scores")
        if edges.shape[1] >= MOST_BINS or edges.isnan().any() or (edges[:, 1:] < edges[:, :-1]).any():
            raise RefusedError(f"the hub sends {word} bins that are not in ascending order, or too many")
        if bins_of(self.settings.objective, edges) and (why := why_not_count(ranked, edges)):
            raise RefusedError(f"the hub asks for {word} {why}")
