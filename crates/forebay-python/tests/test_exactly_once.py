"""Each sample once: digests of epochs, several servers, and trainers that are killed."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forebay
from test_loader import loader


def digest(source: Any, world_size: int, batch_size: int, **options: Any) -> forebay.EpochDigest:
    """The digest of one epoch over all ranks."""
    digests = []
    for rank in range(world_size):
        with loader(source, rank=rank, world_size=world_size, batch_size=batch_size, **options) as it:
            for _ in it:
                pass
            digests.append(it.epoch_digest())
    whole = sum(digests)
    assert isinstance(whole, forebay.EpochDigest)
    return whole


def test_the_digest_of_an_epoch_is_that_of_any_number_of_ranks(source: str) -> None:
    whole = digest(source, 1, 4, drop_last=False)
    assert (whole.epoch, whole.samples, whole.since, whole.complete) == (0, 42, 0, True)
    assert len(str(whole)) == 16 and int(str(whole), 16) == whole.value
    assert whole.signed % 2**64 == whole.value and -(2**63) <= whole.signed < 2**63
    for world_size, batch_size in ((2, 2), (2, 3), (4, 5), (3, 4), (5, 3), (70, 1)):
        other = digest(source, world_size, batch_size, drop_last=False)
        assert (other.value, other.samples) == (whole.value, whole.samples)
    assert digest(source, 1, 4, drop_last=False, seed=8).value != whole.value
    assert pickle.loads(pickle.dumps(whole)) == whole


def test_the_digest_follows_the_loader(source: str) -> None:
    whole = digest(source, 1, 4)
    with loader(source, batch_size=4) as it:
        assert (it.epoch_digest().batches, it.epoch_digest().complete) == (0, False)
        batches = iter(it)
        first = next(batches)
        begun = it.epoch_digest()
        assert (begun.value, begun.batches, begun.until) == (first.digest, 1, 4)
        state = json.loads(json.dumps(it.state_dict()))
        for _ in batches:
            pass
        assert it.epoch_digest() == whole
        next(iter(it))
        assert it.epoch_digest().epoch == 1
        with pytest.raises(forebay.StateError, match="two epochs"):
            whole + it.epoch_digest()
    # What was delivered before counts, for the rank that it was delivered to.
    with loader(source, batch_size=4) as it:
        it.load_state_dict(state)
        assert it.epoch_digest() == begun
        for _ in it:
            pass
        assert it.epoch_digest() == whole
        it.load_state_dict({name: value for name, value in state.items() if name != "digest"})
        for _ in it:
            pass
        rest = it.epoch_digest()
        assert (rest.since, rest.complete) == (4, False)
        assert (begun + rest).value == whole.value
        with pytest.raises(forebay.StateError, match="digest"):
            it.load_state_dict({**state, "digest": 3})
    with loader(source, batch_size=2, rank=1, world_size=2) as it:
        it.load_state_dict(state)
        assert (it.epoch_digest().since, it.epoch_digest().batches) == (4, 0)


def test_loaders_in_front_have_it_too(source: str) -> None:
    whole = digest(source, 1, 4)
    with forebay.Mapped(loader(source, batch_size=4), map_batch=lambda batch: batch) as it:
        batches = iter(it)
        first = next(batches)
        assert it.epoch_digest().value == first.digest
        for _ in batches:
            pass
        assert it.epoch_digest() == whole


@pytest.fixture
def fleet(packed: dict[str, pathlib.Path]) -> Iterator[Callable[[int], list[tuple[Any, str]]]]:
    """Servers of the same data; each process and its address."""
    running: list[subprocess.Popen[str]] = []

    def start(count: int) -> list[tuple[Any, str]]:
        started = []
        for _ in range(count):
            server = subprocess.Popen(
                ["forebay", "serve", os.fspath(packed["indexed"]), "--listen", "127.0.0.1:0"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            running.append(server)
            assert server.stdout is not None
            found = re.search(r"forebay://([^/]+)/", server.stdout.readline())
            assert found is not None
            started.append((server, found.group(1)))
        return started

    yield start
    for server in running:
        server.kill()
        server.wait(timeout=60)
        assert server.stdout is not None
        server.stdout.close()


def test_servers_come_and_go(
    fleet: Callable[[int], list[tuple[Any, str]]], packed: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    servers = fleet(3)
    with loader(packed["indexed"]) as it:
        here = [batch.images.tobytes() for _ in range(3) for batch in it]
        whole = it.epoch_digest()
    addresses = [address for _, address in servers]
    url = f"forebay://{','.join(addresses)}/indexed"
    with loader(url) as it:
        there = []
        for number in range(3):
            for batch in it:
                there.append(batch.images.tobytes())
                stats = it.stats()
                if batch.step == 1 and number < 2:
                    # Killed in the first epoch, asked to stop in the second one: the third epoch is the last server's.
                    assert stats["server"] in addresses
                    server = servers[addresses.index(stats["server"])][0]
                    server.send_signal(signal.SIGTERM if number else signal.SIGKILL)
                    server.wait(timeout=60)
        stats = it.stats()
        assert there == here
        assert it.epoch_digest() == whole
    # What was fetched, of the next epoch too.
    assert stats["servers"] is not None and sum(stats["servers"].values()) >= len(there)
    assert stats["reconnects"] == 1 and stats["handovers"] == 1
    assert len(stats["servers"]) == 3 and (stats["longest_gap_s"] or 0) > 0
    # The one that is left, in a file.
    (last,) = [address for (process, address) in servers if process.poll() is None]
    (tmp_path / "servers").write_text(f"# ours\n{last}\n")
    with loader(f"forebay+file://{tmp_path}/servers/indexed") as it:
        assert [batch.images.tobytes() for _ in range(3) for batch in it] == here
        assert it.stats()["server"] == last
    with pytest.raises(forebay.ServerError, match="one HOST:PORT a line"):
        loader(f"forebay+file://{tmp_path}/nothing/indexed")
    with loader(packed["indexed"]) as it:
        next(iter(it))
        stats = it.stats()
    assert stats["server"] is None and stats["reconnects"] is None


TRAINER = """
import json, sys
import forebay

