import pytest
import torch
from torch import Tensor, nn

from support import module, one_round, problem, same
from tdcd.compute import Threads, whole
from tdcd.compute.whole import embed_whole
from tdcd.core.network import Network
from tdcd.errors import ModelError


class Watched(nn.Linear):
    largest = 0

    def forward(self, rows: Tensor) -> Tensor:
        Watched.largest = max(Watched.largest, len(rows))
        return super().forward(rows)


@pytest.mark.parametrize("workers", [1, 3])
def test_whole_data_sets_are_embedded_in_pieces(workers: int) -> None:
    rows = torch.randn(2500, 4)
    network = Network(nn.Sequential(Watched(4, 2), nn.Dropout(0.9)))
    block = network.initial()
    Watched.largest = 0
    result = embed_whole("a", network, block, rows, Threads(workers))
    assert Watched.largest == whole.PIECE
    assert torch.allclose(result, network.with_weights(block)(rows), atol=1e-6)


def test_what_a_module_writes_while_evaluated_is_forgotten() -> None:
    network = Network(module("odd", 2, seed=0))
    block = network.initial()
    before = {"a": {name: tensor.clone() for name, tensor in block.items()}}
    embed_whole("a", network, block, torch.randn(3000, 3))
    assert same({"a": block}, before)


def test_a_network_that_fails_on_rows() -> None:
    network = Network(nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"silo 'a': its network fails on rows of shape \(5,\)"):
        embed_whole("a", network, network.initial(), torch.randn(3, 5))


@pytest.mark.parametrize("kinds", [["mlp", "lstm"], ["cnn-batchnorm", "dropout"]])
def test_evaluating_between_rounds_changes_no_bit(kinds: list[str]) -> None:
    """An evaluation leaves no trace in the rounds after it."""
    made = problem(kinds, [5, 3], samples=60, batch=40)
    engine, watched = made.engine("auto"), made.engine("auto")
    blocks = seen = made.initial()
    features = {silo: task.features for silo, task in made.tasks.items()}
    for number in (1, 2, 3):
        blocks = one_round(engine, blocks, made.round(number))
        scores = watched.scores(seen, features)
        expected = sum(task.network.with_weights(seen[silo])(task.features) for silo, task in made.tasks.items())
        assert torch.allclose(scores, torch.as_tensor(expected), atol=1e-9)
        seen = one_round(watched, seen, made.round(number))
        assert same(seen, blocks)
