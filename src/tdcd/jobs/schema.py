"""The job file: its settings, and reading it."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from tdcd.compute import ComputeName
from tdcd.core.objectives import Objective
from tdcd.data.rows import Rows
from tdcd.data.tables.settings import TableFormat, TableSettings
from tdcd.errors import JobError, join_names, nearest
from tdcd.jobs.deployment import Deployment
from tdcd.jobs.sources import FunctionData, SetData, TableData
from tdcd.jobs.tuning import Automatic, Tuning, put_auto, take_auto
from tdcd.models import Imported, Model, ModelSpec
from tdcd.strict import Strict, matching, problems
from tdcd.training.labels import Labels
from tdcd.training.settings import Count, Settings, SiloSettings
from tdcd.training.setup import check_silo_dropout
from tdcd.training.simulation import EngineName

EMBEDDED = ("digits", "breast-cancer", "cifar10", "idx", "mimic3", "modelnet", "physionet2012")
"""Jobs that come with tdcd, by name. Those on published data need the directory of its files."""

TABLES = "tables"
"""The data source that is not a data set."""
TEMPLATES = (TABLES,)
"""Jobs to fill in before they can run."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
Baseline = Literal["central", "alone", "one-tier"]
Name = Annotated[
    str, matching(NAME, "names a directory: letters, digits, dots, dashes and underscores, and first a letter or digit")
]


class ClientFile(TableFormat):
    """A client's file, and how it is written where that is not as its silo says."""

    file: Annotated[str, Field(min_length=1)]

    @model_serializer(mode="wrap")
    def _as_said(self, write: SerializerFunctionWrapHandler) -> Any:
        """Write what the job says, and no default: it would count as said."""
        said = {name: value for name, value in write(self).items() if name in self.model_fields_set}
        return said if len(said) > 1 else self.file


def _client_file(client: str, value: Any) -> ClientFile:
    table = {"file": value} if isinstance(value, str) else value
    try:
        return ClientFile.model_validate(table)
    except ValidationError as error:
        raise ValueError("; ".join(f"{client}: {problem}" for problem in problems(error))) from error


def _clients(value: Any) -> Any:
    if isinstance(value, list):
        wrong = [name for name in value if not isinstance(name, str) or not name]
        if wrong or not value or len(set(value)) < len(value):
            raise ValueError(f'names each client once: ["north", "south"] (is {value!r})')
    elif isinstance(value, dict):
        wrong = [name for name, own in value.items() if not own or not isinstance(own, str | dict | ClientFile)]
        if wrong or not value:
            raise ValueError(
                'names a file for each client: { north = "north.csv", south = { file = "south.csv", separator = ";" } }'
                f"{'; not so: ' if wrong else ''}{join_names(wrong)}"
            )
        value = {name: _client_file(name, own) for name, own in value.items()}
    elif value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(
            f"is a number of clients, a list of names, or a table that names a file for each (is {value!r})"
        )
    return value


class SiloJob(SiloSettings):
    """What is particular to one silo, whatever its data."""

    clients: Any = None
    """Its clients."""
    rows: Rows | None = None
    """How its rows fall to its clients, when it is not data.rows."""
    model: Model | None = None
    """h_j, when it is not the job's model."""


class SetSilo(SiloJob):
    """A silo of a data set."""

    clients: Count | None = None
    """K_j, when it is not data.clients."""

    @model_validator(mode="before")
    @classmethod
    def _of_tables(cls, values: Any) -> Any:
        """Say of keys that only tables have where they belong."""
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if key in TableSilo.model_fields and key not in cls.model_fields:
                raise ValueError(f'{key} goes with data.source = "tables" only')
            if key == "clients" and isinstance(value, Mapping | list):
                raise ValueError('clients: names and files go with data.source = "tables" only')
        return values


class FunctionSilo(SiloJob):
    """A silo of data that a function returns."""

    clients: Any = None
    rows: Any = None


