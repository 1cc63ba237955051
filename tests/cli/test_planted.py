"""Code that lies where one stands, or comes with somebody's files, is not executed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tdcd
from tdcd.compute import kernels
from tdcd.jobs.load import load_job, parse_job
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
    for words in (("predict", run), ("train", "--resume", run, "--rounds", 4), ("train", run / "job.toml", "-o", "x")):
        refused = command(*words)
        assert refused.returncode == 2, words
        assert "there is no module 'planted_networks'" in refused.stderr
        assert not (run / "executed").exists()
    predicted = command("predict", run, "--import-from", run)
    assert predicted.returncode == 0, predicted.stderr


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
