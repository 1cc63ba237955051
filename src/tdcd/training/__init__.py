"""The training loop: rounds, evaluation, checkpoints, results."""

from tdcd.runs.records import Evaluation
from tdcd.training.callbacks import Callback
from tdcd.training.result import Result
from tdcd.training.settings import Settings
from tdcd.training.simulation import Simulation
from tdcd.training.train import train

__all__ = ["Callback", "Evaluation", "Result", "Settings", "Simulation", "train"]
