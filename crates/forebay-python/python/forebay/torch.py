"""Batches as tensors of PyTorch, on the GPU before the loop needs them.

    loader = forebay.torch.Loader("packed/", batch_size=256, transform=forebay.TrainTransform(224), device="cuda",
                                  normalize=(forebay.torch.IMAGENET_MEAN, forebay.torch.IMAGENET_STD))
    for images, labels in loader:      # (256, 3, 224, 224) float32 and (256,) int64, on the device
        ...

Owns pinned memory, the copy to the device and its stream. Batches, their order and states are
those of `forebay.Loader`. torch is imported when a loader is made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from forebay import _device
from forebay._adapter import loader_of, tree_map, with_options
from forebay._batch import TensorBatch, TorchBatch
from forebay._errors import OptionError
from forebay._forebay import Batch, KeepEncoded
from forebay._front import Front, Source
from forebay._mix import Mix
from forebay._options import library
from forebay._signatures import torch_loader

if TYPE_CHECKING:
    import torch

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Loader", "TorchBatch"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's pixels in 0..1: red, green, blue. What torchvision's models were trained with."""

IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's pixels in 0..1: red, green, blue."""

# Tensors start at multiples of this many bytes in pinned memory: no element type needs more.
_ALIGN = 256

# Smaller tensors go through pinned memory even where their own memory is registered: copying them costs less than a transfer each.
_DIRECT_BYTES = 64 << 10


