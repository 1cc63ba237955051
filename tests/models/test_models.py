from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from tdcd.errors import ModelError
from tdcd.models import CNN, LSTM, MLP, Imported, Linear, Model, ModelSpec, ResNet18, build

READ: TypeAdapter[ModelSpec] = TypeAdapter(Model)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (Linear(), (7,)),
        (Linear(), (1, 8, 4)),
        (MLP(), (7,)),
        (MLP(hidden=[3, 4, 5]), (2, 3)),
        *((MLP(activation=activation), (7,)) for activation in get_args(MLP.model_fields["activation"].annotation)),
        (LSTM(hidden=8), (48, 19)),
        (CNN(), (1, 8, 4)),
        (CNN(channels=[4, 4, 4, 4]), (3, 5, 3)),
        (CNN(batch_norm=True), (3, 32, 16)),
        (ResNet18(width=4), (3, 32, 16)),
        (ResNet18(width=2), (1, 5, 30)),
    ],
)
def test_rows_to_embeddings(spec: ModelSpec, shape: tuple[int, ...]) -> None:
    network = spec.module(shape, 6)
    assert network(torch.randn(4, *shape)).shape == (4, 6)


@pytest.mark.parametrize(("activation", "kind"), [("relu", nn.ReLU), ("gelu", nn.GELU), ("silu", nn.SiLU)])
def test_an_activation_follows_each_hidden_layer(activation: Any, kind: type[nn.Module]) -> None:
    layers = list(MLP(hidden=[3, 4], activation=activation).module((7,), 2).children())
    assert [type(layer) for layer in layers] == [nn.Flatten, nn.Linear, kind, nn.Linear, kind, nn.Linear]


def test_resnet18_is_the_papers() -> None:
    """CIFAR form: a 3×3 stem of 64, no max-pool, stages to 512, and a linear layer from 1024 on half images."""
    network = ResNet18().module((3, 32, 16), 10)
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(layers) == 1 + 16 + 3
    assert (layers[0].in_channels, layers[0].out_channels, layers[0].kernel_size) == (3, 64, (3, 3))
    assert not any(isinstance(m, nn.MaxPool2d) for m in network.modules())
    linear = next(m for m in network.modules() if isinstance(m, nn.Linear))
    assert linear.in_features == 1024
    # 11,173,962 weights of the CIFAR form on whole images (linear from 512), and 512 more features for each class.
    assert sum(p.numel() for p in network.parameters()) == 11_173_962 + 512 * 10


def test_lstm_is_the_authors() -> None:
    names = {name for name, _ in LSTM(hidden=16).module((48, 19), 1).named_parameters()}
    assert {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.bias_ih_l0", "linear.weight", "linear.bias"} < names


@pytest.mark.parametrize(
    ("spec", "shape", "says"),
    [
        (LSTM(), (5,), "sequences"),
        (CNN(), (5,), "images"),
        (ResNet18(), (5, 5), "images"),
        (Imported(kind="no_such_package.at_all:f"), (5,), "no module 'no_such_package'"),
        (Imported(kind="math:no_such_name"), (5,), "has no 'no_such_name'"),
        (Imported(kind="math:sqrt"), (5,), "factory failed"),
        (Imported(kind="builtins:dict", options={"a": 1}), (5,), "factory failed"),
        (Imported(kind="operator:add"), (5,), "factory failed"),
        (Imported(kind="builtins:pow"), (5,), "factory failed"),
        (Imported(kind="builtins:print"), (5,), "not an nn.Module"),
    ],
)
def test_a_model_that_does_not_fit_names_the_silo(spec: ModelSpec, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ModelError, match=f"silo 'bank': .*{says}"):
        build(spec, "bank", shape, 2, 0)


def test_first_weights_depend_on_seed_and_silo_only() -> None:
    def first(silo: str, seed: int) -> torch.Tensor:
        return next(build(Linear(), silo, (4,), 2, seed).parameters())

    torch.manual_seed(1)
    one = first("bank", 5)
    torch.manual_seed(2)
    assert torch.equal(one, first("bank", 5))
    assert not torch.equal(one, first("bank", 6))
    assert not torch.equal(one, first("insurer", 5))


def test_read_from_a_table() -> None:
    assert READ.validate_python({"kind": "mlp", "hidden": [3]}) == MLP(hidden=[3])
    assert READ.validate_python({"kind": "a.b:c", "options": {"x": 1}}) == Imported(kind="a.b:c", options={"x": 1})
    assert MLP(hidden=(3,)) == MLP(hidden=[3])  # type: ignore[arg-type]
    assert MLP(hidden=[3, 4], activation="tanh").describe() == "mlp, hidden 3 4, activation tanh"
    assert CNN(batch_norm=True).describe() == "cnn, channels 16 32, batch norm True"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "mpl"}, "did you mean 'mlp'"),
        ({"hidden": [3]}, "needs a kind"),
        ({"kind": "mlp", "hiden": [3]}, "unknown key 'hiden'; did you mean 'hidden'"),
        ({"kind": "mlp", "hidden": []}, "at least 1"),
        ({"kind": "lstm", "hidden": 0}, "greater than 0"),
        ({"kind": "a:b:c"}, "is written as"),
    ],
)
def test_a_table_that_is_no_model(table: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        READ.validate_python(table)
