"""A whole federation on one machine, every hub and client a process of its own: to try a deployment, and to test it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from tdcd.errors import LEARNED_NOTHING, DeploymentError
from tdcd.files import write_atomically
from tdcd.jobs.schema import ClientFile, Job, SetJob, TableJob
from tdcd.sites.participants import check_job, check_serves, read_set, silos_of
from tdcd.sites.security.identity import Identity, certify

DAYS = 365
"""That certificates for one machine are valid."""


@dataclass(frozen=True)
class LocalSite:
    """One process of the federation."""

    identity: Identity
    file: Path
    """Its site file."""
    job: Path
    log: Path
    insecure: bool = False
    serve: bool = False

    def command(self) -> list[str]:
        """Return how it is started."""
        who, role = self.identity, ["client", "--client", self.identity.client or ""]
        role = role if who.client else ["hub"]
        parts = [sys.executable, "-P", "-m", "tdcd", role[0], str(self.job), "--silo", who.silo, *role[1:]]
        parts += ["--insecure"] * self.insecure + ["--serve"] * self.serve
        return [*parts, "--site", str(self.file)]

    def start(self, *, quiet: bool = False) -> "subprocess.Popen[bytes]":
        """Start it; its log goes to a file, and to standard error unless that is not wanted."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with ExitStack() as stack:
            stream = stack.enter_context(self.log.open("ab")) if quiet else None
            return subprocess.Popen(self.command(), stderr=stream, env=environment)  # noqa: S603


