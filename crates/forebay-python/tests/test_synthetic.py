"""Datasets that are nowhere, named where a dataset is."""

import pytest

import forebay


def test_a_loader_reads_records_that_are_nowhere() -> None:
    url = "synthetic://imagenet?records=200&pictures=2"
    loader = forebay.Loader(url, batch_size=16, transform=forebay.EvalTransform(32, resize=40), shuffle=True)
    images, labels = next(iter(loader))
    assert images.shape == (16, 32, 32, 3)
    assert len(set(labels.tolist())) == 16
    again = forebay.Loader(url, batch_size=16, transform=forebay.EvalTransform(32, resize=40), shuffle=True)
    assert (next(iter(again)).images == images).all()


def test_records_are_read_one_by_one() -> None:
    data = forebay.open("synthetic://imagenet?records=30&pictures=2&damage=1")
    assert len(data.split("train")) == 30
    with pytest.raises(forebay.CorruptRecordError):
        data.split("train")[3]


def test_a_key_that_is_not_known_is_an_option_error() -> None:
    with pytest.raises(forebay.OptionError, match="did you mean records"):
        forebay.Loader("synthetic://imagenet?recods=3", batch_size=16, transform=forebay.TrainTransform(32))
    with pytest.raises(forebay.Error, match="forebay serve"):
        forebay.Loader("synthetic://imagenet?decode=off", batch_size=16, transform=forebay.TrainTransform(32))
