"""Epochs: what a sampler's users expect of a loader, whatever is in front of it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import forebay
import forebay.torch
from test_loader import SMALL, loader

KINDS = ["loader", "mapped", "mapped twice", "torch"]


def made(kind: str, source: str, **options: Any) -> Any:
    if kind == "torch":
        pytest.importorskip("torch")
        normalize = ((0, 0, 0), (1, 1, 1))
        return forebay.torch.Loader(source, batch_size=8, transform=SMALL, normalize=normalize, **options)
    it: Any = loader(source, **options)
    for _ in range(KINDS.index(kind)):
        it = forebay.Mapped(it, map_batch=lambda batch: batch, ahead=3)
    return it


@pytest.fixture(params=KINDS)
def it(request: pytest.FixtureRequest, source: str) -> Iterator[Any]:
    with made(request.param, source) as it:
        yield it


def place(batch: Any) -> tuple[int, int]:
    return batch.epoch, batch.step


def whole(epoch: int, first: int = 0) -> list[tuple[int, int]]:
    """The places of an epoch, from a step on."""
    return [(epoch, step) for step in range(first, 42 // 8)]


def test_an_epoch_that_is_set_during_a_loop_is_the_next_one(it: Any) -> None:
    seen = []
    for batch in it:
        seen.append(place(batch))
        it.set_epoch(7)
    assert seen == whole(0)
    assert (it.epoch, it.position) == (7, 0)
    assert it.state_dict()["epoch"] == 7
    assert [place(batch) for batch in it] == whole(7)
    assert [place(batch) for batch in it] == whole(8)


def test_an_epoch_that_is_set_counts_after_a_break_too(it: Any) -> None:
    for wanted in (4, 4, 0):
        next(iter(it))
        it.set_epoch(wanted)
        assert it.position == 8, "the loop goes on where it is"
        assert [place(batch) for batch in it] == whole(wanted)


@pytest.mark.parametrize("step", [0, 4])
def test_the_epoch_of_the_running_loop_comes_again_where_it_is_set(it: Any, step: int) -> None:
    """As a sampler would have it, at the last batch too."""
    for _ in range(2):
        seen = []
        for batch in it:
            seen.append(place(batch))
            if batch.step == step:
                it.sampler.set_epoch(0)
        assert seen == whole(0)


def test_the_next_epoch_may_be_set_at_each_step(it: Any) -> None:
    for epoch in range(3):
        seen = []
        for batch in it:
            seen.append(place(batch))
            it.sampler.set_epoch(epoch + 1)
        assert seen == whole(epoch)


def test_an_epoch_that_is_set_before_the_first_batch_is_that_of_the_loop(it: Any) -> None:
    """Frameworks set it after `iter` in the first epoch."""
    batches = iter(it)
    it.sampler.set_epoch(5)
    assert it.sampler.epoch == 5
    assert [place(batch) for batch in batches] == whole(5)


def test_a_loop_after_a_break_is_the_next_epoch(it: Any) -> None:
    for epoch in range(3):
        for batch in it:
            assert place(batch) == (epoch, 0)
            break


def test_a_loop_that_took_every_batch_needs_no_end(it: Any) -> None:
    """Loops that count to `len` never see the end."""
    for epoch in range(3):
        batches = iter(it)
        assert [place(next(batches)) for _ in range(len(it))] == whole(epoch)
        assert (it.epoch, it.position) == (epoch + 1, 0)
        digest = it.epoch_digest()
        assert (digest.epoch, digest.complete) == (epoch, True)
    assert next(batches, None) is None


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_each_batch_repeats_nothing_and_loses_nothing(source: str, kind: str, drop_last: bool) -> None:
    with made(kind, source, drop_last=drop_last) as it:
        places, states = [], []
        for batch in [batch for _ in range(2) for batch in it]:
            places.append(place(batch))
        it.set_epoch(0)
        for _ in range(2):
            for _batch in it:
                states.append(it.state_dict())
        # Saved and loaded in the same object, as well as in another one.
        for done, state in enumerate(states[: len(it) + 1], start=1):
            it.load_state_dict(state)
            assert place(next(iter(it))) == (*places, (2, 0))[done]
    steps = len(places) // 2
    for done in (steps - 1, steps, steps + 1):
        with made(kind, source, drop_last=drop_last) as it:
            it.load_state_dict(states[done - 1])
            assert [place(batch) for batch in it] == [p for p in places[done:] if p[0] == places[done][0]]


def test_an_old_state_of_the_end_of_an_epoch_goes_on_with_the_next(it: Any) -> None:
    for position in (42, 40):
        it.load_state_dict({**it.state_dict(), "epoch": 3, "position": position})
        assert (it.epoch, it.position) == (4, 0)
        assert [place(batch) for batch in it] == whole(4)


def test_a_loader_that_is_made_again_for_each_epoch(source: str) -> None:
    for epoch in range(3):
        with made("mapped", source) as it:
            batches = iter(it)
            it.sampler.set_epoch(epoch)
            assert [place(batch) for batch in batches] == whole(epoch)


LIGHTNING = """
import json, os, sys
import torch
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
import forebay, forebay.torch

