"""Momentum that outlives a round.

A client's momentum starts afresh in every round. With one local step a round that leaves none of it, so it can be
carried from round to round instead, at the hub: heavy-ball momentum of the averaged step,

    Δ ← (mean of the clients' weights − θ_j) + μ·(η_r / η_{r−1})·Δ,    θ_j ← θ_j + Δ

which, as all clients start from θ_j, is what torch.optim.SGD does with the averaged gradient.
"""

from collections.abc import Mapping

from tdcd.core.network import Block, Blocks, Network
from tdcd.training.settings import Settings

Memory = Mapping[str, Block]
"""Δ of every silo's trainable weights; nothing before the first round, and where momentum is not carried."""


def apply_momentum(
    settings: Settings, networks: Mapping[str, Network], before: Blocks, averaged: Blocks, memory: Memory, number: int
) -> tuple[Blocks, Memory]:
    """Return the blocks after round ``number``, and the new memory, given those before and the clients' averages."""
    if not settings.carry_momentum:
        return averaged, {}
    rate, last = settings.rate_of(number), settings.rate_of(number - 1) if number > 1 else 0.0
    factor = settings.momentum * rate / last if last else 0.0
    blocks, moved = {silo: dict(block) for silo, block in averaged.items()}, {}
    for silo, network in networks.items():
        moved[silo] = {name: averaged[silo][name] - before[silo][name] for name in network.trainable}
        for name, more in memory.get(silo, {}).items():
            blocks[silo][name] = averaged[silo][name] + factor * more
            moved[silo][name] += factor * more
    return blocks, moved
