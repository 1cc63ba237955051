"""A path without a kernel says so, once, wherever somebody looks."""

import asyncio
from pathlib import Path

import pytest

import tdcd
from sites.memory import Federation
from sites.test_rounds import job
from support import run_command
from tdcd.compute import kernels
from tdcd.runs.reader import read_run
from tdcd.sites.participants import read_set

WHY = "silo 'left', 'right': no compiled kernel: there is no C++ compiler. With one, a round is about "


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "load", lambda _: (None, "there is no C++ compiler"))


class Notes(tdcd.Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, note: str) -> None:
        self.notes.append(note)


def test_a_run_says_it_once_and_records_it(tmp_path: Path) -> None:
    seen = Notes()
    tdcd.run_job(tdcd.load_job("digits", {"training.rounds": 1}), tmp_path / "run", callbacks=[seen])
    assert [note for note in seen.notes if "kernel" in note] == [next(n for n in seen.notes if n.startswith(WHY))]
    run = read_run(tmp_path / "run")
    assert any(note.startswith(WHY) for note in run.federation.notes)
    assert all(any("no compiled kernel" in note for note in one.federation.notes) for one in run.baselines.values())
    assert "no compiled kernel: there is no C++ compiler" in tdcd.write_report(tmp_path / "run").read_text()


def test_check_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("check", "digits") == 0
    printed = capsys.readouterr().out
    assert WHY in printed
    assert "Computed left: layers" in printed


def test_a_client_logs_it(tmp_path: Path) -> None:
    federation, lines = Federation(job(1, 1), tmp_path), list[str]()

    async def run() -> None:
        federation.add_everybody()
        for session in federation.sessions.values():
            session.log = lines.append
        await asyncio.gather(*(hub.setup.prepare(read_set(federation.job)) for hub in federation.hubs.values()))
        await asyncio.gather(*(hub.agree({}) for hub in federation.hubs.values()))
        await federation.stop()

    asyncio.run(run())
    assert [line for line in lines if "kernel" in line] == [
        line for line in lines if line.startswith("no compiled kernel: there is no C++ compiler. With one")
    ]
    assert sum("kernel" in line for line in lines) == 1
