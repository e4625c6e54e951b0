"""Ctrl-C where a store stands still: it is seen at once, and nothing goes on asking the store."""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forebay
from forebay import checkpoint
from test_storage import Handler, Web
from test_waiting import HEARS

# Timeout of requests in seconds: what ends earlier was interrupted.
PATIENT = {"timeout": "3600", "outage_timeout": "3600"}
# Nothing takes this long unless it hangs.
LONG = 60.0


class StallingHandler(Handler):
    """A server that can withhold its responses, and records clients that disconnect."""

    server: Stalling

    def do_PUT(self) -> None:
        self.answer(True)

    def do_POST(self) -> None:
        self.answer(True)

    def do_DELETE(self) -> None:
        self.answer(True)

    def answer(self, with_body: bool) -> None:
        stall = self.server.stall
        if stall is None:
            return super().answer(with_body)
        with self.server.changed:
            self.server.waiting += 1
            self.server.changed.notify_all()
        stall()
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            # What was sent along comes first; nothing more does until the other side closes.
            while self.server.stall and not (select.select([self.connection], [], [], 0.05)[0] and not self.connection.recv(1 << 16)):
                pass
        with self.server.changed:
            self.server.waiting -= 1
            self.server.changed.notify_all()


class Stalling(Web):
    """A web server of a directory that can stand still: each request calls `stall` then, and waits until there is none."""

    stall: Callable[[], None] | None

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.RequestHandlerClass = StallingHandler
        self.changed = threading.Condition()
        self.waiting = 0
        self.stall = None

    def wait(self, waiting: Callable[[int], bool]) -> bool:
        """Whether as many requests wait for an answer, sooner or later."""
        with self.changed:
            return self.changed.wait_for(lambda: waiting(self.waiting), LONG)


@pytest.fixture
def web(packed: dict[str, pathlib.Path]) -> Iterator[Stalling]:
    server = Stalling(packed["indexed"])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def hears(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FOREBAY_STAGING", os.fspath(tmp_path / "stage"))
    # Programs that a shell starts in the background ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(web: Stalling, use: Callable[[], object], asks: bool = True) -> None:
    """Sends Ctrl-C at the first request to the store, or after a moment if there were requests before."""
    once = threading.Lock()

    def press() -> None:
        if once.acquire(blocking=False):
            _thread.interrupt_main()

    web.stall = press if asks else lambda: None
    with pytest.raises(KeyboardInterrupt):
        if not asks:
            threading.Timer(0.1, press).start()
        use()


def bucket(web: Stalling) -> dict[str, str]:
    """How the server is a bucket."""
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region": "us-east-1"}
    return {"endpoint": web.url, **keys, **PATIENT}


CALLS: dict[str, Callable[[Stalling], object]] = {
    "open": lambda web: forebay.open(web.url, storage_options=PATIENT),
    "loader": lambda web: forebay.Loader(web.url, transform=forebay.TrainTransform(32), storage_options=PATIENT, timeout=None),
    "mix": lambda web: forebay.Loader(forebay.Mix([str(web.root), web.url]), transform=forebay.TrainTransform(32), storage_options=PATIENT),
    "load": lambda web: checkpoint.load("s3://bucket/run/step-1", storage_options=bucket(web)),
    "metadata": lambda web: checkpoint.metadata("s3://bucket/run/step-1", storage_options=bucket(web)),
    "latest": lambda web: checkpoint.latest("s3://bucket/run", storage_options=bucket(web)),
    "list": lambda web: checkpoint.list("s3://bucket/run", storage_options=bucket(web)),
    "pin": lambda web: checkpoint.pin("s3://bucket/run/step-1", storage_options=bucket(web)),
    "unpin": lambda web: checkpoint.unpin("s3://bucket/run/step-1", storage_options=bucket(web)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_ends_and_its_requests_with_it(call: str, web: Stalling) -> None:
    interrupted(web, lambda: CALLS[call](web))
    assert web.wait(lambda waiting: waiting == 0)


def test_an_epoch_ends_and_its_reads_with_the_loader(web: Stalling) -> None:
    loader = forebay.Loader(web.url, batch_size=4, transform=forebay.TrainTransform(32), storage_options=PATIENT, timeout=None)

    def epochs() -> None:
        while True:
            for _ in loader:
                pass

    assert len(next(iter(loader)).labels) == 4
    interrupted(web, epochs)
    # The loader is as good as before: it waits for what it asked for.
    assert web.wait(lambda waiting: waiting > 0)
    loader.close()
    assert web.wait(lambda waiting: waiting == 0)
    with pytest.raises(forebay.ClosedError):
        next(iter(loader))


def test_a_loader_that_nobody_has_asks_for_nothing(web: Stalling) -> None:
    loader = forebay.Loader(web.url, batch_size=4, transform=forebay.TrainTransform(32), storage_options=PATIENT, timeout=None)
    batches = iter(loader)
    next(batches)
    interrupted(web, lambda: list(batches) and [list(loader) for _ in range(1000)])
    assert web.wait(lambda waiting: waiting > 0)
    del loader, batches
    gc.collect()
    assert web.wait(lambda waiting: waiting == 0)


def test_records_can_be_read_again(web: Stalling, packed: dict[str, pathlib.Path]) -> None:
    local = forebay.open(packed["indexed"])
    far = forebay.open(web.url, storage_options=PATIENT)
    record, records = far[0], iter(far)
    interrupted(web, lambda: far[1])
    interrupted(web, lambda: record.key, asks=False)
    interrupted(web, lambda: repr(record), asks=False)
    # The second finds the iterator in the hands of the first, which was left to itself.
    for _ in range(2):
        interrupted(web, lambda: next(records), asks=False)
    assert records.__length_hint__() == len(local)
    web.stall = None
    # Nothing requested a stop.
    assert far[3].data == local[3].data
    assert record.key == local[0].key
    assert [record.data for record in far] == [record.data for record in local]
    interrupted(web, lambda: far[2])
    del far, record, records
    gc.collect()
    assert web.wait(lambda waiting: waiting == 0)


def test_a_process_that_saves_ends(web: Stalling, tmp_path: pathlib.Path) -> None:
    code = HEARS + (
        "import sys, forebay\n"
        "names = ['endpoint', 'timeout', 'aws_access_key_id', 'aws_secret_access_key', 'region']\n"
        "options = dict(zip(names, [sys.argv[1], '3600', 'key', 'secret', 'us-east-1']))\n"
        "try:\n"
        "    forebay.checkpoint.save(b'x', 's3://bucket/run/step-1', storage_options=options).wait()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    web.stall = lambda: None
    with subprocess.Popen(
        [sys.executable, "-c", code, web.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert web.wait(lambda waiting: waiting > 0)
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=LONG)
    assert (output, process.returncode) == ("interrupted\n", 0), error
    assert "1 checkpoint(s) are safe in" in error
    assert web.wait(lambda waiting: waiting == 0)
