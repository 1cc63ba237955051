"""One contract for every engine and compute path: the oracle's numbers, for any federation."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import CODINGS, KERNELS, LINEAR, USERS, Problem, distance, examples, one_round, problem, problems, same
from tdcd.compute import kernels
from tdcd.core.average import Averaging
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Blocks
from tdcd.core.optimizers import SGD
from tdcd.core.task import SiloTask
from tdcd.engines import LocalEngine, local

FAST = ("linear", "mlp", "mlp-tanh", "mlp-gelu", "lstm", "cnn", "cnn-batchnorm", "dropout", *USERS)
ROWS = tuple(codecs for codecs in CODINGS if not codecs.changes)
PATHS = ("auto", "loop", "stacked", "layers")
missing = partial(problems, dropouts=(0.0, 0.4))
"""Federations whose silos may be missing from some sums."""


@settings(max_examples=examples(60))
@given(missing(FAST))
def test_default_engine_agrees_with_the_oracle(drawn: Problem) -> None:
    assert distance(drawn.run(drawn.engine("auto"), 2), drawn.run(drawn.engine("oracle"), 2)) < 1e-9


@settings(max_examples=examples(12))
@given(missing(("resnet18", "cnn-batchnorm", "mlp")))
def test_default_engine_agrees_with_the_oracle_on_deep_networks(drawn: Problem) -> None:
    assert distance(drawn.run(drawn.engine("auto"), 1), drawn.run(drawn.engine("oracle"), 1)) < 1e-9


@settings(max_examples=examples(25))
@given(missing(("linear", "mlp", "mlp-gelu", "cnn", "cnn-batchnorm")))
def test_stacked_path_agrees_with_the_oracle(drawn: Problem) -> None:
    assert distance(drawn.run(drawn.engine("stacked"), 2), drawn.run(drawn.engine("oracle"), 2)) < 1e-9


@settings(max_examples=examples(40))
@given(missing(("linear", "mlp", "mlp-tanh")))
def test_layers_path_agrees_with_the_oracle(drawn: Problem) -> None:
    assert distance(drawn.run(drawn.engine("layers"), 2), drawn.run(drawn.engine("oracle"), 2)) < 1e-9


@pytest.mark.skipif(bool(kernels.load("chain")[1]), reason=f"no kernel here: {kernels.load('chain')[1]}")
@settings(max_examples=examples(80))
@given(missing(("linear", "mlp", "mlp-tanh", "dense", "lstm", "cnn", "images"), LINEAR, losses=KERNELS))
def test_kernel_path_agrees_with_the_oracle(drawn: Problem) -> None:
    plain = drawn.with_steps(LocalSteps(drawn.tasks["silo-0"].steps.count))
    assert distance(plain.run(plain.engine("kernel"), 2), plain.run(plain.engine("oracle"), 2)) < 1e-9
    single = drawn.with_steps(LocalSteps(1))
    assert distance(single.run(single.engine("kernel"), 2), single.run(single.engine("oracle"), 2)) < 1e-9


@pytest.mark.skipif(bool(kernels.load("chain")[1]), reason=f"no kernel here: {kernels.load('chain')[1]}")
@pytest.mark.parametrize("averaging", ["uniform", "samples"])
def test_kernel_in_single_precision_and_many_clients(averaging: Averaging) -> None:
    made = problem(
        ["mlp", "linear", "lstm", "images"],
        [90, 40, 30, 3],
        samples=500,
        batch=400,
        averaging=averaging,
        dtype=torch.float32,
    )
    one = made.run(made.engine("kernel"), 3)
    assert distance(one, made.run(made.engine("loop"), 3)) < 2e-5
    monkey = made.engine("kernel")
    for clients in monkey._workers.values():  # type: ignore[attr-defined]
        clients.compute.threads = 5
    assert same(made.run(monkey, 3), one)


@settings(max_examples=examples(30))
@given(
    missing(("linear", "mlp", "cnn", "lstm"), LINEAR, codings=ROWS),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([0.0, 0.5]),
)
def test_one_step_path_agrees_with_the_oracle(drawn: Problem, decay: float, momentum: float) -> None:
    single = drawn.with_steps(LocalSteps(1, optimizer=SGD(momentum), weight_decay=decay))
    assert distance(single.run(single.engine("one-step"), 2), single.run(single.engine("oracle"), 2)) < 1e-9


@settings(max_examples=examples(20))
@given(missing(FAST))
def test_the_number_of_workers_changes_no_bit(drawn: Problem) -> None:
    """Also where workers gain nothing: all of them are made to work."""
    one = drawn.run(drawn.engine("auto", 1), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "gains_by_workers", lambda *_: True)
        for workers in (2, 3, 8):
            assert same(drawn.run(drawn.engine("auto", workers), 2), one)


@pytest.mark.parametrize("kind", ["tied", "shared", "remembers", "fixed", "odd", "dropout"])
@pytest.mark.parametrize("path", ["auto", "loop"])
def test_users_modules_agree_with_the_oracle(kind: str, path: str) -> None:
    """On a network used before: it must be left as it was."""
    made = problem([kind, "linear"], [3, 2])
    first = made.initial()
    expected = made.run(made.engine("oracle"), 3)
    assert distance(made.run(made.engine(path), 3), expected) < 1e-9
    assert same(made.initial(), first)


@pytest.mark.parametrize("path", ["oracle", *PATHS])
@pytest.mark.parametrize("loss", ["ce", "bce", "se"])
def test_a_round_changes_every_block_and_nothing_that_was_given(path: str, loss: str) -> None:
    made = problem(["mlp", "linear"], [3, 2], loss=loss, outputs=1 if loss == "bce" else 3)
    before, kept = made.initial(), made.initial()
    after = one_round(made.engine(path), before, made.round(1))
    assert same(before, kept)
    for silo in before:
        assert distance({silo: before[silo]}, {silo: after[silo]}) > 1e-4


@pytest.mark.parametrize("path", ["oracle", *PATHS])
def test_a_round_is_a_pure_function(path: str) -> None:
    made = problem(["mlp", "linear", "mlp"], [3, 2, 4])
    engine = made.engine(path)
    blocks = one_round(engine, made.initial(), made.round(1))
    torch.manual_seed(7)
    one_round(engine, blocks, made.round(2))
    assert same(blocks, one_round(engine, made.initial(), made.round(1)))


@pytest.mark.parametrize("path", ["oracle", "auto"])
def test_dropout_draws_from_the_round_and_leaves_the_global_stream_alone(path: str) -> None:
    made = problem(["dropout", "dropout"], [3, 2])
    engine = made.engine(path)
    torch.manual_seed(1)
    first = one_round(engine, made.initial(), made.round(1))
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))
    again = one_round(engine, made.initial(), made.round(1))
    assert same(first, again)


def test_dropout_differs_between_silos_seeds_and_clients() -> None:
    """Two silos with the same rows, weights and clients part ways only by what dropout draws."""
    made = problem(["dropout", "dropout"], [1, 1], samples=8, batch=8)
    one = made.tasks["silo-0"]
    twin = replace(one, silo="silo-1")

    def first_step(task: SiloTask) -> Blocks:
        engine = LocalEngine(replace(made.training(), tasks={"x": task}))
        return one_round(engine, {"x": one.network.initial()}, made.round(1))

    base = first_step(one)
    assert same(base, first_step(replace(one)))
    assert distance(base, first_step(twin)) > 0
    assert distance(base, first_step(replace(one, seed=9))) > 0
    renamed = replace(one.roster, clients=("another",))
    assert distance(base, first_step(replace(one, roster=renamed))) > 0


@pytest.mark.parametrize("path", ["oracle", "auto", "stacked"])
def test_a_client_without_rows_in_the_batch_counts_with_the_hubs_weights(path: str) -> None:
    """Two clients, one row in the batch: the uniform mean goes half as far, the weighted mean all the way."""
    steps = LocalSteps(2)
    uniform = problem(["linear"], [2], batch=1, steps=steps)
    weighted = problem(["linear"], [2], batch=1, steps=steps, averaging="samples")
    start = uniform.initial()["silo-0"]
    half = uniform.run(uniform.engine(path), 1)["silo-0"]
    whole = weighted.run(weighted.engine(path), 1)["silo-0"]
    for name, weights in start.items():
        assert torch.allclose(2 * (half[name] - weights), whole[name] - weights, atol=1e-12)


def test_batchnorm_statistics_are_averaged_over_the_clients() -> None:
    made = problem(["cnn-batchnorm"], [3], samples=12, batch=12, steps=LocalSteps(2))
    after = made.run(made.engine("auto"), 1)["silo-0"]
    task = made.tasks["silo-0"]
    means = []
    for k in range(3):
        block = task.network.initial()
        rows = (task.roster.owner == k).nonzero()[:, 0]
        task.network(block, task.features[rows], training=True)
        means.append(block["1.running_mean"])
    once = torch.stack(means).mean(0)
    one_step = problem(["cnn-batchnorm"], [3], samples=12, batch=12, steps=LocalSteps(1))
    result = one_step.run(one_step.engine("auto"), 1)["silo-0"]["1.running_mean"]
    assert torch.allclose(result, once, atol=1e-12)
    assert after["1.num_batches_tracked"].item() == 2
    assert after["1.num_batches_tracked"].dtype == torch.int64
