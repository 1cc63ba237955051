"""Noting what a silo without labels receives in their place."""

import numpy as np
import torch
from torch import Tensor

from tdcd.data.arrays import describe_value
from tdcd.errors import JobError, nearest
from tdcd.training.callbacks.base import Callback, Start


class GradientRecorder(Callback):
    """Notes the logit gradients that one silo receives: what the audit of labels judges."""

    def __init__(self, silo: str, samples: int) -> None:
        """Prepare it for a silo without labels, and so many training samples (M).

        Raises:
            JobError: there cannot be so many. When training: the silo is unknown, or there are other samples.
        """
        if not isinstance(samples, int | np.integer) or samples < 1:
            raise JobError(
                f"GradientRecorder: samples: the number of training samples is wanted, len(federation), not "
                f"{describe_value(samples)}"
            )
        self.silo = silo
        self.first = torch.zeros(samples, 0, dtype=torch.float64)
        """The first gradient of each sample, (M, E)."""
        self.total = self.first
        """The sum of all of them, (M, E)."""
        self.norms = torch.zeros(samples, dtype=torch.float64)
        """The sum of their norms, (M,)."""
        self.count = torch.zeros(samples, dtype=torch.int64)
        """How many there were, (M,)."""

    def started(self, start: Start) -> None:
        """See Callback."""
        if self.silo not in start.compute_plan:
            raise JobError(f"GradientRecorder: '{self.silo}' is no silo{nearest(str(self.silo), start.compute_plan)}")

    def received(self, silo: str, samples: Tensor, gradients: Tensor) -> None:
        """See Callback."""
        if silo != self.silo:
            return
        if int(samples.max()) >= len(self.count):
            raise JobError(
                f"GradientRecorder: silo '{silo}' received the gradient of sample {int(samples.max())}, and there is "
                f"room for {len(self.count)} samples; make it with len(federation)"
            )
        gradients = gradients.double().cpu()
        if not self.first.shape[1]:
            self.first, self.total = torch.zeros(2, len(self.count), gradients.shape[1], dtype=torch.float64)
        new = self.count[samples] == 0
        self.first[samples[new]] = gradients[new]
        self.total[samples] += gradients
        self.norms[samples] += gradients.norm(dim=1)
        self.count[samples] += 1
