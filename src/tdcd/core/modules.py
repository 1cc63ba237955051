"""What a module is besides its weights and buffers: plain attributes, hooks, code.

Weights and buffers travel, are averaged and are stored. Whatever else a module remembers from one call to the next
belongs to nobody: every client starts each round from what the module held when it was given.
"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tdcd.core.torch_extras import is_batched

_OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
_SHOWN = (bool, int, float, complex, str, bytes, type(None))
"""Values that are identified by what they are, not by which object they are."""


def is_torchs(part: nn.Module) -> bool:
    """Tell whether a part is a class of torch's own."""
    return type(part).__module__.startswith("torch.nn.")


def plain_attributes(module: nn.Module) -> Iterator[tuple[str, nn.Module, dict[str, Any]]]:
    """Yield parts of users' own classes, by name, with what they hold besides weights, buffers and parts."""
    for name, part in module.named_modules():
        if not is_torchs(part):
            record = {key: value for key, value in vars(part).items() if key not in _OWN}
            if record:
                yield name, part, record


class Attributes:
    """The plain attributes of a module as they were at first, to be put back."""

    def __init__(self, module: nn.Module) -> None:
        weights = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        self._weights = weights
        self._first = [
            (part, {key: self._copy(value) for key, value in result.items()})
            for _, part, result in plain_attributes(module)
        ]

    def __bool__(self) -> bool:
        return bool(self._first)

    def put_back(self) -> bool:
        """Give every part its first attributes; tell whether any had changed."""
        changed = False
        for part, first in self._first:
            now = vars(part)
            for key in [key for key in now if key not in _OWN and key not in first]:
                del now[key]
                changed = True
            for key, value in first.items():
                if key not in now or not self._same(now[key], value):
                    now[key] = self._copy(value)
                    changed = True
        return changed

    def _copy(self, value: Any) -> Any:
        """Return a value that can be written to without harm; weights and what is unknown stay what they are."""
        if isinstance(value, Tensor):
            return value if id(value) in self._weights else value.detach().clone().requires_grad_(value.requires_grad)
        if type(value) in (list, tuple, set):
            return type(value)(self._copy(item) for item in value)
        if type(value) is dict:
            return {key: self._copy(item) for key, item in value.items()}
        return value

    def _same(self, one: Any, two: Any) -> bool:
        if one is two:
            return True
        if isinstance(one, Tensor) and isinstance(two, Tensor):
            plain = not is_batched(one)
            return plain and one.dtype == two.dtype and one.shape == two.shape and _equal(one, two)
        if type(one) is not type(two):
            return False
        if isinstance(one, list | tuple):
            return len(one) == len(two) and all(map(self._same, one, two))
        if isinstance(one, dict):
            return one.keys() == two.keys() and all(self._same(value, two[key]) for key, value in one.items())
        return isinstance(one, (*_SHOWN, set)) and bool(one == two)


def _equal(one: Tensor, two: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, two)
    return torch.allclose(one, two, rtol=0.0, atol=0.0, equal_nan=True)  # a NaN is no 0


def hooked_weights(module: nn.Module) -> list[str]:
    """Return the weights that hooks are registered on: a copy of the module would not have them."""
    return [
        name
        for name, weight in module.named_parameters()
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    ]


def module_digest(module: nn.Module) -> str:
    """Return a digest of what a module computes, but for its weights: its parts, their settings and their code.

    Two networks may look alike when printed and still differ in a constant, or in what ``forward`` does.
    """
    digest = hashlib.blake2b(repr(module).encode(), digest_size=16)
    for name, part in module.named_modules():
        kind = type(part)
        digest.update(f"\n{name} {kind.__module__}.{kind.__qualname__}".encode())
        if not is_torchs(part):
            digest.update("".join(_code(cls) for cls in kind.__mro__ if not _is_known(cls)).encode())
        for hooks in (part._forward_pre_hooks, part._forward_hooks, part._backward_hooks, part._backward_pre_hooks):
            digest.update("".join(_code(hook) for hook in hooks.values()).encode())
        if "forward" in vars(part):
            digest.update(_code(vars(part)["forward"]).encode())
    for name, _, result in plain_attributes(module):
        for key in sorted(result):
            digest.update(f"\n{name}.{key} ".encode())
            for piece in _value_bytes(result[key]):
                digest.update(piece)
    return digest.hexdigest()


def _is_known(cls: type) -> bool:
    return cls is object or cls.__module__.startswith("torch.")


def _code(source: Any) -> str:
    """Return what a class or function does, whatever its comments and line breaks."""
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(source))))
    except (OSError, TypeError, SyntaxError):  # no source: it was made at the prompt, or is built in
        functions = [source] if callable(source) and not isinstance(source, type) else vars(source).values()
        codes = [getattr(function, "__code__", None) for function in functions]
        return repr([(code.co_code, code.co_names) for code in codes if code is not None])


def _value_bytes(value: Any) -> Iterator[bytes]:
    """Yield what tells a value from another; of an object of an unknown kind, only its kind."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        yield repr((str(tensor.dtype), tuple(tensor.shape))).encode()
        yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, list | tuple):
        for item in value:
            yield b","
            yield from _value_bytes(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{key!r}:".encode()
            yield from _value_bytes(item)
    elif isinstance(value, _SHOWN):
        yield repr(value).encode()
    elif callable(value):
        yield _code(value).encode()
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
