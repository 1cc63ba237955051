"""Labels that stay in one silo: exact answers change nothing, stale ones are what a few lines compute."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support import CODINGS, KERNELS, LINEAR, USERS, Problem, distance, examples, problem, problems, same
from tdcd.core.gradients import GradientPrivatizer, PrivateLabels
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Network
from tdcd.core.script import Sharing
from tdcd.data.arrays import Array
from tdcd.engines import local
from tdcd.engines.simulation import SimulationEngine
from tdcd.errors import ModelError

KINDS = ("linear", "mlp", "lstm", "cnn", "cnn-batchnorm", "dropout", *USERS)
EXACT = tuple(codecs for codecs in CODINGS if codecs.plain_rows)
"""Codecs that leave embeddings and logit gradients alone."""
OWNERS = ("silo-0", "silo-1", "registry")
"""Who has the labels: some silo, or one without features."""


def keeping(made: Problem, silo: str, sharing: Sharing, privatizer: GradientPrivatizer | None = None) -> PrivateLabels:
    task = made.tasks["silo-0"]
    return PrivateLabels(silo, sharing, task.labels, made.objective, privatizer, made.seed)


def engine(made: Problem, path: str, private: PrivateLabels, workers: int = 1) -> SimulationEngine:
    return made.engine(path, workers, private)


def step_by_step(made: Problem, path: str, private: PrivateLabels) -> SimulationEngine:
    """Return an engine in which every logit gradient travels: somebody records them."""
    return made.engine(path, 1, private, lambda *_: None)


@settings(max_examples=examples(40))
@given(problems(KINDS, codings=EXACT), st.sampled_from(OWNERS))
def test_exact_answers_give_the_numbers_of_shared_labels(drawn: Problem, owner: str) -> None:
    shared = drawn.run(drawn.engine("oracle"), 2)
    private = keeping(drawn, owner, "exact")
    assert distance(drawn.run(engine(drawn, "oracle", private), 2), shared) < 1e-9
    assert distance(drawn.run(step_by_step(drawn, "auto", private), 2), shared) < 1e-9
    assert distance(drawn.run(engine(drawn, "auto", private), 2), shared) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("path", ["stacked", "layers", "loop"])
@settings(max_examples=examples(15))
@given(problems(("linear", "mlp"), codings=EXACT), st.sampled_from(OWNERS))
def test_exact_answers_on_every_path(path: str, drawn: Problem, owner: str) -> None:
    private = keeping(drawn, owner, "exact")
    expected = drawn.run(drawn.engine("oracle"), 2)
    assert distance(drawn.run(engine(drawn, path, private), 2), expected) < 1e-9
    assert distance(drawn.run(step_by_step(drawn, path, private), 2), expected) < 1e-9
    single = drawn.with_steps(LocalSteps(1))
    expected = single.run(single.engine("oracle"), 2)
    fastest = "one-step" if drawn.tasks["silo-0"].aggregator.linear and not drawn.codecs.changes else path
    for make in (engine, step_by_step):
        assert distance(single.run(make(single, fastest, private), 2), expected) < 1e-9


@settings(max_examples=examples(30))
@given(problems(("linear", "mlp", "lstm"), codings=CODINGS[1:]), st.sampled_from(OWNERS))
def test_exact_answers_in_short_numbers_agree_with_the_oracle(drawn: Problem, owner: str) -> None:
    private = keeping(drawn, owner, "exact")
    expected = drawn.run(engine(drawn, "oracle", private), 2)
    assert distance(drawn.run(engine(drawn, "auto", private), 2), expected) < 1e-9


@settings(max_examples=examples(40))
@given(problems(KINDS), st.sampled_from(OWNERS))
def test_stale_answers_agree_with_the_oracle(drawn: Problem, owner: str) -> None:
    private = keeping(drawn, owner, "stale")
    expected = drawn.run(engine(drawn, "oracle", private), 2)
    assert distance(drawn.run(engine(drawn, "auto", private), 2), expected) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("path", ["stacked", "layers", "loop", "kernel"])
@settings(max_examples=examples(15))
@given(problems(("linear", "mlp"), LINEAR, losses=KERNELS), st.sampled_from(OWNERS))
def test_stale_answers_on_every_path(path: str, drawn: Problem, owner: str) -> None:
    plain = drawn.with_steps(LocalSteps(drawn.tasks["silo-0"].steps.count))
    private = keeping(drawn, owner, "stale")
    expected = plain.run(engine(plain, "oracle", private), 2)
    assert distance(plain.run(engine(plain, path, private), 2), expected) < 1e-9
    single = drawn.with_steps(LocalSteps(1))
    for name in (path,) if drawn.codecs.changes else ("one-step", path):
        expected = single.run(engine(single, "oracle", private), 2)
        assert distance(single.run(engine(single, name, private), 2), expected) < 1e-9


@settings(max_examples=examples(15))
@given(problems(("linear", "mlp", "lstm", "cnn"), codings=EXACT), st.sampled_from(OWNERS))
def test_one_stale_step_is_an_exact_one(drawn: Problem, owner: str) -> None:
    single = drawn.with_steps(LocalSteps(1))
    stale, exact = (engine(single, "auto", keeping(single, owner, sharing)) for sharing in ("stale", "exact"))
    assert distance(single.run(stale, 3), single.run(exact, 3)) < 1e-9


@settings(max_examples=examples(25))
@given(
    st.integers(0, 1000), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.sampled_from(["registry", "b"])
)
def test_stale_answers_are_what_a_few_lines_compute(seed: int, n: int, k: int, q: int, owner: str) -> None:
    """Logistic regression, every client a half-written-out loop over its rows: nothing of tdcd but the data."""
    made = problem(
        ["linear"] * (n + 1), [k] * (n + 1), loss="bce", outputs=1, steps=LocalSteps(q), seed=seed, samples=20, batch=15
    )
    owner = "silo-1" if owner == "b" else owner
    result = made.run(engine(made, "auto", keeping(made, owner, "stale")), 2)

    y = made.tasks["silo-0"].labels.numpy()
    x = {j: np.hstack([task.features.numpy(), np.ones((20, 1))]) for j, task in made.tasks.items()}
    first = made.initial()
    names = list(first["silo-0"])
    w = {j: np.concatenate([first[j][name].numpy().ravel() for name in names]) for j in first}

    def pull(z: Array, rows: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-z)) - y[rows]) * np.where(y[rows] == 1, 2.5, 1.0)

    for number in (1, 2):
        batch = made.round(number).batch.numpy()
        z = sum(x[j] @ w[j] for j in w)
        new = {}
        for j, task in made.tasks.items():
            clients = []
            for client in range(k):
                rows = np.array([p for p in batch if int(task.roster.owner[p]) == client], dtype=int)
                mine = w[j].copy()
                for _ in range(q if len(rows) else 0):
                    now = z[rows] + (x[j][rows] @ (mine - w[j]) if j == owner else 0)
                    mine = mine - made.rate * x[j][rows].T @ pull(now, rows) / len(rows)
                clients.append(mine)
            new[j] = np.mean(clients, 0)
        w = new
    for j in w:
        assert np.allclose(np.concatenate([result[j][name].numpy().ravel() for name in names]), w[j], atol=1e-9)


@settings(max_examples=examples(25))
@given(problems(("linear", "mlp", "cnn-batchnorm")), st.sampled_from(OWNERS), st.sampled_from(["exact", "stale"]))
def test_a_defence_agrees_with_the_oracle(drawn: Problem, owner: str, sharing: Sharing) -> None:
    private = keeping(drawn, owner, sharing, GradientPrivatizer(clip=0.3, noise=0.5))
    expected = drawn.run(engine(drawn, "oracle", private), 2)
    assert distance(drawn.run(engine(drawn, "auto", private), 2), expected) < 1e-9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "gains_by_workers", lambda *_: True)
        assert same(drawn.run(engine(drawn, "auto", private, 3), 2), drawn.run(engine(drawn, "auto", private, 1), 2))


def test_a_defence_without_effect_changes_nothing_and_one_with_effect_does() -> None:
    made = problem(["mlp", "linear"], [3, 2])
    plain = made.run(engine(made, "auto", keeping(made, "silo-0", "exact")), 2)
    wide = made.run(engine(made, "auto", keeping(made, "silo-0", "exact", GradientPrivatizer(clip=1e9))), 2)
    assert distance(plain, wide) < 1e-12
    narrow = made.run(engine(made, "auto", keeping(made, "silo-0", "exact", GradientPrivatizer(clip=0.1))), 2)
    assert distance({"silo-1": plain["silo-1"]}, {"silo-1": narrow["silo-1"]}) > 1e-3
    noisy = [
        made.run(engine(made, "auto", keeping(made, "silo-0", s, GradientPrivatizer(1e3, 1e-3))), 2)
        for s in ("exact", "stale")
    ]
    assert all(distance({"silo-1": plain["silo-1"]}, {"silo-1": blocks["silo-1"]}) > 1e-3 for blocks in noisy)


class Tokens(nn.Module):
    """Rows of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.linear(self.table(rows).mean(1))
        return result


