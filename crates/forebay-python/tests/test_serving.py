"""Servers with tokens, TLS and jobs, as a trainer meets them."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import pickle
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forebay

TOKEN = "marked-0123456789abcdef"

Start = Callable[..., dict[str, str]]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Starts `forebay serve` with these arguments and gives its URLs, by name."""
    running: list[subprocess.Popen[str]] = []

    def run(*args: str | os.PathLike[str], count: int = 1) -> dict[str, str]:
        with open(tmp_path / "log", "w") as log:
            server = subprocess.Popen(
                ["forebay", "serve", *(os.fspath(arg) for arg in args), "--listen", "127.0.0.1:0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        running.append(server)
        assert server.stdout is not None
        urls = {}
        for _ in range(count):
            found = re.search(r"forebays?://\S+", server.stdout.readline())
            assert found is not None, (tmp_path / "log").read_text()
            urls[found.group().rsplit("/", 1)[1]] = found.group()
        return urls

    yield run
    for server in running:
        server.terminate()
        server.wait(timeout=60)
        assert server.stdout is not None
        server.stdout.close()


def test_a_token_is_needed_and_never_shown(
    start: Start, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} indexed\n")
    (url,) = start(packed["indexed"], "--token-file", tokens).values()
    options = {"batch_size": 4, "transform": forebay.EvalTransform(32, resize=40)}
    shown = []
    for wrong in ({}, {"token": "other-marked-0123456789"}, {"token": "marked"}):
        with pytest.raises(forebay.Error) as caught:
            forebay.Loader(url, **options, **wrong)  # type: ignore[arg-type]
        expected = forebay.OptionError if wrong.get("token") == "marked" else forebay.AuthError
        assert isinstance(caught.value, expected)
        shown += [str(caught.value), repr(caught.value), repr(vars(caught.value))]
    assert issubclass(forebay.AuthError, PermissionError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    with pytest.raises(forebay.OptionError):
        forebay.Loader(url, token=TOKEN, token_file=tokens)
    with forebay.Loader(url, batch_size=4, transform=forebay.TrainTransform(32), token=TOKEN) as loader:
        next(iter(loader))
        shown += [repr(loader), repr(loader.state_dict()), repr(loader.stats()), loader.source]
    monkeypatch.setenv("FOREBAY_TOKEN", TOKEN)
    forebay.Loader(url, batch_size=4, transform=forebay.TrainTransform(32)).close()
    monkeypatch.delenv("FOREBAY_TOKEN")
    monkeypatch.setenv("FOREBAY_TOKEN_FILE", str(tokens))
    forebay.Loader(url, batch_size=4, transform=forebay.TrainTransform(32)).close()
    shown.append((tmp_path / "log").read_text())
    for text in shown:
        assert "marked" not in text, text


def test_tls_end_to_end(
    start: Start, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    # As docs/how-to/tls-and-tokens.md has it.
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "30", "-subj", "/CN=forebay", "-addext", "subjectAltName=DNS:trainer-data,IP:127.0.0.1",
         "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    (url,) = start(packed["indexed"], "--tls-cert", cert, "--tls-key", key).values()
    assert url.startswith("forebays://")
    with forebay.Loader(url, batch_size=8, transform=forebay.TrainTransform(32), tls_ca=cert, transport="tcp") as loader:
        there = [batch.images.tobytes() for batch in loader]
    with forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32)) as loader:
        here = [batch.images.tobytes() for batch in loader]
    assert there == here
    with pytest.raises(forebay.AuthError, match="not trusted"):
        forebay.Loader(url, tls_ca=_other_authority(tmp_path))
    with pytest.raises(forebay.ServerError, match="forebays://"):
        forebay.Loader(url.replace("forebays://", "forebay://"))
    with pytest.raises(forebay.OptionError, match="forebays://"):
        forebay.Loader(url.replace("forebays://", "forebay://"), tls_ca=cert)
    with pytest.raises(forebay.OptionError, match="nothing.pem"):
        forebay.Loader(url, tls_ca=tmp_path / "nothing.pem")


def _other_authority(directory: pathlib.Path) -> pathlib.Path:
    other = directory / "other.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "30", "-subj", "/CN=other", "-keyout", directory / "other.key", "-out", other],
        check=True, capture_output=True,
    )  # fmt: skip
    return other


CONFIG = """
[datasets.pictures]
path = "{path}"

[jobs.small]
batch_size = 4
world_size = 2
seed = 7
drop_last = false
transform = [
    {{ kind = "RandomResizedCrop", size = 32 }},
    {{ kind = "RandomHorizontalFlip" }},
    {{ kind = "Normalize" }},
]

[jobs.open]
batch_size = 5
label_base = "stored"
transform = {{ kind = "train", size = 32 }}
shuffle = false
"""


def test_ranks_join_a_job(
    start: Start, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "CONFIG.toml"
    config.write_text(CONFIG.format(path=packed["indexed"]))
    urls = start(config, count=3)
    options = {
        "batch_size": 4, "world_size": 2, "seed": 7, "drop_last": False,
        "transform": [forebay.RandomResizedCrop(32), forebay.RandomHorizontalFlip(), forebay.Normalize()],
    }  # fmt: skip
    for rank in range(2):
        with forebay.Loader(packed["indexed"], rank=rank, **options) as loader:  # type: ignore[arg-type]
            here = [batch.images.tobytes() for batch in loader]
        with monkeypatch.context() as environment:
            environment.setenv("RANK", str(rank))
            environment.setenv("WORLD_SIZE", "2")
            with forebay.Loader(urls["small"]) as loader:
                assert (loader.batch_size, loader.rank, loader.world_size) == (4, rank, 2)
                there = [batch.images.tobytes() for batch in loader]
        assert there == here
        # What agrees may be said.
        forebay.Loader(urls["small"], rank=rank, **options).close()  # type: ignore[arg-type]
    with forebay.Loader(urls["small"]) as loader:
        assert (loader.batch_size, loader.records) == (4, 42)
        with pytest.raises(forebay.OptionError, match="the job has 2 ranks, and nothing says which is this one"):
            iter(loader)
        with monkeypatch.context() as environment:
            # A launcher that sets them late.
            environment.setenv("RANK", "1")
            assert (loader.rank, loader.world_size) == (1, 2)
            assert [batch.images.tobytes() for batch in loader] == here
            environment.setenv("WORLD_SIZE", "4")
            with pytest.raises(forebay.OptionError, match="world_size.*has 2, this client asks for 4"):
                len(loader)
    refused = {
        "batch_size": (32, "has 4, this client asks for 32"),
        "seed": (0, "has 7, this client asks for 0"),
        "world_size": (4, "has 2, this client asks for 4"),
        "drop_last": (True, "drop_last: job small has false, this client asks for true"),
        "shuffle": ("full", "shuffle: job small"),
        "dtype": ("float16", "dtype: job small"),
        "layout": ("nchw", "layout: job small"),
        "limit": (3, "limit: job small"),
        "label_base": ("stored", 'label_base: job small has 0, this client asks for "stored"'),
    }
    for name, (value, part) in refused.items():
        with pytest.raises(forebay.OptionError, match=re.escape(part)):
            forebay.Loader(urls["small"], rank=1, **{name: value})  # type: ignore[arg-type]
    # A job that leaves the number of ranks open.
    with forebay.Loader(urls["open"], rank=1, world_size=2) as loader:
        state = loader.state_dict()
        assert (loader.batch_size, loader.world_size, loader.label_base) == (5, 2, 1)
        next(iter(loader))
    with forebay.Loader(urls["open"]) as loader:
        loader.load_state_dict(state)
        batch = next(iter(loader))
        assert batch.samples.tolist() == [0, 1, 2, 3, 4]
        stored = forebay.open(packed["indexed"]).labels
        assert batch.labels.tolist() == stored[:5].tolist()
    with pytest.raises(forebay.OptionError, match='label_base: job open has "stored", this client asks for 0'):
        forebay.Loader(urls["open"], label_base=0)


def test_a_server_that_is_asked_to_go_is_done_soon(packed: dict[str, pathlib.Path]) -> None:
    server = subprocess.Popen(
        ["forebay", "serve", packed["indexed"], "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    with forebay.Loader(url, batch_size=2, transform=forebay.TrainTransform(32)) as loader:
        next(iter(loader))
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    server.stdout.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_that_is_gone_is_no_timeout(transport: str, packed: dict[str, pathlib.Path]) -> None:
    """The time of a trainer that waits for a server that stopped is up: the error says that the server is gone."""
    options: dict[str, Any] = {"batch_size": 2, "transport": transport, "transform": forebay.EvalTransform(32, resize=40)}
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["forebay", "serve", os.fspath(packed["indexed"]), "--listen", address, "--name", "a"]

    def start() -> Any:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    # The loader is made before its server.
    with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.warns(UserWarning, match="trying again"):
        waits = pool.submit(forebay.Loader, f"forebay://{address}/a", timeout=60.0, **options)
        time.sleep(0.5)
        server = start()
        loader = waits.result(timeout=60)
    with loader:
        before = [batch.samples.tolist() for batch in loader]
        server.terminate()
        assert server.wait(timeout=60) == 0
        # It comes back while it is waited for.
        again = start()
        assert len([batch.samples.tolist() for batch in loader]) == len(before)
        again.terminate()
        assert again.wait(timeout=60) == 0
    server = start()
    with pytest.warns(UserWarning, match="trying again"):
        short = forebay.Loader(f"forebay://{address}/a", timeout=3.0, **options)
    with short:
        batches = iter(short)
        next(batches)
        server.terminate()
        assert server.wait(timeout=60) == 0
        with pytest.raises(forebay.ServerError, match="is `forebay serve` running there"):
            for _ in range(3):
                # Batches that have arrived come first.
                for _ in batches:
                    pass
                batches = iter(short)


def test_a_busy_server_is_waited_for(start: Start, packed: dict[str, pathlib.Path]) -> None:
    (url,) = start(packed["indexed"], "--max-connections", "1").values()
    options: dict[str, Any] = {
        "batch_size": 4,
        "transform": forebay.EvalTransform(32, resize=40),
        "transport": "tcp",
    }
    first = forebay.Loader(url, **options)
    with (
        pytest.warns(UserWarning, match="trying again"),
        pytest.raises(forebay.ServerError, match="was busy for .* 1 connections already") as caught,
    ):
        forebay.Loader(url, timeout=1.0, **options)
    assert caught.value.kind == "busy"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.kind) == (str(caught.value), "busy")
    # The place that becomes free is taken. It may be free before the first try, which then warns of nothing.
    with concurrent.futures.ThreadPoolExecutor(1) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        waits = pool.submit(forebay.Loader, url, timeout=60.0, **options)
        assert not waits.done()
        first.close()
        with waits.result(timeout=60) as loader:
            next(iter(loader))


def test_other_protocols_are_named_at_once(start: Start, packed: dict[str, pathlib.Path]) -> None:
    (url,) = start(packed["indexed"]).values()
    web = url.replace("forebay://", "http://")
    began = time.monotonic()
    with pytest.raises(forebay.Error, match="forebay://HOST:PORT/NAME"):
        forebay.Loader(web, batch_size=4, transform=forebay.TrainTransform(32))
    assert time.monotonic() - began < 10, "stores are asked again for 15 s"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(web)
    assert caught.value.code == 400
    with caught.value as answer:
        assert b"Trainers connect with forebay://" in answer.read()
    with pytest.raises(forebay.AuthError, match="it speaks no TLS"):
        forebay.Loader(url.replace("forebay://", "forebays://"), batch_size=4)


def test_words_of_a_server_do_nothing_to_a_terminal() -> None:
    """A server of anyone's, whose first message is an error."""
    message = "no set \x1b]0;owned\x07\x1b[2J\u202e\r\nerror: nothing".encode()
    header = b"\x08\x03\x12" + bytes([len(message)]) + message
    head = b"FBRY\x01" + bytes([8, 0, 0]) + struct.pack("<IQ", len(header), 0)
    frame = head + struct.pack("<I", crc32c(head + header)) + header
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(frame)
                connection.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(forebay.Error) as caught:
            forebay.Loader(f"forebay://127.0.0.1:{listener.getsockname()[1]}/x", batch_size=4)
        thread.join()
    text = str(caught.value)
    assert "owned" in text
    assert text.isprintable(), repr(text)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
