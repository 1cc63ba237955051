"""Federations to measure on: the paper's shapes with made-up rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tdcd.core.average import Averaging
from tdcd.core.codecs import Codec, Codecs, Plain
from tdcd.core.gradients import PrivateLabels
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Blocks, Network
from tdcd.core.objectives import BinaryCrossEntropy, CrossEntropy, Objective
from tdcd.core.sampling import draw_batch
from tdcd.core.state import SiloState
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Roster
from tdcd.engines import Training
from tdcd.models import CNN, LSTM, MLP, Linear, ModelSpec, ResNet18


class Gated(nn.Module):
    """A GRU and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.linear = nn.GRU(19, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, rows: Tensor) -> Tensor:  # noqa: D102
        embedding: Tensor = self.linear(self.gru(rows)[1][-1])
        return embedding


class Attention(nn.Module):
    """A transformer's layer over the time steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(19, 32), nn.Linear(32, 1)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:  # noqa: D102
        embedding: Tensor = self.last(self.encoder(self.first(rows)).mean(1))
        return embedding


class Branching(nn.Module):
    """Looks at its numbers before it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(25, 64), nn.Linear(64, 10)

    def forward(self, rows: Tensor) -> Tensor:  # noqa: D102
        hidden = self.first(rows).relu()
        embedding: Tensor = self.last(hidden if hidden.mean().item() > 0.1 else hidden / 2)
        return embedding


def _mlp(width: int, *between: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(25, width), *(layer() for layer in between),
        nn.Linear(width, width), *(layer() for layer in between),
        nn.Linear(width, 10),
    )  # fmt: skip


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "gru": Gated,
    "attention": Attention,
    "branch on the data": Branching,
    "batch norm": lambda: _mlp(128, lambda: nn.BatchNorm1d(128), nn.ReLU),
    "layer norm": lambda: _mlp(128, lambda: nn.LayerNorm(128), nn.GELU),
    "dropout": lambda: _mlp(128, nn.ReLU, lambda: nn.Dropout(0.2)),
    "wide mlp": lambda: _mlp(1024, nn.ReLU),
    "conv1d": lambda: nn.Sequential(
        nn.Conv1d(48, 32, 3), nn.ReLU(), nn.Conv1d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(480, 1)
    ),
}
"""Modules that no path is made for."""
_ROWS: dict[str, tuple[tuple[int, ...], int]] = dict.fromkeys(("gru", "attention", "conv1d"), ((48, 19), 1))


@dataclass(frozen=True)
class Kind:
    """A network, the rows it takes and the loss it ends in."""

    model: ModelSpec | Callable[[], nn.Module]
    shape: tuple[int, ...]
    outputs: int
    samples: int


KINDS = {
    "linear": Kind(Linear(), (25,), 1, 50_000),
    "mlp": Kind(MLP(hidden=[128, 128]), (25,), 10, 50_000),
    "lstm": Kind(LSTM(hidden=16), (48, 19), 1, 14_681),
    "cnn-8x8": Kind(CNN(), (1, 8, 8), 10, 10_000),
    "cnn-32x16": Kind(CNN(), (3, 32, 16), 10, 10_000),
    "cnn-batchnorm": Kind(CNN(batch_norm=True), (1, 8, 8), 10, 10_000),
    "resnet18": Kind(ResNet18(), (3, 32, 16), 10, 2_000),
    "narrow resnet18": Kind(ResNet18(width=8), (3, 32, 16), 10, 2_000),
    **{
        name: Kind(make, (48, 19), 1, 4_000)
        if name in ("gru", "attention", "conv1d")
        else Kind(make, (25,), 10, 20_000)
        for name, make in OTHERS.items()
    },
}


def _module(kind: Kind) -> nn.Module:
    return kind.model.module(kind.shape, kind.outputs) if isinstance(kind.model, ModelSpec) else kind.model()


@dataclass(frozen=True)
class Workload:
    """A federation and one round of it."""

    name: str
    tasks: dict[str, SiloTask]
    blocks: Blocks
    round: Round
    codecs: Codecs

    def training(self, private: PrivateLabels | None = None) -> Training:
        """Return what an engine computes: every round is this one."""
        return Training(
            self.tasks, lambda _: self.round.batch, lambda _: self.round.rate, private=private, codecs=self.codecs
        )

    def states(self) -> dict[str, SiloState]:
        """Return the states that the round begins with."""
        return {silo: SiloState(block) for silo, block in self.blocks.items()}


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
    codec: Codec = Plain(),  # noqa: B008 - frozen
) -> Workload:
    """Make a workload; rows fall to clients at random, independently in every silo."""
    made, codecs = KINDS[kind], Codecs(codec, codec)
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
            network=Network(_module(made), dtype),
            features=torch.randn(count, *made.shape, generator=generator, dtype=dtype),
            labels=labels,
            roster=Roster(tuple(f"c{k}" for k in range(clients)), owner),
            objective=objective,
            steps=LocalSteps(local_steps),
            averaging=averaging,
            updates=codecs.weights if codecs.changes else None,
            seed=0,
            width=made.outputs,
        )
    name = f"{kind}, N={silos}, K={clients}, Q={local_steps}, batch {batch}"
    blocks = {silo: task.network.initial() for silo, task in tasks.items()}
    return Workload(name, tasks, blocks, Round(1, draw_batch(0, 1, count, batch), 0.01), codecs)
