"""A training in each framework, which saves every third step, and goes on where it stood when it is run again.

    python trainer_runs.py NAME DATASET DIRECTORY KILL

Writes a line for each step into `DIRECTORY/log`: the samples that the model was given. Kills itself after KILL steps of this
run; 0 runs it to its end. Each framework saves and restores in its own way.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any

EPOCHS = 3
SAVE_STEPS = 3

# The frameworks of the table in docs/frameworks.md, by the name of the package.
RUNS: dict[str, Callable[[Run], None]] = {}


def of(package: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    def add(run: Callable[[Run], None]) -> Callable[[Run], None]:
        RUNS[package] = run
        return run

    return add


class Run:
    """The loader of a run, its directory, and the steps that it made."""

    def __init__(self, dataset: str, directory: str, kill: int) -> None:
        self.dataset = dataset
        self.directory = pathlib.Path(directory)
        self.kill = kill
        self.steps = 0
        self.log = open(self.directory / "log", "a", encoding="utf-8")

    def loader(self, module: Any, **options: Any) -> Any:
        import forebay

        return module.Loader(
            self.dataset, batch_size=8, transform=forebay.TrainTransform(32), seed=3, drop_last=True, rank=0, world_size=1, **options
        )

    def trained(self, samples: Any) -> None:
        """Logs a step with these samples, which the framework has saved if it was due."""
        self.log.write(" ".join(str(int(sample)) for sample in samples) + "\n")
        self.log.flush()
        self.steps += 1
        if self.steps == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))


@of("transformers")
def transformers(run: Run, **options: Any) -> None:
    import torch
    import transformers

    import forebay.integrations.hf
    import forebay.torch

    given: list[Any] = []

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, pixels: Any, labels: Any, samples: Any) -> Any:
            given[:] = samples.tolist()
            return {"loss": torch.nn.functional.cross_entropy(self.network(pixels), labels)}

    class Log(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.append(list(given))

        def on_save(self, *_: Any, **__: Any) -> None:
            flush()

        on_epoch_end = on_train_end = on_step_begin = on_save

    steps: list[Any] = []

    def flush() -> None:
        # A checkpoint is written after the end of a step.
        for samples in steps:
            run.trained(samples)
        steps.clear()

    def inputs(batch: Any) -> dict[str, Any]:
        pixels = batch.images.transpose(0, 3, 1, 2).astype("float32") / 255
        return {"pixels": pixels, "labels": batch.labels, "samples": batch.samples}

    arguments = transformers.TrainingArguments(
        run.directory / "run", num_train_epochs=EPOCHS, save_steps=SAVE_STEPS, use_cpu=True, report_to=[], disable_tqdm=True, **options
    )  # fmt: skip
    train = run.loader(forebay.torch, map_batch=inputs)
    trainer = forebay.integrations.hf.Trainer(Model(), arguments, train_dataset=train, callbacks=[Log()])
    trainer.train(resume_from_checkpoint=any((run.directory / "run").glob("checkpoint-*")))


@of("lightning")
def lightning(run: Run) -> None:
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    import forebay.torch

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, index: int) -> Any:
            images, labels = batch
            self.given = batch.samples.tolist()
            return torch.nn.functional.cross_entropy(self.network(images.float()), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Save(ModelCheckpoint):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, module, *args)
            run.trained(module.given)

    save = Save(run.directory / "run", save_last=True, every_n_train_steps=SAVE_STEPS)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, callbacks=[save], **quiet)
    last = run.directory / "run/last.ckpt"
    trainer.fit(Module(), run.loader(forebay.torch), ckpt_path=last if last.exists() else None)


@of("accelerate")
def accelerate(run: Run) -> None:
    import accelerate
    import torch

    import forebay.torch

    accelerator = accelerate.Accelerator(cpu=True)
    train = run.loader(forebay.torch)
    model = network()
    model, optimizer, train = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), train)
    accelerator.register_for_checkpointing(train)
    steps = sorted(run.directory.glob("step-*"))
    if steps:
        accelerator.load_state(steps[-1])
    for _ in range(train.epoch, EPOCHS):
        for batch in train:
            accelerator.backward(torch.nn.functional.cross_entropy(model(batch.images.float()), batch.labels))
            optimizer.step()
            optimizer.zero_grad()
            step = train.epoch * len(train) + train.position // train.batch_size
            if step % SAVE_STEPS == 0:
                accelerator.save_state(run.directory / f"step-{step:02}")
            run.trained(batch.samples)


@of("torchdata")
def torchdata(run: Run) -> None:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    import forebay.torch

    train = run.loader(forebay.torch)
    data = StatefulDataLoader(train.as_dataset(), batch_size=None)
    saved = run.directory / "state.pt"
    done = 0
    if saved.exists():
        state = torch.load(saved)
        done = state["done"]
        data.load_state_dict(state["data"])
    while done < EPOCHS * len(train):
        for batch in data:
            done += 1
            if done % SAVE_STEPS == 0:
                torch.save({"done": done, "data": data.state_dict()}, run.directory / "new.pt")
                os.replace(run.directory / "new.pt", saved)
            run.trained(batch.samples)


@of("keras")
def keras(run: Run) -> None:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras
    import numpy as np

    import forebay
    import forebay.integrations.keras as forebay_keras

    class Log(keras.callbacks.Callback):  # type: ignore[misc]
        """Tells by its weights which samples the model was trained on."""

        def counts(self) -> Any:
            if hasattr(model, "jax_state_sync"):
                model.jax_state_sync()
            return np.array(counter.seen)

        def on_train_begin(self, logs: Any = None) -> None:
            self.before = self.counts()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now = self.counts()
            new, self.before = now - self.before, now
            run.trained(np.repeat(np.arange(len(new)), new.astype(int)))

    class Count(keras.layers.Layer):  # type: ignore[misc]
        """Counts in a weight which samples pass."""

        def __init__(self) -> None:
            super().__init__()
            self.seen = self.add_weight(shape=(1000,), initializer="zeros", trainable=False)

        def call(self, inputs: Any) -> Any:
            images, samples = inputs
            self.seen.assign(self.seen + keras.ops.sum(keras.ops.one_hot(samples, 1000), axis=0))
            return images

    keras.utils.set_random_seed(1)
    images, samples = keras.Input((32, 32, 3)), keras.Input((), dtype="int32")
    counter = Count()
    pixels = keras.layers.GlobalAveragePooling2D()(counter([images, samples]))
    model = keras.Model([images, samples], keras.layers.Dense(4)(pixels))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def inputs(batch: Any) -> Any:
        return (batch.images, batch.samples.astype("int32")), batch.labels

    data = forebay_keras.Data(forebay.Mapped(run.loader(forebay), map_batch=inputs))
    backup = forebay_keras.BackupLoader(data, run.directory / "run", save_freq=SAVE_STEPS)
    model.fit(data, epochs=EPOCHS, callbacks=[backup, Log()], verbose=0)


if __name__ == "__main__":
    RUNS[sys.argv[1]](Run(sys.argv[2], sys.argv[3], int(sys.argv[4])))
