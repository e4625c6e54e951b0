"""`Mapped`: Python functions between a loader and the trainer."""

from __future__ import annotations

import inspect
import threading
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
    functions of whole batches to functions of samples. `map_workers` runs the latter in processes.

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
    map_threads : int, optional
        Threads that the functions run in, each on a batch of its own; by default 1. The functions must be thread-safe.
    map_workers : int, optional
        Processes that `map_sample` runs in, on Linux, instead of threads. Define the function in a module, or install
        cloudpickle. For a function of the script itself workers import the script: what it runs has to be under
        ``if __name__ == "__main__"``. Images are valid during a call only, and results of an epoch have one shape. `random`,
        `numpy.random` and torch's generator are seeded for each sample. `map_batch` runs in up to `ahead` threads.
    map_timeout : float, optional
        Seconds that a call of `map_sample` in a process may take. By default any time.
    returns : {"hwc", "chw"}, optional
        Axes of the images that `map_sample` returns. By default the channels are the first or last axis, whichever has 1 to 4.
    ahead : int, default 2
        Batches that are prepared before they are asked for.

    Raises
    ------
    OptionError
        Neither function, options that cannot work together, or a function that cannot be sent to processes.
    MapError
        Out of a loop: a function raised something, which is the `__cause__`, or a process ended or took too long. The loop ends there,
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
        map_workers: int | None = None,
        map_timeout: float | None = None,
        returns: Literal["hwc", "chw"] | None = None,
        ahead: int = 2,
    ) -> None:
        if map_batch is None and map_sample is None:
            raise OptionError("neither map_batch nor map_sample: there is nothing to do")
        function("map_batch", map_batch)
        function("map_sample", map_sample)
        ahead = count("ahead", ahead, 1, "as functions work ahead of the trainer")
        if map_sample is None and (map_workers, returns) != (None, None):
            raise OptionError("map_workers and returns are options of map_sample, which is not given")
        if returns is not None and returns not in ("hwc", "chw"):
            raise OptionError(f"option returns is {returns!r}: expected 'hwc' or 'chw'")
        self._start_workers: Callable[[], Any] | None = None
        takes_info = map_sample is not None and _takes_info(map_sample)
        if map_workers is None:
            if map_timeout is not None:
                raise OptionError("map_timeout is an option of map_workers: threads cannot be stopped")
            map_threads = 1 if map_threads is None else count("map_threads", map_threads, 1, "to run the functions in")
        else:
            workers = count("map_workers", map_workers, 1, "to run map_sample in")
            if map_threads is not None:
                raise OptionError("map_threads and map_workers: functions run in threads or in processes")
            if map_timeout is not None and not (isinstance(map_timeout, int | float) and map_timeout > 0):
                raise OptionError(f"option map_timeout is {map_timeout!r}: expected a number of seconds above 0")
            from forebay import _map_workers

            sent = _map_workers.packed(map_sample)
            self._start_workers = lambda: _map_workers.Workers(*sent, takes_info, workers, map_timeout)
            map_threads = ahead
        super().__init__(loader, threads=map_threads, ahead=ahead)
        self._map_batch = map_batch
        self._map_sample: Any = map_sample
        self._takes_info = takes_info
        self._returns = returns
        self._workers: Any = None
        # The shape and type of results in an epoch, and of which batches.
        self._like: tuple[Any, Any] = (None, None)
        self._finding_like = threading.Lock()

    def _start(self) -> Any:
        if self._start_workers and (self._workers is None or self._workers.failed):
            self._workers = self._start_workers()
        return super()._start()

    def close(self) -> None:
        """Stop processes, threads and connections: see `forebay.Loader.close`."""
        if self._workers is not None:
            # Threads wait for them.
            self._workers.stop()
        super().close()

    def __del__(self) -> None:
        if workers := getattr(self, "_workers", None):
            workers.stop()

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
        run = self._in_threads if self._workers is None else self._in_workers
        images, labels = run(batch, given, padding, places)
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

    def _in_workers(self, batch: Any, given: Any, padding: Any, places: list[Any]) -> Any:
        images, run = batch.images, self._workers.run
        error_at = lambda row, what: self._error("map_sample", batch, places[row][3], what)  # noqa: E731
        key = batch.epoch, images.shape[1:]
        with self._finding_like:
            if self._like[0] != key:
                # The function runs twice on the first sample of an epoch.
                _, [(image, _)] = run(images, given, padding, places, None, error_at)
                self._like = key, (image.shape, image.dtype)
            like = self._like[1]
        return run(images, given, padding, places, like, error_at)

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
        text = f"{name} {what} at {of}step {batch.step} of epoch {batch.epoch}"
        return MapError(text, sample=sample, epoch=batch.epoch, step=batch.step, position=batch.position)
