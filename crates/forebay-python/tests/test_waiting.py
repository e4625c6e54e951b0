"""Waits end by Ctrl-C, a timeout or close; a forked process gets an error with advice."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import forebay
from conftest import Serve, python
from test_loader import content, epochs, loader

# Programs that a shell starts in the background ignore SIGINT; a trainer at a terminal does not.
HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"

# A trainer that waits for a server which accepts and then says nothing.
TRAINER = HEARS + """
import sys, forebay
print("waiting", flush=True)
try:
    for batch in forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.TrainTransform(32)):
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("served", [False, True])
def test_the_trainer_of_the_verdict_is_the_loop(packed: dict[str, pathlib.Path], serve: Serve, served: bool) -> None:
    """The thread that takes batches ahead of the loop waits for all of them; the loop does not."""
    source = serve(packed["indexed"]) if served else packed["indexed"]
    with loader(source, batch_size=2, threads=None if served else 1) as it:
        for _ in it:
            time.sleep(0.005)
        stats = it.stats()
    trainer = stats["stages"]["trainer"]
    assert trainer["starved_s"] == pytest.approx(min(stats["wait_s"], trainer["starved_s"] + trainer["busy_s"]), abs=1e-6)


@pytest.mark.parametrize("command", ["trainer", "command", "module"])
def test_ctrl_c_ends_a_wait(command: str, packed: dict[str, pathlib.Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"forebay://127.0.0.1:{silent.getsockname()[1]}/x"
        listen = [os.fspath(packed["indexed"]), "--listen", "127.0.0.1:0"]
        words = {
            "trainer": [sys.executable, "-c", TRAINER, url],
            "command": ["forebay", "serve", *listen],
            "module": [sys.executable, "-m", "forebay", "serve", *listen],
        }[command]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            if command == "trainer":
                connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=30)
    if command == "trainer":
        connection.close()
        assert output == "interrupted\n"
    else:
        assert process.returncode in (0, 130, -signal.SIGINT), output


def test_ctrl_c_in_the_midst_of_an_epoch(source: str) -> None:
    code = HEARS + (
        "import sys, os, threading, forebay\n"
        "loader = forebay.Loader(sys.argv[1], batch_size=2, transform=forebay.TrainTransform(224))\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    while True:\n"
        "        for batch in loader: pass\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "batch = next(iter(loader))\n"
        "print(batch.images.shape)\n"
    )
    done = python(code, source)
    assert done.stdout == "interrupted\n(2, 224, 224, 3)\n", done.stderr


def test_a_wait_has_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(forebay.TimeoutError) as caught:
            forebay.Loader(f"forebay://{address}/x", batch_size=8, timeout=0.3)
    assert address in str(caught.value)


def test_close_wakes_a_waiting_thread(source: str) -> None:
    it = loader(source, batch_size=1)
    started = threading.Event()

    def consume() -> str:
        try:
            while True:
                for _ in it:
                    started.set()
        except forebay.ClosedError:
            return "closed"

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(consume)
        assert started.wait(60)
        it.close()
        assert future.result(timeout=60) == "closed"


def test_threads_share_an_epoch(source: str) -> None:
    whole = epochs(source, batch_size=2)
    with loader(source, batch_size=2) as it:
        batches = iter(it)
        with ThreadPoolExecutor(4) as pool:
            parts = pool.map(lambda _: [content(batch) for batch in batches], range(4))
            got = [batch for part in parts for batch in part]
    assert sorted(got) == sorted(whole)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_refused_with_the_remedy(source: str) -> None:
    code = (
        "import os, sys, warnings, forebay\n"
        "warnings.simplefilter('ignore')\n"
        "loader = forebay.Loader(sys.argv[1], batch_size=4, transform=forebay.TrainTransform(32))\n"
        "batches = iter(loader)\n"
        "batch = next(batches)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for use in (lambda: next(batches), lambda: iter(loader), loader.close):\n"
        "        try:\n"
        "            use()\n"
        "        except forebay.ForkError as error:\n"
        "            print(error)\n"
        "    assert batch.images.any()\n"
        "    del batch, batches, loader\n"
        "    sys.exit(7)\n"
        "_, status = os.waitpid(child, 0)\n"
        "assert os.waitstatus_to_exitcode(status) == 7, status\n"
        "print(sum(1 for _ in batches))\n"
    )
    done = python(code, source)
    assert done.returncode == 0, done.stderr
    *refusals, left = done.stdout.splitlines()
    assert len(refusals) == 3 and all("spawn" in line for line in refusals), done.stdout
    assert left == "9"


def _first(source: str) -> bytes:
    with loader(source) as it:
        return next(iter(it)).images.tobytes()


def test_spawned_processes_make_their_own_loader(source: str) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        there = pool.map(_first, [source] * 2, chunksize=1)
    assert there == [_first(source)] * 2
