import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data.sources import SOURCES, breast_cancer, digits
from tdcd.data.splits import deal_equally, held_out
from tdcd.errors import DataError


@given(st.integers(1, 60), st.data())
def test_nobodys_rows_are_dropped(rows: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, rows))
    parts = deal_equally(np.arange(100, 100 + rows), clients, "bank", data.draw(st.integers(0, 99)))
    sizes = [len(part) for part in parts.values()]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(list(parts.values()))) == list(range(100, 100 + rows))


def test_silos_are_dealt_independently() -> None:
    ids = np.arange(50)
    bank, again, insurer = (deal_equally(ids, 5, s, 1) for s in ("bank", "bank", "insurer"))
    assert all(np.array_equal(bank[name], again[name]) for name in bank)
    assert not any(np.array_equal(np.sort(b), np.sort(i)) for b, i in zip(bank.values(), insurer.values(), strict=True))


def test_more_clients_than_rows() -> None:
    with pytest.raises(DataError, match="silo 'bank': 5 clients for 3 rows"):
        deal_equally(np.arange(3), 5, "bank", 0)


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
