"""Copies to a GPU from the memory that batches were decoded into, with `fake_torch` and `fake_cuda` in the place of a GPU."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fake_cuda
import fake_torch
import forebay.torch
from forebay import _device
from test_loader import loader
from test_torch import of, pair, read


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch.module())
    # The batches of these tests are small.
    monkeypatch.setattr(forebay.torch, "_DIRECT_BYTES", 1024)


@pytest.fixture
def driver(late: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cuda.Driver]:
    with installed(fake_cuda.Driver(), monkeypatch) as made:
        yield made


class installed:  # noqa: N801
    """Has loaders find a driver, and checks at the end that it was called well."""

    def __init__(self, driver: fake_cuda.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = driver
        monkeypatch.setattr(_device, "driver", lambda: driver)
        monkeypatch.setattr(fake_torch, "registered", [driver.covers])

    def __enter__(self) -> fake_cuda.Driver:
        return self.driver

    def __exit__(self, *_: object) -> None:
        # Threads of a loader that was left end soon.
        end = time.monotonic() + 60
        while self.driver.ranges and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        assert not self.driver.errors and not self.driver.ranges, (self.driver.errors, self.driver.ranges)


def run_all() -> None:
    fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))


def wrong_batches(source: str, **options: Any) -> int:
    """Counts the batches of three epochs that the GPU does not get as they are."""
    with loader(source, **options) as plain:
        want = [batch.images.copy() for _ in range(3) for batch in plain]
    seen = []
    with of(source, device="cuda", channels_last=True, map_batch=pair, **options) as it:
        for _ in range(3):
            for images, _labels in it:
                seen.append(read(images))
                del images, _labels
        run_all()
        assert it.stats()["device_copy"] == "registered"
    pairs = zip(seen, want, strict=True)
    return sum(not np.array_equal(got[0].transpose(0, 2, 3, 1), images) for got, images in pairs)


def test_batches_are_copied_from_where_they_were_decoded(driver: fake_cuda.Driver, source: str) -> None:
    fake_torch.pinned_bytes.clear()
    assert wrong_batches(source) == 0
    # Each buffer was registered once, and labels alone went through pinned memory.
    assert 0 < driver.registrations <= 16
    assert all(size < 8 * 32 * 32 * 3 for size in fake_torch.pinned_bytes)


def test_the_fake_finds_memory_that_is_filled_too_early(
    driver: fake_cuda.Driver, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_torch.Event, "synchronize", lambda _: None)
    # The batches of one epoch fit into the buffers.
    assert wrong_batches(source) > 0


def test_memory_that_the_driver_refuses_goes_through_pinned_memory(
    late: None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(fake_cuda.Driver(most_bytes=0), monkeypatch):
        with of(source, device="cuda", map_batch=pair) as it, loader(source) as plain:
            seen = [read(images) for images, _ in it]
            run_all()
            for got, batch in zip(seen, plain, strict=True):
                assert (got[0].transpose(0, 2, 3, 1) == batch.images).all()
            assert it.stats()["device_copy"] == "pinned: the driver of CUDA returned error 2 for the memory of batches"


def test_the_reason_is_told_where_nothing_can_be_registered(
    late: None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver() -> Any:
        raise OSError("libcuda.so.1: not found")

    monkeypatch.setattr(_device, "driver", no_driver)
    with of(source, device="cuda", map_batch=pair) as it:
        assert len(list(it)) == len(it)
        assert it.stats()["device_copy"] == "pinned: the driver of CUDA cannot be called: libcuda.so.1: not found"
    with installed(fake_cuda.Driver(), monkeypatch), loader(source) as made:
        it = forebay.torch.Loader(made, device="cuda", map_batch=pair)
        assert len(list(it)) == len(it)
        assert it.stats()["device_copy"] == "pinned: the loader was made without a device"
        it.close()
        second = fake_torch.device("cuda", 1)
        assert _device.host_registry(fake_torch, second) == (None, "the driver of CUDA returned error 0 for device 1")
        rocm = type("torch", (), {"version": type("version", (), {"hip": "6.0"})})
        assert _device.host_registry(rocm, second) == (None, "torch is built for ROCm")
    with loader(source) as plain:
        next(iter(plain))
        assert plain.stats()["device_copy"] is None


def test_what_a_function_makes_goes_through_pinned_memory(driver: fake_cuda.Driver, source: str) -> None:
    def inverted(batch: Any) -> Any:
        return 255 - batch.images, batch.labels, batch.images[:, ::2]

    with of(source, device="cuda", map_batch=inverted) as it, loader(source) as plain:
        seen = [(read(images), read(rows)) for images, _, rows in it]
        run_all()
        for (images, rows), batch in zip(seen, plain, strict=True):
            assert (images[0] == 255 - batch.images).all() and (rows[0] == batch.images[:, ::2]).all()
        assert it.stats()["device_copy"].startswith("pinned: no batch was copied from the memory")


def test_a_loader_that_is_left_frees_its_memory(driver: fake_cuda.Driver, source: str) -> None:
    it = of(source, device="cuda", map_batch=pair)
    batches = iter(it)
    kept = [next(batches)[0] for _ in range(2)]
    assert driver.ranges
    del it, batches
    gc.collect()
    run_all()
    assert len(kept) == 2


def test_batches_on_the_host_outlive_the_loader(driver: fake_cuda.Driver, source: str) -> None:
    registry, _ = _device.host_registry(fake_torch, fake_torch.device("cuda", 0))
    assert registry is not None
    with loader(source, _registry=registry) as it:
        kept = [batch.images for batch in it]
        before = [images.copy() for images in kept]
    assert registry.registered_bytes == sum(driver.ranges.values()) > 0
    assert all(registry.covers(images.ctypes.data, images.nbytes) for images in kept)
    assert not registry.covers(kept[0].ctypes.data, 1 << 30) and not registry.covers(64, 1)
    assert all((a == b).all() for a, b in zip(kept, before, strict=True))
