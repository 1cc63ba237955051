"""Parts of a training that users can replace: errors name the one that is at fault."""

from collections.abc import Mapping

from torch import Tensor

from tdcd.errors import ModelError, TdcdError, join_names


def name_of(part: object) -> str:
    """Return what to call a part in an error."""
    return f"'{type(part).__module__}:{type(part).__name__}'"


def is_foreign(part: object) -> bool:
    """Tell whether a user has written a part: then what it returns is checked."""
    return not type(part).__module__.startswith("tdcd.core.")


class calling:  # noqa: N801 - read as a verb; a class takes a third of a generator's time, in every round
    """Turn whatever a part raises into an error that names it."""

    def __init__(self, what: str, part: object) -> None:
        self._what, self._part = what, part

    def __enter__(self) -> None:
        """See calling."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """See calling."""
        if isinstance(error, Exception) and not isinstance(error, TdcdError):
            name = name_of(self._part)
            raise ModelError(f"{self._what} {name}: it failed: {type(error).__name__}: {error}") from error


def check_tensors(found: object, like: Mapping[str, Tensor], what: str, part: object, *, finite: bool) -> None:
    """Check that a part has returned tensors of these names, shapes and types.

    Raises:
        ModelError: it has not; names it, and the tensor.
    """
    if not isinstance(found, Mapping):
        raise ModelError(f"{what} {name_of(part)}: it returned {type(found).__name__}, not tensors by name")
    if strange := sorted(set(found) ^ set(like)):
        raise ModelError(f"{what} {name_of(part)}: it returned other names: {join_names(strange)}")
    for name, wanted in like.items():
        tensor = found[name]
        if not isinstance(tensor, Tensor):
            raise ModelError(f"{what} {name_of(part)}: '{name}' became {type(tensor).__name__}, not a tensor")
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            raise ModelError(
                f"{what} {name_of(part)}: '{name}' became {tensor.dtype} of shape {tuple(tensor.shape)}, not "
                f"{wanted.dtype} of shape {tuple(wanted.shape)}"
            )
        if finite and wanted.isfinite().all() and not tensor.isfinite().all():
            raise ModelError(f"{what} {name_of(part)}: '{name}' became numbers that are not finite")
