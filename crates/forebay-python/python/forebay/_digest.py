"""`EpochDigest`: what was delivered of an epoch, in a number that ranks and runs can compare."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from forebay._errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODULUS = 1 << 64


@dataclasses.dataclass(frozen=True)
class EpochDigest:
    """Which samples were delivered of an epoch, and at which places of it.

    The digests of all ranks, added up, are the digest of the epoch: the same for every number of
    ranks, every batch size, with servers or without, and whatever died meanwhile, if each sample came exactly
    once. ``sum(digests)`` adds them up; so does adding `signed` in a tensor of int64, over all ranks.

    Attributes
    ----------
    epoch : int
        The epoch.
    value : int
        The sum over the samples, modulo 2**64. Padding and samples that failed do not count.
    batches : int
        Batches that were delivered.
    samples : int
        Samples in them, without padding and those that failed.
    since, until : int
        Samples of all ranks before the first of these batches, and after the last one.
    complete : bool
        Whether it is from the beginning of the epoch to its end. A loader that was given the state of another rank,
        or of another number of ranks, knows only what it delivered itself.

    Examples
    --------
    >>> a = EpochDigest(epoch=0, value=2**64 - 1, batches=1, samples=4, since=0, until=8, complete=True)
    >>> b = EpochDigest(epoch=0, value=3, batches=1, samples=4, since=0, until=8, complete=True)
    >>> str(a + b), sum([a, b]).samples, a.signed
    ('0000000000000002', 8, -1)
    """

    epoch: int
    value: int
    batches: int
    samples: int
    since: int
    until: int
    complete: bool

    @property
    def signed(self) -> int:
        """The value as a signed number of 64 bits, for tensors: their sums wrap around as this one does."""
        return self.value - _MODULUS if self.value >= _MODULUS // 2 else self.value

    def __str__(self) -> str:
        return f"{self.value:016x}"

    def __add__(self, other: object) -> EpochDigest:
        if not isinstance(other, EpochDigest):
            return NotImplemented
        if self.epoch != other.epoch:
            raise StateError(f"digests of two epochs, {self.epoch} and {other.epoch}, do not add up")
        return EpochDigest(
            epoch=self.epoch,
            value=(self.value + other.value) % _MODULUS,
            batches=self.batches + other.batches,
            samples=self.samples + other.samples,
            since=min(self.since, other.since),
            until=max(self.until, other.until),
            complete=self.complete and other.complete,
        )

    def __radd__(self, other: object) -> EpochDigest:
        # `sum` begins with 0.
        if other != 0:
            return NotImplemented
        return self


EpochDigest.__module__ = "forebay"


def of_state(state: Mapping[str, Any]) -> EpochDigest:
    """The digest in a state of a loader."""
    parts = state["digest"]
    names = [field.name for field in dataclasses.fields(EpochDigest) if field.name != "value"]
    return EpochDigest(value=int(parts["value"], 16), **{name: parts[name] for name in names})
