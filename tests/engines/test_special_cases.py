"""Algebra: cases in which TDCD is a known algorithm, each written again in a few independent lines."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tdcd
from tdcd.training.simulation import EngineName

RNG = np.random.default_rng(3)
SAMPLES, ROUNDS, RATE = 20, 4, 0.3
X = RNG.normal(size=(SAMPLES, 6))
Y = RNG.integers(0, 3, SAMPLES)
BATCHES = [np.sort(RNG.permutation(SAMPLES)[:9]) for _ in range(ROUNDS)]
ENGINES: list[EngineName] = ["local", "oracle"]


def net(features: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def settings(local_steps: int, **more: str) -> tdcd.Settings:
    return tdcd.Settings.model_validate(
        {"loss": "cross-entropy", "rounds": ROUNDS, "local_steps": local_steps, "rate": RATE, "precision": "float64"}
        | more
    )


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach() for p in model.parameters()]


def close(result: tdcd.Result, models: dict[str, nn.Module]) -> None:
    for silo, model in models.items():
        for match, expected in zip(result.blocks[silo].values(), weights(model), strict=True):
            assert torch.allclose(match, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_silo_is_local_sgd_with_periodic_averaging(engine: EngineName) -> None:
    held = np.array_split(RNG.permutation(SAMPLES), 3)
    start = net(6, 0)
    federation = tdcd.Federation.from_silos([tdcd.Silo("only", X, held)], Y)
    result = tdcd.train(federation, {"only": start}, settings(4), batches=BATCHES, engine=engine)

    model, x, y = copy.deepcopy(start), torch.tensor(X), torch.tensor(Y)
    for batch in BATCHES:
        copies = []
        for rows in held:
            local, mine = copy.deepcopy(model), sorted(set(rows) & set(batch))
            for _ in range(4 if mine else 0):
                gradient = torch.autograd.grad(F.cross_entropy(local(x[mine]), y[mine]), list(local.parameters()))
                for p, g in zip(local.parameters(), gradient, strict=True):
                    p.data -= RATE * g
            copies.append(weights(local))
        for p, *clients in zip(model.parameters(), *copies, strict=True):
            p.data = torch.stack(clients).mean(0)
    close(result, {"only": model})


@pytest.mark.parametrize("engine", ENGINES)
def test_one_client_a_silo_is_single_tier_vertical_training(engine: EngineName) -> None:
    """FedBCD in parallel: every party takes Q steps on its block, the others' embeddings held still."""
    blocks = {"a": X[:, :2], "b": X[:, 2:5], "c": X[:, 5:]}
    start = {silo: net(rows.shape[1], seed) for seed, (silo, rows) in enumerate(blocks.items())}
    silos = [tdcd.Silo(silo, rows, [range(SAMPLES)]) for silo, rows in blocks.items()]
    result = tdcd.train(tdcd.Federation.from_silos(silos, Y), start, settings(5), batches=BATCHES, engine=engine)

    models, y = copy.deepcopy(start), torch.tensor(Y)
    for batch in BATCHES:
        x = {silo: torch.tensor(rows)[batch] for silo, rows in blocks.items()}
        sent = {silo: model(x[silo]).detach() for silo, model in models.items()}
        for silo, model in models.items():
            others = sum((sent[other] for other in sent if other != silo), torch.zeros_like(sent[silo]))
            for _ in range(5):
                loss = F.cross_entropy(model(x[silo]) + others, y[batch])
                for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                    p.data -= RATE * g
    close(result, models)


def central_sgd(start: dict[str, nn.Module], blocks: dict[str, np.ndarray]) -> dict[str, nn.Module]:
    """One SGD step a round on the joined rows, all blocks at once."""
    models, y = nn.ModuleDict(copy.deepcopy(start)), torch.tensor(Y)
    optimiser = torch.optim.SGD(models.parameters(), lr=RATE)
    for batch in BATCHES:
        optimiser.zero_grad()
        scores = torch.stack([models[silo](torch.tensor(rows)[batch]) for silo, rows in blocks.items()]).sum(0)
        F.cross_entropy(scores, y[batch]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return dict(models)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_with_one_client_a_silo_is_central_sgd(engine: EngineName) -> None:
    blocks = {"a": X[:, :4], "b": X[:, 4:]}
    start = {"a": net(4, 1), "b": net(2, 2)}
    silos = [tdcd.Silo(silo, rows, [range(SAMPLES)]) for silo, rows in blocks.items()]
    result = tdcd.train(tdcd.Federation.from_silos(silos, Y), start, settings(1), batches=BATCHES, engine=engine)
    close(result, central_sgd(start, blocks))


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_weighted_by_samples_is_central_sgd_for_any_clients(engine: EngineName) -> None:
    blocks = {"a": X[:, :4], "b": X[:, 4:]}
    start = {"a": net(4, 1), "b": net(2, 2)}
    silos = [
        tdcd.Silo("a", blocks["a"], np.split(RNG.permutation(SAMPLES), [3, 4, 11])),
        tdcd.Silo("b", blocks["b"], np.split(RNG.permutation(SAMPLES), [15])),
    ]
    federation = tdcd.Federation.from_silos(silos, Y)
    result = tdcd.train(federation, start, settings(1, averaging="samples"), batches=BATCHES, engine=engine)
    close(result, central_sgd(start, blocks))
