"""Batches in memory that a server shares with this process, and processes that are killed meanwhile."""

from __future__ import annotations

import gc
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

import forebay
from conftest import Serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")

LONG = 60.0


def loader(url: str, **options: object) -> forebay.Loader:
    transform = forebay.EvalTransform(64, resize=72)
    return forebay.Loader(url, batch_size=8, transform=transform, **options)  # type: ignore[arg-type]


def content(batch: forebay.Batch) -> tuple[bytes, bytes]:
    return batch.images.tobytes(), batch.samples.tobytes()


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def traces(pid: int | str = "self") -> tuple[int, int]:
    """Maps of batches' memory and open files of a process."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().count("forebay-batch")
    return maps, len(os.listdir(f"/proc/{pid}/fd"))


class Server:
    """`forebay serve` in a process of its own, which can be killed and started again."""

    def __init__(self, path: pathlib.Path, *options: str, listen: str = "127.0.0.1:0") -> None:
        command = ["forebay", "serve", os.fspath(path), "--listen", listen, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = None
        for line in self.process.stdout:
            if found := re.search(r"forebay://([^/]+)/\S+", line):
                break
        assert found, f"forebay serve ended with {self.process.wait()}"
        self.url, self.address = found.group(), found.group(1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_the_transport_is_told(serve: Serve, packed: dict[str, pathlib.Path]) -> None:
    url = serve(packed["indexed"])
    with loader(url) as it:
        assert it.stats()["transport"] == "shm"
        assert "transport='shm'" in repr(it)
    with loader(url, transport="tcp") as it:
        assert it.stats()["transport"] == "tcp"
    with loader(os.fspath(packed["indexed"])) as it:
        assert it.stats()["transport"] is None
        assert "transport" not in repr(it)


def test_several_connections(serve: Serve, packed: dict[str, pathlib.Path]) -> None:
    url = serve(packed["indexed"])

    def batches(connections: int) -> list[tuple[bytes, bytes]]:
        # 1.2 MB each: smaller ones do not come in parts.
        with forebay.Loader(url, batch_size=8, transform=forebay.TrainTransform(32), transport="tcp", connections=connections) as it:
            return [content(batch) for batch in it]

    assert batches(3) == batches(1)
    with pytest.raises(forebay.OptionError, match="1 to 16"):
        batches(17)


def test_wishes_that_cannot_be(
    serve: Serve, packed: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(packed["indexed"])
    with pytest.raises(forebay.OptionError, match="auto, shm or tcp"):
        loader(url, transport="pigeon")
    with pytest.raises(forebay.OptionError, match="made in this process"):
        loader(os.fspath(packed["indexed"]), transport="shm")
    monkeypatch.setenv("FOREBAY_TRANSPORT", "pigeon")
    with pytest.raises(forebay.OptionError, match="FOREBAY_TRANSPORT"):
        loader(url)
    server = Server(packed["indexed"], "--shared-memory", "0")
    try:
        with pytest.raises(forebay.ServerError, match="the server offers none"):
            loader(server.url, transport="shm")
        with loader(server.url, transport="auto") as it:
            assert it.stats()["transport"] == "tcp"
    finally:
        server.kill()


def test_arrays_are_the_memory_itself_and_bring_it_back(
    serve: Serve, packed: dict[str, pathlib.Path]
) -> None:
    before = traces()
    with loader(serve(packed["indexed"]), transport="shm") as it:
        addresses = set()
        for _ in range(20):
            for batch in it:
                addresses.add(batch.images.__array_interface__["data"][0])
                batch.images[...] = 7  # the buffer is writable
        assert len(addresses) <= 12, "slots are used again"
        maps = pathlib.Path("/proc/self/maps").read_text()
        starts = {int(line.split("-")[0], 16) for line in maps.splitlines() if "forebay-batch" in line}
        assert addresses <= starts
    del batch
    gc.collect()
    # Fewer, where an earlier test's connections were still closing.
    wait_until(lambda: traces() <= before, "memory or files are left")


def test_servers_that_are_killed_at_any_moment(packed: dict[str, pathlib.Path]) -> None:
    rng = random.Random(11)
    with loader(os.fspath(packed["indexed"])) as it:
        expected = [content(batch) for _ in range(3) for batch in it]
    server = Server(packed["indexed"])
    before = traces()
    held: list[tuple[forebay.Batch, tuple[bytes, bytes]]] = []
    found: list[tuple[bytes, bytes]] = []
    kills = 0
    with loader(server.url, transport="shm") as it:
        for _ in range(3):
            for batch in it:
                found.append(content(batch))
                held.append((batch, found[-1]))
                if rng.random() < 0.25:
                    server.kill()
                    kills += 1
                    assert all(content(batch) == was for batch, was in held), "what was handed out changed"
                    server = Server(packed["indexed"], listen=server.address)
                if len(held) > 9:
                    del held[: rng.randrange(9)]
        assert found == expected and kills
        assert it.stats()["transport"] == "shm"
        server.kill()
    assert all(content(batch) == was for batch, was in held)
    held.clear()
    del batch
    gc.collect()
    wait_until(lambda: traces() <= before, "memory or files are left")


CLIENT = """
import sys, forebay
held = []
with forebay.Loader(sys.argv[1], batch_size=8, transport="shm", transform=forebay.EvalTransform(64, resize=72), shuffle=True, drop_last=True) as it:
    while True:
        for batch in it:
            held.append(batch)
            del held[:-5]
            print(batch.step, flush=True)
"""


def test_clients_that_are_killed_at_any_moment(packed: dict[str, pathlib.Path]) -> None:
    rng = random.Random(12)
    server = Server(packed["indexed"])
    pid = server.process.pid
    memory = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    with loader(server.url, transport="shm") as it:
        list(it)
    # The last connection may take a moment to go.
    wait_until(lambda: traces(pid)[0] == 0, "memory of a client that left")
    before = traces(pid)
    for _ in range(6):
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, server.url], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        for _ in range(rng.randrange(1, 12)):
            assert client.stdout.readline().strip().isdigit()
        assert traces(pid)[0] > 0
        client.send_signal(signal.SIGKILL)
        client.wait()
        client.stdout.close()
        wait_until(lambda: traces(pid) <= before, f"{traces(pid)} is not {before}")
    if os.path.isdir("/dev/shm"):
        assert set(os.listdir("/dev/shm")) <= memory
    with loader(server.url, transport="shm") as it:
        assert len(list(it)) == len(it)
    server.kill()
