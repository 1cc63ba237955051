"""Clients of one silo whose files are written in different ways."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tdcd
from sites.memory import Federation
from sites.test_rounds import same
from sites.test_tables import run
from tdcd.errors import DataError, JobError, TdcdError
from tdcd.jobs.schema import TableJob
from tdcd.jobs.tables import OpenTables
from tdcd.runs.layout import JOB
from tdcd.serving.model import load_model
from tdcd.sites.client.own_table import OwnTable
from tdcd.sites.hub.plan import plan_from_tables
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.messages.types import RequestKeys
from tdcd.sites.security.identity import Identity
from tdcd.sites.site_file import ClientSite, read_site

from .two_silos import write_job

SOUTH = {"separator": ";", "encoding": "cp1252", "decimal": ",", "thousands": ".", "date_format": "%d.%m.%Y"}


def rows_of(client: int) -> pl.DataFrame:
    generator = np.random.default_rng(client)
    days = pl.Series(generator.integers(15_000, 20_000, 60)).cast(pl.Date)
    return pl.DataFrame(
        {
            "who": np.arange(60) + 60 * client,
            "limit": generator.normal(5000, 2000, 60).round(2),
            "since": days,
            "job": generator.choice(["employé", "Müller", "cook"], 60),
            "default": generator.integers(0, 2, 60),
        }
    )


def in_german(frame: pl.DataFrame) -> str:
    """Write a table with semicolons, 1.234,56 and 28.01.2026."""
    lines = [";".join(frame.columns)]
    for who, limit, since, job, default in frame.iter_rows():
        number = f"{limit:,.2f}".translate(str.maketrans(",.", ".,"))
        lines.append(f"{who};{number};{since:%d.%m.%Y};{job};{default}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a bank's tables, plainly and each in its own way, and an insurer's."""
    for number, client in enumerate(("north", "south", "sea")):
        frame = rows_of(number)
        frame.write_csv(tmp_path / f"{client}-plain.csv")
        text = (tmp_path / f"{client}-plain.csv").read_text()
        written = {"north": text.encode(), "south": in_german(frame).encode("cp1252"), "sea": text.encode("utf-16")}
        (tmp_path / f"{client}.csv").write_bytes(written[client])
    people = np.random.default_rng(9).permutation(180)
    pl.DataFrame({"person": people, "age": people % 70 + 0.5}).write_csv(tmp_path / "insurer.csv")
    return tmp_path


def job_of(folder: Path, clients: dict[str, Any], **bank: Any) -> TableJob:
    return write_job(folder, {"id": "who", "label": "default", "clients": clients, **bank}, "person")


def plain(folder: Path) -> TableJob:
    return job_of(folder, {client: f"{client}-plain.csv" for client in ("north", "south", "sea")})


def mixed(folder: Path) -> TableJob:
    return job_of(folder, {"north": "north.csv", "south": {"file": "south.csv", **SOUTH}, "sea": "sea.csv"})


def test_files_in_other_formats_are_the_same_data(folder: Path) -> None:
    expected = tdcd.load_data(plain(folder)).federation
    result = tdcd.load_data(mixed(folder)).federation
    assert result.fingerprint() == expected.fingerprint()
    assert result.preparations == expected.preparations
    assert "job = employé" in result.preparations["bank"].outputs
    assert next(c for c in result.preparations["bank"].columns if c.name == "since").describe().startswith("dates, 20")


def test_a_silo_says_what_its_clients_do_not(folder: Path) -> None:
    """What is particular to one client may be said the other way round."""
    expected = tdcd.load_data(plain(folder)).federation
    usual = {"separator": ",", "encoding": "utf-8", "decimal": ".", "thousands": ""}
    clients = {"north": {"file": "north.csv", **usual}, "south": "south.csv", "sea": {"file": "sea.csv", **usual}}
    assert tdcd.load_data(job_of(folder, clients, **SOUTH)).federation.fingerprint() == expected.fingerprint()


