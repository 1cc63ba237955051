"""Momentum: within a round, from round to round, and in what a federation is compared with."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcd
from support import Interrupt, same
from tdcd.core.optimizers import SGD, Adam
from tdcd.jobs.data import load_data
from tdcd.jobs.load import parse_job
from tdcd.jobs.run import run_variant, variant_job

TRAINING: dict[str, Any] = {
    "loss": "binary-cross-entropy",
    "rounds": 6,
    "local_steps": 3,
    "batch_size": 40,
    "rate": 0.1,
    "optimizer": {"kind": "sgd", "momentum": 0.9},
    "precision": "float64",
    "evaluate_every": 2,
    "checkpoint_every": 5,
}


def job(**training: Any) -> tdcd.Job:
    data = {"source": "breast-cancer", "features": {"kind": "contiguous", "silos": 2}, "clients": 4}
    return parse_job({"data": data, "model": {"kind": "linear"}, "training": TRAINING | training}, "job")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"weight_decay": 0.05},
        {"clip_norm": 0.2},
        {"schedule": {"kind": "step", "every": 2, "factor": 0.5}},
        {"schedule": {"kind": "cosine"}},
        {"optimizer": "sgd"},
        {"optimizer": "adam"},
        {"optimizer": {"kind": "adam", "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-4}, "weight_decay": 0.05},
    ],
)
@pytest.mark.parametrize("variant", ["central", "silo-2 alone"])
def test_baselines_are_torchs_optimizers_on_the_joined_data(variant: str, more: dict[str, Any]) -> None:
    """One optimiser of torch's that takes every step, its momentum never reset."""
    wanted = job(**more)
    data = load_data(wanted)
    result = run_variant(wanted, data, variant, None)
    settings = variant_job(wanted, variant).training
    assert settings.rounds == 18
    names = ["silo-2"] if "alone" in variant else ["silo-1", "silo-2"]
    rows, labels = data.federation.samples.features, data.federation.samples.labels.double()
    modules = {name: network.module for name, network in result.networks.items()}
    assert sorted(modules) == names
    one = nn.ModuleDict({name: copy.deepcopy(module) for name, module in modules.items()}).train()
    rule = wanted.training.optimizer
    rates: dict[str, Any] = {"lr": settings.rate, "weight_decay": settings.weight_decay}
    optimiser: torch.optim.Optimizer
    if isinstance(rule, Adam):
        betas = (rule.beta1, rule.beta2)
        optimiser = torch.optim.Adam(one.parameters(), betas=betas, eps=rule.epsilon, **rates)
    else:
        assert isinstance(rule, SGD)
        optimiser = torch.optim.SGD(one.parameters(), momentum=rule.momentum, **rates)
    for number in range(1, settings.rounds + 1):
        optimiser.param_groups[0]["lr"] = settings.rate_of(number)
        batch = settings.sample_batch(number, len(labels))
        optimiser.zero_grad()
        scores = sum(one[name](rows[name][batch].double()) for name in names)
        assert isinstance(scores, torch.Tensor)
        loss = nn.functional.binary_cross_entropy_with_logits(scores[:, 0], labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm:
            for module in one.values():  # every silo clips its own gradient
                nn.utils.clip_grad_norm_(module.parameters(), settings.clip_norm)
        optimiser.step()
    for name in names:
        for weight, value in one[name].named_parameters():
            assert torch.allclose(result.blocks[name][weight], value.detach(), rtol=0, atol=1e-12), (name, weight)


def test_a_federation_does_not_beat_its_central_baseline_by_momentum_alone() -> None:
    """With one client a silo and fresh embeddings in each step, central training is what a federation aims at."""
    wanted = job(rounds=30, batch_size="full")
    data = load_data(wanted)
    central, federation = (run_variant(wanted, data, name, None) for name in ("central", "federation"))
    assert central.kept.train["loss"] < federation.kept.train["loss"]


@pytest.mark.parametrize("after", [1, 2, 5, 7])
def test_carried_momentum_survives_a_stop_to_the_bit(tmp_path: Path, after: int) -> None:
    wanted = job(local_steps=2, optimizer="sgd", aggregator={"kind": "momentum", "momentum": 0.7}, rounds=9)
    data = load_data(wanted)

    whole = run_variant(wanted, data, "federation", None)
    with pytest.raises(KeyboardInterrupt):
        run_variant(wanted, data, "federation", tmp_path, callbacks=[Interrupt(after)])
    resumed = run_variant(wanted, data, "federation", tmp_path, resume=True)
    assert same(resumed.blocks, whole.blocks)
    plain = run_variant(job(local_steps=2, optimizer="sgd", rounds=9), data, "federation", None)
    assert not same(whole.blocks, plain.blocks)


def test_momentum_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(tdcd.JobError, match="with local_steps = 1 it does nothing; let the hub carry it"):
        job(local_steps=1)
