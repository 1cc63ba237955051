"""Finding good settings: learning rate, local steps, hub step, schedule, by the validation loss over simulated time.

``search.py`` decides what to try next, and trains nothing. ``tune.py`` trains what it asks for, as runs of a sweep are.
"""

from tdcd.experiments.tuning.space import Space
from tdcd.experiments.tuning.tune import TuneObserver, tune

__all__ = ["Space", "TuneObserver", "tune"]
