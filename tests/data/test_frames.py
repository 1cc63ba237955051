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

    def __init__(self, columns: dict[Any, npt.NDArray[Any]], index: Any) -> None:
        self._columns, self.index, self.columns = columns, np.array(index), list(columns)

    def __getitem__(self, name: Any) -> npt.NDArray[Any]:
        return self._columns[name]

    def __array__(self, *_: Any, **__: Any) -> npt.NDArray[Any]:
        return self.to_numpy()

    def __len__(self) -> int:
        return len(self.index)

    def to_numpy(self) -> npt.NDArray[Any]:
        return np.column_stack(list(self._columns.values()))


class Series:
    """What a pandas series has in common with everything that behaves as one."""

    def __init__(self, values: npt.NDArray[Any], index: Any) -> None:
        self._values, self.index = values, np.array(index)

    def __array__(self, *_: Any, **__: Any) -> npt.NDArray[Any]:
        return self.to_numpy()

    def __len__(self) -> int:
        return len(self.index)

    def to_numpy(self) -> npt.NDArray[Any]:
        return self._values


def frames(kind: str) -> tuple[Any, Any]:
    """Return a frame with the IDs as its index, and labels."""
    if kind == "fake":
        return Frame({"age": AGE, "sum": SUM}, IDS), Series(Y, IDS)
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.DataFrame({"age": AGE, "sum": SUM}, index=IDS), pandas.Series(Y, index=IDS)


@pytest.mark.parametrize("kind", ["fake", "pandas"])
def test_the_index_is_the_ids(kind: str) -> None:
    frame, labels = frames(kind)
    silos = [tdcd.Silo("a", frame, CLIENTS), tdcd.Silo("b", SUM[::-1], CLIENTS, ids=IDS[::-1])]
    federation = tdcd.Federation.from_silos(silos, labels)
    assert federation.ids.tolist() == ["a", "b", "c", "d"]
    assert federation.samples.features["a"].tolist() == [[10, 1], [20, 2], [30, 3], [40, 4]]
    assert federation.samples.features["b"].tolist() == [1, 2, 3, 4]
    assert federation.samples.labels.tolist() == [0, 0, 1, 1]


SHUFFLED = [2, 0, 3, 1]
ALL = [range(4)]


@pytest.mark.parametrize(
    ("silos", "labels", "says"),
    [
        (
            [tdcd.Silo("a", SUM, ALL)],
            Series(Y, SHUFFLED),
            r"the labels: the index is not 0, 1, 2, … .* no IDs are given for silo 'a': .* Give ids= for silo 'a'; or",
        ),
        (
            [tdcd.Silo("a", Frame({"age": AGE}, SHUFFLED), ALL)],
            Y,
            r"silo 'a': the index is not .* no IDs are given for the labels: .* Give label_ids= for the labels",
        ),
        (
            [tdcd.Silo("a", Series(SUM, SHUFFLED), ALL), tdcd.Silo("b", pl.DataFrame({"age": AGE}), ALL)],
            Series(Y, SHUFFLED),
            "silo 'a': the index is not .* no IDs are given for silo 'b'",
        ),
        (
            [tdcd.Silo("a", SUM, CLIENTS)],
            Series(Y, IDS),
            "the labels: the index is not .* no IDs are given for silo 'a'",
        ),
    ],
)
def test_a_shuffled_index_is_not_joined_with_default_numbers(silos: Any, labels: Any, says: str) -> None:
    with pytest.raises(tdcd.DataError, match=says):
        tdcd.Federation.from_silos(silos, labels)


def test_a_shuffled_index_is_joined_with_ids() -> None:
    def joined(silo: Any, labels: Any, label_ids: Any = None) -> list[Any]:
        samples = tdcd.Federation.from_silos([silo], labels, label_ids).samples
        return [*samples.features["a"].ravel().tolist(), *samples.labels.tolist()]

    expected = [*SUM[np.argsort(SHUFFLED)], *Y[np.argsort(SHUFFLED)]]
    assert joined(tdcd.Silo("a", SUM, ALL, ids=SHUFFLED), Series(Y, SHUFFLED)) == expected
    assert joined(tdcd.Silo("a", Series(SUM, SHUFFLED), ALL), Y, SHUFFLED) == expected
    order = SHUFFLED[::-1]
    other = joined(tdcd.Silo("a", Frame({"sum": SUM[::-1]}, order), ALL), Series(Y, SHUFFLED))
    assert other == expected
    assert joined(tdcd.Silo("a", SUM, ALL), Series(Y, range(4))) == [*SUM, *Y]


def test_pandas_rows_that_were_shuffled() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"sum": SUM, "y": Y}).sample(frac=1, random_state=3)
    with pytest.raises(tdcd.DataError, match="the labels: the index is not .* Give ids= for silo 'a'"):
        tdcd.Federation.from_silos([tdcd.Silo("a", frame[["sum"]].to_numpy(), ALL)], frame["y"])


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
        (Frame({0: AGE, "0": SUM}, range(4)), None, "silo 'a': several columns have the same name"),
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
    with pytest.raises(tdcd.DataError, match="frames of the labels and silo 'a' have different indexes"):
        tdcd.Samples.from_arrays({"a": one}, Series(Y, IDS[::-1]))
    assert tdcd.Samples.from_arrays({"a": SUM}, Series(Y, IDS)).labels.tolist() == Y.tolist()
    silos = [tdcd.Silo(name, frame, CLIENTS) for name, frame in (("a", one), ("b", other))]
    settings = tdcd.Settings(loss="cross-entropy", rounds=1, rate=0.01)
    result = tdcd.train(tdcd.Federation.from_silos(silos, Y, IDS), tdcd.models.Linear(), settings)
    with pytest.raises(tdcd.DataError, match=says):
        result.predict({"a": one, "b": other})
    assert result.predict({"a": one, "b": Frame({"sum": SUM}, IDS)}).shape == (4,)