def test_runs_keep_the_formats_and_predict_by_them(folder: Path) -> None:
    job = mixed(folder)
    tdcd.run_job(job, folder / "run")
    assert tdcd.load_job(folder / "run" / JOB).silos == job.silos
    run = load_model(folder / "run")
    insurer = {"insurer": [folder / "insurer.csv"]}
    expected = run.predict_tables({"bank": [folder / "south-plain.csv"], **insurer})
    assert run.predict_tables({"bank/south": [folder / "south.csv"], **insurer}).frame.equals(expected.frame)
    both = run.predict_tables({"bank": [folder / "sea.csv"], "bank/south": [folder / "south.csv"], **insurer})
    assert both.frame.height == 120
    with pytest.raises(DataError, match="'mouth' is no client of silo 'bank'; did you mean 'south'"):
        run.predict_tables({"bank/mouth": [folder / "south.csv"], **insurer})


def test_sites_read_what_the_simulation_reads(folder: Path) -> None:
    job = mixed(folder)
    same(run(Federation(job, folder / "runs"), rounds=3), tdcd.run_job(plain(folder)).federation.blocks, 0)


def test_a_site_file_says_how_its_table_is_written(folder: Path) -> None:
    """The shared job names clients only; what it says of their files goes into their own site files."""
    job = mixed(folder)
    LocalFederation.laid_out(job, folder / "deployed", insecure=True)
    shared = tdcd.load_job(folder / "deployed" / "job.toml")
    assert isinstance(shared, TableJob)
    assert sorted(shared.silos["bank"].client_names) == ["north", "sea", "south"]
    assert not shared.silos["bank"].files
    identity = Identity("bank", "south")
    site = read_site(folder / "deployed" / "bank" / "client-south.toml", ClientSite)
    assert site.table.model_dump(exclude_unset=True) == SOUTH
    keys = OwnTable(shared, identity, site, lambda line: None).send_keys(RequestKeys(""))
    assert keys.ids.to_list() == list(range(60, 120))
    encoded = ClientSite.model_validate({"table": {"encoding": "cp1252"}}).table
    other = OwnTable(shared, identity, site.model_copy(update={"table": encoded}), lambda line: None)
    with pytest.raises(DataError, match="Are its cells separated by ';'. Set silos.bank.separator, or separator for"):
        other.send_keys(RequestKeys(""))


def test_a_site_file_holds_what_the_job_says_of_a_client_and_no_more(folder: Path) -> None:
    clients = {"north": {"file": "north.csv", "encoding": "utf-8"}, "sea": "sea.csv"}
    LocalFederation.laid_out(job_of(folder, clients), folder / "deployed", insecure=True)
    for client, said in (("north", {"encoding": "utf-8"}), ("sea", {})):
        site = read_site(folder / "deployed" / "bank" / f"client-{client}.toml", ClientSite)
        assert site.table.model_dump(exclude_unset=True) == said
        assert site.data == str(folder / f"{client}.csv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoding": "ebcdic9"}, r"silos.bank.clients: south: encoding: is no encoding of texts.*'ebcdic9'"),
        ({"encoding": "base64"}, r"silos.bank.clients: south: encoding: is no encoding of texts"),
        ({"date_format": "%d.%m"}, r"silos.bank.clients: south: date_format: writes a date with %d, %m"),
        ({"date_format": "%Y%m%d"}, r"with a sign between two of them \(is '%Y%m%d'\)"),
        ({"thousands": ","}, "silos.bank.clients.south: .*thousands and decimal are the same"),
        ({"seperator": ","}, "silos.bank.clients: south: unknown key 'seperator'; did you mean 'separator'"),
        ({"encoding": "utf-8"}, "client 'south' .*Save it in UTF-8, or name its encoding, such as .cp1252.. Set"),
        ({"encoding": "utf-16"}, "client 'south' "),
        ({"encoding": "ascii"}, "client 'south' .*'ascii' codec|client 'south' .*is no text in ascii"),
        ({"decimal": ".", "thousands": ""}, "column 'limit' holds numbers at client 'north' .* decimal for client 'so"),
        ({"date_format": "%d/%m/%Y"}, "column 'since' holds dates at client 'north' .*date_format for client 'so"),
        ({"date_format": "%m.%d.%Y"}, r"column 'since' holds numbers and texts: row \d+ is"),
    ],
)  # fmt: skip
def test_formats_that_do_not_fit(folder: Path, change: dict[str, Any], message: str) -> None:
    clients = {"north": "north.csv", "south": {"file": "south.csv", **SOUTH, **change}}
    with pytest.raises(TdcdError, match=message):
        tdcd.load_data(job_of(folder, clients))


