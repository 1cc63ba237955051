"""Sweeps and several runs in one report: what it counts, what it says, and how it looks in a browser."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcd
from reports.studies import ACCURACY, TEST_LOSS, line, made, study
from support import browser, drawn_in_a_browser, federation_record, silo_record
from tdcd.cli.compare import _cells
from tdcd.core.rows import Rows
from tdcd.costs import Costs
from tdcd.experiments.sweep_file import parse_sweep
from tdcd.experiments.sweep_run import run_sweep
from tdcd.reports.comparison import write_run_extras, write_study
from tdcd.reports.findings import claims, time_to, winners
from tdcd.reports.frame import LOSS, Measure, evaluation_frame
from tdcd.reports.lines import Line
from tdcd.reports.page import _cards
from tdcd.reports.pricing import slow_clients
from tdcd.reports.remarks import remarks
from tdcd.reports.study import Panel, common_target, read_study
from tdcd.reports.words import about
from tdcd.runs.digests import seal, unseal
from tdcd.runs.history import History
from tdcd.runs.reader import RunRecord, read_history, read_run
from tdcd.runs.records import history_line

SWEEP = """
name = "tiny"
title = "Tiny <b>sweep</b>"
job = "digits"
iterations = 60
evaluate_every = 12
seeds = [1, 2]
baselines = ["central", "alone", "one-tier"]

[grid]
training.local_steps = [1, 6]
data.clients = [2, 5]

[select]
rates = [0.3, 0.1]
iterations = 12
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "tiny"
    run_sweep(parse_sweep(SWEEP, "sweep"), path)
    write_study(read_study([path]), path)
    return path


def test_means_and_bands_over_seeds() -> None:
    result = line(made(2, [0.1, 0.5, 0.9]), made(2, [0.3, 0.7, 0.7], seed=2)).band(ACCURACY)
    assert result.x.tolist() == [0, 2, 4]
    assert result.mean == pytest.approx([0.2, 0.6, 0.8])
    assert result.low == pytest.approx([0.1, 0.5, 0.7])
    assert result.high == pytest.approx([0.3, 0.7, 0.9])
    under_way = replace(made(2, [0.3], seed=2), outcome=None)
    shorter = line(made(2, [0.1, 0.5, 0.9]), under_way).band(ACCURACY)
    assert shorter.mean == pytest.approx([0.2]), "as far as all have come"
    timed = line(made(2, [0.1, 0.5, 0.9])).band(ACCURACY, Costs(t_comm=10))
    assert timed.x.tolist() == [0, 32, 64]


def test_a_row_for_every_evaluation_of_every_run() -> None:
    one, other = made(2, [0.1, 0.5, 0.9]), made(3, [0.3], variant="central", seed=2)
    odd = replace(one.history[1], test={})
    frame = evaluation_frame(
        {"one": replace(one, history=History([one.history[0], odd, one.history[2]])), "other": other}
    )
    assert frame["run"].to_list() == ["one", "one", "one", "other"]
    assert frame.select("seed", "place", "round", "iteration").rows() == [
        ("1", 0, 0, 0),
        ("1", 1, 1, 2),
        ("1", 2, 2, 4),
        ("2", 0, 0, 0),
    ]
    assert frame["kept"].to_list() == [False, False, True, True]
    assert frame["test_accuracy"].to_list() == [0.1, None, 0.9, 0.3], "null where it is undefined"
    assert frame["hub_to_hub"].to_list() == [0, 1, 2, 0], "in one place nothing is sent"
    assert ACCURACY.of(frame)["value"].to_list() == frame["test_accuracy"].to_list()
    assert Measure("test", "f1").of(frame)["value"].to_list() == [None] * 4
    assert evaluation_frame({"empty": replace(one, history=History())}).columns[:3] == ["run", "status", "seed"]


