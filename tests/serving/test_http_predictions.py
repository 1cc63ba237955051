"""Predictions over HTTP are those of tables."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import tdcd
from serving.http_models import Serving, make_tables, rows_of, serving, train_tables
from tdcd.core.objectives import Poisson
from tdcd.serving.http.predictor import Answered, Predictor
from tdcd.serving.http.problems import RequestError
from tdcd.serving.model import Model, load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("http")
    train_tables(place)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder / "model-3")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Serving]:
    with serving(folder / "model-3") as one:
        yield one


def new_tables() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows like those of the training, but for an unknown job and cells in other spellings."""
    bank, insurer = make_tables()
    job = pl.when(pl.int_range(pl.len()) == 7).then(pl.lit("astronaut")).otherwise(pl.col("job"))
    return bank.with_columns(job=job), insurer


def by_tables(model: Model, folder: Path, bank: pl.DataFrame, insurer: pl.DataFrame, **how: Any) -> Any:
    bank.drop("default").write_csv(folder / "new-bank.csv")
    insurer.write_parquet(folder / "new-insurer.parquet")
    files: dict[str, list[Path | str]] = {
        "bank": [folder / "new-bank.csv"],
        "insurer": [folder / "new-insurer.parquet"],
    }
    return model.predict_tables({s: f for s, f in files.items() if s not in how.get("without", ())}, **how)


def test_they_are_those_of_tables(server: Serving, model: Model, folder: Path) -> None:
    bank, insurer = new_tables()
    expected = by_tables(model, folder, bank, insurer, shares=True, shapley=True)
    reply = server.predict(rows_of(bank, insurer), shares=True, shapley=True).json
    frame = expected.frame.sort("id")
    made = sorted(reply["predictions"], key=lambda one: one["id"])
    assert [one["id"] for one in made] == frame["id"].to_list()
    assert [one["prediction"] for one in made] == frame["prediction"].to_list()
    chances = [[one["probabilities"]["0"], one["probabilities"]["1"]] for one in made]
    of_one = frame["probability of 1"].to_numpy()
    np.testing.assert_allclose(chances, np.column_stack([1 - of_one, of_one]), atol=1e-6)
    np.testing.assert_allclose([one["score"] for one in made], frame["score"], atol=1e-6)
    for silo in ("bank", "insurer"):
        np.testing.assert_allclose([one["shares"][silo] for one in made], frame[f"share of {silo}"], atol=1e-6)
        shapley = frame[f"Shapley value of {silo} for 1"]
        np.testing.assert_allclose([one["shapley"][silo] for one in made], shapley, atol=1e-6)
    assert reply["warnings"] == list(expected.warnings)
    assert any("astronaut" in warning for warning in reply["warnings"])
    assert not reply["partial"]
    assert reply["model"] == {"name": "loans", "run": model.result.description.run, "round": 3}


def test_single_rows_that_come_together_are_each_their_own(server: Serving, model: Model, folder: Path) -> None:
    bank, insurer = new_tables()
    rows = rows_of(bank, insurer)
    chances = dict(by_tables(model, folder, bank, insurer).frame.select("id", "probability of 1").iter_rows())
    with ThreadPoolExecutor(16) as pool:
        replies = [answer.json for answer in pool.map(lambda row: server.predict([row]), rows)]
    for row, reply in zip(rows, replies, strict=True):
        (one,) = reply["predictions"]
        assert one["id"] == row["id"]
        assert one["probabilities"]["1"] == pytest.approx(chances[row["id"]], abs=1e-6)
        assert any("astronaut" in warning for warning in reply["warnings"]) == (row["bank"]["job"] == "astronaut")


def test_silos_are_left_out_only_where_a_request_says_so(server: Serving, model: Model, folder: Path) -> None:
    bank, insurer = new_tables()
    rows = [{"id": row["id"], "bank": row["bank"]} for row in rows_of(bank, insurer)]
    expected = by_tables(model, folder, bank, insurer, without=["insurer"]).frame
    reply = server.predict(rows, without=["insurer"]).json
    assert (reply["partial"], reply["without"]) == (True, ["insurer"])
    chances = {one["id"]: one["probabilities"]["1"] for one in reply["predictions"]}
    wanted = dict(expected.select("id", "probability of 1").iter_rows())
    assert chances == pytest.approx(wanted, abs=1e-6)
    assert server.predict(rows).status == 422
    both = server.predict(rows_of(bank, insurer), without=["insurer"])
    assert both.status == 422
    assert both.json["errors"][0]["silo"] == "insurer"