source, state, world_size, rank = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with forebay.Loader(source, batch_size=4 // world_size, seed=7, rank=rank, world_size=world_size,
                    drop_last=False, transform=forebay.TrainTransform(16)) as loader:
    if state is not None:
        loader.load_state_dict(state)
    while loader.epoch < 2:
        for batch in loader:
            places = range(batch.position + rank, batch.position + 4, world_size)
            images = [image.tobytes().hex() for image in batch.images]
            trained = [batch.epoch, list(places), batch.samples.tolist(), batch.padding.tolist(), images]
            print(json.dumps([trained, loader.state_dict()]), flush=True)
"""


def test_killed_trainers_go_on_where_they_were(
    fleet: Callable[[int], list[tuple[Any, str]]], packed: dict[str, pathlib.Path]
) -> None:
    """On one rank and on two in turn, killed at random; from servers and in process."""
    (_, a), (_, b) = fleet(2)
    sources = [os.fspath(packed["indexed"]), f"forebay://{a},{b}/indexed"]
    options = {"batch_size": 4, "seed": 7, "drop_last": False, "transform": forebay.TrainTransform(16)}
    expected: dict[tuple[int, int], tuple[int, str]] = {}
    with forebay.Loader(sources[0], **options) as it:  # type: ignore[arg-type]
        for _ in range(2):
            for batch in it:
                for i, sample in enumerate(batch.samples.tolist()):
                    if not batch.padding[i]:
                        place = (batch.epoch, batch.position + i)
                        expected[place] = (sample, batch.images[i].tobytes().hex())
    dice = random.Random(5)
    found: dict[tuple[int, int], tuple[int, str]] = {}
    state: dict[str, Any] | None = None
    turn = 0
    while len(found) < len(expected):
        world_size = 1 + turn % 2
        trainers = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINER, sources[turn // 2 % 2], json.dumps(state),
                 str(world_size), str(rank)],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            for rank in range(world_size)
        ]
        # A checkpoint is of one step of all ranks. What they train on after it is trained on again.
        steps = dice.randrange(3, 8)
        for trainer in trainers:
            assert trainer.stdout is not None
            for _ in range(steps):
                line = trainer.stdout.readline()
                if not line:
                    break
                (epoch, *samples), state = json.loads(line)
                for at, sample, fills, image in zip(*samples, strict=True):
                    if not fills:
                        assert (epoch, at) not in found, "it comes again"
                        found[(epoch, at)] = (sample, image)
            trainer.kill()
        for trainer in trainers:
            trainer.wait(timeout=60)
            assert trainer.stdout is not None
            trainer.stdout.close()
        turn += 1
        assert turn < 30
    assert found == expected
    assert turn > 2
