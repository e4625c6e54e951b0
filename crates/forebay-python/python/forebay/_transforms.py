"""The transforms of batches, as values: they compare, hash, print and pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from forebay._forebay import _check_batch_transform

__all__ = ["CutMix", "Mixup", "RandomChoice"]


@dataclasses.dataclass(frozen=True)
class Mixup:
    """Each sample of a batch becomes a weighted sum of itself and the one before it.

    For `batch_transform` of a loader. The share of the sample itself is one number for the
    whole batch, of the distribution Beta(alpha, alpha).

    Parameters
    ----------
    alpha : float, default 1.0
        Of the distribution: at 1 all shares are as probable, below it those near 0 and 1 are
        more so.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_batch_transform(self)


@dataclasses.dataclass(frozen=True)
class CutMix:
    """A rectangle of each sample of a batch is that of the one before it.

    For `batch_transform` of a loader. The rectangle is one for the whole batch; the part that is
    kept is of the distribution Beta(alpha, alpha) before it is cut at the border.

    Parameters
    ----------
    alpha : float, default 1.0
        Of the distribution.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_batch_transform(self)


@dataclasses.dataclass(frozen=True)
class RandomChoice:
    """One of several ways to mix a batch, drawn for each batch.

    For `batch_transform` of a loader.

    Parameters
    ----------
    transforms : sequence of Mixup, CutMix or None
        The ways; None leaves the batch as it is.
    p : sequence of float, optional
        How often each is drawn, in proportion; by default all as often.

    Raises
    ------
    OptionError
        A value out of its range.
    """

    transforms: Sequence[Mixup | CutMix | None]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        weights = self.p if self.p is not None else [1.0] * len(self.transforms)
        object.__setattr__(self, "p", tuple(map(float, weights)))
        _check_batch_transform(self)
