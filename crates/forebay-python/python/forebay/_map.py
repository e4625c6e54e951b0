"""`Mapped`: Python functions between a loader and the trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from forebay._batch import TensorBatch
from forebay._errors import MapError, OptionError
from forebay._front import Front, Source
from forebay._map_worker import SampleInfo, call
from forebay._options import count, function


def _of_padding(like: Any) -> Any:
    """The label of padding: -100, which losses ignore, where labels are whole numbers; zeros otherwise."""
    import numpy as np

    return np.full_like(like, -100) if like.dtype.kind == "i" else np.zeros_like(like)


def _takes_info(function: Callable[..., Any]) -> bool:
    """Whether the function has a third parameter that it needs, or one that is named info."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return False
    return any(p.kind <= p.POSITIONAL_OR_KEYWORD and (p.default is p.empty or p.name == "info") for p in parameters[2:3])


class Mapped(Front[Any, Any]):
    """A loader whose batches go through Python functions, ahead of the trainer.

    Functions run in threads of this process while the trainer works, and results come in the loader's order. **What it
    costs:** a function holds the interpreter's lock wherever it is Python and not numpy or another library that releases
    it, and the trainer's own Python waits for that long. Prefer transforms of the loader where they do the same, and
    functions of whole batches to functions of samples.

    Parameters
    ----------
    loader : Loader
        A `forebay.Loader`, or anything made of one.
    map_sample : callable, optional
        Called with one image, (H, W, 3) or as the loader's `layout` has it, and its label; returns such a pair. A third parameter
        without a default, or named info, gets a `SampleInfo`. All images of a batch have to come out in one shape. Padding is
        zeros, with the label -100 where labels are whole numbers.
    map_batch : callable, optional
        Called with the batch, after `map_sample`; a pair that it returns comes as
        `TensorBatch` with the place of the batch in the epoch, and anything else as it is.
        Draw random numbers from the batch's `epoch` and `samples` rather than from a global
        generator, and a resumed run draws the same.
    map_threads : int, default 1
        Threads that the functions run in, each on a batch of its own. The functions must be thread-safe.
    returns : {"hwc", "chw"}, optional
        Axes of the images that `map_sample` returns. By default the channels are the first or last axis, whichever has 1 to 4.
    ahead : int, default 2
        Batches that are prepared before they are asked for.

    Raises
    ------
    OptionError
        Neither function, or options that cannot work together.
    MapError
        Out of a loop: a function raised something, which is the `__cause__`. The loop ends there,
        and ``loader.load_state_dict(loader.state_dict())`` goes on with the same batch.

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
        map_sample: Callable[..., tuple[Any, Any]] | None = None,
        map_threads: int | None = None,
        returns: Literal["hwc", "chw"] | None = None,
        ahead: int = 2,
    ) -> None:
        if map_batch is None and map_sample is None:
            raise OptionError("neither map_batch nor map_sample: there is nothing to do")
        function("map_batch", map_batch)
        function("map_sample", map_sample)
        ahead = count("ahead", ahead, 1, "as functions work ahead of the trainer")
        if map_sample is None and returns is not None:
            raise OptionError("returns is one of the options of map_sample, which is not given")
        if returns is not None and returns not in ("hwc", "chw"):
            raise OptionError(f"option returns is {returns!r}: expected 'hwc' or 'chw'")
        map_threads = 1 if map_threads is None else count("map_threads", map_threads, 1, "to run the functions in")
        super().__init__(loader, threads=map_threads, ahead=ahead)
        self._map_batch = map_batch
        self._map_sample: Any = map_sample
        self._takes_info = map_sample is not None and _takes_info(map_sample)
        self._returns = returns

    def _prepare(self, batch: Any) -> Any:
        made = batch
        if self._map_sample is not None:
            made = self._of_samples(batch)
        if self._map_batch is None:
            return made
        try:
            result = self._map_batch(made)
        except Exception as error:
            raise self._error("map_batch", batch, None, f"raised {error!r}") from error
        if isinstance(result, tuple) and len(result) == 2 and not isinstance(result, TensorBatch):
            return TensorBatch(result, of=made)
        return result

    def _deliver(self, prepared: Any) -> Any:
        return prepared

    def _of_samples(self, batch: Any) -> Any:
        import numpy as np

        samples, padding = batch.samples.tolist(), np.array(batch.padding)
        seed, first, step = self.state_dict()["seed"], batch.position + self.rank, self.world_size
        places = [(seed, batch.epoch, first + row * step, sample) for row, sample in enumerate(samples)]
        given = np.array(batch.labels)
        given[padding] = self.label_base or 0
        images, labels = self._in_threads(batch, given, padding, places)
        labels = [_of_padding(labels[0]) if of_padding else label for label, of_padding in zip(labels, padding, strict=True)]
        return TensorBatch((images, np.stack(labels)), of=batch, layout=self._layout(batch, images.shape[1:]))

    def _in_threads(self, batch: Any, given: Any, padding: Any, places: list[Any]) -> tuple[Any, list[Any]]:
        import numpy as np

        images: Any = None
        labels: list[Any] = []
        for row, image in enumerate(batch.images):
            if padding[row] and row:
                # At the end of the last batch: there are samples before it, or the function gives the shapes.
                labels.append(None)
                continue
            try:
                info = (SampleInfo(*places[row]),) if self._takes_info else ()
                like = images if images is None else (images.shape[1:], images.dtype)
                image, label = call(self._map_sample, image, given[row, ...], info, like)
            except Exception as error:
                raise self._error("map_sample", batch, places[row][3], f"raised {error!r}") from error
            if images is None:
                images = np.zeros((len(given), *image.shape), image.dtype)
            if not padding[row]:
                images[row] = image
            labels.append(label)
        return images, labels

    def _layout(self, batch: Any, shape: tuple[int, ...]) -> str | None:
        """The layout of images of this shape; None keeps that of the batch."""
        if len(shape) != 3 and not self._returns:
            return None
        hwc = self._returns == "hwc" if self._returns else shape[2] in range(1, 5)
        chw = self._returns == "chw" if self._returns else shape[0] in range(1, 5)
        if len(shape) != 3 or hwc == chw:
            what = f"returned images of {shape}, which may be (H, W, C) or (C, H, W): give returns='hwc' or 'chw';"
            raise self._error("map_sample", batch, None, what)
        return "nhwc" if hwc else "nchw"

    def _error(self, name: str, batch: Any, sample: int | None, what: str) -> MapError:
        of = "" if sample is None else f"sample {sample} of split '{self.split}', "
        return MapError(
            f"{name} {what} at {of}step {batch.step} of epoch {batch.epoch}",
            sample=sample,
            epoch=batch.epoch,
            step=batch.step,
            position=batch.position,
        )
