"""What environment.json says of the code, the compiler and the threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tdcd.runs.environment import describe_session

GIT = shutil.which("git") or ""
needs_git = pytest.mark.skipif(not GIT, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    done = subprocess.run([GIT, "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@needs_git
def test_the_commit_of_the_jobs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, loose = tmp_path / "project" / "jobs", tmp_path / "loose"
    for folder in (job, loose):
        folder.mkdir(parents=True)
    (job / "job.toml").write_text("name = 'x'")
    git(tmp_path / "project", "init")
    git(tmp_path / "project", "add", ".")
    git(tmp_path / "project", "commit", "-m", "a")
    monkeypatch.chdir(loose)
    monkeypatch.setattr(sys, "path", [*sys.path, str(job)])
    commit = git(job, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert describe_session().code[str(tmp_path / "project")] == commit
    assert str(loose) not in describe_session().code


@needs_git
def test_changes_since_the_commit_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("1")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a")
    (tmp_path / "a").write_text("2")
    monkeypatch.chdir(tmp_path)
    assert describe_session().code[str(tmp_path)] == f"{git(tmp_path, 'rev-parse', 'HEAD')}, changed since"


@needs_git
def test_files_that_git_does_not_track_are_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "job.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert describe_session().code[str(tmp_path)] == git(tmp_path, "rev-parse", "HEAD")


@needs_git
def test_a_status_that_fails_is_not_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "a")
    (tmp_path / ".git" / "index").write_text("damaged")
    monkeypatch.chdir(tmp_path)
    assert describe_session().code[str(tmp_path)] == f"{git(tmp_path, 'rev-parse', 'HEAD')}, unknown whether changed"


def plant(place: Path, *settings: str) -> None:
    """Commit a file that git can compare by its content only, then add settings to the repository."""
    place.mkdir()
    (place / "a").write_text("1")
    (place / ".gitattributes").write_text("a filter=x\n")
    git(place, "init")
    git(place, "add", ".")
    git(place, "commit", "-m", "a")
    for setting in settings:
        key, _, value = setting.partition(" ")
        git(place, "config", key, value)
    os.utime(place / "a", (0, 0))


@needs_git
@pytest.mark.parametrize("name", ["core.fsmonitor", "filter.x.clean", "filter.x.process"])
def test_no_program_that_a_repository_names_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    plant(project, f"{name} touch {tmp_path / 'ran'};", "filter.x.required true")
    monkeypatch.chdir(project)
    assert describe_session().code[str(project)] == git(project, "rev-parse", "HEAD")
    assert not (tmp_path / "ran").exists()


@needs_git
def test_a_filter_that_cannot_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    plant(project)
    (project / ".git" / "info" / "attributes").write_text("a filter=x=y\n")
    with (project / ".git" / "config").open("a") as config:
        config.write(f'[filter "x=y"]\nclean = touch {tmp_path / "ran"}; cat\n')
    monkeypatch.chdir(project)
    assert describe_session().code[str(project)].endswith(", unknown whether changed")
    assert not (tmp_path / "ran").exists()


@needs_git
def test_no_program_that_a_submodule_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    plant(tmp_path / "part")
    plant(project)
    git(project, "-c", "protocol.file.allow=always", "submodule", "add", str(tmp_path / "part"), "part")
    git(project, "commit", "-m", "b")
    git(project / "part", "config", "filter.x.clean", f"touch {tmp_path / 'ran'}; cat")
    os.utime(project / "part" / "a", (0, 0))
    monkeypatch.chdir(project)
    assert describe_session().code[str(project)] == git(project, "rev-parse", "HEAD")
    assert not (tmp_path / "ran").exists()


@needs_git
def test_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    plant(project)
    tree = git(project, "rev-parse", "HEAD^{tree}")
    settings = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": str(tmp_path),
        "remote.origin.uploadpack": f"touch {tmp_path / 'ran'};",
    }
    for key, value in settings.items():
        git(project, "config", key, value)
    (project / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    monkeypatch.chdir(project)
    assert describe_session().code[str(project)].endswith(", unknown whether changed")
    assert not (tmp_path / "ran").exists()


def test_compiler_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    monkeypatch.setenv("CXX", f"{sys.executable} -I")
    session = describe_session({"training data": "abc"}, compiled=True)
    assert session.thread_variables["MKL_NUM_THREADS"] == "3"
    assert session.compiler.startswith("Python 3.")
    assert session.inputs == {"training data": "abc"}
    assert describe_session().compiler == ""
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert describe_session(compiled=True).compiler == ""
    monkeypatch.setenv("CXX", 'g++ "')
    assert describe_session(compiled=True).compiler == 'g++ "'
    assert "grpcio-tools" not in session.packages
