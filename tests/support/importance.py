"""Importance alone as what quantizers take."""

from __future__ import annotations

import numpy as np

from flyweight.foundation.input_statistics import InputStatistics


def weighing(importance: np.ndarray | None) -> InputStatistics | None:
    return None if importance is None else InputStatistics(importance)
