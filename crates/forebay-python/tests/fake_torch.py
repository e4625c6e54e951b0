"""A torch with a GPU that is late: for tests of streams where there is neither.

What is queued on a stream happens only when something waits for it, as late as CUDA may do it at
worst; memory that was freed is given out again at once, unless a stream that was recorded has work
left, which is as early as torch's allocator may do it. Whatever is read too early, overwritten too
early or freed too early shows in the pixels. Only what `forebay.torch` uses is here.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

uint8, float32, float16 = np.dtype("uint8"), np.dtype("float32"), np.dtype("float16")
channels_last, contiguous_format = "channels_last", "contiguous_format"
lock = threading.RLock()
local = threading.local()
pinned_bytes: list[int] = []
# Where copies may read from late: address and size of pinned memory, and whether a test's driver has it registered.
pinned: list[tuple[int, int]] = []
registered: list[Callable[[int, int], bool]] = []


def nothing() -> None:
    """In the place of work that was done, whose memory is let go."""


def borrowed(array: np.ndarray) -> np.ndarray:
    """The memory of an array, as a device sees it: nothing keeps it from being freed or filled again."""
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    return np.ctypeslib.as_array(memory).view(array.dtype).reshape(array.shape)


class Stream:
    def __init__(self, where: Any = None) -> None:
        self.queue: list[Callable[[], None]] = []
        self.done = 0
        self.events: dict[int, int] = {}

    def put(self, work: Callable[[], None]) -> int:
        with lock:
            self.queue.append(work)
            return len(self.queue)

    def run(self, until: int) -> None:
        with lock:
            while self.done < until:
                self.done += 1
                work, self.queue[self.done - 1] = self.queue[self.done - 1], nothing
                work()

    def busy(self) -> bool:
        return self.done < len(self.queue)

    def wait_event(self, event: Event) -> None:
        stream, until = event.at
        self.put(lambda: stream.run(until))

    def wait_stream(self, other: Stream) -> None:
        until = len(other.queue)
        self.put(lambda: other.run(until))


class Event:
    def __init__(self, blocking: bool = False) -> None:
        assert blocking, "a wait that spins takes a core"

    def record(self, stream: Stream) -> None:
        self.at = (stream, len(stream.queue))

    def synchronize(self) -> None:
        stream, until = self.at
        stream.run(until)


class Block:
    """A piece of device memory, and the streams that use it."""

    free: list[np.ndarray] = []

    def __init__(self, size: int, stream: Stream) -> None:
        with lock:
            # What was freed last comes first: if it is still read, that shows.
            for number in reversed(range(len(Block.free))):
                if Block.free[number].nbytes == size:
                    self.memory = Block.free.pop(number)
                    break
            else:
                self.memory = np.zeros(size, np.uint8)
        self.streams: list[Stream] = []
        weakref.finalize(self, Block.release, self.memory, self.streams).atexit = False

    @staticmethod
    def release(memory: np.ndarray, streams: list[Stream]) -> None:
        # The stream that it was taken on runs in order: the next work there comes after.
        if not any(stream.busy() for stream in streams):
            Block.free.append(memory)


class device:  # noqa: N801
    type: str
    index: int | None

    def __init__(self, name: Any, index: int | None = None) -> None:
        if isinstance(name, device):
            name, index = name.type, name.index
        kind, _, number = name.partition(":")
        self.type, self.index = kind, int(number) if number else index


class Tensor:
    def __init__(self, array: np.ndarray, block: Block | None = None) -> None:
        self.array, self.block = array, block
        self.device = device("cpu") if block is None else device("cuda", 0)
        self.dtype, self.shape, self.ndim = array.dtype, array.shape, array.ndim

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def __getitem__(self, index: slice) -> Tensor:
        return Tensor(self.array[index], self.block)

    def view(self, *what: Any) -> Tensor:
        if isinstance(what[0], np.dtype):
            return Tensor(self.array.view(what[0]), self.block)
        shape = what[0] if isinstance(what[0], tuple) else what
        return Tensor(self.array.reshape(shape), self.block)

    def permute(self, *axes: int) -> Tensor:
        return Tensor(self.array.transpose(axes), self.block)

    def copy_(self, other: Tensor) -> Tensor:
        assert self.block is None and other.block is None
        self.array[...] = other.array
        return self

    def _made(self, dtype: np.dtype, order: str, source: np.ndarray) -> Tensor:
        """A new device tensor, which the current stream fills some time."""
        stream = cuda.current_stream()
        block = Block(source.size * dtype.itemsize, stream)
        array = block.memory.view(dtype)
        if order == channels_last and source.ndim == 4:
            n, c, h, w = source.shape
            array = array.reshape(n, h, w, c).transpose(0, 3, 1, 2)
        else:
            array = array.reshape(source.shape)
        stream.put(lambda: np.copyto(array, source, casting="unsafe"))
        return Tensor(array, block)

    def to(self, where: Any, non_blocking: bool = False) -> Tensor:
        if isinstance(where, np.dtype):
            return self if where == self.dtype else self._made(where, contiguous_format, self.array)
        if where.type == self.device.type:
            return self
        source = self.array if non_blocking else self.array.copy()
        if non_blocking and self.block is None:
            self._check_late_reads()
            source = borrowed(self.array)
        return self._made(self.dtype, contiguous_format, source)

    def _check_late_reads(self) -> None:
        """Memory is pinned or registered when the copy is queued, and when it happens."""
        start, size = self.data_ptr(), self.array.nbytes
        if size == 0 or any(at <= start and start + size <= at + most for at, most in pinned):
            return

        def check() -> None:
            assert any(covers(start, size) for covers in registered), "copied from memory that is not registered"

        check()
        cuda.current_stream().put(check)

    def sub_(self, other: Tensor) -> Tensor:
        array, values = self.array, other.array
        cuda.current_stream().put(lambda: np.subtract(array, values, out=array))
        return self

    def mul_(self, other: Tensor) -> Tensor:
        array, values = self.array, other.array
        cuda.current_stream().put(lambda: np.multiply(array, values, out=array))
        return self

    def contiguous(self, memory_format: str) -> Tensor:
        n, c, h, w = self.shape
        rows = self.array.transpose(0, 2, 3, 1).flags.c_contiguous
        if (rows if memory_format == channels_last else self.array.flags.c_contiguous):
            return self
        return self._made(self.dtype, memory_format, self.array)

    def record_stream(self, stream: Stream) -> None:
        assert self.block is not None
        self.block.streams.append(stream)


def as_tensor(array: Any) -> Tensor:
    return Tensor(array)


def tensor(values: list[float], dtype: np.dtype) -> Tensor:
    return Tensor(np.array(values, dtype))


def empty(size: int, dtype: np.dtype, pin_memory: bool) -> Tensor:
    assert pin_memory
    pinned_bytes.append(size)
    made = Tensor(np.zeros(size, dtype))
    pinned.append((made.data_ptr(), size))
    return made


class Cuda:
    Stream, Event = Stream, Event
    default = Stream()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def current_stream(self, where: Any = None) -> Any:
        return getattr(local, "stream", self.default)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        local.stream = stream
        try:
            yield
        finally:
            del local.stream

    @contextlib.contextmanager
    def device(self, where: Any) -> Iterator[None]:
        yield


cuda = Cuda()


def module() -> Any:
    """This module, to be found as torch."""
    made = types.ModuleType("torch")
    vars(made).update({name: value for name, value in globals().items() if name[0] != "_"})
    return made
