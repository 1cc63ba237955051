"""An optimizer of one's own: sign descent, which moves every weight by the same amount.

python examples/own_optimizer.py
"""

from dataclasses import dataclass

from sklearn.datasets import load_breast_cancer

import tdcd
from tdcd.core.network import Block  # the weights of a silo's network, by name
from tdcd.core.state import Memory  # tensors by name


@dataclass(frozen=True)
class SignDescent:
    """Moves each weight by the rate, against the sign of its gradient."""

    elementwise = True  # each number moves by itself, so clients can be computed together

    def init(self, weights: Block) -> Memory:  # noqa: ARG002
        """Remember nothing."""
        return {}

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
        """Change the weights in place."""
        for name, g in gradient.items():
            weights[name].sub_(rate * g.sign())
        return memory


rows, labels = load_breast_cancer(return_X_y=True)
rows = (rows - rows.mean(0)) / rows.std(0)
silos = [
    tdcd.Silo("clinic", rows[:, :15], [range(300), range(300, 569)]),
    tdcd.Silo("laboratory", rows[:, 15:], [range(0, 569, 2), range(1, 569, 2)]),
]
federation = tdcd.Federation.from_silos(silos, labels)
settings = tdcd.Settings(loss="binary-cross-entropy", rounds=30, local_steps=5, batch_size=200, rate=0.01)
for optimizer in (tdcd.optimizers.SGD(), tdcd.optimizers.Adam(), SignDescent()):
    result = tdcd.train(federation, tdcd.models.Linear(), settings, optimizer=optimizer)
    print(f"{optimizer}: training loss {result.kept.train['loss']:.4f}")
