"""Jobs whose labels stay in one silo: settings, tables, silos with labels only, the audit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import tdcd
from support import run_command
from tdcd.core.gradients import GradientPrivatizer
from tdcd.experiments.audit import audit_labels, privatizers_of
from tdcd.jobs.data import load_data
from tdcd.jobs.load import parse_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job

DIGITS: dict[str, Any] = {
    "data": {"source": "digits", "features": {"kind": "strips", "silos": 2}, "clients": 3},
    "model": {"kind": "linear"},
    "training": {"loss": "cross-entropy", "rounds": 10, "local_steps": 2, "batch_size": 100, "rate": 0.05},
}


def digits(**more: Any) -> Job:
    return parse_job(DIGITS | more, "job")


def registry(folder: Path, sharing: str = "exact", people: int = 300) -> Path:
    """Write tables of two silos with features and one that has labels only."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(people, 4))
    columns = {
        "clinic": {"a": x[:, 0], "b": x[:, 1]},
        "lab": {"c": x[:, 2], "d": x[:, 3]},
        "registry": {"outcome": np.where(x.sum(1) > 0, "ill", "well")},
    }
    lines = [
        f'labels = {{ silo = "registry", sharing = "{sharing}", positive = "ill" }}',
        '[data]\nsource = "tables"\n[model]\nkind = "linear"',
        '[training]\nloss = "binary-cross-entropy"\nrounds = 20\nlocal_steps = 3\nbatch_size = 60\nrate = 0.2',
    ]
    for silo, own in columns.items():
        owner = generator.integers(2, size=people)
        for client in range(2):
            mine = np.flatnonzero(owner == client)
            frame = pl.DataFrame({"id": mine, **{name: values[mine] for name, values in own.items()}})
            frame.write_csv(folder / f"{silo}{client}.csv")
        label = '\nlabel = "outcome"' if silo == "registry" else ""
        lines.append(f'[silos.{silo}]\nid = "id"{label}\nclients = "{silo}*.csv"')
    (folder / "job.toml").write_text("\n".join(lines))
    return folder / "job.toml"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"sharing": "stale"}, r'labels: sharing = "stale" needs the silo that keeps them'),
        ({"sharing": "stake", "silo": "left"}, r"labels\.sharing: should be 'shared', 'exact' or 'stale'"),
        ({"sharing": "shared", "silo": "left", "noise": 1.0}, r"noise goes with sharing"),
        ({"sharing": "shared", "silo": "left", "tell_metrics": True}, r"tell_metrics goes with sharing"),
        ({"sharing": "exact", "silo": "left", "noise": 1.0}, r"noise is in units of clip"),
        ({"sharing": "exact", "silo": "left", "clip": 0.0}, r"labels\.clip: should be greater than 0"),
        ({"silo": "left"}, r"labels\.silo: say what becomes of them"),
        ({"sharing": "exact", "silo": "left", "positive": "x"}, r"labels\.positive goes with"),
        ({"sharing": "exact", "silo": "left", "clasess": ["x"]}, r"did you mean 'classes'"),
    ],
)
def test_settings_that_contradict_each_other(labels: dict[str, Any], message: str) -> None:
    with pytest.raises(tdcd.JobError, match=message):
        digits(labels=labels)


def test_a_silo_that_the_data_does_not_have() -> None:
    job = digits(labels={"sharing": "exact", "silo": "silo-9"})
    with pytest.raises(tdcd.JobError, match=r"has no silo 'silo-9'.*\[silos\.silo-9\] clients = 3"):
        load_data(job)


def test_two_silos_with_labels_of_which_one_keeps_them(tmp_path: Path) -> None:
    file = registry(tmp_path)
    file.write_text(file.read_text().replace('[silos.lab]\nid = "id"', '[silos.lab]\nid = "id"\nlabel = "c"'))
    with pytest.raises(tdcd.JobError, match=r"silos\.lab\.label: with sharing = \"exact\" only silo 'registry'"):
        tdcd.load_job(file)


