"""Boxes, keypoints and masks of batches are those of torchvision's v2."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import forebay

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
    place = tmp_path_factory.mktemp("annotated") / "set"
    with forebay.Writer(place, format="indexed", features=FEATURES) as writer:
        for number in range(COUNT):
            writer.write(**sample(number))
    return place


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
