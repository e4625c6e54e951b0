"""`Mapped`: Python functions between a loader and the trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay._batch import TensorBatch
from forebay._errors import MapError, OptionError
from forebay._front import Front, Source
from forebay._options import count, function


def _of_padding(like: Any) -> Any:
    """The label of padding: -100, which losses ignore, where labels are whole numbers; zeros otherwise."""
    import numpy as np

    return np.full_like(like, -100) if like.dtype.kind == "i" else np.zeros_like(like)


class Mapped(Front[Any, Any]):
    """A loader whose batches go through Python functions, ahead of the trainer.

    The functions run in threads of this process while the trainer works, and results come
    in the loader's order. **What it costs:** a function holds the interpreter's lock
    wherever it is Python and not numpy or another library that releases it, and the trainer's
    own Python waits for that long. Prefer transforms of the loader where they do the same,
    and functions of whole batches to functions of samples.

    Parameters
    ----------
    loader : Loader
        A `forebay.Loader`, or anything made of one.
    map_sample : callable, optional
        Called with one image, (H, W, 3) or as the loader's `layout` has it, and its label;
        returns such a pair. All images of a batch have to come out in one shape. Padding is zeros, with the label
        -100 where labels are whole numbers.
    map_batch : callable, optional
        Called with the batch, after `map_sample`; a pair that it returns comes as
        `TensorBatch` with the place of the batch in the epoch, and anything else as it is.
        Draw random numbers from the batch's `epoch` and `samples` rather than from a global
        generator, and a resumed run draws the same.
    map_threads : int, default 1
        Threads that the functions run in, each on a batch of its own. The functions must be thread-safe.
    ahead : int, default 2
        Batches that are prepared before they are asked for.

    Raises
    ------
    OptionError
        Neither function, or a number that cannot work.
    MapError
        Out of a loop: a function raised something, which is the `__cause__`. The loop ends there, and
        ``loader.load_state_dict(loader.state_dict())`` goes on with the same batch.

    Examples
    --------
    >>> def blur(batch):
    ...     images, labels = batch
    ...     return scipy.ndimage.uniform_filter(images, (1, 3, 3, 1)), labels
    >>> loader = forebay.Loader("packed/", transform=forebay.TrainTransform(224))  # doctest: +SKIP
    >>> loader = forebay.Mapped(loader, map_batch=blur)  # doctest: +SKIP
    """

    def __init__(
        self,
        loader: Source,
        *,
        map_batch: Callable[[Any], Any] | None = None,
        map_sample: Callable[[Any, int], tuple[Any, Any]] | None = None,
        map_threads: int = 1,
        ahead: int = 2,
    ) -> None:
        if map_batch is None and map_sample is None:
            raise OptionError("neither map_batch nor map_sample: there is nothing to do")
        function("map_batch", map_batch)
        function("map_sample", map_sample)
        ahead = count("ahead", ahead, 1, "as functions work ahead of the trainer")
        map_threads = count("map_threads", map_threads, 1, "to run the functions in")
        super().__init__(loader, threads=map_threads, ahead=ahead)
        self._map_batch = map_batch
        self._map_sample = map_sample

    def _prepare(self, batch: Any) -> Any:
        made = batch
        if self._map_sample is not None:
            made = self._of_samples(batch)
        if self._map_batch is None:
            return made
        try:
            result = self._map_batch(made)
        except Exception as error:
            raise self._error("map_batch", batch, None, repr(error)) from error
        if isinstance(result, tuple) and len(result) == 2 and not isinstance(result, TensorBatch):
            return TensorBatch(result, of=batch)
        return result

    def _deliver(self, prepared: Any) -> Any:
        return prepared

    def _of_samples(self, batch: Any) -> Any:
        import numpy as np

        assert self._map_sample is not None
        images: Any = None
        labels: list[Any] = []
        for number, (image, label, padding) in enumerate(
            zip(batch.images, batch.labels, batch.padding, strict=True)
        ):
            if padding and images is not None:
                # At the end of the last batch: there are samples before it.
                labels.append(_of_padding(labels[0]))
                continue
            try:
                if padding:
                    # All of the batch is padding: the function gives the shapes.
                    label = np.asarray(self.label_base or 0)
                image, label = self._map_sample(image, label.item() if label.ndim == 0 else label)
                image = np.asarray(image)
                if images is None:
                    images = np.zeros((len(batch.images), *image.shape), image.dtype)
                if image.shape != images.shape[1:] or image.dtype != images.dtype:
                    raise ValueError(
                        f"an image of {image.shape} {image.dtype} after one of "
                        f"{images.shape[1:]} {images.dtype}: a batch holds one kind"
                    )
                if padding:
                    labels.append(_of_padding(np.asarray(label)))
                    continue
                images[number] = image
                labels.append(np.asarray(label))
            except Exception as error:
                sample = int(batch.samples[number])
                raise self._error("map_sample", batch, sample, repr(error)) from error
        return TensorBatch((images, np.stack(labels)), of=batch)

    def _error(self, name: str, batch: Any, sample: int | None, what: str) -> MapError:
        of = "" if sample is None else f"sample {sample} of split '{self.split}', "
        return MapError(
            f"{name} raised {what} at {of}step {batch.step} of epoch {batch.epoch}",
            sample=sample,
            epoch=batch.epoch,
            step=batch.step,
            position=batch.position,
        )
