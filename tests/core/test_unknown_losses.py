"""A loss that somebody else wrote is computed as it says, or refused: never as another one."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support import Problem, distance, problem
from tdcd.compute import choose
from tdcd.compute.kernel import Kernel
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Blocks
from tdcd.core.objectives import CrossEntropy, Loss, Objective, SquaredError
from tdcd.errors import ModelError
from tdcd.training.metrics import measure
from tdcd.training.tally import added, measured, ranks, tally, why_not_tally


class Smoothed(CrossEntropy):
    """Cross-entropy with smoothed labels: gives its losses, and nothing else."""

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        flat = F.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=0.3)
        return flat.view(labels.shape)


class Absolute(SquaredError):
    """The absolute error."""

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - labels).abs().mean(-1)


def with_loss(made: Problem, loss: Loss) -> Problem:
    return replace(made, tasks={silo: replace(task, objective=loss) for silo, task in made.tasks.items()})


def by_hand(made: Problem, loss: Loss, rounds: int) -> Blocks:
    """Train one silo by torch's own steps."""
    (task,) = made.tasks.values()
    block = task.network.initial()
    for number in range(1, rounds + 1):
        batch = made.round(number).batch
        models = []
        for client in range(len(task.roster.clients)):
            mine = batch[task.roster.owner[batch] == client]
            model = copy.deepcopy(task.network.module)
            model.load_state_dict(block)
            optimiser = torch.optim.SGD(model.parameters(), lr=made.rate)
            for _ in range(task.steps.count if len(mine) else 0):
                optimiser.zero_grad()
                loss.losses(model(task.features[mine]), task.labels[mine]).mean().backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            models.append(model.state_dict())
        block = {name: torch.stack([model[name] for model in models]).mean(0) for name in block}
    return {task.silo: block}


@pytest.mark.parametrize(("loss", "name"), [(Smoothed(), "ce"), (Absolute(), "se")])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("path", ["auto", "one-step", "layers", "stacked", "loop"])
def test_every_path_computes_the_loss_that_it_is_given(path: str, steps: int, loss: Loss, name: str) -> None:
    if path == "one-step" and steps > 1:
        pytest.skip("that path takes a single step")
    made = with_loss(problem(["mlp"], [4], loss=name, outputs=3, batch=20, steps=LocalSteps(steps)), loss)
    assert distance(made.run(made.engine(path), 3), by_hand(made, loss, 3)) < 1e-12


def test_kernels_and_the_oracle_refuse_what_they_do_not_know() -> None:
    made = with_loss(problem(["mlp"], [4]), Smoothed())
    task = made.tasks["silo-0"]
    assert choose(task)[0] != "kernel"
    with pytest.raises(ModelError, match="do not know the loss Smoothed"):
        Kernel(task)
    with pytest.raises(ModelError, match='compute = "kernel" is not available: kernels do not know the loss Smoothed'):
        choose(task, "kernel")
    with pytest.raises(ModelError, match="the oracle does not know the loss Smoothed"):
        made.run(made.engine("oracle"), 1)


class Distance(Objective):
    """The distance of the scores from the labels: of no kind that the package knows."""

    def width(self, labels: Tensor) -> int:
        return labels.shape[1]

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - labels).square().sum(-1).sqrt()

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores

    def predictions(self, scores: Tensor) -> Tensor:
        return scores


def test_an_unknown_loss_is_measured_by_itself() -> None:
    scores, labels = torch.randn(5, 2), torch.zeros(5, 2)
    expected = pytest.approx(float(scores.double().norm(dim=1).mean()))
    assert measure(Distance(), scores, labels) == {"loss": expected}
    parts = [tally(Distance(), scores[k::2], labels[k::2], ranks(Distance(), scores)[k::2]) for k in (0, 1)]
    assert measured(Distance(), added(Distance(), parts)) == {"loss": expected}
    assert not why_not_tally(Distance(), 2, parts[0], 3)
    assert why_not_tally(Distance(), 2, parts[0], 4) == "it is of 3 rows, not 4"


def test_a_gradient_without_its_losses_is_refused() -> None:
    with pytest.raises(TypeError, match="Half defines a gradient without losses"):

        class Half(CrossEntropy):
            def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
                return scores / 2


def test_derived_gradients_are_those_of_the_losses() -> None:
    scores, labels = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 3
    plain = CrossEntropy()

    class Again(CrossEntropy):
        def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
            return plain.losses(scores, labels)

    assert torch.allclose(Again().gradient(scores, labels), plain.gradient(scores, labels), atol=1e-14)
