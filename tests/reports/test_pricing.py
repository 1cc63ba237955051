"""Simulated time: the paper's formula, what goes beyond it, and pricing runs whose data is gone."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcd
from support import Interrupt
from tdcd.core.ledger import Traffic
from tdcd.core.script import Sharing
from tdcd.costs import Costs
from tdcd.reports.pricing import ends_of_rounds, times, traffic_by_round
from tdcd.runs.reader import RunRecord, read_rosters, read_run
from tdcd.runs.records import write_record

RNG = np.random.default_rng(1)
X = RNG.normal(size=(40, 6))
Y = (X.sum(1) > 0).astype(int)
STEPS = 4


def run(path: Path, silos: int = 2, labels: tdcd.Labels | None = None, **more: Any) -> RunRecord:
    """Train three silos of two columns for some rounds, and read what it left."""
    made = [
        tdcd.Silo("a", X[:, :2], [range(30), range(30, 40)]),
        tdcd.Silo("b", X[:, 2:4], [range(0, 40, 2), range(1, 40, 2)]),
        tdcd.Silo("c", X[:, 4:], [range(40)]),
    ][:silos]
    if labels and labels.silo == "registry":
        made.append(tdcd.Silo("registry", None, [range(10), range(10, 40)]))
    batches, own = more.pop("batches", None), more.pop("own", None)
    table = {"loss": "binary-cross-entropy", "rounds": 6, "local_steps": STEPS, "batch_size": 8, "rate": 0.1,
             "evaluate_every": 2}  # fmt: skip
    settings = tdcd.Settings.model_validate(table | more)
    federation = tdcd.Federation.from_silos(made, Y)
    model = tdcd.models.Linear()
    tdcd.train(federation, model, settings, silos=own, labels=labels, directory=path, batches=batches)
    return read_run(path)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return run(tmp_path_factory.mktemp("two") / "run")


@given(st.floats(0, 1e6), st.floats(0, 1e3))
def test_the_papers_formula(two: RunRecord, t_comm: float, t_comp: float) -> None:
    result = times(two, Costs(t_comm=t_comm, step=t_comp))
    assert result == pytest.approx([number * (3 * t_comm + STEPS * t_comp) for number in (0, 2, 4, 6)])


def test_exactly_the_papers_units(two: RunRecord) -> None:
    assert times(two, Costs().at(10)) == [0, 68, 136, 204]  # 3 · 10 + 4 a round
    assert times(two, Costs().at(100)) == [0, 608, 1216, 1824]


@given(st.floats(0, 1e3), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_the_clock_agrees_with_the_formula(
    two: RunRecord, t_comm: float, client: float, hub: float, step: float
) -> None:
    costs = Costs(t_comm=t_comm, client_latency=client, hub_latency=hub, step=step)
    clock = ends_of_rounds(two, costs)
    assert len(clock) == 7
    assert [clock[number] for number in (0, 2, 4, 6)] == pytest.approx(times(two, costs))


def test_one_silo_has_no_other_hub_to_wait_for(tmp_path: Path) -> None:
    alone = run(tmp_path / "one", silos=1)
    assert times(alone, Costs(t_comm=10)) == [0, 48, 96, 144]  # 2 · 10 + 4
    assert ends_of_rounds(alone, Costs(t_comm=10))[-1] == 144
    assert sum(sent.hub_to_hub for sent in traffic_by_round(alone)) == 0


def test_bandwidth_by_hand(two: RunRecord) -> None:
    """A linear block is 3 numbers, a row one number of 4 bytes; the batch is drawn anew and counted here."""
    from tdcd.core.sampling import draw_batch

    clients, hubs = 5.0, 7.0
    costs = Costs(t_comm=10, client_bandwidth=clients, hub_bandwidth=hubs)
    left = {"a": 0.0, "b": 0.0}
    for number in range(1, 7):
        batch = draw_batch(2021, number, 40, 8).tolist()
        first = [sum(p < 30 for p in batch), sum(p >= 30 for p in batch)]
        second = [sum(p % 2 == 0 for p in batch), sum(p % 2 == 1 for p in batch)]
        carried = {silo: max(12 + 4 * n for n in rows if n) / clients for silo, rows in (("a", first), ("b", second))}
        ready = {silo: left[silo] + 10 + sent for silo, sent in carried.items()}
        met = max(ready.values()) + 10 + 8 * 4 / hubs
        left = {silo: met + 10 + sent + STEPS for silo, sent in carried.items()}
        assert ends_of_rounds(two, costs)[number] == pytest.approx(max(left.values()))


def test_slow_clients_hold_their_silo_up(two: RunRecord) -> None:
    name = read_rosters(two.path).clients["a"][0]  # holds 30 of the 40 rows, so it is never idle
    slow = ends_of_rounds(two, Costs(t_comm=10, speeds={f"a/{name}": 0.25}))
    assert np.diff(slow) == pytest.approx([30 + 4 * STEPS] * 6)
    everyone = ends_of_rounds(two, Costs(t_comm=10, slow_clients=1.0, slowdown=3.0))
    assert np.diff(everyone) == pytest.approx([30 + 3 * STEPS] * 6)
    with pytest.raises(tdcd.JobError, match=r"no run has a client 'a/nobody'"):
        tdcd.write_report(two.path, costs=Costs(speeds={"a/nobody": 2.0}))


def test_who_is_slow_depends_on_the_seed_only(two: RunRecord) -> None:
    costs = Costs(slow_clients=0.5, slowdown=10.0)
    assert times(two, costs) == times(two, costs)
    drawn = {times(two, Costs(slow_clients=0.5, slowdown=10.0, seed=seed))[-1] for seed in range(12)}
    assert len(drawn) > 1


def test_the_history_holds_the_sums_of_the_ledger(two: RunRecord) -> None:
    by_round = traffic_by_round(two)
    for line in two.history:
        assert line.traffic == sum(by_round[: line.round], Traffic())
    assert by_round[0].hub_to_hub == 2 * 8 * 4


OWN = {"b": tdcd.SiloSettings(local_steps=1), "c": tdcd.SiloSettings(local_steps=9, rate=0.02)}


def test_silos_with_steps_of_their_own(tmp_path: Path) -> None:
    """All wait for the silo that takes most steps; where labels are kept, for its gradient requests, too."""
    own = run(tmp_path / "run", silos=3, own=OWN)
    assert times(own, Costs(t_comm=10))[-1] == 6 * (3 * 10 + 9)
    exact = run(tmp_path / "exact", silos=3, own=OWN, labels=tdcd.Labels(silo="a", sharing="exact"))
    assert times(exact, Costs(t_comm=10))[-1] == 6 * ((1 + 3 * 9) * 10 + 9)
    for made in (own, exact):
        assert made.history[-1].traffic == sum(traffic_by_round(made), Traffic())
    requests = 1 + 9  # of b and c, with as many replies
    assert exact.history[-1].traffic.hub_to_hub == 6 * 2 * requests * 8 * 4


@pytest.mark.parametrize("labels", [None, tdcd.Labels(silo="registry", sharing="exact")])
def test_clients_that_take_turns_are_priced_as_they_were_drawn(tmp_path: Path, labels: tdcd.Labels | None) -> None:
    turns = run(tmp_path / "run", participation=0.5, batch_size=8, labels=labels)
    by_round = traffic_by_round(turns)
    for line in turns.history:
        assert line.traffic == sum(by_round[: line.round], Traffic())
    if labels is None:  # a client a silo: its weights are three numbers, and it is told its rows
        down = [sent.hub_to_client - sent.client_to_hub for sent in by_round]
        rows = [sent.hub_to_hub // (2 * 4) for sent in by_round]
        assert down == [2 * 8 * count for count in rows]
        assert [sent.client_to_hub for sent in by_round] == [2 * (12 + 4 * count) for count in rows]


def test_batches_that_were_given_are_priced_as_given(tmp_path: Path) -> None:
    batches = [[0, 1, 2], [35, 36], [0, 39], [1], list(range(40)), [5, 6]]
    result = run(tmp_path / "run", batches=batches)
    assert [sent.hub_to_hub for sent in traffic_by_round(result)] == [2 * 4 * len(batch) for batch in batches]
    assert traffic_by_round(result)[3] == Traffic(2 * (12 + 4), 2 * (12 + 4), 8)


def test_a_full_batch_is_the_same_in_every_round(tmp_path: Path) -> None:
    result = run(tmp_path / "run", silos=3, batch_size="full")
    assert traffic_by_round(result) == [Traffic(5 * 12 + 3 * 160, 5 * 12 + 3 * 160, 3 * 2 * 160)] * 6


def test_going_on_counts_on(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")

    silos = [
        tdcd.Silo("a", X[:, :2], [range(30), range(30, 40)]),
        tdcd.Silo("b", X[:, 2:4], [range(0, 40, 2), range(1, 40, 2)]),
    ]
    federation = tdcd.Federation.from_silos(silos, Y)
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=6, local_steps=STEPS, batch_size=8, rate=0.1,
                             evaluate_every=2)  # fmt: skip
    path, model = tmp_path / "stopped", tdcd.models.Linear()
    with pytest.raises(KeyboardInterrupt):
        tdcd.train(federation, model, settings, directory=path, callbacks=[Interrupt(3)])
    tdcd.train(federation, model, settings, directory=path, resume=True)
    assert [line.traffic for line in read_run(path).history] == [line.traffic for line in whole.history]


@pytest.mark.parametrize("damage", ["gone", "cut", "silo"])
def test_a_damaged_roster_is_named(two: RunRecord, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(two.path, path)
    file = path / "rosters.safetensors"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    else:
        record = two.federation
        renamed = (replace(record.silos[0], name="z"), *record.silos[1:])
        write_record(path / "federation.json", replace(record, silos=renamed))
    with pytest.raises(tdcd.RunError, match=r"rosters.safetensors|who holds what"):
        traffic_by_round(read_run(path))


WAYS: tuple[Sharing, ...] = ("shared", "exact", "stale")


@pytest.fixture(scope="module", params=["a", "registry"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    labels = tdcd.Labels(silo=request.param, sharing="stale")
    return run(tmp_path_factory.mktemp("kept") / "run", silos=3, labels=labels)


@given(st.floats(0, 1e3), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.sampled_from(WAYS))
def test_the_clock_agrees_with_the_formula_where_labels_are_kept(
    kept: RunRecord, t_comm: float, client: float, hub: float, step: float, sharing: Sharing
) -> None:
    costs = Costs(t_comm=t_comm, client_latency=client, hub_latency=hub, step=step)
    clock = ends_of_rounds(kept, costs, sharing)
    assert [clock[number] for number in (0, 2, 4, 6)] == pytest.approx(times(kept, costs, sharing))


def test_trips_where_labels_are_kept(kept: RunRecord) -> None:
    costs = Costs(t_comm=10)
    assert times(kept, costs, "shared")[1] / 2 == 3 * 10 + STEPS
    assert times(kept, costs)[1] / 2 == 4 * 10 + STEPS  # stale: one trip more, to the clients with labels
    assert times(kept, costs, "exact")[1] / 2 == (1 + 3 * STEPS) * 10 + STEPS
    slow = Costs(t_comm=1, step=10)  # the second question waits for the own steps of who has the labels
    waits = 3 * 10 - 1 if kept.job["labels"]["silo"] == "a" else 0
    assert times(kept, slow, "exact")[1] / 2 == (1 + 3 * STEPS) + STEPS * 10 + waits


def test_bytes_where_labels_are_kept(kept: RunRecord) -> None:
    for line in kept.history:
        assert line.traffic == sum(traffic_by_round(kept)[: line.round], Traffic())
    askers = 2 if kept.job["labels"]["silo"] == "a" else 3
    assert traffic_by_round(kept)[0].hub_to_hub == 2 * askers * 8 * 4
    assert traffic_by_round(kept, "exact")[0].hub_to_hub == 2 * askers * STEPS * 8 * 4
    assert traffic_by_round(kept, "shared")[0].hub_to_hub == 3 * 2 * 8 * 4


def test_bandwidth_by_hand_where_labels_are_kept(tmp_path: Path) -> None:
    """All rows in every round; the first silo has labels, the second asks at each of the two steps."""
    labels = tdcd.Labels(silo="a", sharing="exact")
    result = run(tmp_path / "run", labels=labels, local_steps=2, batch_size="full", rounds=2)
    clients, hubs = 5.0, 7.0
    costs = Costs(t_comm=10, client_bandwidth=clients, hub_bandwidth=hubs)
    a = b = 0.0
    for _ in range(2):
        a, b = a + 10 + (12 + 30 * 4) / clients, b + 10 + (12 + 20 * 4) / clients
        answered = max(b + 10 + 2 * 160 / hubs, a) + 10 + 2 * 30 * 4 / clients
        a = answered + 10 + 12 / clients + 2
        b = answered + 10 + 2 * 20 * 4 / clients + 1
        answered = max(b + 10 + 2 * 160 / hubs, a) + 10 + 2 * 30 * 4 / clients
        a, b = answered, answered + 10 + (20 * 4 + 12) / clients + 1
    assert ends_of_rounds(result, costs)[-1] == pytest.approx(max(a, b))


def test_a_run_that_does_not_say_where_labels_are_cannot_be_priced_as_if_they_were_kept(two: RunRecord) -> None:
    with pytest.raises(tdcd.JobError, match="does not say which silo has the labels"):
        times(two, Costs(), "exact")


def test_one_silo_with_features_and_one_with_labels_have_nothing_to_exchange_if_they_are_shared(tmp_path: Path) -> None:
    result = run(tmp_path / "run", silos=1, labels=tdcd.Labels(silo="registry", sharing="shared"))
    assert times(result, Costs(t_comm=10)) == [0, 48, 96, 144]
    assert ends_of_rounds(result, Costs(t_comm=10))[-1] == 144
