"""Whether a training meets the assumptions of Theorem 1, as far as its settings, networks and rosters show."""

from collections.abc import Iterator

import numpy as np
from torch import nn

from tdcd.compute.modules import never_draws
from tdcd.core.aggregators import Average
from tdcd.core.optimizers import SGD
from tdcd.errors import join_names
from tdcd.registry import Imported
from tdcd.runs.theory import Assumption
from tdcd.training.simulation import Simulation

UNEQUAL = 1.1
"""By what factor clients' rows may differ before their uniform mean counts as biased."""
RARE = 0.01
"""The probability of having no row in a mini-batch that counts as never."""
KINKED = (nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ReLU6, nn.Hardtanh, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
NORMALISING = nn.modules.batchnorm._BatchNorm


def check_assumptions(simulation: Simulation) -> tuple[Assumption, ...]:
    """Tell which assumptions of Theorem 1 a simulation meets."""
    return (
        *_algorithm(simulation),
        *_networks(simulation),
        _unbiased(simulation),
    )


def _algorithm(simulation: Simulation) -> Iterator[Assumption]:
    settings, labels = simulation.settings, simulation.labels
    plain = settings.optimizer == SGD()
    yield Assumption(
        "plain SGD", plain, "no momentum" if plain else f"the optimizer is {_describe(settings.optimizer)}"
    )
    added = [
        text
        for text, present in (
            (f"weight decay {settings.weight_decay:g}", settings.weight_decay),
            (f"gradients clipped to {settings.clip_norm}", settings.clip_norm),
            (f"a proximal term of {settings.proximal:g}", settings.proximal),
        )
        if present
    ]
    yield Assumption("steps along the gradient of the loss", not added, join_names(added) or "nothing is added to it")
    mean = settings.averaging == "uniform" and settings.make_aggregator() == Average()
    how = f'averaging = "{settings.averaging}", aggregator {_describe(settings.aggregator)}'
    yield Assumption("uniform mean of all clients", mean, "as in the paper" if mean else how)
    absent = [
        text
        for text, present in (
            (f"participation {settings.participation:g}", settings.participation < 1),
            (f"silo_dropout {settings.silo_dropout:g}", settings.silo_dropout > 0),
        )
        if present
    ]
    yield Assumption("all clients and silos take part", not absent, join_names(absent) or "in every round")
    training = simulation.training
    rates = {training.rates.get(silo, training.rate)(1) for silo in training.tasks}
    steps = set(training.steps.values())
    alike = len(rates) == 1 and len(steps) == 1
    text = f"rates {join_names(f'{rate:g}' for rate in sorted(rates))}; local steps {join_names(sorted(steps))}"
    yield Assumption("the same η and Q in all silos", alike, "one of each" if alike else text)
    first, last = settings.rate_of(1), settings.rate_of(settings.rounds)
    constant = len({settings.rate_of(number) for number in range(1, settings.rounds + 1)}) == 1
    yield Assumption("constant η", constant, f"{first:g}" if constant else f"from {first:g} to {last:g}")
    exact = labels.sharing != "stale" and (labels.privatizer is None)
    text = "noisy gradients of private labels" if labels.privatizer else f'labels.sharing = "{labels.sharing}"'
    yield Assumption("labels at every local step", exact, "shared, or private and exact" if exact else text)
    codecs = settings.codecs
    plain_messages = codecs.plain_rows and not codecs.changes
    yield Assumption(
        "messages as they are", plain_messages, "no codec" if plain_messages else f"codec {_describe(settings.codec)}"
    )


def _networks(simulation: Simulation) -> Iterator[Assumption]:
    modules = {silo: [*network.module.modules()] for silo, network in simulation.setup.networks.items()}
    normalised = [silo for silo, parts in modules.items() if any(isinstance(part, NORMALISING) for part in parts)]
    drawing = [silo for silo, network in simulation.setup.networks.items() if not never_draws(network.module)]
    name = "the same function in training and evaluation"
    if normalised:
        yield Assumption(name, False, f"BatchNorm in silo {join_names(normalised)}")
    elif drawing:
        yield Assumption(name, None, f"silo {join_names(drawing)} may draw random numbers, as dropout does")
    else:
        yield Assumption(name, True, "no BatchNorm, no dropout")
    kinked = [silo for silo, parts in modules.items() if any(isinstance(part, KINKED) for part in parts)]
    layers = {silo: sum(bool([*part.parameters(recurse=False)]) for part in parts) for silo, parts in modules.items()}
    name = "Lipschitz gradients"
    if kinked:
        yield Assumption(name, None, f"ReLU or max pooling in silo {join_names(kinked)}: gradients jump at kinks")
    elif max(layers.values()) > 1:
        yield Assumption(name, None, "networks of several layers: L is of the weights that were seen only")
    else:
        yield Assumption(name, True, "linear models")


def _unbiased(simulation: Simulation) -> Assumption:
    """Tell whether clients' gradients are those of the whole loss on average (Assumption 3)."""
    name = "clients without bias"
    population = len(simulation.setup.train)
    size = simulation.settings.batch_of(population)
    unequal, idle, split = [], [], False
    for silo, task in simulation.training.tasks.items():
        counts = np.array(task.roster.counts())
        split = split or len(counts) > 1
        if counts.max() > UNEQUAL * counts.min():
            unequal.append(f"{silo} {counts.min():,} to {counts.max():,} rows")
        if size < population and (1 - counts.min() / population) ** size > RARE:
            idle.append(silo)
    if simulation.settings.averaging == "uniform" and unequal:
        return Assumption(name, False, f"unequal clients count the same: {join_names(unequal)}")
    if simulation.settings.averaging == "uniform" and idle:
        return Assumption(name, False, f"some clients of silo {join_names(idle)} have no row in some mini-batches")
    if split:
        return Assumption(name, True, "on average over clients; how they differ is part of σ_j²")
    return Assumption(name, True, "one client a silo")


def _describe(part: object) -> str:
    return part.kind if isinstance(part, Imported) else str(part)
