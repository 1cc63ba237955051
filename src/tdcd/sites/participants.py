"""Who takes part in a job at sites, and what each site knows of it."""

import sys
from collections.abc import Iterable

from tdcd.data.label_encoding import must_name
from tdcd.errors import DeploymentError, JobError, join_names, nearest
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.schema import FunctionJob, Job, TableJob
from tdcd.registry import not_allowed
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import Open, Trust
from tdcd.sites.site_file import ClientSite, HubSite, Site, check_loopback


def read_set(job: Job) -> JobData | None:
    """Read the data set of a job; nothing if its clients have tables."""
    return None if isinstance(job, TableJob) else load_data(job)


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


def at_site(job: Job, directory: str | None) -> Job:
    """Return the job with a published data set where this site has it."""
    if directory is None or isinstance(job, TableJob):
        return job
    return job.model_copy(update={"data": job.data.model_copy(update={"directory": directory})})


def check_job(job: Job) -> None:
    """Check that a job can be run at sites, and declares what cannot be derived from private labels.

    Raises:
        JobError: it does not.
    """
    job.check_found()
    if isinstance(job, FunctionJob):
        raise JobError(
            f"data.source: the function '{job.data.source}' has all silos' rows in one place, so it can be simulated "
            'only; at sites every client has its own file: data.source = "tables"'
        )
    labels = job.labels
    unnamed = isinstance(job, TableJob) and labels.private and not labels.classes
    if unnamed and must_name(job.training.objective.meaning, labels.positive):
        raise JobError(
            "labels.classes: no site sees all private labels; list all classes, as in "
            'labels = { …, classes = ["low", "high"] }'
        )


def check_serves(job: Job) -> TableJob:
    """Check that a job can predict across sites.

    Raises:
        JobError: it cannot.
    """
    if not isinstance(job, TableJob):
        raise JobError(
            f'--serve: the rows of data.source = "{job.data.source}" have no IDs that sites could be asked about; '
            'predictions across sites go with data.source = "tables". Leave out --serve'
        )
    return job


def allow_imports(job: Job, silo: str, site: Site) -> None:
    """Check that a site has allowed the code that the job names by import paths, and let it be found.

    Raises:
        DeploymentError: it has not. The job may come from another organisation, which must not run code here.
    """
    named = job.imports(silo)
    for what, path, module in not_allowed(named, site.imports):
        raise DeploymentError(
            f"the job's {what} is '{path}', which is code that this site has not allowed. If you trust it, name "
            f'its module in the site file: imports = ["{module}"], and where it is: import_from = ["FOLDER"]'
        )
    if named:
        sys.path.extend(folder for folder in site.import_from if folder not in sys.path)


def check_silo(silo: str, names: Iterable[str]) -> None:
    """Check that a job has a silo.

    Raises:
        JobError: it has not.
    """
    if silo not in names:
        raise JobError(f"the job has no silo '{silo}'{nearest(silo, names)}")


def trust_of(site: HubSite | ClientSite, own: Identity, *, insecure: bool) -> Trust | Open:
    """Return whom a site trusts, and what it shows.

    Raises:
        DeploymentError: it names no certificates, or they are not in order.
    """
    if insecure:
        return Open(own)
    if site.tls is None:
        raise DeploymentError(
            f"{own}: its site file names no certificates ([tls] ca, certificate, key); make them with: tdcd certs. To "
            "try it on one machine without, say --insecure"
        )
    return Trust.of(site.tls, own)


def check_peers(site: HubSite, others: list[str], *, insecure: bool) -> None:
    """Check that a hub's site file names every other hub, and nobody else.

    Raises:
        DeploymentError: it does not.
    """
    for what, known in (("peers", site.peers), ("tls.peers", site.tls.peers if site.tls else {})):
        if what == "tls.peers" and insecure:
            continue
        missing = sorted(set(others) - set(known))
        if missing:
            raise DeploymentError(f"site file: {what}: no entry for silo {join_names(missing)}")
        for name in known:
            if name not in others:
                raise DeploymentError(f"site file: {what}: '{name}' is no other silo of the job{nearest(name, others)}")
    if insecure:
        for address in (site.listen, *site.peers.values()):
            check_loopback(address)
