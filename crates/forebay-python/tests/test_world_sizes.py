"""Any number of ranks shares an epoch, and goes on from a state of any other number in the middle of it."""

from __future__ import annotations

import pathlib
from collections import Counter
from typing import Any

import pytest

import forebay
from conftest import png

RECORDS = 9000
KEEP: dict[str, Any] = {"transform": forebay.KeepEncoded(), "shuffle": True, "seed": 7, "threads": 1, "drop_last": False, "pad_last": True}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Enough records for ranks to divide windows: 140 for each of the 64 virtual ranks."""
    root = tmp_path_factory.mktemp("many") / "dataset"
    features = {"image": "image", "label": "label", "number": "int"}
    with forebay.Writer(root, features=features, format="indexed") as writer:
        image = png(2, 2, 1)
        for number in range(RECORDS):
            writer.write(image=image, label=number % 10, number=number)
    return root


class Step:
    """The samples that all ranks were given in a step."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.samples: Counter[int] = Counter()
        self.padding = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and vars(self) == vars(other)


def run(
    source: Any, world_size: int, global_size: int, *, state: dict[str, Any] | None = None, steps: int | None = None,
    **options: Any,
) -> tuple[list[Step], int, dict[str, Any]]:
    """The next steps of all ranks together, the sum of their digests, and the state of the last rank."""
    found: list[Step] = []
    total = 0
    for rank in range(world_size):
        given = {**KEEP, "batch_size": global_size // world_size, "rank": rank, "world_size": world_size, **options}
        with forebay.Loader(source, **given) as it:
            if state is not None:
                it.load_state_dict({name: value for name, value in state.items() if name != "digest"})
            for step, batch in enumerate(it):
                assert len(batch.samples) == global_size // world_size
                if rank == 0:
                    found.append(Step(batch.position))
                assert found[step].position == batch.position
                found[step].samples.update(batch.samples[: len(batch.samples) - batch.padding.sum()].tolist())
                found[step].padding += int(batch.padding.sum())
                if steps is not None and step + 1 == steps:
                    break
            assert len(found) == step + 1, "all ranks have the same steps"
            total += it.epoch_digest().value
            after = it.state_dict()
    return found, total % 2**64, after


@pytest.mark.parametrize("world_size", [3, 5, 7, 56, 72])
def test_any_number_of_ranks_has_the_same_global_batches(many: pathlib.Path, world_size: int) -> None:
    size = world_size * 24
    whole, digest, _ = run(many, 1, size)
    ranks, of_ranks, _ = run(many, world_size, size)
    assert ranks == whole and of_ranks == digest
    assert sum((step.samples for step in ranks), Counter()) == Counter(range(RECORDS))
    assert sum(step.padding for step in ranks) == -RECORDS % size


@pytest.mark.parametrize(
    "options",
    [
        {"repeats": 3, "limit": 700},
        {"weights": {label: label + 1.0 for label in range(10)}, "num_samples": 2000},
        {"classes": [2, 7], "columns": ["number"], "reshuffle": False},
        {"shuffle": "window", "window_blocks": 1, "block_records": 7, "virtual_ranks": 12},
        {"shuffle": "full", "limit": 800},
        {"shuffle": False, "limit": 800},
        {"drop_last": True, "limit": 2000},
    ],
)
def test_with_any_options(many: pathlib.Path, options: dict[str, Any]) -> None:
    whole, digest, _ = run(many, 1, 210, **options)
    for world_size in (7, 30):
        assert run(many, world_size, 210, **options)[:2] == (whole, digest)


def test_with_a_mix(many: pathlib.Path, packed: dict[str, pathlib.Path]) -> None:
    mix = forebay.Mix([(many, 0.5), (packed["indexed"], 0.5)])
    whole, digest, _ = run(mix, 1, 210, num_samples=1500, split="train")
    assert run(mix, 7, 210, num_samples=1500, split="train")[:2] == (whole, digest)


def test_a_run_goes_on_with_another_number_of_ranks(many: pathlib.Path) -> None:
    """64 ranks, of which 8 are lost, and 72 in the end: with the same global batches, and with equal batches of each rank."""
    for sizes in ((4032, 4032, 4032), (64 * 40, 56 * 40, 72 * 40)):
        done: list[Step] = []
        digest, state = 0, None
        for world_size, size, steps in zip((64, 56, 72), sizes, (1, 1, None), strict=True):
            part, of_part, state = run(many, world_size, size, state=state, steps=steps)
            done += part
            digest += of_part
        whole, of_whole, _ = run(many, 1, 4032)
        assert digest % 2**64 == of_whole
        assert sum((step.samples for step in done), Counter()) == Counter(range(RECORDS))
        if sizes[0] == sizes[1]:
            assert done == whole
        else:
            assert [step.position for step in done] == [0, 2560, 4800, 7680]


def test_too_few_samples_are_one_sentence(many: pathlib.Path) -> None:
    with pytest.raises(forebay.OptionError) as found:
        forebay.Loader(many, **{**KEEP, "drop_last": True, "batch_size": 1, "limit": 50, "rank": 0, "world_size": 56})
    assert "50 samples, and a batch of all ranks takes 56; use smaller batches, fewer ranks, or drop_last=False" in str(found.value)
