"""The search for settings: its way through made-up scores, and on trainings."""

import tomllib
from collections.abc import Callable
from math import inf, log, log10
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tdcd.cli.main import app
from tdcd.costs import Costs
from tdcd.errors import JobError
from tdcd.experiments.tuning import Space, TuneObserver, tune
from tdcd.experiments.tuning.search import Chosen, Score, Trials, search
from tdcd.experiments.tuning.space import GRID, Point
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.jobs.tuning import read_budget
from tdcd.runs.reader import read_history
from tdcd.runs.tuning import read_tuning
from tdcd.sites.participants import check_job


def space(
    local_steps: tuple[int, ...] = (1, 5, 20), hub_steps: tuple[float, ...] = (1.0, 0.5), horizon: float = 10_000
) -> Space:
    return Space(local_steps, hub_steps, (100,), (0.0,), horizon, Costs(), silos=2)


def run(
    where: Space,
    score: Callable[[Point, Trials], Score],
    start: float = 0.1,
    budget: float = 0.1,
    *,
    target: bool = False,
) -> tuple[Chosen, list[Trials]]:
    steps, seen = search(where, where.rungs(budget), start, budget * GRID * len(where.groups), target=target), []
    try:
        trials = next(steps)
        while True:
            seen.append(trials)
            trials = steps.send({point: score(point, trials) for point in trials.points})
    except StopIteration as end:
        return end.value, seen


def bowl(rate: float, steps: int, beta: float, late: float = inf) -> Callable[[Point, Trials], Score]:
    """A loss with its lowest place at some settings; above a rate it diverges in the end."""

    def score(point: Point, trials: Trials) -> Score:
        if point.rate > 30 * rate:
            return Score(inf, trouble="it diverged")
        far = log10(point.rate / rate) ** 2 + 0.1 * abs(log(point.local_steps / steps)) + abs(point.hub_step - beta)
        trouble = "its training loss rose again" if trials.time == 10_000 and point.rate > late else ""
        return Score(far + 1e3 / trials.time - 0.01 * point.decay, trouble=trouble)

    return score


@given(
    rate=st.floats(1e-6, 1e4),
    steps=st.sampled_from([1, 5, 20]),
    beta=st.sampled_from([1.0, 0.5]),
    start=st.floats(0.01, 1),
)
def test_it_finds_the_best_of_everything(rate: float, steps: int, beta: float, start: float) -> None:
    chosen, _ = run(space(), bowl(rate, steps, beta), start * 3 * rate)
    assert chosen.point
    assert (chosen.point.local_steps, chosen.point.hub_step, chosen.point.decay) == (steps, beta, 1.0)
    assert rate / 2 <= chosen.point.rate <= 2 * rate, "rates are a factor of three apart"


def test_rates_far_from_the_start_are_reached_from_both_sides() -> None:
    for start in (1e-3, 10.0):
        chosen, seen = run(space(), bowl(0.1, 5, 1.0), start)
        assert chosen.point
        assert 0.05 < chosen.point.rate < 0.2
        assert sum(trials.rung == 0 for trials in seen) > 3


def test_trials_become_fewer_and_longer_and_cost_what_was_allowed() -> None:
    where = space((1, 2, 5, 10, 20), (1.0, 0.5, 0.25))
    _, seen = run(where, bowl(0.1, 5, 1.0))
    longer = [trials for trials in seen if trials.rung > 0]
    assert [trials.time for trials in seen] == sorted(trials.time for trials in seen)
    assert [len(trials.points) for trials in longer] == [14, 6, 2, 1, 1], "45 at first; in the end a cosine, and a seed"
    assert spent(where, seen) <= 0.1 * GRID * len(where.groups)
    _, seen = run(where, bowl(0.1, 5, 1.0), target=True)
    assert [len(trials.points) for trials in seen][-4:] == [2, 2, 1, 1], "rates that fall sooner reach no target"
    assert spent(where, seen) <= 0.1 * GRID * len(where.groups)


def spent(where: Space, seen: list[Trials]) -> float:
    """Return what trials took, in whole trainings: those of one point go on from rung to rung."""
    times: dict[tuple[Point, int], float] = {}
    for trials in seen:
        times |= {(point, trials.seed): trials.time * point.span / where.horizon for point in trials.points}
    return sum(times.values())


