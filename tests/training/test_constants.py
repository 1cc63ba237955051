"""Constants of Theorem 1, against closed forms and exhaustive counts."""

from typing import Any

import numpy as np
import pytest
import torch

import tdcd
from tdcd.training.constants import estimate_constants

RNG = np.random.default_rng(11)
X = {"a": RNG.normal(size=(90, 3)) * [1, 2, 3], "b": RNG.normal(size=(90, 2))}
Y = RNG.integers(0, 2, 90)
OWNERS = {"a": [range(60), range(60, 90)], "b": [range(30), range(30, 50), range(50, 90)]}


def simulation(loss: str, labels: Any = Y, batch: int = 90, models: Any = None, **more: Any) -> tdcd.Simulation:
    silos = [tdcd.Silo(j, x, OWNERS[j]) for j, x in X.items()]
    settings = tdcd.Settings(loss=loss, rounds=3, rate=0.1, batch_size=batch, precision="float64")
    more = {"labels": more.pop("labels_", None)} | more
    return tdcd.Simulation(tdcd.Federation.from_silos(silos, labels), models or tdcd.models.Linear(), settings, **more)


def inputs(silo: str, rows: Any = slice(None)) -> np.ndarray:
    """A linear layer's inputs, the one of its bias among them."""
    return np.concatenate([X[silo][rows], np.ones((len(X[silo][rows]), 1))], 1)


@pytest.mark.parametrize(("loss", "curve"), [("squared-error", 2.0), ("binary-cross-entropy", 0.25)])
def test_closed_forms_of_linear_and_logistic_models(loss: str, curve: float) -> None:
    """The logistic loss at weights of 0, where the probability is a half in each row."""
    made = simulation(loss)
    state = made.init()
    for block in state.weights.values():
        for tensor in block.values():
            tensor.zero_()
    found = estimate_constants(made, state, iterations=500, tolerance=1e-6)
    joined = np.concatenate([inputs("a"), inputs("b")], 1)
    assert found.smoothness == pytest.approx(curve * np.linalg.eigvalsh(joined.T @ joined / 90)[-1], rel=0.01)
    largest = max(
        np.linalg.norm(curve * inputs(silo, list(own)).T @ joined[list(own)] / len(own), 2)
        for silo, clients in OWNERS.items()
        for own in clients
    )
    assert found.client_smoothness == pytest.approx(largest, rel=0.01)
    assert (found.rows, found.clients) == (90, 5)


def test_variances_are_those_of_all_mini_batches_of_one_row() -> None:
    made = simulation("squared-error", labels=RNG.normal(size=90), batch=1)
    state = made.init()
    found = estimate_constants(made, state, batches=6000, clients=1, iterations=1)
    joined = np.concatenate([inputs("a"), inputs("b")], 1)
    weights = np.concatenate([w.reshape(-1).numpy() for silo in X for w in state.weights[silo].values()])
    labels = next(iter(made.training.tasks.values())).labels.numpy().reshape(-1)
    each = 2 * joined * (joined @ weights - labels)[:, None]
    spread = np.square(each - each.mean(0))
    expected = {"a": spread[:, :4].sum(1).mean(), "b": spread[:, 4:].sum(1).mean()}
    for silo, variance in expected.items():
        assert found.variances[silo] == pytest.approx(variance, rel=0.1)
    whole = estimate_constants(simulation("squared-error", labels=labels), batches=2, clients=1, iterations=1)
    assert max(whole.variances.values()) < 1e-20


def test_any_network_and_loss() -> None:
    """Against the Hessian, written out."""
    made = simulation("cross-entropy", labels=np.arange(90) % 3, models=tdcd.models.MLP(hidden=[2], activation="tanh"))
    state = made.init()
    found = estimate_constants(made, state, iterations=2000, tolerance=1e-9)
    names = [(silo, name) for silo in X for name in state.weights[silo]]
    sizes = [state.weights[silo][name].numel() for silo, name in names]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = dict(zip(names, torch.split(flat, sizes), strict=True))
        scores = torch.zeros(90, 3, dtype=torch.float64)
        for silo, task in made.training.tasks.items():
            block = {n: parts[silo, n].view(w.shape) for n, w in state.weights[silo].items()}
            scores = scores + task.network(block, task.features, training=False)
        return torch.nn.functional.cross_entropy(scores, torch.arange(90) % 3)

    flat = torch.cat([state.weights[silo][name].reshape(-1) for silo, name in names])
    hessian = torch.autograd.functional.hessian(loss, flat)  # type: ignore[no-untyped-call]
    assert found.smoothness == pytest.approx(float(torch.linalg.eigvalsh(hessian).abs().max()), rel=0.01)


def test_private_labels_change_nothing() -> None:
    expected = estimate_constants(simulation("binary-cross-entropy"), batches=3)
    private = simulation("binary-cross-entropy", labels_=tdcd.Labels(silo="b", sharing="exact"))
    assert estimate_constants(private, batches=3) == expected


def test_what_cannot_be_estimated() -> None:
    with pytest.raises(tdcd.JobError, match="batches: at least 1 is wanted, not 0"):
        estimate_constants(simulation("squared-error"), batches=0)
