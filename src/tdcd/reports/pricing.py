"""What a run would take on other networks: its rounds are priced again, nothing is trained.

A round as the paper times it is 3·t_comm + Q·t_comp: hub and clients talk twice, hubs once. Here the two tiers have
latencies of their own, lines carry so many bytes a unit of time, and some clients are slow:

    embed      θ_j down, embeddings up          a silo waits for its slowest client
    exchange   hubs send each other Φ_j         all hubs wait for the slowest hub
    descend    Φ_{-j} down, Q steps, θ up       a silo waits for its slowest client

Between two exchanges silos do not wait for each other. Where one silo keeps the labels, the last two stages become

    ask        hubs send Φ_j to the hub with the labels, which asks its clients; the answers go back
    descend    answers down, local steps, θ up, or, where every step is asked about, the newest embeddings

once in a round, or, one step at a time, Q times. Clients with labels take their own Q steps after the first answers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import safetensors

from tdcd.core.ledger import Ledger, Rows, Sharing, Traffic, gradient_requests
from tdcd.core.seeds import derive
from tdcd.costs import Costs
from tdcd.errors import JobError, RunError, nearest
from tdcd.reports.files import RunFiles

Array = npt.NDArray[np.float64]


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
    steps = _steps(run)
    if run.in_one_place:
        return [line["round"] * steps * costs.step for line in run.history]
    if costs.speeds or costs.client_bandwidth or costs.hub_bandwidth or (costs.slow_clients and costs.slowdown > 1):
        if run.federation.get("peers"):
            raise RunError(f"{run.path}: the run of one hub, which does not know who holds what elsewhere; it can be "
                           "priced for latencies only")  # fmt: skip
        clock = round_ends(run, costs, sharing)
        return [float(clock[line["round"]]) for line in run.history]
    down, across = costs.client_latency * costs.t_comm, costs.hub_latency * costs.t_comm
    features = [silo["name"] for silo in run.federation["silos"] if silo["features"]]
    features += run.federation.get("peers", [])  # the run of one hub
    label_holder, asked = _label_holder_of(run, sharing)
    if label_holder and set(features) - {label_holder}:
        trips = (1 + 2 * asked) * down + asked * across
        if asked > 1 and label_holder in features:  # the second question may have to wait for the keeper's own steps
            trips += max(0.0, (steps - 1) * costs.step - across)
    else:
        trips = 2 * down + (across if len(features) > 1 else 0.0)
    return [line["round"] * (trips + steps * costs.step) for line in run.history]


def round_ends(run: RunFiles, costs: Costs, sharing: Sharing | None = None) -> Array:
    """Return the time when each round is over in all silos, from 0 before the first; shape (R + 1,)."""
    rosters = rosters_of(run, sharing)
    clocks = _Clocks(rosters, costs, _steps(run))
    ends = [0.0]
    for rows in _rows_by_round(run, rosters):
        clocks.round(rows)
        ends.append(max(clocks.now.values()))
    return np.array(ends)


class _Clocks:
    """The time at every silo's hub."""

    def __init__(self, rosters: "Rosters", costs: Costs, steps: int) -> None:
        self._ledger, self._costs = rosters.ledger, costs
        self._paces = {
            silo: costs.step * steps * _slowness(silo, clients, costs) for silo, clients in rosters.clients.items()
        }
        """What all local steps take every client."""
        self._down, self._across = costs.client_latency * costs.t_comm, costs.hub_latency * costs.t_comm
        self.now = dict.fromkeys(rosters.clients, 0.0)

    def round(self, rows: Mapping[str, Rows]) -> None:
        """Let a round pass whose mini-batch falls to clients like this."""
        ledger, now = self._ledger, self.now
        for silo, block in ledger.blocks.items():
            now[silo] += self._trip(rows[silo], 1, block)
        if ledger.askers:
            self._asked(rows)
            return
        if len(ledger.blocks) > 1:
            batch = int(next(iter(rows.values())).sum())
            met = max(now.values()) + self._exchange((len(ledger.blocks) - 1) * batch)
            now.update(dict.fromkeys(now, met))
        for silo, block in ledger.blocks.items():
            now[silo] += self._trip(rows[silo], 1, block, self._paces[silo])

    def _asked(self, rows: Mapping[str, Rows]) -> None:
        """Let the rest of a round pass in which one silo answers for the labels."""
        ledger, now = self._ledger, self.now
        label_holder = ledger.label_holder or ""
        batch, last = int(rows[label_holder].sum()), ledger.asked - 1
        askers = [silo for silo in ledger.blocks if silo != label_holder]
        for turn in range(ledger.asked):
            arrived = max(now[silo] for silo in askers) + self._exchange(2 * len(askers) * batch)
            questions = len(askers) if turn else 1
            answered = max(arrived, now[label_holder]) + self._trip(rows[label_holder], 2 * questions, 0)
            now[label_holder] = answered
            if turn == 0 and label_holder in ledger.blocks:
                now[label_holder] += self._trip(
                    rows[label_holder], 0, ledger.blocks[label_holder], self._paces[label_holder]
                )
            for silo in askers:
                back = (1, ledger.blocks[silo]) if turn == last else (2, 0)
                now[silo] = answered + self._trip(rows[silo], *back, self._paces[silo] / ledger.asked)

    def _exchange(self, rows: int) -> float:
        """Return how long hubs take to exchange so many rows on the busiest line."""
        carried = rows * self._ledger.row
        return self._across + (carried / self._costs.hub_bandwidth if self._costs.hub_bandwidth else 0.0)

    def _trip(self, rows: Rows, times: int, block: int, pace: Array | float = 0.0) -> float:
        """Return how long a hub waits for its slowest client: its rows so many times, a block, and the steps."""
        bandwidth = self._costs.client_bandwidth
        carried = (times * rows * self._ledger.row + block) / bandwidth if bandwidth else 0.0
        return self._down + float(np.max((rows > 0) * (carried + pace)))


def traffic_by_round(run: RunFiles, sharing: Sharing | None = None) -> list[Traffic]:
    """Return the ledger of a run: what each of its rounds sent, or would have sent if labels were shared otherwise."""
    rosters = rosters_of(run, sharing)
    return [rosters.ledger.traffic(rows) for rows in _rows_by_round(run, rosters)]


def _label_holder_of(run: RunFiles, sharing: Sharing | None) -> tuple[str | None, int]:
    """Return the silo that keeps the labels, if one does, and how often it is asked in a round.

    Raises:
        JobError: labels cannot be kept, because the run's job does not say where they are.
    """
    sharing = sharing or run.sharing
    if sharing == "shared":
        return None, 1
    if run.label_silo is None:
        raise JobError(f"{run.path}: its job does not say which silo has the labels (labels.silo)")
    return run.label_silo, gradient_requests(sharing, _steps(run))


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
        label_holder, asked = _label_holder_of(run, sharing)
        ledger = Ledger(
            owners={silo: tensors[f"owner/{silo}"] for silo in silos},
            clients={silo: len(names[silo]) for silo in silos},
            blocks={s["name"]: int(s["block_bytes"]) for s in run.federation["silos"] if s["features"]},
            row=int(run.federation["embedding_bytes"]),
            label_holder=label_holder if label_holder in silos else None,  # the run of one hub does not know the others
            asked=asked,
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


def _steps(run: RunFiles) -> int:
    return int(run.job["training"]["local_steps"])
