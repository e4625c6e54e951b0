"""The processes of `map_workers`: a template that forks workers, and the loop in which they call the user's function.

The trainer runs this file without importing its package: a worker has no use for the native loader and its memory, and
imports NumPy and the user's modules only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import mmap
import os
import pickle
import random
import runpy
import select
import signal
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Numbers of the task and of its batch, offsets of images, of what describes them and of results, first row, rows. It is shorter than
# PIPE_BUF, so all workers can read whole tasks from one pipe: a queue that needs no lock.
TASK = struct.Struct("<7q")

# Numbers of each worker at the start of the memory: when the running call began (in ns, 0 between two calls), the task, the row and
# the process. The first number of all is not 0 when workers are to stop.
STATUS = 4

# Whether this process is a template or a worker.
running = __name__ == "__main__"


class SampleInfo:
    """Place of a sample in the epoch, and random numbers for it: the third argument of a `map_sample` function.

    The numbers follow from the loader's seed, the epoch and the position. They are the same in threads and in any number of
    processes, on any number of ranks, and after a resume. A sample that comes twice in an epoch gets other numbers each time.

    Attributes
    ----------
    sample : int
        Number of the record in its split, from 0.
    epoch : int
        The epoch, from 0.
    position : int
        Position of the sample in the epoch, counted over all ranks, from 0.
    rng : numpy.random.Generator
        A generator of NumPy, made on first use.
    random : random.Random
        A generator of the standard library, made on first use.

    Examples
    --------
    >>> def noise(image, label, info):
    ...     return image + info.rng.normal(0, 8, image.shape), label
    """

    def __init__(self, seed: int, epoch: int, position: int, sample: int) -> None:
        self.sample, self.epoch, self.position = sample, epoch, position
        mixed = blake2b(struct.pack("<3Q", seed, epoch, position), digest_size=32).digest()
        self._words = struct.unpack("<4Q", mixed)

    @functools.cached_property
    def rng(self) -> np.random.Generator:
        """A generator of NumPy, made on first use."""
        import numpy as np

        return np.random.Generator(np.random.Philox(key=self._words[:2]))

    @functools.cached_property
    def random(self) -> random.Random:
        """A generator of the standard library, made on first use."""
        return random.Random(self._words[2])


def call(function: Callable[..., Any], image: Any, label: Any, info: tuple[SampleInfo, ...], like: Any) -> tuple[Any, Any]:
    """Calls the function with one sample and returns its results as arrays.

    `like` is the shape and type of images, or None. Raises `ValueError` for an image that differs.
    """
    import numpy as np

    image, label = function(image, label.item() if label.ndim == 0 else label, *info)
    image = np.asarray(image)
    if like and (image.shape, image.dtype) != like:
        found, first = (f"{shape} {dtype}" for shape, dtype in ((image.shape, image.dtype), like))
        raise ValueError(f"an image of {found} after one of {first}: a batch holds one kind")
    return image, np.asarray(label)


class Memory:
    """A memfd that processes map. It grows, and mappings live as long as arrays in them."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    def mapping(self, end: int) -> mmap.mmap:
        """A mapping of at least the first `end` bytes."""
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)
        return self._map


def _send(pipe: Any, *message: Any) -> None:
    """Sends a message. Ends the process if the trainer is gone."""
    try:
        pickle.dump(message, pipe)
        pipe.flush()
    except OSError:
        os._exit(1)


def _described(error: BaseException) -> tuple[str, str, BaseException | None]:
    """The exception as text, its traceback from the user's code on, and the exception itself if it can be pickled."""
    frame = error.__traceback__
    while frame and frame.tb_next and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    text = "".join(traceback.format_exception(type(error), error, frame))
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return repr(error), text, error
    return repr(error), text, None


