"""Records with fast images: the pixels of the JPEGs, and the JPEGs where encoded images are wanted."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import types
from typing import Any, Literal

import numpy as np
import pytest
from conftest import Serve, forebay_command

import forebay

ROOT = pathlib.Path(__file__).resolve().parents[3]
FORMS = ["fast", "fast-raw"]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """The pictures of the repository as JPEGs and in each fast encoding, with an oriented one."""
    root = tmp_path_factory.mktemp("fast")
    shutil.copytree(ROOT / "testdata/images/train", root / "images")
    picture = next(path for path in sorted((root / "images").rglob("*")) if path.is_file())
    jpeg = picture.read_bytes()
    assert jpeg.startswith(b"\xff\xd8")
    # An APP1 segment with EXIF orientation 6.
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    oriented = jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]
    picture.with_name("oriented.jpeg").write_bytes(oriented)
    made = {"jpeg": root / "jpeg"}
    done = forebay_command("pack", root / "images", made["jpeg"], "--format", "indexed")
    assert done.returncode == 0, done.stderr
    for form in FORMS:
        made[form] = root / form
        done = forebay_command("convert", made["jpeg"], made[form], "--images", form)
        assert done.returncode == 0, done.stderr
    return made


def decoder() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("fast_image", ROOT / "tools/golden/fast_image.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("form", FORMS)
def test_records_give_the_jpeg(datasets: dict[str, pathlib.Path], form: str) -> None:
    old, new = (forebay.open(datasets[name]).split("train") for name in ("jpeg", form))
    restore = decoder().restore
    fast = 0
    for index in range(len(old)):
        assert new[index].image == old[index].image
        assert new[index].key == old[index].key
        features = new[index].features
        if "image/fast" not in features:
            continue
        assert "image/encoded" not in features
        stored = features["image/fast"][0]
        if fast < 2:
            # By docs/format/fast-images.md, without Forebay's code.
            assert restore(stored) == old[index].image
        fast += 1
    assert len(old) // 2 < fast < len(old)


TRANSFORMS = [
    forebay.TrainTransform(64),
    forebay.EvalTransform(size=64),
    [forebay.RandomResizedCrop(48), forebay.RandomHorizontalFlip(), forebay.ColorJitter(0.4, 0.4, 0.4)],
    [forebay.Resize((80, 80)), forebay.RandomRotation(30)],
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=["train", "eval", "jitter", "rotation"])
@pytest.mark.parametrize("exif", [False, True])
def test_batches_are_those_of_the_jpegs(
    datasets: dict[str, pathlib.Path], form: str, transform: Any, exif: bool
) -> None:
    old, new = (
        forebay.Loader(
            datasets[name], split="train", batch_size=8, transform=transform, seed=3, exif_orientation=exif, shuffle=True, drop_last=False
        )
        for name in ("jpeg", form)
    )
    for _ in range(2):
        for expected, found in zip(old, new, strict=True):
            assert np.array_equal(np.asarray(expected.images), np.asarray(found.images))
            assert np.array_equal(np.asarray(expected.labels), np.asarray(found.labels))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_gives_the_same_batches(
    datasets: dict[str, pathlib.Path], serve: Serve, form: str, transport: Literal["shm", "tcp"]
) -> None:
    options: dict[str, Any] = {"batch_size": 8, "seed": 3, "transform": forebay.TrainTransform(64), "drop_last": False}
    here = forebay.Loader(datasets["jpeg"], split="train", **options)
    with forebay.Loader(serve(datasets[form]), split="train", transport=transport, **options) as there:
        for _ in range(2):
            for expected, found in zip(here, there, strict=True):
                assert np.array_equal(np.asarray(expected.images), np.asarray(found.images))
                assert np.array_equal(np.asarray(expected.labels), np.asarray(found.labels))
        share = there.stats()["fast_share"]
        assert share is not None and share > 0.5
    assert here.stats()["fast_share"] == 0


@pytest.mark.parametrize("form", FORMS)
def test_stats_have_the_share_of_fast_images(datasets: dict[str, pathlib.Path], form: str) -> None:
    records = forebay.open(datasets[form]).split("train")
    fast = sum("image/fast" in records[index].features for index in range(len(records)))
    for transform in (forebay.TrainTransform(32), forebay.KeepEncoded()):
        with forebay.Loader(datasets[form], split="train", batch_size=len(records), transform=transform, shuffle=True) as loader:
            assert len(next(iter(loader)).labels) == len(records)
            # Whole epochs, so that reading ahead changes the share by less than an epoch's order can.
            share = loader.stats()["fast_share"]
            assert share is not None and abs(share - fast / len(records)) < 0.2


@pytest.mark.parametrize("form", FORMS)
def test_boxes_and_masks_follow(
    datasets: dict[str, pathlib.Path], serve: Serve, tmp_path: pathlib.Path, form: str
) -> None:
    records = forebay.open(datasets["jpeg"]).split("train")
    rng = np.random.default_rng(1)
    features = {"image": "image", "boxes": "boxes", "mask": "mask"}
    with forebay.Writer(tmp_path / "jpeg", format="indexed", features=features) as writer:
        for index in range(len(records)):
            record = records[index]
            height, width = (int(record.features[f"image/{side}"][0]) for side in ("height", "width"))
            corners = rng.uniform(0, 0.5, (3, 2)).astype(np.float32)
            boxes = np.concatenate([corners, corners + np.float32(0.4)], axis=1)
            writer.write(
                image=record.image,
                boxes={"boxes": boxes, "labels": [index, 100, 200]},
                mask=rng.integers(0, 60_000, (height, width)),
            )
    done = forebay_command("convert", tmp_path / "jpeg", tmp_path / form, "--images", form)
    assert done.returncode == 0, done.stderr
    stored = forebay.open(tmp_path / form)
    names = [name for split in stored.splits for name in stored.split(split)[0].features]
    assert "image/fast" in names and "image/encoded" not in names
    options: dict[str, Any] = {
        "batch_size": 8,
        "seed": 7,
        "drop_last": False,
        "transform": [forebay.RandomResizedCrop((24, 32), scale=(0.3, 1.0)), forebay.RandomHorizontalFlip()],
        "columns": ["boxes", "mask"],
    }
    sources: list[str | pathlib.Path] = [tmp_path / "jpeg", tmp_path / form, serve(tmp_path / form)]
    for ours, converted, served in zip(*(forebay.Loader(source, **options) for source in sources), strict=True):
        assert np.asarray(ours["boxes"].boxes).size and np.asarray(ours["mask"]).any()
        for batch in (converted, served):
            assert np.array_equal(np.asarray(ours.images), np.asarray(batch.images))
            assert np.array_equal(np.asarray(ours["mask"]), np.asarray(batch["mask"]))
            for name in ("boxes", "labels", "offsets"):
                assert np.array_equal(getattr(ours["boxes"], name), getattr(batch["boxes"], name))


@pytest.mark.parametrize("form", FORMS)
def test_a_run_continues_with_fast_images(datasets: dict[str, pathlib.Path], form: str) -> None:
    def loader(name: str) -> forebay.Loader:
        return forebay.Loader(
            datasets[name], split="train", batch_size=8, transform=forebay.TrainTransform(32), seed=5
        )

    whole = [np.asarray(batch.images).copy() for batch in loader("jpeg")]
    first = loader("jpeg")
    batches = iter(first)
    next(batches)
    second = loader(form)
    second.load_state_dict(first.state_dict())
    rest = [np.asarray(batch.images).copy() for batch in second]
    assert len(rest) == len(whole) - 1
    assert all(np.array_equal(a, b) for a, b in zip(whole[1:], rest, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_encoded_images_are_jpegs(datasets: dict[str, pathlib.Path], form: str) -> None:
    old, new = (
        forebay.Loader(
            datasets[name], split="train", batch_size=8, transform=forebay.KeepEncoded(), shuffle=True, seed=3, drop_last=False
        )
        for name in ("jpeg", form)
    )
    for expected, found in zip(old, new, strict=True):
        for index in range(len(expected.labels)):
            assert expected.image_bytes(index) == found.image_bytes(index)


def test_commands_give_the_jpegs(datasets: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    key = forebay.open(datasets["jpeg"]).split("train")[0].key
    images = []
    for name in ("jpeg", "fast"):
        out = tmp_path / name
        done = forebay_command(
            "cat", datasets[name], "--key", key, "--feature", "image/encoded", "-o", out
        )
        assert done.returncode == 0, done.stderr
        images.append(out.read_bytes())
    assert images[0] == images[1]
    for form in FORMS:
        assert forebay_command("verify", datasets[form], "--deep").returncode == 0
        exported = tmp_path / f"{form}-out"
        assert forebay_command("export", datasets[form], exported).returncode == 0
        source = datasets["jpeg"].parent / "images"
        for path in source.rglob("*"):
            if path.is_file():
                found = next(exported.rglob(f"{path.parent.name}/{path.name}"))
                assert found.read_bytes() == path.read_bytes()
        shown = forebay_command("inspect", datasets[form], "--deep")
        assert shown.returncode == 0 and "FAST" in shown.stdout, shown.stdout
