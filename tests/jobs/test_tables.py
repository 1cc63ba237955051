"""Jobs over tables: from files at unequal clients to a trained federation, and on to predictions."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli_w
import torch

import tdcd
from tdcd.data.holdout import Part, held_out
from tdcd.data.tables.alignment import Alignment
from tdcd.errors import DataError, JobError, RunError
from tdcd.jobs.tables import OpenTables
from tdcd.serving.model import load_model

BANK = {"north": 30, "south": 70, "sea": 5}
"""Rows of each client; the insurer's are written in other files and another order."""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Write a bank of 105 people and an insurer of 100, of whom 90 are the same."""
    generator = np.random.default_rng(3)
    people = generator.permutation(1000)[:115]
    age, limit = generator.normal(40, 10, 115), generator.normal(5000, 2000, 115)
    job = generator.choice(["cook", "nurse", "smith"], 115, p=[0.6, 0.3, 0.1])
    frame = pl.DataFrame({"person": people, "age": age.round(2), "limit": limit.round(), "job": job})
    frame = frame.with_columns(default=(pl.col("limit") + 50 * pl.col("age") < 7000).cast(pl.Int64))
    frame = frame.with_columns(age=pl.when(pl.int_range(pl.len()) % 9 == 4).then(None).otherwise(pl.col("age")))
    start = 0
    for client, rows in BANK.items():
        frame[start : start + rows].select("person", "limit", "default").write_csv(tmp_path / f"{client}.csv")
        start += rows
    insurer = frame[generator.permutation(np.arange(15, 115)).tolist()].select("job", "person", "age")
    insurer[:80].write_parquet(tmp_path / "direct.parquet")
    insurer[80:].write_csv(tmp_path / "brokers.csv")
    frame.write_parquet(tmp_path / "everything.parquet")
    return tmp_path


def job_table(folder: Path) -> dict[str, Any]:
    return {
        "name": "loans",
        "labels": {"silo": "bank", "sharing": "shared"},
        "data": {"source": "tables", "test_fraction": 0.3, "validation_fraction": 0},
        "silos": {
            "bank": {"id": "person", "label": "default", "clients": {c: str(folder / f"{c}.csv") for c in BANK}},
            "insurer": {
                "id": "person",
                "rare": 3,
                "clients": {"direct": str(folder / "direct.parquet"), "brokers": str(folder / "brokers.csv")},
            },
        },
        "model": {"kind": "linear"},
        "training": {"loss": "binary-cross-entropy", "rounds": 6, "local_steps": 2, "rate": 0.2, "evaluate_every": 3},
    }


def written(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda table: None) -> tdcd.Job:
    table = job_table(folder)
    change(table)
    (folder / "job.toml").write_text(tomli_w.dumps(table))
    return tdcd.load_job(folder / "job.toml")


def test_rows_are_joined_by_id_and_prepared(tables: Path) -> None:
    job = written(tables)
    data = tdcd.load_data(job)
    frame = pl.read_parquet(tables / "everything.parquet")[15:105].sort("person")
    testing = held_out(frame["person"].to_numpy(), 0.3, 2021)
    train, test = frame.filter(pl.Series(~testing)), frame.filter(pl.Series(testing))
    assert data.ids[Part.TRAIN].tolist() == data.federation.ids.tolist() == train["person"].to_list()
    assert data.ids[Part.TEST].tolist() == test["person"].to_list()
    assert data.federation.samples.labels.tolist() == train["default"].to_list()
    assert data.federation.classes == ("0", "1")
    assert data.federation.notes[0] == "90 IDs are in all silos; rows without them: bank 15 of 105, insurer 10 of 100"
    for part, rows in ((data.federation.samples, train), (data.held_out[Part.TEST], test)):
        limit = (rows["limit"] - train["limit"].mean()) / train["limit"].std(ddof=0)
        assert np.allclose(part.features["bank"][:, 0], limit, atol=1e-5)
        age = ((rows["age"] - train["age"].mean()) / train["age"].std(ddof=0)).fill_null(0)
        hot = [(rows["job"] == word).cast(pl.Float32) for word in ("cook", "nurse", "smith")]
        expected = np.stack([*hot, age, rows["age"].is_null()], axis=1)
        assert data.federation.preparations["insurer"].outputs[-1] == "age missing"
        assert np.allclose(part.features["insurer"], expected, atol=1e-5)
    owners = dict(zip(data.federation.ids.tolist(), data.federation.rosters["bank"].owner.tolist(), strict=True))
    names = data.federation.rosters["bank"].clients
    for client in BANK:
        for person in pl.read_csv(tables / f"{client}.csv")["person"]:
            assert person not in owners or names[owners[person]] == client


