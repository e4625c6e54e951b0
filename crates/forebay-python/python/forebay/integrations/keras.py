"""Loaders in Keras 3, with any of its backends.

Owns what Keras needs to loop over a loader, and backups of a model with the state of its loader.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from forebay._batch import TensorBatch
from forebay._errors import OptionError, StateError
from forebay._forebay import Batch
from forebay._front import Source
from forebay._options import count

__all__ = ["BackupLoader", "Data"]


class Data(DataAdapter):  # type: ignore[misc]
    """A loader as Keras takes it: ``model.fit(data)``, ``model.evaluate(data)``, ``model.predict(data)``.

    One epoch of Keras is one epoch of the loader, and each sample occurs once: padding is cut off.

    Parameters
    ----------
    loader : Loader
        A `forebay.Loader`, or a loader that was made of one.
    """

    has_partial_batch = partial_batch_size = batch_size = None

    def __init__(self, loader: Source) -> None:
        self.loader = loader
        # The states after batches that Keras took and has not trained on yet, by the number of the batch.
        self._states: dict[int, dict[str, Any]] | None = None
        self._taken = 0

    @property
    def num_batches(self) -> int:
        # Not None in a part of an epoch: Keras would take its number of batches for that of all epochs.
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            pair: Any = batch
            if isinstance(batch, Batch | TensorBatch):
                real = ~batch.padding
                pair = tuple(batch) if real.all() else tuple(array[real] for array in batch)
            has_samples = len(pair[0]) > 0
            self._taken += has_samples
            if self._states is not None:
                # The state after the epoch belongs to its last batch with samples.
                self._states[self._taken] = self.loader.state_dict()
            if has_samples:
                yield pair

    def get_numpy_iterator(self) -> Iterator[Any]:
        return (keras.tree.map_structure(np.asarray, pair) for pair in self)

    get_jax_iterator = get_numpy_iterator

    def get_torch_dataloader(self) -> Any:
        return (keras.tree.map_structure(keras.ops.convert_to_tensor, pair) for pair in self)

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        # The types of a dataset are those of a batch, which is looked at and not lost.
        taken, state = self._taken, self.loader.state_dict()
        first = next(self.get_numpy_iterator())
        self._taken = taken
        self.loader.load_state_dict(state)
        spec = keras.tree.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), first)
        return tf.data.Dataset.from_generator(self.get_numpy_iterator, output_signature=spec)


class BackupLoader(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that saves the model with the state of its loader, and restores both: in the place of `BackupAndRestore`.

    The state counts the batches that the model was trained on, not those that Keras took ahead. A `fit` that was interrupted
    in an epoch, also by SIGKILL, continues with the batch after the last backup. Keras then warns in that epoch
    that the input ran out of data: it has the rest of its batches.

    Parameters
    ----------
    data : Data
        What `fit` is given.
    backup_dir : str or os.PathLike
        A directory for the backup, which nothing else uses. A `fit` that ends deletes its backup.
    save_freq : "epoch" or int, default "epoch"
        When to save: at the end of each epoch, or each time after this many batches.

    Raises
    ------
    OptionError
        An invalid option; `fit` with `steps_per_epoch`, or of a model that is not built where there is a backup.
    StateError
        When the backup is of another dataset or order, or cannot be read.
    """

    def __init__(self, data: Data, backup_dir: str | os.PathLike[str], save_freq: str | int = "epoch") -> None:
        super().__init__()
        if not isinstance(data, Data):
            raise OptionError(f"option data is {data!r}: expected a forebay.integrations.keras.Data")
        self._data = data
        self._every = None if save_freq == "epoch" else count("save_freq", save_freq, 1, 'batches, or "epoch"')
        self._directory = pathlib.Path(backup_dir)
        self._weights = "b.weights.h5"
        # The epoch, and the last batch in it.
        self._epoch, self._batch = 0, -1
        self._begin(data.loader.state_dict())

    def _begin(self, state: dict[str, Any]) -> None:
        self._data.loader.load_state_dict(state)
        # Batches that the model was trained on, as `Data` counts them, and as of the last backup.
        self._trained = self._saved = self._data._taken
        self._data._states = {self._trained: state}

    def _state(self) -> dict[str, Any]:
        """The state of the loader after the last batch that the model was trained on."""
        states = self._data._states
        assert states is not None
        for number in [number for number in states if number < self._trained]:
            del states[number]
        return states[self._trained]

    def on_train_begin(self, logs: Any = None) -> None:
        data, steps = self._data, self.params.get("steps")
        if steps != len(data.loader):
            raise OptionError(f"steps_per_epoch is {steps}, and an epoch of the loader has {len(data.loader)} batches: leave it out")
        # To learn the shapes of a model, Keras takes a batch that it does not train on.
        state = self._state()
        try:
            saved = json.loads((self._directory / "loader.json").read_bytes())
            state, self._weights = saved["loader"], saved["weights"]
        except FileNotFoundError:
            pass
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{self._directory / 'loader.json'} is no backup of a loader: {error}; remove it to start anew") from error
        else:
            if not self.model.built:
                raise OptionError("the model has no weights to restore: build it before fit, by model.build() or on a batch")
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self.model.load_weights(self._directory / self._weights)
            self.model._initial_epoch = saved["epoch"]
        self._begin(state)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._batch = epoch, -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Fewer than `steps_per_execution` batches may be left at the end of an epoch.
        self._trained = min(self._trained + batch - self._batch, self._data._taken)
        self._batch = batch
        state = self._state()
        if self._every is not None and self._trained - self._saved >= self._every:
            self._save(self._epoch if state["position"] else self._epoch + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._every is None:
            self._save(epoch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        for name in ("loader.json", "a.weights.h5", "b.weights.h5"):
            (self._directory / name).unlink(missing_ok=True)

    def _save(self, epoch: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        old, self._weights = self._weights, "b.weights.h5" if self._weights.startswith("a") else "a.weights.h5"
        self.model.save_weights(self._directory / self._weights, overwrite=True)
        new = self._directory / "new.json"
        new.write_text(json.dumps({"weights": self._weights, "epoch": epoch, "loader": self._state()}))
        # It names the weights that belong to it, so both are replaced at once.
        os.replace(new, self._directory / "loader.json")
        (self._directory / old).unlink(missing_ok=True)
        self._saved = self._trained
