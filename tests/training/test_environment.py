"""What environment.json says of the code, the compiler and the threads."""

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
def test_no_program_that_a_repository_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "a")
    git(tmp_path, "config", "core.fsmonitor", f"touch {tmp_path / 'ran'};")
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) in describe_session().code
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
    assert "grpcio-tools" not in session.packages
