import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data.features import Columns, Contiguous, FeatureSplit, Random, Strips, Tiles, Views
from tdcd.errors import DataError


def cut(split: FeatureSplit, rows: np.ndarray, columns: tuple[str, ...] = (), seed: int = 0) -> dict[str, np.ndarray]:
    return {silo: rows[:, *index] for silo, index in split.blocks(rows.shape[1:], columns, seed).items()}


def test_the_papers_remainder_rule() -> None:
    widths = [part.shape[-1] for part in cut(Contiguous(silos=16), np.zeros((2, 48, 76))).values()]
    assert widths == [5] * 12 + [4] * 4


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3), st.booleans())
def test_every_column_falls_to_one_silo(width: int, silos: int, seed: int, random: bool) -> None:
    rows = np.arange(3 * width).reshape(3, width)
    split = Random(silos=silos) if random else Contiguous(silos=silos)
    if silos > width:
        with pytest.raises(DataError, match=f"{width} columns cannot be split among {silos} silos"):
            cut(split, rows)
        return
    parts = cut(split, rows, seed=seed)
    assert len(parts) == silos
    joined = np.concatenate(list(parts.values()), axis=1)
    assert sorted(joined[0]) == rows[0].tolist()
    assert all((np.diff(part[0]) > 0).all() for part in parts.values())
    sizes = [part.shape[1] for part in parts.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    if not random:
        assert np.array_equal(joined, rows)


def test_random_columns_are_a_function_of_the_seed() -> None:
    rows = np.arange(30)[np.newaxis]
    one, two, other = (cut(Random(silos=3), rows, seed=seed)["silo-1"].tolist() for seed in (1, 1, 2))
    assert one == two != other


def test_columns_by_name_and_number() -> None:
    rows = np.arange(8).reshape(2, 4)
    parts = cut(Columns(silos={"bank": ["d", 0], "insurer": [1, "d"]}), rows, ("a", "b", "c", "d"))
    assert parts["bank"].tolist() == [[3, 0], [7, 4]]
    assert parts["insurer"].tolist() == [[1, 3], [5, 7]]
    for silos, message in (
        ({"bank": ["age"]}, "data.features.silos.bank: the data has no column 'age'"),
        ({"bank": [4]}, "there is no column 4; they are numbered 0 to 3"),
        ({"bank": [1, "b"]}, "none twice"),
        ({"bank": []}, "at least one column"),
    ):
        with pytest.raises(DataError, match=message):
            cut(Columns(silos=silos), rows, ("a", "b", "c", "d"))  # type: ignore[arg-type]


def test_strips_and_views() -> None:
    images = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    halves = cut(Strips(), images)
    assert list(halves) == ["left", "right"]
    assert np.array_equal(np.concatenate(list(halves.values()), axis=-1), images)
    assert [part.shape[-1] for part in halves.values()] == [3, 2]
    assert list(cut(Strips(silos=3), images)) == ["strip-1", "strip-2", "strip-3"]
    views = np.arange(2 * 12 * 3).reshape(2, 12, 1, 3, 1)
    parts = cut(Views(), views)
    assert list(parts)[:2] == ["view-01", "view-02"]
    assert np.array_equal(parts["view-12"], views[:, 11])


def test_tiles_are_counted_as_one_reads() -> None:
    images = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    quadrants = cut(Tiles(), images)
    assert list(quadrants) == ["tile-1", "tile-2", "tile-3", "tile-4"]
    rows = [np.concatenate([quadrants[f"tile-{a}"], quadrants[f"tile-{b}"]], axis=-1) for a, b in ((1, 2), (3, 4))]
    assert np.array_equal(np.concatenate(rows, axis=-2), images)
    assert [part.shape[-2:] for part in quadrants.values()] == [(2, 3), (2, 2), (2, 3), (2, 2)]
    assert [part.shape[-2:] for part in cut(Tiles(rows=1, columns=3), images).values()] == [(4, 2), (4, 2), (4, 1)]


@pytest.mark.parametrize(
    ("split", "shape", "message"),
    [
        (Strips(), (10,), "a table's rows of 10 columns cannot be split by kind strips; use contiguous"),
        (Views(), (3, 8, 8), r"images of \(3, 8, 8\) .* kind views; use strips"),
        (Contiguous(silos=2), (3, 8, 8), "use strips or tiles"),
        (Tiles(), (48, 76), r"series of \(48, 76\) .* kind tiles; use contiguous"),
        (Tiles(rows=9), (3, 8, 8), "8 pixels cannot be split among 9 silos"),
        (Random(silos=2), (12, 1, 8, 8), "use views"),
        (Columns(silos={"a": [0]}), (12, 1, 8, 8), "use views"),
        (Strips(silos=9), (3, 8, 8), "8 pixels cannot be split among 9 silos"),
    ],
)
def test_what_does_not_fit(split: FeatureSplit, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        split.blocks(shape, (), 0)
