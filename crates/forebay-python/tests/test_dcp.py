"""Checkpoints of `torch.distributed.checkpoint` through the staging area: its own state comes back, on any number of ranks."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

import forebay
from conftest import forebay_command
from forebay import checkpoint

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
CheckpointException = pytest.importorskip("torch.distributed.checkpoint.api").CheckpointException
from forebay.integrations.dcp import StorageReader, StorageWriter  # noqa: E402

RUNS = pathlib.Path(__file__).parent / "dcp_runs.py"
KILLS = 200 if "FOREBAY_TEST_FULL" in os.environ else 6

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def staging(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("FOREBAY_STAGING", os.fspath(tmp_path / "fast"))
    return tmp_path / "fast"


def state() -> dict[str, Any]:
    return {"model": {"w": torch.arange(5000.0).reshape(50, 100), "b": torch.ones(3)}, "step": 7, "name": "first"}


def empty() -> dict[str, Any]:
    return {"model": {"w": torch.zeros(50, 100), "b": torch.zeros(3)}, "step": 0, "name": ""}


def is_equal(found: dict[str, Any]) -> bool:
    expected = state()
    same = all(torch.equal(found["model"][name], expected["model"][name]) for name in ("w", "b"))
    return same and (found["step"], found["name"]) == (7, "first")


@pytest.mark.parametrize("way", ["save", "async_save"])
def test_a_state_comes_back(tmp_path: pathlib.Path, way: str) -> None:
    place = f"{tmp_path}/run/step-1"
    writer = StorageWriter(keep=2, metadata={"loader": 3})
    done = getattr(dcp, way)(state(), storage_writer=writer, checkpoint_id=place)
    if way == "async_save":
        done.result()
    assert checkpoint.latest(f"{tmp_path}/run") == place
    assert checkpoint.metadata(place) == {"loader": 3}
    checkpoint.wait(60)
    for stage in (None, tmp_path / "another machine"):
        found = empty()
        dcp.load(found, storage_reader=StorageReader(place, stage=stage))
        assert is_equal(found)
    # The files are torch's own.
    assert forebay_command("export", place, tmp_path / "files").returncode == 0
    found = empty()
    dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path / "files"))
    assert is_equal(found)


def test_a_state_goes_to_a_store_and_back(tmp_path: pathlib.Path, s3_endpoint: str) -> None:
    options = {"endpoint": s3_endpoint, "region": "us-east-1", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    writer = StorageWriter("s3://bucket/dcp/step-1", storage_options=options)
    dcp.save(state(), storage_writer=writer)
    checkpoint.wait(60)
    found = empty()
    dcp.load(found, storage_reader=StorageReader("s3://bucket/dcp/step-1", storage_options=options, stage=tmp_path / "empty"))
    assert is_equal(found)


def test_a_save_that_fails_leaves_nothing(tmp_path: pathlib.Path) -> None:
    class Unsavable:
        def __reduce__(self) -> Any:
            raise ValueError("this cannot be saved")

    writer = StorageWriter()
    with pytest.raises(CheckpointException, match="this cannot be saved"):
        dcp.save(state() | {"bad": Unsavable()}, storage_writer=writer, checkpoint_id=f"{tmp_path}/run/step-1")
    assert checkpoint.latest(f"{tmp_path}/run") is None and checkpoint.pending() == []
    dcp.save(state(), storage_writer=writer, checkpoint_id=f"{tmp_path}/run/step-2")
    assert checkpoint.latest(f"{tmp_path}/run") == f"{tmp_path}/run/step-2"


def test_a_writer_has_one_save_in_flight(tmp_path: pathlib.Path) -> None:
    entered, may_end = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> Any:
            entered.set()
            may_end.wait(60)
            return (int, (1,))

    writer = StorageWriter()
    first = threading.Thread(
        target=dcp.save, args=(state() | {"slow": Slow()},), kwargs={"storage_writer": writer, "checkpoint_id": f"{tmp_path}/run/step-1"}
    )
    first.start()
    assert entered.wait(60)
    with pytest.raises(forebay.OptionError, match="is running"):
        dcp.save(state(), storage_writer=writer, checkpoint_id=f"{tmp_path}/run/step-2")
    may_end.set()
    first.join()
    assert checkpoint.latest(f"{tmp_path}/run") == f"{tmp_path}/run/step-1"


def saved(writer: Any, place: str, state: dict[str, Any]) -> dict[str, Any]:
    """Saves a state, changes it once `async_save` has returned, and loads what was saved."""
    found = {name: value.clone().zero_() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    running = dcp.async_save(state, storage_writer=writer, checkpoint_id=place)
    for value in state.values():
        if isinstance(value, torch.Tensor):
            value.fill_(-1)
    running.result()
    dcp.load(found, storage_reader=StorageReader(place))
    return found


def kept(writer: Any) -> int:
    return int(writer.state_dict_cache["w"].data_ptr())


def test_the_memory_of_a_copied_state_is_used_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, writer = tmp_path / "run", StorageWriter()
    memory = []
    for step in range(3):
        assert torch.equal(saved(writer, f"{run}/{step}", {"w": torch.full((300, 7), step), "n": step})["w"], torch.full((300, 7), step))
        memory.append(kept(writer))
    assert len(set(memory)) == 1
    # States with other tensors are copied to memory of their own: of an optimizer, with other sizes, with other types.
    for step, state in enumerate([{"o": torch.ones(5)}, {"w": torch.ones(1, 7)}, {"w": torch.ones(1, 7).bool()}], 3):
        state |= {"w": torch.full((300, 7), step)} | state
        expected = {name: value.clone() for name, value in state.items()}
        found = saved(writer, f"{run}/{step}", state)
        assert all(torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in expected)
    # Where no memory can be pinned, as without a driver, other memory is taken.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch.equal(writer.stage({"w": torch.ones(9)})["w"], torch.ones(9))


def test_the_memory_of_a_failed_save_is_not_used_again(tmp_path: pathlib.Path) -> None:
    writer = StorageWriter()
    saved(writer, f"{tmp_path}/run/0", {"w": torch.ones(5)})
    before = kept(writer)
    with pytest.raises(CheckpointException, match="unknown://"):
        dcp.async_save({"w": torch.ones(5)}, storage_writer=writer, checkpoint_id="unknown://bucket/run/1").result()
    assert torch.equal(saved(writer, f"{tmp_path}/run/2", {"w": torch.zeros(5)})["w"], torch.zeros(5))
    assert kept(writer) != before
    # Without the option torch's own copy is made, which is not kept.
    writer = StorageWriter(cache_staged_state_dict=False)
    assert torch.equal(saved(writer, f"{tmp_path}/run/3", {"w": torch.ones(5)})["w"], torch.ones(5))
    assert writer.state_dict_cache is None


class Counted:
    """A checkpoint that is read, which notes the bytes of ranges and the names of whole files."""

    def __init__(self, found: Any) -> None:
        self.found = found
        self.ranges: list[int] = []
        self.whole: list[str] = []

    def read(self, rank: int, name: str) -> Any:
        self.whole.append(name)
        return self.found.read(rank, name)

    def read_range(self, rank: int, name: str, offset: int, length: int) -> Any:
        self.ranges.append(length)
        return self.found.read_range(rank, name, offset, length)


@pytest.mark.parametrize("local", [True, False])
def test_a_load_reads_its_items_alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    place = f"{tmp_path}/run/step-1"
    whole = {name: torch.full((1 << 20,), number) for number, name in enumerate("abcd")}
    dcp.save(whole, storage_writer=StorageWriter(), checkpoint_id=place)
    checkpoint.wait(60)
    counted: list[Counted] = []

    def opened(*args: Any) -> Any:
        found, parts = real(*args)
        counted.append(Counted(found))
        return counted[-1], parts

    real = checkpoint._opened
    monkeypatch.setattr(checkpoint, "_opened", opened)
    reader = StorageReader(place, stage=None if local else tmp_path / "empty")
    for wanted in ("c", "ab", "ad", "abcd"):
        found = {name: torch.zeros(1 << 20, dtype=torch.int64) for name in wanted}
        dcp.load(found, storage_reader=reader)
        assert all(torch.equal(found[name], whole[name]) for name in wanted)
        assert counted[-1].found.is_local == local
        assert [name for name in counted[-1].whole if name != ".metadata"] == (["__0_0.distcp"] if wanted == "abcd" else [])
        assert len(counted[-1].ranges) == {"c": 1, "ab": 1, "ad": 2, "abcd": 0}[wanted]
        assert sum(counted[-1].ranges) < len(wanted) * (9 << 20)
    # Damage is found where it is read, and only there.
    if not local:
        (file,) = (tmp_path / "run").rglob("*.distcp")
        damaged = bytearray(file.read_bytes())
        damaged[damaged.index((2).to_bytes(8, "little") * 64) + 1000] ^= 1
        file.write_bytes(damaged)
        for name in "abcd":
            found = {name: torch.zeros(1 << 20, dtype=torch.int64)}
            if name == "c":
                with pytest.raises(CheckpointException, match=re.escape(file.name)):
                    dcp.load(found, storage_reader=reader)
            else:
                dcp.load(found, storage_reader=reader)
                assert torch.equal(found[name], whole[name])


def test_items_without_a_checksum_are_read_with_their_file(tmp_path: pathlib.Path) -> None:
    place = f"{tmp_path}/run/step-1"
    torch.serialization.set_crc32_options(False)
    try:
        dcp.save(state(), storage_writer=StorageWriter(), checkpoint_id=place)
    finally:
        torch.serialization.set_crc32_options(True)
    found = {"model": {"b": torch.zeros(3)}}
    dcp.load(found, storage_reader=StorageReader(place))
    assert torch.equal(found["model"]["b"], torch.ones(3))


def test_a_reader_finds_what_replaced_a_checkpoint(tmp_path: pathlib.Path) -> None:
    reader = StorageReader(f"{tmp_path}/run/step-1")
    for step in (1, 2):
        dcp.save({"step": step}, storage_writer=StorageWriter(), checkpoint_id=f"{tmp_path}/run/step-1")
        checkpoint.wait(60)
        found = {"step": 0}
        dcp.load(found, storage_reader=reader)
        assert found["step"] == step


def test_what_cannot_be_loaded_says_why(tmp_path: pathlib.Path, staging: pathlib.Path) -> None:
    with pytest.raises(CheckpointException, match="read only"):
        dcp.save(state(), storage_writer=StorageWriter(), checkpoint_id="hf://datasets/me/run/step-1")
    with pytest.raises(CheckpointException, match="no complete checkpoint|there is no checkpoint"):
        dcp.load(empty(), storage_reader=StorageReader(f"{tmp_path}/run/step-1"))
    checkpoint.save(b"other", f"{tmp_path}/run/step-2").wait(60)
    with pytest.raises(CheckpointException, match="did not save it"):
        dcp.load(empty(), storage_reader=StorageReader(f"{tmp_path}/run/step-2"))
    dcp.save(state(), storage_writer=StorageWriter(), checkpoint_id=f"{tmp_path}/run/step-3")
    checkpoint.wait(60)
    (file,) = (tmp_path / "run" / "step-3").rglob("*.distcp")
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CheckpointException, match=re.escape(file.name)):
        dcp.load(empty(), storage_reader=StorageReader(f"{tmp_path}/run/step-3", stage=tmp_path / "empty"))


def test_ranks_without_collectives_are_refused() -> None:
    with pytest.raises(forebay.OptionError, match="use_collectives"):
        StorageWriter().set_up_storage_writer(True, use_collectives=False)


def test_ranks_reshard_and_kills_lose_no_step(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, str(RUNS), str(tmp_path), str(KILLS)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert said[:3] == ["save: 2 ranks", "load: 1 ranks", "load: 3 ranks"] and said[3].startswith(f"{KILLS} kills")
    # Of the save that failed on one rank nothing is left.
    assert [(info.location, info.world_size, info.stored) for info in checkpoint.list(f"{tmp_path}/ranks")] == [
        (f"{tmp_path}/ranks/step-{step}", 2, True) for step in (2, 4)
    ]
    assert checkpoint.pending() == []
