"""Boxes, keypoints and masks of batches are those of torchvision's v2."""

from __future__ import annotations

import pathlib
from typing import Any, Literal

import numpy as np
import pytest

import forebay
from conftest import Serve

WIDTH, HEIGHT, COUNT = 60, 44, 12
FEATURES = {"image": "image", "boxes": "boxes", "mask": "mask", "points": "keypoints"}


def sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    corners = rng.uniform(0, 0.9, (3, 2)).astype(np.float32)
    ends = np.minimum(corners + rng.uniform(0.002, 0.5, (3, 2)).astype(np.float32), np.float32(1.0))
    return {
        "image": rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8),
        "boxes": {"boxes": np.concatenate([corners, ends], axis=1), "labels": [number, 100, 200]},
        "mask": rng.integers(0, 60_000, (HEIGHT, WIDTH)),
        "points": rng.uniform(0, 1, (4, 2)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return written(tmp_path_factory.mktemp("annotated") / "set", range(COUNT))


def written(place: pathlib.Path, numbers: range) -> pathlib.Path:
    """A dataset of these samples."""
    with forebay.Writer(place, format="indexed", features=FEATURES) as writer:
        for number in numbers:
            writer.write(**sample(number))
    return place


def arrays(batch: Any) -> dict[str, Any]:
    """All arrays of a batch by name."""
    boxes, points = batch["boxes"], batch["points"]
    return {
        **{name: np.asarray(getattr(batch, name)) for name in ("images", "labels", "samples", "padding")},
        **{f"boxes.{name}": np.asarray(getattr(boxes, name)) for name in ("boxes", "labels", "offsets")},
        **{f"points.{name}": np.asarray(getattr(points, name)) for name in ("points", "visibility", "offsets")},
        "mask": np.asarray(batch["mask"]),
    }


def geometry(batch: Any, row: int) -> list[Any]:
    """Boxes, their labels, points and mask of a sample."""
    target, points = batch["boxes"][row], batch["points"]
    start, end = points.offsets[row : row + 2]
    return [np.asarray(part) for part in (target["boxes"], target["labels"], points.points[start:end], batch["mask"][row])]


def test_boxes_masks_and_points_are_torchvisions(annotated: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    size = (HEIGHT, WIDTH)
    theirs = v2.Compose([v2.Resize(40), v2.CenterCrop((30, 36)), v2.RandomHorizontalFlip(1.0), v2.ClampBoundingBoxes()])
    ours = [forebay.Resize(40), forebay.CenterCrop((30, 36)), forebay.RandomHorizontalFlip(1.0)]
    loader = forebay.Loader(annotated, batch_size=COUNT, shuffle=False, transform=ours, columns=["boxes", "mask", "points"])
    (batch,) = loader
    masks = batch["mask"]
    assert masks.shape == (COUNT, 30, 36) and masks.dtype == np.int32
    for number in range(COUNT):
        given = sample(number)
        scale = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64)
        corners = torch.from_numpy(given["boxes"]["boxes"]).double() * scale.repeat(2)
        points = torch.from_numpy(given["points"]).double() * scale
        boxes, mask, points = theirs(
            tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size),
            tv_tensors.Mask(torch.from_numpy(given["mask"].astype(np.int32))),
            tv_tensors.KeyPoints(points, canvas_size=size),
        )
        labels = torch.tensor(given["boxes"]["labels"])
        boxes, labels = v2.SanitizeBoundingBoxes(labels_getter=lambda pair: pair[1])((boxes, labels))
        target = batch["boxes"][number]
        assert np.allclose(target["boxes"], boxes.numpy(), atol=1e-4)
        assert target["labels"].tolist() == labels.tolist()
        assert np.array_equal(masks[number], mask.numpy())
        points_of_batch = batch["points"].points[4 * number : 4 * number + 4]
        assert np.allclose(points_of_batch, points.numpy(), atol=1e-4)


