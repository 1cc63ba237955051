"""Harm the sites of a running federation at random, again and again, and see it trained in the end.

    python benchmarks/soak.py kills                       # 20 sites get SIGKILL, or SIGSTOP and later SIGCONT
    python benchmarks/soak.py lines --count 500 --seed 3  # connections are cut, reset, half closed, held or slowed down
    python benchmarks/soak.py flips --count 1000          # bits are flipped and bytes swapped on their way
    python benchmarks/soak.py connects --count 100000     # bare connections to the hubs' ports
    python benchmarks/soak.py slow --rate 64000           # every line carries so many bytes a second
    python benchmarks/soak.py kills --sharing exact       # labels stay in one silo

Every hub and client is a process of its own, over mutual TLS. The schedule is drawn from the seed, which is printed.
What counts: no process ends on its own but with 0, no traceback in any log, the same history at all hubs, and, where no
client was left out of a round, the weights of the simulation.
"""

import argparse
import random
import signal
import socket
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chaos import Harm, Lines
from measures import distance_from_simulation
from tdcd.jobs.load import load_job
from tdcd.jobs.schema import Job
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
    "deployment.client_deadline": 5.0,
    "deployment.hub_deadline": 300,
}
SLOW = {
    "data.clients": 1,
    "model": {"kind": "mlp", "hidden": [2000, 250]},  # 2 MB of weights, which take half a minute at 64 kB/s
    "training.rounds": 3,
    "training.evaluate_every": 3,
}
"""Where lines are slow, one stage of a round takes longer than a client's deadline."""
LINES: tuple[Harm, ...] = ("cut", "reset", "half-close", "black hole", "slow")
FLIPS: tuple[Harm, ...] = ("flip", "swap")
BURST = 50
"""Bare connections at a time."""
Strike = Callable[[], str]
"""Does one kind of harm once; returns what it did."""


def kill(federation: LocalFederation, generator: random.Random) -> str:
    """Kill a site and start it again, or stop it for a while."""
    time.sleep(generator.uniform(0.5, 6.0))
    who = generator.choice(sorted(federation.sites, key=str))
    how = generator.choice((signal.SIGKILL, signal.SIGSTOP))
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
    return f"{how.name}  {who}"


def harm_line(lines: Lines, harms: tuple[Harm, ...], generator: random.Random) -> str:
    """Harm a connection of a client to its hub, or of a hub to another."""
    while True:
        time.sleep(generator.uniform(0.02, 0.25))
        silo, of = generator.choice(sorted(lines.clients)), generator.choice(("clients", "peers"))
        relay = lines.clients[silo] if of == "clients" else lines.peers[silo]
        how = generator.choice(harms)
        if lines.harm(relay, how, generator.uniform(0.2, 2.0)):
            return f"{how:10}  {of} of silo '{silo}'"


def connect(federation: LocalFederation, generator: random.Random) -> str:
    """Open a burst of connections to a hub, say something or nothing, and leave."""
    silo = generator.choice(sorted(federation.runs))
    host, _, port = tomllib.loads(federation.sites[Identity(silo)].file.read_text())["listen"].rpartition(":")
    for _ in range(BURST):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as line:
            if generator.random() < 0.3:
                line.sendall(generator.randbytes(generator.randrange(1, 200)))
    return f"connects  silo '{silo}'"


def soak(federation: LocalFederation, job: Job, count: int, strike: Strike, each: int = 1) -> int:
    """Strike again and again while sites train; return 0 if all ends as it should."""
    started, done = time.monotonic(), 0
    done_by: Counter[str] = Counter()
    try:
        while done < count and all(p.poll() is None for who, p in federation.processes.items() if who.client is None):
            what = strike()
            done += each
            done_by[what.split("  ")[0].strip()] += each
            print(f"{time.monotonic() - started:6.1f} s  {done:6}  {what}", flush=True)
        code = federation.wait(print, seconds=1800)
    finally:
        federation.kill()
    logs = {who: site.log.read_text() for who, site in federation.sites.items() if site.log.exists()}
    tracebacks = [str(who) for who, text in logs.items() if "Traceback" in text]
    lost = sum(text.count("is left out") for text in logs.values())
    codes = {str(who): process.returncode for who, process in federation.processes.items() if process.returncode}
    histories = {silo: read_history(run) for silo, run in federation.runs.items()}
    rounds = {silo: history[-1].round for silo, history in histories.items()}
    same = len({repr([line.train for line in history]) for history in histories.values()}) == 1
    print(f"{dict(done_by)} in {time.monotonic() - started:.0f} s; exit {code}; last rounds {rounds}")
    print(f"exit codes other than 0: {codes or 'none'}; tracebacks: {tracebacks or 'none'}; left out {lost} times")
    print("all hubs have the same history" if same else "the hubs' histories differ")
    good = code == 0 and same and done >= count and not tracebacks
    if good and not lost:
        apart = distance_from_simulation(federation, job)
        print(f"nobody was left out; the weights differ from the simulation's by {apart:.1e}")
        good = apart < 1e-6
    return 0 if good else 1


def main() -> None:
    """Run a soak; exit with 1 if it does not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "lines", "flips", "connects", "slow"))
    parser.add_argument("--rate", type=float, default=64_000)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--sharing", choices=("shared", "exact", "stale"), default="shared")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    generator = random.Random(arguments.seed)  # noqa: S311
    labels = {"silo": "silo-2", "sharing": arguments.sharing, "tell_metrics": arguments.sharing != "shared"}
    wanted = SETTINGS | {"training.rounds": arguments.rounds, "labels": labels}
    job = load_job("breast-cancer", wanted | (SLOW if arguments.what == "slow" else {}))
    with tempfile.TemporaryDirectory() as folder:
        federation = LocalFederation.laid_out(job, Path(folder))
        each = 1
        strike: Strike = lambda: kill(federation, generator)  # noqa: E731
        if arguments.what == "connects":
            each, strike = BURST, lambda: connect(federation, generator)
        elif arguments.what == "slow":
            Lines(federation, generator, arguments.rate)
            arguments.count = 0
        elif arguments.what != "kills":
            lines, harms = Lines(federation, generator), LINES if arguments.what == "lines" else FLIPS
            strike = lambda: harm_line(lines, harms, generator)  # noqa: E731
        federation.start(quiet=True)
        code = soak(federation, job, arguments.count, strike, each)
        for site in federation.sites.values():
            if code and site.log.exists():
                print(f"--- {site.identity}", *site.log.read_text().splitlines()[-12:], sep="\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
