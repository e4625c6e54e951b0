"""Functions of samples for the tests of map_workers. Like those of most users they need NumPy and no Forebay: workers import this module."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np


def same(image: Any, label: int) -> tuple[Any, Any]:
    return image, label


def half(image: Any, label: int) -> tuple[Any, Any]:
    return image[::2, ::2].astype(np.float32) / 255, float(label)


def planes(image: Any, label: int) -> tuple[Any, Any]:
    return image.transpose(2, 0, 1)[:, :, :20], label


def draws(image: Any, label: int, info: Any) -> tuple[Any, Any]:
    return np.array([info.rng.random(), info.random.random(), info.sample, info.epoch, info.position]), label


def draws_globally(image: Any, label: int) -> tuple[Any, Any]:
    torch = sys.modules.get("torch")
    return np.array([random.random(), np.random.rand(), torch.rand(1).item() if torch else 0.0]), label


def about_the_process(image: Any, label: int) -> tuple[Any, Any]:
    pss = next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:"))
    return np.array([os.getpid(), pss, "forebay._forebay" in sys.modules]), label


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class At:
    """Does something at one sample, while a file is there if one is given."""

    def __init__(self, action: str, sample: int, armed: pathlib.Path | None = None) -> None:
        self.action, self.sample, self.armed = action, sample, armed

    def __call__(self, image: Any, label: int, info: Any) -> tuple[Any, Any]:
        if info.sample == self.sample and (self.armed is None or self.armed.exists()):
            image = getattr(self, self.action)(image)
        return image, label

    def raises(self, image: Any) -> Any:
        raise KeyError("of mine")

    def raises_unpicklable(self, image: Any) -> Any:
        raise Unpicklable("of", "mine")

    def exits(self, image: Any) -> Any:
        sys.exit(3)

    def ends(self, image: Any) -> Any:
        os._exit(3)

    def is_killed(self, image: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def hangs(self, image: Any) -> Any:
        time.sleep(1000)

    def forks(self, image: Any) -> Any:
        if os.fork():
            os.wait()
        return image

    def starts_a_process(self, image: Any) -> Any:
        assert subprocess.run([sys.executable, "-c", "print('from a child', flush=True)"]).returncode == 0
        return image

    def prints(self, image: Any) -> Any:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        return image

    def cuts(self, image: Any) -> Any:
        return image[1:]

    def converts(self, image: Any) -> Any:
        return image.astype(np.float32)

    def returns_objects(self, image: Any) -> Any:
        return np.array([{}])


def slow(image: Any, label: int) -> tuple[Any, Any]:
    time.sleep(0.02)
    return image, label


def hangs(image: Any, label: int) -> tuple[Any, Any]:
    time.sleep(1000)
    return image, label
