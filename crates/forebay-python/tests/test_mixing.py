"""Mixup and CutMix: pixels and labels are mixed alike, and the same wherever they are made."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import forebay
from test_loader import TOTAL, epochs, loader

BOTH = forebay.RandomChoice([forebay.Mixup(0.4), forebay.CutMix(), None], p=[2, 2, 1])


def whole_epoch(source: Any, **options: Any) -> list[forebay.Batch]:
    with loader(source, **options) as it:
        return list(it)


@pytest.mark.parametrize("value", [forebay.Mixup(0.2), forebay.CutMix(), BOTH], ids=str)
def test_ways_to_mix_are_values(value: Any) -> None:
    again = eval(repr(value), vars(forebay))
    assert again == value and hash(again) == hash(value)
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    "make",
    [
        lambda: forebay.Mixup(0),
        lambda: forebay.CutMix(float("nan")),
        lambda: forebay.RandomChoice([]),
        lambda: forebay.RandomChoice([None], p=[-1.0]),
        lambda: forebay.RandomChoice([None, forebay.Mixup()], p=[1.0]),
    ],
)
def test_impossible_numbers_are_refused(make: Any) -> None:
    with pytest.raises(forebay.OptionError):
        make()


def test_mixup_is_a_weighted_sum_with_the_sample_before(source: str) -> None:
    plain = whole_epoch(source, seed=3)
    for dtype, error in (("uint8", 0.501), ("float32", 1e-6), ("float16", 1e-3)):
        mixed = whole_epoch(source, seed=3, dtype=dtype, batch_transform=forebay.Mixup())
        scale = 1 if dtype == "uint8" else 255
        for a, b in zip(plain, mixed, strict=True):
            assert (a.digest, a.samples.tolist()) == (b.digest, b.samples.tolist())
            assert b.lam is not None and b.labels_b is not None
            assert b.lam.dtype == np.float32 and len(set(b.lam.tolist())) == 1
            assert (b.labels == a.labels).all()
            assert (b.labels_b == np.roll(a.labels, 1)).all()
            lam = float(b.lam[0])
            pixels = a.images.astype(np.float64)
            expected = (pixels * lam + np.roll(pixels, 1, axis=0) * (1 - lam)) / scale
            assert np.abs(expected - b.images).max() <= error


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_cutmix_pastes_a_rectangle_of_the_sample_before(source: str, layout: str) -> None:
    options = {"seed": 4, "layout": layout}
    plain = whole_epoch(source, **options)
    for a, b in zip(plain, whole_epoch(source, batch_transform=forebay.CutMix(), **options), strict=True):
        assert b.lam is not None
        other = np.roll(a.images, 1, axis=0)
        assert ((b.images == a.images) | (b.images == other)).all()
        axis = -1 if layout == "nhwc" else 1
        kept = (b.images == a.images).all(axis=axis).mean(axis=(1, 2))
        # Where both are equal a pixel counts as kept, so this is a lower bound.
        assert (kept >= b.lam - 1e-6).all()


def test_padding_takes_no_part(source: str) -> None:
    options = {"seed": 1, "drop_last": False, "pad_last": True, "batch_size": 16}
    last = whole_epoch(source, batch_transform=forebay.Mixup(), **options)[-1]
    plain = whole_epoch(source, **options)[-1]
    assert last.lam is not None and last.labels_b is not None
    count = TOTAL % 16
    assert last.padding.tolist() == [False] * count + [True] * (16 - count)
    assert (last.lam[count:] == 1).all() and (last.labels_b[count:] == last.labels[count:]).all()
    assert (last.images[count:] == plain.images[count:]).all()
    assert last.labels_b[0] == last.labels[count - 1]


def test_the_same_wherever_they_are_made(packed: dict[str, Any], serve: Any) -> None:
    path = packed["indexed"]
    options = {"batch_transform": BOTH, "dtype": "float16", "seed": 9}

    def all_of(source: Any, **more: Any) -> list[Any]:
        return [
            (batch.images.tobytes(), batch.labels_b.tolist(), batch.lam.tolist())
            for batch in whole_epoch(source, **options, **more)
            if batch.labels_b is not None and batch.lam is not None
        ]

    base = all_of(path, threads=1)
    assert len(base) == TOTAL // 8 and len({lam[0] for *_rest, lam in base}) > 2
    assert base == all_of(path, threads=3) == all_of(serve(path))
    assert epochs(path, seed=9)[0][2] == 0


def test_ranks_draw_the_same_share(packed: dict[str, Any]) -> None:
    def shares(rank: int, world_size: int, batch_size: int) -> list[float]:
        batches = whole_epoch(
            packed["indexed"], rank=rank, world_size=world_size, batch_size=batch_size,
            batch_transform=forebay.Mixup(),
        )  # fmt: skip
        return [float(batch.lam[0]) for batch in batches if batch.lam is not None]

    assert shares(0, 1, 8) == shares(0, 2, 4) == shares(1, 2, 4)


def test_one_hot_labels(source: str) -> None:
    for options in ({}, {"batch_transform": forebay.Mixup()}):
        batch = whole_epoch(source, label_base=0, **options)[0]
        rows = batch.one_hot(3)
        assert rows.shape == (8, 3) and rows.dtype == np.float32
        assert np.allclose(rows.sum(axis=1), 1)
        eye = np.eye(3, dtype=np.float32)
        expected = eye[batch.labels]
        if batch.lam is not None and batch.labels_b is not None:
            lam = batch.lam[:, None]
            expected = lam * eye[batch.labels] + (1 - lam) * eye[batch.labels_b]
        assert np.allclose(rows, expected)
        smooth = batch.one_hot(3, smoothing=0.3)
        assert np.allclose(smooth, expected * 0.7 + 0.1)
        with pytest.raises(forebay.OptionError, match="label"):
            batch.one_hot(2)
        with pytest.raises(forebay.OptionError):
            batch.one_hot(3, smoothing=2.0)


def test_without_a_batch_transform_nothing_is_mixed(source: str) -> None:
    batch = whole_epoch(source)[0]
    assert batch.lam is None and batch.labels_b is None
