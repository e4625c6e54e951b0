"""Datasets that were packed into a store that speaks S3, and are trained on from there."""

from __future__ import annotations

import pathlib

import pytest

import forebay
from conftest import forebay_command


@pytest.fixture
def place(
    s3_endpoint: str, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The dataset of `packed`, packed into a bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    place = "s3://bucket/images/packed"
    done = forebay_command(
        "pack", packed["indexed"].with_name("images"), place, "--format", "indexed", "--shards", "3",
        "--split", "train", "--seed", "5", "--staging", tmp_path / "stage",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = forebay_command("verify", place)
    assert done.returncode == 0, done.stderr
    return place


def test_a_loader_reads_what_was_packed_into_a_bucket(
    place: str, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    def batches(where: object, **options: object) -> list[tuple[bytes, bytes, bytes]]:
        transform = forebay.TrainTransform(32)
        loader = forebay.Loader(where, batch_size=8, transform=transform, seed=3, **options)  # type: ignore[arg-type]
        with loader:
            return [
                (batch.images.tobytes(), batch.labels.tobytes(), batch.samples.tobytes()) for batch in loader
            ]

    assert forebay.open(place).fingerprint == forebay.open(packed["indexed"]).fingerprint
    expected = batches(packed["indexed"])
    assert batches(place) == expected
    cached = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": str(256 << 20)}
    for _ in range(2):
        assert batches(place, storage_options=cached) == expected
