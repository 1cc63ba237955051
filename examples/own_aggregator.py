"""An aggregator of one's own: a hub that follows its clients slowly, as an exponential moving average.

python examples/own_aggregator.py
"""

from dataclasses import dataclass

from sklearn.datasets import load_breast_cancer

import tdcd
from tdcd.core.aggregators import HubRound
from tdcd.core.network import Block  # the weights of a silo's network, by name
from tdcd.core.state import Memory  # tensors by name


@dataclass(frozen=True)
class MovingAverage:
    """Keeps a moving average of the clients' mean, and makes it the silo's weights."""

    keep: float = 0.5
    linear = True  # the mean of the clients is all it needs

    def init(self, weights: Block) -> Memory:
        """Remember the first weights."""
        return dict(weights)

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:  # noqa: ARG002
        """Return the new weights, and what to remember: here the same."""
        new = {name: self.keep * memory[name] + (1 - self.keep) * received[name] for name in received}
        return new, new


rows, labels = load_breast_cancer(return_X_y=True)
rows = (rows - rows.mean(0)) / rows.std(0)
silos = [
    tdcd.Silo("clinic", rows[:, :15], [range(300), range(300, 569)]),
    tdcd.Silo("laboratory", rows[:, 15:], [range(0, 569, 2), range(1, 569, 2)]),
]
federation = tdcd.Federation.from_silos(silos, labels)
settings = tdcd.Settings(loss="binary-cross-entropy", rounds=30, local_steps=5, batch_size=200, rate=0.1)
for aggregator in (tdcd.aggregators.Average(), MovingAverage(keep=0.5)):
    result = tdcd.train(federation, tdcd.models.Linear(), settings, aggregator=aggregator)
    print(f"{aggregator}: training loss {result.kept.train['loss']:.4f}")