def test_training_is_that_of_the_same_arrays(tables: Path, tmp_path: Path) -> None:
    job = written(tables)
    data = tdcd.load_data(job)
    silos = [
        tdcd.Silo(
            silo,
            data.federation.samples.features[silo],
            {
                client: data.federation.ids[(data.federation.rosters[silo].owner == k).numpy()]
                for k, client in enumerate(data.federation.rosters[silo].clients)
            },
            ids=data.federation.ids,
        )
        for silo in data.federation.silos
    ]
    arrays = tdcd.Federation.from_silos(silos, data.federation.samples.labels, data.federation.ids)
    plain = tdcd.train(arrays, job.model, job.training)
    result = tdcd.run_job(job, tmp_path / "run").federation
    for silo, block in plain.blocks.items():
        assert all(torch.equal(block[name], result.blocks[silo][name]) for name in block)


def test_the_order_of_rows_and_files_does_not_matter(tables: Path) -> None:
    one = tdcd.load_data(written(tables)).federation
    for path in tables.glob("*.csv"):
        pl.read_csv(path).sample(fraction=1, shuffle=True, seed=5).write_csv(path)

    def turned(table: dict[str, Any]) -> None:
        for silo in table["silos"].values():
            silo["clients"] = dict(reversed(silo["clients"].items()))

    two = tdcd.load_data(written(tables, turned)).federation
    assert one.rosters["bank"].clients == two.rosters["bank"].clients
    assert torch.equal(one.rosters["insurer"].owner, two.rosters["insurer"].owner)
    for silo in one.silos:
        assert torch.allclose(one.samples.features[silo], two.samples.features[silo], atol=1e-6)


def test_a_run_predicts_from_new_tables(tables: Path, tmp_path: Path) -> None:
    job = written(tables, lambda table: table["data"].update(validation_fraction=0.2))
    result = tdcd.run_job(job, tmp_path / "run").federation
    assert result.history[-1].validation["auroc"] > 0
    run = load_model(tmp_path / "run")
    held_out = run.predict_held_out()
    frame = held_out.frame
    assert held_out.measures == pytest.approx(result.history[-1].test)
    assert run.origin == "finished after 6 of 6 rounds"
    files = {
        "bank": [tables / f"{c}.csv" for c in BANK],
        "insurer": [tables / "brokers.csv", tables / "direct.parquet"],
    }
    predictions = run.predict_tables(files)
    everyone = predictions.frame
    assert predictions.note == "90 IDs are in all silos; rows without them: bank 15 of 105, insurer 10 of 100"
    assert predictions.measures["accuracy"] > 0.5  # the bank's tables have labels
    assert everyone.columns == ["id", "prediction", "probability of 1"]
    assert everyone.height == 90
    both = everyone.join(frame, on="id", suffix=" held out")
    assert both.height == frame.height
    assert np.allclose(both["probability of 1"], both["probability of 1 held out"], atol=1e-6)
    assert both["prediction"].equals(both["prediction held out"])
    unlabelled = pl.read_csv(tables / "south.csv").drop("default")
    unlabelled.write_csv(tables / "new.csv")
    unknown = run.predict_tables(files | {"bank": [tables / "new.csv"]})
    assert not unknown.measures
    some = unknown.frame
    expected = everyone.filter(pl.col("id").is_in(unlabelled["person"].to_list()))
    assert some["id"].equals(expected["id"])
    assert np.allclose(some["probability of 1"], expected["probability of 1"], atol=1e-6)
    with pytest.raises(DataError, match="a table of every silo is needed; there is none for insurer"):
        run.predict_tables({"bank": files["bank"]})
    with pytest.raises(DataError, match="'banks' is no silo of .*; did you mean 'bank'"):
        run.predict_tables({"banks": files["bank"]})
    unlabelled.drop("limit").write_csv(tables / "new.csv")
    with pytest.raises(DataError, match=r"new.csv.*no column 'limit'"):
        run.predict_tables(files | {"bank": [tables / "new.csv"]})