def test_only_the_silo_with_the_labels_may_lack_features(tmp_path: Path) -> None:
    file = registry(tmp_path)
    file.write_text(file.read_text().replace('silo = "registry", sharing = "exact"', 'silo = "registry"'))
    with pytest.raises(tdcd.JobError, match="only silo registry has labels"):
        load_data(tdcd.load_job(file))
    for client in range(2):
        frame = pl.read_csv(tmp_path / f"lab{client}.csv")
        frame.select("id").write_csv(tmp_path / f"lab{client}.csv")
    with pytest.raises(tdcd.DataError, match="it has no columns of features"):
        load_data(tdcd.load_job(file, {"labels.sharing": "exact"}))
    silos = [tdcd.Silo("a", np.eye(4), [range(4)]), tdcd.Silo("b", None, [range(4)])]
    federation = tdcd.Federation.from_silos(silos, [0, 1, 0, 1])
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=1, rate=0.1)
    with pytest.raises(tdcd.DataError, match=r"silo 'b' has no features\. If it has the labels, say so"):
        tdcd.train(federation, tdcd.models.Linear(), settings)
    with pytest.raises(tdcd.DataError, match="at least one silo with features"):
        tdcd.Federation.from_silos(silos[1:], [0, 1, 0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["exact", "stale", "shared"])
def test_a_silo_with_labels_only(sharing: str, tmp_path: Path) -> None:
    """Trained, predicted from, measured with, and drawn; alone it can do nothing."""
    job = tdcd.load_job(registry(tmp_path, sharing), {"baselines": ["alone", "central", "one-tier"]})
    result = run_job(job, tmp_path / "run")
    assert set(result.baselines) == {"clinic alone", "lab alone", "central", "one-tier"}
    assert result.federation.blocks["registry"] == {}
    assert result.federation.kept.test["auroc"] > 0.95
    run = tdcd.load_model(tmp_path / "run")
    files: dict[str, list[Any]] = {s: [tmp_path / f"{s}{k}.csv" for k in range(2)] for s in ("clinic", "lab")}
    assert run.predict_tables(files).measures == {}
    measured = run.predict_tables(files | {"registry": [tmp_path / "registry0.csv", tmp_path / "registry1.csv"]})
    assert measured.measures["auroc"] > 0.95
    page = tdcd.write_report(tmp_path / "run").read_text()
    assert "none, only labels" in page
    assert "What keeping the labels costs" in page
    assert f"{sharing} (this run)" in page


def test_exact_and_shared_are_the_same_model_and_baselines_are_told_labels(tmp_path: Path) -> None:
    runs = {
        sharing: run_job(tdcd.load_job(registry(tmp_path, sharing), {"baselines": ["central"]}), tmp_path / sharing)
        for sharing in ("exact", "shared")
    }
    for silo, block in runs["shared"].federation.blocks.items():
        for name, tensor in block.items():
            assert torch.allclose(runs["exact"].federation.blocks[silo][name], tensor, atol=1e-5)
    stored = tdcd.load_job(tmp_path / "exact" / "central" / "job.toml")
    assert stored.labels.sharing == "shared"


def test_classes_that_do_not_occur_have_outputs_all_the_same(tmp_path: Path) -> None:
    job = tdcd.load_job(registry(tmp_path, "stale"), {"labels.classes": ["ill", "well"]})
    assert next(iter(run_job(job).federation.blocks["lab"].values())).shape[0] == 1
    table = tdcd.load_job(registry(tmp_path, "stale")).model_dump()
    table["labels"] |= {"classes": ["ill", "well", "unknown"], "positive": None}
    table["training"] |= {"loss": "cross-entropy"}
    assert next(iter(run_job(parse_job(table, "job")).federation.blocks["lab"].values())).shape[0] == 3
    with pytest.raises(tdcd.JobError, match=r"labels\.classes: the binary loss wants two, one of them 'ill'"):
        tdcd.load_job(registry(tmp_path, "stale"), {"labels.classes": ["sick", "well"]})


def test_what_python_users_mix_up() -> None:
    silos = [
        tdcd.Silo("a", np.eye(4), [["w", "x"], ["y", "z"]], ids=list("wxyz")),
        tdcd.Silo("b", None, [list("wxyz")]),
    ]
    federation = tdcd.Federation.from_silos(silos, [0, 1, 0, 1], list("wxyz"))
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=1, rate=0.1)
    with pytest.raises(tdcd.JobError, match=r"labels: a Labels is wanted, not \{'silo': 'b'\}"):
        tdcd.train(federation, tdcd.models.Linear(), settings, labels={"silo": "b"})  # type: ignore[arg-type]
    with pytest.raises(tdcd.DataError, match="labels.silo: 'c' is no silo"):
        tdcd.train(federation, tdcd.models.Linear(), settings, labels=tdcd.Labels(silo="c", sharing="shared"))
    kept = tdcd.Labels(silo="b", sharing="stale")
    result = tdcd.train(federation, tdcd.models.Linear(), settings, labels=kept)
    first = {"a": dict(result.blocks["a"])}
    assert tdcd.train(federation, tdcd.models.Linear(), settings, labels=kept, initial=first).blocks["b"] == {}


