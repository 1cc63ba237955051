"""Predictions from tables: partial ones, shares, Shapley values, and rows that differ from those of the training."""

from itertools import permutations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from serving.models import new_tables, train_tables
from tdcd.core.objectives import BinaryCrossEntropy, CrossEntropy, Objective, Poisson, SquaredError
from tdcd.data.tables import reader
from tdcd.errors import DataError
from tdcd.serving.explain import shapley_values
from tdcd.serving.model import Model, load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("three")
    train_tables(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder / "run")


def test_rows_are_embedded_in_batches_of_any_size(model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, int]] = []
    expected = model.predict_tables(new_tables(folder), on_progress=lambda *counts: done.append(counts))
    rows = expected.frame.height
    assert done[-1] == (3 * rows, 3 * rows)
    monkeypatch.setattr(reader, "CELLS", 40)
    pieces: list[int] = []
    in_pieces = model.predict_tables(new_tables(folder), on_progress=lambda done, _: pieces.append(done))
    assert len(pieces) > 20
    assert np.allclose(in_pieces.frame["probability of 1"], expected.frame["probability of 1"], atol=1e-6)
    assert in_pieces.drift == expected.drift


def test_shares_add_up_to_the_score(model: Model, folder: Path) -> None:
    frame = model.predict_tables(new_tables(folder), shares=True, shapley=True).frame
    shares = [frame[f"share of {silo}"] for silo in ("bank", "ward", "shop")]
    assert np.abs(sum(shares) - frame["score"]).max() < 1e-6
    assert np.allclose(1 / (1 + np.exp(-frame["score"].to_numpy())), frame["probability of 1"], atol=1e-6)
    values = sum(frame[f"Shapley value of {silo} for 1"] for silo in ("bank", "ward", "shop"))
    assert np.allclose(values, frame["probability of 1"] - 0.5, atol=1e-6)


def test_partial_predictions_leave_a_silo_out_of_the_sum(model: Model, folder: Path) -> None:
    tables = new_tables(folder)
    whole = model.predict_tables(tables, shares=True).frame
    del tables["shop"]
    partial = model.predict_tables(tables, without=["shop"], shares=True)
    assert partial.note.endswith("partial: without shop")
    both = whole.join(partial.frame, on="id", suffix=" partial")
    assert both.height == whole.height <= partial.frame.height  # an ID need not be at the shop
    assert np.abs(both["score"] - both["share of shop"] - both["score partial"]).max() < 1e-6
    assert partial.frame["without"].unique().to_list() == ["shop"]
    assert "without" not in whole.columns
    for without, says in [
        (["shops"], "--without shops: it is no silo of .*; did you mean 'shop'"),
        (["bank", "shop"], "silo 'bank' has a table, and is to be left out"),
        ([], "none for shop: --table shop=FILE. To leave a silo out of the sum, .* say so: --without shop"),
    ]:
        with pytest.raises(DataError, match=says):
            model.predict_tables(tables, without=without)
    with pytest.raises(DataError, match="nothing is left to predict from"):
        model.predict_tables({}, without=["bank", "ward", "shop"])


def test_what_differs_from_the_training_is_counted_and_told(model: Model, folder: Path, tmp_path: Path) -> None:
    tables = new_tables(folder)
    same = model.predict_tables(tables)
    assert not [line for line in same.warnings if "mean" in line or "has a value" in line]
    shop = pl.read_parquet(folder / "shop.parquet")
    shop.with_columns(spent=pl.col("spent") + 3, age=pl.lit(None, pl.Int64)).write_parquet(tmp_path / "shop.parquet")
    south = pl.read_csv(folder / "south.csv").with_columns(kind=pl.lit("new"))
    south.write_csv(tmp_path / "south.csv")
    tables |= {"shop": [tmp_path / "shop.parquet"], "bank/south": [tmp_path / "south.csv"]}
    changed = model.predict_tables(tables)
    lines = "\n".join(changed.warnings)
    count = changed.frame.height
    assert f"silo 'shop', column 'age': no row of {count} has a value" in lines
    assert "silo 'shop', column 'spent': its mean is 3" in lines.replace("its mean is 2.9", "its mean is 3")
    assert "standard deviations above that of the training rows" in lines
    known = set(changed.frame["id"]) & set(south["id"])
    assert f"silo 'bank', column 'kind': {len(known)} of {count} rows hold categories that" in lines.replace(
        f"{len(known) + 1} of", f"{len(known)} of"
    )
    drift = {column.column: column for column in changed.drift["shop"]}
    assert (drift["age"].missing, drift["age"].rows, drift["age"].shift) == (count, count, None)
    assert drift["spent"].shift == pytest.approx(3 / shop["spent"].std(), rel=0.2)  # type: ignore[operator]


OBJECTIVES: list[tuple[Objective, int]] = [
    (BinaryCrossEntropy(), 1),
    (CrossEntropy(), 3),
    (SquaredError(), 2),
    (Poisson(), 1),
]


@given(st.integers(1, 4), st.sampled_from(OBJECTIVES), st.integers(0, 99))
def test_shapley_values_are_means_over_all_orders(silos: int, kind: tuple[Objective, int], seed: int) -> None:
    objective, width = kind
    generator = torch.Generator().manual_seed(seed)
    names = [f"silo {number}" for number in range(silos)]
    shares = {name: torch.randn(5, width, generator=generator, dtype=torch.float64) for name in names}

    def predicted(some: list[str]) -> torch.Tensor:
        scores = torch.stack([torch.zeros(5, width, dtype=torch.float64), *(shares[name] for name in some)]).sum(0)
        if objective.meaning == "numbers":
            return objective.predictions(scores)
        return objective.probabilities(scores)

    orders = list(permutations(names))
    expected = {
        name: sum(predicted([*o[: o.index(name)], name]) - predicted([*o[: o.index(name)]]) for o in orders)
        / len(orders)
        for name in names
    }
    values = shapley_values(objective, shares)
    assert set(values) == set(names)
    for name in names:
        assert torch.allclose(values[name], torch.as_tensor(expected[name]), atol=1e-12)
    assert torch.allclose(torch.stack([*values.values()]).sum(0), predicted(names) - predicted([]), atol=1e-12)


def test_too_many_silos_for_shapley_values() -> None:
    with pytest.raises(DataError, match="of at most 12 silos, and there are 13"):
        shapley_values(BinaryCrossEntropy(), {str(number): torch.zeros(1, 1) for number in range(13)})


def test_advice_on_new_tables_is_for_those_who_cannot_change_the_job(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    tables = new_tables(folder)
    (tmp_path / "late.csv").write_bytes(b"\0\xff\xfe")
    tables["shop"] = [tmp_path / "late.csv"]
    with pytest.raises(DataError, match=r"silo 'shop' \(.*late\.csv\): .* --table shop/CLIENT=FILE reads it") as caught:
        model.predict_tables(tables)
    assert "Set silos." not in str(caught.value)