def test_a_rate_that_fails_late_is_taken_back() -> None:
    chosen, _ = run(space((5,), (1.0,)), bowl(0.1, 5, 1.0, late=0.02))
    assert chosen.point
    assert chosen.point.rate <= 0.02
    assert any("back to rate" in line for line in chosen.log)


def test_another_seed_has_to_agree() -> None:
    good = bowl(0.1, 5, 1.0)

    def unlucky(point: Point, trials: Trials) -> Score:
        return Score(inf, trouble="it diverged") if trials.seed and point.rate > 0.06 else good(point, trials)

    chosen, _ = run(space((5,), (1.0,)), unlucky)
    assert chosen.point
    assert chosen.point.rate <= 0.06


def test_what_reaches_the_target_first_is_best() -> None:
    good = bowl(0.1, 1, 1.0)

    def score(point: Point, trials: Trials) -> Score:
        return Score(good(point, trials).loss, reached=100.0 if point.local_steps == 5 else 500.0)

    chosen, _ = run(space(), score)
    assert chosen.point
    assert chosen.point.local_steps == 5, "though a single step ends lower"


@pytest.mark.parametrize(("unlucky", "part"), [(3, 0.25), (2, 0.5), (1, 0.5)])
def test_a_rate_that_falls_sooner_is_chosen_where_it_reaches_the_target(unlucky: int, part: float) -> None:
    good = bowl(0.1, 5, 1.0)

    def score(point: Point, trials: Trials) -> Score:
        reached = {0.5: 4_000.0, 0.25: 2_000.0}.get(point.decay, inf)
        return Score(good(point, trials).loss, inf if trials.seed == unlucky and point.decay == 0.25 else reached)

    chosen, seen = run(space(), score, target=True, budget=0.3)
    assert chosen.point
    assert chosen.point.decay == part, "the shortest that reaches it with three seeds"
    assert chosen.point.name.endswith(f"cosine over {part}")
    parts = [{point.decay for point in trials.points} for trials in seen if not trials.seed][-3:]
    assert parts == [{0.5}, {0.25}, {0.125}], "shorter ones, until they do not reach it"
    poor, seen = run(space(), score, target=True, budget=0.01)
    assert poor.point
    assert sum(trials.seed > 0 and poor.point in trials.points for trials in seen) == 1, "one further seed"
    without, seen = run(space(), score)
    assert without.point
    assert without.point.decay == 1.0, "nobody asked for a target"
    assert all(point.decay in (0.0, 1.0) for trials in seen for point in trials.points)


def test_the_choice_leads_over_all_of_its_seeds() -> None:
    good = bowl(0.1, 5, 1.0)

    def score(point: Point, trials: Trials) -> Score:
        return Score(good(point, trials).loss + 0.05 * (trials.seed and point.decay))

    chosen, seen = run(space((5,), (1.0,)), score)
    assert chosen.point
    assert chosen.point.decay == 0.0, (
        "a falling rate was better by 0.01 with one seed, and worse by 0.04 with the other"
    )
    assert [trials.points[0].decay for trials in seen if trials.seed] == [1.0, 0.0]


def test_where_every_rate_diverges_nothing_is_chosen() -> None:
    chosen, seen = run(space(), lambda point, trials: Score(inf, trouble="it diverged"))
    assert chosen.point is None
    assert "diverged" in chosen.log[0]
    assert all(trials.rung == 0 for trials in seen)


def test_simulated_time_is_the_papers() -> None:
    where = space()
    assert where.round_time(20) == 3 * 10 + 20
    assert Space((1,), (1.0,), (1,), (0.0,), 1.0, Costs(t_comm=100), silos=1).round_time(5) == 205, (
        "nobody to exchange with"
    )


@pytest.mark.parametrize(("text", "expected"), [("10%", (0.1, None)), ("30m", (1.0, 30.0)), ("2.5", (1.0, 2.5))])
def test_budgets(text: str, expected: tuple[float, float | None]) -> None:
    assert read_budget(text) == expected


