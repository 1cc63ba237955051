"""Certificates by request, of a corporate PKI, and at their end: nobody needs another's key, nothing is unannounced."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from sites.test_refusals import JOB, SHARED, BankHub, World
from tdcd.cli.main import app
from tdcd.errors import DeploymentError
from tdcd.jobs.load import load_job
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.session import Session
from tdcd.sites.security.identity import (
    Identity,
    Pair,
    check_own,
    issue,
    make_authority,
    read_certificates,
    read_key,
    sign,
)
from tdcd.sites.security.signing import check_site, make_request, sign_request
from tdcd.sites.security.tls import Trust, warn_of_expiry
from tdcd.sites.site_file import ClientSite
from tdcd.sites.transport.grpc import GrpcHub

NORTH = Identity("bank", "north")
HUB = Identity("bank")


def corporate(folder: Path) -> Pair:
    """A PKI as companies have it: a root, and an issuing CA below it, both RSA; its file has both."""
    now, folder = datetime.now(UTC), folder / "pki"
    folder.mkdir()
    keys = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Bank {which} CA")]) for which in ("Root", "Issuing")]
    made = [
        x509.CertificateBuilder()
        .subject_name(names[place])
        .issuer_name(names[0])
        .public_key(keys[place].public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=90))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(keys[0], hashes.SHA256())
        for place in (0, 1)
    ]
    pair = Pair.named(folder, "ca")
    pair.certificate.write_bytes(b"".join(one.public_bytes(serialization.Encoding.PEM) for one in reversed(made)))
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pair.key.write_bytes(keys[1].private_bytes(*plain))
    return pair


def test_a_request_is_signed_by_the_silos_own_ca(tmp_path: Path) -> None:
    authority, site = tmp_path / "authority", tmp_path / "site"
    make_authority(authority, "bank", 30)
    request = make_request(site, NORTH)
    assert {path.name for path in site.iterdir()} == {"client-north.csr", "client-north.key"}
    assert (site / "client-north.key").stat().st_mode & 0o077 == 0
    who, made = sign_request(authority, "bank", request, ("north", "south"), 30)
    assert who == NORTH
    assert {path.name for path in authority.iterdir()} == {"ca.pem", "ca.key", "client-north.pem"}
    check_own(Pair(made, site / "client-north.key"), authority / "ca.pem", NORTH)
    before = (site / "client-north.key").read_bytes()
    make_request(site, NORTH)
    assert (site / "client-north.key").read_bytes() == before, "a renewal keeps the key"


def test_requests_that_are_not_in_order(tmp_path: Path) -> None:
    make_authority(tmp_path, "bank", 30)
    for who, why in (
        (Identity("bank", "west"), r"the job names no client 'west' of silo 'bank'; there is north, south"),
        (Identity("insurer", "north"), r"it names client 'north' of silo 'insurer', and this is the CA of silo 'bank'"),
    ):
        with pytest.raises(DeploymentError, match=why):
            sign_request(tmp_path, "bank", make_request(tmp_path / "x", who), ("north", "south"), 30)
    (tmp_path / "bad.csr").write_text("nothing")
    with pytest.raises(DeploymentError, match="bad.csr: damaged, not a signing request"):
        sign_request(tmp_path, "bank", tmp_path / "bad.csr", ("north",), 30)
    with pytest.raises(DeploymentError, match="cannot be read"):
        sign_request(tmp_path, "bank", tmp_path / "none.csr", ("north",), 30)


async def attends(hub: BankHub, trust: Trust, seconds: float) -> list[str]:
    """Let a client attend for a while; return what it says."""
    said: list[str] = []
    session = Session(JOB, NORTH, ClientSite(hub=hub.address), said.append)
    process = ClientProcess(session, SHARED, GrpcHub(trust, hub.address, "bank"), said.append, 30.0)
    attending = asyncio.ensure_future(process.run())
    await asyncio.sleep(seconds)
    attending.cancel()
    await asyncio.gather(attending, return_exceptions=True)
    return said


def test_a_corporate_pki(tmp_path: Path) -> None:
    world, pki = World(tmp_path), corporate(tmp_path)
    (tmp_path / "bank" / "ca.pem").write_bytes(pki.certificate.read_bytes())
    hub, client = (issue(pki, who, tmp_path / who.stem, 30) for who in (HUB, NORTH))
    check_own(client, pki.certificate, NORTH)

    async def go() -> list[str]:
        bank = BankHub(world, hub)
        async with bank:
            await attends(bank, world.trust(NORTH, client), 1.5)
        return bank.log

    assert "client 'north' connected" in asyncio.run(go())
    # A certificate that a leaf signed counts for nothing.
    leaf = issue(pki, Identity("bank", "south"), tmp_path, 30)
    with pytest.raises(DeploymentError, match="the CA of silo 'bank' has not signed it"):
        check_own(issue(leaf, NORTH, tmp_path / "forged", 30), pki.certificate, NORTH)


def test_a_stream_ends_with_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcd.sites.transport.grpc.LOOK_AGAIN", 0.2)
    monkeypatch.setattr("tdcd.sites.security.tls.TRUSTED", 0.1)
    world = World(tmp_path)
    pair = world.pair(HUB)
    short = issue(Pair.named(tmp_path / "bank", "ca"), NORTH, tmp_path / "short", 3 / 86_400)

    async def go() -> tuple[list[str], list[str]]:
        hub = BankHub(world, pair)
        async with hub:
            said = await attends(hub, world.trust(NORTH, short), 5.0)
        return hub.log, said

    log, said = asyncio.run(go())
    assert "client 'north' connected" in log
    (ended,) = (line for line in log if line.startswith("ended the stream"))
    assert ended.startswith("ended the stream of client 'north' of silo 'bank': the certificate has expired on")
    assert any("has expired" in line and "tdcd certs --renew" in line for line in said)


def test_expiry_is_announced_a_month_ahead(tmp_path: Path) -> None:
    make_authority(tmp_path, "bank", 3650)
    said: list[str] = []

    async def go(days: float) -> None:
        pair = issue(Pair.named(tmp_path, "ca"), NORTH, tmp_path, days)
        trust = Trust(NORTH, pair, {"bank": tmp_path / "ca.pem"})
        warning = asyncio.ensure_future(warn_of_expiry(trust, said.append))
        await asyncio.sleep(0)
        warning.cancel()

    asyncio.run(go(31))
    assert said == []
    asyncio.run(go(29.5))
    assert len(said) == 1
    assert "client-north.pem: expires on " in said[0]
    assert said[0].endswith("in 29 days; renew it: tdcd certs --renew")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = load_job("breast-cancer", {"data.clients": 2, "data.features": {"kind": "contiguous", "silos": 2}})
    Path("job.toml").write_text(tomli_w.dumps(job.as_table()))

    def run(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["certs", "job.toml", "--silo", "silo-1", *options])
        said = f"{result.output}{result.exception or ''}"
        return (2 if isinstance(result.exception, DeploymentError) else result.exit_code), " ".join(said.split())

    assert run()[0] == 0
    tls = 'ca = "certs/silo-1/ca.pem"\ncertificate = "certs/silo-1/hub.pem"\nkey = "certs/silo-1/hub.key"\n'
    Path("hub.toml").write_text(f'listen = "127.0.0.1:7100"\n[tls]\n{tls}')
    code, said = run("--check", "hub.toml")
    assert (code, "They are in order." in said) == (0, True)
    code, said = run("--request", "silo-1-1", "--out", "mine")
    assert code == 0
    assert "mine/client-silo-1-1.csr: to be signed" in said
    code, said = run("--sign", "mine/client-silo-1-1.csr")
    assert code == 0
    Path("certs/silo-1/client-silo-1-1.pem").rename("mine/client-silo-1-1.pem")
    mine = 'ca = "certs/silo-1/ca.pem"\ncertificate = "mine/client-silo-1-1.pem"\nkey = "mine/client-silo-1-1.key"\n'
    Path("client.toml").write_text(f'hub = "127.0.0.1:7100"\n[tls]\n{mine}')
    code, said = run("--check", "client.toml")
    assert (code, "client 'silo-1-1' of silo 'silo-1'" in said) == (0, True)
    Path("mine/client-silo-1-1.key").write_bytes(Path("certs/silo-1/hub.key").read_bytes())
    code, said = run("--check", "client.toml")
    assert code == 2
    assert "it is not the key of" in said


def test_an_expired_certificate_is_shown_as_such(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "bank", 30)
    pair = issue(authority, NORTH, tmp_path, -0.01)
    (tmp_path / "client.toml").write_text(
        f'hub = "h:1"\n[tls]\nca = "{authority.certificate}"\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"\n'
    )
    with pytest.raises(DeploymentError, match=r"client-north.pem: the certificate has expired on .*tdcd certs --renew"):
        check_site(tmp_path / "client.toml", "bank")
    (certificate,) = read_certificates(pair.certificate)
    assert sign(authority, NORTH, certificate.public_key(), 1).issuer == certificate.issuer  # type: ignore[arg-type]
    assert ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def test_a_file_that_is_being_replaced_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcd.sites.security.tls.TRUSTED", 0.0)
    authority = make_authority(tmp_path, "bank", 30)
    shown = issue(authority, NORTH, tmp_path, 30).certificate.read_bytes()
    trust = Trust(HUB, authority, {"bank": authority.certificate})
    assert trust.authenticate(shown) == NORTH
    whole = authority.certificate.read_bytes()
    for content in (b"", whole[:100]):
        authority.certificate.write_bytes(content)
        assert trust.authenticate(shown) == NORTH
    authority.certificate.unlink()
    assert trust.authenticate(shown) == NORTH
    make_authority(tmp_path, "bank", 30)
    with pytest.raises(DeploymentError, match="has not signed it"):
        trust.authenticate(shown)


def renewed(authority: Pair, days: float) -> bytes:
    """A CA of the same name and key, valid for other days."""
    (old,), key = read_certificates(authority.certificate), read_key(authority.key)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=50))
    builder = builder.not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_renewed_ca_counts_wherever_it_stands(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "bank", 30)
    pair, good, old = issue(authority, NORTH, tmp_path, 30), authority.certificate.read_bytes(), renewed(authority, -1)
    for content in (good + old, old + good):
        authority.certificate.write_bytes(content)
        assert check_own(pair, authority.certificate, NORTH)
    authority.certificate.write_bytes(old)
    with pytest.raises(DeploymentError, match="the CA of silo 'bank' has expired"):
        check_own(pair, authority.certificate, NORTH)


def test_a_check_looks_at_the_cas_of_other_silos(tmp_path: Path) -> None:
    bank, insurer = make_authority(tmp_path / "bank", "bank", 30), make_authority(tmp_path / "insurer", "insurer", 30)
    pair = issue(bank, HUB, tmp_path / "bank", 30)
    insurer.certificate.write_bytes(renewed(insurer, -1))
    (tmp_path / "hub.toml").write_text(
        f'listen = "127.0.0.1:7100"\npeers = {{ insurer = "h:1" }}\n[tls]\nca = "{bank.certificate}"\n'
        f'certificate = "{pair.certificate}"\nkey = "{pair.key}"\npeers = {{ insurer = "{insurer.certificate}" }}\n'
    )
    with pytest.raises(DeploymentError, match="insurer/ca.pem: the CA of silo 'insurer' has expired"):
        check_site(tmp_path / "hub.toml", "bank")
