"""Names that users choose, shown as they are: on the terminal, in figures and in reports."""

import csv
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcd
from support import run_command
from tdcd.errors import LEARNED_NOTHING
from tdcd.files import flat, quoted_key, split_key
from tdcd.jobs.load import load_job
from tdcd.reports.figures import Bars, Curve, Picture

NAMES = ["[red]x[/red]", "[/]", "[bold", ":smile:", "$5 and $6", r"$\frac{", "_hidden", "北京分行", "a & <b>", "50%"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def job(silo: str = "bank", name: str = "[red]x[/red]") -> None:
    """Write a job whose clients, columns and categories have a strange name."""
    generator = np.random.default_rng(1)
    clients = [name, "other"]
    for number, _ in enumerate(clients):
        ids = list(range(number * 30, number * 30 + 30))
        labels = [["no", name][i % 2] for i in ids]
        words = [[name, "usual"][i % 3 == 0] for i in ids]
        write(Path(f"{number}.csv"), {"id": ids, "y": labels, name: generator.normal(size=30).tolist(), "w": words})
    files = "\n".join(f"{json.dumps(client)} = '{number}.csv'" for number, client in enumerate(clients))
    Path("job.toml").write_text(
        f'''name = "names"
labels = {{ silo = "{silo}", sharing = "shared" }}
baselines = ["alone"]
[data]
source = "tables"
[model]
kind = "linear"
[training]
loss = "cross-entropy"
rounds = 3
rate = 0.1
[silos."{silo}"]
id = "id"
label = "y"
[silos."{silo}".clients]
{files}
''',
        encoding="utf-8",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_command_shows_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    job(name=name)
    assert run_command("check", "job.toml") == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert f"2 categories: {', '.join(sorted([name, 'usual']))}" in shown
    assert run_command("align", "job.toml", "-o", "x.parquet") == 0
    assert name in capsys.readouterr().out
    assert run_command("train", "job.toml", "-o", f"run {name.replace('/', '')}") in (0, LEARNED_NOTHING)
    shown = capsys.readouterr().out
    assert f"run {name.replace('/', '')}" in shown
    run = Path(f"run {name.replace('/', '')}")
    assert run_command("compare", run, run / "alone" / "bank") == 0
    assert run.name in capsys.readouterr().out
    page = (run / "report.html").read_text(encoding="utf-8")
    assert name in page or name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in page
    assert run_command("report", run) == 0
    assert "warning" not in capsys.readouterr().err.lower()


@pytest.mark.parametrize("name", NAMES)
def test_figures_show_names_as_they_are(name: str) -> None:
    curves = [Curve(name, [0, 1, 2], [1, 0.5, 0.2]), Curve("other", [0, 1, 2], [1, 0.6, 0.4])]
    for many in (curves, [Curve(f"{name} {k:025}", [0, 1], [1, k]) for k in range(9)]):
        picture = Picture("p", "caption", name, name, many)
        svg = picture.svg()
        text = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        for curve in many:
            assert curve.label.replace(name, text) in svg
    assert len(picture.png()) > 1000
    bars = Bars("b", "caption", name, [name, name, "third"], {"up": [1, 2, 3], "down": [1, 1, 1]})
    assert bars.svg().count(text) >= 2


def test_a_silo_with_a_dot_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text(
        """name = "dots"
[data]
source = "breast-cancer"
clients = 2
[data.features]
kind = "columns"
silos = { "north.bank" = [0, 1], "south" = [2, 3] }
[silos."north.bank"]
clients = 3
[model]
kind = "linear"
[training]
loss = "binary-cross-entropy"
rounds = 2
rate = 0.1
"""
    )
    assert run_command("train", "job.toml", "-K", 4, "-o", "run", "-q") == 0
    silos = {silo.name: len(silo.clients) for silo in tdcd.read_run("run").federation.silos}
    assert silos == {"north.bank": 4, "south": 4}
    setting = 'silos."north.bank".clients=5'
    assert run_command("train", "job.toml", "--set", setting, "-o", "two", "-q") == 0
    assert load_job("two/job.toml").silos["north.bank"].clients == 5
    assert run_command("train", "job.toml", "--set", "silos.north.bank.clients=5", "-o", "three", "-q") == 2
    assert "silos.north: unknown key 'bank'" in capsys.readouterr().err
    assert run_command("train", "--resume", "run", "--set", setting) == 2
    assert 'silos."north.bank".clients: 4 there, 5 here' in capsys.readouterr().err


def test_dotted_names() -> None:
    assert split_key("training.rate") == ["training", "rate"]
    assert split_key('silos."north.bank".clients') == ["silos", "north.bank", "clients"]
    for keys in (["a", "b.c", 'd"e', "ü"], ["x"]):
        assert split_key(".".join(map(quoted_key, keys))) == keys
    for wrong in ("", ".", "a.", ".a", "a..b", '"a', 'a"b'):
        with pytest.raises(tdcd.JobError, match="not a name of keys"):
            split_key(wrong)
    assert dict(flat({"a": {"b.c": 1}, "a.b": {"c": 2}})) == {'a."b.c"': 1, '"a.b".c': 2}


def test_suggested_commands_quote_paths(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "digits", "-R", 2, "--set", "baselines=[]", "-q")
    assert run_command(*words, "-o", "my run") == 0
    assert run_command(*words, "-o", "my run") == 2
    assert "tdcd train --resume 'my run'" in capsys.readouterr().err
    (Path("my run") / "result.json").unlink()
    assert run_command("predict", "my run") == 2
    assert "go on with it: tdcd train --resume 'my run'" in capsys.readouterr().err


def test_comparisons_never_cut_a_number(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        assert (
            run_command(
                "train", "digits", "-R", 20, "--seed", number, "--set", "baselines=[]", "-q", "-o", f"r{number}"
            )
            == 0
        )
    capsys.readouterr()
    loss = tdcd.read_run("r1").kept.train["loss"]
    for width in (40, 60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert run_command("compare", "r1", "r2") == 0
        shown = capsys.readouterr().out
        assert "…" not in shown
        assert all(len(line.rstrip()) <= width for line in shown.splitlines())
        for word in ("rate", "rounds", "loss", "accuracy", "sent", "t_comm", "10", "100", "20", f"{loss:.4f}"):
            assert word in shown, width


@pytest.mark.parametrize("target", ["nan", "inf", "-inf"])
def test_a_target_that_is_no_number_is_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("train", "digits", "-R", 2, "--set", "baselines=[]", "-q", "-o", "run") == 0
    assert run_command("compare", "run", f"--target={target}") == 2
    assert "target: " in capsys.readouterr().err
    assert run_command("compare", "run", "--t-comm", "nan") == 2


def test_one_reader_of_the_history(tmp_path: Path) -> None:
    """Reports and trainings take a damaged file for the same."""
    from tdcd.runs.reader import read_history

    assert run_command("train", "digits", "-R", 20, "--set", "baselines=[]", "-q", "-o", "run") == 0
    file = Path("run/history.jsonl")
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    for cut in (whole[:-1], whole[:-20], "".join(lines[:-1]) + "{"):  # being written
        file.write_text(cut)
        assert [line.round for line in read_history(file.parent)] == [0, 10]
        assert [line.round for line in tdcd.read_run("run").history] == [0, 10]
    for damaged in (whole.replace(lines[-1], "{}x\n"), whole.replace(lines[0], "half\n")):
        file.write_text(damaged)
        for read in (read_history, lambda _: tdcd.read_run("run")):
            with pytest.raises(tdcd.RunError, match=r"history.jsonl: line \d: damaged"):
                read(file.parent)
