"""A user's own loop over rounds: the numbers of ``train``, of a state that nobody changes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tdcd
from support import same

RNG = np.random.default_rng(4)
X = {"a": RNG.normal(size=(50, 4)), "b": RNG.normal(size=(50, 3))}
Y = (X["a"].sum(1) + X["b"].sum(1) > 0).astype(int)
CLIENTS: dict[str, Any] = {
    "a": {"north": range(25), "south": range(25, 38), "idle": range(38, 40)},
    "b": {"east": range(0, 40, 2), "west": range(1, 40, 2)},
}
SILOS = [tdcd.Silo(name, X[name][:40], CLIENTS[name]) for name in X]
FEDERATION = tdcd.Federation.from_silos(SILOS, Y[:40])
WITH_REGISTRY = tdcd.Federation.from_silos([*SILOS, tdcd.Silo("registry", None, [range(9), range(9, 40)])], Y[:40])
TEST = tdcd.Samples.from_arrays({silo: rows[40:] for silo, rows in X.items()}, Y[40:])
MODELS = {
    "a": nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 1)),
    "b": nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)),
}
SETTINGS = {"loss": "binary-cross-entropy", "rounds": 8, "local_steps": 3, "batch_size": 30, "rate": 0.2,
            "evaluate_every": 3}  # fmt: skip


def settings(**more: Any) -> tdcd.Settings:
    return tdcd.Settings.model_validate(SETTINGS | more)


WAYS: dict[str, tuple[tdcd.Federation, dict[str, Any], dict[str, Any]]] = {
    "shared": (FEDERATION, {}, {}),
    "exact": (FEDERATION, {}, {"labels": tdcd.Labels(silo="a", sharing="exact")}),
    "noisy": (FEDERATION, {}, {"labels": tdcd.Labels(silo="b", sharing="exact", clip=0.5, noise=1.0)}),
    "stale": (WITH_REGISTRY, {}, {"labels": tdcd.Labels(silo="registry", sharing="stale")}),
    "remembers": (FEDERATION, {"optimizer": "adam", "carry_optimizer": True, "aggregator": {"kind": "momentum"}}, {}),
    "rounded": (FEDERATION, {"codec": "float16", "schedule": {"kind": "cosine"}}, {}),
    "uneven": (FEDERATION, {"participation": 0.7}, {"silos": {"b": tdcd.SiloSettings(local_steps=1, rate=0.05)}}),
    "oracle": (FEDERATION, {}, {"engine": "oracle"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_trains_what_train_trains(way: str) -> None:
    federation, chosen, more = WAYS[way]
    result = tdcd.train(federation, MODELS, settings(**chosen), test=TEST, **more)
    simulation = tdcd.Simulation(federation, MODELS, settings(**chosen), test=TEST, **more)
    state = simulation.init()
    history = [simulation.evaluate(state)]
    while state.done < 8:
        state = simulation.round(state)
        if state.done % 3 == 0 or state.done == 8:
            history.append(simulation.evaluate(state))
    assert same(state.weights, result.blocks)
    timeless = [{**line.as_dict(), "seconds": 0.0} for line in result.history]
    assert [line.as_dict() for line in history] == timeless
    for silo, module in simulation.modules(state).items():
        assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in result.blocks[silo].items())


def tensors(state: tdcd.State) -> dict[str, Tensor]:
    return {
        f"{silo}/{what}/{name}": tensor
        for silo, carried in state.silos.items()
        for what, block in (("weights", carried.weights), ("memory", carried.memory))
        for name, tensor in block.items()
    }


def equal(one: tdcd.State, two: tdcd.State) -> bool:
    here, there = tensors(one), tensors(two)
    return (one.done, one.traffic, set(here)) == (two.done, two.traffic, set(there)) and all(
        torch.equal(tensor, there[name]) for name, tensor in here.items()
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_state_can_be_forked_and_replayed(way: str) -> None:
    """Whatever is computed in between, a round changes no state and its next one is always the same."""
    federation, chosen, more = WAYS[way]
    simulation = tdcd.Simulation(federation, MODELS, settings(**chosen), test=TEST, **more)
    first = simulation.init()
    second = simulation.round(first)
    before = {name: tensor.clone() for name, tensor in tensors(second).items()}
    ahead = simulation.round(simulation.round(second))
    simulation.evaluate(ahead)
    simulation.clients(second)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(second).items())
    assert equal(simulation.round(simulation.round(second)), ahead)
    assert equal(simulation.round(first), second)
    another = tdcd.Simulation(federation, MODELS, settings(**chosen), **more)
    assert equal(another.round(another.round(second)), ahead)


def test_the_first_state_is_a_copy() -> None:
    simulation = tdcd.Simulation(FEDERATION, tdcd.models.Linear(), settings())
    state = simulation.init()
    for tensor in tensors(state).values():
        tensor.zero_()
    assert not equal(simulation.init(), state)


def test_refusals() -> None:
    simulation = tdcd.Simulation(FEDERATION, tdcd.models.Linear(), settings(rounds=1))
    with pytest.raises(tdcd.JobError, match=r"a state is wanted, from init\(\) or round\(\), not "):
        simulation.round(simulation.init().weights)  # type: ignore[arg-type]
    with pytest.raises(tdcd.JobError, match="the state is of another federation, of the silos a, b, registry"):
        simulation.round(tdcd.Simulation(WITH_REGISTRY, tdcd.models.Linear(), settings(), **WAYS["stale"][2]).init())
    last = simulation.round(simulation.init())
    for function in (simulation.round, simulation.clients):
        with pytest.raises(tdcd.JobError, match="rounds: the settings have 1, and all of them are done"):
            function(last)
    wild = tdcd.Simulation(FEDERATION, tdcd.models.Linear(), settings(rate=1e200, loss="squared-error"))
    with pytest.raises(tdcd.DivergedError, match=r"the weights of silo .* no longer finite after round \d of 8. Try a"):
        wild.round(wild.round(wild.round(wild.init())))
    with pytest.raises(tdcd.JobError, match="settings: a Settings is wanted, not "):
        tdcd.Simulation(FEDERATION, tdcd.models.Linear(), SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(tdcd.JobError, match="workers: at least 1 is wanted, not 0"):
        tdcd.Simulation(FEDERATION, tdcd.models.Linear(), settings(), workers=0)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"workers": "2"}, "workers: at least 1 is wanted, not '2'"),
        ({"workers": 1.5}, "workers: at least 1 is wanted, not 1.5"),
        ({"engine": 3}, "engine: '3' is not known; there is local, oracle"),
        ({"compute": None}, "compute: 'None' is not known"),
        ({"silos": ["p"]}, r"silos: tdcd.SiloSettings by the silos' names are wanted, .*, not \['p'\]"),
    ],
)
def test_arguments_of_another_type_are_named(named: dict[str, Any], says: str) -> None:
    with pytest.raises(tdcd.JobError, match=says):
        tdcd.Simulation(FEDERATION, tdcd.models.Linear(), settings(), **named)


MOMENTUM: dict[str, Any] = {"aggregator": {"kind": "momentum"}}
ADAM: dict[str, Any] = {"optimizer": "adam", "carry_optimizer": True}


@pytest.mark.parametrize(
    ("here", "there", "says"),
    [
        (
            tdcd.models.Linear(),
            tdcd.models.MLP(hidden=[6]),
            "silo 'a': the state is of another network: .* not in both",
        ),
        (
            tdcd.models.MLP(hidden=[5]),
            tdcd.models.MLP(hidden=[6]),
            r"silo 'a': the state is of another network: '\S+' has shape \(6, 4\), here \(5, 4\); make one with init",
        ),
    ],
)
def test_a_state_of_another_network_is_refused(here: Any, there: Any, says: str) -> None:
    simulation = tdcd.Simulation(FEDERATION, here, settings())
    other = tdcd.Simulation(FEDERATION, there, settings()).init()
    for function in (simulation.round, simulation.evaluate, simulation.clients, simulation.modules):
        with pytest.raises(tdcd.JobError, match=says):
            function(other)


@pytest.mark.parametrize(("chosen", "part"), [(MOMENTUM, "aggregator"), (ADAM, "optimizer")])
def test_a_state_of_another_optimizer_is_refused(chosen: dict[str, Any], part: str) -> None:
    plain = tdcd.Simulation(FEDERATION, MODELS, settings())
    remembers = tdcd.Simulation(FEDERATION, MODELS, settings(**chosen))
    state = remembers.round(remembers.init())
    with pytest.raises(tdcd.JobError, match=f"silo 'a': the state is of another {part}: these tensors are not in both"):
        plain.round(state)
    another = tdcd.Simulation(FEDERATION, MODELS, settings(rate=0.01, **chosen))
    assert another.round(state).done == 2
    assert remembers.round(plain.round(plain.init())).done == 2  # it remembers from now on


# Each client's numbers


@pytest.mark.parametrize("sharing", ["shared", "exact"])
@pytest.mark.parametrize(
    "more", [{}, {"optimizer": {"kind": "sgd", "momentum": 0.5}, "weight_decay": 0.1, "clip_norm": 0.1}]
)
def test_each_clients_numbers_are_those_of_plain_torch(sharing: Any, more: dict[str, Any]) -> None:
    """Two linear silos, by a few lines of autograd: the loss and gradient at θ_j, and the way of Q steps."""
    chosen = settings(precision="float64", rounds=3, batch_size=9, **more)
    labels = tdcd.Labels(silo="a", sharing=sharing)
    simulation = tdcd.Simulation(FEDERATION, tdcd.models.Linear(), chosen, labels=labels)
    state = simulation.round(simulation.init())
    got, batch = simulation.clients(state), set(simulation.training.batch(2).tolist())
    parameters = {silo: list(module.parameters()) for silo, module in simulation.modules(state).items()}
    embedded = {
        silo: torch.tensor(X[silo]) @ weight.T.detach() + bias.detach() for silo, (weight, bias) in parameters.items()
    }
    seen = 0
    for silo, other in (("a", "b"), ("b", "a")):
        for client, held in CLIENTS[silo].items():
            rows = sorted(batch & set(held))
            if not rows:
                assert client not in got[silo]
                continue
            theta = [p.detach().clone().requires_grad_() for p in parameters[silo]]
            optimizer = torch.optim.SGD(theta, lr=0.2, momentum=0.5 if more else 0.0, weight_decay=chosen.weight_decay)
            for step in range(3):
                scores = torch.tensor(X[silo][rows]) @ theta[0].T + theta[1] + embedded[other][rows]
                loss = binary_cross_entropy_with_logits(scores[:, 0], torch.tensor(Y[rows]).double())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                norm = nn.utils.clip_grad_norm_(theta, chosen.clip_norm or 1e9)
                if step == 0:
                    expected = [len(rows), loss.item(), norm.item()]
                optimizer.step()
            with torch.no_grad():
                drift = sum(((p - q) ** 2).sum() for p, q in zip(theta, parameters[silo], strict=True)) ** 0.5
            mine = got[silo][client]
            numbers = [mine.rows, mine.loss, mine.gradient_norm, mine.drift]
            assert numbers == pytest.approx([*expected, float(drift)], rel=1e-9)
            seen += 1
    assert seen == sum(map(len, got.values())) == 4  # one has no rows in the mini-batch


@pytest.mark.parametrize("way", WAYS)
def test_each_clients_numbers_in_every_way(way: str) -> None:
    """With one client a silo and plain averages, the drift is how far the hub's weights move."""
    federation, chosen, more = WAYS[way]
    simulation = tdcd.Simulation(federation, MODELS, settings(**chosen), **more)
    clients = simulation.clients(simulation.round(simulation.init()))
    assert set(clients) == {"a", "b"}
    for silo, own in clients.items():
        assert set(own) <= set(CLIENTS[silo])
        assert all(0 < one.drift < 10 and one.loss > 0 and one.gradient_norm > 0 for one in own.values())
    if way not in ("remembers", "rounded"):
        pooled = tdcd.Simulation(federation.pooled(), MODELS, settings(**chosen), **more)
        state = pooled.round(pooled.init())
        before, after = state.weights["b"], pooled.round(state).weights["b"]
        trained = pooled.setup.networks["b"].trainable
        drift = sum(((after[name] - before[name]) ** 2).sum() for name in trained) ** 0.5
        assert pooled.clients(state)["b"]["all"].drift == pytest.approx(float(drift), rel=1e-4)


