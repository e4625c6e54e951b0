"""Datasets read from a web server: the same as from a directory, also when the server has a bad day."""

from __future__ import annotations

import http.server
import pathlib
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import forebay


class Handler(http.server.BaseHTTPRequestHandler):
    """Files with ranges and etags, as object stores have them."""

    protocol_version = "HTTP/1.1"
    server: Web

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, with_body: bool) -> None:
        mood = self.server.next_mood()
        path = self.server.root / self.path.lstrip("/")
        if mood == "fail" or self.server.away.is_set():
            return self.send(503, b"", {})
        if self.server.refuses:
            return self.send(403, b"", {})
        if not path.is_file():
            return self.send(404, b"", {})
        body = path.read_bytes()
        stat = path.stat()
        headers = {
            "ETag": f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}"',
            "Last-Modified": self.date_time_string(stat.st_mtime),
            "Accept-Ranges": "bytes",
        }
        status = 200
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = min(int(last or len(body) - 1), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{end}/{len(body)}"
            body, status = body[int(first) : end + 1], 206
        if not with_body:
            headers["Content-Length"] = str(len(body))
        self.send(status, body if with_body else b"", headers, mood == "cut" and len(body) > 1)

    def send(self, status: int, body: bytes, headers: dict[str, str], cut: bool = False) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


class Web(http.server.ThreadingHTTPServer):
    """A web server of a directory."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.away = threading.Event()
        self.faulty = False
        self.refuses = False
        self.requests = 0
        self.lock = threading.Lock()

    def next_mood(self) -> str:
        with self.lock:
            self.requests += 1
            if not self.faulty:
                return "good"
            return {0: "fail", 5: "cut"}.get(self.requests % 10, "good")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def web(dataset: pathlib.Path) -> Iterator[Web]:
    server = Web(dataset)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def batches(source: str | pathlib.Path | forebay.Mix, **options: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    transform = forebay.TrainTransform(32)
    with forebay.Loader(source, batch_size=4, split="train", transform=transform, seed=3, **options) as loader:
        return [(np.array(images), np.array(labels)) for images, labels in loader]


def same(one: list[tuple[np.ndarray, np.ndarray]], other: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


def test_batches_are_those_of_the_directory(web: Web, dataset: pathlib.Path) -> None:
    expected = batches(dataset)
    assert expected
    assert same(batches(web.url), expected)
    web.faulty = True
    assert same(batches(web.url), expected)


def test_stats_tell_what_the_store_and_the_cache_did(
    web: Web, dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def epochs(source: str | pathlib.Path, **options: str) -> Any:
        with forebay.Loader(source, batch_size=4, split="train", transform=forebay.TrainTransform(32), storage_options=options or None) as loader:
            for _ in range(2):
                assert sum(1 for _ in loader) > 0
            return loader.stats()["storage"]

    assert epochs(dataset) is None
    far = epochs(web.url)
    stored = sum(shard.stat().st_size for shard in dataset.iterdir())
    assert far["fetched_bytes"] > stored
    assert (far["retries"], far["cache"]) == (0, None)
    web.faulty = True
    assert epochs(web.url)["retries"] > 0
    web.faulty = False
    where = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": "1GiB"}
    cache = epochs(web.url, **where)["cache"]
    assert cache["misses"] > 0
    # Of this loader, not of all that the process has.
    again = epochs(web.url, **where)
    assert again["cache"]["hits"] > 0
    assert again["cache"]["hit_bytes"] > again["cache"]["miss_bytes"]
    assert again["fetched_bytes"] < far["fetched_bytes"] / 2


def test_stats_price_the_requests_of_a_store(
    web: Web, dataset: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prices.toml"
    row = "name = 'ours'\nget_per_1000 = 1000\nput_per_1000 = 0\nregion_per_gb = 0\ninternet_per_gb = 1000\n"
    file.write_text("as_of = 2026-01-31\n" + "".join(f"[{name}]\n{row}" for name in ("s3", "gs", "az", "own", "hf")))
    monkeypatch.setenv("FOREBAY_PRICES", str(file))
    with forebay.Loader(web.url, batch_size=4, split="train", transform=forebay.TrainTransform(32)) as loader:
        assert sum(1 for _ in loader) > 0
        stats = loader.stats()
    records = forebay.open(dataset).splits["train"]
    storage = stats["storage"]
    assert storage is not None
    cost = storage["cost"]
    assert cost is not None
    assert cost["in_region"] == storage["requests"] > 0
    received = storage["fetched_bytes"] / 1e6
    assert cost["over_internet"] == pytest.approx(cost["in_region"] + received)
    assert cost["epoch_in_region"] == pytest.approx(cost["in_region"] * records / stats["images"])
    assert cost["prices"] == "estimated from list prices as of 2026-01-31"
    file.write_text("as_of = 2026-01-31\n[s3]\nget = 1\n")
    with pytest.raises(forebay.Error, match='line 3, "get": unknown field'):
        batches(web.url)


def test_records_and_pickles(web: Web, dataset: pathlib.Path) -> None:
    local, far = forebay.open(dataset), forebay.open(web.url, storage_options={"timeout": "20"})
    assert far.fingerprint == local.fingerprint
    assert far.path == web.url
    assert far[1].data == local[1].data
    assert [record.data for record in far] == [record.data for record in local]
    again = pickle.loads(pickle.dumps(far[1:3]))
    assert [record.data for record in again] == [record.data for record in local[1:3]]
    assert pickle.loads(pickle.dumps(far[2])).data == local[2].data


def test_a_mix_reads_from_both(web: Web, dataset: pathlib.Path) -> None:
    expected = batches(forebay.Mix([dataset, dataset]))
    assert same(batches(forebay.Mix([str(dataset), web.url])), expected)


def test_an_outage_is_waited_for(web: Web, dataset: pathlib.Path) -> None:
    expected = batches(dataset)
    web.away.set()
    back = threading.Timer(1.5, web.away.clear)
    back.start()
    assert same(batches(web.url, storage_options={"outage_timeout": "100"}), expected)
    back.join()


def test_what_goes_wrong_has_a_class(web: Web, dataset: pathlib.Path) -> None:
    with pytest.raises(forebay.MissingError, match="forebay.json"):
        forebay.open(web.url + "/nothing")
    with pytest.raises(forebay.OptionError, match="outage_timeout"):
        forebay.open(web.url, storage_options={"outage_timeout": "soon"})
    with pytest.raises(forebay.OptionError):
        forebay.open("ftp://host/x")
    web.away.set()
    with pytest.raises(forebay.StorageError, match="tried") as raised:
        forebay.open(web.url, storage_options={"outage_timeout": "5"})
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), again.path) == (forebay.StorageError, web.url + "/forebay.json")
