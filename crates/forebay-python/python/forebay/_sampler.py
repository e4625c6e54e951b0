"""`Sampler`: the epochs of a loader, under the name by which frameworks set them."""

from __future__ import annotations

from typing import Protocol


class _Epochs(Protocol):
    @property
    def epoch(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...


class Sampler:
    """The epochs of a loader, as frameworks set them: ``loader.sampler.set_epoch(epoch)``.

    It does what the loader's own `set_epoch` does. Which samples an epoch has, and in which order,
    is the loader's business.
    """

    def __init__(self, loader: _Epochs) -> None:
        self._loader = loader

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop over the loader one over `epoch`."""
        self._loader.set_epoch(epoch)

    def __repr__(self) -> str:
        return f"Sampler({self._loader!r})"
