"""How good a model is on labelled samples: figures and tables for pages and terminals."""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

from markupsafe import Markup

from tdcd.reports.figures import Curve, Picture
from tdcd.reports.words import Table, count, label, number
from tdcd.runs.quality import (
    CalibrationBin,
    ClassQuality,
    Confusion,
    OperatingPoint,
    QualityRecord,
    SiloQuality,
    TargetQuality,
)

CRITERIA = {"f1": "best F1", "youden": "best Youden’s J", "given": "as given", "half": "by default"}
GREY = "#8a93a1"
MOST_CLASSES, MOST_TARGETS = 10, 4
"""Of a figure, and of figures."""
SCALARS = ("auroc", "gini", "ks", "auprc", "accuracy", "f1", "top5", "r2", "mae", "rmse", "brier", "brier_of_share",
           "calibration_error", "confidence_error", "loss")  # fmt: skip
"""What is shown of all rows, in this order."""
PER_CLASS = ("precision", "recall", "f1", "auroc", "gini", "ks", "auprc", "brier")
PER_CLIENT = ("mean_probability", "loss", "auroc", "auprc", "accuracy", "f1", "brier", "precision", "recall", "r2",
              "mae", "rmse")  # fmt: skip
AT_HALF = ("accuracy", "f1")
"""Of the binary loss these are of a threshold of 0.5, and would be read as of the one that was chosen."""


def quality_pictures(record: QualityRecord) -> Iterator[Picture]:
    """Yield the figures of a record."""
    if record.meaning == "numbers":
        for place, target in enumerate(record.targets[:MOST_TARGETS]):
            yield _predicted_and_actual(target, place)
        return
    drawn = [one for one in record.classes if one.roc][:MOST_CLASSES]
    yield from _curves(record, drawn)
    if record.meaning == "classes":
        yield _calibration(record.confidence, "highest probability", "share of right predictions")
    elif record.classes and record.classes[0].calibration:
        yield _calibration(record.classes[0].calibration, "predicted probability", "observed share")
    if record.meaning == "binary" and drawn:
        groups = drawn[0].lift
        rows = [0.0]
        for group in groups:
            rows.append(rows[-1] + group.rows / drawn[0].rows)
        gains = Curve("by score", rows, [0.0, *(group.captured for group in groups)], kind="dots")
        yield Picture(
            "gains", "Gains", "share of rows, highest scores first", "share of positives", [gains, _diagonal()],
            axes="shares",
        )  # fmt: skip


def _curves(record: QualityRecord, drawn: Sequence[ClassQuality]) -> Iterator[Picture]:
    """Yield the ROC and the precision-recall curves."""
    if not drawn:
        return
    binary = record.meaning == "binary"
    names = ["model" if binary else one.name for one in drawn]
    roc = [Curve(name, one.roc.x, one.roc.y) for name, one in zip(names, drawn, strict=True) if one.roc]
    marks: list[Curve] = []
    if binary and record.points:
        point = record.points[0]
        recall, precision = point.measures.get("recall", 0.0), point.measures.get("precision")
        specificity = point.measures.get("specificity", 0.0)
        text = f"threshold {point.cut.threshold:.3g}"
        roc.append(Curve(text, [1 - specificity], [recall], colour=1))
        if precision is not None:
            marks = [Curve(text, [recall], [precision], colour=1)]
    roc.append(_diagonal())
    yield Picture("roc", "ROC", "false positive rate", "true positive rate", roc, axes="shares")
    lines = [
        Curve(name, one.precision_recall.x, one.precision_recall.y)
        for name, one in zip(names, drawn, strict=True)
        if one.precision_recall
    ]
    if binary:
        share = drawn[0].positives / drawn[0].rows
        marks.append(Curve("guess", [0.0, 1.0], [share, share], kind="thin", colour=GREY))
    yield Picture("precision-recall", "Precision and recall", "recall", "precision", [*lines, *marks], axes="shares")


def _diagonal(low: float = 0.0, high: float = 1.0, name: str = "guess") -> Curve:
    return Curve(name, [low, high], [low, high], kind="thin", colour=GREY)


def _calibration(bins: Sequence[CalibrationBin], x: str, y: str) -> Picture:
    """Return predicted against observed, with intervals that hold the true share 19 times of 20 (Wilson)."""
    spans = [_interval(one.observed, one.rows) for one in bins]
    low, high = [span[0] for span in spans], [span[1] for span in spans]
    predicted = [one.predicted for one in bins]
    curve = Curve("model", predicted, [one.observed for one in bins], low, high, kind="dots")
    ends = min(predicted), max(predicted)
    return Picture("calibration", "Calibration", x, y, [curve, _diagonal(*ends, name="perfect")], axes="values")


def _interval(share: float, rows: int, z: float = 1.96) -> tuple[float, float]:
    middle = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z * sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows)) / (1 + z * z / rows)
    return max(0.0, middle - half), min(1.0, middle + half)


def _predicted_and_actual(target: TargetQuality, place: int) -> Picture:
    bins, several = target.bins, place or target.name != "target"
    x = [one.predicted for one in bins]
    curve = Curve("mean, 10 to 90 %", x, [b.actual for b in bins], [b.low for b in bins], [b.high for b in bins],
                  kind="dots")  # fmt: skip
    ends = min(x), max(x)
    caption = "Predicted and actual" + (f", {target.name}" if several else "")
    name = f"predicted-{place + 1}" if several else "predicted"
    return Picture(name, caption, "predicted", "actual", [curve, _diagonal(*ends, name="perfect")], axes="values")


