"""The trainer's side of `map_workers`: starts the processes, hands them batches in shared memory, and notices how they end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import numpy as np

from forebay import _map_worker
from forebay._errors import ClosedError, MapError, OptionError
from forebay._map_worker import STATUS, TASK, Memory

# Seconds that running calls may take after `close`, and between two looks for calls that take too long.
_CLOSING_S, _LOOK_S = 1.0, 0.25

# A pool of threads in each worker would slow all of them down.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1")

# Ends of pipes that a forked process must not hold: workers would outlive the trainer.
_ends: set[int] = set()


def _let_go(ends: list[int]) -> None:
    """Closes the pipes. The numbers of their ends stay, so that a late user does not find another file there."""
    with open(os.devnull, "wb") as null:
        for end in ends:
            os.dup2(null.fileno(), end, inheritable=False)
    _ends.difference_update(ends)


os.register_at_fork(after_in_child=lambda: _let_go([*_ends]))


def packed(function: Any) -> tuple[bytes, tuple[str, str] | None]:
    """Pickles a function, and returns the script or module that has to be imported as `__main__` for it."""
    if sys.platform != "linux":
        raise OptionError("map_workers needs Linux: use map_threads")
    if _map_worker.running:
        raise OptionError("a worker of map_sample imports this script: put what it runs under if __name__ == '__main__'")
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    script = ("run_module", spec.name) if spec else ("run_path", os.path.abspath(file)) if file and os.path.isfile(file) else None
    reason = "it is defined in a notebook or an interactive session"
    try:
        pickled = pickle.dumps(function)
        # That of a spawned process is called __mp_main__.
        needs_main = b"_main__" in pickled
        if script or not needs_main:
            return pickled, script if needs_main else None
    except Exception as error:
        reason = str(error)
    with contextlib.suppress(Exception):
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

        return cloudpickle.dumps(function), None
    raise OptionError(f"map_sample cannot be sent to processes: {reason}; define it in a module, or install cloudpickle")


class Workers:
    """Processes that run a function of samples, and threads that read their messages until `stop`."""

    def __init__(
        self, function: bytes, main: tuple[str, str] | None, takes_info: bool, count: int, timeout: float | None
    ) -> None:
        self._process, self._count, self._timeout = os.getpid(), count, timeout
        # Re-entrant: the collector may call `stop` at any point.
        self._lock = threading.RLock()
        # Tasks that workers have: their results, and what makes the error of a row.
        self._tasks: dict[int, tuple[Future[list[Any]], Callable[[int, str], MapError]]] = {}
        self._ticket = 0
        self.failed: Exception | None = None
        self._memory = Memory(os.memfd_create("forebay-map"))
        # Bytes in use, and of the file. It grows by half at least, as each mapping of it takes a file descriptor.
        self._size = self._file = 0
        self._free: list[tuple[int, int]] = []
        # Filled by finalizers, which must not wait for the lock.
        self._returned: deque[tuple[int, int]] = deque()
        self._take(8 * (1 + STATUS * count))
        self._status = memoryview(self._memory.mapping(1)).cast("q")
        tasks, self._queue = os.pipe()
        # The last pipes are the template's.
        alive, messages = ([os.pipe() for _ in range(count + 1)] for _ in range(2))
        self._alive = [end for _, end in alive]
        _ends.update((self._queue, *self._alive))
        files = [self._memory.fd, self._queue, *self._alive]
        weakref.finalize(self, lambda: [*map(os.close, files)]).atexit = False
        given: dict[str, Any] = {
            "function": function, "main": main, "info": takes_info, "path": sys.path, "argv": sys.argv,
            "tasks": tasks, "alive": [pipe for pipe, _ in alive], "messages": [end for _, end in messages],
        }  # fmt: skip
        body = pickle.dumps(given)
        start, size = self._take(len(body))
        self._memory.mapping(start + size)[start : start + len(body)] = body
        theirs = [tasks, *given["alive"], *given["messages"]]
        # By its path: its package would import the native loader.
        command = [sys.executable, _map_worker.__file__, str(self._memory.fd), str(start)]
        try:
            # In a session of its own, since Ctrl-C in a terminal is the trainer's.
            self._template = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env={**os.environ, **_ONE_THREAD},
                pass_fds=(self._memory.fd, *theirs), start_new_session=True,
            )  # fmt: skip
        finally:
            for pipe in theirs:
                os.close(pipe)
        # Workers know the classes of the script by this name.
        sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
        for number, (pipe, _) in enumerate(messages):
            threading.Thread(target=self._listen, args=(pipe, number == count), name="forebay-map", daemon=True).start()
        # Before the handler of `_front`, which waits for threads that wait for workers.
        atexit.register(self.stop)

    def _take(self, size: int) -> tuple[int, int]:
        """Returns offset and size of a part of the memory. Parts are used again, since their pages are there already."""
        size = -(-max(size, 1) // (1 << 16)) << 16
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            for part in reversed(self._free):
                if size <= part[1] <= 2 * size:
                    self._free.remove(part)
                    return part
            if self._size + size > self._file:
                # A part is within one mapping.
                self._size, self._file = self._file, self._file + max(size, self._file // 2)
                os.ftruncate(self._memory.fd, self._file)
            self._size += size
            return self._size - size, size

    def run(
        self, images: Any, labels: Any, padding: Any, places: list[Any], like: Any, error_at: Callable[[int, str], MapError]
    ) -> tuple[Any, list[Any]]:
        """Runs the function on a batch: returns images in shared memory, and a label for each row, None for padding.

        `like` is the shape and type of the images. Without it only the first row runs, and the list has its image and label.
        """
        head = pickle.dumps(((images.shape, images.dtype), labels, padding.tolist(), places, like))
        # The pickled description lies behind the images.
        part = self._take(images.nbytes + len(head))
        start, end = part[0], part[0] + images.nbytes
        rows, shape, dtype = (len(places), (len(places), *like[0]), like[1]) if like else (1, (0,), np.dtype(np.uint8))
        out = self._take(int(np.prod(shape)) * dtype.itemsize)
        with self._lock:
            mapping = self._memory.mapping(self._size)
        np.ndarray(images.shape, images.dtype, mapping, start)[:] = images
        mapping[end : end + len(head)] = head
        lease = (ctypes.c_ubyte * out[1]).from_buffer(mapping, out[0])
        # The part is free again when the last array or tensor of the batch is gone.
        weakref.finalize(lease, self._returned.append, out).atexit = False
        made: Any = np.ndarray(shape, dtype, memoryview(lease))
        # Small tasks balance the load. Many batches of 256 tasks fit into the pipe.
        each = max(1, min(8, rows // (2 * self._count)), rows // 256)
        futures: list[Future[list[Any]]] = []
        batch = None
        for row in range(0, rows, each):
            with self._lock:
                if self.failed:
                    raise self.failed
                self._ticket += 1
                ticket, batch = self._ticket, batch or self._ticket
                futures.append(Future())
                self._tasks[ticket] = futures[-1], error_at
            # It fails if all workers are gone, which a thread notices.
            with contextlib.suppress(OSError):
                os.write(self._queue, TASK.pack(ticket, batch, start, end, out[0], row, min(each, rows - row)))
        while wait(futures, self._timeout and _LOOK_S).not_done:
            self._look()
        self._returned.append(part)
        made[padding[: len(made)]] = 0
        return made, [result for future in futures for result in future.result()]

    def stop(self) -> None:
        """Ends the processes. Workers end after the running call, or are killed."""
        if self._process == os.getpid():
            self._end(ClosedError("the loader is closed: make another one to go on"), _CLOSING_S)

    def _end(self, error: Exception, seconds: float) -> None:
        """Fails all calls, gives workers this time, and kills those that are left."""
        with self._lock:
            if self.failed:
                return
            self.failed = error
            for future, _ in self._tasks.values():
                future.set_exception(error)
            self._tasks.clear()
            self._status[0] = 1
            _let_go([self._queue])
        atexit.unregister(self.stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._template.wait(seconds)
        _let_go(self._alive)
        self._template.wait()

    def _listen(self, pipe: int, is_template: bool) -> None:
        """Reads the messages of a process."""
        text = "the process that starts the workers of map_sample ended"
        with open(pipe, "rb") as stream:
            try:
                while True:
                    self._receive(*pickle.load(stream))
            except (EOFError, pickle.UnpicklingError):
                if not is_template:
                    # The template reports how a worker ended.
                    return
            except Exception as error:
                text = f"a result of map_sample cannot be read: {error!r}"
        self._end(MapError(text), 0)

    def _receive(self, kind: str, *rest: Any) -> None:
        """Handles a message."""
        if kind == "load":
            text, trace, cause = rest
            error = MapError(f"a process cannot import map_sample: {text}\n\nIn the process:\n{trace}")
            error.__cause__ = cause
            self._end(error, 0)
        elif kind == "end":
            number, pid, code = rest
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._lose(number, f"lost its process: pid {pid} {how},")
        else:
            with self._lock:
                future, error_at = self._tasks.pop(rest[0], (None, None))
            if kind == "done" and future:
                future.set_result(rest[1])
            elif future and error_at:
                _, row, text, trace, cause = rest
                error = error_at(row, f"raised {text}")
                error.args = (f"{error}\n\nIn the worker:\n{trace}",)
                error.__cause__ = cause
                future.set_exception(error)

    def _lose(self, number: int, what: str) -> None:
        """Ends everything for a worker that is gone or hangs."""
        start, ticket, row, _ = self._status[1 + STATUS * number : 1 + STATUS * (number + 1)]
        _, error_at = self._tasks.get(ticket if start else 0, (None, None))
        self._end(error_at(row, what) if error_at else MapError(f"map_sample {what} between two samples"), 0)

    def _look(self) -> None:
        """Looks for calls that take too long."""
        for number in range(self._count):
            start, _, _, pid = self._status[1 + STATUS * number : 1 + STATUS * (number + 1)]
            if start and self._timeout and time.monotonic_ns() - start > self._timeout * 1e9:
                self._lose(number, f"did not return within {self._timeout:g} s in pid {pid}")
