"""Functions of samples for tests. Like those of most users they need NumPy and no Forebay."""

from __future__ import annotations

from typing import Any

import numpy as np


def draws(image: Any, label: int, info: Any) -> tuple[Any, Any]:
    return np.array([info.rng.random(), info.random.random(), info.sample, info.epoch, info.position]), label
