"""What an operator sees: certificates, status, figures for Prometheus."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sites.memory import Federation
from sites.tables import write_tables
from sites.test_rounds import job
from support import run_command
from tdcd.core.state import SiloState
from tdcd.data.holdout import Part
from tdcd.errors import DeploymentError
from tdcd.sites.local_deployment import LocalFederation, _free_ports
from tdcd.sites.messages.calls import HubStatus
from tdcd.sites.prometheus import HubCollector, serve
from tdcd.sites.security.identity import Identity, read_certificates
from tdcd.sites.site_file import ClientSite, HubSite, read_site


def test_hubs_that_wait_for_clients_count_as_answering(tmp_path: Path) -> None:
    federation = Federation(job(silos=3), tmp_path)

    async def run() -> dict[str, HubStatus]:
        for silo in ("silo-1", "silo-2"):
            federation.add_hub(silo)  # no client has come, and the third hub is not started
        return {silo: await hub.snapshot() for silo, hub in federation.hubs.items()}

    status = asyncio.run(run())
    assert {peer.silo: peer.present for peer in status["silo-1"].peers} == {"silo-2": True, "silo-3": False}
    assert {peer.silo: peer.present for peer in status["silo-2"].peers} == {"silo-1": True, "silo-3": False}


def test_status_and_figures(tmp_path: Path) -> None:
    federation = Federation(job(), tmp_path)
    (port,) = _free_ports(1)
    pages: dict[str, str] = {}

    async def run() -> HubStatus:
        await federation.start()
        hub = federation.hubs["silo-1"]
        await federation.rounds(3)
        blocks = {silo: one.setup.first_block() for silo, one in federation.hubs.items()}
        await asyncio.gather(
            *(one.evaluate(SiloState(blocks[silo]), lambda _: "worse") for silo, one in federation.hubs.items())
        )
        loop = asyncio.get_running_loop()
        serve(lambda: asyncio.run_coroutine_threadsafe(hub.snapshot(), loop).result(5), f"127.0.0.1:{port}")
        url = f"http://127.0.0.1:{port}/metrics"
        pages["web"] = (await asyncio.to_thread(urllib.request.urlopen, url)).read().decode()
        status = hub.status()
        await federation.stop()
        return status

    status = asyncio.run(run())
    hub = federation.hubs["silo-1"]
    assert (status.silo, status.round, status.rounds) == ("silo-1", 3, 4)
    assert status.rounds_per_second > 0
    assert {client.name for client in status.clients} == {"silo-1-1", "silo-1-2", "silo-1-3"}
    assert sum(client.rows for client in status.clients) == hub.prepared.plan.counts[Part.TRAIN]
    assert status.bytes_sent > 0
    assert status.bytes_received > 0
    assert 0 < status.evaluation_bytes < status.bytes_sent + status.bytes_received
    assert json.loads(status.evaluation)["round"] == 3
    registry = CollectorRegistry()
    registry.register(HubCollector(lambda: status))
    for page in (pages["web"], generate_latest(registry).decode()):
        assert "tdcd_round 3.0" in page
        assert 'tdcd_peer_present{silo="silo-2"} 1.0' in page
        assert 'tdcd_measure{measure="auroc",part="test"} 0.' in page
        assert re.search(r'tdcd_bytes_total\{direction="sent"\} \d', page)
    assert 'tdcd_client_present{client="silo-1-2"} 1.0' in pages["web"]


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        federation = Federation(job(), tmp_path)
        hub = federation.add_hub("silo-1")
        with pytest.raises(DeploymentError, match="metrics: cannot listen on"):
            serve(hub.status, f"127.0.0.1:{taken.getsockname()[1]}")


def test_certificates_are_made_kept_and_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(tmp_path)
    folder = tmp_path / "c"
    certs = ["certs", tmp_path / "job.toml", "--silo", "bank", "--out", folder]
    assert run_command(*certs) == 0
    printed = capsys.readouterr().out
    assert "client 'part-1' of silo 'bank'" in printed
    assert f"Keep {folder / 'ca.key'}" in printed
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    stems = ("ca", "hub", "client-part-0", "client-part-1")
    assert set(files) == {f"{stem}.{end}" for stem in stems for end in ("pem", "key")}
    assert run_command(*certs) == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files
    assert run_command(*certs, "--renew", "--days", 7) == 0
    again = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {name for name in files if again[name] == files[name]} == {"ca.pem", "ca.key"}
    assert list(Identity.all_in(read_certificates(folder / "hub.pem")[0])) == [Identity("bank")]
    assert "expires on" in capsys.readouterr().out
    assert run_command("certs", tmp_path / "job.toml", "--silo", "bnk") == 2
    assert "the job has no silo 'bnk'; did you mean 'bank'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listen = 'here'", 'listen: is a host and a port, such as "hub.bank.example:7100"'),
        ("lisen = '1.2.3.4:5'", "lisen"),
        ("[tls]\nca = 'x'", "tls.certificate"),
        ("listen = ", "not TOML"),
    ],
)
def test_mistakes_in_a_site_file(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(text)
    with pytest.raises(DeploymentError, match=re.escape(says)):
        read_site(file, HubSite)
    with pytest.raises(DeploymentError, match="no such site file"):
        read_site(tmp_path / "none.toml", ClientSite)


def test_paths_of_a_site_file_are_told_from_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text('hub = "h:1"\ndata = "north.csv"\n[tls]\nca = "c/ca.pem"\ncertificate = "c/n.pem"\nkey = "/k"')
    site = read_site(file, ClientSite)
    assert site.data == str(tmp_path / "north.csv")
    assert site.tls
    assert (site.tls.ca, site.tls.key) == (str(tmp_path / "c" / "ca.pem"), "/k")


def test_hubs_and_clients_that_cannot_start_say_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job_file = tmp_path / "job.toml"
    LocalFederation.laid_out(write_tables(tmp_path), tmp_path / "deployed")
    (tmp_path / "hub.toml").write_text('listen = "127.0.0.1:1"\npeers = { insurer = "127.0.0.1:2" }')
    (tmp_path / "client.toml").write_text('hub = "10.0.0.1:1"\ndata = "bank-0.csv"')
    hub = ["hub", job_file, "--site", tmp_path / "hub.toml", "--silo"]
    client = ["client", job_file, "--site", tmp_path / "client.toml", "--silo", "bank", "--client"]
    for command, says in (
        (
            [*hub, "bank"],
            "its site file names no certificates ([tls] ca, certificate, key); make them with: tdcd certs",
        ),
        ([*hub, "bnk", "--insecure"], "the job has no silo 'bnk'; did you mean 'bank'?"),
        ([*hub, "bank", "--insecure"], "site file: peers: no entry for silo hospital"),
        ([*client, "part-9", "--insecure"], "silo 'bank' has no client 'part-9'"),
        ([*client, "part-0", "--insecure"], "--insecure: 10.0.0.1:1 is not on this machine"),
        (["status", tmp_path / "hub.toml"], "it names no certificates"),
        (["status", tmp_path / "hub.toml", "--insecure"], "the hub at 127.0.0.1:1 does not answer"),
        (["deploy", job_file], "say --local"),
        (["train", tmp_path / "deployed" / "job.toml"], "names clients without files"),
    ):
        assert run_command(*command) == 2, command
        printed = capfd.readouterr().err
        assert says in printed, (command, printed)
        assert "Traceback" not in printed
