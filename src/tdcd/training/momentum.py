"""Momentum that outlives a round.

A client's momentum starts afresh in every round. With one local step a round that leaves none of it, so it can be
carried from round to round instead, at the hub: heavy-ball momentum of the averaged step,

    Δ ← (mean of the clients' weights − θ_j) + μ·(η_r / η_{r−1})·Δ,    θ_j ← θ_j + Δ

which, as all clients start from θ_j, is what torch.optim.SGD does with the averaged gradient.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tdcd.core.network import Block, Network
from tdcd.core.state import HubUpdate, SiloState
from tdcd.training.settings import Settings

PREFIX = "velocity/"


@dataclass(frozen=True)
class CarriedMomentum:
    """Carries Δ of a silo's trainable weights in its state. See HubUpdate."""

    settings: Settings
    trainable: Collection[str]
    """Names of the weights that gradient steps change."""

    def __call__(self, state: SiloState, averaged: Block, number: int) -> SiloState:
        """Return the state after round ``number``."""
        settings = self.settings
        rate, last = settings.rate_of(number), settings.rate_of(number - 1) if number > 1 else 0.0
        factor = settings.momentum * rate / last if last else 0.0
        weights, velocity = dict(averaged), {}
        for name in [name for name in averaged if name in self.trainable]:
            velocity[name] = averaged[name] - state.weights[name]
            if (before := state.memory.get(PREFIX + name)) is not None:
                weights[name] = averaged[name] + factor * before
                velocity[name] += factor * before
        return SiloState(weights, {**state.memory, **{PREFIX + name: tensor for name, tensor in velocity.items()}})


def hub_updates(settings: Settings, networks: Mapping[str, Network]) -> dict[str, HubUpdate]:
    """Return what the hubs make of their clients' averages, where that is not just taken as it is."""
    if not settings.carry_momentum:
        return {}
    return {silo: CarriedMomentum(settings, network.trainable) for silo, network in networks.items()}
