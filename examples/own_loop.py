"""A loop of one's own: rounds are functions of an explicit state, so that a training can be forked at any round.

python examples/own_loop.py
"""

from sklearn.datasets import load_breast_cancer

import tdcd

rows, labels = load_breast_cancer(return_X_y=True)
rows = (rows - rows.mean(0)) / rows.std(0)
silos = [
    tdcd.Silo("clinic", rows[:469, :15], {"east": range(300), "west": range(300, 469)}),
    tdcd.Silo("laboratory", rows[:469, 15:], [range(0, 469, 2), range(1, 469, 2)]),
]
federation = tdcd.Federation.from_silos(silos, labels[:469])
test = tdcd.Samples.from_arrays({"clinic": rows[469:, :15], "laboratory": rows[469:, 15:]}, labels[469:])
models = tdcd.models.Linear()
settings = tdcd.Settings(loss="binary-cross-entropy", rounds=100, local_steps=5, batch_size=200, rate=0.1)

simulation = tdcd.Simulation(federation, models, settings, test=test)
state = simulation.init()
while simulation.evaluate(state).train["loss"] > 0.12:
    if state.done % 5 == 0:
        client = simulation.clients(state)["clinic"]["east"]
        print(f"round {state.done + 1}: client east: loss {client.loss:.3f}, its weights drift by {client.drift:.3f}")
    state = simulation.round(state)

plain = tdcd.Simulation(federation, models, settings.replace(local_steps=1), test=test)
for steps, branch in ((5, simulation), (1, plain)):
    fork = state  # the same one for both: no round changes it
    while fork.done < state.done + 20:
        fork = branch.round(fork)
    measured = branch.evaluate(fork)
    print(
        f"20 rounds more of {steps} steps: loss {measured.train['loss']:.3f}, accuracy {measured.test['accuracy']:.3f}"
    )
