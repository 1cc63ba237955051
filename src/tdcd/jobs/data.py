"""From a job to its data, ready to train on."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tdcd.data.arrays import Array
from tdcd.data.federation import Federation, Silo
from tdcd.data.holdout import Part, folds_of, parts_of, without_validation
from tdcd.data.rows import Drawn, RowSplit, SiloRows
from tdcd.data.samples import Samples
from tdcd.data.sets import SETS, leave_in_files, read, split_among
from tdcd.errors import DataError, JobError, join_names, nearest
from tdcd.jobs.load import known_silos
from tdcd.jobs.schema import FunctionJob, Job, SetJob, TableJob
from tdcd.jobs.sources import SetData, TableData
from tdcd.malloc import giving_back_memory
from tdcd.registry import call_factory

if TYPE_CHECKING:
    from tdcd.data.tables.client import Each

Log = Callable[[str], None]
"""Takes the name of what is being read."""

UNEQUAL = 5
"""Clients whose rows differ by more than this factor are worth a note."""
TEST_FRACTION = 0.2
"""Held out for testing where neither the job nor the publisher says."""


@dataclass(frozen=True)
class JobData:
    """What a job trains, validates and tests on."""

    federation: Federation
    held_out: Mapping[Part, Samples]
    """The samples for validation and for testing, where there are some."""
    ids: Mapping[Part, Array]
    """The IDs of every part, in the order of its samples."""

    @property
    def parts(self) -> Mapping[Part, Samples]:
        """The samples of every part."""
        return {Part.TRAIN: self.federation.samples, **self.held_out}


def load_data(job: Job, where: str = "job", log: Log = lambda what: None, at_nodes: "Each | None" = None) -> JobData:  # noqa: ARG005
    """Read a job's data and deal it to silos and clients.

    Args:
        job: What to read.
        where: How to call the job in errors.
        log: Is called with the name of whatever is being read.
        at_nodes: Reads files where their rows will be computed: then the rows stay in their files, and only what is
            known of them comes here. Data sets that can only be read as a whole are read here all the same.

    Raises:
        DataError, JobError: something is missing, damaged or does not fit; the message says what and where.
    """
    if isinstance(job, TableJob):
        from tdcd.jobs.tables import from_tables

        with giving_back_memory():
            data = from_tables(job, where, log, at_nodes)
    elif isinstance(job, SetJob):
        log(job.data.source)
        data = _from_set(job, where, stay=at_nodes is not None)
    elif isinstance(job, FunctionJob):
        log(job.data.source)
        data = _from_function(job, where)
    else:
        raise JobError(f"{where}: a job without a source of data")
    notes = (*data.federation.notes, *_unequal(job, data.federation))
    return replace(data, federation=replace(data.federation, notes=notes))


def _from_set(job: SetJob, where: str, *, stay: bool) -> JobData:
    data = job.data
    directory = Path(data.directory).absolute() if data.directory is not None else None
    reopen = partial(read, data.source, directory, data.pixels, data.sets)
    dataset = reopen()
    split = data.features or SETS[data.source].features
    blocks = split.blocks(dataset.shape, dataset.columns, data.seed)
    names = [*blocks]
    if job.labels.silo and job.labels.silo in job.silos and job.labels.silo not in blocks:  # it has labels only
        names.append(job.labels.silo)
    known_silos(job.silos, names, where)
    if job.labels.silo is not None and job.labels.silo not in names:
        raise JobError(
            f"{where}: labels.silo: the data has no silo '{job.labels.silo}'; to add one that has labels only, give it "
            f"clients, [silos.{job.labels.silo}] clients = 3{nearest(job.labels.silo, blocks)}"
        )
    rows = row_splits(job, names, where)
    parts = draw_parts(dataset.ids, data, where, dataset.testing)
    if stay and dataset.some is not None:
        samples, ids = leave_in_files(dataset, reopen, blocks, parts)
    else:
        samples, ids = split_among(dataset, blocks, parts)
    training = parts == Part.TRAIN
    silos = [
        Silo(
            name=silo,
            features=samples[Part.TRAIN].stored.get(silo) or samples[Part.TRAIN].features.get(silo),
            ids=ids[Part.TRAIN],
            clients=rows[silo].deal(
                SiloRows(
                    silo,
                    dataset.ids[training],
                    dataset.labels[training],
                    {name: values[training] for name, values in dataset.attributes.items()},
                ),
                count(job, silo),
                data.seed,
            ),
        )
        for silo in names
    ]
    federation = Federation.from_silos(silos, samples.pop(Part.TRAIN).labels, ids[Part.TRAIN])
    notes = list(dataset.notes)
    if dataset.columns:
        taken = np.concatenate([np.arange(len(dataset.columns))[index[-1]] for index in blocks.values()])
        distinct = len(np.unique(taken))
        if distinct < len(dataset.columns):
            notes.append(f"{distinct} of {len(dataset.columns)} columns fall to silos, the others to none")
        if distinct < len(taken):
            notes.append("some columns fall to several silos")
    return JobData(replace(federation, classes=dataset.classes, notes=tuple(notes)), samples, ids)


def _from_function(job: FunctionJob, where: str) -> JobData:
    """Return what the function of a job returns: a federation, or a table of it and samples."""
    source, options = job.data.source, job.data.options
    result = call_factory(source, "data source", str(options), **options)
    given = dict(result) if isinstance(result, Mapping) else {"federation": result}
    kinds = {"federation": Federation, "validation": Samples, "test": Samples}
    for name, value in given.items():
        if name not in kinds:
            raise DataError(f"{where}: {source} returned '{name}', which is not known{nearest(str(name), kinds)}")
        if not isinstance(value, kinds[name]):
            raise DataError(f"{where}: {source}: {name} should be a tdcd.{kinds[name].__name__}, not {type(value)}")
    if "federation" not in given:
        raise DataError(f"{where}: {source} returned no federation, but {join_names(given) or 'nothing'}")
    federation = given["federation"]
    known_silos(job.silos, federation.silos, where)
    held_out = {
        part: given[part.word].arrange(federation.columns, f"{where}: {source}: {part.word} set")
        for part in (Part.VALIDATION, Part.TEST)
        if part.word in given
    }
    ids = {part: np.arange(len(samples)) for part, samples in held_out.items()}
    return JobData(federation, held_out, {Part.TRAIN: federation.ids, **ids})


def _unequal(job: Job, federation: Federation) -> Iterator[str]:
    """Warn of what unequal clients do to the paper's uniform mean."""
    for silo, roster in federation.rosters.items():
        low, high = min(roster.counts()), max(roster.counts())
        if job.training.averaging == "uniform" and high > UNEQUAL * low:
            yield (
                f"{silo}: its clients hold {low:,} to {high:,} training rows, and averaging = 'uniform' counts all of "
                "them the same; 'samples' would count each by its rows"
            )


