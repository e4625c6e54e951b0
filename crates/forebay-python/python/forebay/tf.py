"""Batches as tensors of TensorFlow, in a loop, for Keras or as a tf.data.Dataset.

    loader = forebay.tf.Loader("packed/", batch_size=256, transform=forebay.TrainTransform(224))
    model.fit(loader, epochs=90)

Batches, their order and states are those of `forebay.Loader`. tensorflow is imported when a loader is made.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from forebay._adapter import loader_of, tree_map, with_options
from forebay._batch import TensorBatch
from forebay._errors import OptionError
from forebay._forebay import Batch
from forebay._front import Front, Source
from forebay._mix import Mix
from forebay._options import library
from forebay._signatures import tf_dataset, tf_loader

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["Loader", "dataset"]


class Loader(Front[Any, "TensorBatch[tf.Tensor]"]):
    """Batches as tensors of TensorFlow.

    A loop gives `TensorBatch`, the pair `(images, labels)`: images of shape (N, H, W, 3) or, with
    ``layout="nchw"``, (N, 3, H, W); labels int64 of shape (N,); `padding`, `failed`, `samples` and other arrays as tensors
    beside them. On a CPU the images are the batch's memory, not a copy; they must not be written.

    Keras accepts a loader: ``model.fit(loader)``, ``model.evaluate(loader)`` and ``model.predict(loader)`` see
    what `dataset` makes of it, each sample once and no padding.

    Parameters
    ----------
    source : str, os.PathLike, Mix or Loader
        As for `forebay.Loader`; or a `forebay.Loader` or `forebay.Mapped` that was made already.
    device : str, optional
        Where tensors are to be, as "/GPU:0"; a thread copies each there while the one before is
        worked on. By default the CPU.
    prefetch : int, default 2
        Batches that are prepared before they are asked for.
    map_batch, map_sample : callable, optional
        Python functions on the way: see `forebay.Mapped`. All arrays in whatever `map_batch`
        returns become tensors.
    map_threads : int, optional
        Threads that the functions run in, by default 1.
    map_workers : int, optional
        Processes that `map_sample` runs in: see `forebay.Mapped`.
    map_timeout : float, optional
        Seconds after which a call of `map_sample` in a process is an error.
    returns : {"hwc", "chw"}, optional
        The layout of images that `map_sample` returns: see `forebay.Mapped`.
    **options
        All others are those of `forebay.Loader`. `pad_last` is by default True, so that all batches have one shape.

    Raises
    ------
    ImportError
        When tensorflow is not installed.
    OptionError
        An option, or a combination of them, that cannot work.

    Examples
    --------
    >>> train = forebay.TrainTransform(224)
    >>> for images, labels in forebay.tf.Loader("packed/", batch_size=256, transform=train):  # doctest: +SKIP
    ...     train_step(images, labels)
    """

    @with_options(tf_loader, pad_last=True)
    def __init__(
        self,
        source: str | os.PathLike[str] | Mix | Source,
        *,
        device: str | None = None,
        prefetch: int = 2,
        map_batch: Callable[[Any], Any] | None = None,
        map_sample: Callable[..., tuple[Any, Any]] | None = None,
        map_threads: int | None = None,
        map_workers: int | None = None,
        map_timeout: float | None = None,
        returns: Literal["hwc", "chw"] | None = None,
        **options: Any,
    ) -> None:
        tf = library("tensorflow", "tf")
        self._tf = tf
        self.__class__ = _for_keras(type(self))  # type: ignore[arg-type]
        self._device = device
        inner = loader_of(
            source, options, prefetch, pad_last=True, map_batch=map_batch, map_sample=map_sample, map_threads=map_threads,
            map_workers=map_workers, map_timeout=map_timeout, returns=returns,
        )  # fmt: skip
        super().__init__(inner, ahead=0 if device is None else prefetch, copies=True)

    def _prepare(self, batch: Any) -> Any:
        if isinstance(batch, Batch):
            # Pages: aligned as TensorFlow wants it, and shared. What is small is copied.
            images = self._tf.experimental.dlpack.from_dlpack(batch.__dlpack__())
            batch = TensorBatch((images, batch.labels), of=batch)
        return tree_map(self._put, batch)

    def _deliver(self, prepared: Any) -> Any:
        return prepared

    def _put(self, value: Any) -> Any:
        if not hasattr(value, "shape"):
            return value
        if self._device is None:
            return self._tf.convert_to_tensor(value)
        with self._tf.device(self._device):
            return self._tf.identity(value)


@functools.cache
def _for_keras(cls: Any) -> Any:
    """Makes a loader a data adapter of Keras; Keras 3 accepts no other iterable from elsewhere."""
    try:
        from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    except ImportError:
        return cls
    if issubclass(cls, DataAdapter):
        return cls

    class KerasLoader(cls, DataAdapter):  # type: ignore[misc]
        def get_tf_dataset(self) -> Any:
            return dataset(self)

        def get_numpy_iterator(self) -> Iterator[Any]:
            return iter(dataset(self).as_numpy_iterator())

        get_jax_iterator = get_numpy_iterator

        @property
        def num_batches(self) -> int | None:
            return _cardinality(self)

        has_partial_batch = partial_batch_size = None

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(KerasLoader, name, getattr(cls, name))
    return KerasLoader


@with_options(tf_dataset, of=Loader)
def dataset(
    source: str | os.PathLike[str] | Mix | Source,
    *,
    prefetch: int = 2,
    output_signature: Any = None,
    **options: Any,
) -> tf.data.Dataset:
    """A tf.data.Dataset of batches, for `model.fit` and whatever else wants one.

    One pass over it is one epoch. With `drop_last=False` padding of the last batch is cut off, so that loss, metrics
    and predictions have each sample once. To save where it stands, make the loader yourself, give it as
    `source`, and ask it; TensorFlow takes up to `prefetch` batches ahead, which its state counts.
    Each batch is copied once: `Loader` does without.

    Parameters
    ----------
    source : str, os.PathLike, Mix or Loader
        As for `forebay.Loader`; or a loader that was made already.
    prefetch : int, default 2
        Batches that TensorFlow holds in store.
    output_signature : nested structure of tf.TypeSpec, optional
        What batches look like. By default that of the images and labels of the first batch, which is looked
        at for it, and not lost.
    **options
        Those of `Loader`, `forebay.Loader`'s among them.

    Returns
    -------
    tf.data.Dataset
        Of pairs `(images, labels)`, or of what `map_batch` returns, as many as the loader has batches. A rank
        whose last batch is all padding has one less.
    """
    tf = library("tensorflow", "tf")
    if isinstance(source, str | os.PathLike | Mix) or options:
        loader: Source = Loader(source, **options)
    else:
        loader = source

    if output_signature is None:
        state = loader.state_dict()
        first = next(iter(loader), None)
        if first is None:
            raise OptionError("an epoch has no batch: give output_signature")
        loader.load_state_dict(state)
        whole = loader.drop_last or not isinstance(first, Batch | TensorBatch)
        output_signature = tree_map(lambda value: _spec(value, whole), _pair(first) or tuple(first))

    def batches() -> Iterator[Any]:
        for batch in loader:
            if (pair := _pair(batch)) is not None:
                yield pair

    made = tf.data.Dataset.from_generator(batches, output_signature=output_signature)
    count = _cardinality(loader)
    if count is not None:
        made = made.apply(tf.data.experimental.assert_cardinality(count))
    return made.prefetch(prefetch)


def _cardinality(loader: Source) -> int | None:
    """Returns how many batches each pass has, where all passes have the same number."""
    if loader.position or not (loader.drop_last or loader.world_size == 1):
        return None
    return len(loader)


def _pair(batch: Any) -> Any:
    """Returns a batch as a tuple without its padding, or None if nothing is left; anything else as it is."""
    import tensorflow as tf

    if not isinstance(batch, Batch | TensorBatch):
        return batch
    real = [not padding for padding in batch.padding]
    if all(real):
        return tuple(batch)
    return tuple(tf.boolean_mask(array, real) for array in batch) if any(real) else None


def _spec(value: Any, whole: bool) -> Any:
    """Returns the type of `value`; of any length unless batches are whole."""
    import tensorflow as tf

    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec(tensor.shape if whole else [None, *tensor.shape[1:]], tensor.dtype)
