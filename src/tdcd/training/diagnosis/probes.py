"""Measurements that a simulation makes beside the training. They change no bit of it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tdcd.compute.whole import embed_whole
from tdcd.core.aggregators import Average
from tdcd.core.network import Block, Blocks
from tdcd.core.objectives.base import row_losses
from tdcd.core.streams import borrow_stream
from tdcd.core.task import SiloTask, sum_embeddings
from tdcd.data.holdout import Part
from tdcd.engines.simulation import simulated
from tdcd.training.callbacks.base import Callback, FinishedRound
from tdcd.training.diagnosis.evidence import Contribution, Overshoot
from tdcd.training.simulation import Simulation

PROBES = 8
"""Rounds that are looked at in a training."""
ROWS = 5_000
"""Rows that a measurement takes, at most."""


class OvershootProbe(Callback):
    """Looks at a few rounds: would the loss of the mini-batch fall further if hubs went a part of the way?"""

    def __init__(self, simulation: Simulation) -> None:
        self.seen: list[Overshoot] = []
        rounds, silos = simulation.settings.rounds, len(simulation.training.tasks)
        fits = silos > 1 and isinstance(simulation.settings.make_aggregator(), Average) and has_rows(simulation)
        self._due = {max(1, round(rounds * (2 * k + 1) / (2 * PROBES))) for k in range(PROBES)} if fits else set()
        self._steps = sorted({1.0, 0.5, 1 / silos}, reverse=True) if fits else []

    def after_round(self, finished: FinishedRound) -> None:
        """See Callback."""
        if finished.number not in self._due or finished.simulation is None:
            return
        training = finished.simulation.training
        rows = _some(finished.batch)
        _, tasks = simulated(training)
        labels = training.private.labels if training.private else next(iter(tasks.values())).labels
        before, after = finished.before.weights, finished.after.weights

        def loss(step: float) -> float:
            weights = {silo: _between(before[silo], after[silo], step) for silo in tasks}
            embedded = _embed(tasks, weights, {silo: task.features[rows] for silo, task in tasks.items()})
            return _loss(finished.simulation, sum_embeddings(embedded), labels[rows])

        self.seen.append(Overshoot(finished.number, loss(0.0), {step: loss(step) for step in self._steps}))


def contributions(simulation: Simulation, blocks: Blocks) -> dict[str, Contribution]:
    """Return what each silo adds to the loss on held-out samples: of validation, or else for testing."""
    parts = simulation.training.parts
    part = next((part for part in (Part.VALIDATION, Part.TEST) if part in parts), None)
    _, tasks = simulated(simulation.training)
    if part is None or len(tasks) < 2 or not has_rows(simulation):
        return {}
    samples = parts[part]
    rows = _some(torch.arange(len(samples)))
    embedded = _embed(tasks, blocks, {silo: samples.features[silo][rows] for silo in tasks})
    labels = samples.labels[rows]
    whole = _loss(simulation, sum_embeddings(embedded), labels)
    return {
        silo: Contribution(
            whole,
            _loss(simulation, sum_embeddings(embedded | {silo: own.mean(0, keepdim=True).expand_as(own)}), labels),
        )
        for silo, own in embedded.items()
    }


def has_rows(simulation: Simulation) -> bool:
    """Tell whether the rows are in this process, and not at the nodes of a cluster."""
    return not any(task.features.is_meta for task in simulation.training.tasks.values())


def _some(rows: Tensor) -> Tensor:
    """Return some rows of many, evenly spread."""
    return rows[:: -(-len(rows) // ROWS)]


def _between(before: Block, after: Block, step: float) -> Block:
    """Return the weights a part of the way; what are no weights, such as counters, as they are after the round."""
    return {
        name: torch.lerp(before[name], tensor, step) if tensor.is_floating_point() else tensor
        for name, tensor in after.items()
    }


def _embed(tasks: Mapping[str, SiloTask], weights: Blocks, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    result = {}
    for silo, task in tasks.items():
        with borrow_stream(task.network.device):
            given = rows[silo].to(task.network.device)
            result[silo] = embed_whole(silo, task.network, weights[silo], given).cpu()
    return result


def _loss(simulation: Simulation | None, scores: Tensor, labels: Tensor) -> float:
    assert simulation  # noqa: S101
    truth = labels.cpu()
    truth = truth.double() if truth.is_floating_point() else truth
    return float(row_losses(simulation.settings.objective, scores.double(), truth).mean())
