"""Constants of Theorem 1, against closed forms and exhaustive counts."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import tdcd
from tdcd.core.sampling import draw_batch
from tdcd.training.constants import estimate_constants, estimate_decrease

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
    estimate = estimate_constants(made, state, iterations=500, tolerance=1e-6)
    joined = np.concatenate([inputs("a"), inputs("b")], 1)
    assert estimate.smoothness == pytest.approx(curve * np.linalg.eigvalsh(joined.T @ joined / 90)[-1], rel=0.01)
    largest = max(
        np.linalg.norm(curve * inputs(silo, list(own)).T @ joined[list(own)] / len(own), 2)
        for silo, clients in OWNERS.items()
        for own in clients
    )
    assert estimate.client_smoothness == pytest.approx(largest, rel=0.01)
    assert (estimate.rows, estimate.clients) == (90, 5)


@pytest.mark.parametrize("loss", ["squared-error", "binary-cross-entropy"])
def test_defaults_are_within_five_percent_of_closed_forms(loss: str) -> None:
    """At the first weights, where logistic rows are unequally curved; with mini-batches, L_max is that of the worst."""
    made = simulation(loss, batch=40)
    state = made.init()
    estimate = estimate_constants(made, state)
    joined = np.concatenate([inputs("a"), inputs("b")], 1)
    weights = np.concatenate([w.reshape(-1).numpy() for silo in X for w in state.weights[silo].values()])
    p = 1 / (1 + np.exp(-joined @ weights))
    curve = np.full(90, 2.0) if loss == "squared-error" else p * (1 - p)
    smoothness = np.linalg.eigvalsh(joined.T @ (curve[:, None] * joined) / 90)[-1]
    assert estimate.smoothness == pytest.approx(smoothness, rel=0.05)
    largest = 0.0
    for number in range(1, 6):
        batch = draw_batch(0, number, 90, 40).numpy()
        for silo, clients in OWNERS.items():
            for client in clients:
                own = batch[np.isin(batch, list(client))]
                cross = inputs(silo, own).T @ (curve[own, None] * joined[own]) / len(own)
                largest = max(largest, float(np.linalg.norm(cross, 2)))
    assert estimate.client_smoothness == pytest.approx(largest, rel=0.05)
    assert estimate.client_smoothness > estimate_constants(simulation(loss), state).client_smoothness


@pytest.mark.parametrize("averaging", ["uniform", "samples"])
def test_variances_are_within_ten_percent_of_an_exhaustive_count(averaging: str) -> None:
    """Over all mini-batches of four of ten rows, and all clients; one without rows keeps its weights."""
    draw = np.random.default_rng(2)
    rows = {"a": draw.normal(size=(10, 3)), "b": draw.normal(size=(10, 2))}
    owners: dict[str, Any] = {"a": [range(6), range(6, 10)], "b": [range(3), range(3, 5), range(5, 10)]}
    labels = draw.normal(size=10)
    silos = [tdcd.Silo(j, x, owners[j]) for j, x in rows.items()]
    settings = tdcd.Settings.model_validate(
        {"loss": "squared-error", "rounds": 1, "rate": 0.1, "batch_size": 4, "precision": "float64"}
        | {"averaging": averaging}
    )
    made = tdcd.Simulation(tdcd.Federation.from_silos(silos, labels), tdcd.models.Linear(), settings)
    state = made.init()
    own = {j: np.concatenate([x, np.ones((10, 1))], 1) for j, x in rows.items()}
    weights = {j: np.concatenate([w.reshape(-1).numpy() for w in state.weights[j].values()]) for j in rows}
    residual = sum(own[j] @ weights[j] for j in rows) - labels
    expected = dict.fromkeys(rows, 0.0)
    batches = [np.array(batch) for batch in itertools.combinations(range(10), 4)]
    for j in rows:
        each = 2 * own[j] * residual[:, None]
        for batch in batches:
            for client in owners[j]:
                here = batch[np.isin(batch, list(client))]
                gradient = each[here].mean(0) if len(here) else np.zeros(each.shape[1])
                weight = 1 / len(owners[j]) if averaging == "uniform" else len(here) / 4
                expected[j] += weight * np.square(gradient - each.mean(0)).sum() / len(batches)
    estimate = estimate_constants(made, state, batches=500, clients=2, iterations=1)
    assert estimate.variances == pytest.approx(expected, rel=0.1)
    assert estimate.batches == 500


def test_full_batches_leave_the_differences_between_clients() -> None:
    made = simulation("squared-error", labels=(labels := RNG.normal(size=90)))
    state = made.init()
    estimate = estimate_constants(made, state, iterations=1)
    joined = np.concatenate([inputs("a"), inputs("b")], 1)
    weights = np.concatenate([w.reshape(-1).numpy() for silo in X for w in state.weights[silo].values()])
    each = 2 * joined * (joined @ weights - labels)[:, None]
    for silo, part in {"a": each[:, :4], "b": each[:, 4:]}.items():
        means = [part[list(own)].mean(0) for own in OWNERS[silo]]
        assert estimate.variances[silo] == pytest.approx(
            np.mean([np.square(mean - part.mean(0)).sum() for mean in means])
        )
    assert estimate.batches == 1
    alone = tdcd.Federation.from_silos([tdcd.Silo(j, x, [range(90)]) for j, x in X.items()], labels)
    settings = tdcd.Settings(loss="squared-error", rounds=1, rate=0.1, precision="float64")
    single = tdcd.Simulation(alone, tdcd.models.Linear(), settings)
    assert max(estimate_constants(single, iterations=1).variances.values()) < 1e-20


@pytest.mark.parametrize("loss", ["squared-error", "binary-cross-entropy"])
def test_the_decrease_is_that_of_the_minimum(loss: str) -> None:
    """The least squares are solved, the logistic model by Newton's method."""
    joined = np.concatenate([inputs("a"), inputs("b")], 1)
    made = simulation(loss)
    estimate = estimate_decrease(made)
    weights = np.zeros(joined.shape[1])
    if loss == "squared-error":
        weights = np.linalg.lstsq(joined, Y, rcond=None)[0]
        lowest = float(np.square(joined @ weights - Y).mean())
    else:
        for _ in range(30):
            p = 1 / (1 + np.exp(-joined @ weights))
            step, *_ = np.linalg.lstsq(joined.T @ ((p * (1 - p))[:, None] * joined), joined.T @ (p - Y), rcond=None)
            weights = weights - step
        z = joined @ weights
        lowest = float((np.logaddexp(0, z) - Y * z).mean())
    assert estimate.lowest == pytest.approx(lowest, rel=1e-3)
    assert estimate.loss == pytest.approx(made.evaluate(made.init()).train["loss"])
    assert estimate.value == estimate.loss - estimate.lowest
    assert 2 <= estimate.evaluations <= 200