@pytest.mark.parametrize(
    ("cells", "same"),
    [
        ({"job": "  cook "}, {"job": "cook"}),
        ({"age": None}, {"age": ""}),
        ({"age": None}, {"age": "na"}),
        ({"code": 2}, {"code": "2"}),
        ({"code": 2}, {"code": 2.0}),
        ({"age": 40}, {"age": 40.0}),
        ({"since": "2021-02-03"}, {"since": "2021-02-03T00:00"}),
        ({"fee, per %": "refused"}, {"fee, per %": "REFUSED"}),
    ],
)
def test_cells_that_mean_the_same(server: Serving, cells: dict[str, Any], same: dict[str, Any]) -> None:
    row = rows_of(*make_tables())[0]
    pair = [{**row, "bank": {**row["bank"], **one}} for one in (cells, same)]
    one, two = server.predict(pair).json["predictions"]
    assert one == two


def test_marks_of_no_value_differ_where_the_job_says_so(server: Serving) -> None:
    row = rows_of(*make_tables())[0]
    pair = [{**row, "bank": {**row["bank"], "fee, per %": fee}} for fee in ("refused", "NA")]
    one, two = server.predict(pair, shares=True).json["predictions"]
    assert one["shares"]["bank"] != two["shares"]["bank"]
    assert one["shares"]["insurer"] == two["shares"]["insurer"]


def test_a_bad_row_fails_only_its_own_request(model: Model) -> None:
    predictor = Predictor(model, 100)
    rows = rows_of(*make_tables())[:3]
    late = {**rows[1], "bank": {**rows[1]["bank"], "since": "soon"}}
    huge = {**rows[1], "bank": {**rows[1]["bank"], "age": 1e200}}
    asks = [
        predictor.read(json.dumps({"rows": own}).encode())
        for own in ([rows[0]], [rows[0], late], [rows[2]], [rows[1], rows[2], huge])
    ]
    first, dated, third, large = predictor.answer(asks)
    assert isinstance(first, Answered)
    assert isinstance(third, Answered)
    (alone,) = predictor.answer([asks[0]])
    assert isinstance(alone, Answered)
    assert json.loads(first.body)["predictions"][0]["id"] == rows[0]["id"]
    assert json.loads(first.body)["predictions"] == json.loads(alone.body)["predictions"]
    for outcome, row, column in ((dated, 2, "since"), (large, 3, "age")):
        assert isinstance(outcome, RequestError)
        (entry,) = outcome.errors
        assert (entry["row"], entry["id"], entry["silo"], entry["column"]) == (row, "P001", "bank", column)
        assert entry["pointer"] == f"/rows/{row - 1}/bank/{column}"


def test_large_whole_numbers_stay_exact_whoever_asks_at_the_same_time(tmp_path: Path) -> None:
    """Beside a decimal in another request they would become float64, which rounds them."""
    base = 2**60
    codes = [base + n for n in range(60)]
    frame = pl.DataFrame({"person": range(60), "serial": codes, "default": [n % 2 for n in range(60)]})
    frame.write_parquet(tmp_path / "bank.parquet")
    frame.select("person", claims=pl.col("person") % 5).write_parquet(tmp_path / "insurer.parquet")
    (tmp_path / "job.toml").write_text(
        'labels = { silo = "bank", sharing = "shared" }\ndata = { source = "tables" }\nmodel = { kind = "linear" }\n'
        'silos.bank = { id = "person", label = "default", clients = { all = "bank.parquet" } }\n'
        'silos.insurer = { id = "person", clients = { all = "insurer.parquet" } }\n'
        'training = { loss = "binary-cross-entropy", rounds = 1, rate = 0.5 }\n'
    )
    tdcd.run_job(tdcd.load_job(tmp_path / "job.toml"), tmp_path / "run")
    predictor = Predictor(load_model(tmp_path / "run"), 10)

    def ask(serial: float) -> Any:
        row = {"bank": {"serial": serial}, "insurer": {"claims": 1}}
        return predictor.read(json.dumps({"rows": [row], "shares": True}).encode())

    def shares(outcome: Any) -> float:
        return float(json.loads(outcome.body)["predictions"][0]["shares"]["bank"])

    (alone,) = predictor.answer([ask(base + 59)])
    together = predictor.answer([ask(base + 59), ask(0.5 + 2**60), ask(base)])
    assert shares(together[0]) == shares(alone)
    assert shares(together[2]) != pytest.approx(shares(alone), abs=1e-3)