def test_an_alignment_that_hands_labels_over_is_refused_where_they_are_kept(tmp_path: Path) -> None:
    file = registry(tmp_path, "shared")
    assert run_command("align", file, "--out", tmp_path / "a.parquet") == 0
    with pytest.raises(tdcd.DataError, match="it hands over label, the job wants nothing"):
        load_data(tdcd.load_job(file, {"labels.sharing": "stale", "data.alignment": str(tmp_path / "a.parquet")}))
    kept = registry(tmp_path, "stale")
    assert run_command("align", kept, "--out", tmp_path / "b.parquet") == 0
    assert "outcome" not in pl.read_parquet(tmp_path / "b.parquet").columns
    assert pl.read_parquet(tmp_path / "b.parquet").columns == ["id"]


def test_classes_that_the_job_names() -> None:
    from tdcd.data.label_encoding import encode_labels, encode_labels_alone

    texts = pl.Series(["b", "a", "b"])
    assert encode_labels(texts, "classes", known=["b", "a", "c"])[0].tolist() == [0, 1, 0]
    with pytest.raises(tdcd.DataError, match="unknown label b; the job's labels.classes are a, c"):
        encode_labels(texts, "classes", known=["a", "c"])
    assert encode_labels_alone(texts, "binary", "b", ["b", "a"]).tolist() == [1, 0, 1]
    assert encode_labels_alone(texts[:1], "binary", "a", ["a", "b"]).tolist() == [0]
    assert encode_labels(texts, "binary", "a", ["a", "b"])[1] == ("b", "a")
    with pytest.raises(tdcd.DataError, match=r"labels\.classes: name all of them"):
        encode_labels_alone(texts, "binary", "a", None)
    with pytest.raises(tdcd.DataError, match="unknown label b"):
        encode_labels_alone(texts, "binary", "a", ["a", "c"])
    with pytest.raises(tdcd.DataError, match="the binary loss wants 0, 1"):
        encode_labels_alone(texts, "binary", None, None)
    assert encode_labels_alone(pl.Series(["1.5", "2"]), "numbers", None, None).tolist() == [1.5, 2.0]


# The audit


@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_answers_tell_labels_and_a_defence_hides_them(sharing: str) -> None:
    job = digits(labels={"silo": "left", "sharing": sharing})
    plain, strong = audit_labels(job, load_data(job), [None, GradientPrivatizer(clip=0.1, noise=30.0)])
    assert plain.silo == "right"
    assert plain.first.value == plain.first.direction == 1.0  # softmax: the negative number is the label
    assert plain.every.value == 1.0
    assert plain.samples > 500
    assert 0.45 < strong.first.value < 0.55
    assert strong.test is not None
    assert plain.test is not None
    assert plain.test > strong.test


