"""A hub as the loop over rounds sees it."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from tdcd.core.ledger import Traffic
from tdcd.core.state import States
from tdcd.engines.base import Judge, Measurement, Verdict
from tdcd.sites.hub.hub import Hub


@dataclass(frozen=True)
class HubEngine:
    """One hub's part of a training. See Engine."""

    hub: Hub
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine in the hub's event loop and waits for it."""

    @property
    def compute_plan(self) -> Mapping[str, str]:
        """Clients compute as they see fit."""
        return {self.hub.context.silo: "at its clients' sites"}

    def agree(self, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        """See Engine."""
        result: tuple[int, str] = self.run(self.hub.agree(checkpoints))
        return result

    def round(self, states: States, number: int) -> tuple[States, Traffic]:
        """See Engine."""
        silo = self.hub.context.silo
        state, traffic = self.run(self.hub.run_round(states[silo], number))
        return {silo: state}, traffic

    def evaluate(self, states: States, judge: Judge) -> tuple[Measurement, Verdict]:
        """See Engine."""
        result: tuple[Measurement, Verdict] = self.run(self.hub.evaluate(states[self.hub.context.silo], judge))
        return result

    def conclude(self, number: int, selected: int) -> bool:
        """See Engine."""
        confirmed: bool = self.run(self.hub.conclude(number, selected))
        return confirmed
