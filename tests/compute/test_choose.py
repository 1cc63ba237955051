import pytest
import torch
from torch import Tensor, nn

from support import problem
from tdcd.compute import choose
from tdcd.compute.stacked import CHUNK, rows_are_independent
from tdcd.errors import ModelError


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("linear", "stacked"),
        ("mlp", "stacked"),
        ("lstm", "loop (recurrent"),
        ("cnn", "loop (convolutions"),
        ("resnet18", "loop (convolutions"),
        ("dropout", "loop (the network does not stack"),
        ("odd", "loop (the network does not stack"),
    ],
)
def test_what_auto_chooses(kind: str, path: str) -> None:
    made = problem([kind], [3])
    assert choose(made.tasks["silo-0"])[1].startswith(path)


def test_a_path_by_name() -> None:
    assert choose(problem(["mlp"], [2]).tasks["silo-0"], "loop")[1] == "loop (as asked)"
    assert choose(problem(["cnn"], [2]).tasks["silo-0"], "stacked")[1] == "stacked (as asked)"
    with pytest.raises(ModelError, match="silo 'silo-0': its network cannot be computed stacked .*use compute"):
        choose(problem(["odd"], [2]).tasks["silo-0"], "stacked")


class Hidden(nn.Sequential):
    """Looks like a chain of layers, but its forward pass couples rows."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) - rows.mean()  # type: ignore[no-untyped-call, no-any-return]


def test_rows_are_independent_only_where_that_is_certain() -> None:
    assert rows_are_independent(nn.Sequential(nn.Flatten(), nn.Linear(3, 2), nn.ReLU()))
    assert not rows_are_independent(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    assert not rows_are_independent(nn.LSTM(3, 2))
    assert not rows_are_independent(Hidden(nn.Linear(3, 2)))
    assert not rows_are_independent(nn.Sequential(Hidden(nn.Linear(3, 2))))


def test_more_clients_than_a_chunk() -> None:
    made = problem(["mlp"], [2 * CHUNK + 5], samples=200, batch=150)
    engines = [made.engine(path) for path in ("stacked", "loop")]
    stacked, loop = (made.run(engine, 2)["silo-0"] for engine in engines)
    for name, weights in stacked.items():
        assert torch.allclose(weights, loop[name], atol=1e-12)


def test_a_failing_network_names_silo_client_and_stage() -> None:
    made = problem(["linear"], [3])
    task = made.tasks["silo-0"]
    engine = made.engine("loop")

    def broken(*_: object) -> Tensor:
        raise ZeroDivisionError("by design")

    task.network.module.forward = broken
    with pytest.raises(
        ModelError, match="silo 'silo-0', client 'c.': .*the forward pass: ZeroDivisionError: by design"
    ):
        engine.round(made.initial(), made.round(1))


def test_batchnorm_on_a_single_row_says_what_to_do() -> None:
    made = problem(["linear"], [5], samples=10, batch=5)
    task = made.tasks["silo-0"]
    task.network.module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()
    task.network.trainable = ("0.weight",)
    with pytest.raises(ModelError, match="single row: use a larger batch_size or fewer clients"):
        made.run(made.engine("loop"), 3)
