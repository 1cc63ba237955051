"""What a model is worth on labelled samples, beyond a few metrics: curves, thresholds, calibration, each client."""

from tdcd.training.quality.assessment import Assessment, assess, check_scores
from tdcd.training.quality.thresholds import choose_cuts

__all__ = ["Assessment", "assess", "check_scores", "choose_cuts"]
