"""Loaders in front of a loader: what the adapters share, and the threads that work ahead.

A front takes the batches of another loader, makes something of each, and hands that out in
the same order. It owns the read-ahead and where the trainer stands: batches that were
prepared and not handed out do not count. What is made of a batch is up to the classes that
derive from it; where batches come from is the other loader's.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from forebay._digest import EpochDigest, of_state
from forebay._errors import ClosedError, ForkError, OptionError, StateError

if TYPE_CHECKING:
    from typing_extensions import Self

Prepared = TypeVar("Prepared")
Item = TypeVar("Item", covariant=True)

# How long `close` and the end of the interpreter wait for threads that are in the midst of
# somebody else's function, in seconds.
_CLOSING_S = 10.0


class Source(Protocol):
    """What a front asks of the loader behind it; `forebay.Loader` and every front have it."""

    @property
    def source(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def records(self) -> int: ...
    @property
    def epoch_samples(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
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
    """What was raised in place of a batch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Over:
    """The end of the epoch."""


class _Ahead(Generic[Prepared]):
    """Threads that take batches in order, prepare them, and keep a few in store.

    Does not know the loop that takes from it: a loop that nobody holds any more ends the
    threads.
    """

    def __init__(
        self,
        changed: threading.Condition,
        inner: Source,
        prepare: Callable[[Any], Prepared],
        threads: int,
        depth: int,
    ) -> None:
        self.process = os.getpid()
        self.inner = inner
        self.batches = iter(inner)
        self.prepare = prepare
        self.changed = changed
        # Held while a batch and the state after it are taken: one thread at a time.
        self.taking = threading.Lock()
        self.depth = depth
        # By number, what follows for the loop, and the state once it was handed out.
        self.store: dict[int, tuple[Prepared | _Failed | _Over, dict[str, Any]]] = {}
        self.taken = 0
        self.handed = 0
        # No thread takes another batch: the epoch is over or failed, or nobody wants it.
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
                batch, end, state = self._take()
            if end is None:
                try:
                    end = self.prepare(batch)
                except BaseException as error:
                    end = _Failed(error)
            # A thread that waits for room must not keep what it handed over alive.
            del batch
            with self.changed:
                if not self.unwanted:
                    self.store[number] = (end, state)
                self.changed.notify_all()
            del end

    def _room(self) -> int | None:
        """The number of the next batch to take, once there is room for it."""
        with self.changed:
            while not self.stopped and self.taken - self.handed >= self.depth:
                # `abandon` may not have been able to wake anybody.
                self.changed.wait(1.0)
            if self.unwanted:
                self.store.clear()
            if self.stopped:
                return None
            self.taken += 1
            return self.taken - 1

    def _take(self) -> tuple[Any, Prepared | _Failed | _Over | None, dict[str, Any]]:
        """The next batch, or what there is instead of it, and the state after it."""
        try:
            return next(self.batches), None, self.inner.state_dict()
        except StopIteration:
            self.stopped = True
            return None, _Over(), self.inner.state_dict()
        except BaseException as error:
            self.stopped = True
            return None, _Failed(error), {}

    def abandon(self) -> None:
        """Lets the threads end after what they are doing, and lets go of what is in store.

        The collector calls it, at any point of any thread: it waits for nothing.
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
        """Waits for the threads to end, but not for ever."""
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


_live: weakref.WeakSet[_Ahead[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # The interpreter kills daemon threads where they are, and inside native code that ends
    # the process with an error. Here, before that, they can still end by themselves.
    mine = [ahead for ahead in list(_live) if ahead.process == os.getpid()]
    for ahead in mine:
        ahead.abandon()
        if any(thread.is_alive() for thread in ahead.threads):
            ahead.inner.close()
    for ahead in mine:
        ahead.join(_CLOSING_S)


class Loop(Generic[Item]):
    """One loop over a front."""

    def __init__(self, front: Front[Any, Item], ahead: _Ahead[Any]) -> None:
        self._front = front
        self._ahead = ahead
        # At the end of the interpreter `_end_all` does it.
        weakref.finalize(self, ahead.abandon).atexit = False
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if self._over:
            raise StopIteration
        try:
            return self._front._next(self._ahead)
        except StopIteration:
            self._over = True
            raise


class Front(Generic[Prepared, Item]):
    """Another loader's batches, each made into something, in the same order.

    A loop is an epoch, as with `forebay.Loader`, and states are exact: they count what was
    handed out, whatever was prepared ahead. Threads may share a loop.
    """

    def __init__(self, inner: Source, *, threads: int = 1, ahead: int = 2) -> None:
        if not hasattr(inner, "load_state_dict"):
            raise TypeError(f"expected a forebay.Loader, or what was made of one, found a value of type {type(inner).__name__}")
        if threads < 1:
            raise OptionError(f"threads is {threads}: at least one has to do the work")
        if ahead < 0:
            raise OptionError(f"{ahead} batches ahead: 0 or more")
        self._inner = inner
        self._process = os.getpid()
        self._threads = threads
        # Batches in work or in store; 0 is to prepare each when it is asked for.
        self._depth = max(threads, ahead) if ahead else 0
        # Re-entrant: the collector may end a loop of this front at any point.
        self._changed = threading.Condition(threading.RLock())
        self._ahead: _Ahead[Prepared] | None = None
        # Where the trainer stands, and whether a loop left an epoch part-way.
        self._state = inner.state_dict()
        self._under_way = False
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
            if self._under_way:
                self._move({**self._state, "epoch": self._state["epoch"] + 1, "position": 0})
            self._halt()
            # Where the other loader stands already this throws nothing away.
            self._inner.load_state_dict(self._state)
            self._ahead = _Ahead(
                self._changed, self._inner, self._prepare, self._threads, self._depth
            )
            return Loop(self, self._ahead)

    def _next(self, ahead: _Ahead[Prepared]) -> Item:
        """What follows for the loop that takes from `ahead`."""
        self._check_process()
        with self._changed:
            while True:
                if self._closed:
                    raise ClosedError("the loader is closed: make another one to go on")
                if self._ahead is not ahead:
                    raise StateError(
                        "this loop is over: a newer one, set_epoch() or load_state_dict() "
                        "moved the loader"
                    )
                if found := ahead.store.get(ahead.handed):
                    break
                self._changed.wait()
            result, state = found
            if isinstance(result, _Over):
                # Stays in store, for every thread that shares the loop.
                if self._under_way or self._state != state:
                    self._move(state)
                raise StopIteration
            if isinstance(result, _Failed):
                # Stays in store as well: nothing after it can be handed out in order.
                raise result.error
            del ahead.store[ahead.handed]
            ahead.handed += 1
            self._state = state
            self._under_way = True
            self._changed.notify_all()
        return self._deliver(result)

    def _move(self, state: dict[str, Any]) -> None:
        self._state = state
        self._under_way = False

    def _halt(self) -> None:
        """Ends the loop that is under way, if there is one."""
        if self._ahead is not None:
            self._ahead.abandon()
            self._ahead = None
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
        """Where batches come from, as given."""
        return self._inner.source

    @property
    def fingerprint(self) -> str:
        """What tells the dataset apart from every other."""
        return self._inner.fingerprint

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
    def batch_size(self) -> int:
        """Samples in a batch of this rank."""
        return self._inner.batch_size

    @property
    def rank(self) -> int:
        """This process among those that share an epoch."""
        return self._inner.rank

    @property
    def world_size(self) -> int:
        """How many processes share an epoch."""
        return self._inner.world_size

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return int(self.state_dict()["epoch"])

    @property
    def position(self) -> int:
        """How many samples of that epoch all ranks together were given."""
        return int(self.state_dict()["position"])

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        self._check_process()
        return self._closed

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop one over `epoch`, from 0: see `forebay.Loader.set_epoch`."""
        self._check_open()
        with self._changed:
            if not self._depth:
                self._inner.set_epoch(epoch)
                return
            self._halt()
            self._inner.set_epoch(epoch)
            if self._under_way or self._state["epoch"] != epoch:
                self._move({**self._state, "epoch": epoch, "position": 0})

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
        if not self._depth:
            return self._inner.state_dict()
        with self._changed:
            return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another loader stood: see `forebay.Loader.load_state_dict`."""
        self._check_open()
        with self._changed:
            self._inner.load_state_dict(state)
            self._halt()
            self._move(self._inner.state_dict())

    def epoch_digest(self) -> EpochDigest:
        """What was handed out of the epoch of the last batch.

        Returns
        -------
        EpochDigest
            See `forebay.Loader.epoch_digest`.
        """
        return of_state(self.state_dict())

    def stats(self) -> Any:
        """Where the time went so far.

        Returns
        -------
        dict
            See `forebay.Loader.stats`; "wait_s" is how long this object's threads waited.
        """
        return self._inner.stats()

    def close(self) -> None:
        """Stop threads and connections: see `forebay.Loader.close`."""
        self._check_process()
        with self._changed:
            ahead, self._closed = self._ahead, True
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
