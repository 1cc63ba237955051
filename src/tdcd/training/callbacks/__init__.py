"""What follows a training, and may stop it: one file each."""

from tdcd.training.callbacks.base import Callback, FinishedRound, Start, Stop
from tdcd.training.callbacks.early_stopping import EarlyStopping
from tdcd.training.callbacks.gradient_recorder import GradientRecorder
from tdcd.training.callbacks.progress import Progress

__all__ = ["Callback", "EarlyStopping", "FinishedRound", "GradientRecorder", "Progress", "Start", "Stop"]
