"""Replies to requests: those of several at once are prepared and embedded together."""

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from torch import Tensor

from tdcd.core.streams import borrow_stream
from tdcd.core.task import sum_embeddings
from tdcd.data.tables.drift import Drift
from tdcd.errors import DataError
from tdcd.jobs.schema import TableJob
from tdcd.serving.explain import MOST, shapley_values
from tdcd.serving.frames import class_names
from tdcd.serving.http.inputs import ArrayInputs, Inputs, Prepared, TableInputs
from tdcd.serving.http.problems import RequestError, at, invalid, refuse
from tdcd.serving.http.schema import ID, Identity, ModelInfo, Prediction, Reply, Request, SiloInfo, request_adapter
from tdcd.serving.model import Model
from tdcd.training.result import dtype_of

log = logging.getLogger("tdcd.serve")


@dataclass(frozen=True)
class Ask:
    """A request that fits the model, as far as can be said without its values."""

    rows: Sequence[Mapping[str, Any]]
    shares: bool
    shapley: bool
    without: frozenset[str]


@dataclass(frozen=True)
class Answered:
    """A reply."""

    body: bytes
    rows: int


Outcome = Answered | RequestError


class Predictor:
    """A model that answers requests."""

    def __init__(self, model: Model, most: int) -> None:
        """Take a model.

        Args:
            model: The model.
            most: Rows of a request.
        """
        self.model = model
        self.inputs = _inputs(model)
        self.adapter = request_adapter(self.inputs, most)
        self.wants = {silo: own.wants for silo, own in self.inputs.items()}
        self.drift: dict[str, Drift] = {}
        """How the rows of all requests since the last look at it compare with the training; see ``take_drift``."""

    @cached_property
    def identity(self) -> Identity:
        """Which model it is."""
        record, job, result = self.model.record, self.model.job, self.model.result
        name = record.name if record else job.name if job else self.model.path.resolve().name
        return Identity(name=name, run=result.description.run, round=result.selected)

    @cached_property
    def example(self) -> dict[str, Any]:
        """A request."""
        return {"rows": [{ID: "a1", **{silo: own.example for silo, own in self.inputs.items()}}]}

    @cached_property
    def info(self) -> ModelInfo:
        """What the model is."""
        description, kept = self.model.result.description, self.model.result.kept
        silos = [
            SiloInfo(
                name=silo.name,
                network=silo.network,
                parameters=silo.parameters,
                row_shape=list(silo.row_shape),
                columns=self.inputs[silo.name].describe(),
            )
            for silo in description.silos
            if silo.name in self.inputs
        ]
        parts = {part: dict(kept.measures(part)) for part in ("train", "validation", "test")}
        return ModelInfo(
            model=self.identity,
            origin=self.model.origin,
            loss=description.loss,
            classes=list(self.model.classes),
            samples=description.samples,
            silos=silos,
            measures=[{"part": part, "values": values} for part, values in parts.items() if values],
        )

    def try_out(self) -> None:
        """Answer the example, to find out whether the model works.

        Raises:
            RequestError: it does not.
        """
        (outcome,) = self.answer([self.read(to_json(self.example))])
        self.take_drift()
        if isinstance(outcome, RequestError):
            raise outcome

    def read(self, body: bytes) -> Ask:
        """Read a request.

        Raises:
            RequestError: it is not of the right form.
        """
        try:
            request = self.adapter.validate_json(body)
        except ValidationError as error:
            raise invalid(error, self.wants, list(self.inputs)) from None
        without = frozenset(request.get("without", ()))
        self._check_silos(request, without)
        shapley = request.get("shapley", False)
        if shapley and len(self.inputs) - len(without) > MOST:
            raise refuse([at(f"shapley: goes through all subsets of at most {MOST} silos")])
        return Ask(request["rows"], request.get("shares", False), shapley, without)

    def _check_silos(self, request: Request, without: frozenset[str]) -> None:
        wanted = self.inputs.keys() - without
        errors = []
        for number, row in enumerate(request["rows"]):
            given = row.keys() - {ID}
            if given != wanted:
                advice = 'to leave it out, and have partial predictions, say so: "without": ["{}"]'
                errors += [
                    at("the silo is missing; " + advice.format(silo), number, silo) for silo in sorted(wanted - given)
                ]
                errors += [
                    at("the silo is to be left out, and has values; choose one of them", number, silo)
                    for silo in sorted(given & without)
                ]
                break
        if errors:
            raise refuse(errors)

    def answer(self, asks: Sequence[Ask]) -> list[Outcome]:
        """Answer requests, together where they leave out the same silos; what is wrong with one harms no other."""
        outcomes: dict[int, Outcome] = {}
        for without in dict.fromkeys(ask.without for ask in asks):
            places = [place for place, ask in enumerate(asks) if ask.without == without]
            outcomes |= zip(places, self._together([asks[place] for place in places]), strict=True)
        return [outcomes[place] for place in range(len(asks))]

    def _together(self, asks: Sequence[Ask]) -> list[Outcome]:
        try:
            return self._predict(asks)
        except Exception as error:
            if len(asks) > 1:
                return [outcome for ask in asks for outcome in self._together([ask])]
            return [self._fault(asks[0], error)]

    def _fault(self, ask: Ask, error: Exception) -> RequestError:
        """Find out what is wrong with a request."""
        if isinstance(error, DataError):
            entries = [
                at(message, row, silo, column)
                for silo, own in self.inputs.items()
                if silo not in ask.without
                for row, column, message in own.locate([one[silo] for one in ask.rows])
            ]
            return _with_ids(refuse(entries or [at(str(error))]), ask)
        if isinstance(error, RequestError):
            return _with_ids(error, ask)
        return fault(error)

    def _predict(self, asks: Sequence[Ask]) -> list[Outcome]:
        rows = [row for ask in asks for row in ask.rows]
        prepared = {
            silo: own.prepare([row[silo] for row in rows], strict=len(asks) > 1)
            for silo, own in self.inputs.items()
            if silo not in asks[0].without
        }
        shares = self._embed(prepared)
        scores = sum_embeddings(shares)
        objective = self.model.result.objective
        predicted = objective.predictions(scores)
        lost = ~(scores.isfinite().all(1) & predicted.reshape(len(rows), -1).isfinite().all(1))
        if lost.any():
            place = int(lost.float().argmax())
            raise refuse([at("the score of the row is not a finite number; are its values far too large?", place)])
        chances = None if objective.meaning == "numbers" else objective.probabilities(scores)
        replies: list[Outcome] = []
        start = 0
        for ask in asks:
            own = slice(start, start + len(ask.rows))
            start = own.stop
            part = _Part(
                {silo: share[own] for silo, share in shares.items()}, scores[own], predicted[own],
                None if chances is None else chances[own],
            )  # fmt: skip
            warnings = [line for silo, made in prepared.items() for line in made.warnings(silo, own.start, own.stop)]
            replies.append(Answered(to_json(self._reply(ask, part, warnings)), len(ask.rows)))
        for silo, made in prepared.items():
            if made.drift is not None:
                self.drift.setdefault(silo, Drift(made.drift.preparation)).add(made.drift)
        return replies

    def _embed(self, prepared: Mapping[str, Prepared]) -> dict[str, Tensor]:
        result = self.model.result
        with ExitStack() as borrowed:
            for device in {result.networks[silo].device for silo in prepared}:
                borrowed.enter_context(borrow_stream(device))
            return {silo: result.embed(silo, made.numbers) for silo, made in prepared.items()}

    def _reply(self, ask: Ask, part: "_Part", warnings: list[str]) -> Reply:
        return Reply(
            model=self.identity,
            predictions=list(self._predictions(ask, part)),
            partial=bool(ask.without),
            without=sorted(ask.without),
            warnings=warnings,
        )

    def _predictions(self, ask: Ask, part: "_Part") -> Iterator[Prediction]:
        objective = self.model.result.objective
        numbers = objective.meaning == "numbers"
        names = class_names(self.model.classes, part.scores.shape[1])
        predicted = _values(part.predicted) if numbers else [names[place] for place in part.predicted.tolist()]
        chances = None if part.chances is None else _chances(part.chances, names)
        labels = None if numbers else names
        scores = _values(part.scores, labels) if ask.shares else None
        shares = {silo: _values(share, labels) for silo, share in part.shares.items()} if ask.shares else None
        shapley = (
            {silo: _values(value, labels) for silo, value in shapley_values(objective, part.shares).items()}
            if ask.shapley
            else None
        )
        for place, row in enumerate(ask.rows):
            one = Prediction(id=row.get(ID), prediction=predicted[place])
            if chances is not None:
                one["probabilities"] = chances[place]
            if scores is not None and shares is not None:
                one["score"] = scores[place]
                one["shares"] = {silo: values[place] for silo, values in shares.items()}
            if shapley is not None:
                one["shapley"] = {silo: values[place] for silo, values in shapley.items()}
            yield one

    def take_drift(self) -> dict[str, Drift]:
        """Return how rows compare with the training, of all since the last call."""
        taken, self.drift = self.drift, {}
        return taken


