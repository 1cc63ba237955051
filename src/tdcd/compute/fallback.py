"""What it costs to go without a compiled kernel."""

from collections.abc import Iterable, Mapping

from tdcd.compute.choose import ComputeName, PathName, why_not
from tdcd.compute.modules import SMALL, weights_of
from tdcd.core.task import SiloTask
from tdcd.errors import join_names

FACTORS: Mapping[PathName, str] = {
    "one-step": "3 to 4",
    "layers": "4 to 5",
    "stacked": "3.5",
    "mixed": "3.5",
    "loop": "5 to 6",
}
"""How many times as fast as on these paths a simulated round is with a kernel: benchmarks/RESULTS.md, every path."""


def fallback(task: SiloTask, wanted: ComputeName, path: PathName, *, suspendable: bool = False) -> str:
    """Return why a silo is computed without a kernel, and what that costs, in a sentence.

    Nothing if it has one, if the path was asked for by name, or if a kernel would gain nothing.
    """
    large = weights_of(task.network.module) > SMALL
    if path == "kernel" or wanted != "auto" or large or task.features.device.type != "cpu":
        return ""
    why = why_not(task, "kernel", suspendable)
    gain = f"about {FACTORS[path]} times as fast (measured in simulations: docs/speed.md)"
    return f"no compiled kernel: {why}. With one, a round is {gain}"


def join_fallbacks(by_silo: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason, with the silos that it is about."""
    silos: dict[str, list[str]] = {}
    for silo, text in by_silo.items():
        if text:
            silos.setdefault(text, []).append(silo)
    return [f"silo {_names(own)}: {text}" for text, own in silos.items()]


def _names(silos: Iterable[str]) -> str:
    return join_names(f"'{silo}'" for silo in silos)
