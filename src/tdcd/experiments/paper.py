"""The experiments of the paper's Section 5, as sweeps that come with tdcd: one at the paper's scale, one small."""

from importlib.resources import files
from typing import Literal, get_args

from tdcd.errors import JobError, nearest
from tdcd.experiments.sweep_file import Sweep, parse_sweep

Scale = Literal["paper", "small"]

EXPERIMENTS = {
    "cifar10": ("accuracy by Q, for K = 50 and 100; N = 2", "CIFAR-10"),
    "mimic3": ("F1 by Q, for K = 20 and 50; N = 4", "MIMIC-III"),
    "mimic3-silos": ("F1 by N = 1, 4 and 16; K = 50, Q = 10", "MIMIC-III"),
    "modelnet": ("top-5 accuracy by Q, for K = 10 and 20; N = 12", "ModelNet40, or ModelNet10"),
    "physionet2012": ("as mimic3, on data that anyone can get", "PhysioNet 2012"),
    "physionet2012-silos": ("as mimic3-silos, on data that anyone can get", "PhysioNet 2012"),
}
"""What each shows, and on which data."""


def experiment(name: str, scale: str = "small") -> Sweep:
    """Return one of the paper's experiments.

    Raises:
        JobError: there is none of that name, or no such scale.
    """
    if name not in EXPERIMENTS:
        raise JobError(f"'{name}' is no experiment of the paper{nearest(name, EXPERIMENTS)}")
    if scale not in get_args(Scale):
        raise JobError(f"scale: '{scale}' is not known{nearest(scale, get_args(Scale))}")
    text = files("tdcd.experiments").joinpath("sweeps", f"{name}-{scale}.toml").read_text(encoding="utf-8")
    return parse_sweep(text, f"{name} ({scale} scale)")
