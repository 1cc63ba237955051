import pytest
import torch
import torch.nn.functional as F

from tdcd.core.objectives import BinaryCrossEntropy, CrossEntropy, SquaredError
from tdcd.errors import DataError, ModelError

SCORES = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_cross_entropy_is_torchs_for_any_leading_shape() -> None:
    labels = torch.randint(3, (4, 6))
    result = CrossEntropy().losses(SCORES, labels)
    assert result.shape == (4, 6)
    for group in range(4):
        expected = F.cross_entropy(SCORES[group], labels[group], reduction="none")
        assert torch.allclose(result[group], expected)


@pytest.mark.parametrize("weight", [1.0, 3.5])
def test_binary_cross_entropy_is_torchs(weight: float) -> None:
    labels = torch.randint(2, (4, 6)).double()
    result = BinaryCrossEntropy(weight).losses(SCORES[..., :1], labels)
    probability = SCORES[..., 0].sigmoid()
    expected = -weight * labels * probability.log() - (1 - labels) * (1 - probability).log()
    assert torch.allclose(result, expected)


def test_squared_error_averages_over_targets() -> None:
    labels = torch.randn(4, 6, 3, dtype=torch.float64)
    assert torch.allclose(SquaredError().losses(SCORES, labels).mean(), F.mse_loss(SCORES, labels))


def test_predictions_and_probabilities() -> None:
    scores = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.5, 3.0]])
    assert CrossEntropy().predictions(scores).tolist() == [0, 2]
    assert torch.allclose(CrossEntropy().probabilities(scores).sum(1), torch.ones(2))
    assert BinaryCrossEntropy().predictions(torch.tensor([[-0.1], [0.1]])).tolist() == [0, 1]
    assert BinaryCrossEntropy().probabilities(torch.tensor([[0.0]])).tolist() == [0.5]
    assert torch.equal(SquaredError().predictions(scores), scores)
    with pytest.raises(ModelError, match="no probabilities"):
        SquaredError().probabilities(scores)


def test_labels_are_prepared() -> None:
    floats = torch.tensor([0.0, 1.0, 1.0])
    assert CrossEntropy().prepare(floats, 2, torch.float32).dtype == torch.int64
    assert BinaryCrossEntropy().prepare(torch.tensor([[0], [1]]), 1, torch.float64).tolist() == [0.0, 1.0]
    assert SquaredError().prepare(floats, 1, torch.float32).shape == (3, 1)
    assert CrossEntropy().width(torch.tensor([0, 4])) == 5
    assert CrossEntropy().width(torch.tensor([0, 0])) == 2
    with pytest.raises(DataError, match="the largest is 10000000000000, yet there are only 2 classes"):
        CrossEntropy().width(torch.tensor([0, 10**13]))
    assert SquaredError().width(torch.zeros(3, 2)) == 2


@pytest.mark.parametrize(
    ("objective", "labels", "width", "error", "says"),
    [
        (CrossEntropy(), [0, 3, 7, 3], 3, DataError, "labels out of range: 3, 7; .*0 to 2"),
        (CrossEntropy(), [-1, 0], 3, DataError, "labels out of range: -1"),
        (CrossEntropy(), [0.0, 0.5], 3, DataError, "labels out of range: 0.5; .*whole"),
        (CrossEntropy(), [0, 1], 1, ModelError, "one output a class"),
        (CrossEntropy(), [[0, 1]], 3, DataError, "one label a sample"),
        (BinaryCrossEntropy(), [0, 2, 1, -1], 1, DataError, "labels out of range: -1, 2; .*0 and 1"),
        (BinaryCrossEntropy(), [0, 1], 2, ModelError, "one output; the models end in 2"),
        (SquaredError(), [[0.0, 1.0]], 3, ModelError, "as many outputs as targets"),
    ],
)
def test_labels_that_do_not_fit(objective, labels, width, error, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=says):
        objective.prepare(torch.tensor(labels), width, torch.float32)


@pytest.mark.parametrize(
    ("objective", "labels"),
    [
        (CrossEntropy(), torch.randint(3, (4, 6))),
        (BinaryCrossEntropy(), torch.randint(2, (4, 6)).double()),
        (BinaryCrossEntropy(3.5), torch.randint(2, (4, 6)).double()),
        (SquaredError(), torch.randn(4, 6, 3, dtype=torch.float64)),
    ],
)
def test_the_gradient_is_autograds(objective, labels) -> None:  # type: ignore[no-untyped-def]
    scores = (SCORES[..., :1] if isinstance(objective, BinaryCrossEntropy) else SCORES).clone().requires_grad_()
    (expected,) = torch.autograd.grad(objective.losses(scores, labels).sum(), scores)
    before = scores.detach().clone()
    assert torch.allclose(objective.gradient(scores.detach(), labels), expected, atol=1e-14)
    assert torch.equal(scores, before)
