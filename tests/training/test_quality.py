"""How good a model is: every number against scikit-learn, or against a slow reference of a few lines."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.calibration import calibration_curve

import tdcd
from support import examples
from tdcd.core.objectives.binary_cross_entropy import BinaryCrossEntropy
from tdcd.core.objectives.cross_entropy import CrossEntropy
from tdcd.core.objectives.poisson import Poisson
from tdcd.core.objectives.squared_error import SquaredError
from tdcd.core.topology import roster_of
from tdcd.data.arrays import Array
from tdcd.runs.quality import Cut, Points, QualityRecord
from tdcd.runs.reader import read_quality, read_run
from tdcd.runs.records import parse_record, write_record
from tdcd.training.metrics import measure
from tdcd.training.quality import Assessment, assess, choose_cuts
from tdcd.training.quality.assessment import MOST_CLASSES, MOST_CURVES, confuse
from tdcd.training.quality.calibration import calibrate, calibration_error
from tdcd.training.quality.clients import LEAST_ROWS, MOST_CLIENTS
from tdcd.training.quality.curves import MOST_POINTS, Ranking, thin_out
from tdcd.training.quality.thresholds import Best, best_threshold

ROWS = st.lists(st.tuples(st.integers(-4, 4).map(float), st.booleans()), min_size=1, max_size=40)
"""Few distinct scores: many ties."""


def binary(scores: Any, truth: Any, **more: Any) -> QualityRecord:
    z, y = torch.as_tensor(np.array(scores, dtype=np.float64)).unsqueeze(1), torch.as_tensor(np.array(truth)).double()
    return assess(BinaryCrossEntropy(), z, y, Assessment("some rows", **more))


def drawn(rows: int = 500, seed: int = 1) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    scores = random.normal(size=rows)
    return scores, random.random(rows) < 1 / (1 + np.exp(1.5 - scores))


def close(value: float, wanted: float) -> bool:
    return value == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(ROWS)
def test_numbers_of_the_binary_loss_are_those_of_scikit_learn(rows: list[tuple[float, bool]]) -> None:
    scores, truth = np.array([s for s, _ in rows]), np.array([p for _, p in rows])
    probabilities = 1 / (1 + np.exp(-scores))
    record = binary(scores, truth)
    (one,) = record.classes
    assert (one.rows, one.positives) == (len(rows), truth.sum())
    assert close(one.measures["brier"], float(np.square(truth - probabilities).mean()))
    assert close(one.measures["brier_of_share"], float(np.square(truth - truth.mean()).mean()))
    if len(set(truth)) == 1:
        assert one.missing == "all rows are of one class"
        assert not {"auroc", "gini", "ks", "auprc"} & set(one.measures)
        assert (one.roc, one.precision_recall, one.lift) == (None, None, ())
    else:
        assert close(one.measures["brier"], metrics.brier_score_loss(truth, probabilities))
        area = metrics.roc_auc_score(truth, scores)
        assert close(one.measures["auroc"], area)
        assert close(one.measures["gini"], 2 * area - 1)
        assert close(one.measures["auprc"], metrics.average_precision_score(truth, scores))
        gaps = [abs((scores[truth] >= s).mean() - (scores[~truth] >= s).mean()) for s in scores]
        assert close(one.measures["ks"], max(gaps))
        assert one.roc is not None
        assert one.precision_recall is not None
        x, y, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
        assert one.roc.x == pytest.approx(x, rel=1e-4)
        assert one.roc.y == pytest.approx(y, rel=1e-4)
        precision, recall, _ = metrics.precision_recall_curve(truth, scores)
        assert one.precision_recall.y == pytest.approx(precision[-2::-1], rel=1e-4)
        assert one.precision_recall.x == pytest.approx(recall[-2::-1], rel=1e-4)
    expected = measure(BinaryCrossEntropy(), torch.tensor(scores).unsqueeze(1), torch.tensor(truth).double())
    assert {name: record.measures[name] for name in expected} == pytest.approx(expected)


@settings(max_examples=examples(40), deadline=None)
@given(ROWS, st.sampled_from([2, 5, 10]))
def test_calibration_is_that_of_scikit_learn(rows: list[tuple[float, bool]], bins: int) -> None:
    truth = np.array([p for _, p in rows])
    probabilities = 1 / (1 + np.exp(-np.array([s for s, _ in rows])))
    result = calibrate(probabilities, truth, bins)
    observed, predicted = calibration_curve(truth, probabilities, n_bins=bins, strategy="quantile")
    assert [one.observed for one in result] == pytest.approx(observed)
    assert [one.predicted for one in result] == pytest.approx(predicted)
    assert sum(one.rows for one in result) == len(rows)
    gaps = [one.rows * abs(one.observed - one.predicted) for one in result]
    assert close(calibration_error(result), sum(gaps) / len(rows))


def value_at(threshold: float, probabilities: Array, truth: Array, criterion: Best) -> float:
    said = probabilities >= threshold
    if criterion == "f1":
        return float(metrics.f1_score(truth, said, zero_division=0))
    return float(metrics.recall_score(truth, said) + metrics.recall_score(~truth, ~said) - 1)


@settings(max_examples=examples(40), deadline=None)
@given(ROWS, st.sampled_from(["f1", "youden"]))
def test_a_threshold_is_the_best_of_all(rows: list[tuple[float, bool]], criterion: Best) -> None:
    truth = np.array([p for _, p in rows])
    probabilities = 1 / (1 + np.exp(-np.array([s for s, _ in rows])))
    if len(set(truth)) == 1:
        with pytest.raises(tdcd.DataError, match="all .* are (positive|negative)"):
            best_threshold(probabilities, truth, criterion)
        return
    threshold = best_threshold(probabilities, truth, criterion)
    worths = {float(p): value_at(float(p), probabilities, truth, criterion) for p in probabilities}
    best = max(worths.values())
    assert close(value_at(threshold, probabilities, truth, criterion), best)
    highest = max(p for p, worth in worths.items() if close(worth, best))
    assert threshold <= highest, "of several, the highest"
    assert not ((probabilities >= threshold) & (probabilities < highest)).any()
    assert threshold not in probabilities, "half-way between two, so that rounding moves no row across"


@settings(max_examples=examples(30), deadline=None)
@given(ROWS, st.floats(0, 1))
def test_the_confusion_at_a_threshold(rows: list[tuple[float, bool]], threshold: float) -> None:
    scores, truth = np.array([s for s, _ in rows]), np.array([p for _, p in rows])
    said = torch.sigmoid(torch.tensor(scores)).numpy() >= threshold
    (point,) = binary(scores, truth, cuts=[Cut(threshold, "given")]).points
    matrix = metrics.confusion_matrix(truth, said, labels=[False, True])
    assert matrix.tolist() == [
        [point.true_negatives, point.false_positives],
        [point.false_negatives, point.true_positives],
    ]
    expected = {
        "precision": metrics.precision_score(truth, said, zero_division=np.nan),
        "recall": metrics.recall_score(truth, said, zero_division=np.nan),
        "specificity": metrics.recall_score(~truth, ~said, zero_division=np.nan),
        "f1": metrics.f1_score(truth, said, zero_division=np.nan),
        "accuracy": metrics.accuracy_score(truth, said),
        "flagged": said.mean(),
    }
    for name, wanted in expected.items():
        value = point.measures.get(name)
        assert value is None if math.isnan(wanted) else close(value or 0.0, wanted), name


@settings(max_examples=examples(40), deadline=None)
@given(ROWS)
def test_lift_counts_ties_by_their_mean(rows: list[tuple[float, bool]]) -> None:
    scores, truth = [s for s, _ in rows], [p for _, p in rows]
    if len(set(truth)) == 1:
        return
    groups = Ranking.of(np.array(scores), np.array(truth)).lift()
    assert sum(group.rows for group in groups) == len(rows)
    worth = {s: Fraction(sum(p for t, p in rows if t == s), scores.count(s)) for s in scores}
    ranked = [worth[s] for s in sorted(scores, reverse=True)]  # what a row of its score is worth, on average
    share, place, above = Fraction(sum(truth), len(truth)), 0, Fraction(0)
    for group in groups:
        own = sum(ranked[place : place + group.rows], Fraction(0))
        place, above = place + group.rows, above + own
        assert group.positives == pytest.approx(float(own), rel=1e-4, abs=1e-9)
        assert group.lift == pytest.approx(float(own / group.rows / share), rel=1e-4, abs=1e-9)
        assert group.captured == pytest.approx(float(above / sum(truth)), rel=1e-4, abs=1e-9)


def test_scores_that_say_nothing() -> None:
    record = binary([0.0] * 40, [False, True] * 20)
    (one,) = record.classes
    assert [one.measures[name] for name in ("auroc", "gini", "ks", "auprc", "brier")] == [0.5, 0.0, 0.0, 0.5, 0.25]
    assert one.roc == Points((0.0, 1.0), (0.0, 1.0))
    assert {group.lift for group in one.lift} == {1.0}
    assert len(one.calibration) == 1
    (point,) = record.points
    assert (point.true_positives, point.false_positives) == (20, 20), "a row at the threshold is flagged"


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(broken: float) -> None:
    with pytest.raises(tdcd.DataError, match="the scores of 1 of 3 rows are not finite"):
        binary([0.0, broken, 1.0], [True, False, True])


def test_no_rows_are_refused() -> None:
    with pytest.raises(tdcd.DataError, match="some rows: there are none"):
        binary([], [])


def test_curves_have_few_points_and_stay_where_they_were() -> None:
    scores, truth = drawn(20_000)
    ranking = Ranking.of(scores, truth)
    x, y = ranking.rates
    points = ranking.roc()
    assert len(points.x) <= MOST_POINTS
    assert (points.x[0], points.y[0], points.x[-1], points.y[-1]) == (0, 0, 1, 1)
    assert np.abs(np.interp(x, points.x, points.y) - y).max() < 2 / MOST_POINTS
    assert len(ranking.precision_recall().x) <= MOST_POINTS
    assert thin_out(x[:3], y[:3], x[:3] + y[:3]).x == pytest.approx(x[:3])


def test_a_record_is_read_as_it_was_written(tmp_path: Any) -> None:
    scores, truth = drawn(20_000)
    z = torch.tensor(scores).unsqueeze(1)
    cuts = choose_cuts(BinaryCrossEntropy(), z[:1000], torch.tensor(truth[:1000]).double(), "others")
    holders = {"bank": roster_of(np.arange(20_000) % 3, ["a", "b", "c"])}
    record = binary(scores, truth, cuts=cuts, holders=holders, notes=("a note",))
    write_record(tmp_path / "quality.json", record)
    text = (tmp_path / "quality.json").read_text()
    assert parse_record(text, QualityRecord, "quality.json") == record
    assert len(text) < 40_000, "however many rows"
    with pytest.raises(tdcd.RunError, match="damaged"):
        parse_record(text.replace('"a note"', '"another"'), QualityRecord, "quality.json")


# Several classes


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 1000))
def test_classes_one_against_all_others(classes: int, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, truth = random.integers(-2, 3, (rows, classes)).astype(float), random.integers(0, classes, rows)
    objective, z, y = CrossEntropy(), torch.tensor(scores), torch.tensor(truth)
    chances, said = objective.probabilities(z).numpy(), objective.predictions(z).numpy()
    record = assess(objective, z, y, Assessment("some rows", classes=[f"class {k}" for k in range(classes)]))
    assert record.confusion is not None
    assert record.confusion.counts == tuple(
        tuple(row) for row in metrics.confusion_matrix(truth, said, labels=range(classes)).tolist()
    )
    assert close(record.measures["brier"], float(np.square(np.eye(classes)[truth] - chances).sum(1).mean()))
    for k, one in enumerate(record.classes):
        own = truth == k
        assert (one.name, one.positives) == (f"class {k}", own.sum())
        assert close(one.measures["brier"], float(np.square(own - chances[:, k]).mean()))
        if own.any() and not own.all():
            assert close(one.measures["auroc"], metrics.roc_auc_score(own, chances[:, k]))
            assert close(one.measures["auprc"], metrics.average_precision_score(own, chances[:, k]))
        expected = {
            "precision": metrics.precision_score(own, said == k, zero_division=np.nan),
            "recall": metrics.recall_score(own, said == k, zero_division=np.nan),
            "f1": metrics.f1_score(own, said == k, zero_division=np.nan),
        }
        for name, wanted in expected.items():
            value = one.measures.get(name)
            assert value is None if math.isnan(wanted) else close(value or 0.0, wanted), name
    assert sum(one.rows for one in record.confidence) == rows


def test_many_classes_make_no_large_record() -> None:
    random = np.random.default_rng(3)
    truth = torch.tensor(np.concatenate([np.arange(60), random.integers(0, 60, 600)]))
    record = assess(CrossEntropy(), torch.tensor(random.normal(size=(660, 60))), truth, Assessment("some rows"))
    assert record.confusion is not None
    assert len(record.confusion.names) == MOST_CLASSES + 1
    assert record.confusion.names[-1] == "all others"
    assert sum(map(sum, record.confusion.counts)) == 660
    assert sum(one.roc is not None for one in record.classes) == MOST_CURVES
    assert all("auroc" in one.measures for one in record.classes)
    matrix = confuse(np.array([0, 1, 2]), np.array([0, 2, 2]), ["a", "b", "c"], [2, 1, 0])
    assert matrix.counts == ((1, 0, 0), (0, 0, 1), (0, 0, 1))


# Regressions


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=40), st.integers(1, 2))
def test_a_regression(rows: list[tuple[float, float]], width: int) -> None:
    predicted, actual = (np.repeat(np.array(column)[:, None], width, 1) for column in zip(*rows, strict=True))
    record = assess(SquaredError(), torch.tensor(predicted), torch.tensor(actual), Assessment("some rows"))
    assert close(record.measures["mae"], metrics.mean_absolute_error(actual, predicted))
    assert close(record.measures["rmse"], math.sqrt(metrics.mean_squared_error(actual, predicted)))
    assert len(record.targets) == width
    target = record.targets[0]
    residuals = actual[:, 0] - predicted[:, 0]
    assert close(target.measures["bias"], residuals.mean())
    if len(rows) > 1 and np.ptp(actual) > 1e-3:
        assert target.measures["r2"] == pytest.approx(metrics.r2_score(actual[:, 0], predicted[:, 0]), rel=1e-6)
    assert target.residuals["50"] == pytest.approx(np.median(residuals))
    assert list(target.residuals) == ["1", "5", "25", "50", "75", "95", "99"]
    assert sum(one.rows for one in target.bins) == len(rows)
    assert [one.predicted for one in target.bins] == sorted(one.predicted for one in target.bins)
    assert sum(one.rows * one.actual for one in target.bins) == pytest.approx(actual[:, 0].sum(), abs=1e-9)


def test_counts_are_compared_with_expected_counts() -> None:
    scores, actual = torch.zeros(20, 1, dtype=torch.float64), torch.arange(20, dtype=torch.float64).unsqueeze(1)
    record = assess(Poisson(), scores, actual, Assessment("some rows"))
    assert close(record.measures["mae"], metrics.mean_absolute_error(actual, np.ones(20)))


# Clients


def test_each_client_by_itself() -> None:
    scores, truth = drawn(300)
    owner = np.array([0] * 200 + [1] * 91 + [2] * 9)
    truth[200:291] = False
    (silo,) = binary(scores, truth, holders={"bank": roster_of(owner, ["large", "spared", "small"])}).silos
    large, spared, small = silo.clients
    assert (large.name, large.rows, large.positives, large.missing) == ("large", 200, int(truth[:200].sum()), "")
    assert close(large.measures["auroc"], metrics.roc_auc_score(truth[:200], scores[:200]))
    assert close(large.measures["auprc"], metrics.average_precision_score(truth[:200], scores[:200]))
    probabilities = 1 / (1 + np.exp(-scores[:200]))
    assert close(large.measures["brier"], metrics.brier_score_loss(truth[:200], probabilities))
    assert close(large.measures["loss"], metrics.log_loss(truth[:200], probabilities))
    said = probabilities >= 0.5
    assert close(large.measures["recall"], metrics.recall_score(truth[:200], said))
    assert close(large.measures["precision"], metrics.precision_score(truth[:200], said))
    assert close(large.measures["mean_probability"], probabilities.mean())
    assert (spared.positives, spared.missing) == (0, "no positive rows")
    assert "brier" in spared.measures
    assert "auroc" not in spared.measures
    assert small.measures == {}
    assert small.missing == f"not enough rows: fewer than {LEAST_ROWS}"


def test_of_many_clients_the_largest_are_listed() -> None:
    scores, truth = drawn(5000)
    owner = np.concatenate([np.arange(MOST_CLIENTS + 7), np.zeros(5000 - MOST_CLIENTS - 7, dtype=int)])
    roster = roster_of(owner, [str(k) for k in range(MOST_CLIENTS + 7)])
    (silo,) = binary(scores, truth, holders={"bank": roster}).silos
    assert (len(silo.clients), silo.left_out, silo.clients[0].name) == (MOST_CLIENTS, 7, "0")


# At the end of a training


RNG = np.random.default_rng(5)
X = RNG.normal(size=(600, 6))
Y = (X[:, 0] + X[:, 4] + RNG.normal(size=600) > 0.5).astype(np.int64)
FEDERATION = tdcd.Federation.from_silos(
    [tdcd.Silo(name, x, [range(200), range(200, 300)]) for name, x in (("a", X[:300, :3]), ("b", X[:300, 3:]))],
    Y[:300],
)


def held_out(start: int, stop: int, clients: Any = None) -> tdcd.Samples:
    return tdcd.Samples.from_arrays({"a": X[start:stop, :3], "b": X[start:stop, 3:]}, Y[start:stop], clients)


def train(directory: Any, rounds: int = 6, **more: Any) -> tdcd.Result:
    table = {"loss": "binary-cross-entropy", "rounds": rounds, "rate": 0.5, "batch_size": 100}
    settings = tdcd.Settings.model_validate(table | more.pop("settings", {}))
    return tdcd.train(FEDERATION, tdcd.models.Linear(), settings, directory=directory, **more)


def test_a_run_records_the_quality_of_the_weights_that_it_keeps(tmp_path: Any) -> None:
    names = ["north"] * 120 + ["south"] * 75 + ["islands"] * 5
    validation, test = held_out(300, 400), held_out(400, 600, {"a": names})
    result = train(tmp_path / "run", settings={"select": "best", "rate": 8.0}, validation=validation, test=test)
    record = read_quality(tmp_path / "run")
    assert record is not None
    assert record == read_run(tmp_path / "run").quality
    assert (record.round, record.rows, record.samples) == (result.selected, 200, "the 200 test samples")
    expected = result.evaluate(test)
    assert {name: record.measures[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    best, youden, half = (point.cut for point in record.points)
    assert (best.criterion, youden.criterion, half.criterion) == ("f1", "youden", "half")
    chances = result.probabilities(validation.features).double().numpy()
    wanted = best_threshold(chances, validation.labels.numpy() == 1, "f1")
    assert best.threshold == pytest.approx(wanted, rel=1e-4), "it is chosen on validation samples"
    assert best.chosen_on == "the 100 validation samples"
    (silo,) = record.silos
    assert [(client.name, client.rows) for client in silo.clients] == [("north", 120), ("south", 75), ("islands", 5)]


def test_what_is_held_out_decides_what_is_measured(tmp_path: Any) -> None:
    train(tmp_path / "none")
    assert read_quality(tmp_path / "none") is None
    train(tmp_path / "test", test=held_out(400, 600))
    record = read_quality(tmp_path / "test")
    assert record is not None
    assert [point.cut for point in record.points] == [Cut(0.5, "half")]
    assert "there are no validation samples to choose a threshold on" in record.notes[0]
    train(tmp_path / "validation", validation=held_out(300, 400))
    record = read_quality(tmp_path / "validation")
    assert record is not None
    assert record.samples == "the 100 validation samples"
    assert [point.cut for point in record.points] == [Cut(0.5, "half")], "never on what is measured"
    one = tdcd.Samples.from_arrays({"a": X[300:320, :3], "b": X[300:320, 3:]}, np.zeros(20, dtype=int))
    train(tmp_path / "one", validation=one, test=held_out(400, 600))
    record = read_quality(tmp_path / "one")
    assert record is not None
    assert "no threshold could be chosen on the validation samples: all 20 are negative" in record.notes[0]


def test_a_run_that_goes_on_records_it_anew(tmp_path: Any) -> None:
    whole, path = tmp_path / "whole", tmp_path / "run"
    train(whole, test=held_out(400, 600))
    train(path, 3, test=held_out(400, 600))
    before = read_quality(path)
    train(path, test=held_out(400, 600), resume=True)
    assert read_quality(path) == read_quality(whole) != before
    (path / "quality.json").unlink()
    (path / "result.json").unlink()
    train(path, test=held_out(400, 600), resume=True)
    assert read_quality(path) == read_quality(whole)


def test_an_interrupted_run_has_none(tmp_path: Any) -> None:
    class Interrupt(tdcd.Callback):
        def after_round(self, finished: Any) -> None:
            raise KeyboardInterrupt

    train(tmp_path, 3, test=held_out(400, 600))
    assert read_quality(tmp_path) is not None
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 6, test=held_out(400, 600), resume=True, callbacks=[Interrupt()])
    assert read_quality(tmp_path) is None


def test_weights_that_count_positives_more_are_said_to(tmp_path: Any) -> None:
    z, y = torch.randn(30, 1), (torch.arange(30) % 2).float()
    record = assess(BinaryCrossEntropy(3.0), z, y, Assessment("some rows"))
    assert "positive_weight = 3: probabilities are meant to be higher than frequencies" in record.notes[0]


def test_clients_are_a_name_for_each_row() -> None:
    with pytest.raises(tdcd.DataError, match="clients of silo 'a': a name for each of the 10 samples is wanted"):
        held_out(0, 10, {"a": ["x"] * 9})
