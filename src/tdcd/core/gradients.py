"""Logit gradients ∂ℓ/∂z for silos without labels (Remark 2).

The loss of a sample is a function of its scores z = Σ_j Φ_j, so a client without labels needs only the logit gradient.
The client that holds the label computes it and sends it back, by way of the hubs: at each of the Q steps at the newest
embeddings (``exact``: the same numbers as with labels everywhere), or once in a round at the exchanged ones (``stale``,
in the manner of FedBCD). Clients of the silo with the labels train as usual.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.core.objectives.base import logit_gradient
from tdcd.core.script import Sharing
from tdcd.core.seeds import derive


@dataclass(frozen=True)
class GradientPrivatizer:
    """What a client with labels does to logit gradients, which would otherwise reveal the labels."""

    clip: float
    """The largest norm of a row's gradient; longer ones are shortened to it."""
    noise: float = 0.0
    """The deviation of the normal noise that is added to each number, in units of ``clip``."""

    def __call__(self, gradients: Tensor, noise: Tensor | None) -> Tensor:
        """Protect gradients (…, E), with standard normal numbers of the same shape if there is noise."""
        norms = gradients.norm(dim=-1, keepdim=True)
        gradients = gradients * (self.clip / norms.clamp(min=torch.finfo(gradients.dtype).tiny)).clamp(max=1.0)
        return gradients if noise is None else gradients + self.noise * self.clip * noise


def logit_gradients(
    objective: Objective,
    scores: Tensor,
    labels: Tensor,
    privatizer: GradientPrivatizer | None,
    noise: Tensor | None = None,
) -> Tensor:
    """Return ∂ℓ/∂z at scores (…, E), as a client that has the labels sends it."""
    gradients = logit_gradient(objective, scores, labels)
    return privatizer(gradients, noise) if privatizer else gradients


@dataclass(frozen=True)
class PrivateLabels:
    """The labels of a federation in which one silo holds them: all of its clients together."""

    silo: str
    sharing: Sharing
    labels: Tensor
    """y as the objective prepared it, shape (M,) or (M, E)."""
    objective: Objective
    privatizer: GradientPrivatizer | None = None
    seed: int = 0
    """Draws the noise of a simulation. At real sites nobody else may know it, so there it is not drawn from a seed."""

    def gradients(self, samples: Tensor, scores: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return ∂ℓ/∂z of samples (…) at scores (…, E), as the clients that hold them send it."""
        return logit_gradients(self.objective, scores, self.labels[samples], self.privatizer, noise)

    @property
    def noisy(self) -> bool:
        """Whether noise is added to the gradients."""
        return self.privatizer is not None and self.privatizer.noise > 0

    def noise(self, number: int, silo: str, step: int, like: Tensor) -> Tensor | None:
        """Draw the noise of a round's gradients for a silo at a step, for its whole mini-batch, if there is any.

        The first gradients are the same for all silos, and so is their noise.
        """
        if not self.noisy:
            return None
        generator = torch.Generator().manual_seed(derive(self.seed, "noise", number, silo if step else "", step))
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