def test_rows_of_jobs_that_make_one_row_of_several(tmp_path: Path) -> None:
    """A request has the row that comes out: sums, means and counts are numbers."""
    people = [n // 2 for n in range(80)]
    accounts = pl.DataFrame({"person": people, "balance": [float(n % 7) for n in range(80)], "kind": ["a", "b"] * 40})
    accounts.write_csv(tmp_path / "bank.csv")
    frame = pl.DataFrame(
        {"person": range(40), "claims": [n % 5 for n in range(40)], "default": [n % 2 for n in range(40)]}
    )
    frame.write_csv(tmp_path / "insurer.csv")
    (tmp_path / "job.toml").write_text(
        'labels = { silo = "insurer", sharing = "shared" }\ndata = { source = "tables" }\nmodel = { kind = "linear" }\n'
        'silos.bank = { id = "person", aggregate = { balance = "sum", kind = "count" }, clients = { a = "bank.csv"} }\n'
        'silos.insurer = { id = "person", label = "default", clients = { all = "insurer.csv" } }\n'
        'training = { loss = "binary-cross-entropy", rounds = 2, rate = 0.5 }\n'
    )
    tdcd.run_job(tdcd.load_job(tmp_path / "job.toml"), tmp_path / "run")
    model = load_model(tmp_path / "run")
    files: dict[str, list[Path | str]] = {"bank": [tmp_path / "bank.csv"], "insurer": [tmp_path / "insurer.csv"]}
    expected = model.predict_tables(files).frame["probability of 1"]
    joined = accounts.group_by("person").agg(pl.col("balance").sum(), kind=pl.col("kind").count()).sort("person")
    rows = [
        {"bank": {"balance": one["balance"], "kind": one["kind"]}, "insurer": {"claims": two["claims"]}}
        for one, two in zip(joined.to_dicts(), frame.to_dicts(), strict=True)
    ]
    predictor = Predictor(model, 100)
    (outcome,) = predictor.answer([predictor.read(json.dumps({"rows": rows}).encode())])
    assert isinstance(outcome, Answered)
    made = [one["probabilities"]["1"] for one in json.loads(outcome.body)["predictions"]]
    np.testing.assert_allclose(made, expected, atol=1e-6)


def of_arrays(tmp_path: Path, loss: Any, labels: Any, **settings: Any) -> Path:
    generator = np.random.default_rng(0)
    left = generator.normal(size=(40, 2, 3)).astype(np.float32)
    right = generator.normal(size=(40, 2)).astype(np.float32)
    frame = pl.DataFrame({"a": right[:, 0], "b": right[:, 1]})
    clients = [range(20), range(20, 40)]
    silos = [tdcd.Silo("left", left, clients=clients), tdcd.Silo("right", frame, clients=clients)]
    result = tdcd.train(
        tdcd.Federation.from_silos(silos, labels),
        {"left": tdcd.models.LSTM(hidden=2), "right": tdcd.models.MLP(hidden=[4])},
        tdcd.Settings(rounds=2, local_steps=1, rate=0.1, loss=loss, **settings),
    )  # fmt: skip
    result.save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("kind", ["classes", "numbers", "counts"])
def test_models_of_arrays(tmp_path: Path, kind: str) -> None:
    generator = np.random.default_rng(1)
    loss, labels = {
        "classes": ("cross-entropy", np.arange(40) % 3),
        "numbers": ("squared-error", generator.normal(size=(40, 2))),
        "counts": (Poisson(), generator.integers(0, 4, 40)),
    }[kind]
    path = of_arrays(tmp_path, loss, labels)
    features = {"left": torch.arange(12.0).reshape(2, 2, 3) / 10, "right": torch.tensor([[0.5, -1.0], [2.0, 0.0]])}
    rows = [
        {"left": one, "right": {"b": two[1], "a": two[0]}}
        for one, two in zip(features["left"].tolist(), features["right"].tolist(), strict=True)
    ]
    result = load_model(path).result
    with serving(path) as server:
        reply = server.predict(rows, shares=True, shapley=True)
        assert reply.status == 200, reply.body
        made = reply.json["predictions"]
        wrong = server.predict([{**rows[0], "left": [[1.0] * 3, [1.0] * 2]}]).json["errors"][0]
        huge = server.predict([rows[0], {**rows[0], "left": [[1e39] * 3] * 2}]).json["errors"][0]
    assert (wrong["row"], wrong["silo"]) == (1, "left")
    assert (huge["row"], huge["silo"]) == (2, "left")
    if kind == "classes":
        chances = [list(one["probabilities"].values()) for one in made]
        np.testing.assert_allclose(chances, result.probabilities(features), atol=1e-6)
        assert [one["prediction"] for one in made] == [str(c) for c in result.predict(features).tolist()]
    else:
        np.testing.assert_allclose([one["prediction"] for one in made], result.predict(features).squeeze(1), rtol=1e-5)
    assert set(made[0]["shares"]) == set(made[0]["shapley"]) == {"left", "right"}
