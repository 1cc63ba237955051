"""A computation that asks, and goes on when it is answered: perhaps much later, in answer to another message."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")
R = TypeVar("R")


class AbandonedError(Exception):
    """Nobody will answer any more."""


@dataclass(frozen=True)
class Done(Generic[R]):
    """What a computation came to."""

    result: R


class Suspended(Generic[Q, A, R]):
    """Runs a function in a thread of its own; whenever it calls ``ask``, the thread waits for the answer.

    Only one of the two threads is ever at work: the other waits for it.
    """

    def __init__(self, function: Callable[[], R]) -> None:
        self._questions: queue.SimpleQueue[Q | Done[R] | Exception] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[A | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)

    def start(self) -> Q | Done[R]:
        """Begin; return the first question, or the result if there is none."""
        self._thread.start()
        return self._next()

    def answer(self, answer: A) -> Q | Done[R]:
        """Answer the last question; return the next one, or the result.

        Raises:
            Exception: whatever the function raises.
        """
        self._answers.put(answer)
        return self._next()

    def abandon(self) -> None:
        """Give it up: what the function has open is closed."""
        if self._thread.is_alive():
            self._answers.put(None)
            self._thread.join()

    def _next(self) -> Q | Done[R]:
        result = self._questions.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _run(self, function: Callable[[], R]) -> None:
        try:
            self._questions.put(Done(function()))
        except Exception as error:  # it belongs to who waits for the next question
            self._questions.put(error)

    def ask(self, question: Q) -> A:
        """Ask, from inside the function.

        Raises:
            AbandonedError: nobody answers any more.
        """
        self._questions.put(question)
        answer = self._answers.get()
        if answer is None:
            raise AbandonedError
        return answer
