"""What a run would take on other networks: its rounds are priced again, nothing is trained.

Who holds what is read from the run, mini-batches are drawn again from the seed; what happens in a round, and what
that costs, is the business of the clock and the ledger.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tdcd.core.clock import Load, round_ends
from tdcd.core.ledger import NUMBER, Counts, Ledger, Traffic
from tdcd.core.script import Plan, Sharing, plan_rounds
from tdcd.core.seeds import derive
from tdcd.costs import Costs
from tdcd.errors import JobError, RunError, join_names, nearest
from tdcd.runs.reader import Rosters, RunRecord, read_rosters

Array = npt.NDArray[np.float64]
Given = Mapping[int, npt.NDArray[np.int64]]
"""The mini-batches that a run was given, by round; none if they were drawn."""
CHUNK = 1 << 20
"""Rows counts of clients that are priced at once."""


def times(run: RunRecord, costs: Costs, sharing: Sharing | None = None) -> list[float]:
    """Return the time at which each evaluation of a run's history would have been reached.

    Where all data is in one place, nothing is sent and only the steps take time.

    Args:
        run: The run.
        costs: What takes time.
        sharing: How labels are shared; default: as in the run.

    Raises:
        RunError: the run's files are damaged.
    """
    if run.in_one_place:
        return [line.round * _local_steps(run) * costs.step for line in run.history]
    ends = ends_of_rounds(run, costs, sharing)
    return [float(ends[line.round]) for line in run.history]


def ends_of_rounds(run: RunRecord, costs: Costs, sharing: Sharing | None = None) -> Array:
    """Return the time when each round is over in all silos, from 0 before the first; shape (R + 1,)."""
    plan, steps = _plan(run, sharing)
    unequal = costs.speeds or costs.client_bandwidth or costs.hub_bandwidth
    if not unequal and not (costs.slow_clients and costs.slowdown > 1):  # then it does not matter who holds what
        one = {silo: np.ones((1, 1), dtype=np.int64) for silo in plan.silos}
        load = Load(one, {}, 0, {silo: np.ones(1) for silo in plan.silos})
        return round_ends(plan, steps, costs, [(load, _rounds(run))])
    _check_whole(run)
    rosters = read_rosters(run.path)
    ledger = ledger_of(run, rosters, sharing)
    slowness = {silo: _slowness(silo, clients, costs) for silo, clients in rosters.clients.items()}
    loads = (
        (Load(counts, ledger.blocks, ledger.row, slowness, ledger.message, ledger.number), rounds)
        for counts, rounds in _chunks(run, ledger, rosters.batches)
    )
    return round_ends(plan, steps, costs, loads)


def _chunks(run: RunRecord, ledger: Ledger, given: Given) -> Iterator[tuple[dict[str, Counts], int]]:
    """Yield how mini-batches fell to clients, many rounds at a time, and how many rounds these are."""
    if _every_row(run, given):
        whole = ledger.counts(np.arange(run.federation.samples))
        yield {silo: counts[np.newaxis] for silo, counts in whole.items()}, _rounds(run)
        return
    most = max(1, CHUNK // sum(ledger.clients.values()))
    waiting: list[Mapping[str, Counts]] = []
    for counts in _counts_by_round(run, ledger, given):
        waiting.append(counts)
        if len(waiting) == most:
            yield _stack(waiting), most
            waiting = []
    if waiting:
        yield _stack(waiting), len(waiting)


def _stack(rounds: list[Mapping[str, Counts]]) -> dict[str, Counts]:
    return {silo: np.stack([counts[silo] for counts in rounds]) for silo in rounds[0]}


def traffic_by_round(run: RunRecord, sharing: Sharing | None = None) -> list[Traffic]:
    """Return the ledger of a run: what each of its rounds sent, or would have sent if labels were shared otherwise."""
    rosters = read_rosters(run.path)
    ledger = ledger_of(run, rosters, sharing)
    return [ledger.traffic(counts) for counts in _counts_by_round(run, ledger, rosters.batches)]


def _check_whole(run: RunRecord) -> None:
    if run.federation.peers:
        raise RunError(
            f"{run.path}: the run of one hub, which does not know who holds what elsewhere; it can be priced for "
            "latencies only"
        )


def _plan(run: RunRecord, sharing: Sharing | None) -> tuple[Plan, dict[str, int]]:
    """Return the roles of a run's silos in a round, and their local steps.

    Raises:
        JobError: the run's job does not say which silo holds the labels.
    """
    sharing = sharing or run.sharing
    if sharing != "shared" and run.label_silo is None:
        raise JobError(f"{run.path}: its job does not say which silo has the labels (labels.silo)")
    silos = {silo.name: silo.features for silo in run.federation.silos}
    silos |= dict.fromkeys(run.federation.peers, True)  # the run of one hub does not know about others
    steps = {silo: _local_steps(run, silo) for silo, features in silos.items() if features}
    return plan_rounds(steps, sharing, run.label_silo, set(silos) - set(steps)), steps


def _rounds(run: RunRecord) -> int:
    return run.history[-1].round if run.history else 0


def _batch_size(run: RunRecord) -> int:
    size = run.job["training"]["batch_size"]
    return run.federation.samples if size == "full" else int(size)


def _participation(run: RunRecord) -> float:
    return float(run.job["training"].get("participation", 1.0))


def has_ledger(run: RunRecord) -> bool:
    """Tell whether a run's bytes can be worked out round by round.

    Where data is in one place nothing is sent. One hub knows its own mini-batches, unless clients take turns in silos
    that it knows nothing of.
    """
    return not run.in_one_place and not (run.federation.peers and _participation(run) < 1)


def _every_row(run: RunRecord, given: Given) -> bool:
    """Tell whether every mini-batch is all samples."""
    return not given and _batch_size(run) == run.federation.samples and _participation(run) == 1


def _counts_by_round(run: RunRecord, ledger: Ledger, given: Given) -> Iterator[Mapping[str, Counts]]:
    """Yield how every round's mini-batch fell to clients: drawn again from the seed, or as the run was given it."""
    from tdcd.core.sampling import Holders, draw_batch, draw_participants  # brings torch, which most prices do not need

    population, size = run.federation.samples, _batch_size(run)
    whole = ledger.counts(np.arange(population)) if _every_row(run, given) else None
    seed, participation = int(run.job["training"]["seed"]), _participation(run)
    holders = {}
    if participation < 1:
        _check_whole(run)
        holders = {silo: Holders(ledger.owners[silo], ledger.clients[silo]) for silo in _plan(run, None)[0].active}
    for number in range(1, _rounds(run) + 1):
        if whole is not None:
            yield whole
        elif given:
            yield ledger.counts(given[number])
        else:
            some = draw_participants(seed, number, holders, participation)[1] if participation < 1 else None
            yield ledger.counts(draw_batch(seed, number, population, size, some).numpy())