@dataclass(frozen=True)
class _Part:
    """What was computed of the rows of one request."""

    shares: Mapping[str, Tensor]
    scores: Tensor
    predicted: Tensor
    chances: Tensor | None


def fault(error: Exception) -> RequestError:
    """Log an error that is no fault of the request, without its message, which may have values of rows."""
    place = "".join(traceback.format_tb(error.__traceback__)[-3:])
    log.error(f"a prediction failed: {type(error).__name__}\n{place}")
    return RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "the prediction failed at the server; its log says where")


def _inputs(model: Model) -> dict[str, Inputs]:
    result: dict[str, Inputs] = {}
    for silo in model.result.description.silos:
        if silo.name not in model.result.networks:
            continue
        if isinstance(model.job, TableJob):
            settings, dtype = model.job.silos[silo.name].settings_of(""), dtype_of(silo.row_type)
            result[silo.name] = TableInputs.of(silo.name, settings, model.preparations[silo.name], dtype)
        else:
            result[silo.name] = ArrayInputs.of(silo)
    return result


def _values(values: Tensor, names: Sequence[str] | None = None) -> list[Any]:
    """Return a value for each row: a number, a list of numbers, or numbers by the names of classes."""
    if values.ndim == 1 or values.shape[1] == 1:
        return list(values.reshape(-1).tolist())
    return [dict(zip(names, row, strict=True)) if names else row for row in values.tolist()]


def _chances(values: Tensor, names: Sequence[str]) -> list[dict[str, float]]:
    if values.ndim == 1:
        return [{names[0]: 1 - value, names[1]: value} for value in values.tolist()]
    return [dict(zip(names, row, strict=True)) for row in values.tolist()]


def _with_ids(problem: RequestError, ask: Ask) -> RequestError:
    """Name the IDs of the rows that are wrong."""
    for entry in problem.errors:
        if "row" in entry and ask.rows[entry["row"] - 1].get(ID) is not None:
            entry["id"] = ask.rows[entry["row"] - 1][ID]
    return problem
