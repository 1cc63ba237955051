"""No line of a round may assume that features and weights lie in the main memory.

There is no graphics card here. Torch's "meta" device stands in: its tensors have shapes and types but no numbers, and
whatever mixes them with tensors of the main memory, or asks for a number, fails.
"""

import sys
from dataclasses import replace

import pytest
import torch

from support import one_round, problem
from tdcd.compute import choose
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Network
from tdcd.core.optimizers import SGD
from tdcd.engines import LocalEngine, clients

META = torch.device("meta")
PATHS = [
    ("layers", "mlp", LocalSteps(2)),
    ("layers", "linear", LocalSteps(3, optimizer=SGD(0.5), weight_decay=0.1, clip_norm=1.0)),
    ("stacked", "cnn", LocalSteps(2)),
    ("stacked", "cnn-batchnorm", LocalSteps(2)),
    ("loop", "lstm", LocalSteps(2)),
    ("loop", "cnn-batchnorm", LocalSteps(2, optimizer=SGD(0.9), clip_norm=1.0)),
    ("loop", "resnet18", LocalSteps(1)),
    ("one-step", "mlp", LocalSteps(1, weight_decay=0.1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "kind", "steps"), PATHS)
@pytest.mark.parametrize("averaging", ["uniform", "samples"])
def test_a_round_on_another_device(
    path: str, kind: str, steps: LocalSteps, averaging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tdcd.compute.choose"], "_stacking_fails", lambda _: "")  # it compares numbers
    made = problem([kind, kind], [5, 3], samples=60, batch=40, steps=steps, averaging=averaging)  # type: ignore[arg-type]
    tasks = {
        silo: replace(
            task,
            network=Network(task.network.module, torch.float64, META),
            features=task.features.to(META),
            labels=task.labels.to(META),
        )
        for silo, task in made.tasks.items()
    }
    monkeypatch.setattr(clients, "left_finite", lambda *_: False)  # it looks at numbers, too
    engine = LocalEngine(replace(made.training(), tasks=tasks), path, workers=4)  # type: ignore[arg-type]
    blocks = {silo: task.network.initial() for silo, task in tasks.items()}
    after = one_round(engine, blocks, made.round(1))
    for silo, block in after.items():
        for name, tensor in block.items():
            assert tensor.device == META
            assert tensor.shape == blocks[silo][name].shape
    assert engine.scores(after, {silo: task.features for silo, task in tasks.items()}).device == META


def test_kernels_are_for_the_main_memory() -> None:
    task = problem(["mlp"], [3]).tasks["silo-0"]
    away = replace(task, network=Network(task.network.module, torch.float64, META), features=task.features.to(META))
    assert choose(away)[0] == "layers"
