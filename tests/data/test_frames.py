"""Data frames: whose index, or a column, is the IDs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

import tdcd

IDS = ["d", "a", "c", "b"]
AGE = np.array([40, 10, 30, 20])
SUM = np.array([4.0, 1.0, 3.0, 2.0])
CLIENTS = [["a", "b"], ["c", "d"]]
Y = np.array([1, 0, 1, 0])


class Frame:
    """What a pandas frame has in common with everything that behaves as one."""

    def __init__(self, columns: dict[Any, npt.NDArray[Any]], index: list[Any]) -> None:
        self._columns, self.index, self.columns = columns, np.array(index), list(columns)

    def __getitem__(self, name: Any) -> npt.NDArray[Any]:
        return self._columns[name]

    def __array__(self, *_: Any, **__: Any) -> npt.NDArray[Any]:
        return self.to_numpy()

    def __len__(self) -> int:
        return len(self.index)

    def to_numpy(self) -> npt.NDArray[Any]:
        return np.column_stack(list(self._columns.values()))


def frames(kind: str) -> tuple[Any, Any]:
    """Return a frame with the IDs as its index, and labels."""
    if kind == "fake":
        return Frame({"age": AGE, "sum": SUM}, IDS), Y
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.DataFrame({"age": AGE, "sum": SUM}, index=IDS), pandas.Series(Y, index=IDS)


@pytest.mark.parametrize("kind", ["fake", "pandas"])
def test_the_index_is_the_ids(kind: str) -> None:
    frame, labels = frames(kind)
    silos = [tdcd.Silo("a", frame, CLIENTS), tdcd.Silo("b", SUM[::-1], CLIENTS, ids=IDS[::-1])]
    federation = tdcd.Federation.from_silos(silos, labels, None if kind == "pandas" else IDS)
    assert federation.ids.tolist() == ["a", "b", "c", "d"]
    assert federation.samples.features["a"].tolist() == [[10, 1], [20, 2], [30, 3], [40, 4]]
    assert federation.samples.features["b"].tolist() == [1, 2, 3, 4]
    assert federation.samples.labels.tolist() == [0, 0, 1, 1]


def test_a_column_is_the_ids() -> None:
    frame = pl.DataFrame({"age": AGE, "customer": IDS, "sum": SUM})
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", frame, CLIENTS, ids="customer")], Y, IDS)
    assert federation.samples.features["a"].tolist() == [[10, 1], [20, 2], [30, 3], [40, 4]]
    numbered = tdcd.Federation.from_silos([tdcd.Silo("a", frame.drop("customer"), [range(4)])], Y)
    assert numbered.samples.features["a"][:, 0].tolist() == AGE.tolist()


@pytest.mark.parametrize(
    ("frame", "ids", "says"),
    [
        (
            pl.DataFrame({"age": AGE, "town": IDS}),
            None,
            "silo 'a', column 'town': not numbers but .*; encode",
        ),
        (pl.DataFrame({"age": AGE}), "agee", r"silo 'a': ids: there is no column 'agee'; did you mean 'age'\?"),
        (AGE, "age", "silo 'a': ids = 'age' names a column, and array.* is no data frame"),
        (pl.DataFrame({"age": AGE}), "age", "silo 'a': a data frame without columns of features"),
        (pl.DataFrame({"age": [1.0, None, 2.0, 3.0]}), None, "NaN or infinite numbers in 1 of 4 rows"),
        (Frame({0: AGE, "0": SUM}, IDS), None, "silo 'a': several columns have the same name"),
    ],
)
def test_frames_that_cannot_be_taken(frame: Any, ids: str | None, says: str) -> None:
    with pytest.raises(tdcd.DataError, match=says):
        tdcd.Federation.from_silos([tdcd.Silo("a", frame, [range(4)], ids=ids)], Y)


def test_samples_of_frames_are_in_the_same_order() -> None:
    one, other = Frame({"age": AGE / 10}, IDS), Frame({"sum": SUM}, IDS[::-1])
    assert len(tdcd.Samples.from_arrays({"a": one, "b": Frame({"sum": SUM}, IDS), "c": SUM}, Y)) == 4
    says = r"frames of silo 'a' and silo 'b' have different indexes; .* frame.loc\[ids\]"
    with pytest.raises(tdcd.DataError, match=says):
        tdcd.Samples.from_arrays({"a": one, "b": other}, Y)
    silos = [tdcd.Silo(name, frame, CLIENTS) for name, frame in (("a", one), ("b", other))]
    settings = tdcd.Settings(loss="cross-entropy", rounds=1, rate=0.01)
    result = tdcd.train(tdcd.Federation.from_silos(silos, Y, IDS), tdcd.models.Linear(), settings)
    with pytest.raises(tdcd.DataError, match=says):
        result.predict({"a": one, "b": other})
    assert result.predict({"a": one, "b": Frame({"sum": SUM}, IDS)}).shape == (4,)
