from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tdcd import JobError, load_job, run_job
from tdcd.data.holdout import Part
from tdcd.jobs.data import load_data
from tdcd.jobs.load import embedded_job_text, parse_job
from tdcd.jobs.run import plain_steps
from tdcd.jobs.schema import EMBEDDED
from tdcd.strict import parse_setting

JOB: dict[str, Any] = {
    "name": "small",
    "data": {"source": "breast-cancer", "clients": 3},
    "model": {"kind": "linear"},
    "training": {"loss": "binary-cross-entropy", "rounds": 2, "rate": 0.1},
}


def changed(**tables: Any) -> dict[str, Any]:
    return {
        key: {**JOB.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in (JOB | tables).items()
    }


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_jobs_are_valid_and_resolve_to_themselves(name: str, tmp_path: Path) -> None:
    job = load_job(name)
    assert job.name == name
    resolved = tmp_path / "job.toml"
    resolved.write_text(tomli_w.dumps(job.as_table()))
    assert load_job(resolved) == job
    assert load_job(resolved).as_table() == job.as_table()
    assert f"tdcd train {name}.toml" in embedded_job_text(name)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            changed(training={"local_stepz": 4}),
            "job.toml: training: unknown key 'local_stepz'; did you mean 'local_steps'",
        ),
        (changed(trainng={}), "job.toml: unknown key 'trainng'; did you mean 'training'"),
        (changed(training={"rounds": "ten"}), r"job.toml: training.rounds: should be a valid integer \(is 'ten'\)"),
        (changed(training={"rate": "fast"}), r"training.rate: should be a valid number \(is 'fast'\)"),
        (changed(training={"loss": "hinge"}), "training.loss: unknown kind of loss 'hinge'; there is binary-"),
        (changed(data={"source": "mnist"}), "data.source: 'mnist' is not known; there is breast-cancer, cifar10"),
        (changed(data={"source": "digit"}), "data.source: 'digit' is not known; did you mean 'digits'"),
        (changed(data={"clients": 0}), "data.clients: should be greater than 0"),
        (changed(data={"test_fraction": 1.5}), "data.test_fraction: should be less than 1"),
        (changed(model={"kind": "mpl"}), "model: unknown kind of model 'mpl'; did you mean 'mlp'"),
        (changed(model={"kind": "mlp", "hidden": [0]}), r"model.hidden.0: should be greater than 0 \(is 0\)"),
        (changed(training={"schedule": {"kind": "stp"}}), "training.schedule.kind: .*'step'"),
        (changed(training={"schedule": {"kind": "step", "every": -1}}), "training.schedule.every: should be greater"),
        (changed(silos={"mean": {"clint": 3}}), "silos.mean: unknown key 'clint'; did you mean 'clients'"),
        (changed(name="a/b"), "name: names a directory"),
        (changed(engine="cloud"), "engine: should be 'local', 'oracle' or 'ray'"),
        ({"name": "x"}, "data: Field required"),
    ],
)
def test_a_wrong_job_names_the_key(table: dict[str, Any], says: str) -> None:
    with pytest.raises(JobError, match=says):
        parse_job(table, "job.toml")


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(JobError) as caught:
        parse_job(changed(training={"rounds": 0, "rate": -1.0}, data={"clients": "x"}), "job.toml")
    assert len(str(caught.value).splitlines()) == 3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no such job file; make one with: tdcd init"):
        load_job(tmp_path / "job.toml")
    (tmp_path / "jobs.toml").write_text("x = = 1")
    with pytest.raises(JobError, match="no such job file; did you mean '.*jobs.toml'"):
        load_job(tmp_path / "job.toml")
    with pytest.raises(JobError, match=r"jobs.toml: not TOML: .*line 1"):
        load_job(tmp_path / "jobs.toml")
    with pytest.raises(JobError, match="a directory, not a job file"):
        load_job(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match=r"binary.toml: not a text in UTF-8; save it in UTF-8"):
        load_job(tmp_path / "binary.toml")


def test_overrides() -> None:
    job = load_job("digits", {"training.rounds": 7, "training.schedule.kind": "theory", "model.hidden": [3]}, clients=4)
    assert job.training.rounds == 7
    assert job.training.schedule.kind == "theory"
    assert {silo.clients for silo in job.silos.values()} == {4}
    assert parse_setting("training.rate=0.5") == ("training.rate", 0.5)
    assert parse_setting("model.hidden=[1, 2]") == ("model.hidden", [1, 2])
    assert parse_setting("training.averaging=samples") == ("training.averaging", "samples")
    assert parse_setting('name="x y"') == ("name", "x y")
    with pytest.raises(JobError, match="KEY=VALUE"):
        parse_setting("training.rate")
    with pytest.raises(JobError, match="'name' is a value in the job, not a table"):
        load_job("digits", {"name.first": 1})


def test_materialised_data_is_dealt_as_asked() -> None:
    digits = load_data(load_job("digits"))
    federation, test = digits.federation, digits.held_out[Part.TEST]
    assert {silo: len(roster.clients) for silo, roster in federation.rosters.items()} == {"left": 8, "right": 5}
    assert len(federation) + len(test) == 1797
    tumours = load_data(parse_job(JOB, "job")).federation
    means = tumours.samples.features["worst"].mean(0)
    assert float(means.abs().max()) < 1e-5


def test_unknown_silos_are_named() -> None:
    job = parse_job(changed(silos={"means": {"clients": 2}}), "job.toml")
    with pytest.raises(JobError, match=r"job.toml: silos.means: the data has no such silo; did you mean 'mean'"):
        run_job(job, where="job.toml")


def test_a_silo_of_its_own_and_the_baselines(tmp_path: Path) -> None:
    job = parse_job(changed(silos={"worst": {"clients": 2, "model": {"kind": "mlp"}}}, baselines=["alone"]), "job")
    result = run_job(job, tmp_path / "run")
    assert set(result.baselines) == {"mean alone", "error alone", "worst alone"}
    assert len(result.federation.blocks["worst"]) == 4
    assert len(result.federation.blocks["mean"]) == 2
    assert (tmp_path / "run" / "alone" / "worst" / "blocks" / "worst.safetensors").exists()
    again = run_job(job, tmp_path / "run", resume=True)
    assert again.baselines["mean alone"].history == result.baselines["mean alone"].history


def test_central_training_takes_as_many_steps() -> None:
    settings = parse_job(changed(training={"rounds": 4, "local_steps": 5, "evaluate_every": 2}), "job").training
    plain = plain_steps(settings)
    assert (plain.rounds, plain.local_steps, plain.evaluate_every) == (20, 1, 10)
    for schedule in ({"kind": "step", "every": 2}, {"kind": "theory"}, {"kind": "constant"}):
        settings = parse_job(changed(training={"rounds": 4, "local_steps": 5, "schedule": schedule}), "job").training
        rates = [plain_steps(settings).rate_of(number) for number in range(1, 21)]
        assert rates == pytest.approx([settings.rate_of(1 + number // 5) for number in range(20)])


def test_the_central_baseline_is_one_client_and_one_step(tmp_path: Path) -> None:
    job = parse_job(changed(baselines=["central"], data={"clients": 1}, training={"rounds": 3}), "job")
    result = run_job(job, tmp_path / "run")
    assert result.baselines["central"].history[-1].test == pytest.approx(result.federation.history[-1].test)
    assert (tmp_path / "run" / "central" / "history.jsonl").exists()
