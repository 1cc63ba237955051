"""The contract of every engine, for the cluster's: the oracle's numbers, and the same bits on any number of nodes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support import USERS, Problem, distance, examples, problem, problems, same
from tdcd.cluster import fold
from tdcd.cluster.engine import ClusterEngine
from tdcd.cluster.fleet import MemoryFleet
from tdcd.core.gradients import GradientPrivatizer, PrivateLabels
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Network
from tdcd.core.script import Sharing

KINDS = ("linear", "mlp", "mlp-tanh", "lstm", "cnn", "cnn-batchnorm", "dropout", *USERS)
NODES = st.integers(1, 4)
missing = partial(problems, dropouts=(0.0, 0.4))
"""Federations whose silos may be missing from some sums."""


@pytest.fixture(autouse=True, scope="module")
def _small_groups() -> Iterator[None]:
    """Cut few clients into many groups, so that the tree and its gaps are tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "CLIENTS", 1)
        yield


def on_cluster(made: Problem, nodes: int, path: Any = "auto", private: PrivateLabels | None = None) -> ClusterEngine:
    return ClusterEngine(made.training(private), MemoryFleet(nodes), path)


def keeping(made: Problem, silo: str, sharing: Sharing, privatizer: GradientPrivatizer | None = None) -> PrivateLabels:
    labels = next(iter(made.tasks.values())).labels
    return PrivateLabels(silo, sharing, labels, made.objective, privatizer, made.seed)


@settings(max_examples=examples(60))
@given(missing(KINDS), NODES)
def test_agrees_with_the_oracle(drawn: Problem, nodes: int) -> None:
    assert distance(drawn.run(on_cluster(drawn, nodes), 2), drawn.run(drawn.engine("oracle"), 2)) < 1e-9


@settings(max_examples=examples(25))
@given(missing(KINDS), st.sampled_from(["loop", "stacked", "layers", "kernel"]))
def test_nodes_change_no_bit(drawn: Problem, path: str) -> None:
    able = {"stacked": ("linear", "mlp"), "layers": ("linear", "mlp"), "kernel": ("linear", "mlp")}
    if path in able:
        made = problem([*able[path], "mlp"], [7, 3, 5], samples=40, batch=31, seed=drawn.seed)
        made = replace(made, silo_dropout=drawn.silo_dropout)
        drawn = replace(made, codecs=drawn.codecs) if drawn.codecs.plain_rows and not drawn.codecs.changes else made
    one = drawn.run(on_cluster(drawn, 1, path), 3)
    for nodes in (2, 3, 7):
        assert same(drawn.run(on_cluster(drawn, nodes, path), 3), one)


@settings(max_examples=examples(30))
@given(problems(KINDS), NODES, st.sampled_from(["exact", "stale"]), st.sampled_from(["silo-0", "clerk"]), st.booleans())
def test_private_labels_agree_with_the_oracle(
    drawn: Problem, nodes: int, sharing: Sharing, owner: str, defended: bool
) -> None:
    private = keeping(drawn, owner, sharing, GradientPrivatizer(clip=0.3, noise=0.5) if defended else None)
    expected = drawn.run(drawn.engine("oracle", private=private), 2)
    ours = drawn.run(on_cluster(drawn, nodes, private=private), 2)
    assert distance(ours, expected) < 1e-9
    assert same(drawn.run(on_cluster(drawn, nodes + 1, private=private), 2), ours)


class Noisy(nn.Module):
    """Draws where nobody sees it before its first round."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.layer(rows)
        return scores + 0.1 * torch.randn_like(scores) if self.training else scores


def test_a_network_found_to_draw_is_computed_anew_as_one_that_draws() -> None:
    made = problem(["linear", "linear"], [6, 3], samples=30, batch=20)
    noisy = Network(Noisy(), torch.float64)
    assert made.tasks["silo-0"].features.shape[1:] == (5,)
    made = replace(made, tasks={silo: replace(task, network=noisy) for silo, task in made.tasks.items()})
    one = made.run(on_cluster(made, 2), 2)
    assert distance(one, made.run(made.engine("oracle"), 2)) < 1e-9
    assert same(one, made.run(on_cluster(made, 3), 2))


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_groups_of_many_clients_in_single_precision(nodes: int) -> None:
    """As it is computed in earnest: groups of sixteen clients and more, by kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "CLIENTS", 16)
        made = problem(["mlp", "linear"], [70, 33], samples=500, batch=300, dtype=torch.float32, steps=LocalSteps(4))
        assert fold.group_count(70) == 4
        ours = made.run(on_cluster(made, nodes), 3)
        assert distance(ours, made.run(made.engine("auto"), 3)) < 1e-5
        assert same(ours, made.run(on_cluster(made, 1), 3))
