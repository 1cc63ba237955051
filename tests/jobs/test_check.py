"""What ``tdcd check`` warns of, and what it does not."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli_w
import torch

import tdcd
from sites.memory import Federation
from sites.test_tables import run
from support import run_command
from tdcd.data.tables.suspects import suspect_numbers
from tdcd.errors import DataError, JobError
from tdcd.jobs.check import find_warnings
from tdcd.jobs.schema import TableJob

PEOPLE = 400


def ordinary() -> dict[str, Any]:
    """Columns as tables have them: skewed, rare, whole, negative, repeated, with gaps."""
    draw = np.random.default_rng(5)
    balance = draw.normal(0, 3000, PEOPLE).round(2)
    return {
        "age": draw.integers(18, 95, PEOPLE),
        "income": np.exp(draw.normal(10, 1.2, PEOPLE)).round(),
        "balance": balance,
        "delay": draw.integers(-2, 9, PEOPLE),
        "gain": np.where(draw.random(PEOPLE) < 0.03, draw.integers(100, 15000, PEOPLE), 0),
        "rare": (draw.random(PEOPLE) < 0.01).astype(int),
        "sign": draw.integers(-1, 2, PEOPLE),
        "hours": draw.integers(1, 100, PEOPLE),
        "job": draw.choice(["cook", "nurse", "smith"], PEOPLE),
        "band": draw.choice(["20-29", "30-39", "unknown"], PEOPLE),
        "since": pl.Series(draw.integers(9000, 20000, PEOPLE)).cast(pl.Date),
        "y": (balance + draw.normal(0, 1500, PEOPLE) > 0).astype(int),
    }


def job_of(folder: Path, columns: dict[str, Any], loss: str = "binary-cross-entropy", **bank: Any) -> TableJob:
    """Write a bank of two clients with these columns, and an insurer with one of its own."""
    frame = pl.DataFrame({"id": np.arange(PEOPLE), **columns})
    frame[: PEOPLE // 2].write_csv(folder / "north.csv")
    frame[PEOPLE // 2 :].write_csv(folder / "south.csv")
    pl.DataFrame({"id": np.arange(PEOPLE), "x": np.arange(PEOPLE) % 17}).write_csv(folder / "insurer.csv")
    table = {
        "labels": {"silo": "bank", "sharing": "shared"},
        "data": {"source": "tables"},
        "silos": {
            "bank": {"id": "id", "label": "y", "clients": {"north": "north.csv", "south": "south.csv"}, **bank},
            "insurer": {"id": "id", "clients": {"all": "insurer.csv"}},
        },
        "model": {"kind": "linear"},
        "training": {"loss": loss, "rounds": 2, "rate": 0.1, "averaging": "samples"},
    }
    (folder / "job.toml").write_text(tomli_w.dumps(table))
    job = tdcd.load_job(folder / "job.toml")
    assert isinstance(job, TableJob)
    return job


def warnings(folder: Path, columns: dict[str, Any], **settings: Any) -> list[str]:
    job = job_of(folder, columns, **settings)
    return find_warnings(job, tdcd.load_data(job))


def replaced(values: Any, rows: Any, value: Any) -> Any:
    result = np.array(values)
    result[rows] = value
    return result


def test_an_ordinary_table_is_met_with_silence(tmp_path: Path) -> None:
    assert warnings(tmp_path, ordinary()) == []
    assert warnings(tmp_path, ordinary(), loss="cross-entropy") == []
    assert (
        warnings(tmp_path, ordinary() | {"y": ordinary()["balance"] + ordinary()["age"] ** 2}, loss="squared-error")
        == []
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"age": replaced(t["age"], slice(0, 30, 3), 999)},
         r"column 'age': 999 in \d training rows \(client 'north'\) looks like a code for 'no value'. .*bank.missing"),
        (lambda t: {"income": replaced(t["income"], slice(0, 400, 9), -99999999)},
         r"column 'income': -99999999 in \d+ training rows \(client 'north', 'south'\) looks like a code"),
        (lambda t: {"hours": replaced(t["hours"], slice(0, 80), -9)}, "column 'hours': -9 in .* looks like a code"),
        (lambda t: {"age": replaced(t["age"], slice(0, 80), -1)}, "column 'age': -1 in .* looks like a code"),
        (lambda t: {"age": replaced(t["age"], slice(250, 252), 123456)},
         r"column 'age': 123456 in \d training rows? \(client 'south'\) is far from the others, 18 to 94"),
        (lambda t: {"age": np.full(PEOPLE, 40)},
         "column 'age': all training rows hold the same, 40, so it is left out. .*silos.bank.exclude"),
        (lambda t: {"job": ["cook"] * PEOPLE}, "column 'job': all training rows hold the same, 'cook'"),
        (lambda t: {"job": [f"job {n % 101:03d}" for n in range(PEOPLE)]},
         r"column 'job': its 101 categories become 101 inputs. Set silos.bank.rare"),
        (lambda t: {"job": [f"${n % 30},500.00" if n % 8 else "none" for n in range(PEOPLE)]},
         r"column 'job': amounts such as '\$\d+,500.00' are taken as categories, because of 'none'. Write"),
        (lambda t: {"job": [f"{1 + n % 30} 000" if n % 8 else "none" for n in range(PEOPLE)]},
         r"column 'job': amounts such as '\d+ 000' are taken as categories, because of 'none'"),
        (lambda t: {"job": [f"{1 + n % 28:02d}.01.2026" if n % 8 else "none" for n in range(PEOPLE)]},
         r"column 'job': dates such as '\d\d.01.2026' are taken as categories. .*silos.bank.date_format"),
        (lambda t: {"age": t["y"]}, "column 'age': it tells the label by itself in training rows .100.0% of the rows"),
        (lambda t: {"job": replaced(np.where(t["y"], "paid", "open"), [7], "open")}, "column 'job': it tells"),
        (lambda t: {"age": 3 * t["y"] + np.random.default_rng(1).random(PEOPLE)},
         r"column 'age': it tells .*AUROC 1.0000"),
    ],
)  # fmt: skip
def test_what_looks_wrong_gets_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    (warning,) = warnings(tmp_path, ordinary() | change(ordinary()), rare=1)
    assert warning.startswith("silo 'bank', ")

    assert re.search(message, warning), warning


def test_only_training_rows_are_looked_at(tmp_path: Path) -> None:
    columns = ordinary()
    job = job_of(tmp_path, columns)
    training = tdcd.load_data(job).federation.ids
    others = np.setdiff1d(np.arange(PEOPLE), training)
    assert warnings(tmp_path, columns | {"age": replaced(columns["age"], others, 999)}) == []


def test_a_regression_that_knows_its_target(tmp_path: Path) -> None:
    columns = ordinary() | {"y": ordinary()["income"] * 1.19}
    (warning,) = warnings(tmp_path, columns, loss="squared-error")
    assert "column 'income': it tells the label by itself in training rows (correlation 1.0000)" in warning


def test_codes_that_mean_different_things_may_have_flags(tmp_path: Path) -> None:
    hours = replaced(ordinary()["hours"], slice(0, 400, 5), -7)
    hours = replaced(hours, slice(1, 400, 5), -8)
    columns, missing = ordinary() | {"hours": hours}, ["NA", "-7", "-8", "-9"]
    (warning,) = warnings(tmp_path, columns, missing=missing)
    assert "column 'hours': -7 in " in warning
    assert 'give each its own: silos.bank.missing_flags = ["-7", "-8"]' in warning
    assert warnings(tmp_path, columns, missing=missing, missing_flags=["-7", "-8", "-9"]) == []
    job = job_of(tmp_path, columns, missing=missing, missing_flags=["-7", "-8", "-9"])
    data = tdcd.load_data(job)
    made = data.federation.preparations["bank"]
    assert [name for name in made.outputs if "missing" in name] == [
        "hours missing",
        "hours missing -7",
        "hours missing -8",
    ]
    place = made.outputs.index("hours missing")
    rows = data.federation.samples.features["bank"][:, place : place + 3]
    own = torch.from_numpy(hours[data.federation.ids])
    assert torch.equal(rows.T, torch.stack([own < 0, own == -7, own == -8]).float())
    sites = Federation(job, tmp_path / "runs")
    run(sites)
    assert sites.hubs["bank"].setup.preparation == made
    with pytest.raises(JobError, match="missing_flags: '-5' is not listed in missing"):
        job_of(tmp_path, columns, missing=missing, missing_flags=["-5"])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_flags_of_codes_however_they_are_written(tmp_path: Path, suffix: str) -> None:
    words = ["refused", "-8.0", "cook", "smith", "smith"]
    columns = {"job": [words[n % 5] for n in range(PEOPLE)], "y": ordinary()["y"]}
    bank: dict[str, Any] = {"categories": ["job"], "missing": ["REFUSED", "-8"], "missing_flags": ["-8", "REFUSED"]}
    job = job_of(tmp_path, columns, **bank)
    if suffix == "parquet":
        for name in ("north", "south"):
            pl.read_csv(tmp_path / f"{name}.csv").write_parquet(tmp_path / f"{name}.parquet")
        bank["clients"] = {name: f"{name}.parquet" for name in ("north", "south")}
        job = job_of(tmp_path, columns, **bank)
    data = tdcd.load_data(job)
    place, rows = data.federation.preparations["bank"].outputs.index("job missing"), data.federation.samples.features
    kind = torch.from_numpy(data.federation.ids % 5)
    assert torch.equal(rows["bank"][:, place : place + 3].T, torch.stack([kind < 2, kind == 1, kind == 0]).float())


def test_dates_in_two_spellings(tmp_path: Path) -> None:
    columns = ordinary()
    iso = [str(day) for day in columns["since"]]
    german = [f"{day:%d.%m.%Y}" for day in columns["since"]]
    mixed = [german[n] if n == 9 else iso[n] for n in range(PEOPLE)]
    with pytest.raises(
        DataError, match=r"client 'north' .*column 'since' holds dates in two spellings: row 1 is '.*', row 10 '"
    ):
        warnings(tmp_path, columns | {"since": mixed})
    slashed = [text.replace(".", "/") if n % 2 else text for n, text in enumerate(german)]
    with pytest.raises(
        DataError, match="silo 'bank': column 'since' holds dates in several spellings, such as '.*' and '.*'. Write"
    ):
        warnings(tmp_path, columns | {"since": slashed})


def test_numbers_that_stand_apart() -> None:
    draw = np.random.default_rng(2)
    for values in (
        np.exp(draw.normal(0, 2, 30_000)),
        draw.standard_t(2, 30_000),
        np.repeat([0.0, 1.0], [9_990, 10]),
        np.repeat([0.0, 50_000.0, 51_000.0], 100),
        np.append(draw.integers(0, 99, 1000), 99).astype(float),
        np.arange(-9.0, 200.0),
        np.zeros(100),
        np.array([1.0, 999.0]),
    ):
        assert suspect_numbers(values) is None
    both = suspect_numbers(np.append(draw.normal(0, 1, 1000), [-1e8, 1e8, 2e8]))
    assert both
    assert both.outliers == (-1e8, 1e8, 2e8)


def test_check_prints_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_of(tmp_path, ordinary() | {"age": np.full(PEOPLE, 40), "hours": ordinary()["y"]})
    assert run_command("check", tmp_path / "job.toml") == 0
    printed = capsys.readouterr().out
    assert "numbers, all 40: left out" in printed
    lines = [line for line in printed.splitlines() if line.startswith("warning: ")]
    assert [line.split(":")[1] for line in lines] == [" silo 'bank', column 'age'", " silo 'bank', column 'hours'"]
