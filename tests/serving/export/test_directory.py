"""What ``tdcd export`` writes, and what it leaves alone."""

import json
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli_w

import tdcd
from support import run_command
from tdcd.errors import JobError, ModelError
from tdcd.serving.export import directory as module
from tdcd.serving.export.directory import Export, Format, export_model
from tdcd.serving.model import Model, load_model

onnx = pytest.importorskip("onnx", reason="needs pip install 'tdcd[export]'")
ort = pytest.importorskip("onnxruntime", reason="needs pip install 'tdcd[export]'")
PEOPLE = 90


def write_tables(folder: Path, **insurer: Any) -> Path:
    """Write a bank, an insurer and a registry, which has the labels only; return a job over them."""
    generator = np.random.default_rng(3)
    age, limit = generator.normal(40, 10, PEOPLE).round(1), generator.normal(5000, 2000, PEOPLE).round()
    frame = pl.DataFrame({"person": np.arange(PEOPLE), "age": age, "limit": limit})
    frame = frame.with_columns(
        job=pl.Series(generator.choice(["cook", "nurse", "smith", "NA"], PEOPLE)),
        zone=pl.Series(generator.choice([1, 2, 3], PEOPLE)),
        since=pl.Series(generator.integers(15_000, 20_000, PEOPLE)).cast(pl.Date),
        age=pl.when(pl.int_range(PEOPLE) % 9 == 4).then(None).otherwise(pl.col("age")),
        default=pl.when(pl.col("limit") + 50 * pl.col("age").fill_null(40) < 7000)
        .then(pl.lit("yes"))
        .otherwise(pl.lit("no")),
    )
    frame.select("person", "limit", "zone").write_csv(folder / "bank.csv")
    frame.select("person", "job", "age", "since").write_csv(folder / "insurer.csv")
    frame.select("person", "default").write_csv(folder / "registry.csv")
    table = {
        "name": "loans",
        "labels": {"silo": "registry", "sharing": "exact", "positive": "yes"},
        "data": {"source": "tables", "test_fraction": 0.2},
        "silos": {
            "bank": {"id": "person", "categories": ["zone"], "clients": {"north": str(folder / "bank.csv")}},
            "insurer": {"id": "person", "rare": 3, "clients": {"all": str(folder / "insurer.csv")}} | insurer,
            "registry": {"id": "person", "label": "default", "clients": {"one": str(folder / "registry.csv")}},
        },
        "model": {"kind": "mlp", "hidden": [5]},
        "training": {"loss": "binary-cross-entropy", "rounds": 2, "local_steps": 1, "rate": 0.2},
    }
    (folder / "job.toml").write_text(tomli_w.dumps(table))
    return folder / "job.toml"


