"""The base of every settings class: frozen, no unknown keys, and errors that name the nearest right key."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tdcd.errors import JobError, nearest

_NUMBER = re.compile(r"[+-]?[0-9.]*[0-9][0-9.]*([eE][+-]?[0-9]+)?")


if TYPE_CHECKING:  # type checkers know this one's keywords; with the other they would take any
    from pydantic._internal._model_construction import ModelMetaclass as _Raising
else:

    class _Raising(type(BaseModel)):
        """Lets ``Settings(rounds=0)`` in Python raise tdcd's own error; errors in tables of files name the key."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise JobError("\n".join(f"{cls.__name__}: {problem}" for problem in problems(error))) from error


class Strict(BaseModel, metaclass=_Raising):
    """Settings that are checked once, when they are read, and never change after."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what differs from the defaults: a repr is short, and makes the same settings again."""
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            if field is None or value != field.get_default(call_default_factory=True):
                yield name, value

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            for key in values:
                if key not in cls.model_fields:
                    hint = nearest(str(key), cls.model_fields)
                    raise PydanticCustomError(
                        "unknown_key", "unknown key '{key}'{hint}", {"key": str(key), "hint": hint}
                    )
        return values


def matching(pattern: str, what: str) -> AfterValidator:
    """Check texts against a pattern; ``what`` says in words what they may be, as few users read patterns."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{what} (is {value!r})")
        return value

    return AfterValidator(check)


def problems(error: ValidationError, table: Any = None, homes: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a line for each problem: ``training.rounds: should be greater than 0 (is -3)``.

    Args:
        error: The problems.
        table: What was checked, where tables in it have a kind.
        homes: Where a key belongs, for one that stands in a wrong table.
    """
    for problem in error.errors(include_url=False):
        place = ".".join(_keys(problem["loc"], table))
        message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
        message = re.sub(r"valid dictionary( or .*)?", "table", message)
        record = {name: str(value).replace("'", "") for name, value in problem.get("ctx", {}).items()}
        if problem["type"] == "union_tag_not_found":
            message = f"needs a {record['discriminator']}"
        elif problem["type"] == "union_tag_invalid":
            place = f"{place}.{record['discriminator']}"
            message = f"'{record['tag']}' is not known{nearest(record['tag'], record['expected_tags'].split(', '))}"
        elif problem["type"] == "unknown_key" and homes and record["key"] in homes:
            message = f"unknown key '{record['key']}'; did you mean {homes[record['key']]}?"
        elif problem["type"] not in ("unknown_key", "missing", "value_error"):
            message += f" (is {problem['input']!r}{_quotes(problem['type'], problem['input'])})"
        yield f"{place}: {message}" if place else message


def _quotes(kind: str, value: Any) -> str:
    """Tell what quotes make of a number, and a number without them."""
    if kind in ("int_type", "float_type") and isinstance(value, str) and _NUMBER.fullmatch(value):
        return ", a text; write it without quotes"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ", a number; write it in quotes" if kind == "string_type" and number else ""


def _keys(place: Iterable[int | str], table: Any) -> Iterator[str]:
    """Yield the keys that lead to a problem, without the tags that pydantic adds after tables with a kind.

    A tag is the kind, or stands in angle brackets; a key of the same name may follow it, or be in another table.
    """
    tagged = False
    for part in place:
        kind = table.get("kind") if isinstance(table, Mapping) else None
        if not tagged and kind is not None and (part == kind or str(part).startswith("<")):
            tagged = True
            continue
        yield str(part)
        tagged = False
        table = table.get(part) if isinstance(table, Mapping) else None


def parse_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """Read ``training.rate=0.1`` as a key and a TOML value; a bare word is a text."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        example = "training.rate=0.1" if option == "--set" else "hub_latency=5"
        raise JobError(f"{option} {text}: write it as KEY=VALUE, such as {example}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
