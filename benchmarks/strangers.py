"""Connections, certificates and calls that a hub must refuse, tried on a hub that really runs."""

import socket
import ssl
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import torch

from measures import distance_from_simulation
from tdcd.jobs.load import load_job
from tdcd.jobs.schema import Job
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.messages.frames import PROTOCOL, frames
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.types import Embeddings, Join, Leave
from tdcd.sites.security.identity import Identity, Pair, host_name, issue, make_authority
from tdcd.sites.shared_job import VERSION, SharedJob
from tdcd.sites.transport.wire import tdcd_pb2 as wire
from tdcd.sites.transport.wire.frames import to_wire
from tdcd.sites.transport.wire.tdcd_pb2_grpc import HubStub

SETTINGS = {
    "data.clients": 2,
    "data.features": {"kind": "contiguous", "silos": 2},
    "baselines": [],
    "training.rounds": 30,
    "training.batch_size": 64,
    "training.evaluate_every": 10,
}
ATTACKED, OTHER = "silo-1", "silo-2"
CLIENT, PEER = Identity(ATTACKED, "silo-1-1"), Identity(OTHER)
Case = tuple[str, Callable[[], Any]]
REFUSED, HARMLESS = "refused", "harmless"


@dataclass
class Site:
    """A hub that runs, and all that a stranger may have in hand."""

    job: Job
    folder: Path
    federation: LocalFederation
    address: str

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator["Site"]:
        """Start a hub."""
        job = load_job("breast-cancer", SETTINGS)
        federation = LocalFederation.laid_out(job, folder / "sites")
        site = federation.sites[Identity(ATTACKED)]
        federation.processes[Identity(ATTACKED)] = site.start(quiet=True)
        address = str(tomllib.loads(site.file.read_text())["listen"])
        for name in (ATTACKED, "stranger"):  # of the same name, made by somebody else
            make_authority(folder / "false" / name, name, 30)
        found = cls(job, folder, federation, address)
        try:
            grpc.channel_ready_future(found.channel(found.own(CLIENT))).result(60)
            yield found
        finally:
            federation.kill()

    @property
    def alive(self) -> bool:
        """Whether the hub still runs."""
        return self.federation.processes[Identity(ATTACKED)].poll() is None

    @property
    def log(self) -> str:
        """What the hub has said so far."""
        return self.federation.sites[Identity(ATTACKED)].log.read_text()

    def own(self, who: Identity) -> Pair:
        """Return the files that somebody was given."""
        return Pair.named(self.folder / "sites" / who.silo / "certs", who.stem)

    def made(self, who: Identity, signer: Path, days: float = 30.0) -> Pair:
        """Make a certificate, by whatever CA."""
        place = self.folder / "made" / str(len(list((self.folder / "made").glob("*"))))
        place.mkdir(parents=True)
        return issue(Pair.named(signer, "ca"), who, place, days)

    def authority(self, silo: str) -> Path:
        """Return where a silo's CA lies."""
        return self.folder / "sites" / silo / "certs"

    def channel(self, pair: Pair | None, trusted: Path | None = None) -> grpc.Channel:
        """Dial the hub as somebody, or as nobody."""
        roots = ((trusted or self.authority(ATTACKED)) / "ca.pem").read_bytes()
        shown = (pair.key.read_bytes(), pair.certificate.read_bytes()) if pair else (None, None)
        credentials = grpc.ssl_channel_credentials(roots, *shown)
        options = (("grpc.ssl_target_name_override", host_name(ATTACKED)), ("grpc.max_send_message_length", -1))
        return grpc.secure_channel(self.address, credentials, options)

    def trains(self) -> int:
        """Start everybody else; return 0 if all ends as in a simulation."""
        for who, site in self.federation.sites.items():
            if who not in self.federation.processes:
                self.federation.processes[who] = site.start(quiet=True)
        code = self.federation.wait(print, seconds=120)
        apart = distance_from_simulation(self.federation, self.job)
        print(f"the training ends with {code} all the same; weights differ from the simulation's by {apart:.1e}")
        return int(code != 0 or apart > 0)


def strangers(site: Site) -> Iterator[tuple[str, str, str]]:
    """Try all cases; yield what each is, how it ended, and why."""
    for name, case in _connections(site):
        yield (name, *_judge(site, case))
    for name, case in _certificates(site):
        yield (name, *_judge(site, case))
    for name, case in _calls(site):
        yield (name, *_judge(site, case))


def _judge(site: Site, case: Callable[[], Any]) -> tuple[str, str]:
    how, reason = HARMLESS, ""
    try:
        if (result := case()) is not None:
            how = f"answered: {result!r:.80}"
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or ""
        foreseen = code is not grpc.StatusCode.UNKNOWN or "Error parsing message" in details  # gRPC's own words
        how = REFUSED if foreseen else "an unforeseen error"
        reason = f"{code.name}: {details}"
    except OSError as error:
        how, reason = REFUSED, f"{type(error).__name__}: {error}"
    if not site.alive:
        return "the hub has ended", reason
    if "Traceback" in site.log:
        site.federation.sites[Identity(ATTACKED)].log.write_text("")
        return "a traceback in the hub's log", reason
    return how, reason


