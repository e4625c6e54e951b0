"""Loaders in front of a loader: what the adapters share, and the threads that work ahead.

A front takes the batches of another loader, makes something of each, and hands that out in
the same order. It owns the read-ahead and where the trainer stands: batches that were
prepared and not handed out do not count. What is made of a batch is up to the classes that
derive from it; where batches come from is the other loader's.
"""

from __future__ import annotations

import atexit
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from forebay._digest import EpochDigest, of_state
from forebay._errors import ClosedError, ForkError, OptionError, StateError
from forebay._sampler import Sampler

if TYPE_CHECKING:
    from typing_extensions import Self

Prepared = TypeVar("Prepared")
Item = TypeVar("Item", covariant=True)

# Seconds that `close` and the exit of the interpreter wait for threads that are running a
# function of the user.
_CLOSING_S = 10.0


class Source(Protocol):
    """The interface that a front needs of its loader; `forebay.Loader` and all fronts implement it."""

    @property
    def source(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def sample_fingerprint(self) -> str | None: ...
    @property
    def split(self) -> str: ...
    @property
    def records(self) -> int: ...
    @property
    def epoch_samples(self) -> int: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def label_base(self) -> int | None: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def drop_last(self) -> bool: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def epoch_digest(self) -> EpochDigest: ...
    def stats(self) -> Any: ...
    def close(self) -> None: ...


class _Failed:
    """The exception raised instead of a batch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Over:
    """The end of the epoch."""


class _Clock:
    """Seconds that copying to a device took, and waits on both sides of it. Guarded by the front's condition."""

    def __init__(self) -> None:
        self.busy = self.starved = 0.0
        self.trainer_busy = self.trainer_starved = 0.0
        # How long the trainer waited for each of its last batches.
        self.waits: deque[float] = deque(maxlen=1024)
        # When the trainer got its last batch.
        self.handed_at: float | None = None

    def read(self) -> tuple[float, float, float, float]:
        return self.busy, self.starved, self.trainer_busy, self.trainer_starved


class _Ahead(Generic[Prepared]):
    """Threads that take batches in order, prepare them, and keep a few ready.

    Has no reference to the iterator that consumes the batches, so that garbage collection of the
    iterator ends the threads.
    """

    def __init__(
        self,
        changed: threading.Condition,
        inner: Source,
        prepare: Callable[[Any], Prepared],
        threads: int,
        depth: int,
        clock: _Clock,
    ) -> None:
        self.process = os.getpid()
        self.clock = clock
        self.inner = inner
        self.batches = iter(inner)
        self.prepare = prepare
        self.changed = changed
        # Held while a batch and the state after it are taken: one thread at a time.
        self.taking = threading.Lock()
        self.depth = depth
        # By batch number: the next item of the iterator, and the state after it is handed out.
        self.store: dict[int, tuple[Prepared | _Failed | _Over, dict[str, Any]]] = {}
        self.taken = 0
        self.handed = 0
        # No thread takes another batch: the epoch has ended or failed, or was abandoned.
        self.stopped = False
        self.unwanted = False
        self.threads = [
            threading.Thread(target=self._work, name="forebay-ahead", daemon=True)
            for _ in range(threads)
        ]
        _live.add(self)
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        while True:
            with self.taking:
                number = self._room()
                if number is None:
                    return
                asked = time.perf_counter()
                batch, end, state = self._take()
                taken = time.perf_counter()
            if end is None:
                try:
                    end = self.prepare(batch)
                except BaseException as error:
                    end = _Failed(error)
            # A thread that waits for room must not keep the previous batch alive.
            del batch
            with self.changed:
                self.clock.starved += taken - asked
                self.clock.busy += time.perf_counter() - taken
                if not self.unwanted:
                    self.store[number] = (end, state)
                self.changed.notify_all()
            del end

    def _room(self) -> int | None:
        """Waits for room and returns the number of the next batch, or None if the threads must stop."""
        with self.changed:
            while not self.stopped and self.taken - self.handed >= self.depth:
                # `abandon` cannot always notify: it does not wait for the lock.
                self.changed.wait(1.0)
            if self.unwanted:
                self.store.clear()
            if self.stopped:
                return None
            self.taken += 1
            return self.taken - 1

    def _take(self) -> tuple[Any, Prepared | _Failed | _Over | None, dict[str, Any]]:
        """Returns the next batch, or the end or failure in its place, and the state after it."""
        try:
            return next(self.batches), None, self.inner.state_dict()
        except StopIteration:
            self.stopped = True
            return None, _Over(), self.inner.state_dict()
        except BaseException as error:
            self.stopped = True
            return None, _Failed(error), {}

    def abandon(self) -> None:
        """Makes the threads end after their current step, and drops prepared batches.

        Garbage collection calls it, at any point of any thread, so it does not block.
        """
        if self.process != os.getpid():
            return
        self.unwanted = self.stopped = True
        if self.changed.acquire(blocking=False):
            try:
                self.store.clear()
                self.changed.notify_all()
            finally:
                self.changed.release()

    def join(self, seconds: float) -> None:
        """Waits at most this many seconds for the threads to end."""
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


_live: weakref.WeakSet[_Ahead[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # The interpreter kills daemon threads at exit, and if one is inside native code, the process
    # ends with an error. This handler runs earlier, when the threads can still end normally.
    mine = [ahead for ahead in list(_live) if ahead.process == os.getpid()]
    for ahead in mine:
        ahead.abandon()
        if any(thread.is_alive() for thread in ahead.threads):
            ahead.inner.close()
    for ahead in mine:
        ahead.join(_CLOSING_S)


class _Run(Generic[Prepared]):
    """State shared by an iterator and its front: the threads, and whether the epoch has ended.

    `set_epoch` replaces the threads if no batch was handed out yet.
    """

    def __init__(self, ahead: _Ahead[Prepared]) -> None:
        self.ahead: _Ahead[Prepared] | None = ahead
        self.over = False

    def abandon(self) -> None:
        if self.ahead is not None:
            self.ahead.abandon()
            self.ahead = None


class Loop(Generic[Item]):
    """An iterator over one epoch of a front."""

    def __init__(self, front: Front[Any, Item], run: _Run[Any]) -> None:
        self._front = front
        self._run = run
        # At exit of the interpreter, `_end_all` does it.
        weakref.finalize(self, run.abandon).atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        return self._front._next(self._run)


class Front(Generic[Prepared, Item]):
    """Another loader's batches, each made into something, in the same order.

    A loop is an epoch, as with `forebay.Loader`, and states are exact: they count what was
    handed out, whatever was prepared ahead. Threads may share a loop.
    """

    def __init__(self, inner: Source, *, threads: int = 1, ahead: int = 2, copies: bool = False) -> None:
        if not hasattr(inner, "load_state_dict"):
            raise TypeError(f"expected a forebay.Loader, or what was made of one, found a value of type {type(inner).__name__}")
        if threads < 1:
            raise OptionError(f"threads is {threads}: at least one has to do the work")
        if ahead < 0:
            raise OptionError(f"{ahead} batches ahead: 0 or more")
        self._inner = inner
        self._process = os.getpid()
        self._threads = threads
        # Batches in progress or ready; 0 prepares each batch when it is requested.
        self._depth = max(threads, ahead) if ahead else 0
        # Whether `_prepare` copies to a device, which `stats` then looks at.
        self._copies = copies and self._depth > 0
        self._clock = _Clock()
        # Re-entrant: the collector may end a loop of this front at any point.
        self._changed = threading.Condition(threading.RLock())
        # The newest loop, as far as this object has to do with it.
        self._run: _Run[Prepared] | None = None
        # Where the trainer stands; None is where the loader behind stands.
        self._state: dict[str, Any] | None = None
        # Whether a part of the newest loop was handed out, and more is left of it.
        self._running = False
        # The epoch of the next loop, where it was set while one was running.
        self._next_epoch: int | None = None
        self._closed = False

    # What a class that derives from this one decides.

    def _prepare(self, batch: Any) -> Prepared:
        """Makes what will be handed out, ahead of time, on one of the front's threads."""
        raise NotImplementedError

    def _deliver(self, prepared: Prepared) -> Item:
        """Hands it out, on the thread that asked for it."""
        raise NotImplementedError

    # Loops.

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._inner)

    def __iter__(self) -> Iterator[Item]:
        self._check_open()
        if not self._depth:
            return map(lambda batch: self._deliver(self._prepare(batch)), self._inner)
        with self._changed:
            self._halt()
            if self._running and self._state is not None:
                epoch = self._state["epoch"] + 1 if self._next_epoch is None else self._next_epoch
                self._state = {**self._state, "epoch": epoch, "position": 0}
            self._running, self._next_epoch = False, None
            self._run = _Run(self._start())
            return Loop(self, self._run)

    def _start(self) -> _Ahead[Prepared]:
        """Threads that prepare what comes after the state."""
        if self._state is not None:
            # Where the other loader stands already this throws nothing away.
            self._inner.load_state_dict(self._state)
        self._state = self._inner.state_dict()
        return _Ahead(self._changed, self._inner, self._prepare, self._threads, self._depth, self._clock)

    def _next(self, run: _Run[Prepared]) -> Item:
        """The next item of a loop."""
        if run.over:
            raise StopIteration
        self._check_process()
        clock, asked = self._clock, time.perf_counter()
        with self._changed:
            while True:
                if run.over:
                    raise StopIteration
                if self._closed:
                    raise ClosedError("the loader is closed: make another one to go on")
                if self._run is not run:
                    raise StateError("this loop is over: a newer one or load_state_dict() moved the loader")
                if run.ahead is None:
                    run.ahead = self._start()
                ahead = run.ahead
                if found := ahead.store.get(ahead.handed):
                    break
                self._changed.wait()
            result, state = found
            if isinstance(result, _Over):
                run.over = True
                self._end(state)
                raise StopIteration
            if isinstance(result, _Failed):
                # Stays in store: nothing after it can be handed out in order.
                raise result.error
            del ahead.store[ahead.handed]
            ahead.handed += 1
            self._state = state
            self._running = True
            if state["position"] == 0:
                # It was the last one: the state is of the next epoch.
                run.over = True
                self._end(state)
            if clock.handed_at is not None:
                clock.trainer_busy += asked - clock.handed_at
            clock.handed_at = time.perf_counter()
            clock.trainer_starved += clock.handed_at - asked
            clock.waits.append(clock.handed_at - asked)
            self._changed.notify_all()
        return self._deliver(result)

    def _end(self, state: dict[str, Any]) -> None:
        """The newest loop has everything of its epoch; `state` is the one after it."""
        wanted, self._next_epoch = self._next_epoch, None
        self._running = False
        if wanted is not None and wanted != state["epoch"]:
            state = {**state, "epoch": wanted, "position": 0}
        self._state = state

    def _halt(self) -> None:
        """Ends the threads that work for a loop, if there are any."""
        if self._run is not None:
            self._run.abandon()
        self._changed.notify_all()

    # The same as of the loader behind.

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ForkError(
                "this loader was made in the process that this one was forked from, and its "
                "threads did not come along: make the Loader in the process that uses it, or "
                "start processes with multiprocessing.get_context('spawn')"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self.closed:
            raise ClosedError("the loader is closed: make another one to go on")

    @property
    def source(self) -> str:
        """The source of the batches, as given."""
        return self._inner.source

    @property
    def fingerprint(self) -> str:
        """The identifier of the dataset."""
        return self._inner.fingerprint

    @property
    def sample_fingerprint(self) -> str | None:
        """The identity of its samples: their keys, labels and order. A conversion that keeps them keeps it. None where it
        is not known."""
        return self._inner.sample_fingerprint

    @property
    def split(self) -> str:
        """Name of the split."""
        return self._inner.split

    @property
    def records(self) -> int:
        """Records of the split."""
        return self._inner.records

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch, all ranks together and without padding: `records`, if no option says otherwise."""
        return self._inner.epoch_samples

    @property
    def classes(self) -> list[str]:
        """The names of classes in the order of the labels of batches, from `label_base` on; empty where not known."""
        return self._inner.classes

    @property
    def label_base(self) -> int | None:
        """The label of the first class in batches: 0, if the option of that name does not say otherwise."""
        return self._inner.label_base

    @property
    def batch_size(self) -> int:
        """Samples in a batch of this rank."""
        return self._inner.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the short batch at the end of an epoch is left out."""
        return self._inner.drop_last

    @property
    def rank(self) -> int:
        """This process among those that share an epoch: see `forebay.Loader.rank`."""
        return self._inner.rank

    @property
    def world_size(self) -> int:
        """How many processes share an epoch."""
        return self._inner.world_size

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._place("epoch")

    @property
    def position(self) -> int:
        """How many samples of that epoch all ranks together were given."""
        return self._place("position")

    def _place(self, name: str) -> int:
        self._check_process()
        with self._changed:
            # Not of the other loader's state, which wants the rank to be known.
            return int(getattr(self._inner, name) if self._state is None else self._state[name])

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        self._check_process()
        return self._closed

    @property
    def sampler(self) -> Sampler:
        """An object with `set_epoch`, where frameworks look for one."""
        return Sampler(self)

    @property
    def batch_sampler(self) -> Any:
        """None: batches are made here, and `sampler` has the epochs."""
        return None

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop one over `epoch`: see `forebay.Loader.set_epoch`."""
        self._check_open()
        epoch = operator.index(epoch)
        if not 0 <= epoch < 1 << 64:
            raise OptionError(f"option epoch is {epoch}: expected a whole number from 0 to 2^64 - 1")
        with self._changed:
            if self._running:
                self._next_epoch = epoch
            elif self._state is None:
                self._inner.set_epoch(epoch)
            elif self._state["epoch"] != epoch:
                # A loop that has begun, if there is one, starts there.
                self._halt()
                self._state = {**self._state, "epoch": epoch, "position": 0}

    def state_dict(self) -> dict[str, Any]:
        """A few numbers that tell where the loader stands.

        Counts batches that were handed out, not those that were prepared. The same as
        `forebay.Loader` gives: a state may be loaded into either.

        Returns
        -------
        dict
            See `forebay.Loader.state_dict`.
        """
        self._check_process()
        with self._changed:
            return self._inner.state_dict() if self._state is None else dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another loader stood: see `forebay.Loader.load_state_dict`."""
        self._check_open()
        with self._changed:
            self._inner.load_state_dict(state)
            self._halt()
            self._run = self._state = self._next_epoch = None
            self._running = False

    def epoch_digest(self) -> EpochDigest:
        """A digest of the delivered part of the last batch's epoch.

        Returns
        -------
        EpochDigest
            See `forebay.Loader.epoch_digest`.
        """
        return of_state(self.state_dict())

    def stats(self) -> Any:
        """Times and waits of each stage so far.

        Returns
        -------
        dict
            See `forebay.Loader.stats`; "wait_s" is how long this object's threads waited, "wait_p50_s" and "wait_p99_s" how
            long its own loops did.
        """
        return self._stats(None)

    def _stats(self, copies: tuple[float, float, float, float] | None) -> Any:
        """The same; `copies` are the times of a front of this one that copies to a device."""
        with self._changed:
            if self._copies:
                copies = self._clock.read()
            waits = sorted(self._clock.waits)
        inner: Any = self._inner
        stats = inner._stats(copies) if hasattr(inner, "_stats") else inner.stats()
        if waits:
            most = len(waits) - 1
            stats |= {"wait_p50_s": waits[most // 2], "wait_p99_s": waits[most * 99 // 100]}
        return stats

    def close(self) -> None:
        """Stop threads and connections: see `forebay.Loader.close`."""
        self._check_process()
        with self._changed:
            ahead = None if self._run is None else self._run.ahead
            self._closed = True
            self._halt()
        self._inner.close()
        if ahead is not None:
            ahead.join(_CLOSING_S)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        trace: TracebackType | None = None,
        /,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a loader has threads and connections and cannot be pickled: make it in the "
            "process that uses it, and carry state_dict() over"
        )

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"{kind}({self._inner!r})"
