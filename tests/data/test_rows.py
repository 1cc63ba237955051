import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcd
from tdcd.data.rows import ByColumn, Equal, LabelSkew, RowSplit, SiloRows, SizeSkew
from tdcd.errors import DataError, JobError
from tdcd.jobs.data import load_data
from tdcd.jobs.load import parse_job

SPLITS = [Equal(), SizeSkew(concentration=0.3), LabelSkew(concentration=0.2), LabelSkew(concentration=50.0, same=True)]


@given(st.sampled_from(SPLITS), st.integers(1, 60), st.data())
def test_nobodys_rows_are_dropped_and_everybody_has_one(split: RowSplit, rows: int, data: st.DataObject) -> None:
    clients, seed = data.draw(st.integers(1, rows)), data.draw(st.integers(0, 99))
    ids = np.arange(100, 100 + rows)
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    parts = split.deal(SiloRows("bank", ids, labels, {}), clients, seed)
    assert len(parts) == clients
    assert min(map(len, parts.values())) >= 1
    assert sorted(np.concatenate(list(parts.values()))) == ids.tolist()
    other_order = np.random.default_rng(seed).permutation(rows)
    again = split.deal(SiloRows("bank", ids[other_order], labels[other_order], {}), clients, seed)
    assert all(np.array_equal(parts[name], again[name]) for name in parts)


def test_equal_clients_differ_by_a_row_at_most() -> None:
    sizes = [len(part) for part in Equal().deal(SiloRows("bank", np.arange(103), np.zeros(103), {}), 10, 0).values()]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_skews_are_as_skewed_as_asked() -> None:
    ids, labels = np.arange(10_000), np.arange(10_000) % 10

    def largest(concentration: float) -> int:
        parts = SizeSkew(concentration=concentration).deal(SiloRows("bank", ids, labels, {}), 20, 1)
        return max(map(len, parts.values()))

    def classes(concentration: float) -> float:
        """Return how large a share the most frequent class has at a client, on average over clients."""
        parts = LabelSkew(concentration=concentration).deal(SiloRows("bank", ids, labels, {}), 20, 1)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts.values()]))

    assert largest(0.1) > 2000 > 700 > largest(100.0)
    assert classes(0.05) > 0.5 > 0.15 > classes(100.0)


def test_silos_are_dealt_independently_or_the_same() -> None:
    ids, labels = np.arange(50), np.zeros(50)
    bank, insurer = (list(Equal().deal(SiloRows(silo, ids, labels, {}), 5, 1).values()) for silo in ("bank", "insurer"))
    assert not any(map(np.array_equal, bank, insurer))
    bank, insurer = (
        list(Equal(same=True).deal(SiloRows(silo, ids, labels, {}), 5, 1).values()) for silo in ("bank", "insurer")
    )
    assert all(map(np.array_equal, bank, insurer))


def test_what_cannot_be_dealt() -> None:
    with pytest.raises(DataError, match="silo 'bank': 5 clients for 3 rows"):
        Equal().deal(SiloRows("bank", np.arange(3), np.zeros(3), {}), 5, 0)
    with pytest.raises(DataError, match="needs classes"):
        LabelSkew().deal(SiloRows("bank", np.arange(3), np.array([0.5, 1.0, 2.0]), {}), 2, 0)


def test_a_client_for_each_value_of_a_column() -> None:
    ids, labels = np.arange(6), np.zeros(6)
    rows = SiloRows("bank", ids, labels, {"branch": np.array(["south", "north", "south", "north", "north", "sea"])})
    parts = ByColumn(kind="column", column="branch").deal(rows, None, 0)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "north": [1, 3, 4],
        "sea": [5],
        "south": [0, 2],
    }
    with pytest.raises(DataError, match="cannot be dealt by 'brunch'; did you mean 'branch'"):
        ByColumn(kind="column", column="brunch").deal(rows, None, 0)
    assert len(ByColumn(kind="column", column="branch").deal(rows, 3, 0)) == 3
    with pytest.raises(DataError, match="'branch' has 3 values, each of which makes a client; the job says 4 clients"):
        ByColumn(kind="column", column="branch").deal(rows, 4, 0)


def job(rows: object) -> tdcd.Job:
    table = {"data": {"source": "digits", "rows": rows, "clients": 4}, "model": {"kind": "linear"}}
    return parse_job(table | {"training": {"loss": "cross-entropy", "rounds": 1, "rate": 0.1}}, "job")


def test_in_a_job() -> None:
    federation = load_data(job({"kind": "size-skew", "concentration": 0.2})).federation
    counts = federation.rosters["left"].counts()
    assert max(counts) > 3 * min(counts)
    with pytest.raises(JobError, match=r"data.rows.kind|rows.*equal"):
        job({"kind": "unequal"})
    with pytest.raises(JobError, match="concentration"):
        job({"kind": "label-skew", "concentration": 0})
    table = job({"kind": "equal", "same": True}).as_table()
    table["silos"] = {"left": {"clients": 3}}
    with pytest.raises(JobError, match="rows.same = true .* left 3"):
        load_data(parse_job(table, "job"))