def test_a_run_does_not_predict_from_other_tables_as_if_they_were_its_own(tables: Path, tmp_path: Path) -> None:
    tdcd.run_job(written(tables), tmp_path / "run")
    frame = pl.read_csv(tables / "south.csv")
    frame.with_columns(limit=10 * pl.col("limit") + 5).write_csv(tables / "south.csv")
    with pytest.raises(RunError, match="the job's tables are no longer those that it was trained on"):
        load_model(tmp_path / "run").predict_held_out()


def test_an_id_that_occurs_twice_is_an_error_with_an_alignment_too(tables: Path) -> None:
    job = written(tables, lambda table: table["data"].update(alignment="x.parquet"))
    OpenTables.open(job, lambda what: None).align()[0].save(tables / "x.parquet")
    with (tables / "south.csv").open("a") as file:
        file.write("5000,1,0\n5000,2,0\n")
    with pytest.raises(DataError, match=r"silo 'bank': 1 IDs stand for several rows: 5000 \(south, south\)"):
        tdcd.load_data(job)


def test_labels_are_the_same_in_whatever_file(tables: Path) -> None:
    """Whole numbers, those with a point and truth values: what a class is called does not depend on the file's type."""
    for client, cast in zip(BANK, (pl.Int64, pl.Float64, pl.String), strict=True):
        frame = pl.read_csv(tables / f"{client}.csv").with_columns(pl.col("default").cast(cast))
        frame.write_parquet(tables / f"{client}.parquet")

    def typed(table: dict[str, Any]) -> None:
        table["silos"]["bank"]["clients"] = {client: f"{client}.parquet" for client in BANK}

    plain, federation = (tdcd.load_data(written(tables, change)).federation for change in (lambda t: None, typed))
    assert federation.fingerprint() == plain.fingerprint()
    for client in BANK:
        frame = pl.read_csv(tables / f"{client}.csv").with_columns(pl.col("default").cast(pl.Boolean))
        frame.write_csv(tables / f"{client}.csv")
        frame.write_parquet(tables / f"{client}.parquet")

    def truths(table: dict[str, Any]) -> None:
        table["labels"]["positive"] = "true"
        table["silos"]["bank"]["clients"]["south"] = "south.parquet"

    federation = tdcd.load_data(written(tables, truths)).federation
    assert federation.classes == ("false", "true")
    assert federation.samples.labels.tolist() == plain.samples.labels.tolist()


def test_runs_that_cannot_predict(tables: Path, tmp_path: Path) -> None:
    tdcd.run_job(written(tables), tmp_path / "run")
    (tmp_path / "run" / "preparation" / "bank.json").unlink()
    with pytest.raises(RunError, match=r"preparation/bank.json: missing"):
        load_model(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match="it has not ended; go on with it: tdcd train --resume"):
        load_model(tmp_path / "run")
    with pytest.raises(RunError, match="no such directory"):
        load_model(tmp_path / "nothing")