def test_the_audit_agrees_with_a_few_lines(tmp_path: Path) -> None:
    """One round of logistic regression: g = σ(z) − y at the first weights."""
    from sklearn.metrics import roc_auc_score

    job = tdcd.load_job(registry(tmp_path, "stale"), {"training.rounds": 1, "training.batch_size": "full"})
    data = load_data(job)
    (match,) = audit_labels(job, data, [None])
    samples = data.federation.samples
    result = run_job(job.model_copy(update={"training": job.training.model_copy(update={"rate": 1e-12})})).federation
    g = torch.sigmoid(result.scores(samples.features)[:, 0]).numpy() - samples.labels.numpy()
    areas = roc_auc_score(samples.labels, np.abs(g)), roc_auc_score(samples.labels, -g)
    assert match.first.norm == pytest.approx(max(areas[0], 1 - areas[0]), abs=1e-3)
    assert match.first.value == pytest.approx(areas[1]) == 1.0
    assert match.first == match.every


@pytest.mark.parametrize("sharing", ["exact", "stale"])
@pytest.mark.parametrize("compute", ["auto", "loop", "stacked"])
def test_norms_that_were_all_clipped_tell_nothing(compute: str, sharing: str) -> None:
    """They are the same but for rounding, and a tie is worth a guess, whichever path computes them."""
    job = digits(labels={"silo": "left", "sharing": sharing}).model_copy(update={"compute": compute})
    (result,) = audit_labels(job, load_data(job), [GradientPrivatizer(clip=0.05)])
    assert (result.first.norm, result.every.norm) == (0.5, 0.5)
    assert result.first.direction > 0.9  # where they point is another matter


def test_audits_that_make_no_sense() -> None:
    shared = digits()
    with pytest.raises(tdcd.JobError, match="there is nothing to infer"):
        next(audit_labels(shared, load_data(shared), [None]))
    job = digits(labels={"silo": "left", "sharing": "stale"})
    with pytest.raises(tdcd.JobError, match=r"--silo: 'left' receives no logit gradients"):
        next(audit_labels(job, load_data(job), [None], silo="left"))
    with pytest.raises(tdcd.JobError, match="in units of --clip"):
        privatizers_of(job, None, [1.0])
    wild = parse_job(DIGITS | {"labels": {"silo": "left", "sharing": "stale"}}, "job")
    wild = wild.model_copy(update={"training": wild.training.model_copy(update={"rate": 1e200})})
    (result,) = audit_labels(wild, load_data(wild), [None])
    assert result.test is None
    assert result.diverged
    assert result.rounds < 10
    with pytest.raises(tdcd.JobError, match=r"noise: .*greater than or equal to 0"):
        privatizers_of(job, 1.0, [-1.0])
    assert privatizers_of(job, 2.0, [1.0, 1.0]) == [None, GradientPrivatizer(2.0, 1.0)]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = registry(tmp_path, "stale")
    assert run_command("audit", "labels", file, "--rounds", 3, "--clip", 1, "--noise", 20, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["noise"] for line in lines] == [0.0, 20.0]
    assert lines[0]["first"]["value"] == 1.0
    assert lines[1]["first"]["value"] < 0.7
    assert run_command("train", file, "--out", tmp_path / "run", "--quiet") == 0
    assert run_command("audit", "labels", tmp_path / "run", "--rounds", 2) == 0
    text = capsys.readouterr().out
    assert "as silo 'clinic' can tell them" in text
    assert "1.000" in text
    assert run_command("audit", "labels", file, "--set", "labels.sharing=shared") == 2
    assert "nothing to infer" in capsys.readouterr().err
