"""What users can replace in a training, named by kind or by import path: one registry for every such part."""

import importlib
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tdcd.errors import JobError, ModelError, nearest
from tdcd.strict import problems

T = TypeVar("T")
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


@dataclass(frozen=True)
class Imported:
    """A part of a user's own: ``kind = "package.module:factory"``. The factory is called with the options."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The module that the factory is in."""
        return self.kind.split(":")[0]


@dataclass(frozen=True)
class Registry(Generic[T]):
    """The parts of one sort: how they are read from a job, written to its record, and made."""

    what: str
    """One of them, such as "aggregator"."""
    offers: Any
    """The protocol that all of them implement."""
    kinds: Mapping[str, type[T]]
    """Those of the package, each a frozen dataclass of its options."""

    @property
    def options(self) -> list[str]:
        """What the kinds of the package can be given."""
        return sorted({name for made in self.kinds.values() for name in _options(made)})

    def read(self, value: object) -> T | Imported:
        """Read a kind, a table with a kind and options, or an object.

        Raises:
            ValueError: it is none that is known; says what is.
        """
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping):
            if isinstance(value, Imported | self.offers) and not isinstance(value, type):
                return value
            missing = [name for name in _wanted(self.offers) if not hasattr(value, name)]
            lacks = f", which lacks {', '.join(missing)}" if missing else " itself, not an object of it"
            of = value.__name__ if isinstance(value, type) else type(value).__name__
            raise ValueError(f"it is no {self.what}: a kind, a table, or an object is wanted, not {of}{lacks}")
        options = {str(key): option for key, option in value.items() if key != "kind"}
        kind = value.get("kind")
        if not isinstance(kind, str):
            raise ValueError(f"needs a kind: {', '.join(self.kinds)}, or your own as 'package.module:factory'")
        if ":" in kind:
            return self._imported(kind, options)
        if kind not in self.kinds:
            raise ValueError(
                f"unknown kind of {self.what} '{kind}'{nearest(kind, self.kinds)} "
                "(your own is named 'package.module:factory')"
            )
        made = self.kinds[kind]
        types = {name: kind for name, kind in get_type_hints(made).items() if name in _options(made)}
        for name, option in options.items():
            if name not in types:
                raise ValueError(f"unknown key '{name}' of the kind '{kind}'{nearest(name, types)}")
            try:
                options[name] = TypeAdapter(types[name]).validate_python(option, strict=True)
            except ValidationError as error:
                raise ValueError(f"{name}: {next(problems(error)).split(': ')[-1]}") from error
        return made(**options)

    def _imported(self, kind: str, options: Mapping[str, Any]) -> Imported:
        if not re.match(IMPORT_PATH, kind):
            raise ValueError(f"'{kind}' is no import path; write it as 'package.module:factory'")
        if strange := sorted(set(options) - {"options"}):
            raise ValueError(f"unknown key '{strange[0]}'; give what the factory takes as options = {{ … }}")
        given = options.get("options", {})
        if not isinstance(given, Mapping):
            raise ValueError("options: should be a table")
        return Imported(kind, dict(given))

    def kind_of(self, value: object) -> str:
        """Return the kind of a part as a job names it."""
        if isinstance(value, Imported):
            return value.kind
        own = type(value)
        return next((kind for kind, made in self.kinds.items() if own is made), f"{own.__module__}:{own.__name__}")

    def write(self, value: object) -> dict[str, Any]:
        """Return a part as a table that ``read`` takes.

        Raises:
            JobError: it could not be made again from a table.
        """
        kind = self.kind_of(value)
        if isinstance(value, Imported):
            options = dict(value.options)
        else:
            if type(value) not in self.kinds.values():
                _check_class(value, self.what)
            options = _written(value)
        options = {name: _plain(option, f"{self.what} '{kind}': {name}") for name, option in options.items()}
        if ":" not in kind:
            return {"kind": kind} | options
        return {"kind": kind} | ({"options": options} if options else {})

    def make(self, value: T | Imported | str | Mapping[str, Any]) -> T:
        """Return the part itself; one that is named by an import path is imported now.

        Raises:
            ModelError: it cannot be imported, or is none.
        """
        value = self.read(value)
        if not isinstance(value, Imported):
            return value
        made = call_factory(value.kind, self.what, str(dict(value.options)), **value.options)
        if not isinstance(made, self.offers):
            missing = [name for name in _wanted(self.offers) if not hasattr(made, name)]
            raise ModelError(
                f"{self.what} '{value.kind}': the factory returned {type(made).__name__}, which lacks "
                f"{', '.join(missing)}"
            )
        part: T = made
        return part


