"""A finished run, taken up again to predict."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.data.label_encoding import LabelError, again
from tdcd.data.samples import Samples
from tdcd.data.tables.alignment import align, client_places, find_fact, gather_facts, id_array, same_kind
from tdcd.data.tables.client import ClientTable, encode_rows
from tdcd.data.tables.preparation import Category, Preparation
from tdcd.data.tables.reader import Table
from tdcd.errors import DataError, RunError, join_names, nearest
from tdcd.jobs.data import load_data
from tdcd.jobs.load import load_job
from tdcd.jobs.schema import FunctionJob, Job, TableJob
from tdcd.jobs.tables import overlap
from tdcd.models import ModelSpec
from tdcd.runs.layout import JOB, RESULT, preparation_file
from tdcd.runs.records import Outcome, read_record
from tdcd.runs.stored_job import stored_job
from tdcd.training.result import Result, check_allowed


@dataclass(frozen=True)
class Predictions:
    """What a run says of samples."""

    frame: pl.DataFrame
    """A row for each ID: the prediction, and probabilities of classes."""
    measures: Mapping[str, float]
    """How good they are, where labels are known."""
    note: str
    """Of whom they are."""
    warnings: tuple[str, ...] = ()
    """What the rows hold that the training did not know."""


@dataclass(frozen=True)
class Run:
    """A finished run. ``load_run`` reads one."""

    path: Path
    job: Job | None
    """None for a run that was made from Python."""
    result: Result
    classes: tuple[str, ...]
    """What the classes 0, 1, 2, … stand for, where that is known."""
    preparations: Mapping[str, Preparation]
    """How each silo's tables become numbers, for jobs over tables."""
    ended: str
    """How it ended, in a few words."""
    imports: Container[str] = ()
    """The modules that code may be imported from."""

    def __repr__(self) -> str:
        return f"Run {self.path}, {self.ended}\n{self.result!r}"

    def predict_tables(self, files: Mapping[str, Sequence[Path | str]]) -> Predictions:
        """Predict from tables with the columns of the training: for the IDs that all silos' files have.

        Args:
            files: The files of each silo; those under "SILO/CLIENT" are written as that client's files are.
        """
        if not isinstance(self.job, TableJob):
            source = self.job.data.source if self.job else "arrays from Python (result.predict takes some)"
            raise DataError(f"{self.path}: it was trained on {source}, not on tables")
        tables = self._open(self.job, files)
        missing = [silo for silo in self.result.networks if silo not in tables]
        if missing:
            raise DataError(f"predicting needs a table of every silo; there is none for {join_names(missing)}")
        owner = _label_owner(self.job, tables)
        label = self.job.silos[owner].label if owner else None
        listed = {
            silo: same_kind([client.read_keys([label] if label and silo == owner else []) for client in own])
            for silo, own in tables.items()
        }
        alignment, keys = align(listed, {})
        parts = np.full(len(alignment.ids), Part.TEST)
        features: dict[str, Array] = {}
        warnings: list[str] = []
        for silo, own in tables.items():
            if silo in self.preparations:
                unknown: dict[str, Counter[str]] = {}
                made = self.preparations[silo]
                features[silo] = encode_rows(own, made, client_places(keys[silo]), parts, unknown)[Part.TEST]
                warnings += _unknown(silo, made, unknown, len(alignment.ids))
        frame = self._frame(id_array(alignment.ids), self.result.scores(features))
        measures = {}
        if label and owner:
            try:
                labels = again(gather_facts(keys[owner], label), self.classes)
            except LabelError as error:
                where = find_fact(keys[owner], label, error.label)
                raise DataError(
                    f"silo '{owner}', column '{label}': {error}{where}. To predict without measuring, leave the "
                    "column out"
                ) from error
            measures = self.result.evaluate(Samples.from_arrays(features, labels))
        return Predictions(frame, measures, overlap(alignment), tuple(warnings))

    def _open(self, job: TableJob, files: Mapping[str, Sequence[Path | str]]) -> dict[str, list[ClientTable]]:
        """Open the tables of each silo, in the order of the silos."""
        given: dict[str, list[ClientTable]] = {}
        for name, paths in files.items():
            silo, slash, client = name.partition("/")
            if silo not in self.result.blocks:
                raise DataError(f"'{silo}' is no silo of {self.path}{nearest(silo, self.result.blocks)}")
            own = job.silos[silo]
            if slash and client not in own.client_names:
                raise DataError(f"'{client}' is no client of silo '{silo}'{nearest(client, own.client_names)}")
            settings = own.settings_of(client)
            tables = [ClientTable(Table(silo, str(path), Path(path), settings)) for path in paths]
            given.setdefault(silo, []).extend(tables)
        return {silo: given[silo] for silo in self.result.blocks if given.get(silo)}

    def predict_held_out(self) -> Predictions:
        """Predict the job's own test samples, and measure how well."""
        if self.job is None:
            raise DataError(f"{self.path}: only a job has test samples; from Python, call result.evaluate(samples)")
        if isinstance(self.job, FunctionJob):
            check_allowed(self.path, {"data source": self.job.data.source}, self.imports)
        data = load_data(self.job, str(self.path))
        made = data.federation
        if (made.preparations, made.classes) != (self.preparations, self.classes):
            raise RunError(
                f"{self.path}: the job's tables are no longer those that it was trained on; predict from them as new "
                "tables: tdcd predict RUN --table SILO=FILE"
            )
        if Part.TEST not in data.held_out:
            raise DataError(f"{self.path}: its data has no test samples")
        part = data.held_out[Part.TEST].arrange(self.result.columns, f"{self.path}: test set")
        frame = self._frame(data.ids[Part.TEST], self.result.scores(part.features))
        return Predictions(frame, self.result.evaluate(part), f"the {len(part):,} test samples of the job")

    def _frame(self, ids: Array, scores: torch.Tensor) -> pl.DataFrame:
        """Return IDs, predictions and probabilities."""
        objective = self.result.objective
        predicted = objective.predictions(scores).numpy()
        if objective.meaning == "numbers":
            columns = _numbered("prediction", predicted)
            return pl.DataFrame({"id": ids, **columns})
        names = np.array(self._names(scores.shape[1]))
        probabilities = objective.probabilities(scores).numpy()
        record: dict[str, Array] = {"id": ids, "prediction": names[predicted]}
        if probabilities.ndim == 1:
            return pl.DataFrame(record | {f"probability of {names[1]}": probabilities})
        return pl.DataFrame(record | {f"probability of {name}": probabilities[:, k] for k, name in enumerate(names)})

    def _names(self, width: int) -> Iterable[str]:
        count = max(2, width)
        return self.classes if len(self.classes) == count else [str(number) for number in range(count)]


