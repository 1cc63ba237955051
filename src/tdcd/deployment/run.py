"""A hub or a client from its files to the end of the training."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tdcd.compute import cores
from tdcd.core.modules import module_digest
from tdcd.core.network import Blocks
from tdcd.data.arrays import fingerprint
from tdcd.data.holdout import Part
from tdcd.deployment.background import event_loop
from tdcd.deployment.client import ClientProcess
from tdcd.deployment.clients import Clients, Link
from tdcd.deployment.hub import ALONE, Hub, HubEngine
from tdcd.deployment.identity import Identity
from tdcd.deployment.party import Party
from tdcd.deployment.peers import Log, Peer, Peers
from tdcd.deployment.server import Server
from tdcd.deployment.shared import SharedJob
from tdcd.deployment.silo import check_labels
from tdcd.deployment.site import ClientSite, HubSite, check_loopback
from tdcd.deployment.tls import Open, Trust
from tdcd.deployment.wire import tdcd_pb2_grpc
from tdcd.errors import DeploymentError, JobError, TdcdError, join_names, nearest
from tdcd.experiments.data import JobData, load_data
from tdcd.experiments.job import Job, TableData
from tdcd.memory import give_back_memory
from tdcd.runs.layout import FEDERATED, holds_run
from tdcd.runs.records import FederationRecord
from tdcd.runs.store import RunDirectory
from tdcd.training.loop import Loop, Observer
from tdcd.training.train import describe_silo


def read_set(job: Job) -> JobData | None:
    """Read the data set of a job; nothing if its clients have tables."""
    return None if isinstance(job.data, TableData) else load_data(job)


def silos_of(job: Job, data: JobData | None) -> dict[str, tuple[str, ...]]:
    """Return the names of every silo's clients, as the job names them, or as its data set is dealt."""
    if data is None:
        result = {}
        for silo, own in job.silos.items():
            if not isinstance(own.clients, dict | list):
                raise JobError(f'silos.{silo}.clients: name them: clients = ["north", "south"]')
            result[silo] = tuple(sorted(own.clients))
        return result
    return {silo: tuple(sorted(roster.clients)) for silo, roster in data.federation.rosters.items()}


def run_hub(
    job: Job,
    silo: str,
    site: HubSite,
    *,
    insecure: bool = False,
    observer: Observer | None = None,
    log: Log = print,
    watch: Callable[[Hub], None] = lambda hub: None,  # noqa: ARG005
) -> None:
    """Run a silo's hub to the end of the training, or go on with it.

    Args:
        job: What to train, as all sites share it.
        silo: Whose hub this is.
        site: Addresses, certificates, directories.
        insecure: Do without TLS, on this machine only.
        observer: Is called after every round and evaluation.
        log: Takes a line of text for the log.
        watch: Is given the hub, to look at it while it runs.

    Raises:
        TdcdError: it cannot be started, or had to stop; the message says why.
        KeyboardInterrupt: passed on, after a checkpoint was written.
    """
    give_back_memory()
    check_labels(job)
    job = _at(job, site.data)
    data = read_set(job)
    names = silos_of(job, data)
    check_silo(silo, names)
    shared, own = SharedJob.of(job), Identity(silo)
    trust = _trust(site, own, insecure=insecure)
    others = [name for name in names if name != silo]
    _check_peers(site, others, insecure=insecure)
    directory = Path(site.run or f"runs/{job.name}-{silo}")
    deadline = job.deployment.hub_deadline

    with event_loop() as run:

        async def started() -> tuple[Hub, Server]:
            peers = {}
            for name in others:
                address = site.peers[name]
                dial = Dial(trust, address, name)
                peers[name] = Peer(name, address, dial(), partial(trust.explain, address, name), dial)
            links = Peers(silo, shared, peers, deadline, log)

            async def welcome(link: Link) -> None:
                await hub.welcome(link)

            clients = Clients(silo, names[silo], shared.fingerprint, job.deployment.client_deadline, log, welcome)
            hub = Hub(job, silo, directory, clients, links, log)
            server = Server(silo, shared, trust, clients, links, hub.status, log)
            await server.start(site.listen)
            return hub, server

        hub, server = run(started())
        log(f"the hub of silo '{silo}' answers on {site.listen}")
        status = "stopped"
        try:
            watch(hub)
            if _finished(job, directory):
                log(f"the training has ended before, in {directory}; for more, raise training.rounds at all sites")
                status = "finished"
                return
            run(hub.prepare(data))
            del data
            _train(job, hub, HubEngine(hub, run), directory, observer or Observer())
            status = "finished"
        except TdcdError as error:
            hub.last_error = str(error)
            raise
        finally:
            run(hub.farewell(status))
            run(server.stop())


@dataclass
class Dial:
    """Dials another hub: once, and again when this site's certificates were renewed."""

    trust: Trust | Open
    address: str
    silo: str
    _stamp: tuple[int, ...] | None = None

    def __call__(self) -> Any:
        """Return a way to call it, if that is new."""
        stamp = self.trust.stamp()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        return tdcd_pb2_grpc.HubStub(self.trust.channel(self.address, self.silo))


