"""A trained federation that is ready to predict: an assembled model, or a run that has ended."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from torch import Tensor, nn

from tdcd.data.arrays import Data
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.data.sources import RowSource
from tdcd.data.tables.preparation import Preparation
from tdcd.errors import DataError, JobError, RunError, join_names
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import FunctionJob, Job, TableJob
from tdcd.models import ModelSpec
from tdcd.runs.digests import check_files
from tdcd.runs.history import History
from tdcd.runs.importance import Importances
from tdcd.runs.layout import PREPARATION, RESULT, preparation_file
from tdcd.runs.records import Outcome, read_record
from tdcd.runs.store import load_blocks
from tdcd.runs.stored_job import stored_job
from tdcd.serving.frame_file import FrameFile
from tdcd.serving.frames import prediction_frame
from tdcd.serving.importance import Inputs, columns_of_rows, permutation_importance
from tdcd.serving.opened import Files, open_tables
from tdcd.serving.record import MODEL, ModelRecord, holds_model, read_model
from tdcd.serving.tables import Predictions, encode_tables, predict_tables
from tdcd.training.result import Recorded, Result, check_allowed


@dataclass(frozen=True)
class Model:
    """A trained federation. ``load_model`` reads one."""

    path: Path
    job: Job | None
    """None for one that was trained from Python."""
    result: Result
    """Its networks and weights: predicts from arrays."""
    classes: tuple[str, ...]
    """What the classes 0, 1, 2, … stand for, where that is known."""
    preparations: Mapping[str, Preparation]
    """How each silo's tables become numbers, for jobs over tables."""
    origin: str
    """What it is of, in a few words."""
    record: ModelRecord | None = None
    """How it was assembled; none for a run."""
    imports: Container[str] = ()
    """The modules that code may be imported from."""

    def __repr__(self) -> str:
        return f"Model {self.path}, {self.origin}\n{self.result!r}"

    @property
    def silos(self) -> tuple[str, ...]:
        """The silos whose rows it predicts from."""
        return tuple(self.result.networks)

    def scores(self, features: Mapping[str, Data | RowSource]) -> Tensor:
        """Return the summed embeddings (M, E) of prepared rows. See Result."""
        return self.result.scores(features)

    def predict_tables(
        self,
        files: Files,
        *,
        without: Sequence[str] = (),
        shares: bool = False,
        shapley: bool = False,
        out: Path | str | None = None,
        on_progress: Callable[[int, int], None] = lambda done, rows: None,  # noqa: ARG005
    ) -> Predictions:
        """Predict from tables with the columns of the training: for the IDs that all silos' files have.

        With ``out``, memory does not grow with the number of rows.

        Args:
            files: The files of each silo; those under "SILO/CLIENT" are written as that client's files are.
            without: Silos that are left out of the sum: the predictions are partial, and marked as such.
            shares: Add each silo's share of the score.
            shapley: Add each silo's Shapley value for the prediction or the probabilities.
            out: A .csv or .parquet file to write them to, replacing one that is there; the frame then has no rows.
            on_progress: Is called with how many rows of how many have been embedded.

        Raises:
            DataError: a silo has no table, or a table does not fit.
        """
        predict = partial(
            predict_tables,
            str(self.path), self.table_job(), self.result, self.classes, self.preparations, files,
            without=without, shares=shares, shapley=shapley, on_progress=on_progress,
        )  # fmt: skip
        if out is None:
            return predict()
        with FrameFile(Path(out)) as file:
            return predict(write=file.write, scratch=Path(out).parent)

    def importance(
        self,
        files: Files | None = None,
        *,
        metric: str | None = None,
        repeats: int = 5,
        seed: int = 0,
        on_progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
    ) -> Importances:
        """Measure how much each silo and each column matters: permutation importance.

        Args:
            files: Tables with labels, as in ``predict_tables``; default: the job's own test samples.
            metric: What is measured; default: the first metric of the loss.
            repeats: How often the values of each column are dealt anew.
            seed: Decides on how.
            on_progress: Is called with how many columns of how many are done.

        Raises:
            DataError: there are no labels.
            JobError: the metric is not known.
        """
        columns: dict[str, Inputs] = {silo: made.inputs for silo, made in self.preparations.items()}
        if files is None:
            part = self.samples(self.held_out(), Part.TEST)
            rows, labels = dict(part.features), part.labels
            records = {silo.name: silo for silo in self.result.description.silos}
            columns = {silo: columns.get(silo) or columns_of_rows(records[silo]) for silo in self.silos}
        else:
            opened = open_tables(str(self.path), self.table_job(), self.result, files)
            matched = opened.match()
            rows, labels = encode_tables(self.preparations, opened, matched), matched.labels(self.classes)
        return permutation_importance(
            self.result, rows, labels, columns,
            metric=metric, repeats=repeats, seed=seed, classes=self.classes, on_progress=on_progress,
        )  # fmt: skip

    def table_job(self) -> TableJob:
        """Return the job over tables that it was trained by.

        Raises:
            DataError: it was trained on something else.
        """
        if not isinstance(self.job, TableJob):
            source = self.job.data.source if self.job else "arrays from Python (result.predict takes some)"
            raise DataError(f"{self.path}: it was trained on {source}, not on tables")
        return self.job

    def samples(self, data: JobData, part: Part) -> Samples:
        """Return the held-out samples of a part, their columns as in the training.

        Raises:
            DataError: there are none.
        """
        if part not in data.held_out:
            raise DataError(f"{self.path}: its data has no {part.word} samples")
        return data.held_out[part].arrange(self.result.columns, f"{self.path}: {part.word} set").loaded()

    def held_out(self) -> JobData:
        """Read the job's own data anew, prepared as it was in training.

        Raises:
            DataError: it was trained from Python, or the data has changed since.
        """
        if self.job is None:
            raise DataError(f"{self.path}: only a job has test samples; from Python, call result.evaluate(samples)")
        if self.record is not None and isinstance(self.job, TableJob):
            raise DataError(
                f"{self.path}: a model holds no rows, and not where those of its training are; give new tables: "
                "--table SILO=FILE"
            )
        if isinstance(self.job, FunctionJob):
            check_allowed(self.path, {"data source": self.job.data.source}, self.imports)
        data = load_data(self.job, str(self.path))
        made = data.federation
        if (made.preparations, made.classes) != (self.preparations, self.classes):
            raise RunError(
                f"{self.path}: the job's tables are no longer those that it was trained on; give them as new tables: "
                "--table SILO=FILE"
            )
        return data

    def predict_held_out(self) -> Predictions:
        """Predict the job's own test samples, and measure how well."""
        data = self.held_out()
        part = self.samples(data, Part.TEST)
        scores = self.result.scores(part.features)
        frame = prediction_frame(self.result.objective, self.classes, data.ids[Part.TEST], scores)
        return Predictions(
            frame, frame.height, self.result.evaluate(part), f"the {len(part):,} test samples of the job"
        )