def test_an_alignment_is_reused_and_verified(tables: Path) -> None:
    file = tables / "x.parquet"
    job = written(tables, lambda table: table["data"].update(alignment="x.parquet"))
    with pytest.raises(DataError, match="x.parquet: no such alignment; make it with: tdcd align"):
        tdcd.load_data(job)
    alignment, _ = OpenTables.open(job, lambda what: None).align()
    alignment.save(file)
    fresh = tdcd.load_data(written(tables)).federation
    assert tdcd.load_data(job).federation.fingerprint() == fresh.fingerprint()
    assert (
        Alignment.load(file).handed["label"].cast(int).sum()
        == pl.read_parquet(tables / "everything.parquet")[15:105]["default"].sum()
    )
    south = pl.read_csv(tables / "south.csv")
    south[1:].write_csv(tables / "south.csv")
    with pytest.raises(DataError, match=r"silo 'bank', client 'south' \(.*south.csv\): it does not hold the IDs"):
        tdcd.load_data(job)
    south.with_columns(default=1 - pl.col("default")).write_csv(tables / "south.csv")
    with pytest.raises(DataError, match="column 'default' of silo 'bank' has changed since"):
        tdcd.load_data(job)
    south.write_csv(tables / "south.csv")
    south.rename({"default": "d"}).with_columns(default=pl.col("d"), part=pl.lit("train")).write_csv(
        tables / "south.csv"
    )


def test_a_resumed_run_needs_the_same_tables(tables: Path, tmp_path: Path) -> None:
    job = written(tables)
    tdcd.run_job(job, tmp_path / "run")
    frame = pl.read_csv(tables / "south.csv")
    frame.with_columns(limit=pl.col("limit") + 1).write_csv(tables / "south.csv")
    with pytest.raises(RunError, match="not what it was started with: training data"):
        tdcd.run_job(job, tmp_path / "run", resume=True)


def test_labels_in_every_silo_must_agree(tables: Path) -> None:
    for name in ("direct.parquet", "brokers.csv"):
        path = tables / name
        frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
        truth = pl.read_parquet(tables / "everything.parquet").select("person", died=pl.col("default"))
        frame = frame.join(truth, on="person", how="left")
        frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)

    def change(table: dict[str, Any]) -> None:
        del table["labels"]
        table["silos"]["insurer"]["label"] = "died"

    job = written(tables, change)
    alignment, _ = OpenTables.open(job, lambda what: None).align()
    assert not alignment.handed  # nobody needs to be told
    assert "died" not in tdcd.load_data(job).federation.preparations["insurer"].outputs
    frame = pl.read_csv(tables / "brokers.csv")
    frame.with_columns(died=1 - pl.col("died")).write_csv(tables / "brokers.csv")
    with pytest.raises(
        DataError, match=r"silos 'bank' and 'insurer' contradict each other: the label of \d+ IDs differs"
    ):
        tdcd.load_data(job)


def test_a_column_says_what_is_held_out(tables: Path) -> None:
    words = ("train", "train", "validation", "test")
    for client in BANK:
        frame = pl.read_csv(tables / f"{client}.csv")
        part = pl.Series("part", [words[person % 4] for person in frame["person"]])
        frame.with_columns(part).write_csv(tables / f"{client}.csv")
    job = written(tables, lambda table: table.update(data={"source": "tables", "split_column": "part"}))
    data = tdcd.load_data(job)
    assert all(person % 4 == 3 for person in data.ids[Part.TEST])
    assert all(person % 4 == 2 for person in data.ids[Part.VALIDATION])
    assert "part" not in data.federation.preparations["bank"].outputs
    pl.read_csv(tables / "sea.csv").drop("part").write_csv(tables / "sea.csv")
    with pytest.raises(DataError, match=r"sea.csv\): it has no column 'part' \(data.split_column\)"):
        tdcd.load_data(job)
    job = written(tables, lambda table: table.update(data={"source": "tables", "split_column": "fold"}))
    with pytest.raises(DataError, match="no silo's tables have a column 'fold'"):
        tdcd.load_data(job)


def test_one_file_dealt_to_simulated_clients(tables: Path) -> None:
    frame = pl.concat([pl.read_csv(tables / f"{c}.csv").with_columns(branch=pl.lit(c)) for c in BANK])
    frame.write_csv(tables / "bank.csv")

    def by_column(table: dict[str, Any]) -> None:
        own = table["silos"]["bank"]
        del own["clients"]
        own |= {"file": "bank.csv", "rows": {"kind": "column", "column": "branch"}}

    same = tdcd.load_data(written(tables)).federation
    dealt = tdcd.load_data(written(tables, by_column)).federation
    assert dealt.fingerprint() == same.fingerprint()

    def at_random(table: dict[str, Any]) -> None:
        by_column(table)
        table["silos"]["bank"] |= {"rows": {"kind": "equal"}, "clients": 4, "columns": ["limit"]}

    roster = tdcd.load_data(written(tables, at_random)).federation.rosters["bank"]
    assert max(roster.counts()) - min(roster.counts()) <= 1
    assert len(roster.clients) == 4


