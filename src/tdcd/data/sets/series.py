"""Hourly series of 48 hours, as both intensive-care data sets have them."""

import numpy as np

from tdcd.data.arrays import Array

HOURS = 48


def carried_forward(values: Array) -> Array:
    """Fill what is not known (NaN) along the first axis with the last value known before it, in place."""
    for step in range(1, len(values)):
        unknown = np.isnan(values[step])
        values[step][unknown] = values[step - 1][unknown]
    return values