def load_model(
    path: Path | str, models: Mapping[str, ModelSpec | nn.Module] | None = None, imports: Container[str] = ()
) -> Model:
    """Read a model that was assembled, or a run that has ended, with its networks and weights; verify every file.

    Args:
        path: The directory.
        models: The network of each silo that was trained with an ``nn.Module``, from Python.
        imports: The modules that a loss, models and a data function of one's own may be imported from; other code does
            not run.

    Raises:
        RunError: it is neither, is damaged, or names code that is not allowed.
        ModelError: a module is missing, or another one than was trained.
    """
    path = Path(path)
    if holds_model(path):
        record = read_model(path)
        try:
            return _assembled(path, record, models, imports)
        except JobError as error:
            own, made = version("tdcd"), record.versions.get("tdcd")
            if own == made:
                raise
            raise RunError(f"{path}: it was assembled with tdcd {made}, and this is tdcd {own}: {error}") from error
    result = Result.load(path, models, imports)
    outcome = read_record(path / RESULT, Outcome)
    origin = f"{outcome.status} after {outcome.round:,} of {outcome.rounds:,} rounds"
    return _model(path, stored_job(path), result, origin, None, imports)


def _assembled(
    path: Path, record: ModelRecord, models: Mapping[str, ModelSpec | nn.Module] | None, imports: Container[str]
) -> Model:
    check_files(path, record.files, "assemble the model again")
    silos = {silo.name for silo in record.federation.silos}
    blocks = load_blocks(path)
    if set(blocks) != silos or not {f"blocks/{silo}.safetensors" for silo in silos} <= set(record.files):
        raise RunError(
            f"{path}: it has weights of silo {join_names(sorted(blocks))}, not of {join_names(sorted(silos))}"
        )
    recorded = Recorded(
        path, record.job["training"], record.federation, blocks, record.round, History(record.history), record.findings
    )  # fmt: skip
    result = Result.rebuild(recorded, models, imports)
    state = "at the end of" if record.ended else "in the midst of"
    origin = f"assembled {state} {record.rounds:,} rounds, weights of round {record.round:,}"
    return _model(path, record.job, result, origin, record, imports)


def _model(
    path: Path, job: Mapping[str, object], result: Result, origin: str, record: ModelRecord | None,
    imports: Container[str],
) -> Model:  # fmt: skip
    read = parse_job(job, str(path)) if "data" in job else None
    tables = result.networks if isinstance(read, TableJob) else ()
    preparations = {silo: Preparation.from_file(preparation_file(path, silo)) for silo in tables}
    if record and (unlisted := {f"{PREPARATION}/{silo}.json" for silo in tables} - set(record.files)):
        raise RunError(f"{path / MODEL}: damaged: it does not list {min(unlisted)}")
    return Model(path, read, result, result.description.classes, preparations, origin, record, imports)