def scalars(record: QualityRecord) -> list[tuple[str, str]]:
    """Return measures of all rows, by what people call them."""
    hidden = AT_HALF if record.meaning == "binary" else ()
    shown = [name for name in SCALARS if name in record.measures and name not in hidden]
    return [(label(name), number(record.measures[name])) for name in shown]


def describe_point(point: OperatingPoint) -> str:
    """Say which threshold, and how it was chosen."""
    cut = point.cut
    return f"{cut.threshold:.4g}, {CRITERIA[cut.criterion]}" + (f" on {cut.chosen_on}" if cut.chosen_on else "")


def describe_missing(record: QualityRecord) -> str:
    """Say why curves and areas are missing, if they are."""
    why = record.classes[0].missing if record.meaning == "binary" else ""
    return f"Curves and areas are undefined: {why}." if why else ""


def operating_points(record: QualityRecord) -> Table:
    """Return the table of what becomes of all rows at each threshold."""
    names = ("flagged", "precision", "recall", "specificity", "f1", "accuracy")
    rows = [
        (
            f"{point.cut.threshold:.4g}",
            [CRITERIA[point.cut.criterion], *(number(point.measures.get(name)) for name in names)],
        )
        for point in record.points
    ]
    return ["chosen", *map(label, names)], rows


def confusion(record: QualityRecord) -> Confusion | None:
    """Return the confusion matrix: of classes, or at the threshold that was chosen."""
    if not record.points:
        return record.confusion
    point, name = record.points[0], record.classes[0].name
    negative = "0" if name == "1" else f"not {name}"
    counts = (point.true_negatives, point.false_positives), (point.false_negatives, point.true_positives)
    return Confusion((negative, name), counts)


def lift(record: QualityRecord) -> Table:
    """Return the table of lift by decile."""
    groups = record.classes[0].lift if record.meaning == "binary" else ()
    rows = [
        (str(place), [f"{g.rows:,}", f"{g.positives:,.0f}", f"{g.positives / g.rows:.1%}", f"{g.lift:.2f}",
                      f"{g.captured:.1%}"])
        for place, g in enumerate(groups, start=1)
    ]  # fmt: skip
    return ["rows", "positives", "share", "lift", "captured so far"], rows


def classes(record: QualityRecord) -> Table:
    """Return the table of classes, each against all others."""
    if record.meaning != "classes":
        return [], []
    rows = [
        (one.name, [f"{one.positives:,}", *(number(one.measures.get(name)) for name in PER_CLASS)])
        for one in record.classes
    ]
    return ["rows", *map(label, PER_CLASS)], rows


def residuals(record: QualityRecord) -> Table:
    """Return the table of targets: measures, and quantiles of what came true less what was predicted."""
    if not record.targets:
        return [], []
    names = [name for name in ("mae", "rmse", "bias", "r2") if any(name in one.measures for one in record.targets)]
    quantiles = list(record.targets[0].residuals)
    rows = [
        (one.name, [*(number(one.measures.get(n)) for n in names), *(number(one.residuals[q]) for q in quantiles)])
        for one in record.targets
    ]
    return [*map(label, names), *(f"{quantile} %" for quantile in quantiles)], rows


def clients(silo: SiloQuality) -> Table:
    """Return the table of a silo's clients."""
    names = [name for name in PER_CLIENT if any(name in one.measures for one in silo.clients)]
    binary = any(one.positives is not None for one in silo.clients)
    noted = any(one.missing for one in silo.clients)
    rows = [
        (
            one.name,
            [
                f"{one.rows:,}",
                *([f"{one.positives:,}"] if binary else []),
                *(number(one.measures.get(name)) for name in names),
                *([one.missing] if noted else []),
            ],
        )
        for one in silo.clients
    ]
    return ["rows", *(["positives"] if binary else []), *map(label, names), *([""] if noted else [])], rows


def quality_view(record: QualityRecord) -> Mapping[str, Any]:
    """Return what the template of a record's section needs."""
    matrix = confusion(record)
    sizes = [max(1, sum(row)) for row in matrix.counts] if matrix else []
    shades = [
        [(f"{value:,}", round(0.75 * value / size, 3), i == j) for j, value in enumerate(row)]
        for i, (row, size) in enumerate(zip(matrix.counts if matrix else (), sizes, strict=True))
    ]
    return {
        "record": record,
        "scalars": scalars(record),
        "figures": [(picture.caption, Markup(picture.svg())) for picture in quality_pictures(record)],  # noqa: S704
        "chosen": describe_point(record.points[0]) if record.points else "",
        "points": operating_points(record),
        "matrix": matrix,
        "shades": shades,
        "lift": lift(record),
        "classes": classes(record),
        "residuals": residuals(record),
        "silos": [(silo.silo, clients(silo), count(silo.left_out, "client")) for silo in record.silos],
        "left_out": {silo.silo: silo.left_out for silo in record.silos},
        "missing": describe_missing(record),
    }
