"""Nothing depends on order: of rows in a client's list, of clients in a silo, of silos."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tdcd
from support import examples, same

SAMPLES = 24
RNG = np.random.default_rng(5)
IDS = np.array([f"id-{n}" for n in RNG.permutation(100)[:SAMPLES]])
FEATURES = {"bank": RNG.normal(size=(SAMPLES, 4)), "insurer": RNG.normal(size=(SAMPLES, 3)),
            "clinic": RNG.normal(size=(SAMPLES, 1, 4, 3))}  # fmt: skip
LABELS = RNG.integers(0, 3, SAMPLES)
CLIENTS = {"bank": 4, "insurer": 3, "clinic": 5}
OWNERS = {silo: RNG.permutation(np.arange(SAMPLES) % count) for silo, count in CLIENTS.items()}
MODELS: dict[str, tdcd.models.ModelSpec | nn.Module] = {
    "bank": tdcd.models.MLP(hidden=[5]),
    "insurer": nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.4), nn.Linear(6, 3)),
    "clinic": tdcd.models.CNN(channels=[2], batch_norm=True),
}
UNNAMED = MODELS | {"insurer": nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))}
"""Clients without names are called by their place in the list, and what dropout draws goes by their names."""
SETTINGS = tdcd.Settings(loss="cross-entropy", rounds=3, local_steps=3, batch_size=17, rate=0.2)


def trained(
    silos: list[str], rows: dict[str, Any], clients: dict[str, list[int]], labels: Any, named: bool
) -> tdcd.Result:
    """Train with silos, rows, clients and labels each in the order given."""
    parts = []
    for silo in silos:
        at = rows[silo]
        held: Any = {f"branch-{k}": IDS[at][OWNERS[silo][at] == k] for k in clients[silo]}
        parts.append(tdcd.Silo(silo, FEATURES[silo][at], held if named else list(held.values()), IDS[at]))
    federation = tdcd.Federation.from_silos(parts, LABELS[labels], IDS[labels])
    return tdcd.train(federation, MODELS if named else UNNAMED, SETTINGS)


def plain(named: bool) -> tdcd.Result:
    straight = np.arange(SAMPLES)
    return trained(
        list(CLIENTS),
        dict.fromkeys(CLIENTS, straight),
        {s: list(range(k)) for s, k in CLIENTS.items()},
        straight,
        named,
    )


@pytest.mark.parametrize("named", [True, False])
def test_permutations_change_no_block(named: bool) -> None:
    expected = plain(named).blocks

    @settings(max_examples=examples(15))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        rows = {silo: np.array(data.draw(st.permutations(range(SAMPLES)))) for silo in CLIENTS}
        clients = {silo: data.draw(st.permutations(range(count))) for silo, count in CLIENTS.items()}
        silos = data.draw(st.permutations(list(CLIENTS)))
        labels = np.array(data.draw(st.permutations(range(SAMPLES))))
        assert same(trained(silos, rows, clients, labels, named).blocks, expected)

    check()


def test_the_order_within_a_batch_does_not_matter() -> None:
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", FEATURES["bank"], [range(10), range(10, 24)])], LABELS)
    batch = [3, 17, 4, 20, 11]
    one = tdcd.train(federation, tdcd.models.Linear(), SETTINGS, batches=[batch] * 3)
    two = tdcd.train(federation, tdcd.models.Linear(), SETTINGS, batches=[batch[::-1]] * 3)
    assert same(one.blocks, two.blocks)