def test_what_an_encoding_is_mistaken_for(folder: Path) -> None:
    """A wrong encoding is no error to a code page, which reads any bytes; so look."""
    clients = {"north": {"file": "north.csv", "encoding": "cp1252"}}
    with pytest.raises(DataError, match=r"client 'north' .*it is text in UTF-8, not in cp1252"):
        tdcd.load_data(job_of(folder, clients))
    text = (folder / "north.csv").read_text()
    (folder / "north.csv").write_bytes(text.encode("utf-16-le"))
    with pytest.raises(DataError, match=r'is no text; .*If it is in UTF-16 without a mark, say so: encoding = "utf-16'):
        tdcd.load_data(job_of(folder, {"north": "north.csv"}))
    tdcd.load_data(job_of(folder, {"north": {"file": "north.csv", "encoding": "utf-16-le"}}))
    (folder / "north.csv").write_bytes(text.encode("cp1252").replace(b"cook", b"c\x81ok", 1))
    with pytest.raises(DataError, match=r"client 'north' .*line \d+ is no text in cp1252"):
        tdcd.load_data(job_of(folder, {"north": {"file": "north.csv", "encoding": "cp1252"}}))


def test_years_of_two_digits_are_no_years_of_four(folder: Path) -> None:
    clients = {"south": {"file": "south.csv", **SOUTH}}
    path = folder / "south.csv"
    path.write_bytes(path.read_bytes().replace(b".20", b"."))
    with pytest.raises(DataError, match="column 'since' holds texts that look like numbers or dates"):
        tdcd.load_data(job_of(folder, clients))
    clients["south"]["date_format"] = "%d.%m.%y"
    column = next(
        c for c in tdcd.load_data(job_of(folder, clients)).federation.preparations["bank"].columns if c.name == "since"
    )
    assert column.describe().startswith("dates, 20")


def test_dates_that_mean_no_value(folder: Path) -> None:
    """Marks are the silo's, and dates in them are written as 2026-01-28 in whatever file."""
    path = folder / "south.csv"
    lines = path.read_bytes().split(b"\n")
    cells = [line.split(b";") for line in lines]
    for line in (5, 9, 20, 33):
        cells[line][2] = b"31.12.9999"
    path.write_bytes(b"\n".join(b";".join(line) for line in cells))
    job = job_of(folder, {"south": {"file": "south.csv", **SOUTH}}, missing=["9999-12-31"])
    assert "since missing" in tdcd.load_data(job).federation.preparations["bank"].outputs


def test_three_labels_where_two_are_wanted(folder: Path) -> None:
    path = folder / "south.csv"
    lines = path.read_text("cp1252").splitlines()
    lines[7] = lines[7][:-1] + "2"
    path.write_text("\n".join(lines) + "\n", "cp1252")
    job = mixed(folder)
    message = (
        r"silo 'bank', column 'default': labels: there are 3, 0 \(\d+\), 1 \(\d+\), 2 \(1\); .*wants two. Correct the "
        r"rows.*cross-entropy.*; the first '2' is in row 7 of silo 'bank', client 'south' \(.*south.csv\)"
    )
    with pytest.raises(DataError, match=message):
        tdcd.load_data(job)
    alignment, keys = OpenTables.open(job, lambda what: None).align()
    with pytest.raises(DataError, match="the first '2' is in row 7 of silo 'bank', client 'south'"):
        plan_from_tables(job, "bank", alignment, list(keys["bank"]), "job")
    with pytest.raises(DataError, match="2 .1.; .*; the hub of silo 'bank' names the client and the row"):
        plan_from_tables(job, "insurer", alignment, list(keys["insurer"]), "job")


def test_an_unknown_private_label_is_named_at_its_own_site(folder: Path) -> None:
    job = mixed(folder).model_copy(update={"labels": tdcd.Labels(silo="bank", sharing="exact")})
    file = folder / "north.csv"
    file.write_text(file.read_text().replace("\n", "?\n").replace("default?", "default"))
    own = OwnTable(job, Identity("bank", "north"), ClientSite(data=str(file)), lambda line: None)
    with pytest.raises(DataError, match=r"client 'north' .*unknown label.*the first '[01]\?' is in row \d+ of silo"):
        own.check(labels=True)


def test_a_client_without_a_file_is_named(folder: Path) -> None:
    with pytest.raises(JobError, match="silos.bank.clients: south: file: Field required"):
        job_of(folder, {"north": "north.csv", "south": {"separator": ";"}})
