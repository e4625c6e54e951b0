"""The packages themselves, as docs/frameworks.md uses them; each test needs its package."""

from __future__ import annotations

import importlib.util
import pathlib
import pickle
import shutil
from typing import Any

import pytest

import forebay
import forebay.torch
from conftest import python
from test_batches import of, same
from test_loader import TOTAL

torch: Any = pytest.importorskip("torch")

# The packages warn about themselves.
pytestmark = pytest.mark.filterwarnings("default")

Packed = dict[str, pathlib.Path]
NORMALIZE = {"normalize": (forebay.torch.IMAGENET_MEAN, forebay.torch.IMAGENET_STD)}


def network() -> Any:
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))


def lightning_module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.seen: list[int] = []
            self.steps: list[Any] = []
            self.counted = 0

        def training_step(self, batch: Any, index: int) -> Any:
            images, labels = batch
            self.seen += batch.samples.tolist()
            self.steps.append((batch.epoch, batch.step))
            return torch.nn.functional.cross_entropy(self.network(images), labels)

        def validation_step(self, batch: Any, index: int) -> None:
            right = (self.network(batch.images).argmax(1) == batch.labels) & ~batch.padding
            count = int((~batch.padding).sum())
            self.counted += count
            self.log("accuracy", right.sum() / max(count, 1), batch_size=count)

        def predict_step(self, batch: Any, index: int) -> Any:
            return self.network(batch.images)[~batch.padding], batch.samples[~batch.padding]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module()