def test_time_to_a_target() -> None:
    one = line(made(2, [0.1, 0.5, 0.9]), made(2, [0.3, 0.7, 0.7], seed=2))
    assert one.reached(ACCURACY, 0.6)["place"].to_list() == [2, 1]
    assert one.times_to(ACCURACY, 0.6, Costs(t_comm=100)) == [604, 302]
    assert one.times_to(ACCURACY, 0.8, Costs(t_comm=100)) is None, "one of its runs does not reach it"
    assert one.reached(ACCURACY, 0.8).select("seed", "place").rows() == [("1", 2)], "the first does"
    assert one.reached(TEST_LOSS, 0.35)["place"].to_list() == [2, 1], "a loss is better the lower it is"
    assert common_target([one], ACCURACY) == 0.7, "what every run reaches"
    assert common_target([one], TEST_LOSS) == 0.31, "0.30000000000000004, in two digits"
    result = time_to(one, ACCURACY, 0.6, Costs())
    assert result is not None
    assert (result.at, result.times) == ((0.0,), (3.0,))
    assert result.slope == pytest.approx(4.5)
    central = line(made(1, [0.1, 0.9], variant="central"))
    assert central.times_to(ACCURACY, 0.8, Costs(t_comm=100)) == [1], "in one place nothing is sent"
    assert sum(central.traffic().values()) == 0


def test_which_line_is_first_at_which_latency() -> None:
    """Q = 1 needs 10 rounds: 10·(3t + 1); Q = 10 needs 4: 4·(3t + 10). They meet at t = 30 / 18."""
    one, ten = line(made(1, [0.0] * 10 + [0.9])), line(made(10, [0.0] * 4 + [0.9]))
    result = winners(Panel("", (one, ten), ()), ACCURACY, 0.9, Costs())
    assert [(win.label, win.start, win.end) for win in result] == [
        ("Q = 1", 0, pytest.approx(30 / 18)),
        ("Q = 10", pytest.approx(30 / 18), np.inf),
    ]
    never = line(made(20, [0.0, 0.1]))
    assert len(winners(Panel("", (one, ten, never), ()), ACCURACY, 0.9, Costs())) == 2
    assert winners(Panel("", (one, never), ()), ACCURACY, 0.9, Costs()) == []


def kept(run: RunRecord, sharing: str) -> RunRecord:
    """Let the first silo keep the labels."""
    return replace(run, job={**run.job, "labels": {"silo": "s0", "sharing": sharing}})


@pytest.mark.parametrize("sharing", ["shared", "exact", "stale"])
@pytest.mark.parametrize("costs", [Costs(), Costs(hub_latency=3.0, client_latency=0.2, step=2.0)])
def test_times_are_those_of_the_clock_at_every_latency(sharing: str, costs: Costs) -> None:
    """With exact labels the first question may wait for the steps of those who answer: time is not affine in t_comm."""
    lines = [line(kept(made(q, [0.0] * rounds + [0.9]), sharing)) for q, rounds in ((1, 60), (3, 30), (10, 9))]
    parts = [time_to(one, ACCURACY, 0.9, costs) for one in lines]
    for t in [0.0, 0.01, 0.3, 1.0, 2.0, 2.9, 3.0, 3.1, 6.0, 9.0, 20.0, 100.0, 1e4, 1e7]:
        for one, time in zip(lines, parts, strict=True):
            assert time is not None
            (want,) = one.times_to(ACCURACY, 0.9, costs.at(t)) or []
            assert time(t) == pytest.approx(want, rel=1e-6, abs=1e-6), (one.label, t)
    wins = winners(Panel("", tuple(lines), ()), ACCURACY, 0.9, costs)
    assert [win.start for win in wins] == [0.0, *(win.end for win in wins[:-1])]
    for t in np.logspace(-2, 4, 61).tolist():
        spent = {one.label: (one.times_to(ACCURACY, 0.9, costs.at(t)) or [np.inf])[0] for one in lines}
        least = min(spent.values())
        first = next(win.label for win in wins if win.start <= t <= win.end)
        assert any(spent[label] == pytest.approx(least, rel=1e-6) for label in first.split(" and ")), (t, spent)


