import numpy as np
import pytest
import torch

from tdcd import DataError, Federation, Samples, Silo

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])
NAN = X.copy()
NAN[2, 1] = np.nan
NAN[4, 0] = np.inf
IDS = ["f", "b", "d", "a", "c", "e"]


def test_rows_are_joined_by_id() -> None:
    order = np.array([5, 3, 0, 1, 4, 2])
    federation = Federation.from_silos(
        [
            Silo("bank", X, {"north": ["a", "b"], "south": ["c", "d", "e", "f"]}, IDS),
            Silo("insurer", 10 * X[order], [["f", "a", "c"], ["b", "e", "d"]], [IDS[i] for i in order]),
        ],
        Y[order],
        [IDS[i] for i in order],
    )
    assert federation.ids.tolist() == ["a", "b", "c", "d", "e", "f"]
    expected = X[np.argsort(IDS)]
    assert federation.samples.features["bank"].numpy().tolist() == expected.tolist()
    assert federation.samples.features["insurer"].numpy().tolist() == (10 * expected).tolist()
    assert federation.samples.labels.tolist() == Y[np.argsort(IDS)].tolist()
    assert federation.rosters["bank"].clients == ("north", "south")
    assert federation.rosters["bank"].owner.tolist() == [0, 0, 1, 1, 1, 1]
    assert federation.rosters["insurer"].owner.tolist() == [0, 1, 0, 1, 1, 0]
    assert federation.rosters["insurer"].counts() == [3, 3]
    assert federation.only("bank").silos == ("bank",)
    assert federation.numbers(["c", "a"]).tolist() == [0, 2]
    assert len(federation) == 6


def test_features_are_held_once() -> None:
    rows = np.zeros((6, 2), dtype=np.float32)
    federation = Federation.from_silos([Silo("a", rows, [range(6)])], Y)
    assert np.shares_memory(federation.samples.features["a"].numpy(), rows)