source, out, mode = sys.argv[1:4]
seen = []

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3 * 16 * 16, 2)

    def training_step(self, batch, index):
        seen.append((self.current_epoch, index, batch.epoch, batch.step, batch.samples.tolist()))
        if mode == "hooks":
            self.trainer.train_dataloader.set_epoch(self.current_epoch)
        return self.layer(batch.images.flatten(1)).sum()

    def on_train_epoch_start(self):
        if mode == "hooks":
            self.trainer.train_dataloader.set_epoch(self.current_epoch)

    def on_train_batch_end(self, *_):
        if mode == "last" and self.trainer.global_step == 2 * 5:
            self.trainer.save_checkpoint(out + "/last-batch.ckpt")

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-9)

def make(train):
    return forebay.torch.Loader(
        source, batch_size=8 // (2 if mode == "ddp" else 1), transform=forebay.EvalTransform(16),
        normalize=((0, 0, 0), (1, 1, 1)), shuffle=train, drop_last=train)

class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return make(True)

trainer = pl.Trainer(
    accelerator="cpu", devices=2 if mode == "ddp" else 1, strategy="ddp" if mode == "ddp" else "auto",
    max_epochs=int(sys.argv[4]), logger=False, enable_progress_bar=False, enable_model_summary=False,
    default_root_dir=out, callbacks=[ModelCheckpoint(out, save_last=True)],
    reload_dataloaders_every_n_epochs=1 if mode == "reload" else 0,
    limit_train_batches=3 if mode == "part" else None)
resume = sys.argv[5] if len(sys.argv) > 5 else None
if mode == "reload":
    trainer.fit(Model(), datamodule=Data(), ckpt_path=resume)
else:
    trainer.fit(Model(), make(True), make(False), ckpt_path=resume)
with open(f"{out}/seen-{trainer.global_rank}.json", "w") as file:
    json.dump(seen, file)
"""


def fit(tmp_path: pathlib.Path, source: str, *arguments: str) -> list[list[Any]]:
    """The batches that each rank of a run of Lightning saw: epoch and batch as Lightning counts, then as the loader does."""
    import json

    script = tmp_path / "fit.py"
    script.write_text(LIGHTNING)
    for old in tmp_path.glob("seen-*.json"):
        old.unlink()
    clean = {name: value for name, value in os.environ.items() if "RANK" not in name and "WORLD_SIZE" not in name}
    done = subprocess.run(
        [sys.executable, os.fspath(script), source, os.fspath(tmp_path), *arguments],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, env=clean,
    )  # fmt: skip
    found = sorted(tmp_path.glob("seen-*.json"))
    assert done.returncode == 0 and found, done.stderr
    return [json.loads(path.read_text()) for path in found]


def needs_lightning() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("lightning")


@pytest.mark.parametrize("mode", ["plain", "hooks", "reload", "part"])
def test_lightning_counts_epochs_as_the_loader_does(
    packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, mode: str
) -> None:
    needs_lightning()
    source = os.fspath(packed["indexed"])
    steps = 3 if mode == "part" else 5
    (first,) = fit(tmp_path, source, mode, "2")
    (second,) = fit(tmp_path, source, mode, "4", os.fspath(tmp_path / "last.ckpt"))
    places = [step[:4] for step in first + second]
    assert places == [[e, s, e, s] for e in range(4) for s in range(steps)]


def test_lightning_resumes_from_a_checkpoint_at_the_last_batch(
    packed: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    needs_lightning()
    source = os.fspath(packed["indexed"])
    fit(tmp_path, source, "last", "3")
    (second,) = fit(tmp_path, source, "plain", "4", os.fspath(tmp_path / "last-batch.ckpt"))
    assert [step[2:4] for step in second] == [[e, s] for e in (2, 3) for s in range(5)]


def test_lightning_launches_ranks_that_share_epochs(packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    needs_lightning()
    source = os.fspath(packed["indexed"])
    ranks = fit(tmp_path, source, "ddp", "2")
    with loader(source, transform=forebay.EvalTransform(16), shuffle=True, drop_last=True) as alone:
        expected = [sorted(batch.samples.tolist()) for _ in range(2) for batch in alone]
    assert [sorted(a[4] + b[4]) for a, b in zip(*ranks, strict=True)] == expected