@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_rows_of_whole_numbers(sharing: Sharing) -> None:
    made = problem(["linear", "linear"], [3, 2])
    rows = torch.randint(5, (30, 6), generator=torch.Generator().manual_seed(1))
    tokens = replace(made.tasks["silo-1"], network=Network(Tokens(), torch.float64), features=rows)
    mixed = replace(made, tasks={**made.tasks, "silo-1": tokens})
    private = keeping(mixed, "silo-0", sharing)
    assert distance(mixed.run(engine(mixed, "auto", private), 2), mixed.run(engine(mixed, "oracle", private), 2)) < 1e-9


def test_a_kernel_cannot_wait() -> None:
    made = problem(["linear", "linear"], [2, 2])
    with pytest.raises(ModelError, match="wait for logit gradients between them"):
        engine(made, "kernel", keeping(made, "silo-0", "exact", GradientPrivatizer(clip=1.0)))
    with pytest.raises(ModelError, match="wait for logit gradients between them"):
        step_by_step(made, "kernel", keeping(made, "silo-0", "exact"))


def test_clients_without_labels_have_none() -> None:
    """Whatever the labels at hand say: only those of the silo that keeps them count."""
    made = problem(["mlp", "linear"], [3, 2])
    private = keeping(made, "silo-0", "exact")
    wrong = replace(made.tasks["silo-1"], labels=(made.tasks["silo-1"].labels + 1) % 3)
    mixed = replace(made, tasks={**made.tasks, "silo-1": wrong})
    for make in (engine, step_by_step):
        assert same(made.run(make(made, "auto", private), 2), mixed.run(make(mixed, "auto", private), 2))
    assert distance(made.run(engine(made, "oracle", private), 2), mixed.run(engine(mixed, "oracle", private), 2)) < 1e-9


class Slice(nn.Module):
    """Returns a view of its weights, whatever the rows are."""

    def __init__(self, samples: int, outputs: int, *, expands: bool) -> None:
        super().__init__()
        self.expands = expands
        self.table = nn.Parameter(torch.arange(samples * outputs, dtype=torch.float64).reshape(samples, outputs) / 9)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.table[0].expand(len(rows), -1) if self.expands else self.table[: len(rows)]


@pytest.mark.parametrize("expands", [True, False])
@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_a_network_that_returns_a_view_of_a_weight(sharing: Sharing, expands: bool) -> None:
    made = problem(["linear", "linear"], [2, 3], steps=LocalSteps(3))
    network = Network(Slice(30, 3, expands=expands), torch.float64)
    made = replace(made, tasks={**made.tasks, "silo-1": replace(made.tasks["silo-1"], network=network)})
    private = keeping(made, "silo-0", sharing)
    expected = made.run(engine(made, "oracle", private), 3)
    assert distance(made.run(engine(made, "auto", private), 3), expected) < 1e-12
