"""What is wrong with a request, in one shape: a problem as in RFC 9457, with an entry for each error."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from typing_extensions import TypedDict

from tdcd.errors import nearest

MEDIA_TYPE = "application/problem+json"
MOST = 20
"""Errors that a reply names."""
LONGEST = 200
"""Letters of an unknown name that are compared with those that are known."""
TOO_MANY = 10_000
"""Errors of which none is looked at: describing them would take seconds, in which others wait."""


class ErrorEntry(TypedDict, total=False):
    """One thing that is wrong with a request."""

    detail: str
    """What it is."""
    pointer: str
    """Where it stands in the request, as a JSON pointer (RFC 6901)."""
    row: int
    """The row, from 1."""
    id: str | int | None
    """The ID of that row."""
    silo: str
    column: str


class ProblemReply(TypedDict):
    """Why a request was refused."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ErrorEntry]


@dataclass(eq=False)
class RequestError(Exception):
    """A request that is refused."""

    status: HTTPStatus
    detail: str
    errors: Sequence[ErrorEntry] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.detail

    @property
    def body(self) -> bytes:
        """Return it as JSON."""
        reply = ProblemReply(
            type="about:blank",
            title=self.status.phrase,
            status=self.status.value,
            detail=self.detail,
            errors=list(self.errors[:MOST]),
        )
        return to_json(reply)


def refuse(errors: Sequence[ErrorEntry]) -> RequestError:
    """Return the problem of a request that is understood, and does not fit the model."""
    others = len(errors) - 1
    more = f" (and {others} {'or more others' if others >= MOST else 'more'})" if others else ""
    return RequestError(HTTPStatus.UNPROCESSABLE_ENTITY, describe(errors[0]) + more, errors)


def describe(error: ErrorEntry) -> str:
    """Return an entry as one line."""
    parts = [f"row {error['row']}"] if "row" in error else []
    parts += [f"silo '{error['silo']}'"] if "silo" in error else []
    parts += [f"column '{error['column']}'"] if "column" in error else []
    return f"{', '.join(parts)}: {error['detail']}" if parts else error["detail"]


def at(detail: str, row: int | None = None, silo: str | None = None, column: str | None = None) -> ErrorEntry:
    """Return an entry about a cell, a row, or something of a silo; rows count from 0 here."""
    entry = ErrorEntry(detail=detail)
    if row is not None:
        path = [part for part in ("rows", str(row), silo, column) if part is not None]
        entry |= ErrorEntry(pointer=_pointer(path), row=row + 1)
    if silo is not None:
        entry["silo"] = silo
    if column is not None:
        entry["column"] = column
    return entry


def _pointer(path: Sequence[str]) -> str:
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)


def invalid(error: ValidationError, wants: Mapping[str, Mapping[str, str]], silos: Sequence[str]) -> RequestError:
    """Return the problem of a request that is not of the right form.

    Args:
        error: What pydantic says.
        wants: What each column of each silo holds, in a few words.
        silos: The silos of the model.
    """
    if error.error_count() > TOO_MANY:
        what = f"the request does not fit the model: it has {error.error_count():,} errors; /docs describes a request"
        return refuse([at(what)])
    errors = error.errors(include_url=False, include_context=False)
    if any(one["type"] == "json_invalid" for one in errors):
        what = errors[0]["msg"].removeprefix("Invalid JSON: ")
        return RequestError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {what}")
    entries: dict[str, ErrorEntry] = {}
    for one in errors:
        for key, entry in _entries(one["type"], one["loc"], one["msg"], one["input"], wants, silos):
            entries.setdefault(key, entry)
        if len(entries) > MOST:
            break
    return refuse(list(entries.values()))


def _entries(
    kind: str, place: tuple[int | str, ...], message: str, given: Any, wants: Mapping[str, Mapping[str, str]],
    silos: Sequence[str],
) -> Iterator[tuple[str, ErrorEntry]]:  # fmt: skip
    match place:
        case ("rows", int(row), str(silo), str(column), *_) if silo in wants and (wants[silo] or "[" in column):
            where = column if column in wants[silo] or kind in ("extra_forbidden", "missing") else None
            entry = at(_cell(kind, column, message, given, wants[silo]), row, silo, where)
            yield entry["pointer"], entry
        case ("rows", int(row), str(silo), *rest) if silo in silos:
            what = f"{_describe(given)} instead of a row: {message}" if not rest else message
            place_in = f" at place {', '.join(str(part + 1) for part in rest if isinstance(part, int))}" if rest else ""
            yield _pointer(["rows", str(row), silo]), at(what + place_in, row, silo)
        case ("rows", int(row), str(silo)) if kind == "extra_forbidden":
            yield f"/{row}/{silo}", at(f"unknown silo '{silo[:LONGEST]}'{nearest(silo[:LONGEST], silos)}", row, silo)
        case ("rows", int(row), *rest):
            yield f"/{row}/{rest[:1]}", at(f"{''.join(f'{part}: ' for part in rest[:1])}{message}", row)
        case _:
            names = [str(part) for part in place]
            what = "unknown key" if kind == "extra_forbidden" else message
            yield (
                _pointer(names),
                ErrorEntry(detail=f"{'.'.join(names)}: {what}" if names else what, pointer=_pointer(names)),
            )


def _cell(kind: str, column: str, message: str, given: Any, wants: Mapping[str, str]) -> str:
    if kind == "missing":
        return "the column is missing; write null where there is no value"
    if kind == "extra_forbidden":
        return f"unknown column{nearest(column[:LONGEST], wants)}"
    if column not in wants:
        return message
    if kind == "finite_number":
        return "the number is not finite"
    return f"{wants[column]}; {_describe(given)} is not"


def _describe(given: Any) -> str:
    if isinstance(given, str):
        return f"the text '{given[:40]}'"
    if isinstance(given, bool) or given is None:
        return {True: "true", False: "false", None: "null"}[given]
    if isinstance(given, int | float):
        return f"the number {given if abs(given) < 1e30 else f'{given:.3g}' if isinstance(given, float) else 'given'}"
    return "a list" if isinstance(given, list) else "an object" if isinstance(given, dict) else "this"