def test_lines_that_are_first_together_share_it() -> None:
    one, two = line(made(1, [0.0, 0.0, 0.9])), replace(line(made(1, [0.0, 0.0, 0.9], seed=2)), label="other")
    (win,) = winners(Panel("", (one, two), ()), ACCURACY, 0.9, Costs())
    assert win.label == "Q = 1 and other"


def test_runs_that_diverged_are_left_out_of_means() -> None:
    bad = made(2, [0.1, 0.2], losses=[1.0, 5e4], seed=2, status="diverged")
    result = line(made(2, [0.1, 0.5, 0.9]), bad)
    assert result.finals(ACCURACY) == [0.9]
    assert result.band(ACCURACY).mean == pytest.approx([0.1, 0.5, 0.9])
    assert common_target([result], ACCURACY) == 0.9
    assert result.times_to(ACCURACY, 0.9, Costs()) is None, "not every run gets there"
    assert verdicts(result)["All settings converge"] == "no"
    hopeless = Line("Q = 9", "federation", {}, (), None, {0.1: None})
    assert verdicts(line(made(2, [0.1, 0.9])), hopeless)["All settings converge"] == "no"


def test_a_run_that_stopped_early_stays_where_it_stopped() -> None:
    result = line(made(2, [0.1, 0.5, 0.9]), made(2, [0.3, 0.7], seed=2)).band(ACCURACY)
    assert result.mean == pytest.approx([0.2, 0.6, 0.8])


def test_a_target_is_not_what_runs_begin_with() -> None:
    assert common_target([line(made(1, [0.5, 0.5]))], ACCURACY) is None
    assert common_target([line(made(1, [0.0, 0.0]))], ACCURACY) is None
    assert common_target([line(made(1, [0.9, 0.99456]))], TEST_LOSS) == 0.0055
    assert common_target([line(made(1, [0.1, 0.0347, 0.1]))], ACCURACY) == 0.1, "it fell behind, and came back"


def test_a_target_is_reached_where_a_run_stays() -> None:
    swinging = line(made(1, [0.1, 0.8, 0.5, 0.9, 0.85]))
    assert swinging.reached(ACCURACY, 0.7)["place"].to_list() == [3], "it had left 0.8 again"
    assert swinging.reached(ACCURACY, 0.9).is_empty()
    assert swinging.bests(ACCURACY) == [0.9]
    assert common_target([swinging], ACCURACY) == 0.85, "what it ends with, not its best"


def partly(run: RunRecord, *places: int) -> RunRecord:
    """Let clients be away at some evaluations."""
    rows = {"train": Rows(100, 100), "test": Rows(7, 20)}
    lines = [replace(one, rows=rows) if place in places else one for place, one in enumerate(run.history)]
    return replace(run, history=History(lines))


def test_evaluations_without_all_rows_reach_nothing() -> None:
    run = made(1, [0.1, 0.8, 0.8, 0.9])
    assert line(partly(run, 1)).reached(ACCURACY, 0.7)["place"].to_list() == [2]
    assert line(partly(run, 3)).bests(ACCURACY) == [0.8]
    assert line(partly(run, 3)).lasts(ACCURACY) == [0.8]
    dip = made(1, [0.1, 0.8, 0.2, 0.9])
    assert line(partly(dip, 2)).reached(ACCURACY, 0.7)["place"].to_list() == [1], "nor do they take it back"
    assert line(partly(run, 1)).reached(LOSS, 0.3)["place"].to_list() == [1], "other rows were there"
    frame = evaluation_frame({"run": partly(run, 1)})
    assert frame["partial"].to_list() == ["", "test", "", ""]
    assert frame["rows_test"].to_list() == [20, 7, 20, 20]
    (remark,) = remarks(study(Panel("", (line(partly(run, 3)),), ())))
    assert remark == "Clients were away when the test rows were measured: Q = 1, K = 3, N = 2: 7 of 20"
    assert remarks(study(Panel("", (line(partly(run, 1)),), ()))) == []


def test_all_panels_have_one_target() -> None:
    few, many = line(made(1, [0.1, 0.9], clients=2)), line(made(1, [0.1, 0.7], clients=5))
    both = study(Panel("K = 2", (few,), ()), Panel("K = 5", (many,), ()))
    assert both.target == 0.7
    assert replace(both, wanted=0.6).target == 0.6


