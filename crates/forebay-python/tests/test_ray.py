"""Ray: parts, lost nodes, errors of workers, blocks of Ray Data, servers. `tools/test full` starts a cluster of three nodes."""

from __future__ import annotations

import filecmp
import importlib.util
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import Packed, png, python
from forebay import _ray_commands, _ray_data

# Ray's switch for nodes on 127.0.0.1, which it reads when it is imported; and no reports to its authors.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}

has_ray = importlib.util.find_spec("ray") is not None
with_cluster = [
    pytest.mark.skipif(not has_ray, reason="ray is not installed"),
    pytest.mark.skipif("FOREBAY_TEST_FULL" not in os.environ, reason="`tools/test full` runs it: it starts a cluster"),
    # Of ray itself.
    pytest.mark.filterwarnings("ignore"),
]


def test_without_ray_each_function_says_how_to_install_it() -> None:
    code = (
        "import sys\n"
        "sys.modules['ray'] = None\n"
        "import forebay\n"
        "calls = [lambda: forebay.ray.pack('a', 'b'), lambda: forebay.ray.convert('a', 'b'), lambda: forebay.ray.read('a'),\n"
        "         lambda: forebay.ray.write(None, 'b'), lambda: forebay.ray.serve('a')]\n"
        "for call in calls:\n"
        "    try: call()\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    done = python(code)
    assert done.stdout == "ray is not installed: pip install 'forebay[ray]'\n" * 5, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": "1/2"}, "part: pack has no such option; it has blake3"),
        ({"finish": True}, "finish: pack has no such option"),
        ({"job": 2}, "job: pack has no such option"),
        ({"overwrite": "yes"}, "overwrite: expected True or False, found 'yes'"),
        ({"parts": 0}, "option parts is 0: expected 1 or more"),
    ],
)
def test_options_are_refused_before_a_cluster_is_asked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(forebay.OptionError, match=message):
        forebay.ray.pack("in", "out", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "option replicas is 0"),
        ({"port": 0}, "option port is 0: expected 1 or more, the same one after a restart"),
        ({"num_cpus": 0}, "option num_cpus is 0: expected more than 0"),
        ({"listen": "127.0.0.1:0"}, "listen: servers listen on the addresses of their nodes"),
        ({"token": "x"}, "token: serve has no such option; it has .*token_file"),
    ],
)
@pytest.mark.skipif(not has_ray, reason="ray is not installed")
def test_options_of_servers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(forebay.OptionError, match=message):
        forebay.ray.serve("data", **options)


def test_a_task_runs_a_part_and_its_errors_name_part_node_and_file(
    packed: Packed, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ray_commands, "_node", lambda: "10.0.0.7")
    source, out = os.fspath(packed["indexed"].parent / "images"), os.fspath(tmp_path / "out")
    options = {"format": "indexed", "shards": 3, "split": "train", "seed": 5}

    def task(name: str, paths: tuple[str, ...], *flags: str, **more: Any) -> Any:
        return _ray_commands._task("pack", {}, name, paths, flags, {**options, **more} if len(paths) == 2 else {}, None)[0]

    with pytest.raises(forebay.MissingError, match=r"^part 1/2 on node 10\.0\.0\.7: .*/out does not have the plan; give a directory"):
        task("part 1/2", (source, out), "--part=1/2")
    assert task("plan", (source, out), "--plan").shards == 3
    for part in (1, 2):
        assert task(f"part {part}/2", (source, out), f"--part={part}/2").all_shards == 3
    with pytest.raises(forebay.CommandError, match=r"part 1/2 on node 10\.0\.0\.7: .*differs from the plan.*then 3, now 4"):
        task("part 1/2", (source, out), "--part=1/2", shards=4)
    with pytest.raises(forebay.MissingError, match=r"^plan on node 10\.0\.0\.7: /nowhere does not exist there; give a path that all") as raised:
        task("plan", ("/nowhere", out), "--plan")
    assert raised.value.path == "/nowhere"
    assert task("finish", (out,), "--finish").records == len(forebay.open(packed["indexed"]))
    assert equal(packed["indexed"], tmp_path / "out")
    (tmp_path / "bad/a").mkdir(parents=True)
    (tmp_path / "bad/a/x.png").write_bytes(b"no image")
    with pytest.raises(forebay.CommandError, match=r"plan|part 1/1 on node 10\.0\.0\.7: a/x\.png: not an image"):
        bad = (os.fspath(tmp_path / "bad"), os.fspath(tmp_path / "out2"))
        task("plan", bad, "--plan", on_bad="fail")
        task("part 1/1", bad, "--part=1/1", on_bad="fail")


