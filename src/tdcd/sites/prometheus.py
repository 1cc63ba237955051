"""Figures for Prometheus."""

import json
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tdcd.data.holdout import Part
from tdcd.errors import DeploymentError
from tdcd.sites.messages.calls import HubStatus

PARTS = tuple(part.word for part in Part)


class HubCollector(Collector):
    """A hub's figures, as they are when somebody asks."""

    def __init__(self, snapshot: Callable[[], HubStatus]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        status = self._snapshot()
        yield GaugeMetricFamily("tdcd_round", "The last round that is over.", status.round)
        yield GaugeMetricFamily("tdcd_rounds", "Rounds of the whole training.", status.rounds)
        yield GaugeMetricFamily("tdcd_rounds_per_second", "Speed of the last rounds.", status.rounds_per_second)
        present = GaugeMetricFamily("tdcd_client_present", "1 for a client that takes part.", labels=["client"])
        left_out = CounterMetricFamily("tdcd_client_left_out", "Times a client was left out.", labels=["client"])
        for client in status.clients:
            present.add_metric([client.name], float(client.present))
            left_out.add_metric([client.name], client.left_out)
        peers = GaugeMetricFamily("tdcd_peer_present", "1 for another hub that answers.", labels=["silo"])
        for peer in status.peers:
            peers.add_metric([peer.silo], float(peer.present))
        traffic = CounterMetricFamily("tdcd_bytes", "Bytes of tensors.", labels=["direction"])
        traffic.add_metric(["sent"], status.bytes_sent)
        traffic.add_metric(["received"], status.bytes_received)
        evaluations = CounterMetricFamily("tdcd_evaluation_bytes", "Bytes of tensors of evaluations.")
        evaluations.add_metric([], status.evaluation_bytes)
        for name, text, value in (
            ("tdcd_prediction_requests", "Questions about IDs, while the hub serves.", status.prediction_requests),
            ("tdcd_predictions", "IDs that were answered for.", status.predicted),
            ("tdcd_prediction_errors", "Questions that could not be answered.", status.prediction_errors),
        ):
            counter = CounterMetricFamily(name, text)
            counter.add_metric([], value)
            yield counter
        serves = GaugeMetricFamily("tdcd_client_serves", "Rows that a client has ready.", labels=["client"])
        for client in status.clients:
            serves.add_metric([client.name], client.serves)
        yield serves
        measured = GaugeMetricFamily("tdcd_measure", "The newest evaluation.", labels=["part", "measure"])
        partial = GaugeMetricFamily(
            "tdcd_measured_fraction", "Part of the rows that the newest evaluation measured.", labels=["part"]
        )
        evaluation = json.loads(status.evaluation) if status.evaluation else {"partial": {}}
        for part in PARTS:
            if part in evaluation:
                there, every = evaluation["partial"].get(part, (1, 1))
                partial.add_metric([part], there / every)
            for name, value in evaluation.get(part, {}).items():
                measured.add_metric([part, name], value)
        yield from (present, left_out, peers, traffic, evaluations, measured, partial)


def serve(snapshot: Callable[[], HubStatus], address: str | None) -> None:
    """Answer Prometheus at an address, if there is one.

    Args:
        snapshot: Returns the hub's status, taken in its event loop.
        address: Where.

    Raises:
        DeploymentError: the address is not available.
    """
    if address is None:
        return
    registry = CollectorRegistry()
    registry.register(HubCollector(snapshot))
    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except OSError as error:
        raise DeploymentError(f"metrics: cannot listen on {address}: {error.strerror}") from error