class Loader(Front[Any, "TorchBatch[torch.Tensor]"]):
    """Batches as tensors of PyTorch.

    A loop gives `TensorBatch`, the pair `(images, labels)`: images of shape (N, 3, H, W), labels
    int64 of shape (N,). `padding` and `failed` are tensors beside them, for validation. It takes the
    place of `torch.utils.data.DataLoader`, with no worker processes: decoding runs in native
    threads, or on a server.

    With `transform=KeepEncoded()` images are a list of tensors, uint8 of shape (bytes,), that stay on the CPU
    whatever the device: what `torchvision.io.decode_jpeg(images, device="cuda")` takes.

    With a GPU a thread copies each batch to the device, on a stream of its own, while the trainer works on
    the batch before. What the trainer's current stream does with a batch waits for the copy, not the
    trainer itself. Batches are decoded into memory that is registered with CUDA, and copied from there; where
    that is impossible, they are copied into pinned memory first: see "device_copy" of `stats`.

    Parameters
    ----------
    source : str, os.PathLike, Mix or Loader
        As for `forebay.Loader`; or a `forebay.Loader` or `forebay.Mapped` that was made already.
    device : str or torch.device, default "cpu"
        Where tensors are to be. "cuda" is the current device.
    pin_memory : bool, default False
        With the CPU as the device: give tensors in pinned memory, for the trainer's own
        asynchronous copies. Nothing happens where there is no GPU.
    channels_last : bool, default False
        Whether the memory of images is in the order (N, H, W, 3), torch.channels_last. Their shape is
        (N, 3, H, W) either way.
    normalize : tuple, optional
        Mean and standard deviation of each channel, in 0..1: images become
        ``(images / 255 - mean) / std``, on the device. Bytes travel, a quarter of what floats are.
    float_dtype : torch.dtype, optional
        The type of normalised images, by default torch.float32. It is computed in float32.
    prefetch : int, default 2
        Batches that are prepared before they are asked for. Each takes its memory on the device.
    map_batch, map_sample : callable, optional
        Python functions on the way: see `forebay.Mapped`. They are given images as (H, W, 3), unless
        `source` is a loader that has another layout. Arrays and tensors in whatever `map_batch`
        returns become tensors on the device.
    map_threads : int, optional
        Threads that the functions run in, by default 1.
    map_workers : int, optional
        Processes that `map_sample` runs in: see `forebay.Mapped`.
    map_timeout : float, optional
        Seconds after which a call of `map_sample` in a process is an error.
    returns : {"hwc", "chw"}, optional
        The layout of images that `map_sample` returns: see `forebay.Mapped`.
    **options
        All others are those of `forebay.Loader`, except for `layout`.

    Raises
    ------
    ImportError
        When torch is not installed.
    OptionError
        An option, or a combination of them, that cannot work.

    Examples
    --------
    >>> train = forebay.TrainTransform(224)
    >>> loader = forebay.torch.Loader("packed/", batch_size=256, transform=train, device="cuda")  # doctest: +SKIP
    >>> for images, labels in loader:  # doctest: +SKIP
    ...     loss = criterion(model(images.float() / 255), labels)
    """

    @with_options(torch_loader, without=["layout"])
    def __init__(
        self,
        source: str | os.PathLike[str] | Mix | Source,
        *,
        device: str | torch.device = "cpu",
        pin_memory: bool = False,
        channels_last: bool = False,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        float_dtype: torch.dtype | None = None,
        prefetch: int = 2,
        map_batch: Callable[[Any], Any] | None = None,
        map_sample: Callable[..., tuple[Any, Any]] | None = None,
        map_threads: int | None = None,
        map_workers: int | None = None,
        map_timeout: float | None = None,
        returns: Literal["hwc", "chw"] | None = None,
        **options: Any,
    ) -> None:
        torch = library("torch", "torch")
        mapped = map_batch is not None or map_sample is not None
        if "layout" in options:
            raise OptionError("layout: images are (N, 3, H, W) here; see channels_last")
        if float_dtype is not None and normalize is None:
            raise OptionError("float_dtype is the type of normalised images: give normalize")
        place = _place(torch, device)
        finish = _Finish(torch, place, channels_last, normalize, float_dtype)
        if isinstance(source, str | os.PathLike | Mix):
            if not isinstance(options.get("transform"), KeepEncoded):
                # Functions are given pictures as everybody else has them.
                options["layout"] = "nhwc" if channels_last or mapped else "nchw"
            elif not mapped:
                finish.check_decoded()
        self._mover: _Mover
        if place.type == "cuda":
            made = not isinstance(source, str | os.PathLike | Mix)
            self._mover = CudaMover(torch, place, finish, "the loader was made without a device" if made else None)
            if not made:
                options["_registry"] = self._mover.registry
        else:
            pin = pin_memory and place.type == "cpu" and torch.cuda.is_available()
            self._mover = _Mover(torch, place, finish, torch.cuda.current_device() if pin else None)
        inner = loader_of(
            source, options, prefetch, map_batch=map_batch, map_sample=map_sample, map_threads=map_threads,
            map_workers=map_workers, map_timeout=map_timeout, returns=returns,
        )  # fmt: skip
        # Without work to do ahead a batch is its memory, and costs nothing to hand out.
        idle = place.type == "cpu" and not (pin_memory or normalize is not None or mapped)
        super().__init__(inner, ahead=0 if idle else prefetch, copies=place.type != "cpu")
        self._device = place

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self._device

    @property
    def dataset(self) -> _Records:
        """The samples of an epoch: `len(loader.dataset)` is their number. It has no items; a loop gives batches."""
        return _Records(self)

    @property
    def num_workers(self) -> int:
        """0: there are no worker processes."""
        return 0

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """A function that returns its argument: native threads make batches."""
        return _same

    @property
    def prefetch_factor(self) -> None:
        """None: there are no worker processes."""
        return None

    @property
    def batch_sampler(self) -> Any:
        """The numbers of the steps of an epoch, for `skip_first_batches` of Accelerate, which Trainer calls to resume."""
        return _Steps(self)

    def as_dataset(self) -> torch.utils.data.IterableDataset[Any]:
        """Return the loader as a dataset whose items are whole batches.

        For code that accepts nothing but a DataLoader of PyTorch or torchdata:
        ``torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None)``. Give it no workers: the loader
        has threads of its own.

        Returns
        -------
        torch.utils.data.IterableDataset
            As long as the loader: its length is a number of batches. It has `state_dict`, `load_state_dict` and
            `set_epoch`, which are those of the loader.
        """
        return _batches_of(self)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def close(self) -> None:
        """Stop threads and connections: see `forebay.Loader.close`."""
        super().close()
        self._mover.close()

    def _stats(self, copies: tuple[float, float, float, float] | None) -> Any:
        stats = super()._stats(copies)
        stats["device_copy"] = self._mover.way()
        return stats

    def _prepare(self, batch: Any) -> Any:
        return self._mover.prepare(batch)

    def _deliver(self, prepared: Any) -> Any:
        return self._mover.deliver(prepared)


