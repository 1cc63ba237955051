"""What a run would take on other networks: its rounds are priced again, nothing is trained.

A round as the paper times it is 3·t_comm + Q·t_comp: hub and clients talk twice, hubs once. Here the two tiers have
latencies of their own, lines carry so many bytes a unit of time, and some clients are slow:

    embed      θ_j down, embeddings up          a silo waits for its slowest client
    exchange   hubs send each other Φ_j         all hubs wait for the slowest hub
    descend    Φ_{-j} down, Q steps, θ up       a silo waits for its slowest client

Between two exchanges silos do not wait for each other.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import safetensors

from tdcd.core.ledger import Ledger, Rows, Traffic
from tdcd.core.seeds import derive
from tdcd.costs import Costs
from tdcd.errors import JobError, RunError, nearest
from tdcd.reports.files import RunFiles

Array = npt.NDArray[np.float64]


def times(run: RunFiles, costs: Costs) -> list[float]:
    """Return the time at which each evaluation of a run's history would have been reached.

    Where all data lies in one place, nothing is sent and only the steps take time.

    Raises:
        RunError: the run's files are damaged.
    """
    steps = _steps(run)
    if run.in_one_place:
        return [line["round"] * steps * costs.step for line in run.history]
    if costs.speeds or costs.client_bandwidth or costs.hub_bandwidth or (costs.slow_clients and costs.slowdown > 1):
        clock = round_ends(run, costs)
        return [float(clock[line["round"]]) for line in run.history]
    trips = 2 * costs.client_latency + (costs.hub_latency if len(run.federation["silos"]) > 1 else 0.0)
    return [line["round"] * (trips * costs.t_comm + steps * costs.step) for line in run.history]


def round_ends(run: RunFiles, costs: Costs) -> Array:
    """Return the time when each round is over in all silos, from 0 before the first; shape (R + 1,)."""
    rosters = rosters_of(run)
    ledger, names = rosters.ledger, rosters.clients
    paces = {silo: costs.step * _steps(run) * _slowness(silo, clients, costs) for silo, clients in names.items()}
    down, across = costs.client_latency * costs.t_comm, costs.hub_latency * costs.t_comm
    clock, ends = dict.fromkeys(names, 0.0), [0.0]
    for rows in _rows_by_round(run, rosters):
        for silo, own in rows.items():
            clock[silo] += down + _sent(ledger, silo, own, costs).max()
        if len(clock) > 1:
            batch = int(next(iter(rows.values())).sum())
            carried = (len(clock) - 1) * batch * ledger.row / costs.hub_bandwidth if costs.hub_bandwidth else 0.0
            clock = dict.fromkeys(clock, max(clock.values()) + across + carried)
        for silo, own in rows.items():
            busy = _sent(ledger, silo, own, costs) + paces[silo] * (own > 0)
            clock[silo] += down + busy.max()
        ends.append(max(clock.values()))
    return np.array(ends)


def traffic_by_round(run: RunFiles) -> list[Traffic]:
    """Return the ledger of a run: what each of its rounds sent."""
    rosters = rosters_of(run)
    return [rosters.ledger.traffic(rows) for rows in _rows_by_round(run, rosters)]


def _rows_by_round(run: RunFiles, rosters: "Rosters") -> Iterator[Mapping[str, Rows]]:
    """Yield how every round's mini-batch fell to clients: drawn again from the seed, or as the run was given it."""
    from tdcd.core.sampling import draw_batch  # brings torch, which most prices do not need

    settings, ledger, given = run.job["training"], rosters.ledger, rosters.batches
    population = int(run.federation["samples"])
    size = population if settings["batch_size"] == "full" else int(settings["batch_size"])
    everything = ledger.rows(np.arange(population)) if size == population and not given else None
    for number in range(1, run.history[-1]["round"] + 1 if run.history else 1):
        if everything is not None:
            yield everything
        elif given:
            yield ledger.rows(given[number])
        else:
            yield ledger.rows(draw_batch(int(settings["seed"]), number, population, size).numpy())


@dataclass(frozen=True)
class Rosters:
    """Who holds what in a run."""

    ledger: Ledger
    clients: Mapping[str, tuple[str, ...]]
    """The names of every silo's clients."""
    batches: Mapping[int, npt.NDArray[np.int64]]
    """The mini-batches that the run was given, by round; none if they were drawn."""


def rosters_of(run: RunFiles) -> Rosters:
    """Read who holds what in a run.

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
        blocks = {silo["name"]: int(silo["block_bytes"]) for silo in run.federation["silos"]}
        ledger = Ledger(
            owners={silo: tensors[f"owner/{silo}"] for silo in blocks},
            clients={silo: len(names[silo]) for silo in blocks},
            blocks=blocks,
            row=int(run.federation["embedding_bytes"]),
        )
        clients = {silo: tuple(names[silo]) for silo in blocks}
    except (ValueError, LookupError, TypeError) as error:
        raise RunError(f"{run.path}: its files do not tell who holds what: {type(error).__name__}: {error}") from error
    given = {int(name.removeprefix("batch/")): batch for name, batch in tensors.items() if name.startswith("batch/")}
    return Rosters(ledger, clients, given)


def _sent(ledger: Ledger, silo: str, rows: Rows, costs: Costs) -> Array:
    """Return how long each client's line is busy, in one phase: with its rows one way and its block the other."""
    if costs.client_bandwidth is None:
        return np.zeros(len(rows))
    carried: Array = (rows > 0) * (rows * ledger.row + ledger.blocks[silo]) / costs.client_bandwidth
    return carried


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


def _steps(run: RunFiles) -> int:
    return int(run.job["training"]["local_steps"])
