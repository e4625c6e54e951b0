"""The likeliest mistakes: each is one sentence that says what would be right, of the class that one expects."""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import shutil
from typing import Any

import pytest

import forebay
from forebay import checkpoint
from test_storage import Web, web

__all__ = ["web"]

CROP = forebay.RandomResizedCrop(32)


@pytest.mark.parametrize("use", [forebay.open, functools.partial(forebay.Loader, transform=[CROP])])
def test_places_that_are_no_dataset(use: Any, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    shard = next(path for path in sorted(packed["tfrecord"].iterdir()) if path.name.startswith("train-"))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    shutil.copy(shard, foreign / shard.name)
    for place, said in (
        (tmp_path / "nothing", "there is no dataset at .*nothing.*no such file or directory.*forebay.json"),
        (packed["indexed"].parent / "images", "is not a dataset.*to make one from a directory of images: `forebay pack"),
        (shard, "is a file, not a dataset; name the directory that holds its forebay.json"),
        (foreign, "is not a dataset.*`forebay index"),
    ):
        with pytest.raises(forebay.MissingError, match=said) as caught:
            use(place)
        assert caught.value.path == os.fspath(place / "forebay.json")
        assert "\n" not in str(caught.value)
    assert len(use(packed["indexed"] / "forebay.json")) > 0


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"batchsize": 8}, TypeError, "batchsize"),
        ({"batch_size": 0}, forebay.OptionError, "option batch_size is 0: expected 1 to"),
        ({"batch_size": -1}, forebay.OptionError, "option batch_size is -1: expected a whole number from 0"),
        ({"batch_size": 10**6000}, forebay.OptionError, "option batch_size is too large"),
        ({"batch_size": "8"}, TypeError, "batch_size"),
        ({"batch_size": 8.0}, TypeError, "batch_size"),
        ({"threads": -1}, forebay.OptionError, "option threads is -1"),
        ({"seed": -1}, forebay.OptionError, "option seed is -1"),
        ({"memory": 1000}, forebay.OptionError, "memory budget of 1000 bytes is too small.*raise it, or use smaller batches"),
        ({"batch_size": 1000}, forebay.OptionError, "42 samples.*1000.*smaller batches.*drop_last=False"),
        ({"resize_like": "pilow"}, forebay.OptionError, "option resize_like is \"pilow\": expected 'pillow'"),
        ({"layout": "hwc"}, forebay.OptionError, "option layout is \"hwc\": expected 'nhwc' or 'nchw'"),
        ({"on_error": "ignore"}, forebay.OptionError, "expected 'raise', 'skip' or 'zero'"),
        ({"shuffle": 3.5}, TypeError, "option shuffle: expected True, False or one of 'none', 'blocks', 'full', 'window', found a value of type float"),
        ({"split": "trian"}, forebay.OptionError, 'has no split "trian": there are train'),
        ({"classes": [3.5]}, TypeError, "option classes: expected the name of a class, or its label, found a value of type float"),
        ({"classes": ["n0144076"]}, forebay.OptionError, "n0144076"),
        ({"indices": [0, -1]}, forebay.OptionError, "option indices is a list with a number below 0"),
        ({"indices": [0, 10**6]}, forebay.OptionError, "expected numbers below 42"),
        ({"weights": 3}, TypeError, "expected a dict of classes to numbers"),
        ({"rank": 2}, forebay.OptionError, "option world_size is missing: rank is 2; give both rank= and world_size="),
        ({"rank": 2, "world_size": 2}, forebay.OptionError, "option rank is 2: expected 0 to 1, in a world of 2"),
        ({"rank": 0, "world_size": 6}, forebay.OptionError, "42 samples, and a batch of all ranks takes 48"),
        ({"timeout": -1.0}, forebay.OptionError, "option timeout is -1: expected seconds, more than 0, or None"),
        ({"transform": 224}, TypeError, "expected TrainTransform, EvalTransform, KeepEncoded or a list of transforms, found a value of type int"),
        ({"transform": forebay.Resize(8)}, TypeError, "a list of transforms.*found a value of type Resize"),
        ({"transform": lambda image: image}, TypeError, "functions go into forebay.Mapped"),
        ({"transform": [forebay.RandomHorizontalFlip()]}, forebay.OptionError, "RandomHorizontalFlip comes first: begin with"),
        ({"transform": [CROP, forebay.Normalize(), forebay.ColorJitter(0.1)]}, forebay.OptionError, "ColorJitter after Normalize"),
        ({"transform": [CROP, forebay.Normalize()], "dtype": "uint8"}, forebay.OptionError, "^invalid transform: normalized values do not fit into uint8"),
        ({"transform": [CROP, CROP]}, forebay.OptionError, "RandomResizedCrop comes too late"),
        ({"transform": [forebay.Resize(32)]}, forebay.OptionError, r"put CenterCrop\(32\) right after it"),
        ({"storage_options": {"anonymous": True}}, TypeError, "expected anonymous as str.*found a value of type bool"),
        ({"storage_options": "anonymous"}, TypeError, "expected a dict of str to str"),
    ],
)
def test_options_that_cannot_be(
    options: dict[str, Any], kind: type[Exception], said: str, packed: dict[str, pathlib.Path]
) -> None:
    with pytest.raises(kind, match=said) as caught:
        forebay.Loader(packed["indexed"], **{"batch_size": 8, "transform": forebay.TrainTransform(32), **options})
    text = str(caught.value)
    # None of the words of the language that it is written in.
    assert "\n" not in text and not any(word in text for word in ("enum", "Some(", "variant", "::", "u64")), text