def _same(value: Any) -> Any:
    return value


class _Steps:
    """The numbers of the steps of an epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._loader)))

    def set_epoch(self, epoch: int) -> None:
        """Trainer sets the epoch here where it skips batches."""
        self._loader.set_epoch(epoch)


class _Records:
    """The samples of a loader, for code that reads `len(loader.dataset)`.

    A DataLoader with `_Steps` as its batch sampler gets batches of it. So Accelerate's
    `skip_first_batches` works, and skips batches without decoding them.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(())
        self._step: int | None = None

    def __len__(self) -> int:
        return self._loader.epoch_samples

    def __getitems__(self, step: Any) -> Any:
        """Returns the batch of a step; the next step continues the same loop."""
        if not isinstance(step, int):
            return self[step]
        loader = self._loader
        if step != self._step:
            state = loader.state_dict()
            # It is of the batches before.
            state.pop("digest", None)
            loader.load_state_dict({**state, "position": step * loader.batch_size * loader.world_size})
            self._batches = iter(loader)
        self._step = step + 1
        return next(self._batches)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(
            f"loader.dataset[{index!r}] failed: a loader gives batches in its own order, not single samples; loop over the loader, "
            "give DataLoader(loader.as_dataset(), batch_size=None) to code that wants one, or read samples by number: "
            "forebay.open(path).split(name).dataset(transform)"
        )

    __iter__ = None

    def __repr__(self) -> str:
        return f"<{len(self)} samples of {self._loader!r}>"


def _batches_of(loader: Loader) -> Any:
    """Creates a torch dataset. A function, because torch is imported only when a loader exists."""
    import torch

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(loader)

        def __len__(self) -> int:
            return len(loader)

        def set_epoch(self, epoch: int) -> None:
            loader.set_epoch(epoch)

        def state_dict(self) -> dict[str, Any]:
            return loader.state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            loader.load_state_dict(state)

        def __reduce__(self) -> Any:
            return loader.__reduce__()

    return Batches()


def _place(torch: Any, device: Any) -> Any:
    """Returns the device with its index, which does not depend on the current device of a thread."""
    place = torch.device(device)
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise OptionError(f"device is {device!r}, and torch finds no GPU: use device='cpu'")
        if place.index is None:
            place = torch.device("cuda", torch.cuda.current_device())
    return place


class _Finish:
    """Converts pixels on the device to the layout and type that the trainer requested."""

    def __init__(
        self,
        torch: Any,
        device: Any,
        channels_last: bool,
        normalize: tuple[Sequence[float], Sequence[float]] | None,
        float_dtype: Any,
    ) -> None:
        self.torch = torch
        self.device = device
        self.channels_last = channels_last
        self.float_dtype = float_dtype or torch.float32
        self.constants = None
        if normalize is not None:
            try:
                mean, std = ([float(value) for value in part] for part in normalize)
                if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
                    raise ValueError("three channels have a mean and a positive deviation each")
            except (TypeError, ValueError) as error:
                raise OptionError(f"normalize is not (mean, std): {error}") from error
            self.constants = (mean, std)
        # Created on first use: tensors of shape (1, 3, 1, 1) on the device, for pixel values 0..255.
        self.tensors: Any = None

    def check_decoded(self) -> None:
        """Raises `OptionError` if an option needs pixels: the images stay encoded."""
        for name, wanted in (("normalize", self.constants), ("channels_last", self.channels_last)):
            if wanted:
                raise OptionError(f"{name}: the images stay encoded, as transform=KeepEncoded() has it")

    def __call__(self, images: Any, rows_first: bool) -> Any:
        """Converts images of shape (N, H, W, 3) or, without `rows_first`, (N, 3, H, W)."""
        torch = self.torch
        if rows_first:
            images = images.permute(0, 3, 1, 2)
        if self.constants is not None:
            if images.dtype != torch.uint8:
                raise OptionError(
                    f"normalize takes uint8 images, these are {images.dtype}: "
                    "leave either it or the loader's own conversion out"
                )
            if self.tensors is None:
                mean, std = self.constants
                self.tensors = [
                    torch.tensor(values, dtype=torch.float32).view(1, 3, 1, 1).to(self.device)
                    for values in ([v * 255 for v in mean], [1 / (v * 255) for v in std])
                ]
            mean, scale = self.tensors
            images = images.to(torch.float32).sub_(mean).mul_(scale).to(self.float_dtype)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)


