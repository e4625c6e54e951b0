"""Several datasets as one: what a loader is given in the place of a path."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from forebay._errors import OptionError

_Path: TypeAlias = str | os.PathLike[str]
_Weights: TypeAlias = Sequence[float | Sequence[float]] | Callable[[int], Sequence[float]]
# Epochs that a function of weights is called for.
_EPOCHS = 10_000
# More epochs than this are counted in the repr, not listed.
_MOST_SHOWN = 8


def _pair(dataset: _Path | tuple[_Path, float]) -> tuple[str, float | None]:
    """A path and its weight."""
    weight: float | None = None
    if isinstance(dataset, tuple):
        path, weight = os.fspath(dataset[0]), float(dataset[1])
    else:
        path = os.fspath(dataset)
    if path.startswith(("forebay://", "forebays://")):
        raise OptionError(
            f"a Mix reads datasets in this process, and {path!r} is none: name the mix in the server's CONFIG.toml, [mixes.NAME]"
        )
    return path, weight


def _schedule(given: Any, paths: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """The weights of each epoch, without those of last epochs that change nothing."""
    every = [given(epoch) for epoch in range(_EPOCHS)] if callable(given) else list(given)
    if all(isinstance(weight, numbers.Real) for weight in every):
        every = [every]
    made: list[tuple[float, ...]] = []
    for epoch, weights in enumerate(every):
        of = "" if len(every) == 1 else f" in epoch {epoch}"
        try:
            made.append(tuple(float(weight) for weight in weights))
        except (TypeError, ValueError):
            raise OptionError(f"weights{of}: expected a number for each dataset, found {weights!r}") from None
        if len(made[-1]) != len(paths):
            raise OptionError(f"weights{of}: expected {len(paths)} numbers, one for each dataset, found {len(made[-1])}")
        for path, weight in zip(paths, made[-1], strict=True):
            if not (math.isfinite(weight) and weight >= 0):
                raise OptionError(f"the weight of {path!r}{of} is {weight}: expected a number of at least 0")
        if not any(made[-1]):
            raise OptionError(f"datasets: the weights{of} are all 0")
    while len(made) > 1 and made[-1] == made[-2]:
        made.pop()
    return tuple(made)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Mix:
    """Several datasets as one: a `source` for `Loader`.

    Records are numbered through, those of the first dataset first. Without weights an epoch has
    each record once, and shuffling is over all of them. With weights an epoch has `num_samples` samples,
    by default as many as there are records, and of each dataset the share that its weight in this epoch is of
    all weights. A dataset is gone through again and again, in a new order each time, and an
    epoch goes on where the one before ended: no record comes again before all others of its
    dataset came. `Batch.datasets` tells which dataset a sample is of.

    Parameters
    ----------
    datasets : sequence of path, or of (path, weight)
        Directories of datasets, all with a weight or all without. The loader's `split` has to be
        in each of them.
    weights : sequence of float, sequence of sequence of float, or callable, optional
        A weight for each dataset, in the place of pairs; or such a list for each epoch, of which the last one stays; or a
        function of the epoch that returns one. It is called for the first 10,000 epochs when the mix is made.
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
    weights : tuple of float, tuple of tuple of float, or None
        Their weights, in each epoch if they change.
    labels : str or tuple of int
        What becomes of labels.

    Raises
    ------
    OptionError
        No dataset, one on a server, a weight that cannot be, weights for some datasets only, or given twice.

    Examples
    --------
    >>> mix = forebay.Mix([("photos/", 0.7), ("sketches/", 0.3)], labels="names")
    >>> harder = forebay.Mix(["easy/", "hard/"], weights=lambda epoch: [1, min(epoch / 10, 1)])
    >>> loader = forebay.Loader(mix, batch_size=256, transform=forebay.TrainTransform(224))  # doctest: +SKIP
    """

    sources: tuple[str, ...]
    weights: tuple[float, ...] | tuple[tuple[float, ...], ...] | None
    labels: Literal["stored", "offset", "names"] | tuple[int, ...]

    def __init__(
        self,
        datasets: Iterable[_Path] | Iterable[tuple[_Path, float]],
        *,
        weights: _Weights | None = None,
        labels: Literal["stored", "offset", "names"] | Sequence[int] = "stored",
    ) -> None:
        if isinstance(datasets, str | os.PathLike | Mapping):
            raise OptionError("datasets: expected a list of paths, or of pairs of a path and a weight")
        pairs = [_pair(dataset) for dataset in datasets]
        paths = tuple(path for path, _ in pairs)
        own = [weight for _, weight in pairs if weight is not None]
        if not pairs:
            raise OptionError("datasets is empty: expected at least one")
        if own and len(own) != len(pairs):
            raise OptionError("datasets: some have a weight, some have none")
        if own and weights is not None:
            raise OptionError("weights: expected datasets without weights of their own, found pairs")
        schedule = _schedule(own if weights is None else weights, paths) if own or weights is not None else ()
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
        object.__setattr__(self, "sources", paths)
        object.__setattr__(self, "weights", schedule if len(schedule) > 1 else schedule[0] if schedule else None)
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        weights = self.weights or ()
        changing = bool(weights) and isinstance(weights[0], tuple)
        datasets = list(zip(self.sources, weights, strict=True) if weights and not changing else self.sources)
        shown = list(weights) if len(weights) <= _MOST_SHOWN else f"<{len(weights)} epochs>"
        labels = "" if self.labels == "stored" else f", labels={self.labels!r}"
        return f"Mix({datasets!r}{f', weights={shown}' if changing else ''}{labels})"
