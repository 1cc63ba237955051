"""Data frames: whose index, or a column, is the IDs."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

import tdcd
from support import same

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


COLUMNS = {"age": AGE / 10, "income": SUM - 2, "debt": np.array([0.5, -1.0, 2.0, 0.0])}
SETTINGS = tdcd.Settings(loss="cross-entropy", rounds=2, rate=0.1)


def polars(*names: str, **more: Any) -> Any:
    return pl.DataFrame({**{name: COLUMNS[name] for name in names}, **more})


def trained(frame: Any, *, ids: Any = None, **more: Any) -> tdcd.Result:
    clients, label_ids = (CLIENTS, IDS) if ids else (ALL, None)
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", frame, clients, ids=ids)], Y, label_ids)
    return tdcd.train(federation, tdcd.models.Linear(), SETTINGS, **more)


@pytest.mark.parametrize("saved", [False, True])
def test_columns_of_later_frames_are_brought_in_order(tmp_path: Path, saved: bool) -> None:
    result = trained(polars("age", "income", "debt"))
    if saved:
        result.save(tmp_path)
        result = tdcd.Result.load(tmp_path)
    one, other = polars("age", "income", "debt"), polars("debt", "age", "income")
    assert not np.array_equal(one.to_numpy(), other.to_numpy())
    expected = result.scores({"a": one.to_numpy()})
    for frame in (one, other, Frame({name: COLUMNS[name] for name in ("income", "debt", "age")}, range(4))):
        assert result.scores({"a": frame}).tolist() == expected.tolist()
        assert result.evaluate(tdcd.Samples.from_arrays({"a": frame}, Y)) == result.evaluate(
            tdcd.Samples.from_arrays({"a": one.to_numpy()}, Y)
        )
    assert result.scores({"a": other.to_numpy()}).tolist() != expected.tolist()  # arrays go by position
    wrong = polars("age", "debt", incme=SUM, town=SUM)
    for score in (
        lambda: result.predict({"a": wrong}),
        lambda: result.evaluate(tdcd.Samples.from_arrays({"a": wrong}, Y)),
    ):
        with pytest.raises(tdcd.DataError, match="silo 'a': not the columns .* missing income; unknown incme, town; "):
            score()


@pytest.mark.parametrize("part", ["validation", "test"])
def test_columns_of_validation_and_test_frames_are_brought_in_order(part: str) -> None:
    one, other = (
        tdcd.Samples.from_arrays({"a": polars(*names)}, Y)
        for names in (("age", "income", "debt"), ("income", "debt", "age"))
    )
    results = [trained(polars("age", "income", "debt"), **{part: samples}) for samples in (one, other)]
    assert same(results[0].blocks, results[1].blocks)
    assert results[0].kept.measures(part) == results[1].kept.measures(part)
    with pytest.raises(tdcd.DataError, match=f"{part} set, silo 'a': not the columns .*: unknown town; give"):
        trained(
            polars("age", "income"), **{part: tdcd.Samples.from_arrays({"a": polars("age", "income", town=SUM)}, Y)}
        )


def test_a_frame_can_be_scored_as_it_was_trained_on() -> None:
    frame = polars("age", id=IDS).with_columns(debt=COLUMNS["debt"])
    result = trained(frame, ids="id")
    expected = result.scores({"a": polars("age", "debt")})
    assert result.scores({"a": frame}).tolist() == expected.tolist()
    assert result.scores({"a": frame.select("debt", "age", "id")}).tolist() == expected.tolist()
    numbered = polars("age", "debt", id=range(4))
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", numbered, ALL, ids="id")], Y)
    test = tdcd.Samples.from_arrays({"a": numbered}, Y)
    by_number = tdcd.train(federation, tdcd.models.Linear(), SETTINGS, test=test)
    assert by_number.evaluate(test) == pytest.approx(by_number.kept.test)


def test_ids_of_scored_frames_must_agree() -> None:
    frame = polars("age", id=IDS)
    silos = [tdcd.Silo(name, frame, CLIENTS, ids="id") for name in ("a", "b")]
    federation = tdcd.Federation.from_silos(silos, Y, IDS)
    result = tdcd.train(federation.only("b"), tdcd.models.Linear(), SETTINGS)
    assert set(result.columns) == {"b"}
    both = tdcd.train(federation, tdcd.models.Linear(), SETTINGS)
    with pytest.raises(tdcd.DataError, match="frames of silo 'a' and silo 'b' have different IDs"):
        both.predict({"a": frame, "b": frame.reverse()})
