"""Sweeps: what a file stands for, how rates are chosen, and going on after a kill."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcd
from support import examples, same
from tdcd.core.aggregators import Average, HubMomentum
from tdcd.core.optimizers import SGD
from tdcd.experiments.paper import EXPERIMENTS, experiment
from tdcd.experiments.sweep_file import load_sweep, parse_sweep
from tdcd.experiments.sweep_plan import combinations, runs, trials
from tdcd.experiments.sweep_run import FailedRunsError, SweepObserver, run_sweep
from tdcd.jobs.load import embedded_job_text
from tdcd.jobs.run import run_variant
from tdcd.runs.reader import read_history, read_sweep
from tdcd.runs.records import Outcome

TINY: dict[str, Any] = {
    "name": "tiny",
    "job": "digits",
    "iterations": 12,
    "evaluate_every": 6,
    "seeds": [1, 2],
    "grid": {"training": {"local_steps": [1, 3]}, "data": {"clients": [2, 4]}},
    "select": {"rates": [0.1, 0.01], "iterations": 6},
    "baselines": ["central", "alone", "one-tier"],
}


def parsed(**changes: Any) -> Any:
    return parse_sweep(tomli_w.dumps({k: v for k, v in (TINY | changes).items() if v is not None}), "sweep.toml")


def names(sweep: Any, silos: Sequence[str] = ()) -> list[str]:
    return [result.name for result in combinations(sweep, "sweep.toml", {}, lambda job: silos)]


def test_every_combination_and_what_it_is_compared_with() -> None:
    result = names(parsed(), ["left", "right"])
    assert result == ["Q=1,K=2", "Q=1,K=4", "Q=3,K=2", "Q=3,K=4", "central", "left-alone", "right-alone",
                     "one-tier,Q=1", "one-tier,Q=3"]  # fmt: skip


@pytest.mark.parametrize(("what", "drawn"), [("training", {2021}), ("partition", {1, 2})])
def test_seeds_may_draw_the_partition_too(what: str, drawn: set[int]) -> None:
    sweep = parsed(seeds_of=what)
    assert parsed().seeds_of == "training"
    for combination in combinations(sweep, "sweep.toml", {}, None):
        made = runs(sweep, combination, 0.1)
        assert {run.job.as_table()["data"]["seed"] for run in made.values()} == drawn
        assert {seed: run.job.training.seed for seed, run in made.items()} == {1: 1, 2: 2}
        for trial in trials(sweep, combination).values():
            assert trial.job.data == made[1].job.data, "rates are chosen on the first seed's partition"


def test_all_take_the_same_number_of_local_steps() -> None:
    for combination in combinations(parsed(), "sweep.toml", {}, None):
        training = combination.job.training
        assert training.rounds * training.local_steps == 12
        assert training.evaluate_every * training.local_steps == 6
        assert [run.job.training.seed for run in runs(parsed(), combination, 0.5).values()] == [1, 2]
        assert {run.stored.training.rate for run in runs(parsed(), combination, 0.5).values()} == {0.5}
        assert runs(parsed(), combination, 0.5)[1].job.training.evaluate_every == training.evaluate_every
        for rate, trial in trials(parsed(), combination).items():
            assert trial.stored.training.rate == rate
            assert trial.stored.training.rounds * trial.stored.training.local_steps == 6


def test_k_is_meant_for_every_silo() -> None:
    """The digits job gives its silos numbers of their own; a grid over K must not be without effect."""
    job = next(iter(combinations(parsed(), "sweep.toml", {}, None))).job
    assert {silo.clients for silo in job.silos.values()} == {2}


def test_cases_belong_together() -> None:
    heavy = {"kind": "sgd", "momentum": 0.5}
    sweep = parsed(
        grid={},
        settings={"training": {"local_steps": 3}, "data": {"rows": {"kind": "size-skew"}}},
        cases=[
            {"name": "wide", "model": {"hidden": [16]}},
            {
                "name": "narrow",
                "model": {"kind": "linear"},
                "training": {"optimizer": heavy},
            },
        ],
        baselines=["central"],
    )
    result = list(combinations(sweep, "sweep.toml", {}, None))
    assert [one.name for one in result] == ["wide", "narrow", "central,wide", "central,narrow"]
    assert [one.job.training.optimizer for one in result] == [SGD(), SGD(0.5), SGD(), SGD()]
    assert [one.job.training.aggregator for one in result] == [Average(), Average(), Average(), HubMomentum(0.5)]
    assert [one.job.model.kind for one in result] == ["mlp", "linear"] * 2
    assert sweep.lines == "case"


def test_values_may_be_tables() -> None:
    rows = [{"kind": "equal"}, {"kind": "label-skew", "concentration": 0.1}]
    steps = {"training": {"local_steps": 3}}
    result = names(parsed(grid={"data": {"rows": rows}}, settings=steps, baselines=["central"]))
    assert result == ["rows=equal", "rows=label-skew-0.1", "central"]
    wide = {"silos": {"left": {"model": {"hidden": [[8], [16, 8]]}}, "right": {"model": {"hidden": [[8]]}}}}
    assert parsed(grid=wide, baselines=[]).lines == "left.model.hidden"
    models = [{"kind": "mlp", "hidden": [8]}, {"kind": "mlp", "hidden": [16, 8]}]
    both = {"silos": {"left": {"model": models}, "right": {"model": models[:1]}}}
    assert names(parsed(grid=both, settings=steps, baselines=[])) == [
        "left.model=mlp-8,right.model=mlp-8",
        "left.model=mlp-16x8,right.model=mlp-8",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 10}, r"iterations: 10 local steps are no whole number of rounds of Q = 3; 9 or 12 are"),
        ({"evaluate_every": 2}, r"evaluate_every: 2 local steps are no whole number of rounds of Q = 3; 3 are"),
        ({"grid": {"training": {"local_steps": 3}}}, r"grid: training.local_steps: a list of values is wanted"),
        ({"grid": {"training": {"local_steps": []}}}, r"grid: training.local_steps: a list of values is wanted"),
        ({"grid": {"training": {"local_steps": [1, 1]}}}, r"a value is there twice"),
        ({"grid": {"training": {"seed": [1, 2]}}}, r"grid: training.seed: write seeds = \[1, 2\] at the top"),
        ({"grid": {"training": {"rounds": [1, 2]}}}, r"grid: training.rounds: write iterations"),
        ({"settings": {"training": {"rounds": 2}}}, r"settings: training.rounds: write iterations"),
        ({"settings": {"training": {"seed": 2}}}, r"settings: training.seed: write seeds"),
        (
            {"seeds_of": "partition", "settings": {"data": {"seed": 2}}},
            r'settings: data.seed: seeds_of = "partition" sets',
        ),
        ({"seeds_of": "weights"}, r"seeds_of"),
        ({"settings": {"baselines": ["central"]}}, r"settings: baselines: write them at the top"),
        ({"cases": [{"name": "a", "training": {"evaluate_every": 2}}]}, r"case 'a': training.evaluate_every: write"),
        ({"settings": {"training": {"rate": 0.1}}}, r"settings: training.rate: \[select\] chooses it"),
        ({"settings": {"training": {"local_steps": 2}}}, r"settings: training.local_steps: the sweep varies"),
        (
            {
                "settings": {"data": {"features": {"kind": "strips", "silos": 2}}},
                "grid": {"data": {"features": {"silos": [1, 2]}}},
            },
            r"data.features: the sweep varies data.features.silos",
        ),
        ({"report": {"metric": "acuracy"}}, r"report.metric: 'acuracy' is not measured .* did you mean 'accuracy'"),
        ({"costs": {"t_comm": 7.0}}, r"costs: t_comm: write report.t_comm"),
        ({"select": {"rates": [0.1], "iterations": 7}}, r"sweep.toml: select.iterations: 7 local steps are no whole"),
        (
            {"grid": {"training": {"local_step": [1, 3]}}},
            r"training: unknown key 'local_step'; did you mean 'local_steps'",
        ),
        (
            {"grid": {"training": {"rate": [-1.0]}}, "select": None, "settings": {"training": {"local_steps": 3}}},
            r"training.rate: should be greater than 0",
        ),
        ({"seeds": [1, 1]}, r"seeds: different whole numbers from 0 up"),
        ({"seeds": []}, r"seeds"),
        ({"cases": [{"model": {"hidden": [4]}}]}, r"cases: every case needs a name"),
        ({"cases": [{"name": "a"}, {"name": "a"}]}, r"cases: two cases have the same name"),
        ({"report": {"lines": "training.rates"}}, r"report.lines: 'training.rates' is not in the grid"),
        ({"select": {"rates": [0.1], "iterations": 600}}, r"select.iterations: more than the 12"),
        ({"select": {"rates": [0.1, 0.0], "iterations": 6}}, r"select.rates"),
        ({"baselines": ["centre"]}, r"baselines"),
        ({"iteration": 3}, r"unknown key 'iteration'; did you mean 'iterations'"),
        ({"costs": {"slow": 1}}, r"costs: unknown key 'slow'"),
        ({"job": "digit"}, r"sweep.toml: digit: no such job file"),
        ({"data": {}, "job": None}, r"this is a job file; train it with: tdcd train"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tdcd.JobError, match=message):
        names(parsed(**changes))


def test_a_sweep_file_names_its_job_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(embedded_job_text("breast-cancer"))
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps(TINY | {"job": "own.toml", "grid": {}}))
    result = load_sweep(tmp_path / "sweep.toml")
    assert result.job == str(tmp_path / "own.toml")
    text = tomli_w.dumps(TINY | {"settings": {"data": {"directory": "files"}}})
    (tmp_path / "paths.toml").write_text(text)
    assert load_sweep(tmp_path / "paths.toml").settings["data"]["directory"] == str(tmp_path / "files")
    with pytest.raises(tdcd.JobError, match="no such sweep file"):
        load_sweep(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(tdcd.JobError, match=r"bad.toml: not TOML"):
        load_sweep(tmp_path / "bad.toml")


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_experiments_are_whole(name: str, scale: str) -> None:
    sweep = experiment(name, scale)
    assert sweep.name == f"{name}-{scale}"
    result = list(combinations(sweep, name, {}, None))
    federated = [one for one in result if one.variant == "federation"]
    if name.endswith("-silos"):
        assert [one.name for one in federated] == ["N=1", "N=4", "N=16"]
        assert {one.job.training.local_steps for one in federated} == {10}
        assert {one.job.as_table()["data"]["clients"] for one in federated} == {50}
    else:
        first, second = {"cifar10": (50, 100), "modelnet": (10, 20)}.get(name, (20, 50))
        assert [one.values for one in federated] == [{"Q": q, "K": k} for q in (1, 10, 20, 30) for k in (first, second)]
        assert sweep.report.metric == {"cifar10": "accuracy", "modelnet": "top5"}.get(name, "f1")
        assert set(sweep.baselines) == {"central", "alone", "one-tier"}
    assert sweep.report.t_comm == [10, 100]
    assert sweep.select
    if scale == "paper":
        assert {one.job.training.batch_size for one in federated} == {320 if name == "modelnet" else 2000}
        assert {one.job.training.averaging for one in federated} == {"uniform"}
    with pytest.raises(tdcd.JobError, match="did you mean 'cifar10'"):
        experiment("cifar", scale)
    with pytest.raises(tdcd.JobError, match="scale"):
        experiment(name, "large")


class Notes(SweepObserver):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.before: dict[str, list[str]] = {}
        self.rates: dict[str, float | None] = {}

    def planned(self, what: str, names: Sequence[str], done: Sequence[str], iterations: Mapping[str, int]) -> None:
        self.before[what] = list(done)

    def ended(self, name: str, outcome: Outcome) -> None:
        self.ran.append(name)

    def chose(self, combination: str, rate: float | None, losses: Mapping[float, float]) -> None:
        self.rates[combination] = rate
        assert rate is None or losses[rate] == min(losses.values())


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "tiny"
    run_sweep(parsed(), path, jobs=2)
    return path


def test_options_may_not_contradict_the_grid() -> None:
    with pytest.raises(tdcd.JobError, match=r"--set: data.clients: the sweep varies data.clients"):
        combinations(parsed(), "sweep.toml", {"data.clients": 3}, None)
    sweep = parsed(cases=[{"name": "wide", "model": {"hidden": [16]}}])
    with pytest.raises(tdcd.JobError, match=r"--set: model.hidden: the sweep varies model.hidden"):
        combinations(sweep, "sweep.toml", {"model.hidden": [3]}, None)


def test_baselines_do_not_depend_on_what_the_grid_has_first() -> None:
    def central(steps: list[int], clients: list[int]) -> Any:
        grid = {"training": {"local_steps": steps}, "data": {"clients": clients}}
        return next(c.job for c in combinations(parsed(grid=grid), "s", {}, None) if c.variant == "central")

    assert central([1, 3], [2, 4]) == central([3, 6], [8])


def test_every_way_to_split_the_features_has_silos_of_its_own(tmp_path: Path) -> None:
    settings = {"training": {"local_steps": 3}, "data": {"features": {"kind": "strips"}}, "silos": {}}
    grid = {"data": {"features": {"silos": [3, 2]}}}
    sweep = parsed(grid=grid, settings=settings, baselines=["alone"], select=None, seeds=[1])
    assert sweep.lines == "N"
    run_sweep(sweep, tmp_path / "sweep")
    alone = {path.name for path in (tmp_path / "sweep/runs").iterdir() if "alone" in path.name}
    assert len(alone) == 5


def test_what_a_sweep_writes(swept: Path) -> None:
    plan = json.loads((swept / "sweep.json").read_text())
    assert [one["name"] for one in plan["combinations"]] == names(parsed(), ["left", "right"])
    for one in plan["combinations"]:
        losses = {trial["rate"]: trial["loss"] for trial in one["trials"]}
        assert one["rate"] == min(losses, key=lambda rate: losses[rate])
        assert [run["seed"] for run in one["runs"]] == [1, 2]
        for run in one["runs"]:
            assert json.loads((swept / run["path"] / "result.json").read_text())["status"] == "finished"
            assert tdcd.load_job(swept / run["path"] / "job.toml").training.rate == one["rate"]


def test_the_trial_that_won_goes_on_as_the_first_run(swept: Path) -> None:
    for name in ("Q=3,K=4", "central"):
        sessions = {
            seed: json.loads((swept / f"runs/{name},seed={seed}/environment.json").read_text()) for seed in (1, 2)
        }
        assert [len(sessions[seed]) for seed in (1, 2)] == [2, 1]
        assert "worker" not in sessions[2][0]["command"], "the command of the sweep, not that of its process"


def test_a_run_of_a_sweep_is_that_of_train(swept: Path, tmp_path: Path) -> None:
    for seed in (1, 2):  # the first goes on from a trial
        run, path = swept / f"runs/Q=3,K=4,seed={seed}", tmp_path / str(seed)
        tdcd.run_job(tdcd.load_job(run / "job.toml"), path)
        result, expected = contents(run), contents(path)
        assert {k: v for k, v in result.items() if k != "report.html"} == expected


def test_one_tier_by_single_steps_is_central(swept: Path) -> None:
    plan = json.loads((swept / "sweep.json").read_text())["combinations"]
    (tier,) = (one for one in plan if one["name"] == "one-tier,Q=1")
    assert tier["runs"][0]["path"] == "runs/central,seed=1", "so it is trained once"
    job = tdcd.load_job(swept / "runs/central,seed=1/job.toml")
    result = run_variant(job, tdcd.load_data(job), "one-tier", None)
    assert same(tdcd.load_blocks(swept / "runs/central,seed=1"), result.blocks)


def test_started_again_nothing_is_run_twice_and_it_can_grow(swept: Path) -> None:
    again = Notes()
    run_sweep(parsed(), swept, jobs=1, observer=again)
    assert again.ran == []
    more = Notes()
    run_sweep(parsed(seeds=[1, 2, 3], baselines=[]), swept, jobs=1, observer=more)
    assert sorted(more.ran) == [f"runs/Q={q},K={k},seed=3" for q in (1, 3) for k in (2, 4)]


def test_a_run_with_other_settings_is_refused(swept: Path) -> None:
    with pytest.raises(
        tdcd.RunError, match=r"rate=0.1 was run with other settings(?s:.)*training.weight_decay: 0.0 there"
    ):
        run_sweep(parsed(settings={"training": {"weight_decay": 0.5}}), swept)


def test_rates_are_chosen_by_the_loss_that_the_sweep_names(tmp_path: Path) -> None:
    chosen = {}
    more = {"data": {"validation_fraction": 0.1}, "training": {"local_steps": 3}}
    for by in ("training", "validation"):
        select = {"rates": [0.1, 0.01], "iterations": 6, "by": by}
        sweep = parsed(select=select, settings=more, seeds=[1], baselines=[], grid={})
        run_sweep(sweep, tmp_path / by, jobs=1)
        record = read_sweep(tmp_path / by)
        for trial in record.combinations[0].trials:
            last = read_history(tmp_path / by / trial.path)[-1]
            assert trial.loss == (last.validation if by == "validation" else last.train)["loss"]
        chosen[by] = {trial.rate: trial.loss for trial in record.combinations[0].trials}
    assert chosen["training"] != chosen["validation"]
    with pytest.raises(tdcd.JobError, match="select.by = .validation. needs held-out samples: set data.validation"):
        list(combinations(parsed(select={"rates": [0.1], "iterations": 6, "by": "validation"}), "sweep.toml", {}, None))


def test_rates_that_diverge_are_not_chosen(tmp_path: Path) -> None:
    notes = Notes()
    more: dict[str, Any] = {"grid": {}, "baselines": [], "seeds": [1], "settings": {"training": {"local_steps": 3}}}
    sweep = parsed(select={"rates": [1e30, 0.1], "iterations": 6}, **more)
    run_sweep(sweep, tmp_path / "sweep", observer=notes)
    assert notes.rates == {"federation": 0.1}
    notes = Notes()
    sweep = parsed(select={"rates": [1e30], "iterations": 6}, **more)
    run_sweep(sweep, tmp_path / "none", observer=notes)
    assert notes.rates == {"federation": None}
    assert not (tmp_path / "none" / "runs").exists()


def test_what_goes_wrong_in_a_process_is_told(tmp_path: Path) -> None:
    failed = r"trials/Q=.,K=.,rate=\S+: .*batch_size: 5000 is more than(?s:.)*(?s:.)*trials/Q=.,K=.,rate"
    with pytest.raises(tdcd.RunError, match=failed):
        run_sweep(parsed(settings={"training": {"batch_size": 5000}}, baselines=[]), tmp_path / "sweep", jobs=1)
    steps = {"training": {"local_steps": 3}}
    with pytest.raises(tdcd.TdcdError, match=r"data_batch_1.bin is not there"):
        run_sweep(
            parsed(job="cifar10", grid={}, settings=steps),
            tmp_path / "two",
            overrides={"data.directory": str(tmp_path)},
        )


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "tdcd", "sweep", *map(str, words)]


def contents(path: Path) -> dict[str, Any]:
    """Return all files of a sweep, without wall times, dates and what the machine adds."""

    def timeless(line: str) -> Any:
        return {key: value for key, value in json.loads(line).items() if key not in ("seconds", "digest")}

    outcome: dict[str, Any] = {}
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        if file.is_dir() or file.name in (".lock", "earlier.safetensors"):
            continue
        if file.name == "history.jsonl":
            outcome[name] = [timeless(line) for line in file.read_text().splitlines()]
        elif file.name == "result.json":
            result = json.loads(file.read_text())
            outcome[name] = {k: v for k, v in result.items() if k not in ("seconds", "evaluated", "files", "digest")}
        elif file.name == "checkpoint.safetensors":
            outcome[name] = {key: t.tolist() for key, t in safetensors.torch.load_file(file).items()}
        elif file.name in ("environment.json", "report.html"):
            outcome[name] = True
        else:
            outcome[name] = file.read_bytes()
    return outcome


def test_killed_at_any_moment_it_ends_with_the_same_files(tmp_path: Path) -> None:
    changes = {"iterations": 240, "evaluate_every": 24, "select": {"rates": [0.1, 0.01], "iterations": 60},
               "settings": {"training": {"checkpoint_every": 7, "batch_size": 200}}, "seeds": [1],
               "baselines": ["central"], "grid": {"training": {"local_steps": [1, 3]}}}  # fmt: skip
    file = tmp_path / "sweep.toml"
    file.write_text(tomli_w.dumps(TINY | changes))
    subprocess.run(command(file, "-o", tmp_path / "whole", "--quiet"), check=True, timeout=300)
    drawn, kills = random.Random(os.getpid()), 0  # noqa: S311
    while True:
        process = subprocess.Popen(
            command(file, "-o", tmp_path / "killed", "--quiet"), stderr=subprocess.PIPE, text=True
        )
        try:
            _, errors = process.communicate(timeout=drawn.uniform(0.3, 3.0) if kills < 5 else 300)
        except subprocess.TimeoutExpired:
            process.send_signal(drawn.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0, errors
        break
    assert kills
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_stopped_in_the_background_it_writes_checkpoints(tmp_path: Path) -> None:
    """A shell starts what runs in the background with the interrupt signal ignored."""
    file = tmp_path / "sweep.toml"
    changes = {"iterations": 60_000, "baselines": [], "select": {"rates": [0.1], "iterations": 6}}
    file.write_text(tomli_w.dumps(TINY | changes))
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command(file, "-o", tmp_path / "sweep", "--quiet")]
    process = subprocess.Popen(words)

    def rounds() -> list[int]:
        """Return the last round of each training; some have begun by taking over a trial of up to six rounds."""
        histories = [path.read_text() for path in (tmp_path / "sweep").rglob("runs/*/history.jsonl")]
        return [json.loads(text.rpartition("\n")[0].split("\n")[-1])["round"] for text in histories if "\n" in text]

    wait_for(lambda: sum(number > 6 for number in rounds()) == 2)
    process.terminate()
    assert process.wait(timeout=60) == 130
    ended = [json.loads(file.read_text()) for file in (tmp_path / "sweep").rglob("runs/*/result.json")]
    assert len(ended) == 2
    assert {result["status"] for result in ended} == {"interrupted"}
    assert min(result["round"] for result in ended) > 6


def test_a_killed_sweep_leaves_no_process_behind(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    changes = {"iterations": 60_000, "baselines": [], "select": {"rates": [0.1], "iterations": 6}}
    file.write_text(tomli_w.dumps(TINY | changes))
    process = subprocess.Popen(command(file, "-o", tmp_path / "sweep", "--quiet"))
    wait_for(lambda: bool(list((tmp_path / "sweep").rglob("runs/*/history.jsonl"))))
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(command(file, "-o", tmp_path / "sweep"), check=True, capture_output=True)  # it is in use
    process.kill()
    process.wait()
    wait_for(lambda: not _working(tmp_path))


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def _working(path: Path) -> bool:
    """Tell whether a worker still holds the lock of a run."""
    from filelock import FileLock, Timeout

    for lock in path.rglob("runs/*/.lock"):
        try:
            with FileLock(lock, timeout=0):
                pass
        except Timeout:
            return True
    return False


def spoilt(**more: Any) -> Any:
    """A sweep in which the runs of one case fail: its networks are wider than the job allows."""
    cases = [
        {"name": "good", "model": {"kind": "linear"}},
        {"name": "bad", "model": {"kind": "experiments.test_sweep:broken"}},
    ]
    settings = {"training": {"local_steps": 3}}
    return parsed(grid={}, cases=cases, settings=settings, baselines=["one-tier"], **more)


def broken(shape: tuple[int, ...], outputs: int) -> Any:
    raise ValueError("it cannot be built")


def test_a_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    sweep, notes, path = spoilt(select={"rates": [0.1, 0.01], "iterations": 6}), Notes(), tmp_path / "sweep"
    failed = r"(trials|runs)/bad\S*: (?s:.)*(trials|runs)/one-tier,bad\S*: "
    with pytest.raises(FailedRunsError, match=failed):
        run_sweep(sweep, path, jobs=2, observer=notes)
    wanted = {f"runs/{name}good,seed={seed}" for name in ("", "one-tier,") for seed in (1, 2)}
    assert {name for name in notes.ran if name.startswith("runs/")} == wanted
    assert set(notes.rates) == {"good", "one-tier,good"}, "of failed trials nothing is chosen"
    plan = json.loads((path / "sweep.json").read_text())
    bad = next(one for one in plan["combinations"] if one["name"] == "bad")
    assert bad["trials"] == [], "it did not diverge"
    again = Notes()
    with pytest.raises(FailedRunsError):
        run_sweep(sweep, path, jobs=1, observer=again)
    assert again.ran == [], "what has ended stays"


def test_a_second_start_of_a_sweep_says_that_it_is_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from filelock import FileLock

    from support import run_command

    (tmp_path / "sweep.toml").write_text(tomli_w.dumps(TINY))
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / ".lock"):
        assert run_command("sweep", tmp_path / "sweep.toml", "--out", out) == 2
    text = capsys.readouterr()
    assert "is in use by another command" in text.err
    assert "failed" not in text.out + text.err


@settings(max_examples=examples(1), deadline=None)
@given(st.data())
def test_whichever_runs_fail_all_others_are_trained(data: st.DataObject) -> None:
    """Against a reference: what is not spoilt is trained, and nothing else."""
    names = ["a", "b", "c", "d"]
    bad = data.draw(st.sets(st.sampled_from(names), max_size=3))
    seeds = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True))
    cases = [
        {"name": name, "model": {"kind": "experiments.test_sweep:broken" if name in bad else "linear"}}
        for name in names
    ]
    sweep = parsed(
        grid={}, cases=cases, seeds=seeds, iterations=2, evaluate_every=2, select=None, baselines=[],
        settings={"training": {"local_steps": 2}},
    )  # fmt: skip
    notes = Notes()
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_sweep(sweep, Path(folder) / "sweep", jobs=2, observer=notes)
            assert not bad
        except FailedRunsError as error:
            assert len(str(error).splitlines()) == len(bad) * len(seeds)  # noqa: PT017
        ended = {run.name for run in Path(folder, "sweep", "runs").glob("*") if (run / "result.json").exists()}
    assert ended == {f"{name},seed={seed}" for name in names if name not in bad for seed in seeds}
    assert sorted(notes.ran) == sorted(f"runs/{name}" for name in ended)
