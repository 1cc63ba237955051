"""How a hub joins its clients' weights: one aggregator a file."""

from collections.abc import Mapping

from tdcd.core.aggregators.average import Average
from tdcd.core.aggregators.base import Aggregator, HubRound, aggregate, check_room, gather
from tdcd.core.aggregators.hub_momentum import HubMomentum
from tdcd.core.aggregators.hub_step import HubStep
from tdcd.core.aggregators.median import Median
from tdcd.core.aggregators.trimmed_mean import TrimmedMean

AGGREGATORS: Mapping[str, type[Aggregator]] = {
    "average": Average,
    "hub-step": HubStep,
    "momentum": HubMomentum,
    "median": Median,
    "trimmed-mean": TrimmedMean,
}
"""By kind."""

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Average",
    "HubMomentum",
    "HubRound",
    "HubStep",
    "Median",
    "TrimmedMean",
    "aggregate",
    "check_room",
    "gather",
]
