"""The oracle as an engine: any job can be run by the pseudocode, to check or to learn."""

from collections.abc import Mapping

from torch import Tensor

from tdcd.compute.whole import embed_whole
from tdcd.core.network import Block
from tdcd.core.oracle import oracle_round
from tdcd.core.script import Diverged
from tdcd.core.state import SiloState, States
from tdcd.core.streams import borrow_stream
from tdcd.core.task import Round, sum_embeddings
from tdcd.engines.base import Training, left_finite
from tdcd.engines.simulation import SimulationEngine
from tdcd.errors import ModelError, TdcdError


class OracleEngine(SimulationEngine):
    """Run rounds by the plain pseudocode."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._device = next(iter(training.tasks.values())).features.device

    @property
    def compute_plan(self) -> Mapping[str, str]:
        """See Engine."""
        return dict.fromkeys(self.training.tasks, "oracle (sample by sample, as in the pseudocode)")

    def compute_round(self, states: States, round_: Round) -> dict[str, SiloState]:
        """See SimulationEngine."""
        training, number = self.training, round_.number
        last = training.round(number - 1) if number > 1 else None
        try:
            with borrow_stream(self._device):
                drawn = training.drawn(number) if training.drawn else None
                masks = None if drawn is None else {silo: mask.tolist() for silo, mask in drawn.items()}
                absent = training.silo_dropout.probability
                new = oracle_round(
                    states, round_, training.tasks, training.private, last, training.codecs, masks, absent
                )
        except TdcdError:
            raise
        except Exception as error:
            raise ModelError(f"a network failed in round {number}: {type(error).__name__}: {error}") from error
        if diverged := [silo for silo, state in new.items() if left_finite(state.weights, states[silo].weights)]:
            raise Diverged(diverged)
        return {**states, **new}

    def scores(self, weights: Mapping[str, Block], features: Mapping[str, Tensor]) -> Tensor:
        """See SimulationEngine."""
        tasks = self.training.tasks
        with borrow_stream(self._device):
            return sum_embeddings({j: embed_whole(j, t.network, weights[j], features[j]) for j, t in tasks.items()})
