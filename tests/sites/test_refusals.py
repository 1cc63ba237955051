"""Who may join: everybody else is refused, with a line on both sides that says which certificate and why."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sites.test_rounds import job
from tdcd.errors import DeploymentError
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.session import Session
from tdcd.sites.hub.clients import Clients
from tdcd.sites.hub.link import Link
from tdcd.sites.hub.peers import Peer, Peers
from tdcd.sites.hub.reception import Reception
from tdcd.sites.messages.calls import HubStatus
from tdcd.sites.messages.types import SiloScores
from tdcd.sites.security import identity as identities
from tdcd.sites.security.identity import Identity, Pair, check_own, issue, make_authority
from tdcd.sites.security.tls import Trust, refusal
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import ClientSite, ClientTLS, HubTLS, check_loopback
from tdcd.sites.transport.grpc import OPTIONS, GrpcHub, GrpcServer
from tdcd.sites.transport.memory import MemoryHub
from tdcd.sites.transport.wire import tdcd_pb2_grpc
from tdcd.sites.transport.wire.tdcd_pb2 import StatusRequest

JOB = job()
SHARED = SharedJob.of(JOB)


class World:
    """Two silos with their CAs, and one more that is not in the job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for silo in ("bank", "insurer", "stranger"):
            make_authority(folder / silo, silo, 30)

    def ca(self, silo: str) -> Path:
        return self.folder / silo / "ca.pem"

    def pair(self, who: Identity, signer: str | None = None, days: float = 30) -> Pair:
        signer = signer or who.silo
        authority = Pair(self.ca(signer), self.folder / signer / "ca.key")
        place = self.folder / f"{signer}-{who.silo}-{days}"
        place.mkdir(exist_ok=True)
        return issue(authority, who, place, days)

    def trust(self, who: Identity, pair: Pair, *silos: str) -> Trust:
        """Believe that a certificate is one's own, without the check that comes before."""
        return Trust(who, pair, {silo: self.ca(silo) for silo in (who.silo, *silos)})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("certs"))


@dataclass
class BankHub:
    """A hub that answers, with nothing behind it."""

    world: World
    pair: Pair
    port: int = 0
    log: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    """Silos whose CA it takes to be another's."""
    server: GrpcServer | None = None

    async def __aenter__(self) -> "BankHub":
        async def nothing(link: Link) -> None:
            return

        clients = Clients("bank", ("north", "south"), SHARED.fingerprint, 5.0, self.log.append, nothing)
        peers = Peers("bank", SHARED, {"insurer": Peer("insurer", "x:1", MemoryHub())}, 5.0, self.log.append)
        trust = self.world.trust(Identity("bank"), self.pair, "insurer")
        cas = {silo: self.world.ca(self.known.get(silo, silo)) for silo in trust.authorities}
        trust = Trust(trust.own, trust.pair, cas)

        async def status() -> HubStatus:
            return HubStatus("bank", "j", "", 0, 0, 0.0, (), (), 0, 0, 0, "", "", 0.0, "")

        reception = Reception("bank", SHARED, clients, peers, status)
        self.server = GrpcServer(reception, trust, self.log.append)
        self.port = await self.server.start("127.0.0.1:0")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.server
        await self.server.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


async def join(hub: BankHub, who: Identity, trust: Trust) -> str:
    """Run a client against the hub; return how it is refused."""
    site = ClientSite(hub=hub.address)
    remote = GrpcHub(trust, hub.address, who.silo)
    process = ClientProcess(Session(JOB, who, site, lambda line: None), SHARED, remote, lambda line: None, 0.4)
    with pytest.raises(DeploymentError) as caught:
        await asyncio.wait_for(process.run(), 20)
    return str(caught.value)


@pytest.fixture
def overheard(capfd: pytest.CaptureFixture[str]) -> Callable[[], list[str | None]]:
    """What a hub's log makes of the lines that gRPC prints."""

    def heard() -> list[str | None]:
        time.sleep(0.3)
        return [refusal(line) for line in capfd.readouterr().err.splitlines()]

    return heard


