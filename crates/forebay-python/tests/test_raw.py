"""Images that stay encoded: a batch is the bytes of its records' images, here and from a server."""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import forebay
import forebay.torch
from conftest import Serve
from test_loader import TOTAL, loader

RAW = forebay.KeepEncoded()


def whole_epoch(source: Any, **options: Any) -> list[forebay.Batch]:
    with loader(source, **{"transform": RAW, "shuffle": True, "pad_last": True, **options}) as it:
        return list(it)


def test_a_batch_is_the_images_of_its_records(
    packed: dict[str, pathlib.Path], source: str
) -> None:
    ds = forebay.open(packed["indexed"])
    seen = []
    for batch, other in zip(
        whole_epoch(source, drop_last=False),
        whole_epoch(source, drop_last=False, transform=forebay.TrainTransform(8)),
        strict=True,
    ):
        # The same samples in the same places as ever.
        assert batch.digest == other.digest
        assert (batch.labels == other.labels).all() and (batch.padding == other.padding).all()
        assert batch.encoded.dtype == np.uint8 and batch.offsets.dtype == np.int64
        assert batch.offsets.shape == (9,) and batch.encoded.shape == (batch.offsets[-1],)
        assert batch.layout is None and batch.dtype == "uint8"
        assert not batch.failed.any() and len(batch) == 2
        both: Any = batch
        images, labels = both
        assert isinstance(images, list) and len(images) == 8 and labels is batch.labels
        assert [bytes(image) for image in batch[0]] == [bytes(image) for image in images]
        for i, sample in enumerate(batch.samples.tolist()):
            stored = ds[sample].image
            view = batch.image_bytes(i)
            assert isinstance(view, memoryview) and bytes(view) == stored == bytes(images[i])
            assert batch.encoded[batch.offsets[i] : batch.offsets[i + 1]].tobytes() == stored
            size = (int.from_bytes(stored[16:20], "big"), int.from_bytes(stored[20:24], "big"))
            assert (batch.widths[i], batch.heights[i]) == size
            if not batch.padding[i]:
                seen.append(sample)
        assert bytes(batch.image_bytes(-1)) == bytes(images[-1])
        for wrong in (8, -9):
            with pytest.raises(IndexError):
                batch.image_bytes(wrong)
    assert sorted(seen) == list(range(TOTAL))


def test_encoded_images_pickle_as_bytes(source: str) -> None:
    batch = whole_epoch(source)[0]
    again = pickle.loads(pickle.dumps(batch))
    assert again.images == [bytes(batch.image_bytes(number)) for number in range(8)]
    assert again.labels.tolist() == batch.labels.tolist() and again.layout is None


def test_nothing_is_copied_and_views_keep_the_memory(source: str) -> None:
    batches = whole_epoch(source)
    views = [batch.image_bytes(0) for batch in batches]
    want = [bytes(view) for view in views]
    for batch, view in zip(batches, views, strict=True):
        address = np.frombuffer(view, np.uint8).ctypes.data
        assert address == batch.encoded.ctypes.data
        assert batch.encoded is batch.encoded
    del batches, batch
    whole_epoch(source)
    assert [bytes(view) for view in views] == want


def test_pixels_and_bytes_are_not_mistaken_for_each_other(source: str) -> None:
    batch = whole_epoch(source)[0]
    assert "encoded=8 images in" in repr(batch)
    pixels: list[Callable[[], object]] = [
        lambda: batch.images,
        lambda: batch.numpy(),
        lambda: np.from_dlpack(batch),
    ]
    for use in pixels:
        with pytest.raises(forebay.OptionError, match="stay encoded"):
            use()
    batch = whole_epoch(source, transform=forebay.EvalTransform(8, resize=8))[0]
    raw: list[Callable[[], object]] = [
        lambda: batch.encoded,
        lambda: batch.offsets,
        lambda: batch.widths,
        lambda: batch.heights,
        lambda: batch.image_bytes(0),
    ]
    for use in raw:
        with pytest.raises(forebay.OptionError, match="are decoded"):
            use()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"dtype": "float32"}, "dtype"),
        ({"layout": "nchw"}, "layout"),
        ({"batch_transform": forebay.Mixup()}, "batch_transform"),
        ({"resize_like": "opencv"}, "resize_like"),
        ({"exif_orientation": True}, "exif_orientation"),
        ({"dct_scaling": True}, "dct_scaling"),
        ({"transform": [RAW]}, "in a list"),
        ({"transform": [forebay.RandomResizedCrop(8), RAW]}, "in a list"),
    ],
)
def test_what_is_about_pixels_is_refused(source: str, options: Any, name: str) -> None:
    with pytest.raises(forebay.OptionError, match=name):
        loader(source, **{"transform": RAW, "shuffle": True, "pad_last": True, **options})