def test_convergence_is_judged_by_the_whole_curve() -> None:
    def judged(*losses: float) -> tuple[str, str]:
        (claim, *_) = claims(study(Panel("", (line(made(1, [0.5] * len(losses), losses=losses)),), ())))
        return claim.verdict, claim.numbers

    assert judged(1.0, 0.3, 0.21, 0.2, 0.2)[0] == "yes"
    for losses, verdict, text in (
        ((1.0, 0.2, 0.2, 0.2, 0.6), "partly", "has settled in 0 of 1 run, has risen again in 1"),
        ((1.0, 0.8, 0.6, 0.4, 0.2), "partly", "still falls in 1"),
        ((1.0, 0.2, 0.2, 0.2, 1.1), "no", "is no lower in the end than at the beginning in 1"),
    ):
        assert judged(*losses)[0] == verdict
        assert text in judged(*losses)[1]
    run = made(1, [0.5] * 5, losses=(1.0, 0.2, 0.5, 0.8, 1.1))
    assert run.outcome
    best = replace(run, outcome=replace(run.outcome, selected=1))
    assert verdicts(line(best))["All settings converge"] == "no", "whichever weights it keeps"


def test_silos_with_different_numbers_of_clients() -> None:
    def unequal(steps: int, *clients: int) -> Line:
        silos = [silo_record(f"s{j}", [1] * count) for j, count in enumerate(clients)]
        run = made(steps, [0.1, 0.9], silos=len(clients))
        return replace(line(replace(run, federation=federation_record(silos))), values={"Q": steps})

    def where(*clients: int) -> set[str]:
        lines = tuple(unequal(steps, *clients) for steps in (1, 10))
        return {claim.where for claim in claims(study(Panel("", lines, ()), wanted=0.9)) if claim.where}

    assert where(4, 4) == {"K = 4, N = 2"}
    assert where(3, 4, 2) == {"K = 3, 4, 2, N = 3"}
    assert where(3, 4, 2, 5, 3) == {"K = 2 to 5, N = 5"}


def one_hub(run: RunRecord) -> RunRecord:
    """Make a run that of one hub of three."""
    return replace(run, federation=replace(run.federation, silos=run.federation.silos[:1], peers=("bank", "insurer")))


def test_a_hub_shows_its_view() -> None:
    mine = line(one_hub(made(1, [0.1, 0.9])))
    (remark,) = remarks(study(Panel("", (mine, line(made(2, [0.1, 0.9]))), ())))
    assert remark.startswith("One hub's view: Q = 1, K = 3, N = 2: silo s0, 1 of 3. A hub knows what its silo's hub")
    assert _cells(study(Panel("", (mine,), ())), mine, 200)[4] == "3 B (one silo)"
    cards = dict(_cards(one_hub(made(1, [0.1, 0.9])), "accuracy"))
    assert cards["this hub's silo"] == "s0"
    assert cards["silos in all"] == "3"
    assert {"sent by this silo", "clients of this silo"} <= set(cards)
    assert dict(_cards(made(1, [0.1, 0.9], silos=1, clients=1), "accuracy"))["silo"] == "1"


def test_rounds_are_those_that_were_trained() -> None:
    run = made(1, [0.1, 0.5, 0.9, 0.8])
    run = replace(run, job={**run.job, "training": {**run.job["training"], "rounds": 3}})
    assert run.outcome
    cards = dict(_cards(replace(run, outcome=replace(run.outcome, selected=2)), "accuracy"))
    assert (cards["rounds"], cards["round of the weights"]) == ("3", "2")
    early = replace(run, job={**run.job, "training": {**run.job["training"], "rounds": 1200}})
    assert dict(_cards(early, "accuracy"))["rounds"] == "3 of 1,200"
    assert _cells(study(Panel("", (line(early),), ())), line(early), 200)[1] == "3 of 1,200"


