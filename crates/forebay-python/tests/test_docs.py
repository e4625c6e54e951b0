"""Every Python block of the documents runs as it stands there, on a small dataset.

Addresses of the documents become those of this test, loops over 90 epochs become two, and a GPU
becomes the CPU. Blocks of one page run in order, in one namespace and a process of their own.
The commands of `sh` blocks run first on how-to pages, and on the pages for users of other libraries, on data that
those libraries could have written. The pages in `WHOLE` run as a reader follows them: files, commands and their output.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import CLASSES, IMAGES_PER_CLASS, Serve, forebay_command, moto_server

ROOT = pathlib.Path(__file__).parents[3]

# Blocks that need more than this machine, by a text in them. They are type-checked all the same.
NOT_RUN = {
    "forebay+dns://": "names that a cluster resolves",
    "torchvision.datasets.ImageFolder": "photos, and a dataset of Hugging Face",
    "import orbax.checkpoint": "Orbax, which is installed apart",
    "from transformers import AutoModel": "a model of the Hub",
    "from ffcv.": "ffcv, which is compiled against OpenCV and libturbojpeg",
}

# Pages for users of other libraries.
MIGRATION = "docs/migration/"

# Answers to one question each.
HOW_TO = "docs/how-to/"

# Pages whose blocks need nothing of each other: a block runs where the packages that it imports are installed.
SEPARATE_BLOCKS = ("docs/frameworks.md", MIGRATION)

# Pages that run as they are in an empty directory: `python` blocks become the files that their first lines name, `sh`
# blocks run from top to bottom in one shell, and their output is compared with the `text` block ("..." stands for anything)
# or, where it depends on the machine, line by line up to the first number with the `console` block after them.
WHOLE = (
    "docs/tutorials/bucket-and-servers.md",
    "docs/tutorials/detection.md",
    "docs/tutorials/first-epoch.md",
    "docs/tutorials/several-machines.md",
    "docs/tutorials/storage-speed.md",
    "docs/tutorials/tensorflow.md",
    f"{HOW_TO}tls-and-tokens.md",
)

# Those of them that only `tools/test full` follows.
LONG = tuple(f"docs/tutorials/{name}.md" for name in ("detection", "first-epoch", "several-machines"))

# Pages that start a cluster, which only `tools/test full` waits for.
CLUSTERS = (f"{HOW_TO}ray.md", f"{HOW_TO}spark.md")

# Nodes of Ray and Spark on 127.0.0.1, and no reports to the authors of Ray.
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}

# Packages without which a page of `WHOLE` is left out.
OPTIONAL = {"PIL", "tensorflow", "torch", "torchvision"}

END_OF_BLOCK = "-- end of block --"

# Text of the documents, and its replacement; {NAME} is the server of that dataset, the directory `root`, or a new one.
STAND_INS = [
    (r"range\(90\)", "range(2)"),
    (r"batch_size=\d+", "batch_size=4"),
    # Small enough for a CPU.
    (r"resnet50\(num_classes", "resnet18(num_classes"),
    (r"\bTrainTransform\(224", "TrainTransform(64"),
    (r"device=\"cuda\"", 'device="cpu"'),
    (r"num_workers=\d+", "num_workers=0"),
    (r"num_cpus=\d+", "num_cpus=1"),
    (r"port=7070", "port={port}"),
    (r"forebay://[\w.:,]+/imagenet", "{data/imagenet}"),
    # A job has a transform; the dataset that stands in for it has none.
    (r"Loader\(\"forebay://host:7070/resnet50\"", "Loader(\"{packed}\", transform=forebay.TrainTransform(32)"),
    (r"forebay://[a-z][\w.:,]+/\w+", "{packed}"),
    (r"s3://bucket", "{root}/bucket"),
    (r"\"mine/", '"{mine}/'),
    (r"\"/data/", '"{root}/data/'),
]


def doc_blocks() -> types.ModuleType:
    """The tool that finds the blocks; it is no part of the package."""
    if "doc_blocks" not in sys.modules:
        spec = importlib.util.spec_from_file_location("doc_blocks", ROOT / "tools/check/doc_blocks.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["doc_blocks"] = module
        spec.loader.exec_module(module)
    return sys.modules["doc_blocks"]


def programs(page: str, values: dict[str, str]) -> list[tuple[int, str]]:
    """Line and code of the blocks of a page that run, with the addresses of this test."""
    made = []
    for line, code in doc_blocks().blocks(page):
        if any(text in code for text in NOT_RUN):
            continue
        for pattern, replacement in STAND_INS:
            value = re.sub(r"\{(.*?)\}", lambda name: values[name[1]], replacement)
            code = re.sub(pattern, value, code)
        made.append((line, code))
    return made


def commands(page: str, root: pathlib.Path) -> list[list[str]]:
    """The arguments of each `forebay` command in the `sh` blocks of a page, with this test's directory for `/data`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)).splitlines()
    split = [shlex.split(line.replace("/data/", f"{root}/data/")) for line in lines]
    return [words[1:] for words in split if words[0] == "forebay"]


