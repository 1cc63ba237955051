from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data.holdout import Part
from tdcd.data.tables.alignment import Alignment, Keys, align, gather_facts, parts_from, same_kind
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.reader import Table
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import DataError


def keys(silo: str, client: str, ids: Sequence[int | str], **facts: Any) -> Keys:
    table = Table(silo, client, Path(f"{silo}-{client}.csv"), TableSettings(id="id"))
    return Keys(table, pl.Series("id", ids), {name: pl.Series(values) for name, values in facts.items()})


def two(bank: Sequence[int], insurer: Sequence[int]) -> Mapping[str, Sequence[Keys]]:
    return {"bank": [keys("bank", "north", bank)], "insurer": [keys("insurer", "all", insurer)]}


IDS = st.lists(st.integers(0, 30), min_size=1, max_size=25, unique=True)


@given(st.lists(IDS, min_size=1, max_size=4), st.integers(1, 3), st.booleans(), st.randoms(use_true_random=False))
def test_the_common_ids_whatever_the_order(silos: list[list[int]], clients: int, texts: bool, random: Any) -> None:
    ids: list[list[Any]] = [[f"{value:02d}" for value in own] if texts else list(own) for own in silos]
    record = {
        f"silo {number}": [keys(f"silo {number}", str(k), own[k::clients]) for k in range(clients) if own[k::clients]]
        for number, own in enumerate(ids)
    }
    common = sorted(set(ids[0]).intersection(*ids[1:]))
    if not common:
        with pytest.raises(DataError, match="no ID is in all silos"):
            align(record, {})
        return
    alignment = align(record, {})[0]
    assert alignment.ids.to_list() == common
    for silo, own in zip(record, ids, strict=True):
        shares = alignment.shares[silo]
        assert sum(share.rows for share in shares.values()) == len(own)
        assert sum(share.common for share in shares.values()) == len(common)
    shuffled = {silo: [Keys(k.table, k.ids.sample(fraction=1.0, shuffle=True, seed=1), {}) for k in own]
                for silo, own in record.items()}  # fmt: skip
    again = align(shuffled, {})[0]
    assert again.fingerprint == alignment.fingerprint
    assert again.shares == alignment.shares
    alignment.verify(shuffled, "it")
    assert alignment.places(pl.Series([common[-1]])).tolist() == [len(common) - 1]


