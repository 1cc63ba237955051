"""Attack sites in every way that a hostile client, hub, other organisation or stranger could.

    python benchmarks/attack.py messages                   # every field of every message altered in every way
    python benchmarks/attack.py messages --every 20        # one in twenty of them
    python benchmarks/attack.py bytes --count 10000000     # as many messages with bytes and fields changed at random
    python benchmarks/attack.py strangers                  # connections, certificates and calls that do not belong here

Every case must be refused with a reason, or do no harm: what honest sites do afterwards is the same, bit for bit. Exits
with 1 if one is not. The random ones are drawn from a seed, which is printed.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from measures import resident
from strangers import Site, strangers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from sites.attacks import Outcome, hostile_client, hostile_hub, hostile_peer, record
from sites.tables import write_tables
from sites.test_labels import keeping
from sites.test_rounds import job as small_job
from sites.wire_attacks import attack
from tdcd.sites.security.identity import Identity

CLIENT = Identity("silo-2", "silo-2-1")
REPORT = 100_000


def altered_messages(folder: Path, every: int) -> Iterator[Outcome]:
    """Attack with every message that sites send, altered field by field."""
    (folder / "tables").mkdir()
    jobs = {
        "shared labels": (small_job(), CLIENT),
        "exact labels": (keeping(small_job(), "exact", "silo-2"), CLIENT),
        "stale labels, elsewhere": (keeping(small_job(), "stale", "silo-1"), CLIENT),
        "tables": (write_tables(folder / "tables"), Identity("hospital", "part-1")),
    }
    for title, (job, client) in jobs.items():
        recorded = record(job, folder / title, client)
        yield from hostile_hub(recorded, f"a hostile hub, {title}", every)
        yield from hostile_client(job, recorded, folder / "clients", f"a hostile client, {title}", every)
        yield from hostile_peer(job, folder / "peers", client.silo, f"a hostile peer, {title}", every)


def report(outcomes: Iterable[Outcome]) -> int:
    """Print what went wrong, and how the rest ended; return 1 if anything did."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts[outcome.how if outcome.good else "WRONG"] += 1
        if not outcome.good:
            print(f"WRONG  {outcome.name}: {outcome.how}; {outcome.reason}", flush=True)
    print(f"{counts.total():,} cases: {dict(counts)}")
    return 1 if counts["WRONG"] else 0


def changed_bytes(folder: Path, count: int, seed: int) -> int:
    """Attack with messages that are changed at random; return 1 if memory grows."""
    began, sizes = time.monotonic(), list[float]()

    def tell(number: int) -> None:
        if number % REPORT == 0:
            sizes.append(resident())
            print(f"{time.monotonic() - began:7.1f} s  {number:11,} messages  {sizes[-1]:6.0f} MB", flush=True)

    result = attack(small_job(), folder, CLIENT, count, seed, tell)
    for name, number in sorted(result.items()):
        print(f"{number:11,}  {name}")
    grown = resident() - sizes[min(1, len(sizes) - 1)]
    print(f"{count:,} messages in {time.monotonic() - began:.0f} s; memory grew by {grown:.0f} MB")
    return int(grown > 50)


def main() -> None:
    """Attack; exit with 1 if anything is neither refused with a reason nor harmless."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("messages", "bytes", "strangers"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if arguments.what == "bytes":
            print(f"seed {arguments.seed}")
            code = changed_bytes(place, arguments.count, arguments.seed)
        elif arguments.what == "messages":
            code = report(altered_messages(place, arguments.every))
        else:
            with Site.running(place) as site:
                code = report(Outcome(name, how, reason) for name, how, reason in strangers(site))
                code = code or site.trains()
    sys.exit(code)


if __name__ == "__main__":
    main()
