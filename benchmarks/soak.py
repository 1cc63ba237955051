"""Kill hubs and clients of a running federation at random, again and again, and see it trained in the end.

    python benchmarks/soak.py                    # 20 kills
    python benchmarks/soak.py --kills 100 --seed 3
    python benchmarks/soak.py --sharing exact    # labels stay in one silo

Every hub and client is a process of its own, over mutual TLS. A victim gets SIGKILL and is started again, or SIGSTOP
and, some seconds later, SIGCONT.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tdcd.jobs.load import load_job
from tdcd.runs.reader import read_history
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity

SETTINGS = {
    "data.clients": 3,
    "data.features": {"kind": "contiguous", "silos": 3},
    "baselines": [],
    "training.batch_size": 64,
    "training.evaluate_every": 10,
    "training.checkpoint_every": 5,
    "deployment.client_deadline": 2.0,
    "deployment.hub_deadline": 300,
}


def main() -> None:
    """Run the soak; exit with 1 if the federation does not end trained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=2021)
    parser.add_argument("--sharing", choices=("shared", "exact", "stale"), default="shared")
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)  # noqa: S311
    labels = {"silo": "silo-2", "sharing": arguments.sharing, "tell_metrics": arguments.sharing != "shared"}
    job = load_job("breast-cancer", SETTINGS | {"training.rounds": arguments.rounds, "labels": labels})
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(soak(LocalFederation.laid_out(job, Path(folder)), arguments.kills, generator))


def soak(federation: LocalFederation, kills: int, generator: random.Random) -> int:
    """Kill and stop sites while they train; return 0 if all hubs end with the whole training."""
    federation.start(quiet=True)
    started = time.monotonic()
    done = 0
    try:
        while done < kills:
            time.sleep(generator.uniform(0.5, 6.0))
            if any(p.poll() is not None for who, p in federation.processes.items() if who.client is None):
                break
            who = generator.choice(sorted(federation.sites, key=str))
            how = generator.choice((signal.SIGKILL, signal.SIGSTOP))
            done += 1
            print(f"{time.monotonic() - started:6.1f} s  {done:3}  {how.name}  {who}", flush=True)
            _strike(federation, who, how, generator)
        code = federation.wait(print, seconds=1800)
    finally:
        for process in federation.processes.values():
            process.kill()
    histories = {silo: read_history(run) for silo, run in federation.runs.items()}
    rounds = {silo: history[-1].round for silo, history in histories.items()}
    losses = {silo: (history[0].train["loss"], history[-1].train["loss"]) for silo, history in histories.items()}
    same = len({repr([line.train for line in history]) for history in histories.values()}) == 1
    print(f"{done} kills, {time.monotonic() - started:.0f} s; exit {code}; last rounds {rounds}; losses {losses}")
    print("all hubs have the same history" if same else "the hubs' histories differ")
    return 0 if code == 0 and same and done == kills else 1


def _strike(federation: LocalFederation, who: Identity, how: signal.Signals, generator: random.Random) -> None:
    process = federation.processes[who]
    if process.poll() is None:
        process.send_signal(how)
    if how == signal.SIGSTOP:
        time.sleep(generator.uniform(0.5, 8.0))
        process.send_signal(signal.SIGCONT)
    else:
        process.wait()
        time.sleep(generator.uniform(0.0, 3.0))
        federation.processes[who] = federation.sites[who].start(quiet=True)


if __name__ == "__main__":
    main()
