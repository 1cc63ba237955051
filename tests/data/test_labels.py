import polars as pl
import pytest

from tdcd.core.objectives import Meaning
from tdcd.data.label_encoding import encode_labels
from tdcd.errors import DataError


def test_binary() -> None:
    labels, classes = encode_labels(pl.Series(["1", "0", "1"]), "binary")
    assert labels.tolist() == [1, 0, 1]
    assert classes == ("0", "1")
    labels, classes = encode_labels(pl.Series(["<=50K", ">50K", "<=50K"]), "binary", ">50K")
    assert labels.tolist() == [0, 1, 0]
    assert classes == ("<=50K", ">50K")
    labels, classes = encode_labels(pl.Series(["2", "1"]), "binary", 1)
    assert labels.tolist() == [0, 1]
    assert classes == ("2", "1")


def test_classes_are_in_ascending_order() -> None:
    labels, classes = encode_labels(pl.Series(["10", "2", "10", "3"]), "classes")
    assert labels.tolist() == [2, 0, 2, 1]
    assert classes == ("2", "3", "10")
    labels, classes = encode_labels(pl.Series(["pear", "apple"]), "classes")
    assert labels.tolist() == [1, 0]
    assert classes == ("apple", "pear")


def test_regression() -> None:
    labels, classes = encode_labels(pl.Series(["1.5", "-2"]), "numbers")
    assert labels.tolist() == [1.5, -2.0]
    assert classes == ()


@pytest.mark.parametrize(
    ("values", "meaning", "positive", "message"),
    [
        (["a", "b"], "binary", None, "wants 0 and 1, and these are a, b; say which counts as 1"),
        (["a", "b", "c"], "binary", "a", r"there are 3, a \(1\), b \(1\), c \(1\); .*wants two"),
        (["a", "b"], "binary", "d", "no label is 'd'; there is a, b"),
        (["a", "b"], "numbers", None, "wants numbers, not texts such as 'a'"),
        (list(map(str, range(2000))), "classes", None, "2,000 different ones are too many classes"),
    ],
)
def test_labels_that_do_not_fit(values: list[str], meaning: Meaning, positive: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode_labels(pl.Series(values), meaning, positive)
