"""The mini-batch ζ of a round (line 9 of Algorithm 1)."""

import numpy as np
import torch
from torch import Tensor

from tdcd.core.seeds import derive


def draw_batch(seed: int, number: int, population: int, size: int) -> Tensor:
    """Draw round ``number``'s mini-batch: ``size`` of the samples 0 … ``population`` − 1, without replacement.

    A pure function of its arguments, so every hub computes it by itself and only the seed is ever shared.
    Returns the sample numbers in ascending order, shape (size,).
    """
    generator = np.random.Generator(np.random.Philox(key=derive(seed, "batch", number)))
    return torch.from_numpy(np.sort(generator.choice(population, size, replace=False, shuffle=False)))