def _connections(site: Site) -> Iterator[Case]:
    host, _, port = site.address.rpartition(":")

    def say(*texts: bytes, wait: bool = False) -> None:
        with socket.create_connection((host, int(port)), timeout=15) as line:
            for text in texts:
                line.sendall(text)
            if wait:
                line.shutdown(socket.SHUT_WR)
                while line.recv(4096):
                    pass

    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
    yield "a bare connection", say
    yield "a byte", lambda: say(b"\0")
    yield "a megabyte of zeros", lambda: say(bytes(1 << 20))
    yield "plain HTTP", lambda: say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", wait=True)
    yield "HTTP/2 without TLS", lambda: say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), wait=True)
    yield "half a TLS greeting", lambda: say(hello[:20], wait=True)
    yield "a TLS greeting that promises more", lambda: say(hello, wait=True)
    yield "a TLS alert", lambda: say(b"\x15\x03\x03\x00\x02\x02\x28", wait=True)
    yield "a TLS record of the largest size", lambda: say(b"\x16\x03\x03\xff\xff" + bytes(65535), wait=True)
    yield "SSH", lambda: say(b"SSH-2.0-OpenSSH_9.6\r\n", wait=True)

    def shake(version: ssl.TLSVersion | None, alpn: list[str], after: bytes) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(alpn)
        if version:
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.maximum_version = version
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
        pair = site.own(CLIENT)
        context.load_cert_chain(pair.certificate, pair.key)
        with (
            socket.create_connection((host, int(port)), timeout=15) as line,
            context.wrap_socket(line, server_hostname=host_name(ATTACKED)) as safe,
        ):
            safe.sendall(after)
            if not safe.recv(4096):
                raise ConnectionError("the hub closed the connection")

    yield "TLS 1.0", lambda: shake(ssl.TLSVersion.TLSv1, ["h2"], b"x")
    yield "TLS 1.1", lambda: shake(ssl.TLSVersion.TLSv1_1, ["h2"], b"x")
    yield "TLS, then another protocol", lambda: shake(None, ["http/1.1"], b"GET / HTTP/1.1\r\n\r\n")
    yield "TLS, then garbage", lambda: shake(None, ["h2"], bytes(range(256)) * 64)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "HTTP/2 frames of a kind that is not", lambda: shake(None, ["h2"], preface + b"\0\0\4\xfe\0\0\0\0\1abcd" * 99)
    yield (
        "an HTTP/2 frame too large",
        lambda: shake(None, ["h2"], preface + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(1 << 16)),
    )
    yield "10,000 HTTP/2 resets", lambda: shake(None, ["h2"], preface + b"\0\0\4\3\0\0\0\0\1\0\0\0\x08" * 10_000)
    yield "10,000 HTTP/2 pings", lambda: shake(None, ["h2"], preface + (b"\0\0\x08\6\0\0\0\0\0" + bytes(8)) * 10_000)


def _certificates(site: Site) -> Iterator[Case]:
    false, mine, others = site.folder / "false", site.authority(ATTACKED), site.authority(OTHER)

    def status(pair: Pair | None, trusted: Path | None = None) -> Callable[[], Any]:
        def ask() -> Any:
            with site.channel(pair, trusted) as channel:
                return HubStub(channel).Status(wire.StatusRequest(), timeout=10)

        return ask

    yield "no certificate", status(None)
    yield "a certificate of a CA of the same name", status(site.made(CLIENT, false / ATTACKED))
    yield "a certificate of a stranger's CA", status(site.made(CLIENT, false / "stranger"))
    yield "an expired certificate", status(site.made(CLIENT, mine, -0.01))
    yield "a client of this silo, by the other silo's CA", status(site.made(CLIENT, others))
    yield "this hub's own name, by the other silo's CA", status(site.made(Identity(ATTACKED), others))
    yield "the other silo's hub, by this silo's CA", status(site.made(PEER, mine))
    yield "the other silo's hub asks for the status", status(site.own(PEER))
    yield "a silo that is in no job, by this silo's CA", status(site.made(Identity("stranger"), mine))
    yield "a CA's own certificate", status(Pair.named(mine, "ca"))
    own, other = site.own(CLIENT), site.own(Identity(ATTACKED, "silo-1-2"))
    yield "somebody else's key", lambda: status(Pair(own.certificate, other.key))()
    yield "a hub of another CA is dialled", status(own, false / "stranger")