def imports(code: str) -> set[str]:
    """The packages that a block imports."""
    lines = re.findall(r"^\s*(?:import|from) ([\w., ]+)", code, re.MULTILINE)
    return {re.split(r"\.| as ", name)[0] for line in lines for name in line.split(" import ")[0].split(", ")}


def test_blocks_name_one_device() -> None:
    """The stand-in of a GPU would hide a model that stays on the CPU."""
    for page in doc_blocks().pages():
        for line, code in doc_blocks().blocks(page):
            named = set(re.findall(r"(?:device=|\.to\()\"(cpu|cuda)\"", code))
            assert len(named) < 2, f"{page}:{line}: {named}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory with the datasets of the documents: `packed` has one split, `data/imagenet` two."""
    root = tmp_path_factory.mktemp("documents")
    (root / "data").mkdir()
    images = sorted((ROOT / "testdata/images/train").rglob("*.JPEG"))
    jpegs = [path for path in images if path.read_bytes().startswith(b"\xff\xd8")]  # one is a PNG
    for name, splits in {"packed": ["train"], "data/imagenet": ["train", "validation"]}.items():
        tree = root / "images" / name
        for split in splits:
            for label, wnid in enumerate(CLASSES):
                directory = tree / split / wnid
                directory.mkdir(parents=True)
                for number in range(IMAGES_PER_CLASS):
                    shutil.copy(jpegs[(label + number) % len(jpegs)], directory / f"{number}.jpg")
        done = forebay_command("pack", tree, root / name, "--format", "indexed", "--seed", "5")
        assert done.returncode == 0, done.stderr
    write_columns(root, [path.read_bytes() for path in jpegs])
    for name in ("photos", "sketches"):
        (root / name).symlink_to(root / "packed")
    (root / "data/photos").symlink_to(root / "images/data/imagenet")
    return root


def write_columns(root: pathlib.Path, images: list[bytes]) -> None:
    """Datasets with columns, as docs/columns.md reads them."""
    import numpy as np

    import forebay

    features = {
        "data/products": {"caption": "text", "age": "int", "embedding": "vector[512]"},
        "coco": {"tags": "labels", "boxes": "boxes", "captions": "texts", "segmentation": "polygons", "meta": "text"},
        "ade20k": {"mask": "mask"},
    }
    values: dict[str, Any] = {
        "caption": "a caption", "age": 3, "embedding": np.zeros(512, np.float32), "tags": [1, 2],
        "boxes": {"boxes": [[0.25, 0.25, 0.75, 0.5]], "labels": [1]}, "mask": np.ones((8, 8), np.uint8),
        "captions": ["a cat", "two"], "segmentation": [[[9, 9, 20, 9, 20, 20]]], "meta": '{"license": 1}',
    }  # fmt: skip
    for name, columns in features.items():
        with forebay.Writer(root / name, features={"image": "image", "label": "label", **columns}) as writer:
            for number in range(40):
                image = images[number % len(images)]
                writer.write(image=image, label=number % 3, **{column: values[column] for column in columns})


@pytest.fixture(scope="module")
def foreign(place: pathlib.Path) -> pathlib.Path:
    """The directory with the images of `data/imagenet` in the formats of other libraries."""
    data = place / "data"
    for name, options in {
        "imagenet-wds": ["--format", "webdataset", "--shards", "2"],
        "imagenet-mds": ["--format", "mds"],
        "imagenet-tfrecord": ["--format", "tfrecord", "--shards", "2"],
    }.items():
        done = forebay_command("convert", data / "imagenet", data / name, *options)
        assert done.returncode == 0, done.stderr
        # Files of another tool come without the facts of the conversion.
        (data / name / "forebay-conversion.json").unlink(missing_ok=True)
    for chunks in (data / "imagenet-litdata/train", place / "bucket/imagenet-litdata"):
        shutil.copytree(ROOT / "testdata/formats-golden/litdata/plain", chunks)
    (data / "tfrecords").mkdir()
    for path in (data / "imagenet-tfrecord").glob("train-*"):
        shutil.copy(path, data / "tfrecords")
    return place


