"""Federations to measure on: the paper's shapes with made-up rows."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tdcd.core.average import Averaging
from tdcd.core.client import LocalSteps
from tdcd.core.network import Blocks, Network
from tdcd.core.objective import BinaryCrossEntropy, CrossEntropy, Objective
from tdcd.core.round import Round
from tdcd.core.sampling import draw_batch
from tdcd.core.task import SiloTask
from tdcd.core.topology import Roster
from tdcd.models import CNN, LSTM, MLP, Linear, ModelSpec, ResNet18


@dataclass(frozen=True)
class Kind:
    """A network, the rows it takes and the loss it ends in."""

    model: ModelSpec
    shape: tuple[int, ...]
    outputs: int
    samples: int


KINDS = {
    "linear": Kind(Linear(), (25,), 1, 50_000),
    "mlp": Kind(MLP(hidden=[128, 128]), (25,), 10, 50_000),
    "lstm": Kind(LSTM(hidden=16), (48, 19), 1, 14_681),
    "cnn-8x8": Kind(CNN(), (1, 8, 8), 10, 10_000),
    "cnn-32x16": Kind(CNN(), (3, 32, 16), 10, 10_000),
    "resnet18": Kind(ResNet18(), (3, 32, 16), 10, 2_000),
}


@dataclass(frozen=True)
class Workload:
    """A federation and one round of it."""

    name: str
    tasks: dict[str, SiloTask]
    blocks: Blocks
    round: Round


def workload(
    kind: str,
    *,
    silos: int = 4,
    clients: int = 50,
    local_steps: int = 10,
    batch: int = 2000,
    samples: int | None = None,
    averaging: Averaging = "uniform",
    dtype: torch.dtype = torch.float32,
    module: nn.Module | None = None,
) -> Workload:
    """Make a workload; rows fall to clients at random, independently in every silo."""
    made = KINDS[kind]
    count = max(samples or made.samples, clients)
    generator = torch.Generator().manual_seed(0)
    objective: Objective = BinaryCrossEntropy() if made.outputs == 1 else CrossEntropy()
    labels: Tensor = torch.randint(max(2, made.outputs), (count,), generator=generator)
    labels = objective.prepare(labels, made.outputs, dtype)
    torch.manual_seed(0)
    tasks = {}
    for j in range(silos):
        owner = torch.cat([torch.arange(clients), torch.randint(clients, (count - clients,), generator=generator)])
        tasks[f"silo-{j:02d}"] = SiloTask(
            silo=f"silo-{j:02d}",
            network=Network(module or made.model.module(made.shape, made.outputs), dtype),
            features=torch.randn(count, *made.shape, generator=generator, dtype=dtype),
            labels=labels,
            roster=Roster(tuple(f"c{k}" for k in range(clients)), owner),
            objective=objective,
            steps=LocalSteps(local_steps),
            averaging=averaging,
            seed=0,
            width=made.outputs,
        )
    name = f"{kind}, N={silos}, K={clients}, Q={local_steps}, batch {batch}"
    blocks = {silo: task.network.initial() for silo, task in tasks.items()}
    return Workload(name, tasks, blocks, Round(1, draw_batch(0, 1, count, batch), 0.01))