def ledger_of(run: RunRecord, rosters: Rosters, sharing: Sharing | None = None) -> Ledger:
    """Return the ledger of a run; ``sharing`` says how labels are shared, if not as in the run.

    Raises:
        RunError: the rosters do not fit the run.
    """
    plan, steps = _plan(run, sharing)
    silos = {silo.name: silo for silo in run.federation.silos}
    if missing := sorted(set(silos) - (rosters.owners.keys() & rosters.clients.keys())):
        raise RunError(f"{run.path}: its rosters do not tell who holds what in silo {join_names(missing)}")
    return Ledger(
        plan=plan,
        steps=steps,
        owners={silo: rosters.owners[silo] for silo in silos},
        clients={silo: len(rosters.clients[silo]) for silo in silos},
        blocks={name: silo.block_bytes for name, silo in silos.items() if silo.features},
        row=run.federation.embedding_bytes,
        message=run.federation.message_bytes,
        number=NUMBER if _participation(run) < 1 else 0,
    )


def slow_clients(run: RunRecord, costs: Costs) -> list[str]:
    """Return the clients of a run that are drawn to be slow, each as SILO/CLIENT."""
    return [
        f"{silo.name}/{client.name}"
        for silo in run.federation.silos
        for client in silo.clients
        if _is_slow(silo.name, client.name, costs)
    ]


def _is_slow(silo: str, client: str, costs: Costs) -> bool:
    return derive(costs.seed, "slow", silo, client) / 2**63 < costs.slow_clients


def _slowness(silo: str, clients: tuple[str, ...], costs: Costs) -> Array:
    """Return how many times as long a step takes each client."""
    drawn = [_is_slow(silo, client, costs) for client in clients]
    own = [1 / costs.speeds.get(f"{silo}/{client}", 1.0) for client in clients]
    slowness: Array = np.where(drawn, costs.slowdown, 1.0) * np.array(own)
    return slowness


def check_speeds(costs: Costs, runs: Iterable[RunRecord]) -> None:
    """Check that every client with a given speed takes part in some of the runs."""
    if not costs.speeds:
        return
    silos = [silo for run in runs for silo in run.federation.silos]
    known = {f"{silo.name}/{client.name}" for silo in silos for client in silo.clients}
    for client in costs.speeds:
        if client not in known:
            raise JobError(f"costs.speeds: no run has a client '{client}'{nearest(client, known)}")


def _local_steps(run: RunRecord, silo: str = "") -> int:
    own = run.job.get("silos", {}).get(silo, {}).get("local_steps")
    return int(own or run.job["training"]["local_steps"])
