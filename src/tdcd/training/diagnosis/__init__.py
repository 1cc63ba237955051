"""What a training shows about itself: whether it learned, and what would make it learn more.

Everything that is judged is in an ``Evidence``: the history, the settings, who took part, and a few measurements that a
simulation makes beside the training. ``diagnose`` is a pure function of it, the same in a simulation and at a site.
"""

from tdcd.training.diagnosis.evidence import Contribution, Evidence, Overshoot
from tdcd.training.diagnosis.rules import diagnose

__all__ = ["Contribution", "Evidence", "Overshoot", "diagnose"]
