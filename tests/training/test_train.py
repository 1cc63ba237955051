from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tdcd
from support import Odd, same

RNG = np.random.default_rng(0)
X = {"a": RNG.normal(size=(40, 4)), "b": RNG.normal(size=(40, 3))}
Y = (X["a"].sum(1) + X["b"].sum(1) > 0).astype(int) + (X["a"][:, 0] > 0)
FEDERATION = tdcd.Federation.from_silos(
    [tdcd.Silo("a", X["a"], [range(30), range(30, 40)]), tdcd.Silo("b", X["b"], [range(0, 40, 2), range(1, 40, 2)])], Y
)
TEST = tdcd.Samples.from_arrays({"a": X["a"][:10], "b": X["b"][:10]}, Y[:10])


def settings(**more: Any) -> tdcd.Settings:
    table = {"loss": "cross-entropy", "rounds": 6, "local_steps": 2, "batch_size": 16, "rate": 0.2, "evaluate_every": 4}
    return tdcd.Settings.model_validate(table | more)


def train(models: Any = None, **more: Any) -> tdcd.Result:
    options = {key: more.pop(key) for key in set(more) - set(tdcd.Settings.model_fields)}
    return tdcd.train(FEDERATION, models or tdcd.models.MLP(hidden=[6]), settings(**more), **options)


def test_history_counts_rounds_and_iterations() -> None:
    result = train(test=TEST)
    assert [(line.round, line.iteration) for line in result.history] == [(0, 0), (4, 8), (6, 12)]
    assert result.history[-1].train["loss"] < result.history[0].train["loss"]
    assert set(result.history[0].test) >= {"loss", "accuracy"}
    assert train().history[0].test == {}
    assert result.evaluate(TEST) == pytest.approx(result.history[-1].test, abs=1e-6)


def test_predictions() -> None:
    result = train(rounds=60)
    predicted = result.predict(X)
    assert float((predicted.numpy() == Y).mean()) == pytest.approx(result.history[-1].train["accuracy"])
    assert torch.allclose(result.probabilities(X).sum(1), torch.ones(40))
    modules = result.modules()
    by_hand = sum(modules[silo](torch.tensor(X[silo]).float()) for silo in X)
    assert isinstance(by_hand, Tensor)
    assert torch.allclose(by_hand, result.scores(X), atol=1e-5)


def test_modules_are_not_changed_and_their_weights_are_the_first() -> None:
    nets = {"a": nn.Linear(4, 3), "b": nn.Linear(3, 3)}
    before = {silo: net.weight.detach().clone() for silo, net in nets.items()}
    one = train(nets)
    assert all(torch.equal(before[silo], net.weight) for silo, net in nets.items())
    given = {silo: {name: p.detach() for name, p in net.named_parameters()} for silo, net in nets.items()}
    two = train({"a": nn.Linear(4, 3), "b": nn.Linear(3, 3)}, initial=given)
    assert same(one.blocks, two.blocks)


def test_precision() -> None:
    assert {t.dtype for t in train().blocks["a"].values()} == {torch.float32}
    assert {t.dtype for t in train(precision="float64").blocks["a"].values()} == {torch.float64}


def test_seed_decides_everything() -> None:
    torch.manual_seed(3)
    one = train()
    torch.manual_seed(4)
    assert same(one.blocks, train().blocks)
    assert not same(one.blocks, train(seed=1).blocks)