def test_a_client_without_common_rows_takes_no_part(tables: Path) -> None:
    (tables / "kiosk.csv").write_text("person,limit,default\n5000,1,0\n5001,2,1\n")
    job = written(tables, lambda table: table["silos"]["bank"]["clients"].update(kiosk="kiosk.csv"))
    data = tdcd.load_data(job)
    assert set(data.federation.rosters["bank"].clients) == set(BANK)
    assert "bank: kiosk has no training row of a common ID and takes no part" in data.federation.notes


def test_several_classes_and_regression(tables: Path) -> None:
    for client in BANK:
        frame = pl.read_csv(tables / f"{client}.csv")
        frame.with_columns(grade=pl.Series([("c", "a", "b")[p % 3] for p in frame["person"]])).write_csv(
            tables / f"{client}.csv"
        )

    def graded(table: dict[str, Any]) -> None:
        table["silos"]["bank"] |= {"label": "grade", "columns": ["limit"]}
        table["training"] |= {"loss": "cross-entropy"}

    federation = tdcd.load_data(written(tables, graded)).federation
    assert federation.classes == ("a", "b", "c")
    expected = [(2, 0, 1)[person % 3] for person in federation.ids]
    assert federation.samples.labels.tolist() == expected

    def valued(table: dict[str, Any]) -> None:
        table["silos"]["bank"] |= {"label": "limit", "columns": ["default"]}
        table["training"] |= {"loss": "squared-error"}

    assert tdcd.load_data(written(tables, valued)).federation.samples.labels.mean() > 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("labels"), 'only silo bank has labels. If insurer may be handed them, say so: labels'),
        (lambda t: t["silos"]["bank"].pop("label"), "labels.silo: silo 'bank' names no column of labels"),
        (lambda t: (t["silos"]["bank"].pop("label"), t.pop("labels")), "no silo has labels: name the column"),
        (lambda t: t["labels"].update(silo="bink"), "labels.silo: 'bink' is no silo; did you mean 'bank'"),
        (lambda t: t["labels"].update(positive="yes"), "labels.positive: no label is 'yes'; there is 0, 1"),
        (lambda t: t["silos"]["bank"].pop("id"), "silos.bank.id: name the column that holds the IDs"),
        (lambda t: t["silos"]["bank"].pop("clients"), "silos.bank: name a file for each client"),
        (lambda t: t["silos"]["bank"].update(file="x.csv"), "silos.bank: name a file for each client"),
        (lambda t: t["silos"]["bank"].update(clients={"a": 3}), "silos.bank.clients: names a file for each client"),
        (lambda t: t["silos"]["bank"].update(clients={}), "silos.bank.clients: names a file for each client"),
        (lambda t: t["silos"]["bank"].update(clients="x.csv"), 'clients = "x.csv": no matching file'),
        (lambda t: t["silos"]["bank"].update(clients=""), 'clients = "": no matching file'),
        (lambda t: t["silos"]["bank"].update(clients="."), 'clients = ".": no matching file'),
        (lambda t: t["silos"]["bank"]["clients"].update(south="~nosuchuser/x.csv"), "is not a path"),
        (lambda t: t["silos"]["bank"].update(clients=1.5), "clients: is a number of clients, a list of names"),
        (lambda t: t["silos"]["bank"].update(label="defoult"), "no column 'defoult' .silos.bank.label.; did you mean"),
        (lambda t: t["silos"]["bank"].update(rows={"kind": "equal"}), "its clients have files of their own"),
        (lambda t: t["silos"]["bank"].update(separator=";"), "Are its cells separated|no column 'person'"),
        (lambda t: t["data"].update(clients=7), "data.clients: all clients have files of their own"),
        (lambda t: t["data"].update(rows={"kind": "label-skew"}), "data.rows: all clients have files of their own"),
        (lambda t: t["data"].update(test_fraction=0.0001), "the fractions in data leave no samples to test"),
        (lambda t: t["silos"]["bank"].update(categories=["default"]), "'default' is the label, not a feature"),
        (lambda t: t["silos"]["bank"].update(separator="§"), "silos.bank.separator"),
        (lambda t: t["silos"]["bank"].update(separator='"'), "silos.bank.separator"),
        (lambda t: t["silos"]["bank"].update(columns=["limit", "limit"]), "silos.bank.columns: named twice: limit"),
        (lambda t: t["silos"].update({"b/c": t["silos"].pop("insurer")}), "silos: 'b/c': a name has letters"),
        (lambda t: t.pop("silos"), "tables need a .silos.NAME. for every silo"),
        (lambda t: t["data"].update(split_column="x"), "leave out test_fraction"),
        (lambda t: t["data"].update(source="digits"), 'silos.bank.* goes? with data.source = "tables" only'),
        (lambda t: (t["training"].update(loss="squared-error"), t["labels"].update(positive=1)), "with the loss"),
    ],
)  # fmt: skip
def test_jobs_that_do_not_fit(tables: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    with pytest.raises((JobError, DataError), match=message):
        tdcd.load_data(written(tables, change))


def test_clients_by_a_pattern(tables: Path) -> None:
    (tables / "bank").mkdir()
    for client in BANK:
        (tables / f"{client}.csv").rename(tables / "bank" / f"{client}.csv")
    job = written(tables, lambda table: table["silos"]["bank"].update(clients="bank/*.csv"))
    files = {client: own.file for client, own in job.silos["bank"].clients.items()}
    assert files == {client: str(tables / "bank" / f"{client}.csv") for client in sorted(BANK)}
    with pytest.raises(JobError, match=r'clients = "bank/\*.parquet": no matching file in'):
        written(tables, lambda table: table["silos"]["bank"].update(clients="bank/*.parquet"))
    shutil.copy(tables / "bank" / "sea.csv", tables / "bank" / "sea.parquet")
    with pytest.raises(JobError, match="two files name the same client"):
        written(tables, lambda table: table["silos"]["bank"].update(clients="bank/*"))


def test_unequal_clients_and_the_uniform_mean(tables: Path) -> None:
    (note,) = (note for note in tdcd.load_data(written(tables)).federation.notes if "uniform" in note)
    assert note.startswith("bank: its clients hold")
    weighted = written(tables, lambda table: table["training"].update(averaging="samples"))
    assert not any("uniform" in note for note in tdcd.load_data(weighted).federation.notes)


def test_paths_are_told_from_the_job_file(tables: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def relative(table: dict[str, Any]) -> None:
        for silo in table["silos"].values():
            silo["clients"] = {client: Path(path).name for client, path in silo["clients"].items()}

    written(tables, relative)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    job = tdcd.load_job(tables / "job.toml")
    assert job == written(tables)
    shutil.copy(tables / "south.csv", elsewhere / "other.csv")
    changed = tdcd.load_job(tables / "job.toml", {"silos.bank.clients.south": "other.csv"})
    assert changed.silos["bank"].clients["south"].file == str(elsewhere / "other.csv")
    with pytest.raises(JobError, match="those of silo 'bank' have files"):
        tdcd.load_job(tables / "job.toml", clients=3)


def test_a_category_without_a_value_at_one_client(tables: Path) -> None:
    """Nobody can tell there whether the column holds numbers or texts; at other clients it holds texts."""
    for client, colour in zip(BANK, ["", *["red"] * len(BANK)], strict=False):
        file = tables / f"{client}.csv"
        pl.read_csv(file).with_columns(colour=pl.lit(colour or None, dtype=pl.String)).write_csv(file)
    data = tdcd.load_data(written(tables))
    names = data.federation.preparations["bank"].outputs
    rows = data.federation.samples.features["bank"]
    red, missing = rows[:, names.index("colour = red")], rows[:, names.index("colour missing")]
    assert torch.equal(red, 1 - missing)
    assert 0 < red.sum() < len(red)