def test_a_silo_that_trains_nothing_has_numbers() -> None:
    models: dict[str, Any] = {"a": nn.Linear(4, 1).requires_grad_(False), "b": tdcd.models.Linear()}
    simulation = tdcd.Simulation(FEDERATION, models, settings())
    numbers = simulation.clients(simulation.init())["a"].values()
    assert all((one.gradient_norm, one.drift) == (0.0, 0.0) and one.loss > 0 for one in numbers)


def test_a_clients_loss_is_that_of_the_weights_that_it_receives() -> None:
    chosen = settings(precision="float64", batch_size=9, codec="bfloat16", codec_for="weights")
    simulation = tdcd.Simulation(FEDERATION, tdcd.models.Linear(), chosen)
    state = simulation.round(simulation.init())
    received = {silo: [p.bfloat16().double() for p in m.parameters()] for silo, m in simulation.modules(state).items()}
    scores = sum((torch.tensor(X[silo]) @ w.T + b for silo, (w, b) in received.items()), torch.zeros(()))
    batch = set(simulation.training.batch(2).tolist())
    for silo, own in simulation.clients(state).items():
        for client, one in own.items():
            rows = sorted(batch & set(CLIENTS[silo][client]))
            loss = binary_cross_entropy_with_logits(scores[rows, 0], torch.tensor(Y[rows]).double())
            assert one.loss == pytest.approx(loss.item(), rel=1e-9)


def test_a_state_prints_in_a_line() -> None:
    simulation = tdcd.Simulation(FEDERATION, tdcd.models.Linear(), settings())
    assert repr(simulation.init()).startswith("State(after round 0: ")
    assert len(repr(simulation.round(simulation.init()))) < 80