@pytest.mark.parametrize("page", [page for page in doc_blocks().pages() if page not in WHOLE])
def test_the_python_blocks_of_a_page_run(
    page: str, place: pathlib.Path, serve: Serve, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    if page.startswith(MIGRATION) or page.startswith(HOW_TO) and commands(page, place):
        ran = [forebay_command(*words) for words in commands(page, request.getfixturevalue("foreign"))]
        assert ran, f"no command of {page} runs"
        assert [done.stderr for done in ran if done.returncode != 0] == []
    values = {
        "root": os.fspath(place),
        "mine": os.fspath(tmp_path / "mine"),
        "packed": serve(place / "packed"),
        "data/imagenet": serve(place / "data/imagenet"),
        "port": free_port(),
    }
    code = programs(page, values)
    assert code, f"no block of {page} runs"
    if page.startswith(SEPARATE_BLOCKS):
        code = [(line, block) for line, block in code if all(importlib.util.find_spec(name) for name in imports(block))]
        if not code:
            pytest.skip(f"no package of {page} is installed")
    names = set(doc_blocks().READERS_NAMES.get(page, ()))
    text = "".join(block for _, block in code)
    names = {name for name in names if re.search(rf"\b{name}\b", text)}
    needed = imports(text) | (names & {"torch", "torchvision"}) | ({"torch"} if {"model", "optimizer"} & names else set())
    for adapter in ("torch", "jax", "ray"):
        needed |= {adapter} if f"forebay.{adapter}" in text else set()
    for name in sorted(needed - {"forebay"}):
        pytest.importorskip(name)
    if page in CLUSTERS and "FOREBAY_TEST_FULL" not in os.environ:
        pytest.skip("`tools/test full` runs this page: it starts a cluster")
    if "pyspark" in needed and shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    job: dict[str, Any] = {"page": page, "programs": code, "names": sorted(names), "tmp": os.fspath(tmp_path)}
    variables = {**LOOPBACK, "FOREBAY_STAGING": os.fspath(tmp_path / "stage"), "HOME": os.fspath(tmp_path)}
    if "torch" in needed:
        output = tmp_path / "output"
        job |= {"place": os.fspath(place), "variables": variables, "output": os.fspath(output)}
        assert request.getfixturevalue("with_torch")(job), output.read_text(encoding="utf-8")
        return
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(job),
        cwd=place,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def with_torch() -> Iterator[Callable[[dict[str, Any]], bool]]:
    """Runs a page in a copy of a process that has imported torch, which takes longer than most pages. Tells whether it ran."""
    with subprocess.Popen([sys.executable, __file__, "torch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None and answers is not None

        def run(job: dict[str, Any]) -> bool:
            print(json.dumps(job), file=asked, flush=True)
            if not select.select([answers], [], [], 600)[0]:
                process.kill()
            return answers.readline() == "0\n"

        yield run
        asked.close()


@pytest.mark.parametrize("page", WHOLE)
def test_a_page_can_be_followed(page: str, tmp_path: pathlib.Path) -> None:
    text = with_free_ports((ROOT / page).read_text(encoding="utf-8"))
    blocks = re.findall(r"^```(python|sh|text|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if page in LONG and "FOREBAY_TEST_FULL" not in os.environ:
        pytest.skip("`tools/test full` follows this page: it trains with torch")
    for name in sorted(imports("".join(code for kind, code in blocks if kind == "python")) & OPTIONAL):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    path = [os.fspath(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    if "moto_server" in text:
        if (program := moto_server()) is None:
            pytest.skip("moto_server is not installed")
        path.append(os.fspath(pathlib.Path(program).parent))
    (tmp_path / "testdata").symlink_to(ROOT / "testdata")
    for code in (code for kind, code in blocks if kind == "python"):
        (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code, encoding="utf-8")
    shell = [code for kind, code in blocks if kind == "sh"]
    # All commands run in one shell, as in a reader's terminal; a line of its own tells the output of a block from the next.
    script = "".join(f"{code}\necho '{END_OF_BLOCK}'\n" for code in shell)
    with subprocess.Popen(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": os.pathsep.join(path), "HOME": os.fspath(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as done:
        try:
            stdout, stderr = done.communicate(timeout=600)
        finally:
            # Processes in the background end with the page, also if it fails.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(done.pid, signal.SIGTERM)
    outputs = iter(stdout.split(f"{END_OF_BLOCK}\n"))
    assert done.returncode == 0, f"{shell[stdout.count(END_OF_BLOCK)]}{stdout}{stderr}"
    output = ""
    for kind, code in blocks:
        if kind == "sh":
            output = next(outputs)
        elif kind == "text":
            expected = re.escape(code).replace(r"\.\.\.", ".*")
            assert re.fullmatch(expected, output, re.DOTALL), f"{page} shows\n{code}\nand this is\n{output}"
        elif kind == "console":
            lines = [line.strip() for line in output.splitlines()]
            for line in code.splitlines():
                begin = re.split(r"\d|  |\.\.\.", line.strip())[0]
                assert any(other.startswith(begin) for other in lines), f"{page} shows {line!r}, and this is\n{output}"


def with_free_ports(text: str) -> str:
    """The page with free ports of this machine for those that it names."""
    for port in sorted(set(re.findall(r"(?:127\.0\.0\.1:|PORT=)(\d+)", text))):
        text = re.sub(rf"\b{port}\b", free_port(), text)
    return text


def free_port() -> str:
    """A free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def test_blocks_that_do_not_run_exist() -> None:
    blocks = [code for page in doc_blocks().pages() for _, code in doc_blocks().blocks(page)]
    for text in NOT_RUN:
        assert any(text in code for code in blocks), f"NOT_RUN names {text}, which no block has"


def test_a_page_for_users_of_another_library_shows_both() -> None:
    pages = [page for page in doc_blocks().pages() if page.startswith(MIGRATION)]
    listed = (ROOT / MIGRATION / "README.md").read_text(encoding="utf-8")
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        before, after = (text.index(f"\n{word}:\n\n```python\n") for word in ("Before", "After"))
        assert before < after < text.index("\n**Pitfalls**\n"), page
        assert f"({pathlib.PurePath(page).name})" in listed, page
    assert len(pages) >= 6


class Photos:
    """A map-style dataset of encoded images and labels."""

    def __init__(self) -> None:
        self.paths = sorted(pathlib.Path("images/packed").rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index >= len(self):
            raise IndexError(index)
        return self.paths[index].read_bytes(), index % 2


def readers_names(names: list[str], tmp: str) -> dict[str, Any]:
    """Values for the names that a reader brings along."""
    import uuid

    import numpy as np

    import forebay

    made: dict[str, Any] = {
        "broadcast_from_rank_0": lambda value: value,
        "rank": 0,
        "samples": [(image, number % 2, f"caption {number}") for number, (image, _) in enumerate(Photos())],
        "torch_dataset": Photos(),
        "train": lambda model: None,
        "trainer": types.SimpleNamespace(save_to=lambda path: pathlib.Path(path).write_bytes(b"state")),
        "uuid": uuid,
        "world_size": 1,
    }
    if "loader" in names:
        made["loader"] = forebay.Loader("packed", batch_size=4, transform=forebay.TrainTransform(224))
    if {"torch", "model"} & set(names):
        import torch

        network = torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 1000)
        )
        made |= {"torch": torch, "model": network, "optimizer": torch.optim.SGD(network.parameters(), lr=0.1)}
        made["shard"] = network.state_dict()
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp}/group", rank=0, world_size=1)
    if "torchvision" in names:
        import torchvision

        made["torchvision"] = torchvision
    return {"forebay": forebay, **{name: made[name] for name in names}}


def run(job: dict[str, Any]) -> None:
    """Runs the blocks of a page."""
    namespace = readers_names(job["names"], job["tmp"])
    for line, code in job["programs"]:
        # The traceback of a failure shows the page and the line.
        exec(compile("\n" * (line - 1) + code, os.fspath(ROOT / job["page"]), "exec"), namespace)


def run_with_torch() -> None:
    """Runs the page of each line of the input in a copy of this process, and prints how the copy ended."""
    import torch
    import torch._dynamo  # Optimizers import it.

    assert torch.get_num_threads() > 0 and threading.active_count() == 1
    for line in sys.stdin:
        job = json.loads(line)
        copy = os.fork()
        if copy == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output = os.open(job["output"], os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(job["place"])
            os.environ.update(job["variables"])
            return run(job)
        print(os.waitpid(copy, 0)[1], flush=True)


if __name__ == "__main__":
    if "torch" in sys.argv:
        run_with_torch()
    else:
        run(json.load(sys.stdin))
