"""Tables that stay in their files until they are computed: the same numbers, wherever they are read."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli_w

import tdcd
from jobs.three_silos import write_tables
from support import same
from tdcd.data.holdout import Part
from tdcd.data.sources import read_stored
from tdcd.errors import DataError

RNG = np.random.default_rng(8)


def elsewhere(action: Callable[..., Any], /, *arguments: Iterable[Any]) -> Iterator[Any]:
    """Call an action as if in other processes: what goes there and what comes back are copies."""
    for given in zip(*arguments, strict=False):
        there, *copies = pickle.loads(pickle.dumps((action, *given)))  # noqa: S301
        yield pickle.loads(pickle.dumps(there(*copies)))  # noqa: S301


@pytest.fixture
def job(tmp_path: Path) -> tdcd.Job:
    (tmp_path / "job.toml").write_text(tomli_w.dumps(write_tables(tmp_path)))
    return tdcd.load_job(tmp_path / "job.toml")


def test_rows_that_stay_are_those_that_are_loaded(job: tdcd.Job) -> None:
    loaded, stayed = tdcd.load_data(job), tdcd.load_data(job, at_nodes=elsewhere)
    assert {*loaded.parts} == {*Part}
    for part, samples in loaded.parts.items():
        for silo, rows in samples.features.items():
            stored = pickle.loads(pickle.dumps(stayed.parts[part].stored[silo]))  # noqa: S301 - as it is sent to a node
            assert stayed.parts[part].features[silo].is_meta
            assert np.array_equal(read_stored([stored], silo)[0].numpy(), rows.numpy())
            some = np.flatnonzero(RNG.random(len(rows)) < 0.3)
            (few,) = read_stored([stored.at(some)], silo)
            assert np.array_equal(few.numpy(), rows[some].numpy())
        assert same({"y": {"y": samples.labels}}, {"y": {"y": stayed.parts[part].labels}})
    for silo, roster in loaded.federation.rosters.items():
        assert roster.clients == stayed.federation.rosters[silo].clients
        assert np.array_equal(roster.owner.numpy(), stayed.federation.rosters[silo].owner.numpy())
    assert stayed.federation.preparations == loaded.federation.preparations


def test_only_files_with_wanted_rows_are_opened(job: tdcd.Job, tmp_path: Path) -> None:
    stored = tdcd.load_data(job, at_nodes=elsewhere).federation.samples.stored["bank"]
    stored = pickle.loads(pickle.dumps(stored))  # noqa: S301
    held = tdcd.load_data(job).federation.rosters["bank"]
    south = np.flatnonzero(held.owner.numpy() == held.clients.index("south"))
    (tmp_path / "north.csv").unlink()
    assert len(read_stored([stored.at(south)], "bank")[0]) == len(south)
    with pytest.raises(DataError, match=r"client 'north' .*cannot be read: No such file"):
        read_stored([stored], "bank")


def test_a_file_that_has_changed_is_refused(job: tdcd.Job, tmp_path: Path) -> None:
    stored = pickle.dumps(tdcd.load_data(job, at_nodes=elsewhere).federation.samples.stored["shop"])
    frame = pl.read_parquet(tmp_path / "shop.parquet")
    frame.with_columns(spent=pl.col("spent") + 1, more=1).write_parquet(tmp_path / "shop.parquet")
    with pytest.raises(DataError, match=r"shop\.parquet\).*not the file that was surveyed"):
        read_stored([pickle.loads(stored)], "shop")  # noqa: S301


def test_what_is_recorded_tells_other_rows_apart(job: tdcd.Job, tmp_path: Path) -> None:
    def digests() -> dict[str, str]:
        stored = tdcd.load_data(job, at_nodes=elsewhere).federation.samples.stored
        return {silo: rows.digest() for silo, rows in stored.items()}

    first = digests()
    assert digests() == first
    frame = pl.read_parquet(tmp_path / "shop.parquet")
    frame.with_columns(spent=pl.col("spent") * 1.01).write_parquet(tmp_path / "shop.parquet")
    assert {silo for silo, digest in digests().items() if digest != first[silo]} == {"shop"}