def _end_with_trainer(pipe: int) -> None:
    """Makes the kernel kill this process when the trainer, which has the other end of the pipe, is gone.

    Each process needs a pipe of its own: the signal belongs to the open file, and the last process to set it has it.
    PR_SET_PDEATHSIG would follow the thread that started the template, and the template instead of the trainer.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:
        os._exit(1)


def main(fd: int, start: int) -> None:
    """Runs the template: imports what the function needs, forks the workers and reports how they end."""
    memory = Memory(fd)
    given = pickle.loads(memoryview(memory.mapping(start + 1))[start:])
    *alive, own = given["alive"]
    *messages, reports = given["messages"]
    _end_with_trainer(own)
    # Ctrl-C is the trainer's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError):
        # A worker may be killed with text in its buffer.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.path[:], sys.argv[:] = given["path"], given["argv"]
    report = open(reports, "wb")
    try:
        import numpy.random  # noqa: F401

        if given["main"]:
            # As `multiprocessing` does: under another name, which a script can tell from its own.
            run, name = given["main"]
            module = types.ModuleType("__mp_main__")
            module.__dict__.update(getattr(runpy, run)(name, run_name=module.__name__))
            sys.modules["__main__"] = sys.modules[module.__name__] = module
        function = pickle.loads(given["function"])
    except BaseException as error:
        _send(report, "load", *_described(error))
        return
    # Pages stay shared as long as the collector does not write to them.
    gc.freeze()
    workers = {}
    for number in range(len(alive)):
        if not (pid := os.fork()):
            # The trainer notices the end of the template by the end of its messages.
            report.close()
            _end_with_trainer(alive[number])
            _work(function, memory, given, 1 + STATUS * number, open(messages[number], "wb"))
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(0)
        workers[pid] = number
    while workers:
        pid, status = os.wait()
        # The user's modules may have started other processes.
        if pid in workers:
            _send(report, "end", workers.pop(pid), pid, os.waitstatus_to_exitcode(status))


def _work(function: Callable[..., Any], memory: Memory, given: dict[str, Any], own: int, pipe: Any) -> None:
    """Calls the function for the rows of tasks until there are no more."""
    import numpy as np

    status = memoryview(memory.mapping(1)).cast("q")
    status[own + 3] = process = os.getpid()
    current = None
    while len(record := os.read(given["tasks"], TASK.size)) == TASK.size:
        ticket, batch, start, head, out, first, rows = TASK.unpack(record)
        if batch != current:
            (shape, dtype), labels, padding, places, like = pickle.loads(memoryview(memory.mapping(head + 1))[head:])
            images, made, current = np.ndarray(shape, dtype, memory.mapping(head), start), None, batch
            if like:
                made = np.ndarray((len(places), *like[0]), like[1], memory.mapping(out + 1), out)
        done: list[Any] = []
        for row in range(first, first + rows):
            if status[0]:
                return
            # The first row may be padding too: it gives the shapes.
            if padding[row] and row:
                done.append(None)
                continue
            status[own + 1], status[own + 2] = ticket, row
            status[own] = time.monotonic_ns()
            info, failed = SampleInfo(*places[row]), None
            random.seed(info._words[3])
            np.random.seed(info._words[3] & 0xFFFFFFFF)
            if torch := sys.modules.get("torch"):
                torch.default_generator.manual_seed(info._words[3] >> 1)
            try:
                image, label = call(function, images[row], labels[row, ...], (info,) if given["info"] else (), like)
                if image.dtype.hasobject or label.dtype.hasobject:
                    raise TypeError(f"an image of {image.dtype} and a label of {label.dtype}: processes return numbers")
            except BaseException as error:
                failed = error
            if os.getpid() != process:
                # The function forked, and this is the other process.
                os._exit(0)
            status[own] = 0
            if failed:
                _send(pipe, "error", ticket, row, *_described(failed))
                break
            if made is None:
                # The first result says how much memory results take.
                done.append((image, label))
            else:
                made[row] = image
                done.append(label)
        else:
            _send(pipe, "done", ticket, done)


if running:
    # The user's modules may import Forebay.
    sys.modules["forebay._map_worker"] = sys.modules[__name__]
    main(*map(int, sys.argv[1:]))
