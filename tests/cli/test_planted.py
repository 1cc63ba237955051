"""Code that lies where one stands, or comes with somebody's files, is not executed."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import tdcd
from support import run_command
from tdcd.cli.imports import Allowed
from tdcd.compute import kernels
from tdcd.jobs.load import load_job, parse_job
from tdcd.runs.digests import digest_file
from tdcd.runs.layout import FEDERATION, JOB, RESULT
from tdcd.runs.records import FederationRecord, Outcome, read_record, write_record
from tdcd.sites.client.main import run_client
from tdcd.sites.hub.main import run_hub
from tdcd.sites.site_file import ClientSite, HubSite

COMMAND = Path(sys.executable).with_name("tdcd")
PLANTED = "import pathlib; pathlib.Path(__file__).with_name('executed').write_text('')\nraise ImportError('planted')\n"
LIBRARIES = ("torch", "rich", "numpy", "polars", "jinja2", "grpc", "typing_extensions", "pydantic")
SMALL = ["--set", "training.rounds=2", "--set", "data.clients=2", "--set", "baselines=[]"]
MODEL = """
from pathlib import Path
from torch import nn
Path(__file__).with_name("executed").write_text("")
def make(shape, outputs): return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], outputs))
"""


@pytest.mark.parametrize(
    "words", [["train", "breast-cancer", "-o", "run"], ["deploy", "breast-cancer", "--local", "-q"]]
)
def test_files_named_like_libraries(words: tuple[str, ...], tmp_path: Path) -> None:
    for name in LIBRARIES:
        (tmp_path / f"{name}.py").write_text(PLANTED)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [COMMAND, *words, *SMALL],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_a_module_in_a_run_directory(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "planted_networks.py").write_text(MODEL)
    (home / "job.toml").write_text(
        'data = { source = "breast-cancer", clients = 2 }\nmodel = { kind = "planted_networks:make" }\n'
        'training = { loss = "binary-cross-entropy", rounds = 2, rate = 0.1 }\n'
    )

    def command(*words: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [COMMAND, *map(str, words)], cwd=elsewhere, capture_output=True, text=True, timeout=300, check=False
        )

    run = tmp_path / "run"
    trained = command("train", home / "job.toml", "-q", "-o", run)
    assert trained.returncode == 0, trained.stderr
    (home / "planted_networks.py").replace(run / "planted_networks.py")
    (run / "executed").unlink(missing_ok=True)
    for words, why in (
        (("predict", run), "'planted_networks:make', which is code that you have not allowed"),
        (("train", "--resume", run, "--rounds", 4), "there is no module 'planted_networks'"),
        (("train", run / "job.toml", "-o", "x"), "there is no module 'planted_networks'"),
    ):
        refused = command(*words)
        assert refused.returncode == 2, words
        assert why in refused.stderr
        assert not (run / "executed").exists()
    predicted = command("predict", run, "--import-from", run)
    assert predicted.returncode == 0, predicted.stderr


@dataclass(frozen=True)
class Forger:
    """Who may write to a run's directory may renew its digests."""

    run: Path
    mark: Path

    @property
    def part(self) -> dict[str, Any]:
        return {"kind": "os:system", "options": {"command": f"touch {self.mark}"}}

    def change_job(self, change: Callable[[dict[str, Any]], None]) -> None:
        table = tomllib.loads((self.run / JOB).read_text())
        change(table)
        (self.run / JOB).write_text(tomli_w.dumps(table))
        self._renew()

    def change_models(self, model: dict[str, Any]) -> None:
        record = read_record(self.run / FEDERATION, FederationRecord)
        silos = tuple(replace(silo, model=model) for silo in record.silos)
        write_record(self.run / FEDERATION, replace(record, silos=silos))
        self._renew()

    def _renew(self) -> None:
        outcome = read_record(self.run / RESULT, Outcome)
        files = {name: digest_file(self.run / name) for name in outcome.files}
        write_record(self.run / RESULT, replace(outcome, files=files))


