"""What a run would take on other networks: its rounds are priced again, nothing is trained.

Who holds what is read from the run, mini-batches are drawn again from the seed; what happens in a round, and what
that costs, is the business of the clock and the ledger.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import safetensors

from tdcd.core.clock import Load, round_ends
from tdcd.core.ledger import Counts, Ledger, Traffic
from tdcd.core.script import Plan, Sharing, plan_rounds
from tdcd.core.seeds import derive
from tdcd.costs import Costs
from tdcd.errors import JobError, RunError, nearest
from tdcd.reports.files import RunFiles

Array = npt.NDArray[np.float64]
CHUNK = 1 << 20
"""Rows counts of clients that are priced at once."""


def times(run: RunFiles, costs: Costs, sharing: Sharing | None = None) -> list[float]:
    """Return the time at which each evaluation of a run's history would have been reached.

    Where all data lies in one place, nothing is sent and only the steps take time.

    Args:
        run: The run.
        costs: What takes time.
        sharing: How labels are shared; default: as in the run.

    Raises:
        RunError: the run's files are damaged.
    """
    if run.in_one_place:
        return [line["round"] * _local_steps(run) * costs.step for line in run.history]
    ends = ends_of_rounds(run, costs, sharing)
    return [float(ends[line["round"]]) for line in run.history]


def ends_of_rounds(run: RunFiles, costs: Costs, sharing: Sharing | None = None) -> Array:
    """Return the time when each round is over in all silos, from 0 before the first; shape (R + 1,)."""
    plan, steps = _plan(run, sharing)
    unequal = costs.speeds or costs.client_bandwidth or costs.hub_bandwidth
    if not unequal and not (costs.slow_clients and costs.slowdown > 1):  # then it does not matter who holds what
        one = {silo: np.ones((1, 1), dtype=np.int64) for silo in plan.silos}
        load = Load(one, {}, 0, {silo: np.ones(1) for silo in plan.silos})
        return round_ends(plan, steps, costs, [(load, _rounds(run))])
    if run.federation.get("peers"):
        raise RunError(
            f"{run.path}: the run of one hub, which does not know who holds what elsewhere; it can be priced for "
            "latencies only"
        )
    rosters = rosters_of(run, sharing)
    ledger = rosters.ledger
    slowness = {silo: _slowness(silo, clients, costs) for silo, clients in rosters.clients.items()}
    loads = ((Load(counts, ledger.blocks, ledger.row, slowness), rounds) for counts, rounds in _chunks(run, rosters))
    return round_ends(plan, steps, costs, loads)


def _chunks(run: RunFiles, rosters: "Rosters") -> Iterator[tuple[dict[str, Counts], int]]:
    """Yield how mini-batches fell to clients, many rounds at a time, and how many rounds these are."""
    if _every_row(run, rosters):
        whole = rosters.ledger.counts(np.arange(int(run.federation["samples"])))
        yield {silo: counts[np.newaxis] for silo, counts in whole.items()}, _rounds(run)
        return
    most = max(1, CHUNK // sum(rosters.ledger.clients.values()))
    waiting: list[Mapping[str, Counts]] = []
    for counts in _counts_by_round(run, rosters):
        waiting.append(counts)
        if len(waiting) == most:
            yield _stack(waiting), most
            waiting = []
    if waiting:
        yield _stack(waiting), len(waiting)


def _stack(rounds: list[Mapping[str, Counts]]) -> dict[str, Counts]:
    return {silo: np.stack([counts[silo] for counts in rounds]) for silo in rounds[0]}


def traffic_by_round(run: RunFiles, sharing: Sharing | None = None) -> list[Traffic]:
    """Return the ledger of a run: what each of its rounds sent, or would have sent if labels were shared otherwise."""
    rosters = rosters_of(run, sharing)
    return [rosters.ledger.traffic(counts) for counts in _counts_by_round(run, rosters)]


def _plan(run: RunFiles, sharing: Sharing | None) -> tuple[Plan, dict[str, int]]:
    """Return the roles of a run's silos in a round, and their local steps.

    Raises:
        JobError: the run's job does not say which silo holds the labels.
    """
    sharing = sharing or run.sharing
    if sharing != "shared" and run.label_silo is None:
        raise JobError(f"{run.path}: its job does not say which silo has the labels (labels.silo)")
    silos = {str(silo["name"]): bool(silo["features"]) for silo in run.federation["silos"]}
    silos |= dict.fromkeys(run.federation.get("peers", ()), True)  # the run of one hub does not know about others
    steps = {silo: _local_steps(run) for silo, features in silos.items() if features}
    return plan_rounds(steps, sharing, run.label_silo, set(silos) - set(steps)), steps


def _rounds(run: RunFiles) -> int:
    return int(run.history[-1]["round"]) if run.history else 0


def _batch_size(run: RunFiles) -> int:
    size = run.job["training"]["batch_size"]
    return int(run.federation["samples"]) if size == "full" else int(size)


def _every_row(run: RunFiles, rosters: "Rosters") -> bool:
    """Tell whether every mini-batch is all samples."""
    return not rosters.batches and _batch_size(run) == int(run.federation["samples"])


def _counts_by_round(run: RunFiles, rosters: "Rosters") -> Iterator[Mapping[str, Counts]]:
    """Yield how every round's mini-batch fell to clients: drawn again from the seed, or as the run was given it."""
    from tdcd.core.sampling import draw_batch  # brings torch, which most prices do not need

    ledger, population, size = rosters.ledger, int(run.federation["samples"]), _batch_size(run)
    whole = ledger.counts(np.arange(population)) if _every_row(run, rosters) else None
    seed = int(run.job["training"]["seed"])
    for number in range(1, _rounds(run) + 1):
        if whole is not None:
            yield whole
        elif rosters.batches:
            yield ledger.counts(rosters.batches[number])
        else:
            yield ledger.counts(draw_batch(seed, number, population, size).numpy())