def test_a_task_waits_for_the_process_of_a_lost_node(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(_ray_commands, "_node", lambda: "10.0.0.7")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    tries: list[Any] = []

    def run(*given: Any) -> Any:
        tries.append(given)
        if len(tries) < 3:
            raise forebay.CommandError("/out is in use by process 7 on host a, which packs part 1/2")
        return forebay.Summary({"shards": 1})

    monkeypatch.setattr(_ray_commands, "run", run)
    assert _ray_commands._task("pack", {}, "plan", (os.fspath(tmp_path),), (), {}, None) == ({"shards": 1}, [])
    monkeypatch.setattr(_ray_commands, "_LOCK_WAIT", -1)
    tries.clear()
    with pytest.raises(forebay.CommandError, match="plan on node 10.0.0.7: /out is in use by process 7"):
        _ray_commands._task("pack", {}, "plan", (os.fspath(tmp_path),), (), {}, None)


def test_places_are_those_of_nodes_that_have_all_resources() -> None:
    resources = [{"CPU": 8.0, "disk": 1.0}, {"CPU": 3.0}, {"memory": 1.0}, {"CPU": 64.0}]
    nodes = [{"NodeID": str(i), "Alive": i != 3, "Resources": found} for i, found in enumerate(resources)]
    ray = types.SimpleNamespace(nodes=lambda: nodes)
    assert _ray_commands.places_of(ray, 2, None) == [("0", 4), ("1", 1)]
    assert _ray_commands.places_of(ray, 0.5, {"disk": 0.5}) == [("0", 2)]
    with pytest.warns(UserWarning, match="no node of the cluster has CPU: 16, disk: 1: what needs them waits until one joins"):
        assert _ray_commands.places_of(ray, 16, {"disk": 1}) == []


def test_ranges_of_tasks_have_each_record_once() -> None:
    draw = random.Random(3)
    for _ in range(500):
        bounds = [0]
        for _ in range(draw.randrange(12)):
            bounds.append(bounds[-1] + draw.choice([0, 1, 2, 50]))
        parts = draw.randrange(1, 40)
        found = _ray_data.ranges(bounds, parts)
        assert [number for start, stop in found for number in range(start, stop)] == list(range(bounds[-1])), (bounds, parts)
        assert all(start < stop for start, stop in found)
        shards = sum(start < stop for start, stop in zip(bounds, bounds[1:], strict=False))
        # Whole shards where there are enough.
        assert shards < parts or len(found) == parts and {start for start, _ in found} <= set(bounds), (bounds, parts)


def equal(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two directories have the same files, byte for byte."""
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    others = sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    return names == others and not any(filecmp.cmpfiles(one, other, names, shallow=False)[1:])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes on loopback, of which the driver's has one CPU, and the others two each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        node = {"node_ip_address": "127.0.0.1", "num_cpus": 1}
        made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        for _ in range(2):
            made.add_node(**{**node, "num_cpus": 2})
        ray.init(address=made.address, _node_ip_address="127.0.0.1", log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """Images that take a while, and what one process packs of them."""
    root = tmp_path_factory.mktemp("photos")
    picture = png(200, 200, 7)
    for number in range(1200):
        path = root / f"in/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    forebay.pack(root / "in", root / "alone", **PACK)
    return root / "in", root / "alone"


PACK: dict[str, Any] = {"format": "indexed", "split": "train", "shards": 12, "max_side": 16, "jobs": 1}


class TestCluster:
    pytestmark = with_cluster

    def test_errors_of_workers_arrive_as_those_of_the_command(self, cluster: Any, packed: Packed, tmp_path: pathlib.Path) -> None:
        source = packed["indexed"].parent / "images"
        with pytest.raises(forebay.MissingError, match=r"plan on node 127\.0\.0\.1: /nowhere does not exist there") as raised:
            forebay.ray.pack("/nowhere", tmp_path / "out")
        assert raised.value.path == "/nowhere"
        with pytest.raises(forebay.OptionError, match="plan on node 127.0.0.1: .*'tar'"):
            forebay.ray.pack(source, tmp_path / "out", format="tar")
        (tmp_path / "bad/a").mkdir(parents=True)
        for number in range(8):
            (tmp_path / f"bad/a/{number}.png").write_bytes(png(32, 32, number) if number else b"no image")
        with pytest.raises(forebay.CommandError, match=r"part \d/2 on node 127\.0\.0\.1: a/0\.png: not an image") as failed:
            forebay.ray.pack(tmp_path / "bad", tmp_path / "out2", 2, shards=4, split="train", on_bad="fail")
        assert (failed.value.command, failed.value.exit_code) == ("pack", 1)
        with pytest.warns(UserWarning, match="left out: not an image: 1") as warned:
            done = forebay.ray.pack(tmp_path / "bad", tmp_path / "out3", shards=4, split="train")
        assert (done.splits, done.account["problems"], len(warned)) == ({"train": 7}, {"not an image": 1}, 1)

    def test_more_parts_than_shards_and_a_second_call(self, cluster: Any, packed: Packed, tmp_path: pathlib.Path) -> None:
        options: dict[str, Any] = {"format": "indexed", "shards": 3, "split": "train", "seed": 5}
        done = forebay.ray.pack(packed["indexed"].parent / "images", tmp_path / "out", 100, **options)
        assert equal(packed["indexed"], tmp_path / "out")
        alone = forebay.pack(packed["indexed"].parent / "images", tmp_path / "alone", **options)
        assert {**vars(done), "location": alone.location} == vars(alone)
        again = forebay.ray.pack(packed["indexed"].parent / "images", tmp_path / "out", **options)
        assert again.already_complete and again.fingerprint == done.fingerprint
        shape: dict[str, Any] = {"format": "webdataset", "shards": 4}
        forebay.convert_files(tmp_path / "out", tmp_path / "wds", **shape)
        converted = forebay.ray.convert(tmp_path / "out", tmp_path / "wds-parts", 3, **shape)
        assert converted.splits == done.splits and equal(tmp_path / "wds", tmp_path / "wds-parts")

    def test_a_bucket_gets_the_objects_of_one_process(
        self, cluster: Any, s3_endpoint: str, packed: Packed, tmp_path: pathlib.Path
    ) -> None:
        source = packed["indexed"].parent / "images"
        options: dict[str, Any] = {"format": "indexed", "shards": 3, "split": "train", "seed": 5, "staging": tmp_path / "stage"}
        storage = {"endpoint": s3_endpoint, "aws_access_key_id": "key", "aws_secret_access_key": "secret", "region": "us-east-1"}
        done = forebay.ray.pack(source, "s3://bucket/packed", 2, storage_options=storage, **options)
        assert done.fingerprint == forebay.open(packed["indexed"]).fingerprint
        converted = forebay.ray.convert("s3://bucket/packed", "s3://bucket/wds", 2, storage_options=storage, format="webdataset")
        assert converted.splits == done.splits

    def test_a_call_that_was_interrupted_is_continued(
        self, cluster: Any, photos: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
    ) -> None:
        told: list[dict[str, Any]] = []

        def interrupt(event: dict[str, Any]) -> None:
            told.append(event)
            if event["stage"] == "writing":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            forebay.ray.pack(photos[0], tmp_path / "out", 4, num_cpus=1, progress=interrupt, **PACK)
        assert told[-1]["position"] < told[-1]["total"] and not (tmp_path / "out/forebay.json").exists()
        told.clear()
        forebay.ray.pack(photos[0], tmp_path / "out", num_cpus=2, progress=told.append, **PACK)
        assert equal(photos[1], tmp_path / "out")
        writing = [event for event in told if event["stage"] == "writing"]
        assert {event["total"] for event in writing} == {1200 * len(png(200, 200, 7))}
        assert writing[-1]["position"] == writing[-1]["total"]

    def test_each_record_is_read_once(self, cluster: Any, packed: Packed) -> None:
        whole = forebay.open(packed["indexed"])
        encoded = forebay.ray.read(packed["indexed"], columns=["image/filename", "image/height"], override_num_blocks=8)
        rows = {row["key"]: row for row in encoded.iter_rows()}
        assert encoded.count() == len(rows) == len(whole)
        for record in whole:
            row = rows[record.key]
            assert (row["image"], row["label"] + whole.label_base) == (record.image, record.label)
            assert [row["image/filename"], row["image/height"]] == [*record.features["image/filename"], *record.features["image/height"]]
        transform = forebay.TrainTransform(32)
        decoded = forebay.ray.read(packed["indexed"], transform=transform, seed=3, epoch=2, override_num_blocks=2).take_all()
        samples = whole.split("train").dataset(transform, seed=3)
        samples.set_epoch(2)
        assert sorted(row["sample"] for row in decoded) == list(range(len(whole)))
        for row in decoded:
            image, label = samples[int(row["sample"])]
            assert np.array_equal(row["image"], image) and row["label"] == label

    def test_rows_are_written_in_their_order(self, cluster: Any, packed: Packed, tmp_path: pathlib.Path) -> None:
        whole = forebay.open(packed["indexed"])
        rows = forebay.ray.read(packed["indexed"], override_num_blocks=7).rename_columns({"image": "jpeg", "label": "class"})
        for name in ("one", "other"):
            done = forebay.ray.write(rows, tmp_path / name, image="jpeg", label="class", format="indexed", shard_records=10)
        assert (done.splits, done.shards) == ({"train": len(whole)}, 5)
        assert [(record.key, record.image) for record in forebay.open(tmp_path / "one")] == [(record.key, record.image) for record in whole]
        assert equal(tmp_path / "one", tmp_path / "other")
        with pytest.raises(forebay.OptionError, match="dataset: it has no column 'picture': it has key, image, label"):
            forebay.ray.write(forebay.ray.read(packed["indexed"]), tmp_path / "out", image="picture")
        with pytest.raises(forebay.OptionError, match=r"expected a ray\.data\.Dataset, found a value of type list"):
            forebay.ray.write([], tmp_path / "out")

    def test_servers_are_started_again_after_a_kill(self, cluster: Any, packed: Packed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(forebay.ServerError, match="did not start: cannot open /nowhere"):
            forebay.ray.serve("/nowhere", port=port)
        with forebay.ray.serve(packed["indexed"], 1, port=port, name="train") as servers:
            assert servers.url == f"forebay://127.0.0.1:{port}/train"
            with pytest.raises(forebay.OptionError, match="name: servers of 'train' run already"):
                forebay.ray.serve(packed["indexed"], port=port, name="train")
            expected = epoch(packed["indexed"])
            assert epoch(servers.url) == expected
            for kill in (kill_server, kill_actor):
                kill(servers, port)
                assert servers.url == f"forebay://127.0.0.1:{port}/train"
                assert epoch(servers.url) == expected
        assert not processes(port)

    # After this one, the cluster has one node less.
    def test_a_lost_node_changes_no_byte(
        self, cluster: Any, photos: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
    ) -> None:
        import ray

        lost: list[dict[str, Any]] = []

        def lose(event: dict[str, Any]) -> None:
            if event["stage"] == "writing" and not lost:
                assert 0 < event["position"] < event["total"]
                lost.append(event)
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

        done = forebay.ray.pack(photos[0], tmp_path / "out", num_cpus=1, progress=lose, **PACK)
        assert lost and sum(each["Alive"] for each in ray.nodes()) == 2
        assert done.splits == {"train": 1200}
        assert equal(photos[1], tmp_path / "out")

    def test_a_server_moves_to_another_node(self, cluster: Any, packed: Packed) -> None:
        decode = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "resources": {"decode": 1}}
        first = cluster.add_node(**decode)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with forebay.ray.serve(packed["indexed"], 1, port=port, name="moving", resources={"decode": 1}) as servers:
            expected = epoch(servers.url)
            [process] = processes(port)
            second = cluster.add_node(**decode)
            cluster.remove_node(first, allow_graceful=False)
            wait_for_another(process, port)
            assert servers.url == f"forebay://127.0.0.1:{port}/moving"
            assert epoch(servers.url) == expected
        cluster.remove_node(second)


def epoch(source: Any) -> list[list[int]]:
    loader = forebay.Loader(source, split="train", batch_size=8, transform=forebay.EvalTransform(32))
    return [batch.samples.tolist() for batch in loader]


def processes(port: int) -> list[int]:
    """The servers that listen on a port of loopback."""
    found = subprocess.run(["pgrep", "-f", f"forebay serve --listen=127.0.0.1:{port}"], capture_output=True, text=True)
    return [int(process) for process in found.stdout.split()]


def kill_server(servers: Any, port: int) -> None:
    [process] = processes(port)
    os.kill(process, signal.SIGKILL)
    wait_for_another(process, port)


def kill_actor(servers: Any, port: int) -> None:
    import ray

    [process] = processes(port)
    ray.kill(servers._actors[0], no_restart=False)
    wait_for_another(process, port)


def wait_for_another(process: int, port: int) -> None:
    until = time.monotonic() + 120
    while processes(port) in ([], [process]):
        assert time.monotonic() < until, "no server was started again"
        time.sleep(0.2)
