"""Real processes, killed and stopped in every stage of a round, started again, and trained in the end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tdcd.deployment.identity import Identity
from tdcd.deployment.local import LocalFederation, LocalSite
from tdcd.experiments.job import load_job
from tdcd.training.directory import read_history

SETTINGS = {
    "data.clients": 2,
    "data.features": {"kind": "contiguous", "silos": 2},
    "model": {"kind": "linear"},
    "baselines": [],
    "training.rounds": 90,
    "training.batch_size": 64,
    "training.evaluate_every": 3,
    "training.checkpoint_every": 3,
    "deployment.client_deadline": 1.5,
    "deployment.minimum_clients": 2,  # a round goes on without a lost client; the next one waits for it
    "deployment.hub_deadline": 120,
}
CLIENT_STAGES = ("embed", "descend", "score")
HUB_STAGES = ("ask embed", "exchange embeddings", "ask descend", "exchange done", "ask score", "save")


class Stage:
    """A federation whose sites can be stopped where one wants."""

    def __init__(self, folder: Path) -> None:
        job = load_job("breast-cancer", SETTINGS)
        self.federation = LocalFederation.laid_out(job, folder / "deployed")
        self.arms = folder / "arms"
        self.arms.mkdir()
        for who in self.federation.sites:
            self.start(who)

    def start(self, who: Identity) -> None:
        site: LocalSite = self.federation.sites[who]
        command = [sys.executable, str(Path(__file__).with_name("stoppable.py")), str(self.arms), *site.command()[3:]]
        with site.log.open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stderr=log, env=environment)
        self.federation.processes[who] = process

    def at(self, who: Identity, stage: str) -> Path:
        """Wait until a site has come to a stage, and hold it there."""
        site = "-".join(name for name in (who.silo, who.client) if name)
        file = self.arms / f"{site}:{stage}"
        file.touch()
        self.until(lambda: file.with_name(f"{file.name}.reached").exists(), f"{site} comes to '{stage}'")
        file.with_name(f"{file.name}.reached").unlink()
        return file

    @contextmanager
    def lost(self, who: Identity, stage: str, why: str) -> Iterator[None]:
        """Hold a client in a stage, let something happen to it, and see that its hub goes on without it."""
        hub, line = Identity(who.silo), f"client '{who.client}' is left out: {why}"
        before = self.logged(hub).count(line)
        armed = self.at(who, stage)
        yield
        self.until(lambda: self.logged(hub).count(line) > before, f"{hub} goes on without {who}")
        armed.unlink()

    def logged(self, who: Identity) -> str:
        return self.federation.sites[who].log.read_text() if self.federation.sites[who].log.exists() else ""

    def until(self, done: object, what: str, seconds: float = 90.0) -> None:
        assert callable(done)
        end = time.monotonic() + seconds
        while not done():
            for who, process in self.federation.processes.items():
                assert process.poll() is None, f"{who} has ended: {self.logged(who)[-2000:]}"
            assert time.monotonic() < end, f"waited in vain until {what}: {self.everything()}"
            time.sleep(0.02)

    def everything(self) -> str:
        return "\n".join(f"--- {who}\n{self.logged(who)[-1500:]}" for who in self.federation.sites)


def test_every_stage_of_a_round(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    processes = stage.federation.processes
    silos = sorted(stage.federation.runs)
    hubs = [Identity(silo) for silo in silos]
    clients = sorted((who for who in stage.federation.sites if who.client), key=str)
    try:
        for number, name in enumerate(CLIENT_STAGES):
            who = clients[number % len(clients)]
            with stage.lost(who, name, "it has gone"):
                processes[who].send_signal(signal.SIGKILL)
                processes.pop(who).wait()
            stage.start(who)

            who = clients[(number + 1) % len(clients)]
            with stage.lost(who, name, "it has not answered for 1.5 seconds"):
                processes[who].send_signal(signal.SIGSTOP)
            processes[who].send_signal(signal.SIGCONT)
        for number, name in enumerate(HUB_STAGES):
            who = hubs[number % len(hubs)]
            armed = stage.at(who, name)
            processes[who].send_signal(signal.SIGKILL)
            processes.pop(who).wait()
            armed.unlink()
            stage.start(who)
        code = stage.federation.wait(lambda line: None, seconds=180)
        assert code == 0, stage.everything()
    finally:
        for process in processes.values():
            process.kill()
    histories = [read_history(run / "history.jsonl") for run in stage.federation.runs.values()]
    for history in histories:
        assert [line.round for line in history] == list(range(0, 91, 3))
        assert history[-1].train["loss"] < 0.5 * history[0].train["loss"]
        assert [line.train for line in history] == [line.train for line in histories[0]]
    assert "was started again" in stage.logged(hubs[0])