def test_slow_clients_are_named() -> None:
    run = line(made(1, [0.1, 0.9], clients=20))

    def said(**costs: Any) -> list[str]:
        return remarks(replace(study(Panel("", (run,), ())), costs=Costs(**costs)))

    assert said() == []
    (remark,) = said(slow_clients=0.1, slowdown=5)
    slow = slow_clients(run.runs[0], Costs(slow_clients=0.1, slowdown=5))
    assert remark == f"{len(slow)} of 40 clients are slow and take 5 times as long for a step: {', '.join(slow)}"
    (remark,) = said(slow_clients=1e-9, slowdown=5)
    assert remark.startswith("nobody is slow: slow_clients = 1e-09 with seed = 2021 draws none of the 40 clients")


def test_plus_minus_is_the_standard_deviation_and_says_so(swept: Path) -> None:
    assert about([1.0, 2.0, 4.0]) == "2.3333 ± 1.5275"
    assert about([1.0]) == "1.0000"
    page = (swept / "report.html").read_text()
    assert " ± " in page
    assert page.count("± is the standard deviation over seeds") == 1 + 2, "with the claims, and in each panel"


def verdicts(*lines: Line, **more: Any) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in claims(study(Panel("", lines, ()), **more))}


def test_the_papers_claims_are_judged() -> None:
    faster, per = "Larger Q wins in time units as t_comm / t_comp grows", "Per iteration, larger Q converges worse"
    one, ten = (
        made(1, [0.0] * 10 + [0.9], losses=[1.0] + [0.1] * 10),
        made(10, [0.0] * 4 + [0.9], losses=[1.0] + [0.2] * 4),
    )
    result = verdicts(line(one), line(ten), wanted=0.9)
    assert result == {"All settings converge": "yes", per: "yes", faster: "yes"}
    slow = made(10, [0.0] * 40 + [0.9], losses=[1.0] * 40 + [0.05])
    result = verdicts(line(one), line(slow), wanted=0.9)
    assert (result[per], result[faster]) == ("no", "no")
    thirty = made(30, [0.0, 0.9], losses=[1.0, 0.15])
    assert verdicts(line(one), line(ten), line(thirty), wanted=0.9)[per] == "partly"
    again = made(10, [0.0] * 4 + [0.9], losses=[1.0] * 4 + [0.05], seed=2)
    first = made(1, [0.0] * 10 + [0.9], losses=[1.0] * 10 + [0.1], seed=2)
    assert verdicts(line(one, first), line(ten, again), wanted=0.9)[per] == "unclear", "the seeds do not agree"
    assert claims(replace(study(Panel("", (line(one), line(ten)), ())), sweep={})) == [], "listed runs prove nothing"
    worse = made(1, [0.5, 0.4], losses=[1.0, 1.2])
    assert verdicts(line(worse))["All settings converge"] == "no"


def test_more_clients_and_more_silos_are_judged() -> None:
    few, many = (line(made(1, [0.1, 0.9], clients=k, losses=[1.0, loss])) for k, loss in ((2, 0.1), (5, 0.2)))
    assert verdicts(few, many)["Larger K is slightly worse"] == "yes"
    assert "Larger N is worse" not in verdicts(few, many)
    four, one = (line(made(1, [0.1, 0.9], silos=n, losses=[1.0, loss])) for n, loss in ((4, 0.1), (1, 0.2)))
    assert verdicts(four, one)["Larger N is worse"] == "no"


def test_the_page_of_a_sweep(swept: Path) -> None:
    page = (swept / "report.html").read_text()
    assert "Tiny &lt;b&gt;sweep" in page
    for words in ("K = 2", "K = 5", "Learning rates", "Who took part", "What they send", "First there", "central",
                  "one tier, Q = 6", "All settings converge", "seeds 1, 2",
                  "the same in all panels. A run reaches it at the first evaluation from which on it stays",
                  "Seeds draw first weights and mini-batches"):  # fmt: skip
        assert words in page, words
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert page.count('class="badge finished"') == 1


