"""Both sides of Theorem 1 for a training: measured gradients beside the bound, and which assumptions hold."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch import nn

import tdcd
from tdcd.theory import bound, largest_rate

RNG = np.random.default_rng(5)
X = {"a": RNG.normal(size=(60, 3)), "b": RNG.normal(size=(60, 2))}
Y = RNG.normal(size=60)
EVEN: dict[str, Any] = {"a": [range(30), range(30, 60)], "b": [range(20), range(20, 40), range(40, 60)]}
JOINED = np.concatenate([part for x in X.values() for part in (x, np.ones((60, 1)))], 1)


def simulation(
    clients: Any = EVEN, models: Any = None, labels: Any = None, silos: Any = None, y: Any = Y, **settings: Any
) -> tdcd.Simulation:
    chosen = {"loss": "squared-error", "rounds": 12, "rate": 0.004, "local_steps": 3, "precision": "float64"} | settings
    federation = tdcd.Federation.from_silos([tdcd.Silo(j, x, clients[j]) for j, x in X.items()], y)
    model = models or tdcd.models.Linear()
    return tdcd.Simulation(federation, model, tdcd.Settings.model_validate(chosen), labels=labels, silos=silos)


def exact(made: tdcd.Simulation) -> Iterator[tuple[float, float]]:
    """Yield the loss and the squared gradient norm of least squares at the beginning of each round, and at the end."""
    state = made.init()
    while True:
        weights = np.concatenate([w.reshape(-1).numpy() for silo in X for w in state.weights[silo].values()])
        residual = JOINED @ weights - Y
        yield float(np.square(residual).mean()), float(np.square(2 * JOINED.T @ residual / 60).sum())
        if state.done == made.settings.rounds:
            return
        state = made.round(state)


def test_every_round_measured_is_the_left_hand_side() -> None:
    made = simulation(batch_size=20)
    losses, norms = zip(*exact(made), strict=True)
    record = tdcd.measure_theory(made, evaluations=13, batches=3)
    assert [point.round for point in record.points] == list(range(13))
    assert [point.loss for point in record.points] == pytest.approx(losses)
    assert [point.squared_norm for point in record.points] == pytest.approx(norms)
    assert record.points[0].mean is None
    assert [point.mean for point in record.points[1:]] == pytest.approx([np.mean(norms[:r]) for r in range(1, 13)])
    assert record.measured == pytest.approx(np.mean(norms[:12]))
    assert record.decrease == pytest.approx(losses[0] - losses[-1])
    assert record.notes == ()


def test_the_bound_is_that_of_the_largest_constants() -> None:
    """A logistic model is the most curved where it knows least: at the beginning."""
    made = simulation(batch_size=20, loss="binary-cross-entropy", y=(Y > 0).astype(int), rate=0.2)
    record = tdcd.measure_theory(made, evaluations=5, batches=3)
    assert [point.round for point in record.points] == [0, 3, 6, 9, 12]
    assert record.constants_at == (0, 6, 12)
    state, estimates = made.init(), []
    for place in record.constants_at:
        while state.done < place:
            state = made.round(state)
        estimates.append(tdcd.estimate_constants(made, state, batches=3))
    variances = {silo: max(one.variances[silo] for one in estimates) for silo in X}
    assert record.variances == variances
    assert record.smoothness == max(one.smoothness for one in estimates) > estimates[-1].smoothness
    smooth = record.smoothness, record.client_smoothness
    terms = bound(0.2, 3, 12, *smooth, [*variances.values()], record.decrease)
    assert record.terms == pytest.approx(terms.terms())
    assert record.bound == pytest.approx(terms.total)
    assert record.shares() == pytest.approx(terms.shares())
    double = bound(0.4, 3, 12, *smooth, [*variances.values()], record.decrease)
    assert record.shares(0.4) == pytest.approx(double.shares())
    after_six = bound(0.2, 3, 6, *smooth, [*variances.values()], record.points[0].loss - record.points[2].loss)
    assert record.points[2].bound == pytest.approx(after_six.total)
    assert record.largest_rate == largest_rate(3, *smooth)
    assert record.balanced_rate is not None
    assert record.balanced_rate <= record.largest_rate
    assert record.evaluations >= 5 + sum(one.evaluations for one in estimates)
    assert "interpolated" in record.notes[0]


def test_the_first_rounds_alone() -> None:
    short, whole = (tdcd.measure_theory(simulation(), rounds=r, evaluations=13, batches=1) for r in (4, 12))
    assert (short.rounds, short.planned) == (4, 12)
    assert [p.squared_norm for p in short.points] == [p.squared_norm for p in whole.points[:5]]
    assert short.measured == whole.points[4].mean


@pytest.mark.parametrize("factor", [0.5, 1.0, 20.0])
def test_the_rate_condition(factor: float) -> None:
    known = tdcd.estimate_constants(simulation(), iterations=500, tolerance=1e-9)
    rate = factor * largest_rate(3, known.smoothness, known.client_smoothness) * (1 - 1e-3)
    record = tdcd.measure_theory(simulation(rate=rate), evaluations=4)
    assert record.excess == pytest.approx(factor, rel=0.01)
    assert record.admissible == (factor <= 1)
    assert record.holds == record.admissible
    if record.admissible:
        assert 0 < record.measured <= record.bound


@pytest.mark.parametrize(("clients", "steps"), [(1, 1), (3, 1), (3, 8)])
@pytest.mark.parametrize("loss", ["squared-error", "binary-cross-entropy"])
def test_trainings_at_admissible_rates_stay_below_the_bound(loss: str, clients: int, steps: int) -> None:
    """With mini-batches; least squares are convex, the network is not. docs/theory.md has more of them."""
    owners = {silo: [range(k * 60 // clients, (k + 1) * 60 // clients) for k in range(clients)] for silo in X}
    chosen: dict[str, Any] = {"loss": loss, "local_steps": steps, "batch_size": 30, "rounds": 20}
    if loss != "squared-error":
        chosen |= {"y": (Y > 0).astype(int), "models": tdcd.models.MLP(hidden=[4], activation="tanh")}
    known = tdcd.estimate_constants(simulation(owners, **chosen), batches=5)
    rate = 0.5 * largest_rate(steps, known.smoothness, known.client_smoothness)
    record = tdcd.measure_theory(simulation(owners, **chosen, rate=rate), evaluations=21, batches=3)
    assert record.holds
    assert record.terms["noise"] > 0
    assert record.decrease > 0
    assert 0 < record.measured <= record.bound
    for point in record.points[1:]:
        assert point.mean is not None
        assert point.bound is not None
        assert point.mean <= point.bound


def test_a_decaying_schedule_has_a_mean_and_a_highest_rate() -> None:
    record = tdcd.measure_theory(simulation(schedule={"kind": "step", "every": 6, "factor": 0.5}), evaluations=3)
    assert record.rate == pytest.approx(0.003)
    assert record.highest_rate == 0.004
    assert [one.name for one in record.broken] == ["constant η"]


NORMALISED = {j: nn.Sequential(nn.Linear(x.shape[1], 2), nn.BatchNorm1d(2), nn.Linear(2, 1)) for j, x in X.items()}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "momentum": ({"optimizer": {"kind": "sgd", "momentum": 0.9}}, "plain SGD"),
    "weight decay": ({"weight_decay": 0.1}, "steps along the gradient of the loss"),
    "clipping": ({"clip_norm": 1.0}, "steps along the gradient of the loss"),
    "samples": ({"averaging": "samples"}, "uniform mean of all clients"),
    "damped": ({"aggregator": {"kind": "hub-step", "size": 0.5}}, "uniform mean of all clients"),
    "participation": ({"participation": 0.5}, "all clients and silos take part"),
    "silo dropout": ({"silo_dropout": 0.5}, "all clients and silos take part"),
    "own rate": ({"silos": {"a": tdcd.SiloSettings(rate=0.001)}}, "the same η and Q in all silos"),
    "own steps": ({"silos": {"b": tdcd.SiloSettings(local_steps=1)}}, "the same η and Q in all silos"),
    "stale labels": ({"labels": tdcd.Labels(silo="a", sharing="stale")}, "labels at every local step"),
    "noisy labels": ({"labels": tdcd.Labels(silo="a", sharing="exact", clip=1.0)}, "labels at every local step"),
    "codec": ({"codec": "bfloat16", "precision": "float32"}, "messages as they are"),
    "unequal clients": (
        {"clients": EVEN | {"a": [range(50), range(50, 60)]}},
        "clients without bias",
    ),
    "rare clients": ({"batch_size": 4}, "clients without bias"),
    "BatchNorm": ({"models": NORMALISED}, "the same function in training and evaluation"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_assumptions_that_do_not_hold(case: str) -> None:
    changes, name = BROKEN[case]
    record = tdcd.measure_theory(simulation(**({"rounds": 2} | changes)), evaluations=2, batches=1, iterations=2)
    assert [one.name for one in record.broken] == [name]
    assert not record.holds


@pytest.mark.parametrize(
    ("models", "name"),
    [
        (tdcd.models.MLP(hidden=[3]), "Lipschitz gradients"),
        (tdcd.models.MLP(hidden=[3], activation="tanh"), "Lipschitz gradients"),
        (
            {j: nn.Sequential(nn.Linear(x.shape[1], 1), nn.Dropout(0.5)) for j, x in X.items()},
            "the same function in training and evaluation",
        ),
    ],
)
def test_assumptions_that_cannot_be_seen(models: Any, name: str) -> None:
    record = tdcd.measure_theory(simulation(models=models, rounds=1), evaluations=2, batches=1, iterations=2)
    assert [one.name for one in record.assumptions if one.met is None] == [name]


def test_exact_private_labels_are_shared_ones() -> None:
    shared, private = (
        tdcd.measure_theory(simulation(labels=labels), evaluations=3, batches=1)
        for labels in (None, tdcd.Labels(silo="b", sharing="exact"))
    )
    assert private.points == shared.points
    assert private.broken == ()


def test_a_silo_that_has_labels_only() -> None:
    silos = [tdcd.Silo(j, x, EVEN[j]) for j, x in X.items()]
    federation = tdcd.Federation.from_silos([*silos, tdcd.Silo("registry", None, [range(60)])], Y)
    settings = tdcd.Settings(loss="squared-error", rounds=12, rate=0.004, local_steps=3, precision="float64")
    labels = tdcd.Labels(silo="registry", sharing="exact")
    made = tdcd.Simulation(federation, tdcd.models.Linear(), settings, labels=labels)
    record, shared = (tdcd.measure_theory(one, evaluations=3, batches=1) for one in (made, simulation()))
    assert record.points == shared.points
    assert set(record.variances) == set(X)


def test_a_loss_that_rises() -> None:
    record = tdcd.measure_theory(simulation(rate=1.0, rounds=2), evaluations=3, batches=1)
    assert record.decrease < 0
    assert record.terms["descent"] == 0
    assert record.balanced_rate is None
    assert "the loss did not fall" in record.notes[0]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"rounds": 13}, "rounds: from 1 to the 12 of the settings are wanted, not 13"),
        ({"rounds": 0}, "rounds: from 1"),
        ({"evaluations": 1}, "evaluations: at least 2"),
        ({"clients": 0}, "clients: at least 1"),
    ],
)
def test_numbers_out_of_range(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(tdcd.JobError, match=says):
        tdcd.measure_theory(simulation(), **wanted)


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    tdcd.measure_theory(simulation(rounds=3), batches=1, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