class TableSilo(TableSettings, SiloJob):
    """A silo of tables."""

    clients: Annotated[int | dict[str, ClientFile] | list[str] | None, BeforeValidator(_clients)] = None
    """The file of each client by its name, or a table of its file and how that is written. In a job file also a
    pattern such as "bank/*.csv", whose files name the clients. At real sites names are enough: every client knows its
    own file. A number of simulated clients goes with ``file``."""
    file: str | None = None
    """One file with all of the silo's rows, dealt to simulated clients by ``rows``."""

    @property
    def named(self) -> bool:
        """Whether its clients have names, and files of their own."""
        return isinstance(self.clients, dict | list)

    @property
    def client_names(self) -> list[str]:
        """The names of its clients, as far as the job names them."""
        return list(self.clients) if isinstance(self.clients, dict | list) else []

    @property
    def files(self) -> dict[str, ClientFile]:
        """The files of its clients, as far as the job names them."""
        return self.clients if isinstance(self.clients, dict) else {}

    def settings_of(self, client: str, *formats: TableFormat) -> TableSettings:
        """Return how to read a client's table: as the silo says, unless the job or a further format says otherwise."""
        own = self.files.get(client)
        return self.with_formats(*([own] if own else []), *formats)


class Job(Strict):
    """A whole job file: a SetJob, a TableJob or a FunctionJob, by the source of its data."""

    name: Name = "job"
    """Names the run directory."""
    engine: EngineName = "local"
    """Where to run: "local" in this process; "ray" on a cluster of Ray; "oracle" by the slow pseudocode."""
    address: str | None = None
    """Of the Ray cluster to join, "HOST:PORT" or "auto"; default: one is started on this machine."""
    compute: ComputeName = "auto"
    """How a silo's clients are computed."""
    workers: Count | None = None
    """Threads that may share the work, on a cluster at each node; default: one for each core. The numbers do not depend
    on it."""
    device: str = "cpu"
    """Where to compute: "cpu", or "cuda", "cuda:1" … for a graphics card."""
    baselines: list[Baseline] = []
    """What to train for comparison: "central" all data in one place, by as many plain steps; "alone" the same for
    each silo by itself; "one-tier" every silo with all of its rows at one client."""
    data: SetData | TableData | FunctionData
    labels: Labels = Labels()
    model: Model
    """The network of every silo that does not have its own."""
    silos: Mapping[str, SiloJob] = {}
    """What is particular to single silos, by name."""
    training: Settings
    deployment: Deployment = Deployment()
    """For ``tdcd hub`` and ``tdcd client``."""
    tuning: Tuning = Tuning()
    """For ``tdcd tune``, and for settings that are "auto"."""
    auto: Annotated[tuple[Automatic, ...], Field(exclude=True)] = ()
    """The settings of the training that are "auto", to be found before it."""

    def model_of(self, silo: str) -> ModelSpec:
        """Return a silo's network: its own, or that of the job."""
        own = self.silos.get(silo)
        return (own.model if own else None) or self.model

    def settings_of(self, silo: str) -> Settings:
        """Return how a silo trains: as the job says, with the local steps and rate that are its own."""
        return self.training.of_silo(silo, self.silos.get(silo))

    @model_validator(mode="before")
    @classmethod
    def _automatic(cls, values: Any) -> Any:
        return take_auto(values)

    def check_found(self) -> None:
        """Check that no setting is left to be found.

        Raises:
            JobError: one is.
        """
        if self.auto:
            raise JobError(
                f'training.{self.auto[0]} = "auto": it is to be found first; tdcd train does so, or use tdcd tune and '
                "the job that it writes"
            )

    @model_validator(mode="after")
    def _address_of_ray(self) -> Self:
        if self.address is not None and self.engine != "ray":
            raise ValueError(f'address: a cluster is joined by engine = "ray" only, not by "{self.engine}"')
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        settings = self.training
        if getattr(self.data, "refit", False) and (settings.select != "last" or settings.patience):
            raise ValueError(
                'data.refit: no validation samples are left to choose by; set training.select = "last", leave out '
                "training.patience, and set training.rounds to the rounds wanted"
            )
        try:
            check_silo_dropout(settings, self.labels)
            for silo in self.silos:
                self.settings_of(silo)
        except JobError as error:
            raise ValueError(str(error)) from error
        return self

    def imports(self, silo: str) -> dict[str, str]:
        """Return the import paths of code that runs for a silo, each under what it is."""
        model = self.model_of(silo)
        named = {f"model of silo '{silo}'": model.kind} if isinstance(model, Imported) else {}
        return named | self.training.imports

    def label_owners(self) -> list[str]:
        """Return the silos that the job says have labels, ordered by name: sites may list them otherwise."""
        return []

    def as_table(self) -> dict[str, Any]:
        """Return the job with every default filled in, as it is written to job.toml."""
        return put_auto(self.model_dump(exclude_none=True), self.auto)


class SetJob(Job):
    """A job on a published or built-in data set."""

    data: SetData
    silos: Mapping[str, SetSilo] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "SetJob":
        _check_arrays(self)
        return self