def test_empty_boxes_are_kept_on_demand(annotated: pathlib.Path) -> None:
    def labels(**options: Any) -> list[list[int]]:
        crop = [forebay.RandomResizedCrop(24, scale=(0.1, 0.2))]
        loader = forebay.Loader(annotated, batch_size=COUNT, shuffle=False, transform=crop, columns=["boxes"], **options)
        (batch,) = loader
        return [target["labels"].tolist() for target in batch["boxes"]]

    every = [[number, 100, 200] for number in range(COUNT)]
    assert labels(keep_empty_boxes=True) == every
    some = labels()
    assert some != every and all(set(few) <= set(all_of) for few, all_of in zip(some, every, strict=True))


def test_transforms_that_boxes_cannot_follow_are_refused(annotated: pathlib.Path) -> None:
    def load(transform: list[Any], columns: list[str], **options: Any) -> None:
        forebay.Loader(annotated, batch_size=4, transform=transform, columns=columns, **options)

    crop = forebay.RandomResizedCrop(24)
    with pytest.raises(forebay.OptionError, match="RandAugment cannot move boxes, masks and keypoints"):
        load([crop, forebay.RandAugment()], ["mask"])
    with pytest.raises(forebay.OptionError, match="Mixup and CutMix cannot mix boxes"):
        load([crop], ["boxes"], batch_transform=forebay.Mixup(0.2))
    with pytest.raises(forebay.OptionError, match="RandomIoUCrop: expected a column of boxes"):
        load([forebay.RandomIoUCrop(), forebay.Resize((24, 24))], ["mask"])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_gives_the_same_geometry_with_padding(annotated: pathlib.Path, serve: Serve, transport: Literal["shm", "tcp"]) -> None:
    options: dict[str, Any] = {
        "batch_size": 5,
        "seed": 7,
        "drop_last": False,
        "pad_last": True,
        "transform": [forebay.RandomResizedCrop((24, 32), scale=(0.3, 1.0)), forebay.RandomHorizontalFlip()],
        "columns": ["boxes", "mask", "points"],
    }
    here = forebay.Loader(annotated, **options)
    with forebay.Loader(serve(annotated), transport=transport, **options) as there:
        for _ in range(2):
            padding, samples = [], []
            for ours, served in zip(here, there, strict=True):
                expected, found = arrays(ours), arrays(served)
                assert expected["boxes.boxes"].size and expected["mask"].any()
                for name, array in expected.items():
                    assert array.dtype == found[name].dtype and np.array_equal(array, found[name]), name
                padding += found["padding"].tolist()
                samples += found["samples"].tolist()
            assert padding == [False] * COUNT + [True] * 3
            assert sorted(samples[:COUNT]) == list(range(COUNT))
        assert there.stats()["transport"] == transport


def test_a_mix_keeps_each_samples_geometry(annotated: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sets = [annotated, written(tmp_path / "other", range(COUNT, 2 * COUNT + 3))]
    options: dict[str, Any] = {
        "batch_size": 9,
        "drop_last": False,
        "pad_last": True,
        "transform": [forebay.Resize(36), forebay.CenterCrop((30, 40))],
        "columns": ["boxes", "mask", "points"],
    }
    alone = []
    for path in sets:
        for batch in forebay.Loader(path, shuffle=False, **options):
            alone += [geometry(batch, row) for row in range(9) if not batch.padding[row]]
    # Samples of a mix are numbered through its datasets.
    seen = set()
    for batch in forebay.Loader(forebay.Mix(sets), seed=3, shuffle=True, **options):
        for row in np.flatnonzero(~np.asarray(batch.padding)).tolist():
            number = int(batch.samples[row])
            for part, expected in zip(geometry(batch, row), alone[number], strict=True):
                assert part.dtype == expected.dtype and np.array_equal(part, expected), number
            seen.add(number)
    assert seen == set(range(len(alone)))
    assert len({mask.tobytes() for *_, mask in alone}) == len(alone)