def silo(**changes: object) -> Silo:
    return Silo(**{"name": "bank", "features": X, "clients": [range(3), range(3, 6)], **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("silos", "labels", "says"),
    [
        ([], Y, "at least one silo"),
        ([silo(), silo()], Y, "two silos have the same name: bank"),
        ([silo(name="a/b")], Y, "silo 'a/b': a name"),
        ([silo(features=NAN)], Y, r"silo 'bank': NaN or infinite numbers in 2 of 6 rows \(row 2, 4\)"),
        ([silo(features=[["x"]] * 6)], Y, "silo 'bank': not numbers"),
        ([silo(features=np.zeros((0, 2)))], Y, "silo 'bank': no rows"),
        ([silo(features=np.zeros((6, 0)))], Y, "silo 'bank': no rows, or rows without numbers"),
        ([silo(features=np.ma.masked_array(X, X > 3))], Y, "silo 'bank': a masked array"),
        ([silo(features=torch.tensor(X).to_sparse())], Y, "silo 'bank': a dense array of real numbers"),
        ({"bank": silo()}, Y, "silos: a list of tdcd.Silo is wanted"),
        (silo(), Y, "silos: a list of tdcd.Silo is wanted"),
        ([("bank", X)], Y, "silos: a list of tdcd.Silo is wanted"),
        ([silo()], [0, 1, np.nan, 1, 0, 1], r"labels: NaN or infinite numbers in 1 of 6 rows \(row 2\)"),
        ([silo()], Y[:5], "IDs differ between silo 'bank' and the labels: 1 are not in the labels: 5"),
        ([silo(clients=[range(6), []])], Y, "silo 'bank', client 'client-1': it holds no rows"),
        ([silo(clients=[])], Y, "silo 'bank': it needs at least one client"),
        ([silo(clients={"n": [0, 1, 2, 3], "s": [3, 4, 5, 1]})], Y, "two clients, 'n' and 's': 3, 1;"),
        ([silo(clients=[[0, 1, 2, 2], [3, 4, 5]])], Y, "client 'client-0': IDs listed several times: 2"),
        ([silo(clients=[[0, 1], [3, 4, 5]])], Y, "silo 'bank': 1 IDs that no client holds: 2"),
        ([silo(clients=[range(6), [77]])], Y, "client 'client-1': IDs without a row of features: 77"),
        ([silo(clients=[range(6), ["x"]])], Y, "client 'client-1': its IDs are texts, the silo's numbers"),
        ([silo(clients=[[0.5, 1.5]])], Y, "client 'client-0': IDs must be"),
        ([silo(clients=[0, 1, 2])], Y, "silo 'bank', client 'client-0': IDs must be a list"),
        ([silo(clients=5)], Y, "silo 'bank': clients must be lists of IDs"),
        ([silo(clients=None)], Y, "silo 'bank': clients must be lists of IDs"),
        ([silo(clients="abc")], Y, "silo 'bank': clients must be lists of IDs"),
        ([silo(clients={1: range(6)})], Y, "silo 'bank': a client's name must be a text, not 1"),
        ([silo(clients=[iter([1])])], Y, "client 'client-0': IDs must be a list"),
        ([silo(name=3)], Y, "silo '3': a name is a text"),
        ([silo(features=[[1.0], [1.0, 2.0]])], Y, "silo 'bank': not an array of numbers"),
        ([silo(ids=[1, "b", 2, 3, 4, 5])], Y, "all whole numbers or all texts, not both"),
        ([silo(ids=np.array([2**64 - 1, 1, 2, 3, 4, 5], dtype=np.uint64))], Y, "too large; write such IDs as texts"),
        ([silo(ids=[0, 1, 2, 3, 4])], Y, "6 rows of features but 5 IDs"),
        ([silo(ids=[0, 1, 2, 3, 4, 4])], Y, "IDs that stand for several rows: 4"),
        ([silo(), silo(name="b", ids=[0, 1, 2, 3, 4, 9])], Y, "1 are not in silo 'b': 5; 1 are not in silo 'bank': 9"),
        ([silo(), silo(name="b", ids=IDS)], Y, "IDs differ: silo 'bank' has numbers, silo 'b' has texts"),
    ],
)
def test_bad_data_is_named(silos: list[Silo], labels: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Federation.from_silos(silos, labels)  # type: ignore[arg-type]


def test_label_ids_must_fit() -> None:
    with pytest.raises(DataError, match="6 labels and 2 label IDs"):
        Federation.from_silos([silo()], Y, [1, 2])
    with pytest.raises(DataError, match="the labels: IDs that occur several times: 0"):
        Federation.from_silos([silo()], np.append(Y, 1), [0, 1, 2, 3, 4, 5, 0])


def test_unknown_ids_in_a_batch() -> None:
    federation = Federation.from_silos([silo()], Y)
    with pytest.raises(DataError, match="batch 3 names IDs that the federation does not have: 6, 9"):
        federation.numbers([1, 6, 9], "batch 3")
    with pytest.raises(DataError, match="does not have: a"):
        federation.numbers(["a"])


def test_test_samples_must_fit() -> None:
    assert len(Samples.from_arrays({"a": X}, Y)) == 6
    with pytest.raises(DataError, match="silo 'a' has 5 rows, and there are 6 labels"):
        Samples.from_arrays({"a": X[:5]}, Y)
    with pytest.raises(DataError, match="test rows of silo 'a': NaN"):
        Samples.from_arrays({"a": NAN}, Y)


def test_the_fingerprint_sees_every_part() -> None:
    base = Federation.from_silos([silo()], Y)
    assert base.fingerprint() == Federation.from_silos([silo(clients=[[2, 0, 1], [5, 3, 4]])], Y).fingerprint()
    other = X.copy()
    other[5, 1] += 1e-9
    changed = [
        Federation.from_silos([silo(features=other)], Y),
        Federation.from_silos([silo(clients=[range(2), range(2, 6)])], Y),
        Federation.from_silos([silo(name="bank2")], Y),
        Federation.from_silos([silo(ids=range(1, 7), clients=[range(1, 4), range(4, 7)])], Y, range(1, 7)),
        Federation.from_silos([silo()], 1 - Y),
        Federation.from_silos([silo(features=torch.tensor(X).float())], Y),
    ]
    assert len({base.fingerprint(), *(f.fingerprint() for f in changed)}) == 7


def test_arrays_of_every_kind_are_taken() -> None:
    expected = Federation.from_silos([silo()], Y).samples.features["bank"]
    for features in (X[:, ::-1][:, ::-1], X.astype(">f8"), X.astype(np.longdouble), X.tolist(), torch.tensor(X)):
        result = Federation.from_silos([silo(features=features)], Y)
        assert torch.equal(result.samples.features["bank"], expected)
        assert result.fingerprint()
    read_only = X.copy()
    read_only.flags.writeable = False
    assert torch.equal(Federation.from_silos([silo(features=read_only)], Y).samples.features["bank"], expected)
    half = Federation.from_silos([silo(features=torch.tensor(X, dtype=torch.bfloat16))], Y)
    assert half.fingerprint()
    for labels in (Y.astype(bool), Y.astype(np.uint16), Y.astype(np.uint64), Y.tolist(), Y.astype(np.float32)):
        assert Federation.from_silos([silo()], labels).samples.labels.tolist() == Y.tolist()


def test_ids_as_objects_and_of_any_length() -> None:
    names = np.array(["x" * 3, "y" * 200, "é", "a b", "1", ""], dtype=object)
    federation = Federation.from_silos([silo(ids=names, clients=[names[:2], names[2:]])], Y, names)
    assert sorted(federation.ids.tolist()) == sorted(names.tolist())
    wide = names.astype("<U300")
    again = Federation.from_silos([silo(ids=wide, clients=[wide[:2], wide[2:]])], Y, wide)
    assert again.fingerprint() == federation.fingerprint()


def test_a_silo_that_is_not_there() -> None:
    with pytest.raises(DataError, match="no silo 'bnk'; did you mean 'bank'"):
        Federation.from_silos([silo()], Y).only("bnk")


def test_clients_without_names_are_called_by_their_place_in_the_list() -> None:
    lists = [[5, 4], [0, 3], [1, 2]]
    made = Federation.from_silos([Silo("a", np.ones((6, 2)), lists)], np.arange(6) % 2)
    roster = made.rosters["a"]
    held = {name: np.flatnonzero(roster.owner.numpy() == k).tolist() for k, name in enumerate(roster.clients)}
    assert held == {f"client-{k}": sorted(ids) for k, ids in enumerate(lists)}


def test_a_silo_may_be_called_labels() -> None:
    """Its rows do not stand for the labels when data is compared with that of an earlier session."""
    prints = {
        Federation.from_silos([Silo("labels", np.ones((4, 2)), [range(4)])], y).fingerprint()
        for y in ([0, 1, 0, 1], [1, 1, 0, 0])
    }
    assert len(prints) == 2
