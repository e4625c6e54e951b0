"""Types of numbers: what they are, and that every library sees the batch's own memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import forebay
from conftest import python
from test_loader import epochs, loader

DTYPES = ["uint8", "float32", "float16", "bfloat16"]


def batch_of(source: str, **options: Any) -> forebay.Batch:
    with loader(source, **options) as it:
        return next(iter(it))


def bits_of_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even, on the bits of float32."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_numbers_are_the_bytes_divided_by_255(source: str, layout: str) -> None:
    bytes_ = batch_of(source, layout=layout).images
    single = batch_of(source, layout=layout, dtype="float32")
    assert single.dtype == "float32" and single.images.dtype == np.float32
    assert single.images.shape == bytes_.shape
    expected = bytes_.astype(np.float32) * np.float32(1 / 255)
    assert (single.images == expected).all()
    half = batch_of(source, layout=layout, dtype="float16")
    assert half.images.dtype == np.float16
    assert (half.images == expected.astype(np.float16)).all()
    assert "float16[8" in repr(half)
    assert half.digest == single.digest and (half.labels == single.labels).all()


def test_bfloat16_is_named_by_ml_dtypes(source: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    expected = bits_of_bfloat16(batch_of(source, dtype="float32").images)
    brain = batch_of(source, dtype="bfloat16")
    images, _labels = brain
    assert images.dtype == ml_dtypes.bfloat16 and images is brain.images
    assert (images.view(np.uint16) == expected).all()


def test_bfloat16_without_ml_dtypes_says_what_helps(source: str) -> None:
    code = """
import sys
sys.modules["ml_dtypes"] = None
import forebay
with forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.TrainTransform(32), dtype="bfloat16") as loader:
    batch = next(iter(loader))
print(len(batch.labels), batch.dtype)
try:
    batch.images
except ImportError as error:
    print(error)
"""
    done = python(code, source)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 bfloat16\n") and "ml_dtypes" in done.stdout


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_shares_the_memory(source: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    batch = batch_of(source, dtype=dtype)
    images, labels = batch.torch()
    assert images.dtype == getattr(torch, dtype) and images.shape == (8, 32, 32, 3)
    assert torch.from_dlpack(batch).data_ptr() == images.data_ptr()
    if dtype != "bfloat16":
        assert (torch.from_numpy(batch.images) == images).all()
    single = batch_of(source, dtype="float32").torch()[0]
    if dtype != "uint8":
        assert (single.to(images.dtype) == images).all()
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_server_gives_the_same_bytes(
    packed: dict[str, Any], serve: Any, dtype: str
) -> None:
    here = epochs(packed["indexed"], dtype=dtype) if dtype != "bfloat16" else None
    url = serve(packed["indexed"])
    if here is not None:
        assert here == epochs(url, dtype=dtype)
    with loader(packed["indexed"], dtype=dtype) as a, loader(url, dtype=dtype) as b:
        for x, y in zip(a, b, strict=True):
            assert x.digest == y.digest and x.dtype == y.dtype == dtype


def test_unknown_types_are_refused(source: str) -> None:
    with pytest.raises(forebay.OptionError, match="float64.*bfloat16"):
        loader(source, dtype="float64")