def load_run(
    path: Path | str, models: Mapping[str, ModelSpec | nn.Module] | None = None, imports: Container[str] = ()
) -> Run:
    """Read a run that has ended, with its networks and weights.

    Args:
        path: The directory.
        models: The network of each silo that was trained with an ``nn.Module``, from Python.
        imports: The modules that a loss, models and a data function of one's own may be imported from; other code does
            not run.

    Raises:
        RunError: it is not a run, has not ended, is damaged, or names code that is not allowed.
        ModelError: a module is missing, or another one than was trained.
    """
    path = Path(path)
    result = Result.load(path, models, imports)
    job = load_job(path / JOB) if "data" in stored_job(path) else None
    tables = result.networks if isinstance(job, TableJob) else ()
    preparations = {silo: Preparation.from_file(preparation_file(path, silo)) for silo in tables}
    outcome = read_record(path / RESULT, Outcome)
    ended = f"{outcome.status} after {outcome.round:,} of {outcome.rounds:,} rounds"
    return Run(path, job, result, result.description.classes, preparations, ended, imports)


def _label_owner(job: TableJob, tables: Mapping[str, Sequence[ClientTable]]) -> str | None:
    """Return a silo whose new tables all have the column of labels."""
    for silo, own in tables.items():
        label = job.silos[silo].label
        if label and all(label in client.table.header for client in own):
            return silo
    return None


def _unknown(silo: str, made: Preparation, unknown: Mapping[str, Counter[str]], rows: int) -> Iterator[str]:
    """Tell which categories have no column of their own, and in how many rows."""
    rare = {column.name: isinstance(column, Category) and column.other for column in made.columns}
    for column, counts in unknown.items():
        some = join_names((f"'{value}'" for value, _ in counts.most_common()), 3)
        what = "are rare or unknown in training, and count as 'other'" if rare[column] else "are unknown in training"
        held = f"{counts.total():,} of {rows:,} rows hold categories that {what}: {some}"
        yield f"silo '{silo}', column '{column}': {held}"


def _numbered(name: str, values: Array) -> dict[str, Array]:
    if values.ndim == 1 or values.shape[1] == 1:
        return {name: values.reshape(-1)}
    return {f"{name} {number}": values[:, number] for number in range(values.shape[1])}
