"""The evaluations of a run, in order."""

from typing import TYPE_CHECKING

from tdcd.runs.records import Evaluation

if TYPE_CHECKING:
    import polars as pl


class History(tuple[Evaluation, ...]):
    """The evaluations of a training, the first one first."""

    __slots__ = ()

    def kept(self, selected: int | None) -> Evaluation:
        """Return the evaluation of the weights of some round; the last one if there is none, or no round."""
        return next((evaluation for evaluation in self if evaluation.round == selected), self[-1])

    def to_frame(self) -> "pl.DataFrame":
        """Return a row for each evaluation.

        Columns: ``round``, ``iteration``, ``seconds``; ``rows_PART``, how many rows of a part were measured, and
        ``partial``, the parts of which some were absent; ``PART_NAME`` for every measure, such as ``train_loss`` and
        ``test_auroc``, null where it is undefined; ``client_to_hub``, ``hub_to_client`` and ``hub_to_hub``, the bytes
        sent so far.
        """
        import polars as pl  # training alone does without it

        return pl.DataFrame([evaluation.as_row() for evaluation in self], infer_schema_length=None)

    def __repr__(self) -> str:
        lines = [f"  {evaluation.describe(2)}" for evaluation in self]
        return "\n".join([f"{len(self)} evaluations", *([lines[0], "  …", *lines[-2:]] if len(lines) > 4 else lines)])
