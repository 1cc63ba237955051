"""How good a model is on labelled tables, or on its job's own held-out samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tdcd.core.task import sum_embeddings
from tdcd.data.holdout import Part
from tdcd.errors import DataError, JobError
from tdcd.jobs.tables import overlap
from tdcd.runs.quality import Cut, QualityRecord
from tdcd.runs.reader import read_quality
from tdcd.serving.model import Model
from tdcd.serving.opened import Files, open_tables
from tdcd.serving.tables import embed_tables, warnings_of
from tdcd.training.quality import Assessment, assess, check_scores, choose_cuts
from tdcd.training.quality.held_out import NO_VALIDATION, describe
from tdcd.training.quality.thresholds import CRITERIA, HALF, Best

NOT_CHOSEN = "no threshold was chosen when the training ended, so it is 0.5"


@dataclass(frozen=True)
class Choice:
    """What a user wants a threshold to be."""

    threshold: float | None = None
    """This one."""
    best: Best | None = None
    """The best by this criterion, on validation samples."""

    def order(self, chosen: Sequence[Cut]) -> tuple[Cut, ...]:
        """Return thresholds with the one that is wanted first, given those chosen on validation samples.

        Raises:
            JobError: none was chosen by the criterion that is wanted.
        """
        if self.threshold is not None:
            return (Cut(self.threshold, "given"), *chosen, HALF)
        first = [cut for cut in chosen if cut.criterion == self.best]
        if self.best and not first:
            raise JobError(
                f"--best {self.best}: there are no validation samples to choose a threshold on, and none was chosen "
                "when the run ended; give one with --threshold, or train with data.validation_fraction = 0.1"
            )
        return (*first, *(cut for cut in chosen if cut not in first), HALF)


def evaluate_tables(
    model: Model,
    files: Files,
    choice: Choice = Choice(),  # noqa: B008 - frozen
) -> tuple[QualityRecord, tuple[str, ...]]:
    """Measure a model on labelled tables; thresholds are those that were chosen as its training ended.

    Args:
        model: What to measure.
        files: The tables, as in ``Model.predict_tables``.
        choice: Which threshold to put first.

    Returns:
        The record, and where the rows differ from those of the training.

    Raises:
        DataError: the tables have no labels.
    """
    _check(model, choice)
    opened = open_tables(str(model.path), model.table_job(), model.result, files)
    matched = opened.match()
    labels = matched.labels(model.classes)
    stored = read_quality(model.path)
    chosen = [point.cut for point in stored.points if point.cut.criterion in CRITERIA] if stored else []
    cuts = choice.order(chosen)
    notes = () if chosen or choice.threshold is not None or not _binary(model) else (NOT_CHOSEN,)
    count = len(matched.ids)
    embedded, drifts = embed_tables(model.result, model.preparations, opened.tables, matched.places(), count)
    of = f"{count:,} rows of new tables; {overlap(count, opened.sizes)}"
    what = Assessment(of, model.result.selected, model.classes, cuts, matched.holders(files), notes)
    return _assess(model, sum_embeddings(embedded), labels, what), warnings_of(drifts)


def evaluate_held_out(model: Model, choice: Choice = Choice()) -> QualityRecord:  # noqa: B008 - frozen
    """Measure a model on its job's own test samples; a threshold is chosen on its validation samples.

    Raises:
        DataError: there are none, or they are no longer those that it was trained on.
    """
    _check(model, choice)
    data = model.held_out()
    chosen: tuple[Cut, ...] = ()
    notes: tuple[str, ...] = ()
    if _binary(model):
        if Part.VALIDATION in data.held_out:
            validation = model.samples(data, Part.VALIDATION)
            scores = model.scores(validation.features)
            check_scores(scores)
            labels = _prepare(model, scores, validation.labels)
            try:
                chosen = choose_cuts(model.result.objective, scores, labels, describe(validation, Part.VALIDATION))
            except DataError as error:
                notes = (f"no threshold could be chosen on the validation samples: {error}",)
        elif choice.threshold is None:
            notes = (NO_VALIDATION,)
    test = model.samples(data, Part.TEST)
    of = f"{describe(test, Part.TEST)} of the job"
    what = Assessment(of, model.result.selected, model.classes, choice.order(chosen), test.holders, notes)
    return _assess(model, model.scores(test.features), test.labels, what)


def _assess(model: Model, scores: Tensor, labels: Tensor, what: Assessment) -> QualityRecord:
    check_scores(scores)
    return assess(model.result.objective, scores, _prepare(model, scores, labels), what)


def _prepare(model: Model, scores: Tensor, labels: Tensor) -> Tensor:
    return model.result.objective.prepare(labels, scores.shape[1], model.result.settings.dtype)


def _binary(model: Model) -> bool:
    return model.result.objective.meaning == "binary"


def _check(model: Model, choice: Choice) -> None:
    """Refuse a choice of a threshold that means nothing.

    Raises:
        JobError: it does not.
    """
    if choice.threshold is not None and choice.best is not None:
        raise JobError("--threshold and --best exclude each other: give a threshold, or let one be chosen")
    if choice.threshold is not None and not 0 <= choice.threshold <= 1:
        raise JobError(f"--threshold {choice.threshold:g}: a probability from 0 to 1 is wanted")
    if (choice.threshold is not None or choice.best) and not _binary(model):
        raise JobError(
            f"{model.path}: a threshold is for the binary loss; this model was trained with "
            f"{model.result.settings.loss_kind}, so leave --threshold and --best out"
        )