@dataclass(frozen=True)
class Rosters:
    """Who holds what in a run."""

    ledger: Ledger
    clients: Mapping[str, tuple[str, ...]]
    """The names of every silo's clients."""
    batches: Mapping[int, npt.NDArray[np.int64]]
    """The mini-batches that the run was given, by round; none if they were drawn."""


def rosters_of(run: RunFiles, sharing: Sharing | None = None) -> Rosters:
    """Read who holds what in a run; ``sharing`` says how labels are shared, if not as in the run.

    Raises:
        RunError: the file is missing or damaged, or does not fit the run.
    """
    file = run.path / "rosters.safetensors"
    try:
        with safetensors.safe_open(file, framework="numpy") as held:
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
            names = json.loads((held.metadata() or {})["clients"])
    except FileNotFoundError as error:
        raise RunError(f"{file}: missing; without it the run cannot be priced") from error
    except (safetensors.SafetensorError, OSError, LookupError, ValueError) as error:
        raise RunError(f"{file}: damaged: {error}") from error
    try:
        silos = [str(silo["name"]) for silo in run.federation["silos"]]
        plan, steps = _plan(run, sharing)
        ledger = Ledger(
            plan=plan,
            steps=steps,
            owners={silo: tensors[f"owner/{silo}"] for silo in silos},
            clients={silo: len(names[silo]) for silo in silos},
            blocks={s["name"]: int(s["block_bytes"]) for s in run.federation["silos"] if s["features"]},
            row=int(run.federation["embedding_bytes"]),
        )
        clients = {silo: tuple(names[silo]) for silo in silos}
    except (ValueError, LookupError, TypeError) as error:
        raise RunError(f"{run.path}: its files do not tell who holds what: {type(error).__name__}: {error}") from error
    given = {int(name.removeprefix("batch/")): batch for name, batch in tensors.items() if name.startswith("batch/")}
    return Rosters(ledger, clients, given)


def _slowness(silo: str, clients: tuple[str, ...], costs: Costs) -> Array:
    """Return how many times as long a step takes each client."""
    drawn = [derive(costs.seed, "slow", silo, client) / 2**63 < costs.slow_clients for client in clients]
    own = [1 / costs.speeds.get(f"{silo}/{client}", 1.0) for client in clients]
    slowness: Array = np.where(drawn, costs.slowdown, 1.0) * np.array(own)
    return slowness


def check_speeds(costs: Costs, runs: Iterable[RunFiles]) -> None:
    """Check that every client whose speed is told takes part in some of the runs."""
    if not costs.speeds:
        return
    silos = [silo for run in runs for silo in run.federation["silos"]]
    known = {f"{silo['name']}/{client['name']}" for silo in silos for client in silo["clients"]}
    for client in costs.speeds:
        if client not in known:
            raise JobError(f"costs.speeds: no run has a client '{client}'{nearest(client, known)}")


def _local_steps(run: RunFiles) -> int:
    return int(run.job["training"]["local_steps"])
