"""Silo dropout: a model learns to do without a silo, since in training some of its embeddings are missing."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tdcd.core.script import keep_all
from tdcd.core.seeds import derive


@dataclass(frozen=True)
class SiloDropout:
    """Leaves a silo's embedding of a sample out of the sums of all other silos, in some rounds.

    Hub k receives Φ_j and forms Φ_{-k} = Σ_{j≠k} m_j Φ_j. For each round, silo and sample, m_j is 0 with this
    probability and else 1, the same at every hub. A silo's own embedding always counts in its own steps, so that all
    silos descend the same expected loss: that of Σ_j m_j Φ_j.
    """

    probability: float = 0.0
    seed: int = 0

    def present(self, number: int, samples: Tensor, silo: str) -> Tensor:
        """Tell which samples (B,) a silo's embedding counts for in a round.

        A pure function of seed, round, silo and sample: numbers of the SplitMix64 generator at the samples' places, so
        that lost samples change nothing for the others.
        """
        start = np.uint64(derive(self.seed, "silo dropout", number, silo))
        places = samples.cpu().numpy().astype(np.uint64) + np.uint64(1)
        fractions = (_mix(start + places * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)) * 2.0**-53
        return torch.from_numpy(fractions >= self.probability)

    def in_round(self, number: int, samples: Tensor) -> Callable[[str, Tensor], Tensor]:
        """Return what hubs of a round make of a silo's embeddings (B, E): zeros where the silo is left out."""
        if not self.probability:
            return keep_all
        present = cache(partial(self.present, number, samples))
        return lambda silo, rows: rows.masked_fill(~present(silo).to(rows.device).unsqueeze(1), 0)


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the output function of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
