"""The table of a cross-validation: mean, deviation and intervals of every test measure."""

from tdcd.reports.words import Table, label, number, speak
from tdcd.runs.cross_validation import CrossValidationRecord, SplitRecord

INTERVALS = (
    "The t-interval takes runs for independent. They are not, as they share training samples: the corrected interval "
    "(Nadeau and Bengio, 2003) allows for that. ± is the standard deviation over runs (n − 1)"
)
"""To be said below the table."""


def measure_table(record: CrossValidationRecord) -> Table:
    """Return a row for each measure of each variant."""
    percent = f"{record.confidence:.0%}"
    header = ["trained by", "runs", "mean ± deviation", f"{percent} t-interval", "corrected", "min", "max"]
    several = len({measure.variant for measure in record.measures}) > 1
    metrics = dict.fromkeys(measure.metric for measure in record.measures)
    rows = []
    for measure in sorted(record.measures, key=lambda m: [*metrics].index(m.metric)):  # stable: variants stay in order
        cells = [
            speak(measure.variant),
            f"{measure.runs} of {record.planned}",
            number(measure.mean) + ("" if measure.deviation is None else f" ± {number(measure.deviation)}"),
            _interval(measure.low, measure.high),
            _interval(measure.corrected_low, measure.corrected_high),
            number(measure.minimum),
            number(measure.maximum),
        ]
        rows.append((label(measure.metric), cells if several else cells[1:]))
    return header if several else header[1:], rows


def describe_failure(run: SplitRecord) -> str:
    """Say which run counts in no mean, and why."""
    return f"{speak(run.variant)}, {run.split.replace(',', ', ').replace('=', ' ')}: {run.status} ({run.why})"


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{number(low)} … {number(high)}"
