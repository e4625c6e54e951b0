"""The clock of a loader that copies batches to a device, with a device that is pretended."""

from __future__ import annotations

import time
from typing import Any

import forebay
from forebay._front import Front
from test_loader import loader

COPY_S = 0.02


class Slow(Front[Any, Any]):
    """Copies slowly."""

    def __init__(self, inner: Any, *, copies: bool = True) -> None:
        super().__init__(inner, copies=copies)

    def _prepare(self, batch: Any) -> Any:
        time.sleep(COPY_S)
        return batch

    def _deliver(self, prepared: Any) -> Any:
        return prepared


def test_a_slow_copy_to_the_device_is_the_bottleneck(source: str) -> None:
    with Slow(loader(source, batch_size=1)) as it:
        batches = sum(1 for _ in range(3) for _ in it)
        stats = it.stats()
    assert stats["device_s"] >= COPY_S * batches
    assert stats["bound"] == "device", stats
    assert stats["bottleneck"].startswith("device-bound: copying batches to the device took ")


def test_the_clock_is_found_behind_a_map_function(source: str) -> None:
    mapped = forebay.Mapped(loader(source, batch_size=1), map_batch=lambda batch: batch)
    with Slow(mapped) as it:
        assert it.stats()["device_s"] == 0
        next(iter(it))
        assert it.stats()["device_s"] >= COPY_S


def test_a_front_without_a_device_has_no_clock(source: str) -> None:
    with Slow(loader(source, batch_size=1), copies=False) as it:
        next(iter(it))
        stats = it.stats()
    assert stats["device_s"] is None and stats["bound"] != "device"