def test_raw_is_a_value() -> None:
    again = pickle.loads(pickle.dumps(RAW))
    assert again == RAW and hash(again) == hash(RAW) and repr(again) == "KeepEncoded()"
    assert forebay.TrainTransform(8) != RAW


def test_states_go_from_one_transform_to_another(source: str) -> None:
    with loader(source, transform=RAW, shuffle=True) as it:
        all_of_it = list(it)
        it.set_epoch(0)
        for batch in it:
            if batch.step == 1:
                break
        state = it.state_dict()
    with loader(source) as it:
        it.load_state_dict(state)
        assert next(iter(it)).samples.tolist() == all_of_it[2].samples.tolist()


def test_a_sample_that_failed_is_empty(
    packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, serve: Serve
) -> None:
    # Image bytes of one record are overwritten: its checksum tells.
    root = tmp_path / "damaged"
    root.mkdir()
    whole = packed["indexed"]
    for path in whole.rglob("*"):
        if path.is_file():
            copy = root / path.relative_to(whole)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    image = forebay.open(whole)[5].image
    shard = root / pathlib.Path(forebay.open(whole)[5].shard).name
    data = shard.read_bytes()
    at = data.index(image) + len(image) // 2
    shard.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for source in (str(root), serve(root)):
        with pytest.raises(forebay.CorruptRecordError):
            whole_epoch(source, shuffle=False)
        zero = whole_epoch(source, shuffle=False, on_error="zero")[0]
        assert zero.failed.tolist() == [i == 5 for i in range(8)]
        assert len(zero.image_bytes(5)) == 0 and zero.labels[5] == -1
        assert bytes(zero.image_bytes(6)) == forebay.open(whole)[6].image
        skip = whole_epoch(source, shuffle=False, on_error="skip")[0]
        assert skip.failed[5] and skip.samples[5] == 6
        assert bytes(skip.image_bytes(5)) == forebay.open(whole)[6].image


def test_functions_may_decode(source: str) -> None:
    def lengths(batch: forebay.Batch) -> Any:
        return np.array([len(image) for image in batch[0]]), batch.labels

    with loader(source, transform=RAW, shuffle=True) as plain:
        want = [np.diff(batch.offsets).tolist() for batch in plain]
    with forebay.Mapped(loader(source, transform=RAW, shuffle=True), map_batch=lengths) as it:
        got = [batch.images.tolist() for batch in it]
    assert got == want


def test_tensors_of_torch(source: str) -> None:
    torch = pytest.importorskip("torch")
    plain = whole_epoch(source)
    images, labels = plain[0].torch()
    assert [bytes(image.numpy()) for image in images] == [bytes(image) for image in plain[0][0]]
    assert images[0].dtype == torch.uint8 and images[0].data_ptr() == plain[0].encoded.ctypes.data
    with forebay.torch.Loader(source, batch_size=8, transform=RAW, shuffle=True) as it:
        for batch, other in zip(it, plain, strict=True):
            assert [bytes(image.numpy()) for image in batch[0]] == [bytes(i) for i in other[0]]
            assert batch.labels.tolist() == other.labels.tolist()
    for wrong in ({"normalize": ((0, 0, 0), (1, 1, 1))}, {"channels_last": True}):
        with pytest.raises(forebay.OptionError, match="stay encoded"):
            forebay.torch.Loader(source, batch_size=8, transform=RAW, shuffle=True, **wrong)