def test_the_log_catches_what_native_code_prints() -> None:
    """In a process of its own: it is about that process's standard error."""
    line = "I1116 08:36:08.4 77 ssl.cc:2563] Handshake failed with error SSL_ERROR_SSL: x: certificate has expired"
    program = f"""
import os, sys
from tdcd.sites.logs import logs
with logs("bank", sys.argv[1]) as logger:
    os.write(2, b"{line}\\nsomething else\\nI1116 08:36:08.4 77 x.cc:1] chatter\\n")
    logger.info("a line", extra={{"facts": {{"round": 3}}}})
    print("of python", file=sys.stderr)
print("afterwards", file=sys.stderr)
"""
    said = {}
    for style in ("human", "json"):
        command = [sys.executable, "-c", program, style]
        said[style] = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    human = said["human"]
    text = {one.split(" ", 1)[1] for one in human if re.match(r"\d\d:\d\d:\d\d ", one)}
    assert text == {"bank · WARNING: refused a connection: its certificate has expired", "bank · a line"}
    assert {"something else", "of python", "afterwards"} <= set(human)
    assert len(human) == 5
    lines = [json.loads(one) for one in said["json"] if one.startswith("{")]
    assert {one["message"]: one["level"] for one in lines} == {
        "refused a connection: its certificate has expired": "warning",
        "a line": "info",
    }
    assert next(one for one in lines if one["message"] == "a line")["round"] == 3
    assert all(one["site"] == "bank" and one["time"].endswith("+00:00") for one in lines)


def refused(hub: BankHub, who: Identity, trust: Trust) -> str:
    async def run() -> str:
        async with hub:
            return await join(hub, who, trust)

    return asyncio.run(run())


NORTH = Identity("bank", "north")


def test_a_wrong_ca(world: World, overheard: Callable[[], list[str | None]]) -> None:
    hub = BankHub(world, world.pair(Identity("bank")))
    text = refused(hub, NORTH, world.trust(NORTH, world.pair(NORTH, signer="stranger")))
    assert "the CA of silo 'bank' has not signed it" in text
    assert "refused a connection: its certificate is signed by a CA that this site does not know" in overheard()


def test_a_wrong_ca_as_the_other_side_sees_it(world: World, overheard: Callable[[], list[str | None]]) -> None:
    """The hub shows a certificate of another CA: the client refuses it."""
    hub = BankHub(world, world.pair(Identity("bank"), signer="stranger"))
    text = refused(hub, NORTH, world.trust(NORTH, world.pair(NORTH)))
    assert f"its certificate is refused here: another CA has signed it than [tls] ca = {world.ca('bank')}. Ask" in text


def test_an_expired_certificate(world: World, overheard: Callable[[], list[str | None]]) -> None:
    hub = BankHub(world, world.pair(Identity("bank")))
    text = refused(hub, NORTH, world.trust(NORTH, world.pair(NORTH, days=-0.02)))
    assert "has expired on" in text
    assert "tdcd certs --renew" in text
    assert "refused a connection: its certificate has expired" in overheard()


def test_an_expired_certificate_as_the_other_side_sees_it(
    world: World, overheard: Callable[[], list[str | None]]
) -> None:
    hub = BankHub(world, world.pair(Identity("bank"), days=-0.02))
    text = refused(hub, NORTH, world.trust(NORTH, world.pair(NORTH)))
    assert "its certificate is refused here: it has expired" in text


def test_a_missing_certificate(world: World, overheard: Callable[[], list[str | None]]) -> None:
    async def run() -> str:
        async with BankHub(world, world.pair(Identity("bank"))) as hub:
            credentials = grpc.ssl_channel_credentials(world.ca("bank").read_bytes())
            options = (*OPTIONS, ("grpc.ssl_target_name_override", identities.host_name("bank")))
            async with grpc.aio.secure_channel(hub.address, credentials, options) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await tdcd_pb2_grpc.HubStub(channel).Status(StatusRequest(), timeout=5)
                return str(caught.value.code())

    assert "UNAVAILABLE" in asyncio.run(run())
    assert "refused a connection: it shows no certificate" in overheard()


