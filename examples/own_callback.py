"""A callback of one's own: it watches how far clients drift apart, and stops a training that is good enough.

python examples/own_callback.py
"""

from sklearn.datasets import load_breast_cancer

import tdcd
from tdcd.training.callbacks import FinishedRound  # what a callback is given, for type checkers


class GoodEnough(tdcd.Callback):
    """Stops at a training loss; prints the client of every silo that drifts the farthest."""

    def __init__(self, loss: float) -> None:
        self.loss = loss

    def after_round(self, finished: FinishedRound) -> None:
        """Look at the clients now and then: the round is computed once more for it."""
        if finished.number % 10 == 0:
            for silo, clients in finished.clients.items():
                name, numbers = max(clients.items(), key=lambda item: item[1].drift)
                print(f"round {finished.number}: {silo}: {name} drifts by {numbers.drift:.3f}, loss {numbers.loss:.3f}")

    def after_evaluation(self, evaluation: tdcd.Evaluation) -> tdcd.Stop | None:
        """Stop where the loss is low enough."""
        reached = evaluation.train["loss"] <= self.loss
        return tdcd.Stop(f"the training loss is below {self.loss}") if reached else None


rows, labels = load_breast_cancer(return_X_y=True)
rows = (rows - rows.mean(0)) / rows.std(0)
silos = [
    tdcd.Silo("clinic", rows[:, :15], [range(300), range(300, 569)]),
    tdcd.Silo("laboratory", rows[:, 15:], [range(0, 569, 2), range(1, 569, 2)]),
]
federation = tdcd.Federation.from_silos(silos, labels)
settings = tdcd.Settings(
    loss="binary-cross-entropy", rounds=200, local_steps=5, batch_size=200, rate=0.1, evaluate_every=5
)
callbacks = [GoodEnough(0.1), tdcd.callbacks.Progress("tumours")]
result = tdcd.train(federation, tdcd.models.Linear(), settings, callbacks=callbacks)
print(f"ended after round {result.history[-1].round} of {settings.rounds}")