def lightning_trainer(lightning: Any, path: pathlib.Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", devices=1, default_root_dir=path, **quiet, **options)


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_lightning(packed: Packed, tmp_path: pathlib.Path, precision: Any) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    module = lightning_module(lightning)
    trainer = lightning_trainer(lightning, tmp_path, precision=precision, max_epochs=2)
    with of(packed, **NORMALIZE) as val, of(packed, drop_last=True, **NORMALIZE) as train:
        trainer.fit(module, train, val)
        assert module.steps == [(epoch, step) for epoch in range(2) for step in range(TOTAL // 8)]
        # The check before training takes two batches, each epoch all of them.
        assert module.counted == 16 + 2 * TOTAL
        rows = trainer.predict(module, val)
    assert sum(len(scores) for scores, _ in rows) == TOTAL
    assert sorted(int(s) for _, samples in rows for s in samples) == list(range(TOTAL))


def test_lightning_goes_on_with_the_next_batch(packed: Packed, tmp_path: pathlib.Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    whole, first, second = (lightning_module(lightning) for _ in range(3))

    class Save(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if trainer.global_step == 7:
                trainer.save_checkpoint(tmp_path / "run.ckpt")

    for module, options in (
        (whole, {"max_epochs": 2}),
        (first, {"max_steps": 7, "callbacks": [Save()]}),
        (second, {"max_epochs": 2}),
    ):
        trainer = lightning_trainer(lightning, tmp_path, enable_checkpointing=False, **options)
        with of(packed, drop_last=True, **NORMALIZE) as train:
            trainer.fit(module, train, ckpt_path=tmp_path / "run.ckpt" if module is second else None)
    assert first.seen + second.seen == whole.seen


def test_lightning_walks_a_batch(packed: Packed) -> None:
    pytest.importorskip("lightning.pytorch")
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch.utilities.data import extract_batch_size
    from lightning_utilities.core.apply_func import apply_to_collection

    with of(packed) as loader:
        for batch in loader:
            same(move_data_to_device(batch, torch.device("cpu")), batch)
            made = apply_to_collection(batch, torch.Tensor, lambda tensor: tensor[1:])
            same(made, batch, lambda tensor: tensor[1:])
            assert made.step == batch.step and extract_batch_size(batch) == 8


def test_accelerate_walks_a_batch(packed: Packed) -> None:
    pytest.importorskip("accelerate")
    from accelerate import Accelerator
    from accelerate.utils import operations

    accelerator = Accelerator(cpu=True)
    with of(packed) as loader:
        whole = list(loader)
    for batch in whole:
        same(operations.send_to_device(batch, torch.device("cpu")), batch)
        same(operations.slice_tensors(batch, slice(0, 3)), batch, lambda tensor: tensor[:3])
        same(operations.pad_across_processes(batch), batch)
        same(accelerator.gather_for_metrics(batch), batch)
        same(operations.recursively_apply(torch.clone, batch, error_on_other_type=True), batch)
        blank = operations.initialize_tensors(operations.get_data_structure(batch))
        assert list(blank.keys()) == list(batch.keys()) and blank.padding.shape == (8,)
        assert operations.find_batch_size(batch) == 8
    joined = operations.concatenate(whole)
    assert sorted(joined.samples[~joined.padding].tolist()) == list(range(TOTAL))


def test_accelerate(packed: Packed, tmp_path: pathlib.Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with of(packed, **NORMALIZE) as loader:
        model = network()
        model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
        # Left as it is: it knows its rank and its device already.
        assert prepared is loader
        accelerator.register_for_checkpointing(loader)
        counted = 0
        for step, batch in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(batch.images), batch.labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            gathered = accelerator.gather_for_metrics((batch.labels, batch.padding))
            counted += int((~gathered[1]).sum())
            if step == 1:
                accelerator.save_state(tmp_path / "state")
        rest = [batch.samples.tolist() for batch in loader]
        assert counted == TOTAL and len(rest) == 6
        accelerator.load_state(tmp_path / "state")
        assert (loader.epoch, loader.position) == (0, 16) and len(list(loader)) == 4


def test_accelerate_prepares_and_skips(packed: Packed) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with of(packed) as loader, of(packed) as plain:
        want = list(plain)
        for data in (
            torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None),
            accelerator.prepare(torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None)),
        ):
            loader.set_epoch(0)
            rest = list(accelerate.skip_first_batches(data, 2))
            for made, batch in zip(rest, want[2:], strict=True):
                same(made, batch)
        # A loader skips what it has not decoded, and goes on with the next epoch.
        loader.set_epoch(0)
        for made, batch in zip(accelerate.skip_first_batches(loader, 2), want[2:], strict=True):
            same(made, batch)
        assert (loader.epoch, loader.position) == (1, 0) and len(list(loader)) == len(want)


def test_transformers(packed: Packed, tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, pixel_values: Any, labels: Any) -> Any:
            logits = self.network(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100), "logits": logits}

    def inputs(batch: Any) -> dict[str, Any]:
        images = batch.images.transpose(0, 3, 1, 2).astype("float32") / 255
        return {"pixel_values": images, "labels": batch.labels}

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return train

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return val

    def metrics(results: Any) -> dict[str, Any]:
        real = results.label_ids != -100
        return {"counted": int(real.sum())}

    with of(packed, drop_last=True, map_batch=inputs) as train, of(packed, map_batch=inputs) as val:
        arguments = transformers.TrainingArguments(
            tmp_path, num_train_epochs=2, per_device_eval_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True,
            save_strategy="no",
        )  # fmt: skip
        trainer = Trainer(Model(), arguments, compute_metrics=metrics)
        assert trainer.num_examples(train) == TOTAL == len(train.dataset)
        result = trainer.train()
        assert result.global_step == 2 * (TOTAL // 8)
        assert trainer.evaluate()["eval_counted"] == TOTAL


def trainer_steps(packed: Packed, run: pathlib.Path, steps: int, resume: bool, batch_size: int = 8, **options: Any) -> list[int]:
    """The samples of a run of Trainer up to a number of steps, which saves a checkpoint after seven."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import forebay.integrations.hf

    seen: list[int] = []

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, samples: Any) -> Any:
            seen.extend(samples.tolist())
            return {"loss": self.weight.sum()}

    with of(packed, batch_size=batch_size, drop_last=True, map_batch=lambda batch: {"samples": batch.samples}) as train:
        arguments = transformers.TrainingArguments(
            run, max_steps=steps, save_steps=7, use_cpu=True, report_to=[], disable_tqdm=True, **options
        )  # fmt: skip
        trainer = forebay.integrations.hf.Trainer(Model(), arguments, train_dataset=train)
        trainer.train(resume_from_checkpoint=resume)
    return seen


def test_transformers_resumes_within_an_epoch(packed: Packed, tmp_path: pathlib.Path) -> None:
    whole = trainer_steps(packed, tmp_path / "whole", 11, False)
    assert len(whole) == 88 and whole[:40] != whole[40:80]
    first = trainer_steps(packed, tmp_path / "parts", 7, False)
    modes = {"skip": {}, "ignore": {"ignore_data_skip": True}, "callbacks": {"restore_callback_states_from_checkpoint": True}}
    for name, options in modes.items():
        # A run that ends leaves a checkpoint behind.
        shutil.copytree(tmp_path / "parts", tmp_path / name)
        assert first + trainer_steps(packed, tmp_path / name, 11, True, **options) == whole
    with pytest.raises(forebay.StateError, match=r"ends at position 16 of epoch 1, and the Trainer would continue at position 28"):
        trainer_steps(packed, tmp_path / "parts", 11, True, batch_size=4)


def test_timm(packed: Packed) -> None:
    timm_data = pytest.importorskip("timm.data.loader")
    with of(packed, drop_last=True) as loader, of(packed, drop_last=True, **NORMALIZE) as plain:
        data = timm_data.PrefetchLoader(loader, device=torch.device("cpu"))
        assert len(data) == len(loader) and len(data.dataset) == TOTAL and not data.mixup_enabled
        for (images, labels), batch in zip(data, plain, strict=True):
            torch.testing.assert_close(images, batch.images)
            assert torch.equal(labels, batch.labels)
    with of(packed) as loader, of(packed, rank=1, world_size=2) as other:
        # All samples of a validation, and padding of several ranks by its label.
        counted = [int((labels >= 0).sum()) for _, labels in timm_data.PrefetchLoader(loader, device=torch.device("cpu"))]
        assert sum(counted) == len(loader.dataset) == TOTAL
        with of(packed, pad_last=False) as short:
            assert sum(len(labels) for _, labels in timm_data.PrefetchLoader(short, device=torch.device("cpu"))) == TOTAL
        counted = [int((labels >= 0).sum()) for _, labels in timm_data.PrefetchLoader(other, device=torch.device("cpu"))]
        assert sum(counted) == sum(int((~batch.padding).sum()) for batch in other) < TOTAL


def test_keras(packed: Packed, tmp_path: pathlib.Path) -> None:
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
        pytest.skip("keras and jax are not installed")
    code = (
        "import sys, keras, forebay, forebay.integrations.keras as ours\n"
        "class Stop(keras.callbacks.Callback):\n"
        "    def on_train_batch_end(self, batch, logs=None):\n"
        "        if sys.argv[3] == 'stop' and (self.model.optimizer.iterations == 8):\n"
        "            raise SystemExit\n"
        "keras.utils.set_random_seed(1)\n"
        "layers = keras.layers\n"
        "model = keras.Sequential([keras.Input((32, 32, 3)), layers.GlobalAveragePooling2D(), layers.Dense(4)])\n"
        "model.compile('adam', keras.losses.SparseCategoricalCrossentropy(from_logits=True))\n"
        "with forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.TrainTransform(32)) as loader:\n"
        "    data = ours.Data(loader)\n"
        "    backup = ours.BackupLoader(data, sys.argv[2], save_freq=3)\n"
        "    try:\n"
        "        model.fit(data, epochs=3, steps_per_epoch=2, verbose=0, callbacks=[backup])\n"
        "    except forebay.OptionError as error:\n"
        "        assert 'steps_per_epoch is 2' in str(error)\n"
        "    model.fit(data, epochs=3, verbose=0, callbacks=[backup, Stop()])\n"
        "    print(loader.epoch, [float(value) for value in model.get_weights()[0].ravel()])\n"
        "with forebay.Loader(sys.argv[1], batch_size=8, transform=forebay.EvalTransform(32, resize=40)) as loader:\n"
        "    print(len(model.predict(ours.Data(loader), verbose=0)))\n"
    )
    environment = {"KERAS_BACKEND": "jax"}
    whole = python(code, str(packed["indexed"]), str(tmp_path / "whole"), "run", timeout=300, environment=environment)
    assert whole.stdout.startswith("3 [") and whole.stdout.endswith(f"]\n{TOTAL}\n"), whole.stderr
    stopped = python(code, str(packed["indexed"]), str(tmp_path / "parts"), "stop", timeout=300, environment=environment)
    assert stopped.returncode == 0 and stopped.stdout == "", stopped.stderr
    assert python(code, str(packed["indexed"]), str(tmp_path / "parts"), "run", timeout=300, environment=environment).stdout == whole.stdout


def test_torchdata(packed: Packed) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    with of(packed) as loader, of(packed) as other, of(packed) as plain:
        want = [batch for _ in range(2) for batch in plain]
        data = stateful.StatefulDataLoader(loader.as_dataset(), batch_size=None)
        got = []
        for step, batch in enumerate(data):
            got.append(batch)
            if step == 2:
                state = data.state_dict()
        got += list(data)
        for made, batch in zip(got, want, strict=True):
            same(made, batch)
        again = stateful.StatefulDataLoader(other.as_dataset(), batch_size=None)
        again.load_state_dict(state)
        for made, batch in zip([*again, *again], want[3:], strict=True):
            same(made, batch)


def test_a_data_loader_with_workers_says_what_is_wrong(packed: Packed) -> None:
    with of(packed) as loader:
        for data, expected in ((loader.as_dataset(), forebay.ForkError), (loader, TypeError)):
            workers = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
            with pytest.raises(expected, match="spawn|as_dataset"):
                next(iter(workers))
        with pytest.raises(TypeError, match=r"loader.dataset\[0\] failed.*as_dataset"):
            next(iter(torch.utils.data.DataLoader(loader, batch_size=None)))
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(loader.as_dataset())


class InWorker(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """A dataset that makes its loader in the process that iterates."""

    def __init__(self, packed: Packed, **options: Any) -> None:
        self.packed, self.options = packed, options

    def __iter__(self) -> Any:
        with of(self.packed, **self.options) as loader:
            for batch in loader:
                yield loader.rank, loader.world_size, batch.samples[~batch.padding].tolist()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_loaders_in_workers_take_a_share_each(packed: Packed, workers: int) -> None:
    context = "fork" if workers else None
    data = torch.utils.data.DataLoader(
        InWorker(packed), batch_size=None, num_workers=workers, multiprocessing_context=context, collate_fn=tuple
    )  # fmt: skip
    found = list(data)
    assert {(rank, world) for rank, world, _ in found} == {(rank, max(workers, 1)) for rank in range(max(workers, 1))}
    assert sorted(sample for _, _, samples in found for sample in samples) == list(range(TOTAL))


def test_attributes_tell_the_truth(packed: Packed) -> None:
    with of(packed) as loader, of(packed, drop_last=True, limit=20) as other:
        assert (loader.num_workers, loader.prefetch_factor, loader.drop_last, other.drop_last) == (0, None, False, True)
        assert len(loader.dataset) == TOTAL and len(other.dataset) == 20
        assert not hasattr(loader.batch_sampler, "sampler"), "Lightning reads it of a loader that has a sampler"
        with pytest.raises(TypeError, match=r"loader.dataset\[3\] failed.*loop over the loader"):
            loader.dataset[3]
        with pytest.raises(TypeError):
            iter(loader.dataset)


def test_the_validation_recipe_over_two_processes(packed: Packed) -> None:
    """Gloo on loopback; each rank is given its part, and all records are counted once."""
    code = (
        "import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "import forebay, forebay.torch\n"
        "def rank(number, path, store):\n"
        "    os.environ.update(RANK=str(number), WORLD_SIZE='2')\n"
        "    dist.init_process_group('gloo', init_method=f'file://{store}', rank=number, world_size=2)\n"
        "    with forebay.torch.Loader(path, batch_size=8, transform=forebay.EvalTransform(32, resize=40), shuffle=False,\n"
        "                              drop_last=False) as loader:\n"
        "        counted = torch.zeros(1, dtype=torch.int64)\n"
        "        for batch in loader:\n"
        "            batch = batch.to('cpu')\n"
        "            counted += (~batch.padding).sum()\n"
        "        dist.all_reduce(counted)\n"
        "    if number == 0:\n"
        "        print(int(counted))\n"
        "if __name__ == '__main__':\n"
        "    mp.start_processes(rank, args=sys.argv[1:], nprocs=2, start_method='fork')\n"
    )
    store = packed["indexed"].parent / "store"
    done = python(code, str(packed["indexed"]), str(store))
    assert done.stdout == f"{TOTAL}\n", done.stderr
