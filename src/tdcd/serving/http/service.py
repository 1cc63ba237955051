"""The model that is served, and another in its place."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tdcd.errors import TdcdError
from tdcd.runs.layout import RESULT
from tdcd.serving.http.batcher import Batcher
from tdcd.serving.http.metrics import Metrics
from tdcd.serving.http.predictor import Ask, Outcome, Predictor, fault
from tdcd.serving.http.problems import RequestError
from tdcd.serving.model import Model
from tdcd.serving.record import MODEL

log = logging.getLogger("tdcd.serve")

Stamp = tuple[int, int, int]


class Service:
    """Answers requests by one model, until another has been loaded and verified."""

    def __init__(self, load: Callable[[], Model], rows: int, path: Path) -> None:
        """Load the model.

        Args:
            load: Loads and verifies it.
            rows: Of a request, at most.
            path: Where it lies.

        Raises:
            TdcdError: it cannot be served.
        """
        self._load, self._rows, self._path = load, rows, path
        self.metrics = Metrics()
        self._stamp = self._look()
        self.predictor = self._loaded()
        self.metrics.serve(self.predictor.identity)
        self.batcher = Batcher(self._answer)

    def _loaded(self) -> Predictor:
        predictor = Predictor(self._load(), self._rows)
        predictor.try_out()
        return predictor

    def _answer(self, bodies: Sequence[bytes]) -> list[Outcome]:
        try:
            return self._answer_together(bodies)
        except Exception as error:
            return [fault(error)] * len(bodies)

    def _answer_together(self, bodies: Sequence[bytes]) -> list[Outcome]:
        predictor = self.predictor
        outcomes: list[Outcome | Ask] = []
        for body in bodies:
            try:
                outcomes.append(predictor.read(body))
            except RequestError as error:
                outcomes.append(error)
        asks = [one for one in outcomes if isinstance(one, Ask)]
        answers = iter(predictor.answer(asks))
        done = [next(answers) if isinstance(one, Ask) else one for one in outcomes]
        self.metrics.batch.observe(len(bodies))
        self.metrics.count_drift(predictor.take_drift())
        return done

    @property
    def changed(self) -> bool:
        """Whether the model's files are others than when it was last loaded, or tried to be."""
        stamp = self._look()
        return stamp is not None and stamp != self._stamp

    def _look(self) -> Stamp | None:
        for name in (MODEL, RESULT):
            try:
                status = (self._path / name).stat()
            except OSError:
                continue
            return status.st_ino, status.st_size, status.st_mtime_ns
        return None

    def reload(self) -> None:
        """Load the model anew; where that fails, the one that was there goes on."""
        self._stamp = self._look()
        try:
            predictor = self._loaded()
        except (TdcdError, RequestError) as error:
            self.metrics.reloads.labels("refused").inc()
            log.error(f"the new model is refused, and the one that was there goes on: {error}")
            return
        except Exception as error:
            self.metrics.reloads.labels("refused").inc()
            log.error(f"the new model cannot be loaded ({type(error).__name__}); the one that was there goes on")
            return
        self.predictor = predictor
        self.metrics.reloads.labels("taken").inc()
        self.metrics.serve(predictor.identity)
        log.info(f"serving another model: {describe(predictor)}")


def describe(predictor: Predictor) -> str:
    """Tell which model a predictor has."""
    identity = predictor.identity
    return f"{identity['name']}, run {identity['run']}, round {identity['round']:,}"