def not_allowed(named: Mapping[str, str], allowed: Container[str]) -> Iterator[tuple[str, str, str]]:
    """Yield what somebody else's file names by import paths from modules that one has not allowed oneself.

    Args:
        named: The import paths, each under what it is.
        allowed: The modules whose code may run.

    Yields:
        What it is, its import path and its module.
    """
    modules = [allowed] if isinstance(allowed, str) else allowed
    for what, path in named.items():
        module = path.split(":")[0]
        if module not in modules:
            yield what, path, module


def call_factory(path: str, what: str, given: str, /, *arguments: Any, **options: Any) -> Any:
    """Import ``package.module:factory`` and call it; ``given`` says with what. Options may have any name.

    Raises:
        ModelError: there is no such thing, or it fails.
    """
    factory = _imported(path, what)
    try:
        return factory(*arguments, **options)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{what} '{path}': the factory failed for {given}: {type(error).__name__}: {error}") from error


def _imported(path: str, what: str) -> Any:
    place, name = path.split(":")
    try:
        home = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{what} '{path}': there is no module '{error.name}'; install it, or put its file beside the "
            "job file; for tdcd predict, name its folder with --import-from, at a site with import_from in its file"
        ) from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{what} '{path}': importing '{place}' failed: {type(error).__name__}: {error}") from error
    found = getattr(home, name, None)
    if found is None:
        raise ModelError(
            f"{what} '{path}': the module '{place}' has no '{name}'; "
            f"it was found in {getattr(home, '__file__', 'Python itself')}"
        )
    return found


def _options(made: type) -> list[str]:
    """Return the names of what a part can be given."""
    return [one.name for one in fields(made) if one.init] if is_dataclass(made) else []


def _written(part: Any) -> dict[str, Any]:
    """Return the options of a part; one that is None by default need not be said."""
    silent = {one.name for one in fields(part) if one.default is None} if is_dataclass(part) else set()
    options = {name: getattr(part, name) for name in _options(type(part))}
    return {name: option for name, option in options.items() if option is not None or name not in silent}


def _check_class(part: object, what: str) -> None:
    """Check that an object of a user's own can be made again from its class and its fields.

    Raises:
        JobError: it cannot; says what to do.
    """
    own = type(part)
    maker = next(base for base in own.__mro__ if "__init__" in vars(base))
    by_fields = getattr(vars(maker).get("__dataclass_params__"), "init", False)
    if not by_fields and (own.__init__ is not object.__init__ or getattr(part, "__dict__", {})):
        raise JobError(
            f"{what} {own.__name__}: it cannot be recorded so that it can be made again: make it a dataclass whose "
            "fields are its options"
        )
    if own.__qualname__ != own.__name__:
        raise JobError(
            f"{what} {own.__name__}: it cannot be recorded so that it can be made again: move its class out of "
            f"{own.__qualname__.rpartition('.')[0]} to the top level of a module"
        )


def _plain(value: Any, where: str) -> Any:
    """Return an option as TOML can hold it.

    Raises:
        JobError: it cannot.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(name): _plain(one, f"{where}.{name}") for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, where) for one in value]
    if isinstance(value, bool | int | float | str):
        return value
    raise JobError(
        f"{where}: a {type(value).__name__} cannot be recorded; options are numbers, texts, and lists or tables of "
        "these, from which the part makes what else it needs"
    )


def _wanted(protocol: type) -> list[str]:
    """Return what a protocol asks for."""
    return sorted(name for name in vars(protocol) if not name.startswith("_"))