@dataclass
class LocalFederation:
    """The files of a federation on one machine."""

    folder: Path
    sites: Mapping[Identity, LocalSite]
    runs: Mapping[str, Path]
    """Each hub's run directory."""
    processes: dict[Identity, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @classmethod
    def laid_out(
        cls,
        job: Job,
        folder: Path,
        *,
        insecure: bool = False,
        hosts: Mapping[str, str] | None = None,
        serve: bool = False,
        new: Path | None = None,
    ) -> "LocalFederation":
        """Write the job, certificates and site files; what is there already is kept, so that a run can go on.

        Args:
            job: What to train.
            folder: Where the files go.
            insecure: Do without certificates.
            hosts: Where each silo's hub answers; default: on 127.0.0.1.
            serve: Stay for predictions when the training is finished.
            new: Where the clients' tables for predictions are, as SILO/CLIENT.csv or .parquet; default: those that
                they train on.

        Raises:
            TdcdError: the job cannot be deployed, or the folder holds another one.
        """
        check_job(job)
        if serve:
            check_serves(job)
        names = silos_of(job, read_set(job))
        everybody = [Identity(silo, client) for silo, clients in names.items() for client in (None, *clients)]
        data = {identity: _data(job, identity) for identity in everybody}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeploymentError(f"{folder}: cannot be made: {error.strerror}; choose another with --out") from error
        shared = folder / "job.toml"
        text = tomli_w.dumps(_without_paths(job))
        if shared.exists() and shared.read_text(encoding="utf-8") != text:
            raise DeploymentError(f"{folder} holds another deployment; choose another folder with --out, or remove it")
        write_atomically(shared, text)
        ports = _free_ports(len(names))
        hubs = {name: f"{(hosts or {}).get(name, '127.0.0.1')}:{port}" for name, port in zip(names, ports, strict=True)}
        sites, runs = {}, {}
        for silo, clients in names.items():
            place = folder / silo
            place.mkdir(exist_ok=True)
            if not insecure:
                certify(place / "certs", silo, clients, days=DAYS, ca_days=DAYS)
            runs[silo] = place / "run"
            for identity in (Identity(silo), *(Identity(silo, client) for client in clients)):
                table: dict[str, Any]
                if identity.client is None:
                    others = {name: address for name, address in hubs.items() if name != silo}
                    table = {"listen": hubs[silo], "peers": others, "run": "run"}
                    if job.deployment.assemble not in (None, silo):  # whoever deploys it here agrees
                        table["send_model"] = True
                else:
                    table = {"hub": hubs[silo], "workers": 1, "compute": job.compute, "device": job.device}
                if data[identity]:
                    table["data"] = data[identity]
                if identity.client is not None and new is not None:
                    table["serve"] = _new_table(new, identity)
                if identity.client is not None and (written := _format(job, identity)):
                    table["table"] = written
                if places := sorted({path.split(":")[0] for path in job.imports(silo).values()}):
                    folders = {folder for place in places for folder in _folder_of(place)}
                    table |= {"imports": places, "import_from": sorted(folders)}
                if not insecure:
                    table["tls"] = {
                        "ca": "certs/ca.pem",
                        "certificate": f"certs/{identity.stem}.pem",
                        "key": f"certs/{identity.stem}.key",
                    }
                    if identity.client is None:
                        cas = {name: f"../{name}/certs/ca.pem" for name in names if name != silo}
                        table["tls"]["peers"] = cas
                file = place / f"{identity.stem}.toml"
                write_atomically(file, tomli_w.dumps(table))
                log = place / f"{identity.stem}.log"
                sites[identity] = LocalSite(identity, file, shared, log, insecure, serve)
        return cls(folder, sites, runs)

    def start(self, *, quiet: bool = False) -> None:
        """Start all processes, hubs first."""
        for identity in sorted(self.sites, key=lambda who: (who.client is not None, who.silo, who.client or "")):
            self.processes[identity] = self.sites[identity].start(quiet=quiet)

    def wait(self, log: Callable[[str], None], seconds: float | None = None) -> int:
        """Wait until all hubs have ended; return the worst exit code. If one fails, all are stopped."""
        end = time.monotonic() + seconds if seconds is not None else None
        hubs = {who: process for who, process in self.processes.items() if who.client is None}
        try:
            while any(process.poll() is None for process in hubs.values()):
                failed = [who for who, process in hubs.items() if process.poll() not in (None, 0, LEARNED_NOTHING)]
                for who in failed:
                    log(f"{who} has stopped with exit code {hubs[who].returncode}")
                if failed:
                    return max(abs(int(hubs[who].returncode)) for who in failed)
                for silo in {who.silo for who in hubs}:
                    codes = [
                        process.poll() for who, process in self.processes.items() if who.client and who.silo == silo
                    ]
                    if codes and all(codes):
                        log(f"all clients of silo '{silo}' have stopped with an error; the hub would wait for them")
                        return max(abs(int(code)) for code in codes if code)
                if end is not None and time.monotonic() > end:
                    raise DeploymentError(f"the deployment has not ended after {seconds:g} seconds")
                time.sleep(0.1)
            return max(abs(int(process.returncode)) for process in hubs.values())
        finally:
            self.stop()

    def kill(self) -> None:
        """End what still runs, at once."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Stop what still runs."""
        running = [process for process in self.processes.values() if process.poll() is None]
        serving = any(site.serve for site in self.sites.values())  # these do not end by themselves
        deadline = time.monotonic() + (0.5 if serving else 5)
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _without_paths(job: Job) -> dict[str, Any]:
    """Return a job as organisations would share it: names of clients, no files."""
    table = job.as_table()
    table["baselines"] = []
    table["data"].pop("alignment", None)
    table["data"].pop("directory", None)
    for silo in table.get("silos", {}).values():
        if isinstance(silo.get("clients"), Mapping):
            silo["clients"] = list(silo["clients"])
    return table


def _data(job: Job, identity: Identity) -> str | None:
    """Return where a site's data is on this machine."""
    if isinstance(job, SetJob):
        return job.data.directory
    if identity.client is None:
        return None
    own = _client_file(job, identity)
    if own is None:
        raise DeploymentError(f"silos.{identity.silo}.clients: to run all of it here, name every client's file")
    return own.file


def _new_table(folder: Path, identity: Identity) -> str:
    """Return where a client's table for predictions is on this machine."""
    stem = folder / identity.silo / (identity.client or "")
    files = [stem.with_name(stem.name + suffix) for suffix in (".csv", ".parquet")]
    there = next((file for file in files if file.exists()), None)
    if there is None:
        raise DeploymentError(f"{files[0]}: no such file, nor .parquet: {identity} has no table for predictions")
    return str(there.resolve())


def _format(job: Job, identity: Identity) -> dict[str, Any]:
    """Return how a client's table is written, as far as the job says it of this client."""
    own = _client_file(job, identity)
    return {} if own is None else {key: getattr(own, key) for key in sorted(own.model_fields_set - {"file"})}


def _client_file(job: Job, identity: Identity) -> ClientFile | None:
    return job.silos[identity.silo].files.get(identity.client or "") if isinstance(job, TableJob) else None


def _folder_of(module: str) -> list[str]:
    """Return the folder that a module is imported from here, if it can be found."""
    try:
        found = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None or not found.origin:
        return []
    return [str(Path(found.origin).parents[1 if found.submodule_search_locations else 0])]


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
