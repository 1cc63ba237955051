"""What a training gives back."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn

from tdcd.compute.whole import embed_whole
from tdcd.core.network import Blocks, Network
from tdcd.core.objectives import Objective
from tdcd.core.streams import borrow_stream
from tdcd.core.task import sum_embeddings
from tdcd.data.arrays import Data, describe_value, fingerprint
from tdcd.data.frames import Columns
from tdcd.data.samples import Samples, check_by_silo, to_rows
from tdcd.data.sources import RowSource
from tdcd.errors import DataError, JobError, ModelError, RunError, join_names, nearest
from tdcd.models import Imported, ModelSpec
from tdcd.models.spec import read_model
from tdcd.registry import not_allowed
from tdcd.runs.digests import check_files
from tdcd.runs.history import History
from tdcd.runs.layout import BLOCKS, FEDERATION, check_run
from tdcd.runs.reader import read_history, read_outcome
from tdcd.runs.records import PARTS, Evaluation, FederationRecord, Finding, Outcome, read_record
from tdcd.runs.store import RunDirectory, load_blocks
from tdcd.runs.stored_job import stored_job
from tdcd.runs.tensors import flatten
from tdcd.summary import Summary
from tdcd.training.metrics import measure
from tdcd.training.settings import Settings
from tdcd.training.setup import build_network, fit_blocks, starting_blocks


@dataclass(frozen=True)
class Recorded:
    """What is on disk of a trained federation, verified."""

    path: Path
    training: Mapping[str, Any]
    """The settings, as in the job file."""
    description: FederationRecord
    blocks: Blocks
    selected: int
    history: History
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Result:
    """A trained federation."""

    settings: Settings
    networks: Mapping[str, Network]
    blocks: Blocks
    """The hubs' weights: after the last round, or the best on the validation samples."""
    selected: int
    """The round they are of."""
    history: History
    description: FederationRecord
    """Who took part, on what rows, and what the networks are built from."""
    findings: tuple[Finding, ...] = ()
    """What the training shows about itself, failures first: see docs/diagnosis.md."""

    @property
    def kept(self) -> Evaluation:
        """The evaluation of these weights."""
        return self.history.kept(self.selected)

    @property
    def final(self) -> Evaluation:
        """The evaluation after the last round; with ``select = "best"`` these weights may be of an earlier one."""
        return self.history[-1]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Why the model is of no use; empty if it is not known to be so."""
        return tuple(finding for finding in self.findings if finding.level == "failure")

    @property
    def objective(self) -> Objective:
        """The loss it was trained with."""
        return self.settings.objective

    @property
    def columns(self) -> dict[str, Columns]:
        """The columns of silos that were trained on data frames: later frames may have them in any order."""
        silos = self.description.silos
        return {silo.name: Columns(silo.frame_columns, silo.id_column) for silo in silos if silo.frame_columns}

    def modules(self) -> dict[str, nn.Module]:
        """Return each silo's network as an ordinary module with its trained weights, in evaluation mode."""
        return {silo: network.with_weights(self.blocks[silo]) for silo, network in self.networks.items()}

    def scores(self, features: Mapping[str, Data | RowSource]) -> Tensor:
        """Return the summed embeddings (M, E) of new samples; row i of every silo is the same sample."""
        check_by_silo(features, "features")
        missing = sorted(set(self.networks) - set(features))
        if missing:
            raise DataError(f"predicting needs the features of every silo; missing: {join_names(missing)}")
        given, _ = to_rows({silo: features[silo] for silo in self.networks}, "", columns=self.columns)
        counts = {silo: len(rows) for silo, rows in given.items()}
        if len(set(counts.values())) > 1:
            raise DataError(f"the silos have different numbers of rows: {counts}")
        record = {}
        for silo, network in self.networks.items():
            with borrow_stream(network.device):
                record[silo] = self.embed(silo, given[silo])
        return sum_embeddings(record)

    def embed(self, silo: str, rows: Tensor) -> Tensor:
        """Return one silo's embeddings (M, E) of prepared rows, brought to the type that it was trained on.

        A caller whose modules may draw borrows the random stream.
        """
        network, record = self.networks[silo], next(one for one in self.description.silos if one.name == silo)
        given = rows.to(dtype_of(record.row_type)).to(network.device)
        return embed_whole(silo, network, self.blocks[silo], given).cpu()

    def predict(self, features: Mapping[str, Data | RowSource]) -> Tensor:
        """Return the predicted classes (M,), or values (M, E) for a regression."""
        return self.objective.predictions(self.scores(features))

    def probabilities(self, features: Mapping[str, Data | RowSource]) -> Tensor:
        """Return probabilities: (M, classes), or (M,) of the positive class."""
        return self.objective.probabilities(self.scores(features))

    def evaluate(self, samples: Samples) -> dict[str, float]:
        """Return the loss and the metrics on labelled samples."""
        samples = samples.arrange(self.columns, "samples").loaded()
        result = self.scores(samples.features)
        labels = self.objective.prepare(samples.labels, result.shape[1], self.settings.dtype)
        return measure(self.objective, result, labels)

    def save(self, directory: Path | str) -> None:
        """Write all that predictions need, as a run does; ``load`` reads it, without the data.

        Raises:
            JobError: there is no directory, or a part of the user's own could not be made again.
            RunError: the directory holds a run, or something else that would be replaced.
        """
        if not isinstance(directory, str | Path) or not str(directory):
            raise JobError(f"directory: a path to write to is wanted, not {describe_value(directory)}")
        job = {"training": self.settings.as_table()}
        outcome = Outcome(
            status="finished",
            confirmed=True,
            round=self.final.round,
            rounds=self.settings.rounds,
            selected=self.selected,
            iteration=self.final.iteration,
            seconds=self.final.seconds,
            evaluated=self.kept,
            files={},
            findings=self.findings,
        )
        with RunDirectory.open(Path(directory), job, resume=False) as run:
            run.begin_run(run.identify({"weights": fingerprint(flatten("block", self.blocks))}))
            run.begin(self.description, self.history)
            run.finish(outcome, self.blocks)

    @classmethod
    def load(
        cls,
        directory: Path | str,
        models: Mapping[str, ModelSpec | nn.Module] | None = None,
        imports: Container[str] = (),
    ) -> "Result":
        """Read what ``save`` wrote, or the result of a run that has ended.

        Args:
            directory: Where it is.
            models: The network of each silo that was trained with an ``nn.Module``: code is not saved, its weights are.
            imports: The modules that a loss and models of one's own may be imported from; other code does not run.

        Raises:
            RunError: it is no run, has not ended, is damaged, or names code that is not allowed.
            ModelError: a module is missing, or another one than was trained.
        """
        path = Path(directory)
        check_run(path)
        description = read_record(path / FEDERATION, FederationRecord)
        if description.peers:
            silos = [silo.name for silo in description.silos]
            raise RunError(
                f"{path}: it is the run of one hub, of silo {join_names(silos)}, and predictions need the weights of "
                f"silo {join_names(description.peers)} too. Where these may be in one place, make a model of the runs "
                f"of all hubs: tdcd assemble {quote(str(path))} OTHER-RUNS --out MODEL. Where they may not, predict "
                "across sites: docs/deployment.md"
            )
        outcome = read_outcome(path)
        if outcome is None:
            raise RunError(f"{path}: it has not ended; go on with it: tdcd train --resume {quote(str(path))}")
        check_files(path, outcome.files)
        training, history = stored_job(path)["training"], History(read_history(path))
        recorded = Recorded(path, training, description, load_blocks(path), outcome.selected, history, outcome.findings)
        return cls.rebuild(recorded, models, imports)

    @classmethod
    def rebuild(
        cls,
        recorded: "Recorded",
        models: Mapping[str, ModelSpec | nn.Module] | None = None,
        imports: Container[str] = (),
    ) -> "Result":
        """Build the networks of what was recorded, and give them its weights. See ``load``.

        Raises:
            RunError: the weights do not fit, or it names code that is not allowed.
            ModelError: a module is missing, or another one than was trained.
        """
        path, description, given = recorded.path, recorded.description, models or {}
        silos = {silo.name: silo for silo in description.silos}
        stored = {name: read_model(silo.model) for name, silo in silos.items() if silo.model}
        for name in given:
            if name not in silos:
                raise ModelError(f"a model is given for '{name}', which is no silo{nearest(name, silos)}")
            if name in stored and not isinstance(stored[name], Imported):
                raise ModelError(
                    f"{path}: a model is given for silo '{name}', whose network is recorded, {silos[name].network}; "
                    "leave it out"
                )
        settings = Settings(**recorded.training)
        own = {name: model for name, model in stored.items() if isinstance(model, Imported) and name not in given}
        named = {f"model of silo '{name}'": model.kind for name, model in own.items()}
        check_allowed(path, named | {what: kind for what, kind in settings.imports.items() if what == "loss"}, imports)
        networks = {}
        for name, silo in silos.items():
            if not silo.features:
                continue
            if not silo.model and name not in given:
                raise ModelError(
                    f"{path}: silo '{name}' was trained with a module of your own, {silo.network}, whose code is not "
                    f'saved; give one, whatever its weights: models={{"{name}": {silo.network}(…)}}'
                )
            model = given[name] if name in given else stored[name]
            networks[name] = build_network(name, model, silo.row_shape, description.embedding, settings)
        initial = starting_blocks(networks, None, [name for name in silos if name not in networks])
        blocks = fit_blocks(recorded.blocks, initial, str(path / BLOCKS))
        return cls(settings, networks, blocks, recorded.selected, recorded.history, description, recorded.findings)

    def _summary(self) -> Summary:
        parts = [part for part in PARTS if self.kept.measures(part)]
        names = list(dict.fromkeys(name for part in parts for name in self.kept.shown(part)))
        weights = sum(p.numel() for network in self.networks.values() for p in network.module.parameters())
        title = (
            f"Result of {self.final.round:,} rounds, {self.settings.loss_kind}; {weights:,} weights of round "
            f"{self.selected:,}, silos {join_names(self.networks)}"
        )
        rows = [[part, *(f"{self.kept.measures(part).get(name, nan):.4g}" for name in names)] for part in parts]
        return Summary(title, ["", *names], rows)

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


def check_allowed(path: Path, named: Mapping[str, str], imports: Container[str]) -> None:
    """Check that one has allowed the code that a run names by import paths: the run may be somebody else's.

    Raises:
        RunError: one has not.
    """
    for what, kind, module in not_allowed(named, imports):
        raise RunError(
            f"{path}: its {what} is '{kind}', which is code that you have not allowed. If you trust it, name its "
            f'module: from Python with imports=["{module}"], on the command line with --allow {module} or '
            "--import-from FOLDER, which allows the code that lies there"
        )


def dtype_of(name: str) -> torch.dtype:
    """Return torch's type of some name.

    Raises:
        RunError: there is none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise RunError(f"rows of type '{name}', which torch does not have")
    return dtype
