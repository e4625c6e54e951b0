"""Metrics of loaders, as Prometheus reads them."""

from __future__ import annotations

import gc
import pathlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import forebay
import forebay.metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """Samples by name and labels, by Prometheus' own parser."""
    parser = pytest.importorskip("prometheus_client.parser")
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture
def loader(source: str) -> Iterator[forebay.Loader]:
    with forebay.Loader(source, batch_size=4, transform=forebay.EvalTransform(32), split="train") as loader:
        yield loader


def test_counters_are_those_of_stats(loader: forebay.Loader) -> None:
    batches = len(list(loader))
    found = parsed(forebay.metrics.text(train=loader))
    labels = (("name", "train"), ("rank", "0"), ("split", "train"))
    assert found["forebay_loader_batches_total", labels] >= batches > 0
    assert found["forebay_loader_wait_seconds_total", labels] == pytest.approx(loader.stats()["wait_s"])
    median, most = (found["forebay_loader_batch_wait_seconds", (labels[0], ("quantile", q), *labels[1:])] for q in ("0.5", "0.99"))
    assert 0 <= median <= most <= loader.stats()["wait_s"]
    stages = {dict(of)["stage"] for name, of in found if name == "forebay_loader_stage_seconds_total"}
    assert {"decode", "trainer"} <= stages


def test_an_exporter_answers_while_the_training_runs(loader: forebay.Loader) -> None:
    odd: dict[str, Any] = {'odd "name"\n': loader}
    with forebay.metrics.serve(train=loader, **odd) as exporter:
        for _ in loader:
            with urllib.request.urlopen(exporter.url, timeout=10) as answer:
                found = parsed(answer.read().decode())
        names = {dict(of)["name"] for _, of in found}
        assert names == {"train", 'odd "name"\n'}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(exporter.url.replace("/metrics", "/"), timeout=10)
        with pytest.raises(forebay.OptionError, match="cannot listen"):
            forebay.metrics.serve(port=int(exporter.url.split(":")[2].split("/")[0]), train=loader)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(exporter.url, timeout=10)
    with pytest.raises(forebay.OptionError, match="no loader"):
        forebay.metrics.serve()
    with pytest.raises(forebay.OptionError, match="cannot listen"):
        forebay.metrics.serve(port=70_000, train=loader)


def test_loaders_that_are_gone_are_left_out(packed: dict[str, pathlib.Path]) -> None:
    def made() -> forebay.Loader:
        return forebay.Loader(packed["indexed"], batch_size=4, transform=forebay.EvalTransform(32))

    kept, closed, dropped = made(), made(), made()
    with forebay.metrics.serve(kept=kept, closed=closed, dropped=dropped) as exporter:
        closed.close()
        del dropped
        gc.collect()
        with urllib.request.urlopen(exporter.url, timeout=10) as answer:
            text = answer.read().decode()
    assert 'name="kept"' in text and 'name="dropped"' not in text
    kept.close()


def test_waits_of_a_slow_loader_are_seen(packed: dict[str, pathlib.Path]) -> None:
    def slow(batch: forebay.Batch) -> forebay.Batch:
        time.sleep(0.05)
        return batch

    inner = forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.EvalTransform(32))
    with forebay.Mapped(inner, map_batch=slow) as loader:
        list(loader)
        stats = loader.stats()
        assert 0.02 < stats["wait_p50_s"] <= stats["wait_p99_s"] < 5
        assert parsed(forebay.metrics.text(train=loader))
