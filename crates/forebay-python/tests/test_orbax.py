"""Checkpoints of Orbax through the staging area: trees come back as they were, on any number of processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import checkpoint

jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")
from forebay.integrations.orbax import Handler, Restore, Save, directory  # noqa: E402

RUNS = pathlib.Path(__file__).parent / "orbax_runs.py"
KILLS = 200 if "FOREBAY_TEST_FULL" in os.environ else 6
LONG = 60.0

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Pair = namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def staging(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("FOREBAY_STAGING", os.fspath(tmp_path / "fast"))
    return tmp_path / "fast"


def state() -> dict[str, Any]:
    numbers = jax.numpy
    return {
        "w": numbers.arange(12.0).reshape(3, 4),
        "half": numbers.arange(5, dtype=numbers.bfloat16),
        "small": {8: numbers.ones((2, 2), numbers.float8_e4m3fn), 4: np.arange(5).astype(numbers.int4)},
        "numpy": [np.arange(5), (np.float32(3), np.array(2.5), np.arange(3, dtype=">i2"))],
        "pair": Pair(numbers.zeros((0, 3)), {"key": jax.random.key_data(jax.random.key(1))}),
        "values": (7, 1.5, True, "text", float("inf"), None, {}, []),
    }


def is_equal(found: Any, expected: Any) -> bool:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(other)
        if hasattr(one, "dtype"):
            assert one.dtype == other.dtype and one.shape == other.shape and np.asarray(one).tobytes() == np.asarray(other).tobytes()
        else:
            assert one == other
    return True


def test_what_changes_after_a_save_is_not_saved(tmp_path: pathlib.Path) -> None:
    run = directory(tmp_path / "run")
    donating = jax.jit(lambda array: array + 1, donate_argnums=0)
    entered = threading.Event()

    class Waiting(Handler):
        def __init__(self) -> None:
            super().__init__()
            self._threads.submit(entered.wait, LONG)  # Its one thread writes once the arrays have changed.

    ocp.args.register_with_handler(Waiting, for_save=True)(type("SaveWaiting", (Save,), {}))
    ocp.args.register_with_handler(Waiting, for_restore=True)(type("RestoreWaiting", (Restore,), {}))
    device, host = donating(jax.numpy.zeros(1000)), np.zeros(1000)
    with ocp.AsyncCheckpointer(Waiting()) as saver:
        saver.save(run / "1", args=Save([device, host]))
        for _ in range(3):
            device = donating(device)
        host += 1
        jax.block_until_ready(device)
        entered.set()
        saver.wait_until_finished()
        found = saver.restore(run / "1")
    assert (np.asarray(found[0]) == 1).all() and (found[1] == 0).all()


@pytest.mark.parametrize("kind", ["Checkpointer", "AsyncCheckpointer"])
def test_a_tree_comes_back(tmp_path: pathlib.Path, kind: str) -> None:
    run = directory(tmp_path / "run")
    with getattr(ocp, kind)(Handler()) as saver:
        assert not (run / "step_1").exists()
        saver.save(run / "step_1", args=Save(state()), custom_metadata={"note": 1})
        if kind == "AsyncCheckpointer":
            saver.wait_until_finished()
        assert checkpoint.latest(tmp_path / "run") == f"{tmp_path}/run/step_1"
        with pytest.raises(ValueError, match="already exists"):
            saver.save(run / "step_1", args=Save(state()))
        checkpoint.wait(LONG)
        for stage in (None, tmp_path / "another machine"):
            run = directory(tmp_path / "run", stage=stage)
            assert is_equal(saver.restore(run / "step_1", args=Restore(state())), state())
            # Nodes that are no dict, list or tuple are dicts.
            assert is_equal(saver.restore(run / "step_1"), state() | {"pair": state()["pair"]._asdict()})
        known = saver.metadata(run / "step_1")
        assert known.custom_metadata == {"note": 1} and known.item_metadata["half"] == jax.ShapeDtypeStruct((5,), jax.numpy.bfloat16)
        assert known.item_metadata["values"][:4] == (7, 1.5, True, "text")
        saver.save(run / "step_1", args=Save([2]), force=True)
        assert saver.restore(run / "step_1") == [2]


def test_targets_say_how_arrays_come_back(tmp_path: pathlib.Path) -> None:
    numbers = jax.numpy
    run = directory(tmp_path / "run")
    with ocp.Checkpointer(Handler()) as saver:
        saver.save(run / "1", args=Save({"a": numbers.arange(4.0), "b": np.arange(4), "c": 3, "d": numbers.float32(2)}))
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        found = saver.restore(
            run / "1",
            args=Restore({
                "a": jax.ShapeDtypeStruct((4,), numbers.bfloat16, sharding=device),
                "b": ocp.ArrayRestoreArgs(sharding=device, dtype=np.int32),
                "c": np.float32(0),
                "d": 0.0,
            }),
        )  # fmt: skip
        expected = {"a": numbers.arange(4, dtype=numbers.bfloat16), "b": numbers.arange(4, dtype=np.int32), "c": np.float32(3), "d": 2.0}
        assert is_equal(found, expected)
        assert type(saver.restore(run / "1", args=Restore(dict.fromkeys("abcd", ocp.RestoreArgs(restore_type=np.ndarray))))["a"]) is np.ndarray
        for wrong, why in (({"a": 1}, "only one of them has b"), (dict.fromkeys("abcd", np.zeros(5)), "shape"), (dict.fromkeys("abcd", np.zeros(())), "shape")):
            with pytest.raises(forebay.OptionError, match=why):
                saver.restore(run / "1", args=Restore(wrong))
        saver.save(run / "2", args=Save(np.arange(3)))
        with pytest.raises(forebay.OptionError, match="jax_enable_x64"):
            saver.restore(run / "2", args=Restore(jax.ShapeDtypeStruct((3,), np.int64, sharding=device)))


def test_a_manager_keeps_its_newest_steps(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.integrations.orbax._FILE_BYTES", 16)
    run = directory(tmp_path / "run")
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(run, options=options, item_names=("state", "more", "notes")) as manager:
        assert manager.latest_step() is None
        for step in range(4):
            items = {"state": Save(state() | {"step": step}), "more": Save([step]), "notes": ocp.args.JsonSave({"step": step})}
            manager.save(step, args=ocp.args.Composite(**items))
            checkpoint.wait(LONG)
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3] and sorted(manager.all_steps(read=True)) == [2, 3]
    with ocp.CheckpointManager(directory(tmp_path / "run", stage=tmp_path / "another"), options=options) as manager:
        assert manager.latest_step() == 3
        found = manager.restore(3)
        assert found.notes == {"step": 3} and found.more == [3] and found.state["step"] == 3
        assert is_equal(found.state["numpy"], state()["numpy"]) and "state/arrays-3" in checkpoint.load(tmp_path / "run" / "3")
    assert [info.step for info in checkpoint.list(tmp_path / "run")] == [2, 3]


def test_a_store_that_is_away_stops_no_save(tmp_path: pathlib.Path) -> None:
    store = tmp_path / "slow"
    run = directory(store / "run")
    with ocp.Checkpointer(Handler()) as saver:
        saver.save(run / "1", args=Save([1]))
        checkpoint.wait(LONG)
        store.rename(tmp_path / "away")
        store.write_text("")  # In place of the directory: nothing can be read or written.
        with pytest.warns(RuntimeWarning, match="counts as absent"):
            saver.save(run / "2", args=Save([2]))
        assert saver.restore(run / "2") == [2]
        (run / "2").rmtree()
        assert (run / "2").exists()
        store.unlink()
        (tmp_path / "away").rename(store)
        checkpoint.wait(LONG)
        # A checkpoint that could not be removed is removed by the next save.
        saver.save(run / "3", args=Save([3]))
        assert [path.name for path in run.iterdir()] == ["1", "3"]
        other = store / "run" / "4" / "other"
        other.parent.mkdir()
        other.write_text("no checkpoint")
        (run / "4").rmtree()
        assert other.exists()


def test_a_tree_goes_to_a_store_and_back(tmp_path: pathlib.Path, s3_endpoint: str) -> None:
    options = {"endpoint": s3_endpoint, "region": "us-east-1", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    manager_options = ocp.CheckpointManagerOptions(max_to_keep=1)
    with ocp.CheckpointManager(directory("s3://bucket/orbax", storage_options=options), options=manager_options) as manager:
        for step in (1, 2):
            manager.save(step, args=Save(state()))
            manager.wait_until_finished()
            checkpoint.wait(LONG)
    elsewhere = directory("s3://bucket/orbax", storage_options=options, stage=tmp_path / "empty")
    with ocp.CheckpointManager(elsewhere, options=manager_options) as manager:
        assert manager.latest_step() == 2 and manager.all_steps() == [2]
        assert is_equal(manager.restore(2, args=Restore(state())), state())


def test_a_save_that_fails_leaves_nothing(tmp_path: pathlib.Path, staging: pathlib.Path) -> None:
    run = directory(tmp_path / "run")
    with ocp.CheckpointManager(run, item_names=("state", "notes")) as manager:
        for bad in (object(), np.array([None]), jax.random.key(1), 1j):
            with pytest.raises(forebay.OptionError, match="cannot be saved"):
                manager.save(1, args=ocp.args.Composite(state=Save({"bad": bad})))
        with pytest.raises(TypeError):
            manager.save(2, args=ocp.args.Composite(state=Save([jax.numpy.ones(1000)]), notes=ocp.args.JsonSave({"bad": object()})))
            manager.wait_until_finished()
    assert not checkpoint.list(tmp_path / "run") and not checkpoint.pending()
    with ocp.CheckpointManager(run) as manager:
        assert manager.latest_step() is None
        manager.save(3, args=Save([1]))
    assert not [path for path in staging.rglob("arrays-*") if path.stat().st_size > 1000]
    assert [info.step for info in checkpoint.list(tmp_path / "run")] == [3]


def test_late_metadata_of_a_failed_save_stops_no_other(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = directory(tmp_path / "run")
    is_next = threading.Event()
    opened = type(run).open

    def late(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if "w" in mode and "/1.orbax" in str(path):
            assert is_next.wait(LONG)
        return opened(path, mode, *args, **options)

    monkeypatch.setattr(type(run), "open", late)
    with ocp.CheckpointManager(run) as manager:
        with pytest.raises(forebay.OptionError, match="cannot be saved"):
            manager.save(1, args=Save({"bad": object()}))
        manager.save(2, args=Save([1]))
        is_next.set()
    assert [info.step for info in checkpoint.list(tmp_path / "run")] == [2]


def test_what_cannot_work_says_why(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = directory(tmp_path / "run")
    with ocp.Checkpointer(Handler()) as saver:
        with pytest.raises(forebay.OptionError, match="directory of a run"):
            saver.save(tmp_path / "plain", args=Save([1]))
        with pytest.raises(FileNotFoundError):
            saver.restore(run / "1")
    with ocp.Checkpointer(Handler(), temporary_path_class=ocp.path.atomicity.CommitFileTemporaryPath) as saver:
        with pytest.raises(forebay.OptionError, match="rename"):
            saver.save(run / "1", args=Save([1]))
    ones = jax.numpy.ones(3)
    for handler, args in (
        (ocp.StandardCheckpointHandler(), ocp.args.StandardSave([ones])),
        (ocp.PyTreeCheckpointHandler(use_ocdbt=False), ocp.args.PyTreeSave([ones])),
        (ocp.handlers.ArrayCheckpointHandler(), ocp.args.ArraySave(ones)),
    ):
        with ocp.Checkpointer(handler) as saver, pytest.raises(ValueError, match="/dev/null/forebay"):
            saver.save(run / "2", args=args)
    assert not checkpoint.list(tmp_path / "run") and not [*(tmp_path / "here").iterdir()]
    with pytest.raises(forebay.OptionError, match="checkpoints alone"):
        ocp.CheckpointManager(run, metadata={"for": "all steps"})


def test_damage_is_an_error(tmp_path: pathlib.Path) -> None:
    run = directory(tmp_path / "run", stage=tmp_path / "fast")
    with ocp.Checkpointer(Handler()) as saver:
        saver.save(run / "1", args=Save([np.arange(100)]))
        checkpoint.wait(LONG)
        (arrays,) = (tmp_path / "run").rglob("arrays-0")
        arrays.write_bytes(b"x" + arrays.read_bytes()[1:])
        directory(tmp_path / "run", stage=tmp_path / "another")
        with pytest.raises(forebay.CorruptCheckpointError, match="arrays-0"):
            saver.restore(run / "1")
        leaf = '["numpy", "<i8", [2], null, [[0, 0, [[0, 2]]]]]'
        whole = f'{{"version": 1, "tree": 0, "leaves": [{leaf}]}}'
        wrong = [
            "[" * 100_000, "{}", whole.replace("1", "2", 1), whole.replace("0", '["list", [[0, 1]]]', 1), whole.replace("<i8", "O"),
            whole.replace("[2]", "[1000000000000]"), whole.replace("[2]", "[3]"), whole.replace("[0, 0,", "[0, 8,"),
            whole.replace("[0, 0,", "[7, 0,"), whole.replace("[0, 2]", "[-2, 0]"), whole.replace("null", "null, 1"),
        ]  # fmt: skip
        for number, text in enumerate([whole, *wrong]):
            made = directory(tmp_path / "foreign") / f"{number}"
            checkpoint.save({"tree.json": text.encode(), "arrays-0": bytes(16)}, tmp_path / "foreign" / f"{number}").wait(LONG)
            if number == 0:
                assert saver.restore(made).tolist() == [0, 0]
                continue
            with pytest.raises(forebay.CorruptCheckpointError, match="tree.json"):
                saver.restore(made)


def test_processes_reshard_and_kills_lose_no_step(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, str(RUNS), str(tmp_path), str(KILLS)], capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert said[:3] == ["save: 2 processes", "load: 1 processes", "load: 2 processes"] and said[3].startswith(f"{KILLS} kills")
    (info,) = checkpoint.list(f"{tmp_path}/processes")
    assert info.world_size == 2 and info.stored
