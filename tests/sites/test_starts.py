"""What is found before anybody is gathered, and starting without a branch that is closed."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tdcd.core.network import Block
from tdcd.errors import RunError
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.sites.hub.main import check_writable
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity

from .memory import Federation, run_virtually
from .tables import write_tables

CLOSED = Identity("hospital", "part-1")


def starting_with(folder: Path, number: int | str, but: str | None = None) -> Job:
    """Three silos of tables, of which the hospital may start without a client, or does not have it at all."""
    folder.mkdir(exist_ok=True)
    table = write_tables(folder).model_dump(exclude_unset=True)
    table["deployment"] |= {"start_with": number, "client_deadline": 2.0, "hub_deadline": 20.0}
    if but:
        del table["silos"]["hospital"]["clients"][but]
    return parse_job(table, "job")


def test_a_closed_branch_does_not_block_the_start(tmp_path: Path) -> None:
    job = starting_with(tmp_path, 2)
    federation = Federation(job, tmp_path / "run")

    async def go() -> dict[str, Block]:
        federation.add_everybody(but=CLOSED)
        await federation.begin()
        federation.add_client(CLOSED)  # it opens late
        await federation.until(lambda: "part-1" in federation.hubs["hospital"].context.clients.present())
        blocks = await federation.rounds(3)
        await federation.stop()
        return blocks

    blocks = run_virtually(go())
    said = "\n".join(federation.log)
    assert "hospital: starting without the rows of part-1, as deployment.start_with allows" in said
    assert "hospital: client 'part-1' came after the IDs were aligned: it waits for the next training" in said
    table = starting_with(tmp_path, "all", but="part-1").model_dump(exclude_unset=True)
    table["training"]["rounds"] = 3
    simulated = run_job(parse_job(table, "job")).federation.blocks
    for silo, block in simulated.items():
        for name, tensor in block.items():
            torch.testing.assert_close(blocks[silo][name], tensor, rtol=0, atol=1e-6)


def test_by_default_all_are_needed(tmp_path: Path) -> None:
    federation = Federation(starting_with(tmp_path, "all"), tmp_path / "run")

    async def go() -> None:
        federation.add_everybody(but=CLOSED)
        try:
            await federation.begin()
        finally:
            await federation.stop()

    with pytest.raises(Exception, match="not all clients did send their IDs; not connected: part-1"):
        run_virtually(go())


def test_a_run_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match=r"file/run: a run cannot be written there \(Not a directory\)"):
        check_writable(tmp_path / "file" / "run")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"\(No space left on device\); make room, or name another directory"):
        check_writable(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("what", ["no directory", "port in use"])
def test_a_hub_that_cannot_start_ends_at_once_with_2(what: str, tmp_path: Path) -> None:
    settings = {"data.clients": 2, "data.features": {"kind": "contiguous", "silos": 2}, "baselines": []}
    federation = LocalFederation.laid_out(load_job("breast-cancer", settings), tmp_path)
    site = federation.sites[Identity("silo-1")]
    if what == "no directory":
        (tmp_path / "silo-1" / "run").write_text("")
        says = "a run cannot be written there (File exists); make room"
    else:
        address = next(line.split('"')[1] for line in site.file.read_text().splitlines() if line.startswith("listen"))
        held = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))
        says = "cannot listen on"
    command = [sys.executable, "-m", "tdcd", *site.command()[4:]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if what == "port in use":
        held.close()
    assert ended.returncode == 2, ended.stderr
    assert says in ended.stderr
    assert "waiting for clients" not in ended.stderr
