"""Noting what a silo without labels receives in their place."""

import torch
from torch import Tensor

from tdcd.training.callbacks.base import Callback


class GradientRecorder(Callback):
    """Notes the logit gradients that one silo receives: what the audit of labels judges."""

    def __init__(self, silo: str, samples: int) -> None:
        """Prepare it for a silo without labels, and so many training samples (M)."""
        self.silo = silo
        self.first = torch.zeros(samples, 0, dtype=torch.float64)
        """The first gradient of each sample, (M, E)."""
        self.total = self.first
        """The sum of all of them, (M, E)."""
        self.norms = torch.zeros(samples, dtype=torch.float64)
        """The sum of their norms, (M,)."""
        self.count = torch.zeros(samples, dtype=torch.int64)
        """How many there were, (M,)."""

    def received(self, silo: str, samples: Tensor, gradients: Tensor) -> None:
        """See Callback."""
        if silo != self.silo:
            return
        gradients = gradients.double().cpu()
        if not self.first.shape[1]:
            self.first, self.total = torch.zeros(2, len(self.count), gradients.shape[1], dtype=torch.float64)
        new = self.count[samples] == 0
        self.first[samples[new]] = gradients[new]
        self.total[samples] += gradients
        self.norms[samples] += gradients.norm(dim=1)
        self.count[samples] += 1