@pytest.mark.parametrize(
    ("silos", "message"),
    [
        (
            {"bank": [keys("bank", "north", [1, 2, 2, 5]), keys("bank", "south", [5, 7])], "insurer": []},
            r"silo 'bank': 2 IDs stand for several rows: 2 \(north, north\), 5 \(north, south\)",
        ),
        (
            {"bank": [keys("bank", "north", [1, 2])], "insurer": [keys("insurer", "all", ["001", "002"])]},
            r"types: silo 'bank' has whole numbers \(1, 2 …\) and 'insurer' has texts \('001' at client 'all'\)",
        ),
        (two([1, 2], [3, 4]), r"no ID is in all silos: 'bank' has 2 \(1, 2 …\); 'insurer' has 2 \(3, 4 …\)"),
        (
            {"bank": [keys("bank", "north", [1] * 2 + [2] * 2 + [3] * 2 + [4] * 2 + [5] * 2 + [6] * 2)]},
            "5 .* and 1 more",
        ),
    ],
)
def test_ids_that_cannot_be_aligned(silos: Mapping[str, Sequence[Keys]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        align(silos, {})


def test_the_file(tmp_path: Path) -> None:
    record = {
        "bank": [keys("bank", "north", [9, 3, 5], y=["0", "1", "0"], part=["train", "test", "train"])],
        "insurer": [keys("insurer", "a", [5, 1]), keys("insurer", "b", [2, 9, 3])],
    }
    alignment = align(record, {"label": ("bank", "y"), "part": ("bank", "part")})[0]
    assert alignment.ids.to_list() == [3, 5, 9]
    assert alignment.handed["label"].to_list() == ["1", "0", "0"]
    assert parts_from(alignment.handed["part"], "part").tolist() == [Part.TEST, Part.TRAIN, Part.TRAIN]
    path = tmp_path / "x.parquet"
    alignment.save(path)
    again = Alignment.load(path)
    assert again.fingerprint == alignment.fingerprint
    assert again.shares == alignment.shares
    assert {name: values.to_list() for name, values in again.handed.items()} == {
        "label": ["1", "0", "0"],
        "part": ["test", "train", "train"],
    }
    again.verify(record, "x")
    assert pl.read_parquet(path).columns == ["id", "label", "part"]
    pl.read_parquet(path).write_parquet(path)
    with pytest.raises(DataError, match=r"x.parquet: damaged, not an alignment of tdcd"):
        Alignment.load(path)
    alignment.save(path)
    metadata = pl.read_parquet_metadata(path)["tdcd"]
    pl.read_parquet(path).with_columns(id=pl.Series([3, 5, 8])).write_parquet(path, metadata={"tdcd": metadata})
    with pytest.raises(DataError, match="its IDs do not have the fingerprint"):
        Alignment.load(path)
    pl.read_parquet(path).write_parquet(path, metadata={"tdcd": metadata.replace('"version": 1', '"version": 2')})
    with pytest.raises(DataError, match="made by another version of tdcd"):
        Alignment.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="damaged, not an alignment"):
        Alignment.load(path)
    with pytest.raises(DataError, match="no such alignment; make it with: tdcd align"):
        Alignment.load(tmp_path / "y.parquet")


def test_every_client_is_verified() -> None:
    record = {
        "bank": [keys("bank", "north", [1, 2]), keys("bank", "south", [3, 4, 9])],
        "insurer": [keys("insurer", "all", [4, 3, 2, 1])],
    }
    alignment = align(record, {})[0]
    alignment.verify(
        record | {"bank": [record["bank"][0], keys("bank", "south", [4, 3, 77])]}, "it"
    )  # 9 was not common
    for bank, message in (
        (
            [record["bank"][0], keys("bank", "south", [3, 9])],
            "silo 'bank', client 'south' .* 1 of the common ones now, 2",
        ),
        ([keys("bank", "north", [1, 3]), keys("bank", "south", [2, 4])], "client 'north' .* does not hold the IDs"),
        ([record["bank"][0]], "these clients of silo 'bank' are not in both it and the job: south"),
    ):
        with pytest.raises(DataError, match=message):
            alignment.verify(record | {"bank": bank}, "it")
    with pytest.raises(DataError, match="it is of the silos bank, insurer, the job has bank; align again"):
        alignment.verify({"bank": record["bank"]}, "it")


def test_one_kind_of_ids_in_a_silo(tmp_path: Path) -> None:
    def read(name: str, content: str | dict[str, Any]) -> Keys:
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content)
        else:
            pl.DataFrame(content).write_parquet(path)
        return ClientTable(Table("bank", path.stem, path, TableSettings(id="id"))).read_keys()

    numbers, texts = read("north.csv", "id\n12\n"), read("south.csv", "id\nA1\n")
    assert [key.ids.to_list() for key in same_kind([numbers, texts])] == [["12"], ["A1"]]
    with pytest.raises(DataError, match=r"client 'sea' are whole numbers \(7\), those of 'south' texts \('A1'\)"):
        same_kind([read("sea.parquet", {"id": [7]}), texts])


def test_facts_have_a_value_in_every_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,y\n1,0\n2,\n3,1\n4,\n")
    with pytest.raises(DataError, match="x.csv.*column 'y' has no value in 2 rows, the first of them row 2"):
        ClientTable(Table("bank", "north", path, TableSettings(id="id"))).read_keys(["y"])
    path.write_text("id,y\n1,yes\n2,\n")
    with pytest.raises(DataError, match="no value in 1 rows, the first of them row 2"):
        ClientTable(Table("bank", "north", path, TableSettings(id="id"))).read_keys(["y"])
    path.write_text("id,y\n1,0\n2,maybe\n3,1.0\n4,1.50\n")
    facts = ClientTable(Table("bank", "north", path, TableSettings(id="id"))).read_keys(["y"]).facts
    assert facts["y"].to_list() == ["0", "maybe", "1", "1.5"]
    path.write_text("id;y\n1;1.234\n2;2,50\n")
    german = TableSettings(id="id", separator=";", decimal=",", thousands=".")
    assert ClientTable(Table("bank", "north", path, german)).read_keys(["y"]).facts["y"].to_list() == ["1234", "2.5"]
    path.write_text("id,y\n1,0\n")
    path.write_text("id,y\n1,0\n2," + 300 * "x" + "\n")
    with pytest.raises(DataError, match="column 'y' has more than 256 characters in row 2"):
        ClientTable(Table("bank", "north", path, TableSettings(id="id"))).read_keys(["y"])


def test_parts_are_words() -> None:
    with pytest.raises(DataError, match="'fold' says a, b; it may say train, validation, test"):
        parts_from(pl.Series(["a", "train", "b"]), "fold")


def test_gathered_is_by_id() -> None:
    record = {"bank": [keys("bank", "a", [3, 1], y=[30.0, 10.0]), keys("bank", "b", [2, 9], y=[20.0, 90.0])],
            "insurer": [keys("insurer", "all", [1, 2, 3])]}  # fmt: skip
    assert gather_facts(align(record, {})[1]["bank"], "y").to_list() == [10.0, 20.0, 30.0]