class Wrong(nn.Module):
    """Fails in the way it is asked to."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Any:
        embedding = self.linear(rows)
        if self.how == "raises":
            raise KeyError("no such thing")
        if self.how == "flat":
            return embedding.flatten()
        if self.how == "tuple":
            return embedding, embedding
        if self.how == "one row":
            return embedding[:1]
        if self.how == "squeezes":
            return embedding.squeeze()
        if self.how == "training only" and self.training:
            raise RuntimeError("not in training")
        return embedding.detach() if self.how == "detached" else embedding


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", r"silo 'a': its network fails on rows of shape \(4,\): KeyError"),
        ("flat", r"silo 'a': its network returned \(6,\) for 2 rows; it must return a tensor of shape \(2, outputs\)"),
        ("tuple", "silo 'a': its network returned tuple for 2 rows"),
        ("one row", r"silo 'a': its network returned \(1, 3\) for 2 rows"),
        ("training only", "silo 'a', client 'client-.': its network failed in the forward pass: .* not in training"),
        ("squeezes", r"silo 'a', client 'client-.': .* returned \(3,\) for 1 rows in training mode, not \(1, 3\)"),
        ("detached", "silo 'a', client 'client-.': its network failed in the local steps"),
    ],
)
def test_a_users_network_that_fails(how: str, says: str) -> None:
    with pytest.raises(tdcd.ModelError, match=says):
        train({"a": Wrong(how), "b": nn.Linear(3, 3)}, batch_size=3, rounds=20)


@pytest.mark.parametrize(
    ("models", "more", "error", "says"),
    [
        ({"a": nn.Linear(4, 3), "b": nn.Linear(3, 4)}, {}, tdcd.ModelError, "widths differ between silos: a 3, b 4;"),
        ({"a": nn.Linear(4, 2), "b": nn.Linear(3, 2)}, {}, tdcd.DataError, "labels out of range: 2;"),
        ({"a": nn.Linear(4, 3)}, {}, tdcd.ModelError, "no model is given for silo b"),
        (
            {"a": nn.Linear(4, 3), "bb": nn.Linear(3, 3)},
            {},
            tdcd.ModelError,
            "'bb', which is no silo; did you mean 'b'",
        ),
        (None, {"batch_size": 41}, tdcd.JobError, "41 is more than the 40 training samples"),
        (None, {"batches": [[1, 2]] * 5}, tdcd.JobError, "5 are given for 6 rounds"),
        (None, {"batches": [[1, 2]] * 5 + [[3, 3]]}, tdcd.DataError, "batch 5 names an ID twice"),
        (None, {"batches": [[1, 2]] * 5 + [[]]}, tdcd.DataError, "batch 5 is empty"),
        (None, {"engine": "orcale"}, tdcd.JobError, "engine: 'orcale' is not known; did you mean 'oracle'"),
        (None, {"compute": "stakced"}, tdcd.JobError, "compute: 'stakced' is not known; did you mean 'stacked'"),
        (None, {"resume": True}, tdcd.JobError, "needs the directory"),
        (None, {"workers": 0}, tdcd.JobError, "workers: at least 1 is wanted, not 0"),
        (None, {"directory": ""}, tdcd.JobError, "directory: it is empty"),
        (None, {"test": (X, Y)}, tdcd.JobError, r"test: a Samples is wanted, .* with tdcd.Samples.from_arrays"),
        (tdcd.models.MLP, {}, tdcd.ModelError, "silo 'a': a model is an nn.Module or a specification"),
        ("mlp", {}, tdcd.ModelError, "silo 'a': a model is an nn.Module or a specification .* not 'mlp'"),
        (
            None,
            {"initial": {"a": {"1.bias": "x"}, "b": {}}},
            tdcd.DataError,
            "initial weights, silo 'a', '1.bias': not numbers",
        ),
        (None, {"batches": [[1, 99]] * 6}, tdcd.DataError, "batch 0 names IDs .* 99"),
        (None, {"loss": "binary-cross-entropy"}, tdcd.DataError, "labels out of range: 2; .* 0 and 1"),
        (None, {"initial": {"a": {}}}, tdcd.ModelError, "for the silos a, the federation has a, b"),
        (None, {"initial": {"a": {}, "b": {}}}, tdcd.ModelError, "silo 'a': these weights are not in both: 1.bias"),
        (nn.Linear(4, 3), {}, tdcd.ModelError, "silo 'b': its network fails"),
        (None, {"test": tdcd.Samples.from_arrays({"a": X["a"]}, Y)}, tdcd.DataError, "test set: no rows for silo b"),
        (
            None,
            {"test": tdcd.Samples.from_arrays(dict.fromkeys("ab", X["b"]), Y)},
            tdcd.DataError,
            "rows of silo 'a' have shape",
        ),
        ({"a": nn.LSTM(4, 3), "b": tdcd.models.LSTM()}, {}, tdcd.ModelError, "silo 'b': an LSTM takes sequences"),
    ],
)
def test_what_does_not_fit(models: Any, more: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        train(models, **more)


def test_initial_weights_of_another_shape() -> None:
    given = {
        "a": {"weight": np.zeros((3, 4)), "bias": np.zeros(2)},
        "b": {"weight": np.zeros((3, 3)), "bias": np.zeros(3)},
    }
    with pytest.raises(tdcd.ModelError, match=r"silo 'a': 'bias' has shape \(2,\), the network's has \(3,\)"):
        train({"a": nn.Linear(4, 3), "b": nn.Linear(3, 3)}, initial=given)


def test_whole_number_rows_are_explained() -> None:
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", np.ones((40, 4), dtype=np.int64), [range(40)])], Y)
    with pytest.raises(tdcd.ModelError, match="Its rows are torch.int64"):
        tdcd.train(federation, tdcd.models.Linear(), settings())


def test_tokens_stay_whole_numbers() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 3)

        def forward(self, rows: Tensor) -> Tensor:
            embedding: Tensor = self.embedding(rows).sum(1)
            return embedding

    federation = tdcd.Federation.from_silos(
        [tdcd.Silo("a", RNG.integers(0, 10, (40, 5)), [range(20), range(20, 40)])], Y
    )
    result = tdcd.train(federation, {"a": Tokens()}, settings(rounds=30))
    assert result.history[-1].train["loss"] < result.history[0].train["loss"]


def test_an_odd_module_trains_by_the_loop() -> None:
    result = train({"a": Odd(4, 3), "b": nn.Linear(3, 3)}, rounds=20)
    assert result.history[-1].train["loss"] < result.history[0].train["loss"]
    assert result.blocks["a"]["calls"].item() == 40
    assert torch.equal(result.blocks["a"]["frozen"], torch.ones(3))


def test_looking_changes_nothing() -> None:
    models = {"a": Odd(4, 3), "b": nn.Linear(3, 3)}
    assert same(train(models, evaluate_every=1).blocks, train(models, evaluate_every=6).blocks)


def test_divergence_is_told_with_a_smaller_rate() -> None:
    with pytest.raises(tdcd.DivergedError, match=r"training diverged: .* Try a smaller rate, such as 1e\+19"):
        train(rate=1e20)


def test_a_first_loss_that_is_not_finite_is_not_blamed_on_the_rate() -> None:
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", X["a"] * 1e39, [range(40)])], Y)
    with pytest.raises(tdcd.DivergedError, match="before training: check the scale of the features"):
        tdcd.train(federation, tdcd.models.Linear(), settings())


def test_first_weights_must_be_finite() -> None:
    broken = nn.Linear(4, 3)
    broken.weight.data[0, 0] = torch.nan
    with pytest.raises(tdcd.ModelError, match="silo 'a': the weights 'weight' to start from are not finite"):
        train({"a": broken, "b": nn.Linear(3, 3)})


def test_new_rows_are_brought_to_the_type_of_the_training_rows() -> None:
    result = train()
    ints = {silo: np.ones(rows.shape, dtype=int) for silo, rows in X.items()}
    floats = {silo: np.ones(rows.shape) for silo, rows in X.items()}
    assert torch.equal(result.scores(ints), result.scores(floats))
    with pytest.raises(tdcd.ModelError, match=r"silo 'a': its network fails on rows of shape \(3,\)"):
        result.predict({"a": X["b"], "b": X["b"]})


def test_numpys_whole_numbers_are_whole_numbers() -> None:
    made = tdcd.Settings(loss="cross-entropy", rounds=np.int64(3), batch_size=np.int32(5), rate=0.1)  # type: ignore[arg-type]
    assert (made.rounds, made.batch_size) == (3, 5)


def test_settings_as_a_table_are_refused() -> None:
    with pytest.raises(tdcd.JobError, match="settings: a Settings is wanted"):
        tdcd.train(FEDERATION, tdcd.models.Linear(), {"rounds": 3})  # type: ignore[arg-type]
    with pytest.raises(tdcd.JobError, match="federation: a Federation is wanted, not None"):
        tdcd.train(None, tdcd.models.Linear(), settings())  # type: ignore[arg-type]


def test_predicting_needs_every_silo() -> None:
    result = train()
    with pytest.raises(tdcd.DataError, match="missing: b"):
        result.predict({"a": X["a"]})
    with pytest.raises(tdcd.DataError, match="different numbers of rows"):
        result.predict({"a": X["a"], "b": X["b"][:3]})


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("gpu", "device: 'gpu' is not known"),
        ("meta", 'device: "meta" is not supported'),
        ("cuda:99", 'device: "cuda:99" is not available'),
    ],
)
def test_a_device_that_is_not_there(device: str, says: str) -> None:
    with pytest.raises(tdcd.JobError, match=says):
        train(device=device)


def test_a_loss_that_only_grows_is_told_before_it_is_infinite() -> None:
    settings = tdcd.Settings(loss="squared-error", rounds=400, rate=2.0, evaluate_every=1, precision="float64")
    silo = tdcd.Silo("a", np.arange(12.0).reshape(6, 2), [range(6)])
    federation = tdcd.Federation.from_silos([silo], np.arange(6.0))
    with pytest.raises(tdcd.DivergedError, match=r"the training loss grew from \S+ to \S+e\+\d+ after round \d of 400"):
        tdcd.train(federation, tdcd.models.Linear(), settings)
