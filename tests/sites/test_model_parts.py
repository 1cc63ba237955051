"""Hubs that bring their parts of a model to one of them: announced, allowed, and checked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.models import train_tables
from sites.tables import write_tables
from tdcd.errors import DeploymentError, JobError
from tdcd.jobs.load import load_job
from tdcd.runs.layout import FEDERATION, preparation_file
from tdcd.runs.records import FederationRecord, pack_record, read_record
from tdcd.runs.store import load_blocks
from tdcd.serving.part import Run
from tdcd.sites.hub.main import run_hub
from tdcd.sites.hub.model_parts import ModelParts
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.types import ModelPart
from tdcd.sites.site_file import HubSite


def test_a_site_must_allow_that_its_part_leaves(tmp_path: Path) -> None:
    write_tables(tmp_path)
    job = load_job(tmp_path / "job.toml", {"deployment.assemble": "insurer"})
    site = HubSite(listen="127.0.0.1:0", peers={"insurer": "127.0.0.1:1", "hospital": "127.0.0.1:2"})
    says = "sends the weights .* of silo 'bank' to the hub of silo 'insurer'.*send_model = true"
    with pytest.raises(DeploymentError, match=says):
        run_hub(job, "bank", site, insecure=True)
    assert not Path("runs").exists()


def test_settings_that_say_nothing(tmp_path: Path) -> None:
    write_tables(tmp_path)
    with pytest.raises(JobError, match="assemble_every: say whose hub makes the model"):
        load_job(tmp_path / "job.toml", {"deployment.assemble_every": 5})
    with pytest.raises(JobError, match="deployment.assemble: 'banc' is no silo; did you mean 'bank'"):
        load_job(tmp_path / "job.toml", {"deployment.assemble": "banc"})


def test_parts_that_are_none(tmp_path: Path) -> None:
    run = train_tables(tmp_path)
    own = Run.read(run).part(3)
    record = read_record(run / FEDERATION, FederationRecord)
    silo = next(one for one in record.silos if one.name == "shop")
    block = load_blocks(run)["shop"]
    honest = ModelPart(
        pack_record(replace(record, silos=(silo,), peers=("bank", "ward"))),
        preparation_file(run, "shop").read_bytes(),
        tuple(block),
        tuple(block.values()),
    )
    parts: Any = ModelParts(None)  # type: ignore[arg-type]
    taken = parts._part("shop", honest, own)
    assert (taken.silos, taken.source, set(taken.blocks["shop"])) == (["shop"], "shop", set(block))
    first, *others = block.values()
    for changes, says in [
        ({"description": b"{}"}, "malformed"),
        ({"description": honest.description[:-9]}, "malformed"),
        ({"description": pack_record(record)}, "it is of silo|is of silo bank, ward, shop"),
        ({"preparation": b'{"columns": [{"kind": "os:system"}]}'}, "malformed"),
        ({"preparation": b"\xff"}, "malformed"),
        ({"names": honest.names[1:]}, "tensors, and .* names for them"),
        ({"names": honest.names[:1] * len(block)}, "malformed"),
        ({"weights": (first * torch.nan, *others)}, "not finite"),
        ({"weights": (first + 1e30, *others)}, "as large as"),
    ]:
        with pytest.raises(RefusedError, match=f"the part of silo 'shop'.*({says})"):
            parts._part("shop", replace(honest, **changes), own)  # type: ignore[arg-type]