def _train(job: Job, hub: Hub, engine: HubEngine, directory: Path, observer: Observer) -> None:
    """Run the loop over rounds for one hub."""
    networks = {hub.silo: hub.model.network} if hub.model.network else {}
    loop = Loop(engine, job.training, networks, observer, lambda: {hub.silo: hub.first_block()})
    with ExitStack() as stack:
        loop.directory = stack.enter_context(
            RunDirectory.open(directory, job.as_table(), resume=True, keep_previous=True)
        )
        loop.inputs = _inputs(hub, loop.state.weights)
        loop.begin(_description(job, hub))
        if loop.alone:
            hub.log(f"{ALONE}. It has waited for the others in vain")
        loop.directory.save_rosters({hub.silo: hub.plan.roster}, [])
        loop.run()


def _finished(job: Job, directory: Path) -> bool:
    """Tell whether the training has ended before: then no other hub is needed."""
    if not holds_run(directory):
        return False
    with RunDirectory.open(directory, job.as_table(), resume=True, keep_previous=True) as files:
        return files.finished(job.training.rounds)


def _inputs(hub: Hub, first: Blocks) -> dict[str, str]:
    return {
        "common IDs": hub.plan.fingerprint,
        "networks": module_digest(hub.model.network.module) if hub.model.network else "none",
        "first weights": fingerprint(first[hub.silo]),
    }


def _description(job: Job, hub: Hub) -> FederationRecord:
    """Describe who takes part, as far as this hub knows."""
    counts = hub.plan.counts
    silo = describe_silo(
        hub.silo,
        hub.plan.roster,
        hub.model.network,
        row_shape=hub.model.shape or (),
        network_description=job.model_of(hub.silo).describe(),
        compute="at its clients' sites",
        preparation=hub.preparation,
    )
    return FederationRecord(
        samples=counts[Part.TRAIN],
        validation_samples=counts.get(Part.VALIDATION, 0),
        test_samples=counts.get(Part.TEST, 0),
        loss=job.training.loss,
        classes=hub.plan.classes,
        notes=tuple(f"{name} has no row of a common ID and takes no part" for name in hub.plan.idle),
        embedding=hub.model.width,
        embedding_bytes=hub.model.width * job.training.dtype.itemsize,
        silos=(silo,),
        variant=FEDERATED,
        peers=tuple(sorted(hub.peers.peers)),
    )


def run_client(job: Job, silo: str, client: str, site: ClientSite, *, insecure: bool = False, log: Log = print) -> None:
    """Run a client until its hub says that the training is finished.

    Raises:
        TdcdError: it cannot be started, is refused, or does not reach its hub.
    """
    check_labels(job)
    job = _at(job, site.data)
    if isinstance(job.data, TableData):
        names = silos_of(job, None)
        check_silo(silo, names)
        if client not in names[silo]:
            raise JobError(f"silo '{silo}' has no client '{client}'{nearest(client, names[silo])}")
    identity = Identity(silo, client)
    trust = _trust(site, identity, insecure=insecure)
    if insecure:
        check_loopback(site.hub)
    site = site.model_copy(update={"workers": site.workers or cores()})
    party = Party(job, identity, site, log)
    party.check()
    process = ClientProcess(party, SharedJob.of(job), trust, log, job.deployment.hub_deadline)
    with event_loop() as run:
        run(process.run())


def _at(job: Job, directory: str | None) -> Job:
    """Return the job with a published data set where this site has it."""
    if directory is None or isinstance(job.data, TableData):
        return job
    return job.model_copy(update={"data": job.data.model_copy(update={"directory": directory})})


def check_silo(silo: str, names: Iterable[str]) -> None:
    """Check that a job has a silo.

    Raises:
        JobError: it has not.
    """
    if silo not in names:
        raise JobError(f"the job has no silo '{silo}'{nearest(silo, names)}")


def _trust(site: HubSite | ClientSite, own: Identity, *, insecure: bool) -> Trust | Open:
    if insecure:
        return Open(own)
    if site.tls is None:
        raise DeploymentError(
            f"{own}: its site file names no certificates ([tls] ca, certificate, key); make them with: tdcd certs. To "
            "try it on one machine without, say --insecure"
        )
    return Trust.of(site.tls, own)


def _check_peers(site: HubSite, others: list[str], *, insecure: bool) -> None:
    for what, known in (("peers", site.peers), ("tls.peers", site.tls.peers if site.tls else {})):
        if what == "tls.peers" and insecure:
            continue
        missing = sorted(set(others) - set(known))
        if missing:
            raise DeploymentError(f"site file: {what}: nothing is said of silo {join_names(missing)}")
        for name in known:
            if name not in others:
                raise DeploymentError(f"site file: {what}: '{name}' is no other silo of the job{nearest(name, others)}")
    if insecure:
        for address in (site.listen, *site.peers.values()):
            check_loopback(address)
