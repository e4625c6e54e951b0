"""Samples by number: the map-style dataset of `Dataset.dataset`. Owns what an index stands for, and its randomness."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from forebay._errors import OptionError
from forebay._forebay import Dataset, KeepEncoded, SampleDecoder
from forebay._options import count

# Options of `forebay.Loader` that say what a sample is.
_OPTIONS = (
    "layout", "dtype", "normalize", "resize_like", "exif_orientation", "dct_scaling", "max_pixels", "max_image_bytes",
    "label_base", "keep_empty_boxes",
)  # fmt: skip


class RandomAccessDataset:
    """Decoded samples by number, for code that has its own sampler and workers.

    A map-style dataset for `torch.utils.data.DataLoader`, and a `RandomAccessDataSource` of Grain. It pickles, and works in
    forked and in spawned workers. A `Loader` is faster, and resumes exactly.

    An item is a tuple: the image, an array of shape (H, W, 3), or bytes with `KeepEncoded`; the label, an int, -1 without one;
    and the value of each column, in the order of `columns`.

    Parameters
    ----------
    dataset : Dataset
        The records: a split, or a slice of one.
    transform : TrainTransform, EvalTransform, KeepEncoded or list
        What becomes of each image.
    columns : sequence of str, optional
        Further columns. Boxes, masks and keypoints move with the pixels.
    seed : int, optional
        By default each access draws other random numbers, from Python's `random`, which DataLoader seeds in each worker. With
        a seed, an item depends on seed, epoch and number alone: it is the sample of a `Loader` with this seed.
    threads : int, default 1
        Threads that decode several items at once. For a DataLoader without workers: the number of cores.
    **options
        Of `Loader`: `layout`, `dtype`, `normalize`, `resize_like`, `exif_orientation`, `dct_scaling`, `max_pixels`,
        `max_image_bytes`, `label_base`, `keep_empty_boxes`.

    Raises
    ------
    OptionError
        An invalid option, or a dataset of several splits.
    IndexError, ImageError
        By an access, when there is no such sample, or its image cannot be decoded.

    Examples
    --------
    >>> train = forebay.open("packed/").split("train").dataset(forebay.TrainTransform(224))  # doctest: +SKIP
    >>> loader = torch.utils.data.DataLoader(train, batch_size=256, shuffle=True, num_workers=8)  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: Dataset,
        transform: Any,
        *,
        columns: Sequence[str] = (),
        seed: int | None = None,
        threads: int = 1,
        **options: Any,
    ) -> None:
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise TypeError(f"dataset() got an unexpected keyword argument {unknown[0]!r}: expected one of {', '.join(_OPTIONS)}")
        options |= {"transform": transform, "columns": columns or None}
        self._given = (dataset, options, count("threads", threads, 1, "as something has to decode"))
        self._decoder = SampleDecoder(*self._given)
        self._columns = tuple(columns)
        self._seed = None if seed is None else count("seed", seed, 0, "or None for other random numbers with each access")
        # A tensor in shared memory, so that workers that persist see it change.
        torch = sys.modules.get("torch")
        self._epoch: Any = torch.zeros((), dtype=torch.int64).share_memory_() if torch else np.zeros((), np.int64)

    def set_epoch(self, epoch: int) -> None:
        """Make random transforms those of `epoch`, in the workers of a DataLoader as well.

        Parameters
        ----------
        epoch : int
            The epoch, from 0. Without a seed it changes nothing.
        """
        self._epoch[...] = count("epoch", epoch, 0, "the number of an epoch")

    def __len__(self) -> int:
        return len(self._given[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the samples of these indices, in their order: `DataLoader` calls it for each batch."""
        left = list(enumerate(self._decoder.numbers(indices)))
        items: list[Any] = [None] * len(left)
        while left:
            # An index that occurs again is another access, with other random numbers.
            places: dict[int, int] = {}
            for place, number in left:
                places.setdefault(number, place)
            seed = random.getrandbits(64) if self._seed is None else self._seed
            batch = self._decoder.batch(sorted(places), seed, int(self._epoch))
            images = [bytes(image) for image in batch[0]] if isinstance(self._given[1]["transform"], KeepEncoded) else batch[0]
            values = [images, batch.labels.tolist(), *(batch[name] for name in self._columns)]
            for number, *item in zip(sorted(places), *values, strict=True):
                items[places[number]] = tuple(item)
            left = [(place, number) for place, number in left if places[number] != place]
        return items

    def to_hf_iterable(self, shards: int = 64) -> Any:
        """Return the samples as an `IterableDataset` of Hugging Face datasets, in their order.

        Its examples are dicts: "image", "label" and columns by their names. It shuffles, resumes and divides its shards
        among workers and nodes as datasets does.

        Parameters
        ----------
        shards : int, default 64
            Parts that workers and nodes share; at most as many as there are samples.
        """
        import datasets

        if {"image", "label"} & set(self._columns):
            raise OptionError('columns: "image" and "label" are the names of the decoded image and of the label here')
        shards = min(count("shards", shards, 1, "as each worker reads some"), max(len(self), 1))
        parts = [range(len(self) * shard // shards, len(self) * (shard + 1) // shards) for shard in range(shards)]
        return datasets.IterableDataset.from_generator(_examples, gen_kwargs={"dataset": self, "parts": parts})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _decoder=SampleDecoder(*state["_given"]))

    def __repr__(self) -> str:
        return f"RandomAccessDataset({self._given[0]!r}, {self._given[1]['transform']!r})"


def _examples(dataset: RandomAccessDataset, parts: list[range]) -> Iterator[dict[str, Any]]:
    """The examples of some shards of a dataset; Hugging Face divides the list of parts."""
    names = ("image", "label", *dataset._columns)
    for numbers in parts:
        # Decoding several samples together costs less.
        for start in range(0, len(numbers), 32):
            for item in dataset.__getitems__(numbers[start : start + 32]):
                yield dict(zip(names, item, strict=True))
