"""Several datasets as one."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import CLASSES, IMAGES_PER_CLASS, Serve, forebay_command, png

TOTAL = len(CLASSES) * IMAGES_PER_CLASS
OTHERS = ["n01443537", "zebra"]
EACH = 5


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A second dataset, with one class of the first."""
    root = tmp_path_factory.mktemp("other")
    for label, name in enumerate(OTHERS):
        for number in range(EACH):
            path = root / "images" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(50, 40, 1000 + label * 10 + number))
    done = forebay_command(
        "pack", root / "images", root / "set", "--format", "tfrecord", "--split", "train", "--shards", "2"
    )
    assert done.returncode == 0, done.stderr
    return root / "set"


@pytest.fixture(scope="module")
def zero_based(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The classes of the first dataset, stored from 0."""
    root = tmp_path_factory.mktemp("zero")
    for label, name in enumerate(CLASSES):
        path = root / "images" / name / "0.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(png(50, 40, 2000 + label))
    done = forebay_command(
        "pack", root / "images", root / "set", "--split", "train", "--format", "indexed", "--label-base", "0"
    )
    assert done.returncode == 0, done.stderr
    return root / "set"


@pytest.fixture
def first(packed: dict[str, pathlib.Path]) -> pathlib.Path:
    return packed["indexed"]


def loader(source: Any, **options: Any) -> forebay.Loader:
    transform = forebay.EvalTransform(24, resize=32)
    given = {"batch_size": 4, "transform": transform, "shuffle": True, "drop_last": True, "rank": 0, "world_size": 1, **options}
    return forebay.Loader(source, **given)


Sample = tuple[bytes, int, int, int]


def epoch(it: forebay.Loader) -> list[Sample]:
    """Pixels, label, number and dataset of each sample but for padding."""
    found: list[Sample] = []
    for batch in it:
        assert batch.datasets is not None and batch.datasets.dtype == np.int64
        for at in np.flatnonzero(~batch.padding):
            label, sample, dataset = (int(a[at]) for a in (batch.labels, batch.samples, batch.datasets))
            found.append((batch.images[at].tobytes(), label, sample, dataset))
    return found


def test_each_record_once(first: pathlib.Path, other: pathlib.Path) -> None:
    alone: list[Sample] = []
    for number, (path, start) in enumerate([(first, 0), (other, TOTAL)]):
        with loader(path, shuffle=False, drop_last=False) as it:
            assert it.dataset_starts is None
            for batch in it:
                assert batch.datasets is None
                for at in np.flatnonzero(~batch.padding):
                    sample = int(batch.samples[at]) + start
                    alone.append((batch.images[at].tobytes(), int(batch.labels[at]), sample, number))
    with loader(forebay.Mix([first, other]), drop_last=False) as it:
        assert it.records == it.epoch_samples == TOTAL + 2 * EACH
        assert it.dataset_starts == [0, TOTAL]
        assert it.split == "train" and " + " in it.source
        found = epoch(it)
    assert found != alone
    assert sorted(found, key=lambda sample: sample[2]) == alone


def test_weights_are_shares(first: pathlib.Path, other: pathlib.Path) -> None:
    mix = forebay.Mix([(first, 0.75), (other, 0.25)])
    with loader(mix, num_samples=40) as it:
        assert it.epoch_samples == 40 and len(it) == 10
        epochs = [epoch(it) for _ in range(3)]
    for found in epochs:
        assert sum(sample[3] for sample in found) == 10
    # 10 of 10 records in each epoch, 30 of 42.
    seen = [sample[2] for found in epochs for sample in found]
    counts = np.bincount(seen, minlength=TOTAL + 2 * EACH)
    assert (counts[TOTAL:] == 3).all() and set(counts[:TOTAL].tolist()) == {2, 3}
    # The same global batches for two ranks.
    ranks: list[list[list[int]]] = []
    for rank in range(2):
        with loader(mix, num_samples=40, batch_size=2, rank=rank, world_size=2) as it:
            ranks.append([batch.samples.tolist() for batch in it])
    whole = [[s for pair in zip(a, b, strict=True) for s in pair] for a, b in zip(*ranks, strict=True)]
    assert [s for batch in whole for s in batch] == [sample[2] for sample in epochs[0]]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("stored", [0, 1]),
        ("offset", [3, 4]),
        ("names", [1, 3]),
        ([0, 100], [100, 101]),
    ],
)
def test_labels(first: pathlib.Path, other: pathlib.Path, labels: Any, expected: list[int]) -> None:
    for options in ({}, {"label_base": 0}, {"label_base": 1}, {"label_base": "stored"}):
        shift = 1 if options.get("label_base", 0) else 0
        with loader(forebay.Mix([first, other], labels=labels), drop_last=False, **options) as it:
            found = epoch(it)
            assert it.label_base == shift
        for number, those in enumerate([[0, 1, 2], expected]):
            mine = sorted({label for _, label, _, dataset in found if dataset == number})
            assert mine == [label + shift for label in those]


def test_labels_of_datasets_that_count_from_different_numbers(
    first: pathlib.Path, zero_based: pathlib.Path
) -> None:
    mix = forebay.Mix([first, zero_based])
    for base in (0, 1):
        with loader(mix, drop_last=False, label_base=base) as it:
            assert it.label_base == base and it.classes == CLASSES
            found = epoch(it)
        for number in (0, 1):
            mine = {label for _, label, _, dataset in found if dataset == number}
            assert mine == {base, base + 1, base + 2}, number
    with loader(mix, drop_last=False, label_base="stored") as it:
        assert it.label_base is None and it.classes == []
        found = epoch(it)
    assert {label for _, label, _, dataset in found if dataset == 0} == {1, 2, 3}
    assert {label for _, label, _, dataset in found if dataset == 1} == {0, 1, 2}
    with loader(forebay.Mix([zero_based, first], labels="names"), drop_last=False) as it:
        assert it.classes == CLASSES
        assert {label for _, label, _, _ in epoch(it)} == {0, 1, 2}


def test_classes_are_named_in_the_order_of_labels(first: pathlib.Path, other: pathlib.Path) -> None:
    here, there = forebay.open(first).classes, forebay.open(other).classes
    for labels, expected in (
        ("stored", []),  # label 0 is a class of each
        ("offset", here + there),
        ("names", list(dict.fromkeys(here + there))),
        ([0, len(here)], here + there),
        ([0, 100], []),  # labels without a class in between
    ):
        with loader(forebay.Mix([first, other], labels=labels)) as it:  # type: ignore[arg-type]
            assert it.classes == expected, labels
    with loader(forebay.Mix([first, first])) as it:
        assert it.classes == here


def test_classes_by_name(first: pathlib.Path, other: pathlib.Path) -> None:
    mix = forebay.Mix([first, other], labels="names")
    with loader(mix, classes=["n01443537"], drop_last=False) as it:
        found = epoch(it)
    assert len(found) == IMAGES_PER_CLASS + EACH and {label for _, label, _, _ in found} == {1}
    with pytest.raises(forebay.OptionError, match="differ"):
        loader(forebay.Mix([first, other]), classes=["n01443537"])


def test_states_name_datasets_and_weights(first: pathlib.Path, other: pathlib.Path) -> None:
    mix = forebay.Mix([(first, 0.5), (other, 0.5)])
    with loader(mix) as it:
        whole = [batch.samples.tolist() for batch in it]
        steps = iter(it)
        for _ in range(5):
            next(steps)
        state = json.loads(json.dumps(it.state_dict()))
        second = [batch.samples.tolist() for batch in steps]
    assert state["epoch"] == 1 and state["position"] == 20
    for path in (first, other):
        assert forebay.open(path).fingerprint in state["fingerprint"]
    with loader(mix, batch_size=8) as it:
        it.load_state_dict(state)
        assert [s for batch in it for s in batch.samples.tolist()] == sum(second, [])[: 8 * 4]
    assert len(whole) == 13 and len(second) == 8
    for another in (
        forebay.Mix([(first, 0.6), (other, 0.4)]),
        forebay.Mix([(other, 0.5), (first, 0.5)]),
        forebay.Mix([first, other]),
        first,
    ):
        with loader(another) as it, pytest.raises(forebay.StateError, match="fingerprint"):
            it.load_state_dict(state)


def test_weights_of_each_epoch(first: pathlib.Path, other: pathlib.Path) -> None:
    def harder(epoch: int) -> list[float]:
        return [1, min(epoch / 2, 1)]

    listed = forebay.Mix([first, other], weights=[[1, 0], [1, 0.5], [1, 1], [1, 1]])
    called = forebay.Mix([first, other], weights=harder)
    assert called == listed and called.weights == ((1.0, 0.0), (1.0, 0.5), (1.0, 1.0))
    with loader(called, num_samples=48, drop_last=False) as it:
        assert len(it) == 12
        shares = []
        for _ in range(4):
            found = epoch(it)
            assert len(found) == 48 and len(it) == 12
            shares.append(sum(dataset for *_, dataset in found))
        assert shares == [0, 16, 24, 24]
        it.set_epoch(1)
        second = [batch.samples.tolist() for batch in it]
        it.set_epoch(1)
        steps = iter(it)
        for _ in range(5):
            next(steps)
        state = json.loads(json.dumps(it.state_dict()))
    with loader(listed, num_samples=48, drop_last=False) as it:
        it.load_state_dict(state)
        assert [batch.samples.tolist() for batch in it] == second[5:]
    # A function that gives other weights is another mix, before and after the epoch of the state.
    for changed in (lambda epoch: [1, min(epoch / 3, 1)], lambda epoch: [1, min(epoch / 2, 2)], lambda epoch: [1, 0.5]):
        with loader(forebay.Mix([first, other], weights=changed), num_samples=48) as it:
            with pytest.raises(forebay.StateError, match=r"_fingerprint is mix\(.*; weights of 3 epochs=[0-9a-f]{16}\) there and mix\(.* here"):
                it.load_state_dict(state)
    with pytest.raises(forebay.OptionError, match="option reshuffle is false: expected true with weights of a mix that change"):
        loader(listed, reshuffle=False)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_served_mix_is_that_of_this_process(
    first: pathlib.Path, other: pathlib.Path, serve: Serve, tmp_path: pathlib.Path, transport: Any
) -> None:
    config = tmp_path / "CONFIG.toml"
    config.write_text(
        f'[datasets.first]\npath = "{first}"\n[datasets.other]\npath = "{other}"\n'
        '[mixes.both]\ndatasets = ["first", "other"]\nweights = [[1, 0], [1, 0.5], [1, 1]]\nlabels = "names"\n'
        '[jobs.trial]\ndataset = "both"\nbatch_size = 4\nshuffle = true\ndrop_last = true\nseed = 3\n'
        'transform = { kind = "eval", resize = 32, crop = 24 }\n'
    )
    url = serve(config)
    mix = forebay.Mix([first, other], weights=[[1, 0], [1, 0.5], [1, 1]], labels="names")
    place = url.rsplit("/", 1)[0]
    served: list[Callable[[], forebay.Loader]] = [
        lambda: loader(f"{place}/both", seed=3, transport=transport),
        lambda: forebay.Loader(f"{place}/trial", rank=0, world_size=1, transport=transport),
    ]
    for open_served in served:
        with loader(mix, seed=3) as here, open_served() as there:
            assert len(here) == len(there) and there.dataset_starts == here.dataset_starts == [0, TOTAL]
            assert there.classes == here.classes and there.label_base == 0
            wholes = [epoch(here) for _ in range(3)]
            assert [epoch(there) for _ in range(3)] == wholes
            assert [any(dataset for *_, dataset in whole) for whole in wholes] == [False, True, True]
            # A state of this process goes on at the server, and the other way round.
            for one, another in ((here, there), (there, here)):
                one.set_epoch(1)
                steps = iter(one)
                for _ in range(5):
                    next(steps)
                state = json.loads(json.dumps(one.state_dict()))
                rest = [batch.samples.tolist() for batch in steps]
                another.load_state_dict(state)
                assert [batch.samples.tolist() for batch in another] == rest and len(rest) == 8
    changed = forebay.Mix([first, other], weights=[[1, 0], [1, 0.4], [1, 1]], labels="names")
    with loader(changed, seed=3) as it, pytest.raises(forebay.StateError, match="weights of 3 epochs"):
        it.load_state_dict(state)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('datasets = ["first", "second"]', 'there is no dataset "second", but first'),
        ('datasets = ["first"]\nweights = [1, 2]', "weights is 2 numbers: expected 1, one for each dataset"),
        ('datasets = ["first"]\nweights = [[1], [0]]', "weights is a sum of 0"),
        ("datasets = []", "datasets is without a common split"),
    ],
)
def test_mixes_that_no_server_has(first: pathlib.Path, tmp_path: pathlib.Path, table: str, message: str) -> None:
    config = tmp_path / "CONFIG.toml"
    config.write_text(f'[datasets.first]\npath = "{first}"\n[mixes.both]\n{table}\n')
    done = forebay_command("serve", config, "--dry-run")
    assert done.returncode == 2 and "[mixes.both]: " in done.stderr and message in done.stderr, done.stderr


def test_weights_that_change_are_values() -> None:
    mix = forebay.Mix(["a", "b"], weights=[[1, 0], [1, 2]])
    for same in (copy.deepcopy(mix), pickle.loads(pickle.dumps(mix)), eval(repr(mix), {"Mix": forebay.Mix})):
        assert same == mix and hash(same) == hash(mix)
    assert forebay.Mix(["a", "b"], weights=[1, 2]) == forebay.Mix([("a", 1), ("b", 2)])
    assert repr(forebay.Mix(["a", "b"], weights=lambda epoch: [1, epoch])) == "Mix(['a', 'b'], weights=<10000 epochs>)"
    for weights, message in [
        ([[1, 0], [1]], r"weights in epoch 1: expected 2 numbers, one for each dataset, found 1"),
        ([[1, 0], 3], r"weights in epoch 1: expected a number for each dataset, found 3"),
        ([[1, 0], [0, 0]], r"the weights in epoch 1 are all 0"),
        (lambda epoch: [1, 5 - epoch], r"the weight of 'b' in epoch 6 is -1.0: expected a number of at least 0"),
        ([1], r"weights: expected 2 numbers"),
        ([], r"weights: expected 2 numbers"),
        (["x", "y"], r"weights in epoch 0: expected a number"),
    ]:
        with pytest.raises(forebay.OptionError, match=message):
            forebay.Mix(["a", "b"], weights=weights)  # type: ignore[arg-type]
    with pytest.raises(forebay.OptionError, match="datasets without weights of their own"):
        forebay.Mix([("a", 1), ("b", 1)], weights=[1, 2])
    with pytest.raises(ZeroDivisionError):
        forebay.Mix(["a", "b"], weights=lambda epoch: [1, 1 / epoch])


def test_mapped_batches_know_their_datasets(first: pathlib.Path, other: pathlib.Path) -> None:
    mix = forebay.Mix([first, other])
    with loader(mix) as it:
        plain = [batch.datasets.tolist() for batch in it if batch.datasets is not None]
    mapped = forebay.Mapped(loader(mix), map_batch=lambda batch: (batch.images, batch.labels))
    with mapped:
        assert [batch.datasets.tolist() for batch in mapped] == plain


def test_mixes_are_values() -> None:
    datasets: list[Any] = [("a", 1), (pathlib.Path("b"), 2)]
    mix = forebay.Mix(datasets, labels=[0, 5])
    assert (mix.sources, mix.weights, mix.labels) == (("a", "b"), (1.0, 2.0), (0, 5))
    for same in (copy.deepcopy(mix), pickle.loads(pickle.dumps(mix)), eval(repr(mix), {"Mix": forebay.Mix})):
        assert same == mix and hash(same) == hash(mix)
    assert repr(forebay.Mix(["a", "b"])) == "Mix(['a', 'b'])"
    assert forebay.Mix(["a", "b"], labels="names") != forebay.Mix(["a", "b"])


@pytest.mark.parametrize(
    ("datasets", "labels", "message"),
    [
        ([], "stored", "empty"),
        ("packed/", "stored", "list of paths"),
        ({"a": 1.0}, "stored", "pairs"),
        ([("a", 1.0), "b"], "stored", "some have a weight"),
        ([("a", -1.0)], "stored", "at least 0"),
        ([("a", float("nan"))], "stored", "at least 0"),
        ([("a", 0.0), ("b", 0.0)], "stored", "all 0"),
        (["a", "forebay://host:1/b"], "stored", "in this process"),
        (["a"], "somehow", "somehow"),
        (["a", "b"], [1], "1 numbers"),
    ],
)
def test_what_cannot_be(datasets: Any, labels: Any, message: str) -> None:
    with pytest.raises(forebay.OptionError, match=message):
        forebay.Mix(datasets, labels=labels)


def test_loaders_that_cannot_be(first: pathlib.Path, other: pathlib.Path, serve: Serve) -> None:
    weighted = forebay.Mix([(first, 1), (other, 1)])
    with pytest.raises(forebay.OptionError, match="one of the two"):
        loader(weighted, class_balanced=True)
    with pytest.raises(forebay.OptionError, match="dataset 1, which weighs 1"):
        loader(weighted, limit=5)
    with pytest.raises(forebay.OptionError, match='no split "validation"'):
        loader(weighted, split="validation")
    with pytest.raises(forebay.MissingError):
        loader(forebay.Mix([first, other / "nowhere"]))
    with pytest.raises(forebay.OptionError, match="in this process"):
        forebay.Mix([serve(first)])
    with pytest.raises(TypeError):
        loader(5)
