"""Which samples epochs are made of, and what becomes of those that are damaged."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections import Counter
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import CLASSES, IMAGES_PER_CLASS, python

TOTAL = len(CLASSES) * IMAGES_PER_CLASS
EVAL = forebay.EvalTransform(24, resize=32)


def loader(source: str | os.PathLike[str], **options: Any) -> forebay.Loader:
    given = {"batch_size": 4, "transform": EVAL, "shuffle": True, "drop_last": True, "rank": 0, "world_size": 1, **options}
    return forebay.Loader(source, **given)


def epoch(source: str | os.PathLike[str], **options: Any) -> list[tuple[int, int]]:
    """Sample and label of each position, padding left out."""
    with loader(source, drop_last=False, **options) as it:
        found: list[tuple[int, int]] = []
        for batch in it:
            good = ~batch.padding
            found += zip(
                batch.samples[good].tolist(), batch.labels[good].tolist(), strict=True
            )
        assert len(found) == it.epoch_samples
        return found


def test_subsets(source: str) -> None:
    everything = dict(epoch(source))
    assert len(everything) == TOTAL
    for base in (0, 1, "stored"):
        shift = 1 if base else 0
        shown = {sample: label + shift for sample, label in everything.items()}
        for classes in (["n01443537"], [1 + shift], ["n01443537", 2 + shift]):
            found = epoch(source, classes=classes, label_base=base)
            labels = {1 + shift} if len(classes) == 1 else {1 + shift, 2 + shift}
            assert dict(found) == {s: n for s, n in shown.items() if n in labels}
            assert len(found) == len(labels) * IMAGES_PER_CLASS
    assert [s for s, _ in epoch(source, indices=np.array([7, 1, 30]), shuffle=False)] == [1, 7, 30]
    assert [s for s, _ in epoch(source, limit=5, shuffle=False)] == [0, 1, 2, 3, 4]
    assert sorted(s for s, _ in epoch(source, limit=9)) == list(range(9))


def test_repeats_differ_in_their_crops(source: str) -> None:
    options: dict[str, Any] = {"repeats": 3, "limit": 8, "transform": forebay.TrainTransform(16)}
    with loader(source, **options) as it:
        looks = [
            (int(sample), image.tobytes())
            for batch in it
            for sample, image in zip(batch.samples, batch.images, strict=True)
        ]
    assert Counter(sample for sample, _ in looks) == {sample: 3 for sample in range(8)}
    assert len(set(looks)) == 24


def test_draws(source: str) -> None:
    drawn = epoch(source, class_balanced=True, num_samples=900)
    assert len(drawn) == 900
    counts = Counter(label for _, label in drawn)
    # Six standard deviations around 300.
    assert all(abs(counts[label] - 300) < 85 for label in (0, 1, 2))
    only = epoch(source, weights={"n01440764": 0.0, "n02084071": 0.0}, num_samples=50)
    assert {label for _, label in only} == {1} and len(only) == 50
    assert epoch(source, weights={0: 0.0, 2: 0.0}, num_samples=50) == only
    weights = np.zeros(TOTAL, np.float32)
    weights[[4, 11]] = [1, 3]
    found = Counter(sample for sample, _ in epoch(source, weights=weights, num_samples=400))
    assert set(found) == {4, 11} and abs(found[4] - 100) < 52


def test_every_sample_once_over_ranks(source: str) -> None:
    found: list[int] = []
    for rank in range(4):
        options: dict[str, Any] = {"rank": rank, "world_size": 4, "shuffle": False, "drop_last": False}
        with loader(source, **options) as it:
            assert len(it) == 3
            for batch in it:
                found += batch.samples[~batch.padding].tolist()
    assert sorted(found) == list(range(TOTAL))


def test_states_belong_to_what_was_selected(source: str) -> None:
    options: dict[str, Any] = {"classes": ["n01440764", "n02084071"], "repeats": 2}
    with loader(source, **options) as first:
        whole = [batch.samples.tolist() for batch in first]
        steps = iter(first)
        for _ in range(3):
            next(steps)
        state = first.state_dict()
    with loader(source, **options) as second:
        second.load_state_dict(state)
        rest = [batch.samples.tolist() for batch in second]
        assert len(rest) == len(whole) - 3
    with loader(source, classes=[0, 2], repeats=2) as third:
        third.load_state_dict(state)
        assert [batch.samples.tolist() for batch in third] == rest
    with loader(source) as other, pytest.raises(forebay.StateError, match="sampling"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"indices": []}, "indices"),
        ({"indices": [1, 1]}, "1 after 1"),
        ({"indices": [TOTAL]}, "below"),
        ({"classes": []}, "classes"),
        ({"classes": ["n00000000"]}, "n00000000"),
        ({"classes": [9]}, "label 9"),
        ({"limit": 0}, "limit"),
        ({"num_samples": 5}, "num_samples"),
        ({"repeats": 0}, "repeats"),
        ({"weights": {}}, "weights"),
        ({"weights": {"n01440764": 1, 2: 1}}, "labels"),
        ({"weights": [1.0, 2.0]}, "2 numbers"),
        ({"weights": {1: -1.0}}, "weights"),
        ({"weights": {1: 2.0}, "class_balanced": True}, "class_balanced"),
        ({"on_error": "hide"}, "on_error"),
        ({"page_cache": "lose"}, "page_cache"),
    ],
)
def test_what_cannot_be(dataset: pathlib.Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(forebay.OptionError, match=message):
        loader(dataset, **options)


def test_the_page_cache_changes_nothing(dataset: pathlib.Path) -> None:
    assert epoch(dataset, page_cache="drop") == epoch(dataset)


def test_learned_seek_points_change_nothing(dataset: pathlib.Path) -> None:
    assert epoch(dataset, learn_seek_points="1MiB") == epoch(dataset, learn_seek_points=0)
    with loader(dataset, learn_seek_points=0) as off, loader(dataset, learn_seek_points=1 << 20) as on:
        for _ in range(2):
            for expected, found in zip(off, on, strict=True):
                assert np.array_equal(np.asarray(expected.images), np.asarray(found.images))
        assert off.stats()["learned_seek_points"] is None
        learned = on.stats()["learned_seek_points"]
        assert learned is not None and not learned["full"]
        assert learned["bytes"] <= 1 << 20 and learned["images"] <= TOTAL


LEARNS = """
import hashlib, sys, forebay, numpy as np
source, first, pixels = sys.argv[1], int(sys.argv[2]), hashlib.sha256()
options = dict(batch_size=2, transform=forebay.TrainTransform(16), indices=range(first, first + 10))
with forebay.Loader(source, **options) as loader:
    for _ in range(3):
        for batch in loader:
            pixels.update(np.asarray(batch.images))
    print(loader.stats()["learned_seek_points"]["images"], pixels.hexdigest())
