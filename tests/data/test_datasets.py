"""Torch datasets in place of arrays: rows where rows are wanted, labels where labels are."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import tdcd

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])
CLIENTS = [range(4), range(4, 6)]


class Pairs(Dataset[Any]):
    """A dataset that can only be asked for one item after the other."""

    def __init__(self, rows: Any = X, labels: Any = Y) -> None:
        self.rows, self.labels = rows, labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.rows[number], self.labels[number]


class Rows(Pairs):
    def __getitem__(self, number: int) -> Tensor:  # type: ignore[override]
        return X[number]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize("dataset", [Pairs(), Pairs(labels=Y.tolist()), TensorDataset(X, Y)])
def test_a_dataset_is_as_good_as_its_arrays(dataset: Any) -> None:
    silos = [tdcd.Silo("a", dataset, CLIENTS), tdcd.Silo("b", Rows(), CLIENTS)]
    federation = tdcd.Federation.from_silos(silos, dataset)
    arrays = tdcd.Federation.from_silos([tdcd.Silo("a", X, CLIENTS), tdcd.Silo("b", X, CLIENTS)], Y)
    assert federation.fingerprint() == arrays.fingerprint()
    test = tdcd.Samples.from_arrays({"a": Subset(dataset, [1, 3]), "b": X[[1, 3]]}, Subset(dataset, [1, 3]))
    assert torch.equal(test.features["a"], X[[1, 3]])
    assert test.labels.tolist() == [1, 1]
    settings = tdcd.Settings(loss="cross-entropy", rounds=1, rate=0.1)
    result = tdcd.train(federation, tdcd.models.Linear(), settings, test=test)
    assert torch.equal(result.scores({"a": dataset, "b": dataset}), result.scores({"a": X, "b": X}))
    assert repr(tdcd.Silo("a", dataset, CLIENTS)) == "Silo('a': 6 rows, 2 clients)"


class Endless(Dataset[Any]):
    """A dataset that does not know its length."""

    def __getitem__(self, number: int) -> Any:
        return X[0]


@pytest.mark.parametrize("dataset", [Stream(), Endless()])
def test_a_silo_of_a_dataset_without_length_is_shown(dataset: Any) -> None:
    assert repr(tdcd.Silo("a", dataset, CLIENTS)) == "Silo('a': rows, 2 clients)"


class Items(Dataset[Any]):
    """A dataset of whatever items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


@pytest.mark.parametrize(
    "item", [[1.0, 2.0, 3.0], (1.0, 2.0), [1.0, 2.0], (X[0], X[1], Y[0]), (X[0],), ([1.0, 2.0], 1)], ids=str
)
def test_lists_of_numbers_are_no_pairs(item: Any) -> None:
    says = r"item 0 of the dataset is no pair \(row, label\) with an array or a tensor as its row, but .*; return torch"
    with pytest.raises(tdcd.DataError, match=f"silo 'a': {says}"):
        tdcd.Federation.from_silos([tdcd.Silo("a", Items([item] * 6), CLIENTS)], Y)
    with pytest.raises(tdcd.DataError, match=f"labels: {says}"):
        tdcd.Federation.from_silos([tdcd.Silo("a", X, CLIENTS)], Items([item] * 6))


def test_tensors_besides_rows_and_labels_are_refused() -> None:
    with pytest.raises(tdcd.DataError, match=r"no pair \(row, label\)"):
        tdcd.Federation.from_silos([tdcd.Silo("a", X, CLIENTS)], TensorDataset(X, X, Y))


def test_pairs_of_arrays_are_taken() -> None:
    pairs = Items([(row.numpy(), int(label)) for row, label in zip(X, Y, strict=True)])
    samples = tdcd.Federation.from_silos([tdcd.Silo("a", pairs, CLIENTS)], pairs).samples
    assert torch.equal(samples.features["a"], X)
    assert torch.equal(samples.labels, Y)
    alone = tdcd.Federation.from_silos([tdcd.Silo("a", TensorDataset(X), CLIENTS)], pairs).samples
    assert torch.equal(alone.features["a"], X)


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (Stream(), "silo 'a': a dataset without a length; only map-style datasets"),
        (Items(["x"] * 6), r"silo 'a': item 0 of the dataset is no pair \(row, label\) of numbers"),
        (Pairs([X[0], X[0, :1], X[0]]), "silo 'a': the items of the dataset are not of one shape and type"),
    ],
)
def test_datasets_that_cannot_be_taken(dataset: Any, says: str) -> None:
    with pytest.raises(tdcd.DataError, match=says):
        tdcd.Federation.from_silos([tdcd.Silo("a", dataset, CLIENTS)], Y)
