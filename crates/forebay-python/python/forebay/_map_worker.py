"""`SampleInfo`, and the call of a user's function of one sample."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class SampleInfo:
    """Place of a sample in the epoch, and random numbers for it: the third argument of a `map_sample` function.

    The numbers follow from the loader's seed, the epoch and the position. They are the same in any number of threads,
    on any number of ranks, and after a resume. A sample that comes twice in an epoch gets other numbers each time.

    Attributes
    ----------
    sample : int
        Number of the record in its split, from 0.
    epoch : int
        The epoch, from 0.
    position : int
        Position of the sample in the epoch, counted over all ranks, from 0.
    rng : numpy.random.Generator
        A generator of NumPy, made on first use.
    random : random.Random
        A generator of the standard library, made on first use.

    Examples
    --------
    >>> def noise(image, label, info):
    ...     return image + info.rng.normal(0, 8, image.shape), label
    """

    def __init__(self, seed: int, epoch: int, position: int, sample: int) -> None:
        self.sample, self.epoch, self.position = sample, epoch, position
        mixed = blake2b(struct.pack("<3Q", seed, epoch, position), digest_size=32).digest()
        self._words = struct.unpack("<4Q", mixed)

    @functools.cached_property
    def rng(self) -> np.random.Generator:
        import numpy as np

        return np.random.Generator(np.random.Philox(key=self._words[:2]))

    @functools.cached_property
    def random(self) -> random.Random:
        return random.Random(self._words[2])


def call(function: Callable[..., Any], image: Any, label: Any, info: tuple[SampleInfo, ...], like: Any) -> tuple[Any, Any]:
    """Calls the function with one sample and returns its results as arrays.

    `like` is the shape and type of images, or None. Raises `ValueError` for an image that differs.
    """
    import numpy as np

    image, label = function(image, label.item() if label.ndim == 0 else label, *info)
    image = np.asarray(image)
    if like and (image.shape, image.dtype) != like:
        found, first = (f"{shape} {dtype}" for shape, dtype in ((image.shape, image.dtype), like))
        raise ValueError(f"an image of {found} after one of {first}: a batch holds one kind")
    return image, np.asarray(label)
