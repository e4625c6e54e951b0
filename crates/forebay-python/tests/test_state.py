"""Resuming: a state is a few numbers, and it is checked."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
from typing import Any

import pytest

import forebay
from conftest import Serve, forebay_command
from test_loader import content, epochs, loader


def rest(source: Any, state: dict[str, Any], count: int, **options: Any) -> list[Any]:
    with loader(source, **options) as it:
        it.load_state_dict(state)
        return [content(batch) for _ in range(count) for batch in it]


def test_resuming_after_any_batch_gives_the_very_next_one(source: str) -> None:
    whole = epochs(source, 2, drop_last=False)
    with loader(source, drop_last=False) as it:
        states = [it.state_dict()]
        for _ in range(2):
            for _batch in it:
                states.append(it.state_dict())
    for delivered, state in enumerate(states):
        left = rest(source, state, 2, drop_last=False)
        assert left[: len(whole) - delivered] == whole[delivered:][: len(left)]
        assert left


def test_a_state_survives_json_and_pickle(source: str) -> None:
    with loader(source) as it:
        next(iter(it))
        state = it.state_dict()
    assert state["epoch"] == 0 and state["position"] == 8
    assert json.loads(json.dumps(state)) == state == pickle.loads(pickle.dumps(state))


def test_from_a_path_to_a_server_and_back(
    packed: dict[str, pathlib.Path], serve: Serve
) -> None:
    path, url = packed["tfrecord"], serve(packed["tfrecord"])
    whole = epochs(path, 1)
    with loader(path) as it:
        batches = iter(it)
        next(batches), next(batches)
        state = it.state_dict()
    assert rest(url, state, 1) == whole[2:]
    with loader(url) as it:
        it.load_state_dict(state)
        next(iter(it))
        assert rest(path, it.state_dict(), 1) == whole[3:]


def test_another_world_size_goes_on_with_the_same_samples(source: str) -> None:
    whole = epochs(source)
    with loader(source) as it:
        batches = iter(it)
        next(batches), next(batches)
        state = it.state_dict()
    ranks = [rest(source, state, 1, batch_size=4, rank=r, world_size=2) for r in range(2)]
    assert [sorted(a[8] + b[8]) for a, b in zip(*ranks, strict=True)] == [
        sorted(batch[8]) for batch in whole[2:]
    ]


def test_after_the_last_batch_the_next_epoch_is_next(source: str) -> None:
    whole = epochs(source, 2)
    with loader(source) as it:
        batches = iter(it)
        for _ in range(len(it)):
            next(batches)
        inside = it.state_dict()
        assert next(batches, None) is None
        after = it.state_dict()
    assert inside == after
    assert (inside["epoch"], inside["position"]) == (1, 0)
    assert rest(source, inside, 1) == whole[len(whole) // 2 :]


def test_loading_ends_running_loops_and_set_epoch_keeps_the_position(source: str) -> None:
    whole = epochs(source)
    with loader(source) as it:
        old = iter(it)
        next(old)
        state = it.state_dict()
        next(old)
        it.load_state_dict(state)
        with pytest.raises(forebay.StateError):
            next(old)
        it.set_epoch(0)
        assert [content(batch) for batch in it] == whole[1:]


@pytest.mark.parametrize(
    "name",
    ["fingerprint", "sample_fingerprint", "split", "seed", "virtual_ranks", "shuffle", "records"],
)
def test_a_state_of_something_else_is_refused(source: str, name: str) -> None:
    with loader(source) as it:
        state = it.state_dict()
        wrong = copy.copy(state)
        wrong[name] = state[name] + 1 if isinstance(state[name], int) else "other"
        if name == "fingerprint":
            wrong["sample_fingerprint"] = None
        with pytest.raises(forebay.StateError, match=name):
            it.load_state_dict(wrong)
        it.load_state_dict(state)


def test_a_run_goes_on_after_a_conversion(
    packed: dict[str, pathlib.Path], serve: Serve, tmp_path: pathlib.Path
) -> None:
    """Another format and other shards: the samples and their order stay."""
    before, after = packed["tfrecord"], tmp_path / "converted"
    done = forebay_command("convert", before, after, "--format", "indexed", "--shards", "5")
    assert done.returncode == 0, done.stderr
    datasets = [forebay.open(path) for path in (before, after)]
    assert datasets[0].fingerprint != datasets[1].fingerprint
    assert datasets[0].sample_fingerprint == datasets[1].sample_fingerprint is not None
    assert datasets[0].manifest["order"] == datasets[1].manifest["order"]
    whole = epochs(before, 2)
    with loader(before) as it:
        next(iter(it))
        state = it.state_dict()
        assert state["sample_fingerprint"] == it.sample_fingerprint
        assert it.sample_fingerprint == datasets[0].sample_fingerprint
    assert rest(after, state, 2) == whole[1:]
    assert rest(serve(after), state, 2) == whole[1:]


def test_what_is_no_state_is_refused(source: str) -> None:
    with loader(source) as it:
        state = it.state_dict()
        for wrong in (
            {},
            {**state, "version": 99},
            {**state, "position": -1},
            {**state, "position": 10_000},
            {**state, "epoch": "first"},
            {key: value for key, value in state.items() if key != "epoch"},
        ):
            with pytest.raises(forebay.StateError):
                it.load_state_dict(wrong)


def test_options_that_do_not_change_the_order_may_change(source: str) -> None:
    with loader(source) as it:
        next(iter(it))
        state = it.state_dict()
    got = rest(source, state, 1, batch_size=2, transform=forebay.EvalTransform(16, resize=20), shuffle=True)
    assert len(got) == (42 - 8) // 2


def test_a_state_is_of_labels(source: str) -> None:
    """The same labels may be named in other words; other labels would be learned on top."""
    with loader(source) as it:
        next(iter(it))
        state = it.state_dict()
    assert state["label_base"] == 0
    for base in (1, "stored"):
        with loader(source, label_base=base) as it, pytest.raises(
            forebay.StateError, match="label_base is 0 there and 1 here"
        ):
            it.load_state_dict(state)
    with loader(source, label_base=1) as it:
        other = it.state_dict()
    with loader(source, label_base="stored") as it:
        it.load_state_dict(other)
    del state["label_base"]
    with loader(source) as it, pytest.raises(forebay.StateError, match='"label_base" is missing'):
        it.load_state_dict(state)
