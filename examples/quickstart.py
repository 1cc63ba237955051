"""A bank and an insurer share customers; each has branches of its own. Train one model over both.

python examples/quickstart.py
"""

import numpy as np

import tdcd

rng = np.random.default_rng(0)
customers, held_out = np.arange(1000), np.arange(1000, 1500)
features = {"bank": rng.normal(size=(1500, 6)), "insurer": rng.normal(size=(1500, 4))}
defaults = (features["bank"].sum(1) + 2 * features["insurer"][:, 0] * features["insurer"][:, 1] > 0).astype(int)

# Branches are of unequal size, and a bank's branches share no customers' list with an insurer's.
federation = tdcd.Federation.from_silos(
    [
        tdcd.Silo("bank", features["bank"][:1000], {"north": customers[:700], "south": customers[700:]}),
        tdcd.Silo("insurer", features["insurer"][:1000], [customers[::3], customers[1::3], customers[2::3]]),
    ],
    labels=defaults[:1000],
)
test = tdcd.Samples.from_arrays({silo: rows[held_out] for silo, rows in features.items()}, defaults[held_out])

models = {"bank": tdcd.models.Linear(), "insurer": tdcd.models.MLP(hidden=[32])}
settings = tdcd.Settings(loss="binary-cross-entropy", rounds=300, local_steps=5, batch_size=256, rate=0.1)
result = tdcd.train(federation, models, settings, test=test)

print("federation:", {name: round(value, 3) for name, value in result.evaluate(test).items()})
alone = tdcd.train(federation.only("bank"), models["bank"], settings)
print("bank alone:", {name: round(value, 3) for name, value in alone.evaluate(test.only("bank")).items()})
print("first five customers:", result.probabilities({s: rows[:5] for s, rows in features.items()}).numpy().round(2))
