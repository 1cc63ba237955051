import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data.holdout import Part, held_out, parts_of


def test_held_out_is_a_function_of_each_id() -> None:
    ids = np.arange(4000)
    mask = held_out(ids, 0.25, 7)
    assert np.array_equal(mask[100:200], held_out(ids[100:200], 0.25, 7))
    assert 0.22 < mask.mean() < 0.28
    assert not np.array_equal(mask, held_out(ids, 0.25, 8))
    assert (held_out(ids, 0.1, 7) <= mask).all()


def test_validation_does_not_touch_the_test_set() -> None:
    ids = np.array([f"customer {number}" for number in range(4000)])
    without, with_ = (parts_of(ids, 0.2, fraction, 3) for fraction in (0.0, 0.25))
    assert np.array_equal(without == Part.TEST, with_ == Part.TEST)
    assert not (without == Part.VALIDATION).any()
    assert 0.17 < (with_ == Part.VALIDATION).mean() < 0.23  # a quarter of the other four fifths
    testing = ids == "customer 7"
    assert np.array_equal(parts_of(ids, 0.2, 0.5, 3, testing) == Part.TEST, testing)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40, unique=True), st.integers(0, 5))
def test_every_site_computes_the_same_split(ids: list[int], seed: int) -> None:
    whole = dict(zip(ids, parts_of(np.array(ids), 0.3, 0.3, seed).tolist(), strict=True))
    some = sorted(ids)[::2]
    assert [whole[identity] for identity in some] == parts_of(np.array(some), 0.3, 0.3, seed).tolist()
