"""Figures for Prometheus."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tdcd.data.tables.drift import Drift
from tdcd.serving.http.schema import Identity

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """What a server counts. Labels are bounded: paths and statuses of its own, silos and columns of its models."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter("tdcd_requests", "Requests that were answered.", ["path", "status"], registry=own)
        self.seconds = Histogram(
            "tdcd_predict_seconds", "Time of requests for predictions.", buckets=SECONDS, registry=own
        )
        self.rows = Counter("tdcd_predicted_rows", "Rows that were predicted.", registry=own)
        self.batch = Histogram(
            "tdcd_batch_requests", "Requests that were answered together.", buckets=SIZES, registry=own
        )
        self.waiting = Gauge("tdcd_requests_under_way", "Requests for predictions under way.", registry=own)
        self.reloads = Counter(
            "tdcd_reloads", "Models that took the place of another, or were refused.", ["outcome"], registry=own
        )
        self.model = Gauge("tdcd_model", "1 for the model that is served.", ["name", "run", "round"], registry=own)
        labels = ["silo", "column"]
        self.missing = Counter("tdcd_column_missing_rows", "Rows without a value in a column.", labels, registry=own)
        self.unknown = Counter(
            "tdcd_column_unknown_rows",
            "Rows with a category that was rare or unknown in training.",
            labels,
            registry=own,
        )
        self.shifted = Counter(
            "tdcd_column_deviations", "Sum of numbers, as standard deviations from the mean of the training: above "
            "(way=up) and below (way=down), batch by batch.", [*labels, "way"], registry=own,
        )  # fmt: skip

    def serve(self, identity: Identity) -> None:
        """Say which model is served."""
        self.model.clear()
        self.model.labels(identity["name"], identity["run"], str(identity["round"])).set(1)

    def count_drift(self, drift: Mapping[str, Drift]) -> None:
        """Count how rows compare with the training."""
        for silo, own in drift.items():
            for column in own.preparation.columns:
                seen = own.seen(column.name)
                if seen.missing:
                    self.missing.labels(silo, column.name).inc(seen.missing)
                if seen.unknown:
                    self.unknown.labels(silo, column.name).inc(seen.unknown)
                if seen.total:
                    self.shifted.labels(silo, column.name, "up" if seen.total > 0 else "down").inc(abs(seen.total))

    def text(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        return generate_latest(self.registry)
