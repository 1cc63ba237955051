import numpy as np

from tdcd.data.sources import SOURCES, breast_cancer, digits
from tdcd.data.splits import held_out


def test_held_out_is_a_function_of_each_id() -> None:
    ids = np.arange(4000)
    mask = held_out(ids, 0.25, 7)
    assert np.array_equal(mask[100:200], held_out(ids[100:200], 0.25, 7))
    assert 0.22 < mask.mean() < 0.28
    assert not np.array_equal(mask, held_out(ids, 0.25, 8))
    assert (held_out(ids, 0.1, 7) <= mask).all()


def test_sources() -> None:
    images = digits()
    assert {silo: rows.shape for silo, rows in images.features.items()} == {
        "left": (1797, 1, 8, 4),
        "right": (1797, 1, 8, 4),
    }
    tumours = breast_cancer()
    assert {silo: rows.shape for silo, rows in tumours.features.items()} == {
        "mean": (569, 10),
        "error": (569, 10),
        "worst": (569, 10),
    }
    assert tumours.labels.sum() == 212  # malignant
    for source in SOURCES.values():
        made = source()
        assert all(len(rows) == len(made.labels) for rows in made.features.values())