@pytest.mark.parametrize("text", ["", "ten", "0%", "200%", "-3m", "0"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a part of a full grid's cost, such as 10%, or minutes"):
        read_budget(text)


# On trainings --------------------------------------------------------------------------------------------------------


def breast(**more: Any) -> Job:
    keys = {"training.rounds": 60, "training.batch_size": 100, "data.validation_fraction": 0.3, "baselines": []}
    return load_job("breast-cancer", keys | more)


GIVEN = {"local_steps": [1, 5], "hub_steps": [1.0]}


class Names(TuneObserver):
    def __init__(self, stop_at: str = "") -> None:
        self.began_names: list[str] = []
        self.stop_at = stop_at

    def began(self, name: str) -> None:
        self.began_names.append(name)

    def trying(self, trials: Trials) -> None:
        if self.stop_at and self.stop_at in trials.why:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_job_is_tuned_and_a_stopped_search_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "tuning"
    with pytest.raises(KeyboardInterrupt):
        tune(breast(), path, given=GIVEN, jobs=1, observer=Names("to the end"))
    again = Names()
    record = tune(breast(), path, given=GIVEN, jobs=1, observer=again)
    assert not any(name in again.began_names for name in [t.path for t in record.trials if t.rung == 0])
    job = parse_job(tomllib.loads((path / "tuned.toml").read_text()), "tuned")
    chosen = next(trial for trial in record.trials if trial.name == record.chosen)
    assert job.training.rate == chosen.settings["rate"]
    assert job.training.select == "best"
    assert chosen.values == tuple(line.validation["loss"] for line in read_history(path / chosen.path))
    assert record.horizon == 60 * (3 * 10 + breast().training.local_steps)
    whole = tune(breast(), tmp_path / "whole", given=GIVEN, jobs=1)
    assert [(t.name, t.values) for t in whole.trials] == [(t.name, t.values) for t in record.trials]
    assert read_tuning(path).settings == record.settings
    done = Names()
    tune(breast(), path, given=GIVEN, jobs=1, observer=done)
    assert done.began_names == [], "all of it is there"


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        JobError, match=r"chosen on validation samples, and there are none; set data.validation_fraction"
    ):
        tune(load_job("breast-cancer"), tmp_path)
    with pytest.raises(JobError, match=r"'aurok' is not measured with binary-cross-entropy; did you mean 'auroc'"):
        tune(breast(), tmp_path, measure="aurok")
    silo = next(iter(load_job("digits").silos), "left")
    own = load_job("digits", {"data.validation_fraction": 0.2, f"silos.{silo}.rate": 0.1})
    with pytest.raises(JobError, match=rf"silos.{silo} has local steps or a rate of its own"):
        tune(own, tmp_path)
    with pytest.raises(JobError, match=r"even the shortest search takes about"):
        tune(breast(**{"training.rounds": 10_000_000}), tmp_path, minutes=0.01, jobs=1, given=GIVEN)


# "auto" in a job -----------------------------------------------------------------------------------------------------


def auto_job(**training: Any) -> dict[str, Any]:
    table = breast().as_table()
    return table | {"training": table["training"] | training}


def test_auto_is_kept_until_it_is_found() -> None:
    job = parse_job(auto_job(rate="auto", local_steps="auto"), "job")
    assert job.auto == ("rate", "local_steps")
    table = job.as_table()
    assert (table["training"]["rate"], table["training"]["local_steps"]) == ("auto", "auto")
    assert "auto" not in table
    assert parse_job(table, "again") == job
    for use in (lambda: run_job(job), lambda: check_job(job)):
        with pytest.raises(JobError, match=r'training.rate = "auto": it is to be found first; tdcd train does so'):
            use()
    with pytest.raises(JobError, match=r'auto: write training.rate = "auto"'):
        parse_job(auto_job() | {"auto": ["rate"]}, "job")
    with pytest.raises(JobError, match=r"training.rate"):
        parse_job(auto_job(rate="automatic"), "job")


@pytest.mark.slow
def test_training_finds_what_is_auto(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(tomli_w.dumps(auto_job(rate="auto")))
    result = CliRunner().invoke(app, ["train", str(file), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    record = read_tuning(tmp_path / "run-tuning")
    stored = tomllib.loads((tmp_path / "run" / "job.toml").read_text())["training"]
    assert stored["rate"] == record.settings["rate"]
    assert stored["local_steps"] == breast().training.local_steps, "which was not to be found"
    assert {trial.local_steps for trial in record.trials} == {stored["local_steps"]}
