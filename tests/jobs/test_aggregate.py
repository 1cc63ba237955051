"""Tables with several rows a person, and what becomes of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import tdcd
from sites.memory import Federation
from sites.test_rounds import same
from sites.test_tables import run
from tdcd.data.tables import reader
from tdcd.errors import DataError, JobError, TdcdError
from tdcd.jobs.schema import TableJob
from tdcd.serving.model import load_model

from .two_silos import write_job

RULES = {"balance": "sum", "limit": "mean", "note": "count", "*": "last"}


@pytest.fixture
def visits(tmp_path: Path) -> pl.DataFrame:
    """Write a bank of accounts, of 1 to 6 a person, at two clients; and an insurer with a row a person."""
    draw = np.random.default_rng(4)
    person = np.repeat(np.arange(120), draw.integers(1, 7, 120))
    size = len(person)
    frame = pl.DataFrame(
        {
            "account": draw.permutation(size) + 9000,
            "person": person,
            "opened": pl.Series(draw.permutation(20 * size)[:size] + 3000).cast(pl.Date),
            "balance": draw.normal(100, 50, size).round(3),
            "limit": np.where(draw.random(size) < 0.2, np.nan, draw.normal(size=size)),
            "note": [None if n % 3 else "call" for n in range(size)],
            "job": draw.choice(["cook", "nurse", "smith"], size),
            "serial": 2**60 + draw.permutation(size),
            "default": person % 2,
        }
    ).with_columns(pl.col("limit").fill_nan(None))
    frame = frame.sample(fraction=1, shuffle=True, seed=1)
    frame.filter(pl.col("person") < 70).write_csv(tmp_path / "north.csv")
    frame.filter(pl.col("person") >= 70).write_parquet(tmp_path / "south.parquet")
    pl.DataFrame({"who": np.arange(118)[::-1], "age": np.arange(118) % 50}).write_csv(tmp_path / "insurer.csv")
    return frame


def job_of(folder: Path, **bank: Any) -> TableJob:
    silo = {
        "id": "person",
        "row_id": "account",
        "aggregate": RULES,
        "order": "opened",
        "label": "default",
        "clients": {"north": "north.csv", "south": "south.parquet"},
        **bank,
    }
    return write_job(folder, {key: value for key, value in silo.items() if value is not None}, "who")


def joined(frame: pl.DataFrame) -> pl.DataFrame:
    """The same by polars: a row a person."""
    last = pl.col("opened", "job", "serial", "default").sort_by("opened").last()
    known = pl.col("limit").count()
    return frame.group_by("person", maintain_order=True).agg(
        last,
        pl.col("balance").sum(),
        pl.when(known > 0).then(pl.col("limit").sum() / known).alias("limit"),
        pl.col("note").count(),
    )


def plain_job(folder: Path, frame: pl.DataFrame) -> TableJob:
    """Write tables with a row a person, and their job."""
    (folder / "plain").mkdir()
    (folder / "plain" / "insurer.csv").write_text((folder / "insurer.csv").read_text())
    order = ["person", "opened", "balance", "limit", "note", "job", "serial", "default"]
    rows = joined(frame).select(order)
    rows.filter(pl.col("person") < 70).write_parquet(folder / "plain" / "north.parquet")
    rows.filter(pl.col("person") >= 70).write_parquet(folder / "plain" / "south.parquet")
    clients = {name: f"{name}.parquet" for name in ("north", "south")}
    return job_of(folder / "plain", clients=clients, aggregate=None, order=None, row_id=None)


@pytest.mark.parametrize("cells", [40, 1_000_000])
def test_rows_of_a_person_become_one(
    visits: pl.DataFrame, tmp_path: Path, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CELLS", cells)
    result = tdcd.load_data(job_of(tmp_path)).federation
    expected = tdcd.load_data(plain_job(tmp_path, visits)).federation
    assert result.preparations["bank"].outputs == expected.preparations["bank"].outputs
    assert result.ids.tolist() == expected.ids.tolist()
    assert torch.allclose(result.samples.features["bank"], expected.samples.features["bank"], atol=1e-6)
    assert torch.equal(result.samples.labels, expected.samples.labels)
    assert torch.equal(result.rosters["bank"].owner, expected.rosters["bank"].owner)
    assert f"bank: {len(visits):,} rows of 120 IDs become one row each" in result.notes
    assert result.notes[0] == "118 IDs are in all silos; rows without them: bank 2 of 120, insurer 0 of 118"


def test_sites_train_what_the_simulation_trains(visits: pl.DataFrame, tmp_path: Path) -> None:
    assert len(visits) > 120
    job = job_of(tmp_path)
    sites = Federation(job, tmp_path / "runs")
    blocks = run(sites, rounds=3)
    assert sites.hubs["bank"].setup.preparation == tdcd.load_data(job).federation.preparations["bank"]
    same(blocks, tdcd.run_job(job).federation.blocks, 0)


def test_a_run_predicts_people_from_their_rows(
    visits: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tdcd.run_job(job_of(tmp_path), tmp_path / "run")
    run = load_model(tmp_path / "run")
    held_out = run.predict_held_out().frame
    new = {"bank": [tmp_path / "north.csv", tmp_path / "south.parquet"], "insurer": [tmp_path / "insurer.csv"]}
    frame = run.predict_tables(new).frame
    assert frame.height == 118
    both = frame.join(held_out, on="id", suffix=" held out")
    assert both.height == held_out.height > 10
    assert np.allclose(both["probability of 1"], both["probability of 1 held out"], atol=1e-6)
    monkeypatch.setattr("tdcd.serving.opened.PART", 50)
    in_parts = run.predict_tables(new).frame
    assert in_parts["id"].equals(frame["id"])
    assert np.allclose(in_parts["probability of 1"], frame["probability of 1"], atol=1e-6)
    visits.drop("opened").write_csv(tmp_path / "new.csv")
    with pytest.raises(DataError, match=r"new.csv.*no column 'opened' \(silos.bank.order\)"):
        run.predict_tables(new | {"bank": [tmp_path / "new.csv"]})
    visits.with_columns(limit=pl.lit("x")).write_csv(tmp_path / "new.csv")
    with pytest.raises(DataError, match="column 'limit' holds texts, such as 'x' in row 1, which have no mean"):
        run.predict_tables(new | {"bank": [tmp_path / "new.csv"]})


def test_a_label_may_be_that_of_the_last_row(visits: pl.DataFrame, tmp_path: Path) -> None:
    changed = visits.with_columns(default=(pl.col("opened").dt.day() % 2))
    changed.filter(pl.col("person") < 70).write_csv(tmp_path / "north.csv")
    changed.filter(pl.col("person") >= 70).write_parquet(tmp_path / "south.parquet")
    result = tdcd.load_data(job_of(tmp_path)).federation
    expected = joined(changed).filter(pl.col("person").is_in(result.ids.tolist())).sort("person")
    assert result.samples.labels.tolist() == expected["default"].to_list()
    rules = {"job": "last", "opened": "last", "*": "count"}
    with pytest.raises(DataError, match=r"column 'default' differs in rows \d+ and \d+ of ID \d+. Correct it, or take"):
        tdcd.load_data(job_of(tmp_path, aggregate=rules))


def change_north(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        change(pl.read_csv(folder / "north.csv")).write_csv(folder / "north.csv")

    return write


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"aggregate": None, "order": None}, None, r"IDs stand for several rows.*set silos.bank.aggregate"),
        ({"order": None}, None, 'aggregate = "last": name the column that says which row is the last, order'),
        ({"aggregate": "mean"}, None, 'order goes with aggregate = "last"'),
        ({"aggregate": "first"}, None, 'is "last", "mean", "sum" or "count", for all columns or by column'),
        ({"aggregate": {"balance": "most"}}, None, 'silos.bank.aggregate: is "last", "mean"'),
        ({"aggregate": {"balance": "last"}}, None, "say how rows with the same ID become one in .*, or in all other"),
        ({"aggregate": {"balanc": "sum", "*": "last"}}, None, r"no column 'balanc' \(silos.bank.aggregate\)"),
        ({"aggregate": RULES | {"job": "mean"}}, None, "column 'job' holds texts, such as '.*' in row 1, .*no mean"),
        ({"aggregate": RULES | {"opened": "sum"}}, None, "column 'opened' holds dates, .* which have no sum"),
        ({"aggregate": RULES | {"job": "count"}, "categories": ["job"]}, None, "'job' holds categories, which only"),
        ({"order": "job"}, None, r"column 'job' \(silos.bank.order\) holds texts; name one of numbers or dates"),
        ({"order": "limit"}, None, r"column 'limit' \(silos.bank.order\) has no value in row \d+"),
        ({"row_id": "balanse"}, None, r"no column 'balanse' \(silos.bank.row_id\); did you mean"),
        ({}, change_north(lambda f: pl.concat([f, f[:1]])), r"rows 1 and \d+ have the same account \(\d+\), .*remove"),
        ({"row_id": None}, change_north(lambda f: f.with_columns(opened=pl.lit("2020-01-01"))),
         r"rows \d+ and \d+ have the same ID \(\d+\) and the same opened, so neither is the last; .*row_id"),
        ({}, change_north(lambda f: f.with_columns(person=pl.col("person") + 10)),
         r"IDs have rows at several clients: 70 \(north, south\).*bring those of an ID to one client"),
        ({}, change_north(lambda f: f.with_columns(default=pl.col("person") % 3)),
         r"there are 3.*; the first '2' is at ID \d+ of silo 'bank', client 'north'"),
    ],
)  # fmt: skip
def test_rows_that_do_not_become_one(
    visits: pl.DataFrame,
    tmp_path: Path,
    settings: dict[str, Any],
    change: Callable[[Path], None] | None,
    message: str,
) -> None:
    assert visits.height
    if change:
        change(tmp_path)
    with pytest.raises(TdcdError) as caught:
        tdcd.load_data(job_of(tmp_path, **settings))
    assert re.search(message, str(caught.value)), caught.value
    assert isinstance(caught.value, DataError | JobError)


def test_a_tie_goes_to_the_greater_row_id(visits: pl.DataFrame, tmp_path: Path) -> None:
    change_north(lambda f: f.with_columns(opened=pl.lit("2020-01-01")))(tmp_path)
    result = tdcd.load_data(job_of(tmp_path, aggregate="last", columns=["job"], rare=1)).federation
    made = result.preparations["bank"]
    greatest = visits.sort("account").group_by("person").agg(pl.col("job").last())
    jobs = dict(greatest.iter_rows())
    for person, row in zip(result.ids.tolist(), result.samples.features["bank"], strict=True):
        if person < 70:
            assert made.outputs[int(row.argmax())] == f"job = {jobs[person]}"