def test_the_cost_is_bounded_and_reported() -> None:
    made = simulation("binary-cross-entropy", batch=30)
    bounds: dict[str, Any] = {"rows": 45, "clients": 1, "batches": 4}
    estimate = estimate_constants(made, **bounds, iterations=1)
    assert (estimate.rows, estimate.batches) == (45, 4)
    assert 2 <= estimate.clients <= 5
    curvature = 2 + 4 * 2 * 3  # a gradient and a product for L, one more product for each silo and batch for L_max
    assert estimate.evaluations == curvature + 1 + 4 * 2
    assert 1 + 1 < estimate.passes < 1 + 1 + 4 * 2 * 4 * 30 / 90
    assert estimate.seconds > 0
    longest = estimate_constants(made, **bounds, iterations=30, tolerance=0.0)
    assert estimate.evaluations < longest.evaluations <= (1 + 30) + 4 * 2 * (1 + 2 * 30) + 1 + 4 * 2
    assert estimate_constants(made, **bounds, iterations=1) == estimate


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation("binary-cross-entropy", batch=30, models=tdcd.models.MLP(hidden=[3], activation="tanh"))
    whole = estimate_constants(made, batches=1, clients=1, iterations=2)
    monkeypatch.setattr("tdcd.training.landscape.MEMORY", 1)
    pieces = estimate_constants(made, batches=1, clients=1, iterations=2)
    assert (pieces.smoothness, pieces.client_smoothness) == pytest.approx((whole.smoothness, whole.client_smoothness))
    assert pieces.variances == pytest.approx(whole.variances)


@pytest.mark.parametrize("model", [tdcd.models.LSTM(hidden=3), tdcd.models.CNN(channels=[2])])
def test_networks_of_all_kinds_have_curvature(model: Any) -> None:
    shape = (20, 4, 3) if isinstance(model, tdcd.models.LSTM) else (20, 1, 4, 4)
    silos = [tdcd.Silo(j, RNG.normal(size=shape), [range(10), range(10, 20)]) for j in "ab"]
    federation = tdcd.Federation.from_silos(silos, np.arange(20) % 2)
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=1, rate=0.1)
    estimate = estimate_constants(tdcd.Simulation(federation, model, settings), batches=1)
    assert estimate.smoothness > 0
    assert estimate.client_smoothness > 0


def test_any_network_and_loss() -> None:
    """Against the Hessian, written out."""
    made = simulation("cross-entropy", labels=np.arange(90) % 3, models=tdcd.models.MLP(hidden=[2], activation="tanh"))
    state = made.init()
    estimate = estimate_constants(made, state, iterations=2000, tolerance=1e-9)
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
    assert estimate.smoothness == pytest.approx(float(torch.linalg.eigvalsh(hessian).abs().max()), rel=0.01)


def test_private_labels_change_nothing() -> None:
    expected = estimate_constants(simulation("binary-cross-entropy"), batches=3)
    private = simulation("binary-cross-entropy", labels_=tdcd.Labels(silo="b", sharing="exact"))
    assert estimate_constants(private, batches=3) == expected


def test_what_cannot_be_estimated() -> None:
    with pytest.raises(tdcd.JobError, match="batches: at least 1 is wanted, not 0"):
        estimate_constants(simulation("squared-error"), batches=0)
    with pytest.raises(tdcd.JobError, match="iterations: at least 1 is wanted, not -1"):
        estimate_decrease(simulation("squared-error"), iterations=-1)
