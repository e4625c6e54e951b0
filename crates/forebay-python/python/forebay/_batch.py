"""A batch after something was made of it: the pair, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Array = TypeVar("Array")


class TensorBatch(tuple[Array, Array]):
    """Images and labels as arrays of some library, and where in the epoch they are.

    The pair `(images, labels)`: `images, labels = batch` works, and so does all that takes a
    tuple.

    Parameters
    ----------
    pair : iterable
        The images and the labels.
    of : Batch, optional
        The batch that they were made of: where they are in the epoch.
    padding, failed, labels_b, lam : array, optional
        Those of `of`, in the library of the images.
    layout : {"nhwc", "nchw"}, optional
        By default that of `of`.
    """

    _samples: Any
    _datasets: Any
    _padding: Any
    _failed: Any
    _labels_b: Any
    _lam: Any
    _layout: str | None
    _place: tuple[int | None, int | None, int | None]

    def __new__(
        cls,
        pair: Iterable[Array],
        *,
        of: Any = None,
        padding: Any = None,
        failed: Any = None,
        labels_b: Any = None,
        lam: Any = None,
        layout: str | None = None,
    ) -> TensorBatch[Array]:
        images, labels = pair
        self = super().__new__(cls, (images, labels))
        self._samples = getattr(of, "samples", None)
        self._datasets = getattr(of, "datasets", None)
        self._padding = getattr(of, "padding", None) if padding is None else padding
        self._failed = getattr(of, "failed", None) if failed is None else failed
        self._labels_b = getattr(of, "labels_b", None) if labels_b is None else labels_b
        self._lam = getattr(of, "lam", None) if lam is None else lam
        self._layout = layout or getattr(of, "layout", None)
        self._place = (
            getattr(of, "epoch", None),
            getattr(of, "step", None),
            getattr(of, "position", None),
        )
        return self

    def _with(self, function: Callable[[Any], Any]) -> TensorBatch[Any]:
        """The same place, with `function` of each array in the place of the array."""
        pair = (function(self[0]), function(self[1]))
        return TensorBatch(
            pair,
            of=self,
            padding=function(self.padding),
            failed=function(self.failed),
            labels_b=function(self.labels_b),
            lam=function(self.lam),
        )

    @property
    def images(self) -> Array:
        """The first of the pair: (N, H, W, 3) or (N, 3, H, W), as the loader says."""
        return self[0]

    @property
    def labels(self) -> Array:
        """The second of the pair: (N,)."""
        return self[1]

    @property
    def samples(self) -> Any:
        """The number of each sample in its split: int64 of shape (N,), a numpy array."""
        return self._samples

    @property
    def datasets(self) -> Any:
        """The number of each sample's dataset in the `Mix`: int64 of shape (N,), a numpy array; None without one."""
        return self._datasets

    @property
    def padding(self) -> Any:
        """Which samples are padding: bool of shape (N,), where and what the images are.

        Only the last batch of an epoch has any, and only with `drop_last=False`.
        """
        return self._padding

    @property
    def failed(self) -> Any:
        """Which samples could not be read or decoded, and were replaced: bool of shape (N,), as `padding`.

        Only with `on_error="skip"` or `on_error="zero"`.
        """
        return self._failed

    @property
    def labels_b(self) -> Any:
        """The label of each sample's partner: int64 of shape (N,), as `padding`; None without `batch_transform`."""
        return self._labels_b

    @property
    def lam(self) -> Any:
        """The share of each sample itself: float32 of shape (N,), as `padding`; None without `batch_transform`.

        The rest is its partner's: the loss is `lam * loss(labels) + (1 - lam) * loss(labels_b)`.
        """
        return self._lam

    @property
    def layout(self) -> str | None:
        """The order of the axes of `images`: "nhwc" or "nchw"."""
        return self._layout

    @property
    def epoch(self) -> int | None:
        """The epoch, from 0."""
        return self._place[0]

    @property
    def step(self) -> int | None:
        """The number of the batch in its epoch, from 0; the same on every rank."""
        return self._place[1]

    @property
    def position(self) -> int | None:
        """How many samples of the epoch all ranks together were given before this batch."""
        return self._place[2]

    def __repr__(self) -> str:
        sides = ", ".join(str(getattr(side, "shape", type(side).__name__)) for side in self)
        return f"TensorBatch({sides}, epoch={self.epoch}, step={self.step})"


# Where users find it; pickle looks there.
TensorBatch.__module__ = "forebay"
