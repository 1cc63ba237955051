"""A client from its files to the end of the training."""

import asyncio
from pathlib import Path

from tdcd.compute import cores
from tdcd.errors import JobError, nearest
from tdcd.jobs.schema import Job, TableJob
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.serving import Server
from tdcd.sites.client.session import Session
from tdcd.sites.event_loop import event_loop
from tdcd.sites.logs import Log
from tdcd.sites.participants import allow_imports, at_site, check_job, check_serves, check_silo, silos_of, trust_of
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import warn_of_expiry
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import ClientSite, check_loopback
from tdcd.sites.transport.grpc import GrpcHub


def run_client(
    job: Job,
    silo: str,
    client: str,
    site: ClientSite,
    *,
    insecure: bool = False,
    serve: bool = False,
    log: Log = print,
) -> None:
    """Run a client until its hub says that the training is finished, or ``serve`` predictions from then on.

    Raises:
        TdcdError: it cannot be started, is refused, or does not reach its hub.
    """
    check_job(job)
    if serve:
        check_serves(job)
    job = at_site(job, site.data)
    if isinstance(job, TableJob):
        names = silos_of(job, None)
        check_silo(silo, names)
        if client not in names[silo]:
            raise JobError(f"silo '{silo}' has no client '{client}'{nearest(client, names[silo])}")
    allow_imports(job, silo, site)
    identity = Identity(silo, client)
    trust = trust_of(site, identity, insecure=insecure)
    if insecure:
        check_loopback(site.hub)
    site = site.model_copy(update={"workers": site.workers or cores()})
    session = Session(job, identity, site, log)
    server = None
    if serve and isinstance(job, TableJob):
        server = Server(job, identity, site, log)
        server.table.check()
    if server is None or (site.data and Path(site.data).exists()):  # rows of a training that is over may be gone
        session.check()
    hub = GrpcHub(trust, site.hub, silo)
    process = ClientProcess(session, SharedJob.of(job), hub, log, job.deployment.hub_deadline, server)

    async def attend() -> None:
        warning = asyncio.ensure_future(warn_of_expiry(trust, log))
        try:
            await process.run()
        finally:
            warning.cancel()

    with event_loop() as run:
        run(attend())