class FunctionJob(Job):
    """A job on data that a function of the user's own returns."""

    data: FunctionData
    silos: Mapping[str, FunctionSilo] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "FunctionJob":
        _check_arrays(self)
        for name, silo in self.silos.items():
            if given := {"clients", "rows"} & silo.model_fields_set:
                raise ValueError(f"silos.{name}.{min(given)}: the function {self.data.source} says who holds what")
        return self


def _check_arrays(job: Job) -> None:
    """Refuse what goes with tables only."""
    labels = job.labels
    if job.deployment.importance:
        raise ValueError('deployment.importance goes with data.source = "tables" only')
    for key in ("positive", "classes"):
        if getattr(labels, key) is not None:
            raise ValueError(f'labels.{key} goes with data.source = "tables" only')
    if labels.silo is not None and labels.sharing is None:
        raise ValueError('labels.silo: say what becomes of them: sharing = "shared", "exact" or "stale"')


class TableJob(Job):
    """A job on tables that the silos' clients have."""

    data: TableData
    silos: Mapping[str, TableSilo] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "TableJob":
        if not self.silos:
            raise ValueError("silos: tables need a [silos.NAME] for every silo, with its clients' files")
        for name, silo in self.silos.items():
            if silo.named == (silo.file is not None):
                raise ValueError(
                    f'silos.{name}: name a file for each client, clients = {{ north = "north.csv" }}; '
                    'or one file for all, file = "all.csv"'
                )
            if not silo.id:
                raise ValueError(f"silos.{name}.id: name the column that holds the IDs")
            if silo.named and silo.rows:
                raise ValueError(f"silos.{name}.rows: its clients have files of their own, so no rows are dealt")
            for client in silo.files:
                try:
                    silo.settings_of(client)
                except JobError as error:
                    raise ValueError(f"silos.{name}.clients.{client}: {error}") from error
            if not re.fullmatch(NAME, name):
                raise ValueError(f"silos: '{name}': a name has letters, digits, dots, dashes and underscores")
        if all(silo.named for silo in self.silos.values()):
            for key in ("clients", "rows"):
                if getattr(self.data, key) != TableData.model_fields[key].default:
                    raise ValueError(f"data.{key}: all clients have files of their own, so no rows are dealt")
        if (at := self.deployment.assemble) is not None and at not in self.silos:
            raise ValueError(f"deployment.assemble: '{at}' is no silo{nearest(at, self.silos)}")
        asker = self.deployment.predict_at
        if asker is not None and asker not in self.silos:
            raise ValueError(f"deployment.predict_at: '{asker}' is no silo{nearest(asker, self.silos)}")
        self._check_labels()
        return self

    def label_owners(self) -> list[str]:
        """Return the silos with a column of labels."""
        return sorted(name for name, silo in self.silos.items() if silo.label)

    @property
    def predict_at(self) -> str:
        """The silo whose hub may ask for predictions across sites."""
        return self.deployment.predict_at or self.labels.silo or next(iter(self.label_owners()), min(self.silos))

    def _check_labels(self) -> None:
        labels, objective = self.labels, self.training.loss
        meaning = objective.meaning if isinstance(objective, Objective) else ""  # not imported before it is allowed
        if labels.silo is not None and labels.silo not in self.silos:
            raise ValueError(f"labels.silo: '{labels.silo}' is no silo{nearest(labels.silo, self.silos)}")
        if labels.positive is not None and meaning not in ("binary", ""):
            raise ValueError("labels.positive goes with the loss binary-cross-entropy")
        if labels.classes is not None and meaning == "numbers":
            raise ValueError("labels.classes: a regression has none")
        if labels.classes is not None and meaning == "binary":
            wanted = "1" if labels.positive is None else str(labels.positive)
            if len(labels.classes) != 2 or wanted not in labels.classes:
                raise ValueError(f"labels.classes: the binary loss wants two, one of them '{wanted}' (labels.positive)")
        others = [name for name, silo in self.silos.items() if silo.label and name != labels.silo]
        if labels.private and others:
            raise ValueError(
                f"silos.{others[0]}.label: with sharing = \"{labels.sharing}\" only silo '{labels.silo}' has labels; "
                "leave it out, and exclude the column"
            )


def data_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a job's table decides who holds what, and how tables become numbers: no rates, no local steps."""
    silos = {
        name: {key: value for key, value in silo.items() if key not in SiloSettings.model_fields}
        for name, silo in table["silos"].items()
    }
    return {"data": table["data"], "silos": silos, "labels": table["labels"], "loss": table["training"]["loss"]}
