"""Labels that stay in their silo (Remark 2): who answers for them, and what clients without labels descend.

The loss of a sample is a function of its scores z = Σ_j Φ_j, so all that a client without labels lacks is ∂ℓ/∂z. The
client that holds the label computes it and sends it back, by way of the hubs:

    exact   at each of the Q steps, at the asking client's current embedding and the stale sum of the others: the same
            numbers as with labels everywhere
    stale   once in a round, at the embeddings that were exchanged; the answer serves all Q steps, and each client's own
            chain rule carries it on to its weights (the way of FedBCD)

Clients of the silo with the labels compute as ever.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.core.ledger import Sharing
from tdcd.core.objective import Loss, Objective
from tdcd.core.seeds import derive


@dataclass(frozen=True)
class GradientPrivatizer:
    """What a client with labels does to its answers, which would tell the labels all too plainly."""

    clip: float
    """The largest norm of a row's answer; longer ones are shortened to it."""
    noise: float = 0.0
    """The deviation of the normal noise that is added to each number, in units of ``clip``."""

    def __call__(self, answers: Tensor, drawn: Tensor | None) -> Tensor:
        """Protect answers (…, E), with standard normal numbers of the same shape, if there is noise."""
        norms = answers.norm(dim=-1, keepdim=True)
        answers = answers * (self.clip / norms.clamp(min=torch.finfo(answers.dtype).tiny)).clamp(max=1.0)
        return answers if drawn is None else answers + self.noise * self.clip * drawn


def logit_gradients(
    objective: Objective,
    scores: Tensor,
    labels: Tensor,
    privatizer: GradientPrivatizer | None,
    drawn: Tensor | None = None,
) -> Tensor:
    """Return ∂ℓ/∂z at scores (…, E), as a client that has the labels sends it."""
    result = objective.gradient(scores, labels)
    return privatizer(result, drawn) if privatizer else result


@dataclass(frozen=True)
class PrivateLabels:
    """The labels of a federation in which one silo keeps them: all of its clients together."""

    silo: str
    sharing: Sharing
    labels: Tensor
    """y as the objective prepared it, shape (M,) or (M, E)."""
    objective: Objective
    privatizer: GradientPrivatizer | None = None
    seed: int = 0
    """Draws the noise of a simulation. At real sites nobody else may know it, so there it is not drawn from a seed."""

    def answers(self, samples: Tensor, scores: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Return ∂ℓ/∂z of samples (…) at scores (…, E), as the clients that hold them send it."""
        return logit_gradients(self.objective, scores, self.labels[samples], self.privatizer, drawn)

    @property
    def noisy(self) -> bool:
        """Whether noise is added to the answers."""
        return self.privatizer is not None and self.privatizer.noise > 0

    def drawn(self, number: int, silo: str, step: int, like: Tensor) -> Tensor | None:
        """Draw the noise of a round's answers to a silo at a step, for its whole mini-batch, if there is any.

        The first answers are the same for all silos, and so is their noise.
        """
        if not self.noisy:
            return None
        generator = torch.Generator().manual_seed(derive(self.seed, "noise", number, silo if step else "", step))
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


@dataclass(frozen=True)
class FixedGradient(Loss):
    """A loss of which only ∂ℓ/∂z is known, and taken to stay what it is: the answers of this round.

    In place of labels it takes the numbers of samples.
    """

    table: Tensor
    """For each sample its answer, shape (M, E); rows of a new mini-batch are written into it."""

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        return (scores * self.table[labels]).sum(-1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002, D102
        return self.table[labels]


@dataclass(frozen=True)
class RemoteGradient(Loss):
    """A loss of which only ∂ℓ/∂z can be asked for, at any scores. In place of labels it takes the numbers of samples.

    Its value is not known, only how it changes.
    """

    ask: Callable[[Tensor, Tensor], Tensor]
    """Samples (…) and scores (…, E) to ∂ℓ/∂z (…, E)."""

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        return (scores * self.ask(labels, scores.detach())).sum(-1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        return self.ask(labels, scores)
