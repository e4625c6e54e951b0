"""Several datasets as one: what a loader is given in the place of a path."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from forebay._errors import OptionError

_Path: TypeAlias = str | os.PathLike[str]


def _pair(dataset: _Path | tuple[_Path, float]) -> tuple[str, float | None]:
    """A path and its weight."""
    weight: float | None = None
    if isinstance(dataset, tuple):
        path, weight = os.fspath(dataset[0]), float(dataset[1])
    else:
        path = os.fspath(dataset)
    if path.startswith(("forebay://", "forebays://")):
        raise OptionError(
            f"a Mix reads datasets in this process, and {path!r} is none: mix where the directories are"
        )
    if weight is not None and not (math.isfinite(weight) and weight >= 0):
        raise OptionError(f"the weight of {path!r} is {weight}: expected a number of at least 0")
    return path, weight


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Mix:
    """Several datasets as one: a `source` for `Loader`.

    Records are numbered through, those of the first dataset first. Without weights an epoch has
    each record once, and shuffling is over all of them. With weights an epoch has `num_samples` samples,
    by default as many as there are records, and of each dataset the share that its weight is of
    all weights. A dataset is gone through again and again, in a new order each time, and an
    epoch goes on where the one before ended: no record comes again before all others of its
    dataset came. `Batch.datasets` tells which dataset a sample is of.

    Parameters
    ----------
    datasets : sequence of path, or of (path, weight)
        Directories of datasets, all with a weight or all without. The loader's `split` has to be
        in each of them.
    labels : {"stored", "offset", "names"} or sequence of int, default "stored"
        "stored": each dataset keeps its own labels, whatever they mean in the others. "offset": the
        classes of each dataset come after those of the one before. "names": one class for each
        name; those of the first dataset, then those that only the second has, and so on. Numbers
        are added to the labels of each dataset, one for each. All of them count from the loader's
        `label_base`, whatever the datasets count from.

    Attributes
    ----------
    sources : tuple of str
        The directories.
    weights : tuple of float or None
        Their weights.
    labels : str or tuple of int
        What becomes of labels.

    Raises
    ------
    OptionError
        No dataset, one on a server, a weight that cannot be, weights for some datasets only.

    Examples
    --------
    >>> mix = forebay.Mix([("photos/", 0.7), ("sketches/", 0.3)], labels="names")
    >>> loader = forebay.Loader(mix, batch_size=256, transform=forebay.TrainTransform(224))  # doctest: +SKIP
    """

    sources: tuple[str, ...]
    weights: tuple[float, ...] | None
    labels: Literal["stored", "offset", "names"] | tuple[int, ...]

    def __init__(
        self,
        datasets: Iterable[_Path] | Iterable[tuple[_Path, float]],
        *,
        labels: Literal["stored", "offset", "names"] | Sequence[int] = "stored",
    ) -> None:
        if isinstance(datasets, str | os.PathLike | Mapping):
            raise OptionError("datasets: expected a list of paths, or of pairs of a path and a weight")
        pairs = [_pair(dataset) for dataset in datasets]
        weights = tuple(weight for _, weight in pairs if weight is not None)
        if not pairs:
            raise OptionError("datasets is empty: expected at least one")
        if weights and len(weights) != len(pairs):
            raise OptionError("datasets: some have a weight, some have none")
        if weights and not any(weights):
            raise OptionError("datasets: the weights are all 0")
        if isinstance(labels, str):
            if labels not in ("stored", "offset", "names"):
                expected = "'stored', 'offset', 'names', or a number for each dataset"
                raise OptionError(f"option labels is {labels!r}: expected {expected}")
        else:
            labels = tuple(int(offset) for offset in labels)
            if len(labels) != len(pairs):
                raise OptionError(
                    f"option labels is {len(labels)} numbers: expected {len(pairs)}, one for each dataset"
                )
        object.__setattr__(self, "sources", tuple(path for path, _ in pairs))
        object.__setattr__(self, "weights", weights or None)
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        datasets = list(zip(self.sources, self.weights, strict=True) if self.weights else self.sources)
        labels = "" if self.labels == "stored" else f", labels={self.labels!r}"
        return f"Mix({datasets!r}{labels})"