"""


def test_processes_and_later_runs_share_learned_points(tmp_path: pathlib.Path) -> None:
    large = pathlib.Path(__file__).parents[3] / "testdata/formats/large-420.jpg"
    (tmp_path / "images/one").mkdir(parents=True)
    for number in range(20):
        shutil.copy(large, tmp_path / f"images/one/{number}.jpg")
    forebay.pack(tmp_path / "images", tmp_path / "set", seek_points="off")

    def run(first: int, points: str) -> list[str]:
        environment = {"FOREBAY_SEEK_POINTS": points}
        done = python(LEARNS, os.fspath(tmp_path / "set"), str(first), environment=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    shared = os.fspath(tmp_path / "points")
    (images, pixels), (_, others) = run(0, "none"), run(10, "none")
    assert images == "10"
    assert run(0, shared) == ["10", pixels]
    assert run(10, shared) == ["20", others]
    assert run(0, shared) == ["20", pixels]


def test_damaged_samples_are_replaced(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    damaged = tmp_path / "set"
    shutil.copytree(dataset, damaged)
    shard = sorted(path for path in damaged.iterdir() if path.name.startswith("train-00000"))[0]
    data = bytearray(shard.read_bytes())
    at = data.index(b"\x89PNG")
    data[at + 60] ^= 0xFF
    shard.write_bytes(data)
    with loader(damaged, shuffle=False) as it, pytest.raises(forebay.Error):
        for _ in it:
            pass
    with loader(dataset, shuffle=False) as it:
        good = [batch.images.copy() for batch in it]
    for policy in ("skip", "zero"):
        with loader(damaged, shuffle=False, on_error=policy) as it:
            batches = list(it)
            stats = it.stats()
        assert stats["failed"] >= 1 and shard.name in stats["failures"][0]
        failed = [int(i) for batch in batches for i in np.flatnonzero(batch.failed)]
        assert failed == [0]
        first = batches[0]
        if policy == "zero":
            assert not first.images[0].any() and first.labels[0] == -1
        else:
            assert (first.images[0] == good[0][1]).all() and first.samples[0] == first.samples[1]
        for mine, theirs in zip(batches[1:], good[1:], strict=True):
            assert (mine.images == theirs).all() and not mine.failed.any()