def trained(folder: Path, **insurer: Any) -> Model:
    tdcd.run_job(tdcd.load_job(write_tables(folder, **insurer)), folder / "run")
    return load_model(folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return trained(tmp_path_factory.mktemp("loans"), exclude=["since"])


@pytest.fixture(scope="module")
def done(run: Model) -> Export:
    return export_model(run, run.path.parent / "exported")


def example_of(path: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (path / "README.md").read_text(), re.DOTALL)
    return str(code)


def test_cells_in_classes_out(run: Model, done: Export) -> None:
    """The very files that ``tdcd predict`` reads make the same probabilities and classes; labels are not needed."""
    folder = run.path.parent
    session = ort.InferenceSession(str(done.path / "model.onnx"))
    record = json.loads((done.path / "export.json").read_text())
    assert [given.name for given in session.get_inputs()] == ["bank", "insurer"] == list(record["inputs"])
    rows = {}
    for silo, given in record["inputs"].items():
        cells = pl.read_csv(folder / f"{silo}.csv", infer_schema=False).select(given["columns"])
        rows[silo] = cells.fill_null("").to_numpy().astype(object)
    names = [output.name for output in session.get_outputs()]
    made = dict(zip(names, session.run(None, rows), strict=True))
    assert set(names) == set(record["outputs"])
    frame = run.predict_tables({silo: [folder / f"{silo}.csv"] for silo in rows}).frame
    assert np.allclose(made["probabilities"], frame["probability of yes"], atol=1e-6)
    assert made["class_name"].tolist() == frame["prediction"].to_list()
    assert made["class"].tolist() == [["no", "yes"].index(name) for name in frame["prediction"]]
    assert {*made["bank.unreadable"], *made["insurer.unreadable"]} == {""}
    for silo, given in record["inputs"].items():
        alone = ort.InferenceSession(str(done.path / given["file"]))
        assert np.array_equal(alone.run([f"{silo}.embedding"], {silo: rows[silo]})[0], made[f"{silo}.embedding"])
    rows["bank"][3, 0] = "many"
    spoiled = dict(zip(names, session.run(None, rows), strict=True))
    assert np.flatnonzero(np.isnan(spoiled["scores"][:, 0])).tolist() == [3]
    assert np.isnan(spoiled["probabilities"][3])
    assert (spoiled["class"][3], spoiled["class_name"][3], spoiled["bank.unreadable"][3]) == (-1, "", "limit")
    assert np.isnan(spoiled["bank.embedding"][3]).all()
    assert np.array_equal(np.delete(spoiled["scores"], 3, 0), np.delete(made["scores"], 3, 0))
    assert done.difference <= 1e-5


def test_files_say_what_they_are(run: Model, done: Export) -> None:
    record = json.loads((done.path / "export.json").read_text())
    assert record["classes"] == ["no", "yes"]
    assert record["inputs"]["insurer"]["columns"] == ["job", "age"]
    for name, digest in record["files"].items():
        content = (done.path / name).read_bytes()
        assert sha256(content).hexdigest() == digest
        said = {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}
        silos = json.loads(said["silos"])
        assert {"tdcd", "name", "run", "round", "loss", "classes", "digest", "silos"} <= set(said)
        assert (said["name"], said["run"], said["round"]) == ("loans", run.result.description.run, "2")
        assert name == "model.onnx" or list(silos) == [Path(name).stem]
        assert all(given["columns"] == record["inputs"][silo]["columns"] for silo, given in silos.items())
    assert sorted(str(file.relative_to(done.path)) for file in (done.path).rglob("*.*")) == [
        "README.md", "export.json", "model.onnx", "silos/bank.onnx", "silos/insurer.onnx"
    ]  # fmt: skip


def test_the_same_run_makes_the_same_files(run: Model, done: Export, tmp_path: Path) -> None:
    again = export_model(run, tmp_path / "again")
    assert (again.path / "export.json").read_text() == (done.path / "export.json").read_text()


@pytest.mark.parametrize(
    ("format_", "prepared"), [("onnx", False), ("onnx", True), ("torch", True)], ids=["cells", "prepared", "torch"]
)
def test_the_example_runs_as_it_stands(
    run: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: Format, prepared: bool
) -> None:
    export_model(run, tmp_path / "out", format_, prepared=prepared)
    monkeypatch.chdir(tmp_path / "out")
    there: dict[str, Any] = {}
    exec(example_of(tmp_path / "out"), there)  # noqa: S102 - what tdcd wrote just now
    assert len(there["outputs"]["scores"]) == 2
    assert np.isfinite(np.asarray(there["outputs"]["scores"])).all()


def test_what_a_graph_cannot_prepare_is_refused_by_silo(tmp_path: Path) -> None:
    """Dates cannot be prepared in the graph; prepared numbers can come in, in any precision, if one says so."""
    run = trained(tmp_path)
    with pytest.raises(ModelError) as caught:
        export_model(run, tmp_path / "out")
    assert "silo 'insurer': its cells cannot be prepared in the exported model: column 'since' holds dates" in str(
        caught.value
    )
    assert "bank" not in str(caught.value)
    assert "--prepared" in str(caught.value)
    with pytest.raises(ModelError, match="silo 'bank': .* torch has no texts"):
        export_model(run, tmp_path / "out", "torch")
    export_model(run, tmp_path / "out", prepared=True)
    data = tdcd.load_data(run.job or "")  # type: ignore[arg-type]
    features = {silo: np.asarray(rows) for silo, rows in data.federation.samples.features.items()}
    session = ort.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    assert np.allclose(session.run(["scores"], features)[0], run.result.scores(features), atol=1e-5)
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert record["inputs"]["bank"]["columns"] == run.preparations["bank"].outputs
    assert record["inputs"]["bank"]["preparation"][0]["mean"] == run.preparations["bank"].columns[0].mean  # type: ignore[union-attr]


def test_only_exports_are_replaced_and_only_if_one_says_so(run: Model, done: Export, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(done.path, out)
    before = (out / "export.json").read_text()
    with pytest.raises(JobError, match="is not empty and is left as it is.*--force"):
        export_model(run, out)
    export_model(run, out, "torch", prepared=True, force=True)
    assert (out / "export.json").read_text() != before
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(JobError, match="link is a link; name the directory that it leads to"):
        export_model(run, tmp_path / "link", force=True)
    (tmp_path / "link").unlink()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(JobError, match=r"files that are not of an export, such as notes\.txt"):
        export_model(run, out, force=True)
    (out / "export.json").unlink()
    with pytest.raises(JobError, match="is no export, and --force replaces nothing else"):
        export_model(run, out, force=True)
    assert (out / "notes.txt").read_text() == "mine"
    with pytest.raises(JobError, match="is a file; name a directory"):
        export_model(run, out / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_leaves_the_earlier_export(
    run: Model, done: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(done.path, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
    monkeypatch.setattr(module, "write_readme", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_model(run, tmp_path / "out", "torch", prepared=True, force=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before


def test_the_command(run: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", run.path, "--out", tmp_path / "out"]
    assert run_command(*words) == 0
    assert "the largest difference from tdcd on 74 random rows is" in capsys.readouterr().out
    assert run_command(*words) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run_command(*words, "--force", "--json", "--format", "torch", "--prepared") == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["model.pt2", "silos/bank.pt2", "silos/insurer.pt2"]
    assert run_command("export", tmp_path, "--out", tmp_path / "x") == 2
    assert run_command(*words, "--format", "pickle") == 2


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_what_is_not_installed_is_named(
    run: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(JobError, match=rf"ONNX needs {missing}, which is not installed: pip install 'tdcd\[export\]'"):
        export_model(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_programs_need_no_onnx(run: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    export_model(run, tmp_path / "out", "torch", prepared=True)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, tdcd, tdcd.cli.export, tdcd.serving.model, tdcd.serving.export.directory;"
        "print(*{name.split('.')[0] for name in sys.modules} & {'onnx', 'onnxscript', 'onnxruntime', 'onnx_ir'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
