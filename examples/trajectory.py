"""Follow a trajectory exactly: your own first weights and mini-batches, compared with another implementation.

Here the other implementation is tdcd's oracle, the plain pseudocode of the algorithm. Yours may be another program:
give both the same weights and batches and compare the hubs' blocks after any number of rounds.

python examples/trajectory.py
"""

import numpy as np
import torch
from torch import nn

import tdcd

rng = np.random.default_rng(1)
rows, labels = rng.normal(size=(60, 8)), rng.integers(0, 3, 60)
federation = tdcd.Federation.from_silos(
    [
        tdcd.Silo("left", rows[:, :5], np.array_split(rng.permutation(60), 4)),
        tdcd.Silo("right", rows[:, 5:], np.array_split(rng.permutation(60), 3)),
    ],
    labels,
)
networks: dict[str, nn.Module] = {"left": nn.Linear(5, 3), "right": nn.Linear(3, 3)}
first_weights = {
    silo: {name: rng.normal(size=tuple(p.shape)) for name, p in network.named_parameters()}
    for silo, network in networks.items()
}
batches = [rng.permutation(60)[:20] for _ in range(10)]  # IDs; here, row numbers
settings = tdcd.Settings(loss="cross-entropy", rounds=10, local_steps=5, rate=0.1, precision="float64")

ours = tdcd.train(federation, networks, settings, initial=first_weights, batches=batches)
oracle = tdcd.train(federation, networks, settings, initial=first_weights, batches=batches, engine="oracle")
for silo, block in ours.blocks.items():
    for name, weights in block.items():
        difference = torch.max(torch.abs(weights - oracle.blocks[silo][name])).item()
        print(f"{silo} {name}: largest difference after 10 rounds {difference:.1e}")
        assert difference < 1e-12
