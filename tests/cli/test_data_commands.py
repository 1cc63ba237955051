"""Commands about data: data list, data check, align, predict."""

import json
from pathlib import Path

import polars as pl
import pytest

from cli.test_cli import SMALL
from data.sets import trees
from support import run_command as tdcd_command
from tdcd.data.sets import SETS
from tdcd.errors import LEARNED_NOTHING


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_tables(job: str = "") -> Path:
    Path("north.csv").write_text("who,x,y\n" + "".join(f"{n},{n % 7},{int(n % 7 > 3)}\n" for n in range(40)))
    Path("south.csv").write_text("who,x,y\n" + "".join(f"{n},{n % 5},{int(n % 5 > 2)}\n" for n in range(40, 60)))
    Path("all.csv").write_text("person,z\n" + "".join(f"{n},{n % 3}\n" for n in reversed(range(5, 70))))
    path = Path("job.toml")
    path.write_text(
        f"""
        name = "tables"
        labels = {{ silo = "bank", sharing = "shared" }}
        data = {{ source = "tables", validation_fraction = 0{job} }}
        silos.bank = {{ id = "who", label = "y", clients = {{ north = "north.csv", south = "south.csv" }} }}
        silos.insurer = {{ id = "person", clients = {{ only = "all.csv" }} }}
        model = {{ kind = "linear" }}
        training = {{ loss = "binary-cross-entropy", rounds = 3, rate = 0.1 }}
        """
    )
    return path


def test_the_list_names_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("data", "list") == 0
    printed = capsys.readouterr().out
    for name, entry in SETS.items():
        assert name in printed
        assert all(line in printed for line in entry.layout.splitlines())


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    trees.idx(Path("mnist"), zipped=True)
    assert tdcd_command("data", "check", "idx", "mnist") == 0
    printed = capsys.readouterr().out
    assert "10, each 1 × 4 × 6" in printed
    assert "3 of them, by the publisher" in printed
    assert "0 4, 1 3, 2 3" in printed
    assert "idx is complete." in printed
    trees.modelnet(Path("shapes"), part_first=True, folders=True)
    for view in range(1, 13):  # a shape of the test set that is also in the training set
        twin = Path("shapes/train/sofa/sofa_2", f"sofa_2_{view:03d}.png")
        Path("shapes/test/bed/bed_3", f"bed_3_{view:03d}.png").write_bytes(twin.read_bytes())
    assert tdcd_command("data", "check", "modelnet", "shapes") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 groups of samples with the same features (1 of them in training and test set, 1 with different" in printed
    assert "sofa/train/sofa_2 = bed/test/bed_3" in printed
    assert tdcd_command("data", "check", "digits") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["idx", "nowhere"], "nowhere: no such directory"),
        (["idx"], "idx: say in which directory its files are"),
        (["digits", "."], "digits: it comes with tdcd and takes no directory"),
        (["cifar"], "there is no data set 'cifar'; did you mean 'cifar10'"),
    ],
)
def test_check_says_what_is_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("data", "check", *words) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert ("train-images-idx3-ubyte" in printed) == (words[0] == "idx")  # what is expected, where it is known


def test_jobs_on_published_sets_need_their_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", "idx") == 2
    assert "idx: say in which directory its files are" in capsys.readouterr().err
    trees.idx(Path("mnist"), zipped=False)
    words = ["--data", "mnist", "--clients", "2", "--batch-size", "full", *SMALL]
    assert tdcd_command("train", "idx", *words, "--out", "run") == LEARNED_NOTHING, "random pictures teach nothing"
    assert "test accuracy" in capsys.readouterr().out
    assert str(Path("mnist").resolve()) in Path("run/job.toml").read_text()
    assert tdcd_command("init", "idx") == 0


def test_check_shows_how_tables_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    job = write_tables()
    assert tdcd_command("check", job) == 0
    printed = capsys.readouterr().out
    assert "bank: 1 columns (1 of numbers, 0 of categories; 0 with gaps) make 1 inputs" in printed
    assert "Columns of insurer" in printed
    assert "Training labels: 0 " in printed
    Path("all.csv").write_text(
        "person,z,w\n" + "".join(f"{n},{'a' if n % 2 else n},{n if n % 3 else 'x'}\n" for n in range(60))
    )
    assert tdcd_command("check", job) == 2
    text = capsys.readouterr().err
    assert "column 'z' holds numbers and texts" in text
    assert "column 'w' holds numbers and texts" in text
    assert tdcd_command("check", "digits") == 0
    assert "left" in capsys.readouterr().out


def test_a_job_to_fill_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("init", "tables") == 0
    assert "tdcd check tables.toml" in capsys.readouterr().out
    for folder, suffix in (("bank", "csv"), ("insurer", "parquet")):
        Path(folder).mkdir()
        for client in ("north", "south"):
            ids = [n for n in range(400) if n % 2 == (client == "south")]
            columns = {"customer": ids, "x": [n % 7 for n in ids], "default": [int(n % 7 > 3) for n in ids]}
            frame = pl.DataFrame(columns)
            if suffix == "csv":
                frame.write_csv(f"{folder}/{client}.csv")
            else:
                frame.drop("default").rename({"customer": "policyholder"}).write_parquet(f"{folder}/{client}.parquet")
    assert tdcd_command("train", "tables.toml", "--rounds", "2", "--out", "run") == 0
    assert tdcd_command("init", "table", "--out", "x.toml") == 2
    assert "no job to start from is called 'table'; did you mean 'tables'" in capsys.readouterr().err


