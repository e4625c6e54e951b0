"""A small dataset, packed once, and a server for it.

The images are written here byte by byte: no image library is needed, and what a
record must hold is known.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import threading
import urllib.request
import zlib
from collections.abc import Callable, Iterator

import pytest

# Keras cannot be imported without its backend, which by default is TensorFlow.
if importlib.util.find_spec("tensorflow") is None:
    os.environ.setdefault("KERAS_BACKEND", "jax")

# No files in the user's cache.
os.environ["FOREBAY_SEEK_POINTS"] = "none"

CLASSES = ["n01440764", "n01443537", "n02084071"]
IMAGES_PER_CLASS = 14


def png(width: int, height: int, seed: int) -> bytes:
    """A colour picture whose pixels differ from those of every other seed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = bytearray()
    for y in range(height):
        rows.append(0)  # no filter
        for x in range(width):
            rows += bytes(((x * 3 + seed * 37) % 256, (y * 5 + seed * 11) % 256, (x * y + seed) % 256))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(rows), 1))
        + chunk(b"IEND", b"")
    )


def forebay_command(*args: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Runs the installed command to its end."""
    return subprocess.run(
        ["forebay", *(os.fspath(arg) for arg in args)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The images, by key; the directory is in the environment of `packed`."""
    images = {}
    for label, name in enumerate(CLASSES):
        for number in range(IMAGES_PER_CLASS):
            seed = label * 100 + number
            images[f"{name}/{name}_{number}.png"] = png(60 + number, 48 + label * 9, seed)
    return images


@pytest.fixture(scope="session")
def packed(
    tree: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, pathlib.Path]:
    """The images packed in both formats, by format."""
    root = tmp_path_factory.mktemp("data")
    for key, image in tree.items():
        path = root / "images" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    datasets = {}
    for form in ("tfrecord", "indexed"):
        datasets[form] = root / form
        done = forebay_command(
            "pack", root / "images", datasets[form], "--format", form, "--shards", "3",
            "--split", "train", "--seed", "5",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return datasets


@pytest.fixture(scope="session", params=["tfrecord", "indexed"])
def dataset(request: pytest.FixtureRequest, packed: dict[str, pathlib.Path]) -> pathlib.Path:
    """A dataset of each format."""
    return packed[request.param]


Packed = dict[str, pathlib.Path]
Serve = Callable[[pathlib.Path], str]


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Starts `forebay serve` for a dataset and gives its URL."""
    running: dict[pathlib.Path, tuple[subprocess.Popen[str], str]] = {}

    def start(path: pathlib.Path) -> str:
        if path not in running:
            server = subprocess.Popen(
                ["forebay", "serve", os.fspath(path), "--listen", "127.0.0.1:0"],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert server.stdout is not None
            for line in server.stdout:
                if found := re.search(r"forebay://\S+", line):
                    running[path] = server, found.group()
                    break
            else:
                server.stdout.close()
                pytest.fail(f"forebay serve ended with {server.wait()}")
        return running[path][1]

    yield start
    for server, _ in running.values():
        server.terminate()
        server.wait(timeout=30)
        if server.stdout is not None:
            server.stdout.close()


@pytest.fixture(params=["path", "shm", "tcp"])
def source(
    request: pytest.FixtureRequest,
    packed: dict[str, pathlib.Path],
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The same dataset, in process and from a server, however batches come from it."""
    path = packed["indexed"]
    if request.param == "path":
        return os.fspath(path)
    monkeypatch.setenv("FOREBAY_TRANSPORT", request.param)
    return serve(path)


def moto_server() -> str | None:
    """The program that speaks S3: in the environment that `tools/test` makes, beside this interpreter, or on the PATH."""
    root = pathlib.Path(__file__).resolve().parents[3]
    places = [root / ".venv-stores" / "bin", pathlib.Path(sys.executable).parent]
    path = os.pathsep.join([*map(os.fspath, places), os.environ.get("PATH", "")])
    return shutil.which("moto_server", path=path)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server that speaks S3 and takes any keys, with a bucket called `bucket`."""
    program = moto_server()
    if program is None:
        pytest.skip("moto_server is not installed (tools/test installs it where it can)")
    with subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        found = None
        for line in server.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        assert found is not None, f"moto_server ended with {server.wait()}"
        # It logs each request, and blocks if its output is not read.
        reader = threading.Thread(target=server.stderr.read)
        reader.start()
        url = found.group()
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=60).close()
        yield url
        server.kill()
        reader.join()


def python(
    code: str, *args: str, timeout: float = 120, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter, with these variables beside those of this process."""
    environment = {**os.environ, **(environment or {})}
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=timeout, env=environment
    )