class _Mover:
    """Converts batches to tensors on a device that needs no CUDA stream of its own."""

    def __init__(self, torch: Any, device: Any, finish: _Finish, pin_for: int | None = None) -> None:
        self.torch = torch
        self.device = device
        self.finish = finish
        self.pin_for = pin_for

    def prepare(self, batch: Any) -> Any:
        """Returns the argument of `deliver`. Called by one thread, ahead of time."""
        tensors = self.each(lambda tensor: tensor.to(self.device), self.tensors(batch))
        made = self.finished(tensors)
        if self.pin_for is None:
            return made
        # Pinned memory comes from torch's cache, which tracks when copies from it end. Without this
        # context the thread would allocate memory on the first GPU.
        with self.torch.cuda.device(self.pin_for):
            return self.each(lambda tensor: tensor.pin_memory(), made)

    def deliver(self, prepared: Any) -> Any:
        """Returns the batch for the trainer. Called by the trainer's thread."""
        return prepared

    def way(self) -> str | None:
        """How batches get to the device; None if there is no copy of this kind."""
        return None

    def close(self) -> None:
        """Ends all copies that are in progress."""

    def each(self, function: Callable[[Any], Any], tree: Any) -> Any:
        """Applies `function` to each tensor; other values stay the same."""

        def one(value: Any) -> Any:
            return function(value) if isinstance(value, self.torch.Tensor) else value

        return tree_map(one, tree)

    def tensors(self, batch: Any) -> Any:
        """Converts all arrays of a batch, or of a map function's result, to tensors on the CPU."""
        torch = self.torch
        if isinstance(batch, Batch):
            # Not through numpy, which lacks some element types of the loader.
            batch = TorchBatch(batch.torch(), of=batch)
        elif isinstance(batch, TensorBatch):
            # Numpy arrays that a map function returned.
            batch = TorchBatch(batch)

        def tensor(value: Any) -> Any:
            if isinstance(value, torch.Tensor) or not hasattr(value, "__array_interface__"):
                return value
            if value.dtype.name == "bfloat16":
                # A type of ml_dtypes, which torch cannot convert from numpy.
                return torch.as_tensor(value.view("uint16")).view(torch.bfloat16)
            return torch.as_tensor(value)

        return tree_map(tensor, batch)

    def finished(self, tensors: Any) -> Any:
        """Applies `finish` to the images, on the device where they are."""
        if not isinstance(tensors, TorchBatch) or getattr(tensors.images, "ndim", 0) != 4:
            if isinstance(tensors, TorchBatch) and isinstance(tensors.images, list):
                self.finish.check_decoded()
            return tensors
        images = self.finish(tensors.images, tensors.layout == "nhwc")
        return TorchBatch((images, tensors.labels), of=tensors, layout="nchw")


class _Slot:
    """One batch on its way to the device: a pinned buffer, tensors in registered memory, and the event after the copies."""

    def __init__(self) -> None:
        self.buffer: Any = None
        # Their memory is not filled again, nor unregistered, while they are here.
        self.kept: list[Any] = []
        self.event: Any = None

    def wait(self) -> None:
        """Waits for the copies, after which buffer and memory can be filled again."""
        if self.event is not None:
            self.event.synchronize()
        self.kept = []

    def __del__(self) -> None:
        # A loader that was not closed. At exit of the interpreter torch may be gone.
        with contextlib.suppress(Exception):
            self.wait()


