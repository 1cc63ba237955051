import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data.holdout import Part, folds_of, held_out, parts_of, without_validation


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


@given(st.lists(st.integers(0, 10**6), max_size=60, unique=True), st.integers(2, 7), st.integers(0, 5))
def test_every_id_is_in_one_fold_whatever_others_there_are(ids: list[int], folds: int, seed: int) -> None:
    whole = dict(zip(ids, folds_of(np.array(ids, dtype=np.int64), folds, seed).tolist(), strict=True))
    assert set(whole.values()) <= set(range(1, folds + 1))
    some = sorted(ids)[::3]
    assert [whole[identity] for identity in some] == folds_of(np.array(some, dtype=np.int64), folds, seed).tolist()


def test_folds_are_about_equal_and_drawn_by_the_seed() -> None:
    ids = np.array([f"customer {number}" for number in range(6000)])
    folds = folds_of(ids, 5, 7)
    assert all(1080 < count < 1320 for count in np.bincount(folds)[1:])
    assert not np.array_equal(folds, folds_of(ids, 5, 8))
    validation = parts_of(ids, 0.0, 0.25, 7, folds == 2) == Part.VALIDATION
    assert 0.22 < validation[folds == 5].mean() < 0.28, "validation samples are drawn from every other fold alike"


def test_a_refit_moves_validation_samples_only() -> None:
    parts = np.array([Part.TEST, Part.VALIDATION, Part.TRAIN], dtype=np.int8)
    assert without_validation(parts).tolist() == [Part.TEST, Part.TRAIN, Part.TRAIN]
