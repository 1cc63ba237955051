"""Losses: torch's own numbers, a user's own on every path, and what is wrong is named. The contract suite draws all."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tdcd
from seams.sites import at_sites, check_equal, simulated, wanted
from support import OBJECTIVES as DRAWN
from support import distance, same
from tdcd.core.objectives import OBJECTIVES, Huber, Objective, Poisson, SquaredError
from tdcd.core.objectives.regression import Regression
from tdcd.jobs.load import parse_job
from tdcd.training.metrics import measure
from tdcd.training.settings import OBJECTIVE

X = np.random.default_rng(3).normal(size=(60, 6))
Y = X.sum(1) + np.random.default_rng(4).normal(size=60)


def test_every_kind_of_the_package_is_drawn_in_the_contract_suite() -> None:
    assert {type(one) for one in DRAWN.values()} == set(OBJECTIVES.values())


@pytest.mark.parametrize("loss", DRAWN.values(), ids=repr)
def test_it_is_written_as_it_is_read(loss: Objective) -> None:
    assert OBJECTIVE.read(OBJECTIVE.write(loss)) == loss


def test_values_are_those_of_torch() -> None:
    scores, counts = torch.randn(7, 2, dtype=torch.float64) * 3, torch.randint(6, (7, 2)).double()
    assert torch.allclose(Huber(0.5).losses(scores, counts).mean(), F.huber_loss(scores, counts, delta=0.5), rtol=1e-12)
    expected = F.poisson_nll_loss(scores, counts, log_input=True, full=False)
    assert torch.allclose(Poisson().losses(scores, counts).mean(), expected, rtol=1e-12)
    for loss in (Huber(0.5), Poisson(), SquaredError()):
        assert torch.allclose(loss.gradient(scores, counts), Objective.gradient(loss, scores, counts), atol=1e-12)
    assert measure(Poisson(), scores, counts)["mse"] == pytest.approx(float((scores.exp() - counts).square().mean()))


@dataclass(frozen=True)
class Absolute(Regression):
    """A user's own: the absolute error; its gradient is derived."""

    scale: float = 1.0

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.scale * (scores - labels).abs().mean(-1)


@dataclass(frozen=True)
class Wrong(Absolute):
    gradients: Any = field(default=None)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return super().losses(scores, labels)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.gradients(scores)  # type: ignore[no-any-return]


def train(objective: Any, **more: Any) -> tdcd.Result:
    silos = [
        tdcd.Silo("a", X[:, :3], [range(35), range(35, 60)]),
        tdcd.Silo("b", X[:, 3:], [range(0, 60, 2), range(1, 60, 2)]),
    ]
    settings = {"loss": "squared-error", "rounds": 4, "local_steps": 3, "batch_size": 25, "rate": 0.05}
    made = tdcd.Settings.model_validate(settings | {"precision": "float64"})
    return tdcd.train(
        tdcd.Federation.from_silos(silos, Y), tdcd.models.MLP(hidden=[4]), made, objective=objective, **more
    )


@pytest.mark.parametrize("path", ["auto", "loop", "stacked", "layers"])
def test_one_of_ones_own_is_honoured_on_every_path(path: Any) -> None:
    result = train(Absolute(), compute=path)
    assert distance(result.blocks, train(Absolute(), compute="loop").blocks) < 1e-9
    assert not same(result.blocks, train(SquaredError(), compute=path).blocks)
    assert set(result.history[-1].train) == {"loss", "mse", "r2"}
    assert result.history[-1].train["loss"] < result.history[0].train["loss"]


def test_kernel_and_oracle_refuse_one_of_ones_own_by_name() -> None:
    with pytest.raises(tdcd.ModelError, match="kernels do not know the loss Absolute"):
        train(Absolute(), compute="kernel")
    with pytest.raises(tdcd.ModelError, match="the oracle does not know the loss Absolute"):
        train(Absolute(), engine="oracle")


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (lambda scores: scores[:1], "'gradient' became torch.float64 of shape"),
        (lambda scores: scores.float(), "'gradient' became torch.float32"),
        (lambda scores: scores / 0, "'gradient' became numbers that are not finite"),
        (lambda scores: None, "'gradient' became NoneType, not a tensor"),
        (lambda scores: 1 / 0, "it failed: ZeroDivisionError"),
    ],
)
def test_what_a_wrong_one_returns_is_refused_and_named(gradients: Any, message: str) -> None:
    with pytest.raises(tdcd.ModelError, match=r"objective '.*:Wrong': " + message):
        train(Wrong(gradients=gradients))


def test_a_job_names_one_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_losses.py").write_text(
        "import tdcd\ndef weighted(weight=1.0):\n    return tdcd.objectives.BinaryCrossEntropy(weight)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = {"source": "breast-cancer", "features": {"kind": "contiguous", "silos": 2}, "clients": 3}

    def run(loss: Any) -> tdcd.Result:
        training = {"loss": loss, "rounds": 4, "local_steps": 3, "rate": 0.1}
        table = {"data": data, "model": {"kind": "linear"}, "baselines": [], "training": training}
        return tdcd.run_job(parse_job(table, "job")).federation

    wanted = run({"kind": "binary-cross-entropy", "positive_weight": 3.0})
    assert same(run({"kind": "own_losses:weighted", "options": {"weight": 3.0}}).blocks, wanted.blocks)
    assert not same(run("binary-cross-entropy").blocks, wanted.blocks)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"kind": "huber", "delta": 0}, "loss: delta: should be a number above 0"),
        ({"kind": "huber", "beta": 1}, "loss: unknown key 'beta' of the kind 'huber'"),
        ({"kind": "binary-cross-entropy", "positive_weight": -1}, "loss: positive_weight: should be a number above 0"),
        ("hubert", "loss: unknown kind of loss 'hubert'; did you mean 'huber'"),
    ],
)
def test_what_is_no_loss_is_refused(loss: Any, message: str) -> None:
    with pytest.raises(tdcd.JobError, match=message):
        tdcd.Settings(loss=loss, rounds=1, rate=0.1)


def test_counts_below_zero_are_refused() -> None:
    with pytest.raises(tdcd.DataError, match="labels out of range: .*; poisson takes counts, 0 and more"):
        train(Poisson())


@pytest.mark.parametrize("loss", [{"kind": "huber", "delta": 0.3}, {"kind": "poisson"}], ids=str)
@pytest.mark.parametrize("sharing", [None, "exact", "stale"])
def test_at_sites(loss: dict[str, Any], sharing: str | None, tmp_path: Path) -> None:
    labels = {"silo": "silo-1", "sharing": sharing} if sharing else None
    job = wanted(labels, loss=loss)
    check_equal(at_sites(job, tmp_path), simulated(job), 1e-9 if sharing else 0.0)


@dataclass(frozen=True)
class Reduced(Regression):
    """Forgets that it is asked for a number for each row."""

    reduce: Any = None

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.reduce((scores - labels).abs())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("reduce", "message"),
    [
        (lambda errors: errors.mean(), r"'losses' became torch.float64 of shape \(\), not torch.float64 of shape \("),
        (lambda errors: errors.mean(0), r"'losses' became torch.float64 of shape \(1,\), not"),
        (lambda errors: None, "'losses' became NoneType, not a tensor"),
        (lambda errors: 1 / 0, "it failed: ZeroDivisionError"),
    ],
)
def test_losses_that_are_not_one_a_row_are_refused(reduce: Any, message: str) -> None:
    with pytest.raises(tdcd.ModelError, match=r"objective '.*:Reduced': " + message):
        train(Reduced(reduce))
