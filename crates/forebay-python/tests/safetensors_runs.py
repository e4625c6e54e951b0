"""Programs of test_safetensors.py: trainings that save directories of safetensors, and are killed."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
import time

import numpy as np
from safetensors.numpy import save_file

import forebay

SHARDS = 3


def tensors(step: int) -> dict[str, np.ndarray]:
    return {f"layer.{number}": np.full((50, 100), step + number, np.float32) for number in range(SHARDS)}


def save_pretrained(step: int, directory: str) -> None:
    """Writes the files of a model in shards."""
    root, weights = pathlib.Path(directory), {}
    for number, (name, tensor) in enumerate(tensors(step).items(), 1):
        weights[name] = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        save_file({name: tensor}, root / weights[name])
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    (root / "config.json").write_text(json.dumps({"step": step}))


def training(run: str, step: int) -> None:
    """Saves a step after the other, and says when each is safe, until it is killed."""
    while True:
        step += 1
        with forebay.checkpoint.writer(f"{run}/step-{step}", keep=3) as made:
            save_pretrained(step, made.directory())
        os.write(1, f"{step}\n".encode())


def kills(run: str, number: int, seed: int) -> None:
    """Kills trainings at random moments. The next one finds the last step that was safe, whole, and goes on from there."""
    chance = random.Random(seed)
    safe = 0
    for _ in range(number):
        found = forebay.checkpoint.latest(run)
        step = 0 if found is None else int(found.rsplit("-", 1)[1])
        # One more than what was said may be safe: the process was killed before it could say so.
        assert safe <= step <= safe + 1, f"step {safe} was safe, and {step} was found"
        if found is not None:
            loaded = forebay.checkpoint.load(found, format="safetensors")
            assert loaded.keys() == tensors(step).keys()
            assert all((loaded[name] == tensor).all() for name, tensor in tensors(step).items()), found
            assert json.loads(forebay.checkpoint.load(found)["config.json"]) == {"step": step}
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writing, 1)
            training(run, step)
        os.close(writing)
        time.sleep(chance.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading) as lines:
            said = lines.read().split("\n")[:-1]
        safe = int(said[-1]) if said else step
    print(f"{number} kills, last step {safe}")


if __name__ == "__main__":
    kills(sys.argv[1], int(sys.argv[2]), seed=1)
