"""Properties of a network, by inspection."""

from torch import nn

from tdcd.core.modules import is_torchs

SMALL = 200_000
"""Weights up to which many clients at once are faster than one; larger networks keep torch's own products busy."""
_ROWWISE = (
    nn.Linear, nn.Flatten, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.LayerNorm, nn.GroupNorm, nn.Conv1d, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d,
)  # fmt: skip


_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def weights_of(module: nn.Module) -> int:
    """Return how many weights a network has."""
    return sum(p.numel() for p in module.parameters())


def is_unaltered(module: nn.Module) -> bool:
    """Tell whether every part does what its class says: no hooks, no forward pass of its own."""
    return not any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or "forward" in vars(part)
        for part in module.modules()
    )


def leaves_rows_alone(module: nn.Module) -> bool:
    """Tell whether surely no pass writes to its rows."""
    return _is_known(module) and not any(getattr(part, "inplace", False) for part in module.modules())


def never_draws(module: nn.Module) -> bool:
    """Tell whether surely no pass draws random numbers, however many rows it gets."""
    return _is_known(module) and not any(
        isinstance(part, _RANDOM) or (isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout)
        for part in module.modules()
    )


def _is_known(module: nn.Module) -> bool:
    """Tell whether all of its parts are torch's or tdcd's own, unaltered: then all that they do is known."""
    return is_unaltered(module) and all(
        is_torchs(part) or type(part).__module__.startswith("tdcd.models.") for part in module.modules()
    )


def rows_are_independent(module: nn.Module) -> bool:
    """Tell whether surely no row of a batch influences another's embedding.

    Only torch's own layers, unaltered, are sure: a class of the user's, or a hook, could do anything.
    """
    return is_unaltered(module) and _rowwise(module)


def _rowwise(module: nn.Module) -> bool:
    if type(module) is nn.Sequential:
        return all(_rowwise(child) for child in module)
    return type(module) in _ROWWISE