def test_values_that_cannot_be(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    with forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32)) as loader, pytest.raises(forebay.OptionError, match="epoch is -1"):
        loader.set_epoch(-1)
    for make in (lambda: forebay.TrainTransform(-1), lambda: forebay.EvalTransform(224, resize=-1)):
        with pytest.raises(forebay.OptionError, match="size is -1 pixels"):
            make()
    for source in (None, 5, [packed["indexed"]]):
        with pytest.raises(TypeError, match="the path or address of a dataset, or a forebay.Mix of several"):
            forebay.Loader(source, transform=forebay.TrainTransform(32))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a forebay.Loader, or what was made of one, found a value of type str"):
        forebay.Mapped("packed/", map_batch=print)  # type: ignore[arg-type]
    with pytest.raises(forebay.OptionError, match='^cannot use s3://bucket/x: there is no storage option "endpont"'):
        forebay.open("s3://bucket/x", storage_options={"endpont": "x"})
    run = tmp_path / "run"
    with pytest.raises(forebay.MissingCheckpointError, match="None, which is what latest"):
        checkpoint.load(checkpoint.latest(run, stage=tmp_path / "stage"))  # type: ignore[arg-type]
    with pytest.raises(forebay.CheckpointError, match="no such file or directory to save"):
        checkpoint.save("model.pt", run / "step-1", stage=tmp_path / "stage")


def test_ranks_of_the_environment(packed: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(forebay.OptionError, match="RANK.*expected a number below WORLD_SIZE, 2"):
        forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32))
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(forebay.OptionError, match="WORLD_SIZE.*expected a number"):
        forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32))


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        (None, TypeError, "state"),
        (7, TypeError, "state"),
        ({}, forebay.StateError, 'not a state of a loader: "version" is missing'),
        ({"seed": 9}, forebay.StateError, "of another stream of samples: seed is 9 there and 0 here"),
        ({"sample_fingerprint": "x"}, forebay.StateError, "of another stream of samples: sample_fingerprint is x there"),
        (
            {"fingerprint": "x", "sample_fingerprint": None},
            forebay.StateError,
            "of another stream of samples: fingerprint is x there",
        ),
        ({"position": 10**6}, forebay.StateError, "position is 1000000, an epoch has 42 samples"),
        ({"position": -1}, forebay.StateError, '"position" is of the wrong kind'),
        ({"version": 2}, forebay.StateError, "of version 2, this is version 1"),
    ],
)
def test_states_that_do_not_fit(state: Any, kind: type[Exception], said: str, packed: dict[str, pathlib.Path]) -> None:
    with forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32)) as loader:
        given = {**loader.state_dict(), **state} if isinstance(state, dict) and state else state
        with pytest.raises(kind, match=said):
            loader.load_state_dict(given)
        # It stands where it stood.
        assert sum(1 for _ in loader) == len(loader)