def draw_parts(ids: Array, data: SetData | TableData, where: str, testing: Array | None = None) -> Array:
    """Choose what is held out: as the job says, else as the publisher does, else a fifth; no part may be empty."""
    fraction = TEST_FRACTION
    if data.test_fraction is not None:
        fraction, testing = data.test_fraction, None
    elif data.folds is not None:
        testing = folds_of(ids, data.folds, data.seed) == data.fold
    parts = parts_of(ids, fraction, data.validation_fraction or 0.0, data.seed, testing)
    wanted = [Part.TRAIN, Part.TEST] + ([Part.VALIDATION] if data.validation_fraction else [])
    for part in wanted:
        if not (parts == part).any():
            what = "the fractions in data leave"
            what = f"fold {data.fold} of {data.folds} leaves" if data.folds else what
            raise DataError(
                f"{where}: {what} no samples to {part.word}, out of {len(ids):,}; choose others, "
                "or get more samples: of tables, only IDs that all silos have are samples"
            )
    return add_validation(parts, data, where)


def add_validation(parts: Array, data: SetData | TableData, where: str) -> Array:
    """Let a refit train on the validation samples, too."""
    if not data.refit:
        return parts
    if not (parts == Part.VALIDATION).any():
        raise DataError(f"{where}: data.refit: there are no validation samples to add to the training samples")
    return without_validation(parts)


def row_splits(job: SetJob | TableJob, silos: Iterable[str], where: str) -> Mapping[str, RowSplit]:
    """Return how each silo's rows are dealt."""
    result = {silo: (job.silos[silo].rows if silo in job.silos else None) or job.data.rows for silo in silos}
    together = [silo for silo, split in result.items() if isinstance(split, Drawn) and split.same]
    if len({count(job, silo) for silo in together}) > 1:
        text = join_names(f"{silo} {count(job, silo)}" for silo in together)
        raise JobError(
            f"{where}: rows.same = true deals the same IDs to client k of every silo, so all need the same "
            f"number of clients; here they are {text}"
        )
    return result


def count(job: SetJob | TableJob, silo: str) -> int | None:
    """Return a silo's number of clients, if the job says."""
    own = job.silos[silo].clients if silo in job.silos else None
    return own if isinstance(own, int) else job.data.clients
