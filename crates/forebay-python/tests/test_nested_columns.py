"""Lists of text, polygons and JSON: from COCO, from a writer and from other formats, here and from a server."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import forebay
import forebay.torch
from conftest import Serve, forebay_command, png
from forebay import Json, KeepEncoded, SampleError, ServerError

SIZE = (40, 30)
COUNT = 12
# Polygons and captions of an image: none, one and many.
SQUARE = [4.0, 3.0, 24.0, 3.0, 24.0, 18.0, 4.0, 18.0]
EDGE = [0.0, 0.0, 1.5, 0.0, 1.5, 30.0]
CROWD = {"counts": [3, 4], "size": [30, 40]}


def captions(number: int) -> list[str]:
    return [f'été "{number}"\n猫 😀 {at}' for at in range(number % 4)]


def objects(number: int) -> list[Any]:
    every: list[list[Any]] = [[], [[SQUARE]], [[SQUARE, EDGE], CROWD, [EDGE]]]
    return every[number % 3]


def polygons(number: int) -> list[Any]:
    return [[] if isinstance(one, dict) else one for one in objects(number)]


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A COCO dataset with captions and polygons, converted."""
    root = tmp_path_factory.mktemp("coco")
    (root / "coco/annotations").mkdir(parents=True)
    (root / "coco/train2017").mkdir()
    images: list[Any] = []
    instances: list[Any] = []
    texts: list[Any] = []
    for number in range(COUNT):
        name = f"{number:03}.png"
        (root / "coco/train2017" / name).write_bytes(png(*SIZE, number))
        images.append({"id": number, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
        texts += [{"id": len(texts) + at, "image_id": number, "caption": text} for at, text in enumerate(captions(number))]
        for one in objects(number):
            # The box is that of the first polygon.
            points = np.array(one[0] if isinstance(one, list) else SQUARE).reshape(-1, 2)
            (x, y), (width, height) = points.min(0).tolist(), np.ptp(points, 0).tolist()
            instances.append(
                {"id": len(instances), "image_id": number, "category_id": 1, "bbox": [x, y, width, height],
                 "area": 1, "iscrowd": int(isinstance(one, dict)), "segmentation": one}
            )
    categories = [{"id": 1, "name": "cat"}]
    for name, annotations in (("instances", instances), ("captions", texts)):
        document = {"images": images, "annotations": annotations, "categories": categories}
        (root / f"coco/annotations/{name}_train2017.json").write_text(json.dumps(document))
    done = forebay_command("convert", root / "coco", root / "set", "--format", "indexed", "--quiet")
    assert done.returncode == 0, done.stderr
    return root / "set"


@pytest.fixture(params=["path", "shm", "tcp"])
def source(request: pytest.FixtureRequest, coco: pathlib.Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "path":
        return os.fspath(coco)
    monkeypatch.setenv("FOREBAY_TRANSPORT", request.param)
    return serve(coco)


def test_captions_and_polygons_of_coco(coco: pathlib.Path, source: str) -> None:
    opened = forebay.open(coco)
    assert opened.columns["captions"] == "texts" and opened.columns["segmentation"] == "polygons"
    names = ["captions", "segmentation", "segmentation:texts", "image_id"]
    with forebay.Loader(
        source, batch_size=5, transform=KeepEncoded(), shuffle=True, drop_last=False, columns=names
    ) as loader:
        seen = 0
        for batch in loader:
            assert batch.columns == names
            assert isinstance(batch["captions"], Json) and len(batch["captions"]) == len(batch["image_id"])
            for i, number in enumerate(batch["image_id"].tolist()):
                assert batch["captions"][i] == captions(number)
                assert batch["segmentation"][i] == polygons(number)
                # The text of each object is as in COCO's file.
                assert [json.loads(text) for text in batch["segmentation:texts"][i]] == objects(number)
                seen += 1
            assert batch["captions"].to_list() == list(batch["captions"]) == batch["captions"][:]
        assert seen == COUNT


def test_polygons_follow_crops_and_flips(source: str) -> None:
    transform = [forebay.CenterCrop((20, 30)), forebay.RandomHorizontalFlip(p=1.0)]
    options: dict[str, Any] = {"batch_size": 4, "transform": transform, "shuffle": False}
    with forebay.Loader(source, columns=["segmentation", "boxes", "image_id"], **options) as loader:
        for batch in loader:
            for number, found, target in zip(batch["image_id"].tolist(), batch["segmentation"], batch["boxes"], strict=True):
                # The crop begins at (5, 5), is 30 wide, and is mirrored. The edge is outside of it, and so is its box.
                moved = [[[30 - (at - 5) if i % 2 == 0 else at - 5 for i, at in enumerate(part)] for part in one] for one in polygons(number)]
                assert found == moved[:2]
                assert len(found) == len(target["boxes"])
                if found:
                    points = np.array(found[0][0]).reshape(-1, 2).clip(0, (30, 20))
                    assert np.allclose([*points.min(0), *points.max(0)], target["boxes"][0])
    with forebay.Loader(source, columns=["segmentation", "boxes"], keep_empty_boxes=True, **options) as loader:
        assert [len(found) for batch in loader for found in batch["segmentation"]] == [0, 1, 3] * 4
    options["transform"] = [forebay.CenterCrop(20), forebay.RandAugment()]
    with pytest.raises(forebay.OptionError, match=r'option columns is "segmentation": .*RandAugment cannot move'):
        next(iter(forebay.Loader(source, columns=["segmentation"], **options)))


def test_columns_as_another_type_are_checked(source: str) -> None:
    for columns, said in [
        (["captions:json"], None),
        (["image_id:json"], '"image_id" is int, which cannot be read as json'),
        (["image:bytes"], '"image" is image, which cannot be read as bytes'),
        (["captions:yaml"], 'column type "yaml": expected image, label'),
        (["caption:texts"], 'expected columns of the dataset: "image"'),
    ]:
        with pytest.raises(forebay.Error, match=said or "no valid JSON") as raised:
            with forebay.Loader(source, batch_size=12, transform=KeepEncoded(), shuffle=False, columns=columns) as it:
                next(iter(it))
        assert isinstance(raised.value, forebay.OptionError) == (said is not None)


def test_map_style_datasets_have_nested_columns(coco: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    dataset = forebay.open(coco).split("train2017").dataset(forebay.EvalTransform(16), columns=["captions", "segmentation:texts"])
    for number in range(COUNT):
        _, _, texts, objects_ = dataset[number]
        assert texts == captions(number) and len(objects_) == len(objects(number))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=list, num_workers=2, multiprocessing_context="fork")
    assert [sample[2] for batch in loader for sample in batch] == [captions(number) for number in range(COUNT)]


def test_nested_columns_stay_on_the_cpu(source: str) -> None:
    pytest.importorskip("torch")
    with forebay.torch.Loader(source, batch_size=4, transform=forebay.EvalTransform(16), columns=["captions"]) as loader:
        batch = next(iter(loader))
        assert isinstance(batch["captions"], Json)
        assert batch.to("cpu")["captions"][1] == captions(1)
        again = pickle.loads(pickle.dumps(batch["captions"]))
        assert isinstance(again, Json) and list(again) == [captions(number) for number in range(4)]
        assert len(pickle.dumps(batch["captions"])) < 2_000


VALUES: list[Any] = [{"a": [1, 2.5, None, True], "é": {"b": "😀"}}, [], "text", 12345678901234567890, False, [[["deep"]]]]


def test_a_writer_stores_lists_polygons_and_json(tmp_path: pathlib.Path) -> None:
    features = {"image": "image", "captions": "texts", "outlines": "polygons", "meta": "json", "id": "int"}
    with forebay.Writer(tmp_path / "own", features=features, format="indexed") as writer:
        for number, value in enumerate(VALUES):
            outlines = [np.array(SQUARE).reshape(-1, 2).ravel(), EDGE][: number % 3]
            writer.write(image=png(*SIZE, number), captions=captions(number), outlines=[[one] for one in outlines], meta=value, id=number)
        image = png(*SIZE, 9)
        for column, wrong, said in [
            ("captions", "one", "expected a list of str"),
            ("captions", [b"\xff"], "expected a list of str"),
            ("outlines", "x", "expected a list of the polygons of each object"),
            ("outlines", [[[1, 2, 3]]], "object 0: 3 numbers are no polygon"),
            ("meta", {1j}, "expected what JSON can hold, found a value of type set"),
            ("meta", float("nan"), "expected what JSON can hold"),
            ("meta", json.loads("[" * 40 + "]" * 40), "nest deeper than 32 levels"),
        ]:
            values: Any = {"captions": [], "outlines": [], "meta": {}, column: wrong}
            with pytest.raises(SampleError, match=said) as raised:
                writer.write(image=image, id=0, **values)
            assert raised.value.column == column
    assert forebay.open(tmp_path / "own").columns == features
    formats = {"webdataset": ["captions", "meta"], "parquet": ["captions", "outlines", "meta"], "mds": ["meta"], "hdf5": ["meta"]}
    for format in ["indexed", *formats]:
        kept = formats.get(format, ["captions", "outlines", "meta"])
        path = tmp_path / "own"
        if format != "indexed":
            dropped = [flag for name in ("captions", "outlines") if name not in kept for flag in ("--drop-feature", name)]
            done = forebay_command("convert", path, tmp_path / format, "--format", format, "--quiet", *dropped)
            assert done.returncode == 0, done.stderr
            done = forebay_command("convert", tmp_path / format, tmp_path / f"{format}-back", "--format", "indexed", "--quiet")
            assert done.returncode == 0, done.stderr
            path = tmp_path / f"{format}-back"
        with forebay.Loader(path, batch_size=6, transform=KeepEncoded(), shuffle=False, columns=[*kept, "id"]) as loader:
            batch = next(iter(loader))
            order = batch["id"].tolist()
            assert sorted(order) == list(range(6))
            assert batch["meta"].to_list() == [VALUES[number] for number in order], format
            if "captions" in kept:
                assert batch["captions"].to_list() == [captions(number) for number in order], format
            if "outlines" in kept:
                assert batch["outlines"].to_list() == [[[one] for one in (SQUARE, EDGE)][: number % 3] for number in order]


def test_json_members_of_webdataset_are_parsed(tmp_path: pathlib.Path) -> None:
    webdataset: Any = pytest.importorskip("webdataset")
    (tmp_path / "tars").mkdir()
    with webdataset.TarWriter(os.fspath(tmp_path / "tars/train-000000.tar")) as tar:
        for number, value in enumerate([*VALUES, "bad"]):
            text = b"{not json" if value == "bad" else json.dumps(value).encode()
            tar.write({"__key__": f"{number:03}", "png": png(*SIZE, number), "json": text})
    done = forebay_command("convert", tmp_path / "tars", tmp_path / "set", "--format", "indexed", "--quiet")
    assert done.returncode == 0, done.stderr
    options: dict[str, Any] = {"batch_size": 7, "transform": KeepEncoded(), "shuffle": False, "columns": ["json:json"]}
    with forebay.Loader(tmp_path / "set", **options) as loader:
        with pytest.raises(forebay.Error, match=r'record 6.*column "json:json": .*no valid JSON: key must be a string') as raised:
            next(iter(loader))
    assert ".fbs" in str(raised.value)
    with forebay.Loader(tmp_path / "set", on_error="zero", **options) as loader:
        batch = next(iter(loader))
        assert batch["json:json"].to_list() == [*VALUES, None] and batch.failed.tolist() == [False] * 6 + [True]


def test_json_that_no_loader_makes_is_a_server_error() -> None:
    for text in ("{", "[" * 100_000, "1" * 5000):
        column = Json(np.frombuffer(text.encode(), np.uint8), np.array([0, len(text)]))
        with pytest.raises(ServerError, match="sample 0 of a column is not the JSON"):
            column[0]