def test_no_tls_at_all(world: World, overheard: Callable[[], list[str | None]]) -> None:
    async def run() -> None:
        async with (
            BankHub(world, world.pair(Identity("bank"))) as hub,
            grpc.aio.insecure_channel(hub.address, OPTIONS) as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await tdcd_pb2_grpc.HubStub(channel).Status(StatusRequest(), timeout=5)

    asyncio.run(run())
    assert "refused a connection: it does not speak TLS" in overheard()


def test_a_right_certificate_with_a_wrong_name(world: World) -> None:
    west = Identity("bank", "west")
    hub = BankHub(world, world.pair(Identity("bank")))
    text = refused(hub, west, world.trust(west, world.pair(west)))
    line = "client 'west' of silo 'bank' is not a client that the job names: north, south"
    assert line in text
    assert any(line in one for one in hub.log)


def test_a_hub_with_a_wrong_name(world: World) -> None:
    """Somebody of the right silo answers, but not its hub."""
    for shown, why in (
        (Identity("other"), "it has another name"),
        (NORTH, "it is a client's certificate, and a hub's is wanted"),
    ):
        hub = BankHub(world, world.pair(shown, signer="bank"))
        text = refused(hub, NORTH, world.trust(NORTH, world.pair(NORTH)))
        assert f"its certificate is refused here: {why}" in text


def test_a_client_of_another_silo(world: World) -> None:
    online = Identity("insurer", "online")
    hub = BankHub(world, world.pair(Identity("bank")))
    text = refused(hub, online, world.trust(online, world.pair(online), "bank"))
    assert "its certificate is refused here" in text  # it looks for the hub of its own silo

    async def run() -> str:
        async with BankHub(world, world.pair(Identity("bank"))) as bank:
            trust = world.trust(online, world.pair(online), "bank")
            async with GrpcHub(trust, bank.address, "bank")._channel() as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await tdcd_pb2_grpc.HubStub(channel).Status(StatusRequest(), timeout=5)
            return f"{caught.value.details()} | {bank.log}"

    text = asyncio.run(run())
    line = "this is the hub of silo 'bank', and the certificate is of client 'online' of silo 'insurer'"
    assert text.count(line) == 1 + 1


def test_a_name_counts_only_if_its_own_silo_has_signed_it(world: World) -> None:
    """The insurer's CA is known to the bank's hub, but may not make clients of the bank."""
    hub = BankHub(world, world.pair(Identity("bank")))
    forged = world.pair(NORTH, signer="insurer")

    async def run() -> str:
        async with hub:
            trust = world.trust(NORTH, forged)
            async with GrpcHub(trust, hub.address, "bank")._channel() as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await tdcd_pb2_grpc.HubStub(channel).Status(StatusRequest(), timeout=5)
                return str(caught.value.details())

    assert "the CA of silo 'bank' has not signed it" in asyncio.run(run())
    assert any("has not signed it" in line for line in hub.log)


def test_only_hubs_that_the_job_names_may_bring_messages(world: World) -> None:
    hub = BankHub(world, world.pair(Identity("bank")))

    async def run(who: Identity, said: str) -> str:
        async with hub:
            trust = world.trust(who, world.pair(who), "bank")
            async with GrpcHub(trust, hub.address, "bank")._channel() as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await tdcd_pb2_grpc.HubStub(channel).Deliver(iter([]), timeout=5, metadata=(("silo", said),))
                return str(caught.value.details())

    assert "is a client; only hubs may bring messages" in asyncio.run(run(NORTH, "insurer"))
    assert "the message says silo 'bank'" in asyncio.run(run(Identity("insurer"), "bank"))
    assert "an incomplete message" in asyncio.run(run(Identity("insurer"), "insurer"))
    assert "is not a hub that the job names: insurer" in asyncio.run(run(Identity("bank"), "bank"))
    assert len(hub.log) == 4


def test_a_client_with_another_job_is_told_the_difference(world: World) -> None:
    async def run() -> tuple[str, list[str]]:
        async with BankHub(world, world.pair(Identity("bank"))) as hub:
            other = SharedJob.of(job(rate=0.7))
            site = ClientSite(hub=hub.address)
            trust = world.trust(NORTH, world.pair(NORTH))
            session, remote = Session(JOB, NORTH, site, lambda line: None), GrpcHub(trust, hub.address, "bank")
            process = ClientProcess(session, other, remote, lambda line: None, 1.0)
            with pytest.raises(DeploymentError) as caught:
                await asyncio.wait_for(process.run(), 20)
            return str(caught.value), hub.log

    text, log = asyncio.run(run())
    assert "training.rate: 0.7 there, 0.1 here" in text
    assert any("training.rate: 0.7 there, 0.1 here" in line for line in log)


def test_the_health_service_answers(world: World) -> None:
    async def run() -> int:
        async with BankHub(world, world.pair(Identity("bank"))) as hub:
            trust = world.trust(NORTH, world.pair(NORTH))
            async with GrpcHub(trust, hub.address, "bank")._channel() as channel:
                reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
                return int(reply.status)

    assert asyncio.run(run()) == health_pb2.HealthCheckResponse.SERVING


def test_a_renewed_certificate_is_taken_while_the_hub_runs(world: World) -> None:
    async def run() -> tuple[bool, bool]:
        pair = world.pair(Identity("bank"), days=7)
        async with BankHub(world, pair) as hub:
            trust = world.trust(NORTH, world.pair(NORTH))
            before = await trust.explain(hub.address, "bank")
            expired = world.pair(Identity("bank"), days=-0.02)
            for new, old in ((expired.key, pair.key), (expired.certificate, pair.certificate)):
                os.replace(new, old)
            after = await trust.explain(hub.address, "bank")
            return "in order" in before, "it has expired" in after

    assert asyncio.run(run()) == (True, True)


def test_ones_own_certificate_is_checked_before_anybody_sees_it(world: World) -> None:
    good = world.pair(NORTH)
    assert check_own(good, world.ca("bank"), NORTH)
    for pair, who, says in (
        (
            good,
            Identity("bank", "south"),
            "it is the certificate of client 'north' of silo 'bank', not of client 'south'",
        ),
        (world.pair(NORTH, days=-0.02), NORTH, "has expired on"),
        (world.pair(NORTH, signer="stranger"), NORTH, "the CA of silo 'bank' has not signed it"),
        (Pair(good.certificate, world.pair(Identity("bank")).key), NORTH, "it is not the key of"),
        (Pair(world.folder / "none.pem", good.key), NORTH, "none.pem: cannot be read: No such file"),
        (Pair(good.certificate, good.certificate), NORTH, "damaged or locked, not a private key"),
        (Pair(good.key, good.key), NORTH, "damaged, not a certificate"),
    ):
        with pytest.raises(DeploymentError, match=says):
            check_own(pair, world.ca("bank"), who)


def test_trust_names_the_missing_file(world: World) -> None:
    good = world.pair(NORTH)
    files = {"certificate": str(good.certificate), "key": str(good.key)}
    with pytest.raises(DeploymentError, match="nowhere.pem: cannot be read"):
        Trust.of(ClientTLS(ca="nowhere.pem", **files), NORTH)
    hub = world.pair(Identity("bank"))
    tls = HubTLS(
        ca=str(world.ca("bank")), certificate=str(hub.certificate), key=str(hub.key), peers={"insurer": "gone.pem"}
    )
    with pytest.raises(DeploymentError, match="gone.pem: cannot be read"):
        Trust.of(tls, Identity("bank"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:7100", "[::1]:7100", "127.8.8.8:1"])
def test_without_tls_on_this_machine(address: str) -> None:
    check_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "hub.bank.example:7100", "10.0.0.1:7100", "[::]:7100"])
def test_without_tls_nowhere_else(address: str) -> None:
    with pytest.raises(DeploymentError, match="--insecure: .* is not on this machine"):
        check_loopback(address)


@pytest.mark.slow
def test_a_hub_goes_on_with_a_renewed_certificate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line to another hub was opened with the old one, which expires meanwhile."""
    monkeypatch.setattr("tdcd.sites.security.tls.TRUSTED", 0.0)
    insurer = Identity("insurer")
    old = world.pair(insurer, days=4 / 86_400)
    trust = world.trust(insurer, old, "bank")
    parts: list[str] = []

    async def run() -> None:
        async with BankHub(world, world.pair(Identity("bank"))) as hub:
            remote = GrpcHub(trust, hub.address, "bank")
            peers = Peers("insurer", SHARED, {"bank": Peer("bank", hub.address, remote)}, 20.0, parts.append)
            message = SiloScores((), (), ())
            await peers.send("bank", message)
            await asyncio.sleep(5)
            with pytest.raises(DeploymentError, match="refuses this hub: the certificate has expired"):
                await peers.send("bank", message)
            renewed = world.pair(insurer)
            os.replace(renewed.key, old.key)
            os.replace(renewed.certificate, old.certificate)
            await peers.send("bank", message)

    asyncio.run(run())


def test_a_hub_that_does_not_know_the_other_hubs_ca(world: World, overheard: Callable[[], list[str | None]]) -> None:
    """Its site file names a wrong CA for that silo: both sides say so."""
    insurer, bank = Identity("insurer"), Identity("bank")
    hub = BankHub(world, world.pair(bank), known={"insurer": "bank"})

    async def run() -> str:
        async with hub:
            return await world.trust(insurer, world.pair(insurer), "bank").explain(hub.address, "bank")

    assert "is [tls] peers.insurer there this silo's ca.pem?" in asyncio.run(run())
    assert any(line and "CA" in line for line in overheard())
