"""Real processes, killed and stopped in every stage of a round, started again, and trained in the end."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tdcd.jobs.load import load_job
from tdcd.runs.reader import read_history
from tdcd.sites.local_deployment import LocalFederation, LocalSite
from tdcd.sites.security.identity import Identity

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
HUB_STAGES = ("ask embed", "send silo embeddings", "ask descend", "send end", "ask score", "save")


Event = tuple[Identity, str, signal.Signals]
"""What happens to whom, in which stage."""


class Stage:
    """A federation whose sites can be stopped where one wants."""

    def __init__(self, folder: Path, more: Mapping[str, Any] | None = None) -> None:
        job = load_job("breast-cancer", SETTINGS | dict(more or {}))
        self.federation = LocalFederation.laid_out(job, folder / "deployed")
        self.arms = folder / "arms"
        self.arms.mkdir()

    def start(self, who: Identity) -> None:
        site: LocalSite = self.federation.sites[who]
        command = [sys.executable, str(Path(__file__).with_name("stoppable.py")), str(self.arms), *site.command()[4:]]
        with site.log.open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stderr=log, env=environment)
        self.federation.processes[who] = process

    def arm(self, event: Event) -> int:
        """Let a site stop when it comes to a stage; return how often its hub has gone on without it before."""
        self.file(event).touch()
        return self.left_out(event[0])

    def file(self, event: Event) -> Path:
        who, stage, _ = event
        return self.arms / f"{'-'.join(name for name in (who.silo, who.client) if name)}:{stage}"

    def left_out(self, who: Identity) -> int:
        return self.logged(Identity(who.silo)).count(f"client '{who.client}' is left out")

    def strike(self, event: Event, before: int, following: Event | None) -> int:
        """Wait until a site has come to its stage, arm the next one, do what the event says; see it survived."""
        (who, stage, how), file, processes = event, self.file(event), self.federation.processes
        reached = file.with_name(f"{file.name}.reached")
        self.until(reached.exists, f"{who} comes to '{stage}'")
        reached.unlink()
        next_before = self.arm(following) if following else 0
        processes[who].send_signal(how)
        if how == signal.SIGKILL:
            processes.pop(who).wait()
        else:
            time.sleep(0.5)
        if who.client:
            self.until(lambda: self.left_out(who) > before, f"its hub goes on without {who}")
        file.unlink()
        if how == signal.SIGKILL:
            self.start(who)
        else:
            processes[who].send_signal(signal.SIGCONT)
        return next_before

    def logged(self, who: Identity) -> str:
        return self.federation.sites[who].log.read_text() if self.federation.sites[who].log.exists() else ""

    def until(self, done: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            for who, process in self.federation.processes.items():
                assert process.poll() is None, f"{who} has ended: {self.everything()}"
            assert time.monotonic() < end, f"waited in vain until {what}: {self.everything()}"
            time.sleep(0.02)

    def everything(self) -> str:
        return "\n".join(f"--- {who}\n{self.logged(who)[-1500:]}" for who in self.federation.sites)


def test_every_stage_of_a_round(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    hubs = [Identity(silo) for silo in sorted(stage.federation.runs)]
    clients = sorted((who for who in stage.federation.sites if who.client), key=str)
    kinds = itertools.product(CLIENT_STAGES, (signal.SIGKILL, signal.SIGSTOP))
    events = [(clients[number % len(clients)], name, how) for number, (name, how) in enumerate(kinds)]
    events += [(hubs[number % len(hubs)], name, signal.SIGKILL) for number, name in enumerate(HUB_STAGES)]
    before = stage.arm(events[0])  # before anything runs: training must not be over too soon
    for who in stage.federation.sites:
        stage.start(who)
    try:
        for event, following in itertools.zip_longest(events, events[1:]):
            before = stage.strike(event, before, following)
        code = stage.federation.wait(lambda line: None, seconds=180)
        assert code == 0, stage.everything()
    finally:
        stage.federation.kill()
    histories = [read_history(run) for run in stage.federation.runs.values()]
    for history in histories:
        assert [line.round for line in history] == list(range(0, 91, 3))
        assert history[-1].train["loss"] < 0.5 * history[0].train["loss"]
        assert [line.train for line in history] == [line.train for line in histories[0]]
    assert "was started again" in stage.logged(hubs[0])