def _calls(site: Site) -> Iterator[Case]:
    shared = SharedJob.of(load_job(site.federation.folder / "job.toml"))
    client, peer = site.own(CLIENT), site.own(PEER)
    stranger = site.made(Identity(ATTACKED, "silo-1-9"), site.authority(ATTACKED))

    def join(**changes: Any) -> list[wire.Frame]:
        fields: dict[str, Any] = {"protocol": PROTOCOL, "version": VERSION, "job": shared.text}
        fields |= {"silo": ATTACKED, "client": "silo-1-1", "serves": False}
        return [to_wire(frame) for frame in frames(pack(Join(**(fields | changes))))]

    def attend(pair: Pair, sent: list[wire.Frame]) -> Callable[[], Any]:
        def ask() -> Any:
            with site.channel(pair) as channel:
                for _ in HubStub(channel).Attend(iter(sent), timeout=15):
                    return None  # it is asked something, as an honest client is
            return None

        return ask

    def deliver(pair: Pair, sent: list[wire.Frame], silo: str = OTHER) -> Callable[[], Any]:
        def ask() -> Any:
            with site.channel(pair) as channel:
                receipt = HubStub(channel).Deliver(iter(sent), timeout=15, metadata=(("silo", silo),))
                return None if receipt.refused else "taken"

        return ask

    def meet(pair: Pair, **changes: Any) -> Callable[[], Any]:
        fields: dict[str, Any] = {"protocol": PROTOCOL, "version": VERSION, "silo": OTHER, "job": shared.text}
        fields |= {"incarnation": "x", "epoch": 0, "topic": "start", "brought": "{}"}

        def ask() -> Any:
            with site.channel(pair) as channel:
                return HubStub(channel).Meet(wire.Hello(**(fields | changes)), timeout=5)

        return ask

    leave = [to_wire(frame) for frame in frames(pack(Leave("x", "nothing")))]
    rows = [to_wire(frame) for frame in frames(pack(Embeddings(torch.zeros(3, 1))))]
    yield "a client that the job does not name", attend(stranger, join(client="silo-1-9"))
    yield "a client that says it is another, and is itself", attend(client, join(client="silo-1-2"))
    yield "a hub that comes as a client", attend(site.own(Identity(ATTACKED)), join())
    yield "another silo's hub that comes as a client", attend(peer, join(silo=OTHER))
    yield "another protocol", attend(client, join(protocol=99))
    yield "another version", attend(client, join(version="99.0.0"))
    yield "another job", attend(client, join(job="{}"))
    yield "a job that is not JSON", attend(client, join(job="{" * 5000))
    yield "a reply before anything was asked", attend(client, rows)
    yield "a stream without a message", attend(client, [])
    yield "an empty frame", attend(client, [wire.Frame()])
    yield "a frame of 5 MB", attend(client, [wire.Frame(chunk=bytes(5 << 20))])
    yield (
        "a tensor of 2^60 numbers",
        attend(
            client,
            [
                wire.Frame(
                    header=wire.Header(
                        kind="join", tensors=[wire.TensorHeader(name="x", dtype="int8", shape=[1 << 60])]
                    )
                )
            ],
        ),
    )
    many = [wire.TensorHeader(name=str(number), dtype="int8", shape=[0]) for number in range(90_000)]
    yield "90,000 tensors", attend(client, [wire.Frame(header=wire.Header(kind="join", tensors=many))])
    yield "a client that brings a hub's message", deliver(client, leave)
    yield "a client that comes to a meeting", meet(client)
    yield "a hub that speaks for another silo", deliver(peer, leave, ATTACKED)
    yield "a hub that speaks for a silo that is not", deliver(peer, leave, "silo-9")
    yield "a hub's message of another job", deliver(peer, leave)
    yield "a client's message from a hub", deliver(peer, rows)
    yield "no message at all", deliver(peer, [])
    yield "a meeting with another protocol", meet(peer, protocol=99)
    yield "a meeting with another version", meet(peer, version="0.0.0")
    yield "a meeting about another job", meet(peer, job="{}")
    yield "a meeting of epoch 2^64 - 1", meet(peer, epoch=2**64 - 1)
    yield "a meeting with what is not JSON", meet(peer, brought="{'a'")
    yield "a meeting with deep JSON", meet(peer, brought="[" * 100_000)
    yield "a meeting for another silo", meet(peer, silo=ATTACKED)

    def call(method: str, metadata: tuple[tuple[str, str], ...] = ()) -> Callable[[], Any]:
        def ask() -> Any:
            with site.channel(client) as channel:
                ask_once: Any = channel.unary_unary(method)
                return ask_once(b"\xff" * 50, timeout=10, metadata=metadata)

        return ask

    def stream(method: str) -> Callable[[], Any]:
        def ask() -> Any:
            shown = client if method.endswith("Attend") else peer
            with site.channel(shown) as channel:
                sent = iter([b"\xff" * 50])
                talk: Any = channel.stream_stream(method)
                for _ in talk(sent, timeout=10, metadata=(("silo", OTHER),)):
                    return "taken"
            return None

        return ask

    yield "a method that is not", call("/tdcd.v1.Hub/Exec")
    yield "a service that is not", call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    yield "bytes that are no message", call("/tdcd.v1.Hub/Meet")
    for kind in ("Attend", "Deliver"):
        yield f"bytes that are no frame, to {kind}", stream(f"/tdcd.v1.Hub/{kind}")
    yield "metadata of 1 MB", call("/tdcd.v1.Hub/Status", tuple((f"k{n}", "x" * 1000) for n in range(1000)))

    def crowd() -> None:
        with site.channel(client) as channel:
            stub = HubStub(channel)
            calls = [stub.Attend(iter([]), timeout=10) for _ in range(500)]
            for one in calls:
                one.cancel()

    yield "500 streams at once", crowd