def test_a_loader_that_was_closed(packed: dict[str, pathlib.Path]) -> None:
    loader = forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32))
    batches = iter(loader)
    loader.close()
    for use in (lambda: next(batches), lambda: iter(loader), lambda: loader.set_epoch(1), loader.__enter__):
        with pytest.raises(forebay.ClosedError, match="the loader is closed: make another one"):
            use()
    loader.close()


def test_classes_that_labels_are_not_of(packed: dict[str, pathlib.Path]) -> None:
    with forebay.Loader(packed["indexed"], batch_size=42, transform=forebay.EvalTransform(32, resize=40), label_base=1) as loader:
        batch = next(iter(loader))
    assert batch.one_hot(4).shape == (42, 4)
    with pytest.raises(forebay.OptionError, match="label 3 is none of 3 classes, 0 to 2: see the loader's label_base"):
        batch.one_hot(3)
    for classes in (-1, 0, 2**32):
        with pytest.raises(forebay.OptionError, match=f"one_hot of {classes} classes.*expected 1 to 16777216 classes"):
            batch.one_hot(classes)


def test_a_bucket_that_is_not_there(s3_endpoint: str) -> None:
    options = {
        "endpoint": s3_endpoint,
        "region": "us-east-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "not-to-be-shown",
    }
    with pytest.raises(forebay.StorageError, match="there is no such bucket") as caught:
        forebay.Loader("s3://nobody-has-this/imagenet", transform=forebay.TrainTransform(32), storage_options=options)
    with pytest.raises(forebay.MissingError, match="s3://bucket/nothing is not a dataset: there is no forebay.json") as missing:
        forebay.open("s3://bucket/nothing", storage_options=options)
    # A script that starts from scratch if there is no checkpoint must not do so for a wrong name.
    with pytest.raises(forebay.CheckpointError, match="there is no such bucket") as saved:
        checkpoint.load("s3://nobody-has-this/run/step-1", storage_options=options)
    with pytest.raises(forebay.MissingCheckpointError, match="no complete checkpoint at s3://bucket/run/step-1"):
        checkpoint.load("s3://bucket/run/step-1", storage_options=options)
    assert not isinstance(saved.value, forebay.MissingCheckpointError)
    for error in (caught.value, missing.value, saved.value):
        assert "not-to-be-shown" not in repr(error) and type(pickle.loads(pickle.dumps(error))) is type(error)


def test_a_store_that_refuses(web: Web) -> None:
    web.refuses = True
    for use in (forebay.open, checkpoint.latest):
        with pytest.raises(forebay.Error) as caught:
            use("s3://bucket/run", storage_options={
                "endpoint": web.url, "region": "us-east-1", "aws_access_key_id": "k", "aws_secret_access_key": "s",
            })  # fmt: skip
        assert "storage option anonymous" in str(caught.value)
        assert "--" not in str(caught.value)


def test_servers_that_are_not_there(serve: Any, packed: dict[str, pathlib.Path]) -> None:
    url = serve(packed["indexed"])
    place, _, name = url.rpartition("/")
    said = "cannot connect to 127.0.0.1:1: .*is `forebay serve` running there.*attempts failed in"
    with pytest.warns(UserWarning, match="trying again"), pytest.raises(forebay.ServerError, match=said):
        forebay.Loader(f"forebay://127.0.0.1:1/{name}", batch_size=8, timeout=0.5)
    with pytest.raises(forebay.MissingError, match="imagenet-of-somebody") as caught:
        forebay.Loader(f"{place}/imagenet-of-somebody", batch_size=8, transform=forebay.TrainTransform(32))
    assert name in str(caught.value)
    with pytest.raises(forebay.OptionError, match="transport|servers?"):
        forebay.Loader(packed["indexed"], batch_size=8, transform=forebay.TrainTransform(32), transport="shm")
    with pytest.raises(forebay.OptionError, match="expected forebay://HOST:PORT/NAME"):
        forebay.Loader("forebay://127.0.0.1", batch_size=8)
