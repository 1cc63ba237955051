"""A hub from its files to the end of the training."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tdcd.core.modules import module_digest
from tdcd.core.network import Blocks
from tdcd.data.arrays import fingerprint
from tdcd.data.holdout import Part
from tdcd.engines.base import RewoundError
from tdcd.errors import AbsentError, RunError, TdcdError
from tdcd.jobs.schema import Job
from tdcd.malloc import give_back_memory
from tdcd.runs.layout import FEDERATED, RESULT, holds_run
from tdcd.runs.records import FederationRecord, Finding, Outcome, read_record
from tdcd.runs.store import RunDirectory, load_blocks
from tdcd.sites.event_loop import event_loop
from tdcd.sites.hub.clients import Clients
from tdcd.sites.hub.context import HubContext
from tdcd.sites.hub.engine import HubEngine
from tdcd.sites.hub.hub import ALONE, Hub
from tdcd.sites.hub.link import Link
from tdcd.sites.hub.model_parts import announcement, check_consent
from tdcd.sites.hub.peers import Peer, Peers
from tdcd.sites.hub.reception import Reception
from tdcd.sites.hub.serve import serve_run
from tdcd.sites.logs import Log
from tdcd.sites.messages.calls import HubStatus
from tdcd.sites.messages.types import ABSENT, FINISHED, STOPPED
from tdcd.sites.participants import (
    allow_imports,
    at_site,
    check_job,
    check_peers,
    check_serves,
    check_silo,
    read_set,
    silos_of,
    trust_of,
)
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import warn_of_expiry
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import HubSite
from tdcd.sites.transport.base import RemoteHub
from tdcd.sites.transport.grpc import GrpcHub, GrpcServer
from tdcd.training.callbacks import Callback
from tdcd.training.loop import Loop
from tdcd.training.train import describe_silo

PROBE = 1 << 20
"""Bytes that must fit on the disk of a run."""
SPARE, FILES = 1000, 200
"""Connections beyond those of the parties, and files that a hub opens otherwise."""

Watch = Callable[[Callable[[], HubStatus]], None]
"""Gets a way to look at the hub while it runs."""


def build_hub(job: Job, silo: str, clients: tuple[str, ...], others: dict[str, tuple[str, RemoteHub]],
              directory: Path, log: Log) -> tuple[Hub, Reception]:  # fmt: skip
    """Put a hub together.

    Args:
        job: What to train.
        silo: Whose hub it is.
        clients: The names of its clients.
        others: The address of every other hub, and how it is reached, by silo.
        directory: The run directory.
        log: Takes a line for the log.
    """
    shared = SharedJob.of(job)
    peers = {name: Peer(name, address, remote) for name, (address, remote) in others.items()}
    links = Peers(silo, shared, peers, job.deployment.hub_deadline, log)

    async def welcome(link: Link) -> None:
        await hub.welcome(link)

    own = Clients(silo, clients, shared.fingerprint, job.deployment.client_deadline, log, welcome)
    hub = Hub(HubContext(job, silo, directory, own, links, log))
    return hub, Reception(silo, shared, own, links, hub.snapshot)


def run_hub(
    job: Job,
    silo: str,
    site: HubSite,
    *,
    insecure: bool = False,
    serve: bool = False,
    callbacks: Sequence[Callback] = (),
    log: Log = print,
    watch: Watch = lambda snapshot: None,  # noqa: ARG005
) -> tuple[Finding, ...]:
    """Run a silo's hub to the end of the training, or go on with it; then serve predictions, if that is wanted.

    Returns what the training shows about itself, as far as this hub knows how good the model is.

    Args:
        job: What to train, as all sites share it.
        silo: Whose hub this is.
        site: Addresses, certificates, directories.
        insecure: Do without TLS, on this machine only.
        serve: Keep the model ready for predictions, once the training is finished.
        callbacks: Are called after every round and evaluation; they cannot stop what all hubs must end together.
        log: Takes a line of text for the log.
        watch: Gets a way to look at the hub while it runs.

    Raises:
        TdcdError: it cannot be started, or had to stop; the message says why.
        KeyboardInterrupt: passed on, after a checkpoint was written.
    """
    give_back_memory()
    check_job(job)
    if serve:
        check_serves(job)
    job = at_site(job, site.data)
    data = read_set(job)
    names = silos_of(job, data)
    check_silo(silo, names)
    if job.deployment.assemble is not None:
        check_silo(job.deployment.assemble, names)
    check_consent(job, silo, site)
    allow_imports(job, silo, site)
    trust = trust_of(site, Identity(silo), insecure=insecure)
    others = [name for name in names if name != silo]
    check_peers(site, others, insecure=insecure)
    directory = Path(site.run or f"runs/{job.name}-{silo}")
    check_writable(directory)
    connections = allow_connections(len(names[silo]) + len(others))

    background: list[asyncio.Task[None]] = []

    with event_loop() as run:

        async def start() -> tuple[Hub, GrpcServer]:
            dialled: dict[str, tuple[str, RemoteHub]] = {
                name: (site.peers[name], GrpcHub(trust, site.peers[name], name)) for name in others
            }
            hub, reception = build_hub(job, silo, names[silo], dialled, directory, log)
            server = GrpcServer(reception, trust, log, connections)
            await server.start(site.listen)
            background.append(asyncio.ensure_future(warn_of_expiry(trust, log)))
            return hub, server

        hub, server = run(start())
        log(f"the hub of silo '{silo}' answers on {site.listen}, on {connections:,} connections at most")
        if text := announcement(job, silo):
            log(text)
        try:
            watch(lambda: run(server.service.report(None)))
            status, why = STOPPED, ""
            try:
                if not _finished(job, directory):
                    run(hub.setup.prepare(data))
                    del data
                    _train(job, hub, HubEngine(hub, run), directory, callbacks)
                    _conclude(job, hub, run, directory)
                elif not serve:
                    log(f"the training has ended before, in {directory}; for more, raise training.rounds at all sites")
                status = FINISHED
            except TdcdError as error:
                hub.context.progress.last_error = str(error)
                if isinstance(error, AbsentError):
                    status, why = ABSENT, str(error)
                raise
            finally:
                if not serve or status != FINISHED:
                    run(hub.farewell(status, why))
            if serve:
                if not _finished(job, directory):
                    raise AbsentError(f"{ALONE}. Only what all hubs have finished is served")
                with RunDirectory.open(directory, job.as_table(), resume=True, is_hub=True):
                    serve_run(hub, server, run)
        finally:
            run(server.stop())
    return read_record(directory / RESULT, Outcome).findings


def check_writable(directory: Path) -> None:
    """Check that a run can be written, before anybody is gathered for it.

    Raises:
        RunError: it cannot.
    """
    probe = directory / ".probe"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(
            f"{directory}: a run cannot be written there ({error.strerror}); make room, or name another directory: "
            "run = … in the site file"
        ) from error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def allow_connections(parties: int) -> int:
    """Return how many connections a hub takes at a time, and let it have as many files open, where it may.

    Every client and hub may come again before its last connection is given up, and strangers must not crowd them out.
    """
    wanted = 4 * parties + SPARE
    try:
        import resource
    except ImportError:  # not POSIX
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < needed:
        more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    return min(wanted, max(soft - FILES, soft // 2))


def _train(job: Job, hub: Hub, engine: HubEngine, directory: Path, callbacks: Sequence[Callback]) -> None:
    """Run the loop over rounds for one hub."""
    silo, prepared = hub.context.silo, hub.prepared
    networks = {silo: prepared.model.network} if prepared.model.network else {}
    loop = Loop(
        engine,
        job.training,
        networks,
        callbacks,
        lambda: {silo: hub.setup.first_block()},
        federation=_description(job, hub),
    )
    with ExitStack() as stack:
        loop.directory = stack.enter_context(RunDirectory.open(directory, job.as_table(), resume=True, is_hub=True))
        loop.inputs = _inputs(hub, loop.state.weights)
        loop.begin()
        if loop.alone:
            hub.context.log(f"{ALONE}. The others did not come in time")
        loop.directory.save_rosters({silo: prepared.plan.roster}, [])
        loop.run()


def _conclude(job: Job, hub: Hub, run: Callable[[Coroutine[Any, Any, None]], None], directory: Path) -> None:
    """Do what the job wants all hubs to do together when the training has ended."""
    deployment = job.deployment
    if not (deployment.assemble or deployment.importance) or not _finished(job, directory):
        return
    if deployment.assemble:
        outcome = read_record(directory / RESULT, Outcome)
        try:
            run(hub.parts.gather(load_blocks(directory)[hub.context.silo], outcome.selected, finished=True))
        except RewoundError:
            hub.context.log("no model was made, as a hub was started again; tdcd assemble makes one of the runs")
    if deployment.importance:
        run(hub.measure_importance())


def _finished(job: Job, directory: Path) -> bool:
    """Tell whether the training has ended before: then no other hub is needed."""
    if not holds_run(directory):
        return False
    with RunDirectory.open(directory, job.as_table(), resume=True, is_hub=True) as files:
        return files.finished(job.training.rounds)


def _inputs(hub: Hub, first: Blocks) -> dict[str, str]:
    return {
        "common IDs": hub.prepared.plan.fingerprint,
        "networks": module_digest(hub.prepared.model.network.module) if hub.prepared.model.network else "none",
        "first weights": fingerprint(first[hub.context.silo]),
    }


def _description(job: Job, hub: Hub) -> FederationRecord:
    """Describe who takes part, as far as this hub knows."""
    counts = hub.prepared.plan.counts
    silo = describe_silo(
        hub.context.silo,
        hub.prepared.plan.roster,
        hub.prepared.model.network,
        job.training,
        row_shape=hub.prepared.model.shape or (),
        row_type=job.training.dtype,
        model=job.model_of(hub.context.silo),
        compute="at its clients' sites",
        preparation=hub.setup.preparation,
    )
    row, message = hub.prepared.row_size
    return FederationRecord(
        samples=counts[Part.TRAIN],
        validation_samples=counts.get(Part.VALIDATION, 0),
        test_samples=counts.get(Part.TEST, 0),
        loss=job.training.loss_kind,
        classes=hub.prepared.plan.classes,
        notes=tuple(f"{name} has no row of a common ID and takes no part" for name in hub.prepared.plan.idle),
        embedding=hub.prepared.model.width,
        embedding_bytes=row,
        message_bytes=message,
        silos=(silo,),
        variant=FEDERATED,
        peers=tuple(sorted(hub.context.peers.peers)),
    )
