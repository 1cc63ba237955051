"""The oracle as an engine: any job can be run by the pseudocode, to check or to learn."""

from collections.abc import Mapping

from torch import Tensor

from tdcd.compute.whole import embed_whole
from tdcd.core.labels import PrivateLabels
from tdcd.core.network import Blocks
from tdcd.core.oracle import oracle_round
from tdcd.core.round import Round, sum_embeddings
from tdcd.core.streams import borrow_stream
from tdcd.core.task import SiloTask
from tdcd.errors import ModelError, TdcdError


class OracleEngine:
    """Run rounds by the plain pseudocode."""

    def __init__(self, tasks: Mapping[str, SiloTask], private: PrivateLabels | None = None) -> None:
        self._tasks, self._private = tasks, private
        self._device = next(iter(tasks.values())).features.device
        self.paths = dict.fromkeys(tasks, "oracle (sample by sample, as in the pseudocode)")

    def round(self, blocks: Blocks, round_: Round) -> Blocks:
        """See Engine."""
        try:
            with borrow_stream(self._device):
                return {**blocks, **oracle_round(blocks, round_, self._tasks, self._private)}
        except TdcdError:
            raise
        except Exception as error:
            raise ModelError(f"a network failed in round {round_.number}: {type(error).__name__}: {error}") from error

    def scores(self, blocks: Blocks, features: Mapping[str, Tensor]) -> Tensor:
        """See Engine."""
        with borrow_stream(self._device):
            return sum_embeddings(
                {j: embed_whole(j, t.network, blocks[j], features[j]) for j, t in self._tasks.items()}
            )