class CudaMover(_Mover):
    """Copies batches to tensors on a GPU, on a CUDA stream of its own.

    - Tensors in registered memory are copied from there, and kept until the copy has ended. All others are copied
      into one of two pinned buffers first: one is filled while the other is copied to the device. An
      event after the copies marks when memory can be filled again.
    - The copy and the conversion of the images are queued on the mover's stream, followed by a
      second event.
    - `deliver` makes the trainer's current stream wait for that event, and records with torch's
      allocator that the stream uses the memory: the allocator does not reuse it before all work
      queued until the tensor is freed has finished.
    """

    def __init__(self, torch: Any, device: Any, finish: _Finish, unregistered: str | None = None) -> None:
        super().__init__(torch, device, finish)
        self.stream = torch.cuda.Stream(device)
        self.slots = [_Slot(), _Slot()]
        self.turn = 0
        self.registry, self.reason = (None, unregistered) if unregistered else _device.host_registry(torch, device)
        self.direct = False

    def way(self) -> str:
        """Returns "registered", or "pinned" with the reason."""
        if self.direct:
            return "registered"
        if self.registry is None:
            return f"pinned: {self.reason}"
        if error := self.registry.error:
            return f"pinned: the driver of CUDA returned error {error} for the memory of batches"
        return "pinned: no batch was copied from the memory that it was made in"

    def close(self) -> None:
        for slot in self.slots:
            slot.wait()

    def prepare(self, batch: Any) -> Any:
        torch = self.torch
        tensors = self.tensors(batch)
        queued = torch.cuda.current_stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if self._on_device(tensors):
                # A map function put them there, on the stream of its thread. Otherwise do not
                # wait: that stream may be the trainer's.
                self.stream.wait_stream(queued)
            slot = self.slots[self.turn]
            self.turn = (self.turn + 1) % len(self.slots)
            slot.wait()
            on_device = self._copied(tensors, slot)
            slot.event = self._event()
            made = self.finished(on_device)
            ready = self._event()
        return made, ready

    def deliver(self, prepared: Any) -> Any:
        made, ready = prepared
        current = self.torch.cuda.current_stream(self.device)
        current.wait_event(ready)
        self.each(lambda tensor: tensor.record_stream(current), made)
        return made

    def _on_device(self, tensors: Any) -> bool:
        """Whether any tensor is on a device already."""
        found: list[Any] = []
        self.each(lambda tensor: found.append(tensor.device.type != "cpu"), tensors)
        return any(found)

    def _event(self) -> Any:
        # Blocking: a waiting thread sleeps, which leaves its core to a decode thread.
        event = self.torch.cuda.Event(blocking=True)
        event.record(self.stream)
        return event

    def _copied(self, tensors: Any, slot: _Slot) -> Any:
        """Queues copies of the tensors to the device."""
        torch = self.torch
        sizes: list[int] = []

        def measure(tensor: Any) -> Any:
            if tensor.device.type == "cpu" and not self._is_registered(tensor):
                sizes.append(_rounded(tensor))

        self.each(measure, tensors)
        if sizes and (slot.buffer is None or slot.buffer.numel() < sum(sizes)):
            slot.buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
        start = 0

        def copy(tensor: Any) -> Any:
            nonlocal start
            if self._is_registered(tensor):
                slot.kept.append(tensor)
                self.direct = True
            elif tensor.device.type == "cpu":
                size = tensor.numel() * tensor.element_size()
                staged = slot.buffer[start : start + size].view(tensor.dtype).view(tensor.shape)
                start += _rounded(tensor)
                staged.copy_(tensor)
                tensor = staged
            else:
                tensor.record_stream(self.stream)
            return tensor.to(self.device, non_blocking=True)

        return self.each(copy, tensors)


    def _is_registered(self, tensor: Any) -> bool:
        """Whether the device copies the tensor from where it lies."""
        if self.registry is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
            return False
        size = tensor.numel() * tensor.element_size()
        return size >= _DIRECT_BYTES and self.registry.covers(tensor.data_ptr(), size)


def _rounded(tensor: Any) -> int:
    """Bytes of a tensor in a pinned buffer, with padding."""
    size: int = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGN) * _ALIGN