def test_its_files(swept: Path) -> None:
    result = {file.name for file in (swept / "report").iterdir()}
    kinds = {f"K-{k}-{what}.{kind}" for k in (2, 5) for what in ("time-10", "time-100", "loss", "metric", "traffic")
             for kind in ("svg", "png")}  # fmt: skip
    assert kinds | {"results.csv", "curves.csv"} <= result
    assert (swept / "report/K-2-loss.png").read_bytes().startswith(b"\x89PNG")
    with (swept / "report/curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    one = [row for row in rows if (row["variant"], row["Q"], row["K"], row["seed"]) == ("federation", "6", "5", "2")]
    history = read_run(swept / "runs/Q=6,K=5,seed=2").history
    assert [float(row["test_accuracy"]) for row in one] == [entry.test["accuracy"] for entry in history]
    assert [float(row["time_at_t_comm_100"]) for row in one] == [entry.round * 306 for entry in history]
    assert [int(row["hub_to_hub"]) for row in one] == [entry.traffic.hub_to_hub for entry in history]
    central = [row for row in rows if row["variant"] == "central"]
    assert {row["hub_to_client"] for row in central} == {"0"}
    (first, *_) = [row for row in rows if row["variant"] == "one-tier" and row["Q"] == "1" and row["round"] == "12"]
    assert int(first["hub_to_client"]) > 0, "the same training, but here its hubs and clients lie apart"
    with (swept / "report/results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2 * (4 + 1 + 2 + 2), "one tier by single steps has rows of its own"


def test_a_sweep_under_way(swept: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    shutil.copytree(swept, path)
    for name in ("runs/Q=6,K=5,seed=2", "runs/central,seed=1", "runs/central,seed=2", "runs/Q=1,K=2,seed=1"):
        shutil.rmtree(path / name)
    (path / "runs/Q=1,K=5,seed=1/result.json").unlink()
    page = write_study(read_study([path]), path).read_text()
    assert "11 of 16 runs" in page, "one tier by single steps is central training, so there are 16"
    shutil.rmtree(path / "runs")
    with pytest.raises(tdcd.RunError, match="no run of it has begun"):
        read_study([path])


def test_other_prices_need_no_training(swept: Path, tmp_path: Path) -> None:
    cheap, dear = (read_study([swept], t_comm=[t]) for t in (1.0, 1000.0))
    for a, b in zip(cheap.lines, dear.lines, strict=True):
        assert a.runs[0].path == b.runs[0].path
    one, two = cheap.panels[0].lines[0], dear.panels[0].lines[0]
    rounds = one.reached(ACCURACY, 0.5)["round"].to_list()
    assert len(rounds) == 2
    assert one.times_to(ACCURACY, 0.5, cheap.costs.at(1.0)) == [4 * number for number in rounds]
    assert two.times_to(ACCURACY, 0.5, dear.costs.at(1000.0)) == [3001 * number for number in rounds]
    page = write_study(read_study([swept], t_comm=[7.0], costs=Costs(hub_latency=5.0)), tmp_path).read_text()
    assert "t_comm = 7" in page


def test_several_runs_and_where_a_run_lies(swept: Path, tmp_path: Path) -> None:
    runs = [swept / "runs/Q=1,K=2,seed=1", swept / "runs/central,seed=1", swept / "runs/left-alone,seed=2"]
    assert [read_run(path).variant for path in runs] == ["federation", "central", "left alone"]
    result = read_study(runs)
    assert [one.variant for one in result.lines] == ["federation", "central", "left alone"]
    page = write_study(result, tmp_path).read_text()
    assert "3 runs compared" in page
    assert "Q=1,K=2,seed=1" in page
    job = tdcd.load_job("digits", {"training.rounds": 1, "baselines": ["central", "alone", "one-tier"]})
    tdcd.run_job(job, tmp_path / "run")
    assert read_run(tmp_path / "run").variant == "federation"
    assert read_run(tmp_path / "run/one-tier").variant == "one-tier"
    assert read_run(tmp_path / "run/alone/left").variant == "left alone"


def test_costs_go_over_those_of_the_sweep(swept: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    shutil.copytree(swept, path)
    plan = unseal(json.loads((path / "sweep.json").read_text()), "")
    plan["sweep"]["costs"]["step"] = 2.0
    (path / "sweep.json").write_text(json.dumps(seal(plan)))
    result = read_study([path], costs=Costs(hub_latency=3.0)).costs
    assert (result.step, result.hub_latency) == (2.0, 3.0)
    with pytest.raises(tdcd.JobError, match=r"t_comm: should be greater than or equal to 0"):
        write_study(read_study([path], t_comm=[-10.0]), tmp_path)
    with pytest.raises(tdcd.JobError, match=r"no run has a client 'left/nobody'"):
        read_study([path], costs=Costs(speeds={"left/nobody": 2.0}))
    only = json.loads((path / "runs/Q=1,K=5,seed=1/federation.json").read_text())["silos"][0]["clients"][-1]["name"]
    assert read_study([path], costs=Costs(speeds={f"left/{only}": 0.5})).costs.speeds, "K = 2 has no such client"


def test_a_baseline_by_itself_sends_nothing(swept: Path) -> None:
    path = swept / "runs/central,seed=1"
    page = tdcd.write_report(path).read_text()
    assert "sent in all" not in page
    assert re.search(r'<th scope="row">central</th><td>–</td>', page)


def test_without_test_samples_the_training_rows_are_compared(swept: Path, tmp_path: Path) -> None:
    paths = []
    for name in ("Q=1,K=2,seed=1", "Q=6,K=2,seed=1"):
        paths.append(tmp_path / name)
        shutil.copytree(swept / "runs" / name, paths[-1])
        lines = [replace(evaluation, test={}) for evaluation in read_history(paths[-1])]
        (paths[-1] / "history.jsonl").write_text("".join(history_line(line) + "\n" for line in lines))
    result = read_study(paths)
    assert result.measure == Measure("train", "accuracy")
    assert "training accuracy over time" in write_study(result, tmp_path).read_text()


def test_a_combination_of_which_every_rate_diverged_is_told(tmp_path: Path) -> None:
    text = SWEEP.replace("rates = [0.3, 0.1]", "rates = [1e30]").replace("seeds = [1, 2]", "seeds = [1]")
    path = tmp_path / "sweep"
    run_sweep(parse_sweep(text.replace('"central", "alone", "one-tier"', ""), "sweep"), path)
    with pytest.raises(tdcd.RunError, match="every rate diverged, so try smaller ones"):
        read_study([path])


def test_what_is_damaged_is_named(swept: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    shutil.copytree(swept, path)
    plan = json.loads((path / "sweep.json").read_text())
    plan["sweep"]["costs"]["unknown"] = 1
    for content in ("{", "{}", "[]", '{"combinations": 3}', json.dumps(plan)):
        (path / "sweep.json").write_text(content)
        with pytest.raises(tdcd.RunError, match="damaged"):
            read_study([path])
    with pytest.raises(tdcd.RunError, match="is not a run"):
        read_study([tmp_path])
    with pytest.raises(tdcd.RunError, match="is a sweep, not a run"):
        read_run(swept)
    with pytest.raises(tdcd.RunError, match=r"metric: 'f2' was not measured; there is accuracy"):
        read_study([swept], metric="f2")


def test_the_extras_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    tdcd.run_job(tdcd.load_job("digits", {"training.rounds": 3, "training.evaluate_every": 1, "baselines": []}), path)
    write_run_extras(read_run(path))
    with (path / "report/traffic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    last = json.loads((path / "history.jsonl").read_text().splitlines()[-1])
    assert sum(int(row["client_to_hub"]) for row in rows) == last["traffic"]["client_to_hub"]
    assert (path / "report/metric.svg").read_text().startswith("<svg")


@pytest.mark.skipif(browser() is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_a_phone_and_a_desk_in_a_browser(swept: Path, tmp_path: Path, width: int) -> None:
    result = drawn_in_a_browser((swept / "report.html").read_text(), tmp_path, width)
    assert result["width"] <= width, "the page scrolls sideways"
    assert result["drawn"] == 2 * 6 + 1
