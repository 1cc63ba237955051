import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import nn

import tdcd
from tdcd.core.objectives import OBJECTIVES, BinaryCrossEntropy, CrossEntropy, SquaredError
from tdcd.training.metrics import measure


def test_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(200, 7, generator=generator), torch.randint(7, (200,), generator=generator)
    result = measure(CrossEntropy(), scores, labels)
    assert set(result) == {"loss", "null_loss", "accuracy", "f1", "top5", "auroc", "auprc"}
    predicted = scores.argmax(1).numpy()
    assert result["accuracy"] == pytest.approx(np.mean(predicted == labels.numpy()))
    assert result["top5"] == pytest.approx(metrics.top_k_accuracy_score(labels, scores, k=5))
    probabilities = scores.double().softmax(1)
    assert result["auroc"] == pytest.approx(metrics.roc_auc_score(labels, probabilities, multi_class="ovr"))
    assert result["loss"] == pytest.approx(float(nn.functional.cross_entropy(scores.double(), labels)))
    few = measure(CrossEntropy(), scores[:, :3], labels % 2)
    assert set(few) == {"loss", "null_loss", "accuracy", "f1"}


def test_binary() -> None:
    scores = torch.tensor([[2.0], [-1.0], [0.5], [-3.0], [1.0]])
    labels = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0])
    result = measure(BinaryCrossEntropy(), scores, labels)
    assert result["accuracy"] == pytest.approx(3 / 5)
    assert result["f1"] == pytest.approx(2 / 3)
    assert result["auroc"] == pytest.approx(5 / 6)
    assert set(measure(BinaryCrossEntropy(), scores, torch.ones(5))) == {"loss", "null_loss", "accuracy", "f1"}


def test_regression() -> None:
    scores, labels = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.0], [3.0], [2.0]])
    result = measure(SquaredError(), scores, labels)
    assert result["mse"] == result["loss"] == pytest.approx(5 / 3)
    assert result["r2"] == pytest.approx(1 - 5 / 2)
    assert set(measure(SquaredError(), scores[:1], labels[:1])) == {"loss", "mse"}


def test_every_loss_has_a_primary_metric() -> None:
    assert all(made.primary in made.metrics for made in OBJECTIVES.values())


def test_linear_regression_finds_the_weights() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    y = x @ [1.0, -2.0, 0.5, 3.0, 0.0] + 0.7
    held = [np.array_split(rng.permutation(300), k) for k in (4, 3)]
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", x[:, :2], held[0]), tdcd.Silo("b", x[:, 2:], held[1])], y)
    settings = tdcd.Settings(loss="squared-error", rounds=200, local_steps=2, rate=0.05, precision="float64")
    result = tdcd.train(federation, tdcd.models.Linear(), settings)
    assert result.history[-1].train["r2"] > 0.999999
    assert result.blocks["a"]["1.weight"].numpy() == pytest.approx(np.array([[1.0, -2.0]]), abs=1e-3)
    assert result.blocks["b"]["1.weight"].numpy() == pytest.approx(np.array([[0.5, 3.0, 0.0]]), abs=1e-3)
    assert result.predict({"a": x[:, :2], "b": x[:, 2:]}).numpy()[:, 0] == pytest.approx(y, abs=1e-2)