@pytest.fixture
def forger(tmp_path: Path) -> Forger:
    job = load_job("breast-cancer", {"training.rounds": 2, "data.clients": 2, "baselines": []})
    tdcd.run_job(job, tmp_path / "run")
    return Forger(tmp_path / "run", tmp_path / "executed")


def plant_loss(forger: Forger) -> str:
    forger.change_job(lambda job: job["training"].update(loss=forger.part))
    return "its loss is 'os:system', which is code that you have not allowed"


def plant_data(forger: Forger) -> str:
    data = {"source": "os:system", "options": forger.part["options"]}
    forger.change_job(lambda job: job.update(data=data, silos={}))
    return "its data source is 'os:system', which is code that you have not allowed"


def plant_model(forger: Forger) -> str:
    forger.change_models(forger.part)
    return "its model of silo 'mean' is 'os:system', which is code that you have not allowed"


@pytest.mark.parametrize("plant", [plant_loss, plant_data, plant_model])
def test_a_command_in_a_run(
    plant: Callable[[Forger], str], forger: Forger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = plant(forger)
    monkeypatch.chdir(forger.run.parent)
    for words in ([], ["--import-from", "."], ["--allow", "json"], ["--allow", "posix"]):
        assert run_command("predict", forger.run, "-o", "predictions.csv", *words) == 2
        assert why in capsys.readouterr().err
    for imports in ((), ["json"], "os.path"):
        with pytest.raises(tdcd.RunError, match=why):
            tdcd.load_model(forger.run, imports=imports).predict_held_out()
    assert not forger.mark.exists()
    with pytest.raises(tdcd.TdcdError):  # what was named is called, and returns no such thing
        tdcd.load_model(forger.run, imports=["os"]).predict_held_out()
    assert plant is not plant_data or forger.mark.exists()


def test_a_saved_result_that_names_a_command(forger: Forger) -> None:
    result = tdcd.Result.load(forger.run)
    result.save(forger.run.with_name("saved"))
    saved = replace(forger, run=forger.run.with_name("saved"))
    for plant in (plant_loss, plant_model):
        why = plant(saved)
        with pytest.raises(tdcd.RunError, match=why):
            tdcd.Result.load(saved.run)
    assert not forger.mark.exists()


def test_modules_that_folders_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [
        "plain_planted.py",
        "os.py",
        "regular_planted/__init__.py",
        "bare_planted/inner.py",
        "env/below_planted.py",
    ]
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("raise RuntimeError('looking is not importing')")
    monkeypatch.syspath_prepend(tmp_path / "env")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    allowed = Allowed(["json"], [tmp_path])
    for module in ("json", "plain_planted", "regular_planted", "regular_planted.inner", "bare_planted.inner"):
        assert module in allowed, module
    for module in ("os", "sys", "builtins", "posix", "subprocess", "json.tool", "__main__", "below_planted", "nowhere"):
        assert module not in allowed, module


def test_a_site_runs_only_the_code_that_it_allows(tmp_path: Path) -> None:
    table = load_job("breast-cancer").as_table() | {"model": {"kind": "planted_somewhere:make"}, "baselines": []}
    job = parse_job(table, "job")
    silo = next(iter(tdcd.load_data(job).federation.rosters))
    why = r"'planted_somewhere:make', which is code that this site has not allowed.*imports = \[\"planted_somewhere\"\]"
    for imports in ([], ["planted", "planted_somewhere_else"]):
        with pytest.raises(tdcd.TdcdError, match=why):
            run_hub(job, silo, HubSite(imports=imports, run=str(tmp_path)), insecure=True)
        with pytest.raises(tdcd.TdcdError, match=why):
            run_client(job, silo, "x", ClientSite(imports=imports), insecure=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_kernel_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "tdcd"
    home.mkdir()
    os.chown(home, 12345, 12345)
    kernels.load.cache_clear()
    try:
        library, why = kernels.load("chain")
        assert library is None
        assert "belongs to another user" in why
    finally:
        kernels.load.cache_clear()
