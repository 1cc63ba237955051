"""How good a model is on labelled samples, as records: quality.json, and what ``tdcd evaluate`` writes.

Curves have a bounded number of points, however many rows they are of, and no record holds a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Criterion = Literal["f1", "youden", "given", "half"]
"""Why a threshold was chosen: the best F1, the best Youden's J, somebody's choice, or 0.5 for want of a better one."""


@dataclass(frozen=True)
class Points:
    """Points of a curve."""

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class CalibrationBin:
    """Rows with predictions of similar size."""

    rows: int
    predicted: float
    """The mean of their predicted probabilities."""
    observed: float
    """The share of them that are positive."""


@dataclass(frozen=True)
class LiftGroup:
    """About a tenth of the rows, those with similar scores."""

    rows: int
    positives: float
    """Rows of one score that fall to two groups count by their mean, so this may be a fraction."""
    lift: float
    """How many times as many positive rows as among all."""
    captured: float
    """The share of all positive rows that this group and those above it have."""


@dataclass(frozen=True)
class ClassQuality:
    """How well scores tell one class from all others."""

    name: str
    rows: int
    positives: int
    """Rows of this class."""
    measures: Mapping[str, float]
    """Those that are defined."""
    missing: str = ""
    """Why some are not."""
    roc: Points | None = None
    """x: false positive rate, y: true positive rate."""
    precision_recall: Points | None = None
    """x: recall, y: precision."""
    calibration: tuple[CalibrationBin, ...] = ()
    lift: tuple[LiftGroup, ...] = ()
    """The highest scores first."""


@dataclass(frozen=True)
class Cut:
    """A threshold: rows whose probability is at least this count as positive."""

    threshold: float
    criterion: Criterion
    chosen_on: str = ""
    """The samples that it was chosen on; never those that are measured."""


@dataclass(frozen=True)
class OperatingPoint:
    """What becomes of all rows at a threshold."""

    cut: Cut
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int
    measures: Mapping[str, float]
    """precision, recall, specificity, f1, accuracy, and flagged, the share of rows that are; those that are defined."""


@dataclass(frozen=True)
class Confusion:
    """Which classes are taken for which: a row for each true class, a column for each predicted one."""

    names: tuple[str, ...]
    """The last may stand for all classes that have too few rows to be shown."""
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PredictionBin:
    """Rows of a regression with predictions of similar size."""

    rows: int
    predicted: float
    """The mean of their predictions."""
    actual: float
    """The mean of what came true."""
    low: float
    """A tenth of what came true is below."""
    high: float
    """A tenth of what came true is above."""


@dataclass(frozen=True)
class TargetQuality:
    """How well one target of a regression is predicted."""

    name: str
    rows: int
    measures: Mapping[str, float]
    residuals: Mapping[str, float]
    """Quantiles of actual less predicted, by their percentages: "5", "50" …"""
    bins: tuple[PredictionBin, ...] = ()


@dataclass(frozen=True)
class ClientQuality:
    """How good the model is on the rows of one client."""

    name: str
    rows: int
    positives: int | None
    """Its positive rows; none but for the binary loss."""
    measures: Mapping[str, float]
    """Those that are defined."""
    missing: str = ""
    """Why some are not."""


@dataclass(frozen=True)
class SiloQuality:
    """How good the model is on the rows of each client of a silo."""

    silo: str
    clients: tuple[ClientQuality, ...]
    """Those with the most rows first."""
    left_out: int = 0
    """Clients with fewer rows that are not listed."""


@dataclass(frozen=True)
class QualityRecord:
    """How good a model is on labelled samples."""

    samples: str
    """Which samples, in words."""
    round: int
    """The round that the weights are of."""
    meaning: Literal["binary", "classes", "numbers"]
    rows: int
    measures: Mapping[str, float]
    """Of all rows: the loss, the metrics of the history, and what is measured here only."""
    classes: tuple[ClassQuality, ...] = ()
    """For the binary loss the positive class; for several, each against all others."""
    points: tuple[OperatingPoint, ...] = ()
    """For the binary loss: what becomes of the rows at the threshold that was chosen, then at others."""
    confusion: Confusion | None = None
    confidence: tuple[CalibrationBin, ...] = ()
    """For several classes: how often the most probable class is the right one."""
    targets: tuple[TargetQuality, ...] = ()
    silos: tuple[SiloQuality, ...] = ()
    """Of silos whose clients are known to hold these samples."""
    notes: tuple[str, ...] = ()
    """What a reader should know."""