def test_failures_are_events_too(capsys: pytest.CaptureFixture[str]) -> None:
    job = write_tables()
    Path("all.csv").write_text("person,z\n1000,2\n")
    assert tdcd_command("train", job, "--json") == 2
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (event["event"], event["kind"]) == ("failed", "DataError")
    assert "no ID is in all silos" in event["message"]


def test_align(capsys: pytest.CaptureFixture[str]) -> None:
    job = write_tables()
    assert tdcd_command("align", job) == 0
    printed = capsys.readouterr().out
    assert "55 IDs are in all silos" in printed
    assert "tables.alignment.parquet" in printed
    assert 'alignment = "tables.alignment.parquet"' in printed
    assert pl.read_parquet("tables.alignment.parquet")["id"].to_list() == list(range(5, 60))
    write_tables(', alignment = "mine.parquet"')
    assert tdcd_command("train", job, "--quiet") == 2
    assert "mine.parquet: no such alignment; make it with: tdcd align" in capsys.readouterr().err
    assert tdcd_command("align", job, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["common"] == 55
    assert record["silos"]["bank"]["north"] == {"rows": 40, "common": 35}
    assert tdcd_command("train", job, "--out", "run") == 0
    assert "55 IDs are in all silos; rows without them: bank 5 of 60, insurer 10 of 65" in capsys.readouterr().out
    Path("all.csv").write_text("person,z\n1,2\n")
    assert tdcd_command("train", job, "--quiet") == 2
    assert "silo 'insurer', client 'only'" in capsys.readouterr().err
    assert tdcd_command("align", job, "--out", "north.csv") == 2
    assert "north.csv exists already, and is no alignment" in capsys.readouterr().err
    assert Path("north.csv").read_text().startswith("who")
    assert tdcd_command("align", "digits") == 2
    assert 'data.source is "digits", not "tables"' in capsys.readouterr().err


def test_align_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    job = write_tables()
    job.write_text(job.read_text().replace("north =", '"[/b]" =').replace("south =", '"[north]" ='))
    Path("[out]").mkdir()
    assert tdcd_command("align", job, "--out", "[out]/al.parquet") == 0
    printed = capsys.readouterr().out
    assert "[/b]" in printed
    assert "[north]" in printed
    assert 'alignment = "[out]/al.parquet"' in printed
    job.write_text(job.read_text().replace('source = "tables"', 'source = "tables", alignment = "[out]/al.parquet"'))
    assert tdcd_command("train", job, "--out", "run") == 0


def test_check_finds_code_beside_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    home = Path("jobs")
    home.mkdir()
    (home / "checked_beside_the_job.py").write_text(
        "import numpy as np\nimport tdcd\nfrom torch import nn\n"
        "def read():\n"
        "    silos = [tdcd.Silo(name, np.eye(6), [range(6)]) for name in ('bank', 'shop')]\n"
        "    return tdcd.Federation.from_silos(silos, np.arange(6) % 2)\n"
        "def make(shape, outputs): return nn.Linear(shape[0], outputs)\n"
    )
    (home / "job.toml").write_text(
        'data = { source = "checked_beside_the_job:read" }\nmodel = { kind = "checked_beside_the_job:make" }\n'
        'training = { loss = "binary-cross-entropy", rounds = 2, rate = 0.1 }\n'
    )
    assert tdcd_command("check", home / "job.toml") == 0
    assert "Computed shop: " in capsys.readouterr().out


def test_predict(capsys: pytest.CaptureFixture[str]) -> None:
    job = write_tables()
    assert tdcd_command("train", job, "--out", "run", "--quiet") == 0
    assert tdcd_command("predict", "run") == 0
    printed = capsys.readouterr().out
    assert "auroc" in printed
    assert "finished after 3 of 3 rounds" in printed
    assert tdcd_command("predict", "run") == 2
    assert "predictions.csv exists already" in capsys.readouterr().err
    words = ["--table", "bank=south.csv", "--table", "insurer=all.csv", "--out", "new.parquet"]
    assert tdcd_command("predict", "run", "--json", *words) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["measures"]["accuracy"] >= 0
    assert pl.read_parquet("new.parquet")["id"].to_list() == list(range(40, 60))
    for words, message in (
        (["--table", "bank"], "write it as SILO=FILE"),
        (["--table", "bank=south.csv"], "there is none for insurer"),
        (["--out", "x.txt"], "name a .csv or a .parquet file"),
    ):
        assert tdcd_command("predict", "run", "--out", "other.csv", *words) == 2
        assert message in capsys.readouterr().err
    assert tdcd_command("predict", "nothing", "--out", "other.csv") == 2
    assert "no such directory" in capsys.readouterr().err


def test_a_run_on_a_built_in_set_predicts_its_test_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", *SMALL, "--out", "run", "--json") == 0
    final = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]["federation"]["test"]
    assert tdcd_command("predict", "run") == 0
    assert f"accuracy {final['accuracy']:.4f}" in capsys.readouterr().out
    frame = pl.read_csv("predictions.csv")
    assert frame.columns == ["id", "prediction", *(f"probability of {digit}" for digit in range(10))]
    assert tdcd_command("predict", "run", "--table", "left=x.csv", "--out", "y.csv") == 2
    assert "it was trained on digits, not on tables" in capsys.readouterr().err
