"""Loaders in the Trainer of Hugging Face transformers.

Owns the state of a loader in the checkpoints of a Trainer. Importing this module imports transformers.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from forebay._errors import StateError
from forebay.torch import Loader

__all__ = ["LoaderState", "Trainer"]


class LoaderState(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]
    """A callback that saves the state of the training loader in each checkpoint, and restores it.

    For a Trainer whose `get_train_dataloader` returns a `forebay.torch.Loader`. The state is a part of
    ``trainer_state.json``. A training that resumes continues with the very next batch, with `ignore_data_skip` or without.

    Raises
    ------
    StateError
        When a training resumes with another dataset or order, or with another number of batches in an epoch, from
        which the Trainer would compute a wrong position.
    """

    def __init__(self) -> None:
        self._loader: Loader | None = None

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {}, "loader": self._loader and self._loader.state_dict()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._loader = loader = kwargs["train_dataloader"]
        if not isinstance(loader, Loader):
            raise TypeError(f"LoaderState: get_train_dataloader() returned {loader!r}, expected a forebay.torch.Loader")
        # A checkpoint of a run without this callback has no entry, which the Trainer expects.
        saved = state.stateful_callbacks.setdefault(type(self).__name__, {}).get("loader")
        if not state.global_step or saved is None:
            return
        loader.load_state_dict(saved)
        accumulated = args.gradient_accumulation_steps
        epoch, step = divmod(state.global_step, -(-len(loader) // accumulated))
        position = step * accumulated * loader.batch_size * loader.world_size
        # The Trainer computes both from its steps; with ignore_data_skip only the epoch.
        if loader.epoch != epoch or not (args.ignore_data_skip or loader.position == position):
            raise StateError(
                f"the checkpoint ends at position {saved['position']} of epoch {saved['epoch']}, and the Trainer would continue at "
                f"position {position} of epoch {epoch}: resume with the batch size, number of ranks and "
                "gradient_accumulation_steps of the checkpoint"
            )


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """The Trainer of transformers, for datasets that are loaders.

    Parameters
    ----------
    *args, **kwargs
        Those of `transformers.Trainer`. `train_dataset` and `eval_dataset` may be a `forebay.torch.Loader`, and the latter a
        dict of them as well: loops are over the loader itself, and options of `TrainingArguments` about batches and
        workers do not apply to it. `LoaderState` saves the training loader.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        known = any(isinstance(callback, LoaderState) for callback in self.callback_handler.callbacks)
        if isinstance(self.train_dataset, Loader) and not known:
            self.add_callback(LoaderState())

    def get_train_dataloader(self) -> Any:
        return self.train_dataset if isinstance(self.train_dataset, Loader) else super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        found = self.eval_dataset if eval_dataset is None else eval_dataset
        found = self.eval_dataset[found] if isinstance(found, str) else found
        return found if isinstance(found, Loader) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        return test_dataset if isinstance(test_dataset, Loader) else super().get_test_dataloader(test_dataset)
