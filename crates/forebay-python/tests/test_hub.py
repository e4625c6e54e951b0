"""Datasets on a Hugging Face Hub: the commands and loaders read there what they read from a directory."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import forebay
from conftest import forebay_command
from hub import TOKEN, Hub, Repository

Files = dict[str, bytes]


def files_of(directory: pathlib.Path) -> Files:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def files(packed: dict[str, pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A repository of Parquet files, and of the images that they were made from."""
    root = tmp_path_factory.mktemp("hub")
    done = forebay_command("convert", packed["indexed"], root / "parquet", "--format", "parquet", "--shards", "2")
    assert done.returncode == 0, done.stderr
    parquet = {path: data for path, data in files_of(root / "parquet").items() if path.endswith(".parquet")}
    images = {f"images/{path}": data for path, data in files_of(packed["indexed"].parent / "images").items()}
    return parquet | images | {"README.md": b"# Pictures\n"}


@pytest.fixture
def hub(files: Files, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    hub.repositories["me/pictures"] = Repository()
    hub.repositories["me/pictures"].commit(files)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield hub
    hub.shutdown()
    hub.server_close()


def run(*args: str | pathlib.Path) -> str:
    done = forebay_command(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*args: str | pathlib.Path) -> str:
    """The error and the hint of a command that fails."""
    done = forebay_command(*args)
    assert done.returncode == 1, done.stdout + done.stderr
    assert TOKEN not in done.stderr
    return done.stderr


def epoch(source: Any, **options: Any) -> list[tuple[np.ndarray[Any, Any], list[int]]]:
    transform = forebay.TrainTransform(32)
    with forebay.Loader(source, split="train", batch_size=7, transform=transform, seed=5, **options) as loader:
        return [(np.array(batch.images), list(batch.labels)) for batch in loader]


def equal(one: list[tuple[np.ndarray[Any, Any], list[int]]], other: list[tuple[np.ndarray[Any, Any], list[int]]]) -> bool:
    same = [np.array_equal(a, c) and b == d for (a, b), (c, d) in zip(one, other, strict=True)]
    return len(same) > 2 and all(same)


def test_the_hub_of_these_tests_is_one_for_its_package(hub: Hub, files: Files, tmp_path: pathlib.Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    api = huggingface_hub.HfApi(endpoint=hub.url)
    listed = api.list_repo_tree("me/pictures", repo_type="dataset", recursive=True)
    sizes = {entry.path: entry.size for entry in listed if hasattr(entry, "size")}
    assert sizes == {path: len(data) for path, data in files.items()}
    seen = run("ls", "--recursive", "hf://datasets/me/pictures").split()
    assert sorted(seen) == sorted(files)
    for path in ("README.md", next(path for path in files if path.endswith(".parquet"))):
        (info,) = api.get_paths_info("me/pictures", [path], repo_type="dataset")
        assert info.size == len(files[path])
        given = huggingface_hub.hf_hub_download("me/pictures", path, repo_type="dataset", endpoint=hub.url, cache_dir=tmp_path)
        assert pathlib.Path(given).read_bytes() == files[path]
    for name, error in (("me/none", "RepositoryNotFoundError"), ("me/pictures@v9", "RevisionNotFoundError")):
        repository, _, revision = name.partition("@")
        with pytest.raises(getattr(huggingface_hub.errors, error)):
            api.dataset_info(repository, revision=revision or None)


def test_datasets_loads_what_a_conversion_wrote(hub: Hub, tree: Files) -> None:
    pytest.importorskip("datasets")
    script = "import datasets; d = datasets.load_dataset('me/pictures', split='train', data_dir='data'); print(d.num_rows)"
    hub.page = 1000
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(tree)


def test_files_are_copied_as_they_are(hub: Hub, files: Files, tmp_path: pathlib.Path) -> None:
    run("cp", "--recursive", "hf://datasets/me/pictures", tmp_path / "copy")
    assert files_of(tmp_path / "copy") == files
    run("cp", "hf://datasets/me/pictures/README.md", tmp_path / "one.md")
    assert (tmp_path / "one.md").read_bytes() == files["README.md"]


def test_a_copy_asks_for_no_file_twice(hub: Hub, files: Files, tmp_path: pathlib.Path) -> None:
    hub.page = 1000
    for _ in range(2):  # The second time the files are there, and none has a checksum that the Hub lists.
        hub.asked.clear()
        run("cp", "--recursive", "hf://datasets/me/pictures", tmp_path / "copy")
        assert len([line for line in hub.asked if "/resolve/" in line]) == len(files)
        assert len([line for line in hub.asked if "/paths-info/" in line]) <= 1
    assert files_of(tmp_path / "copy") == files


@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.parametrize("change", ["other", "shorter", "longer"])
def test_damaged_files_are_named(hub: Hub, files: Files, tmp_path: pathlib.Path, is_large: bool, change: str) -> None:
    path = next(path for path in files if path.endswith(".parquet")) if is_large else "README.md"
    data = files[path]
    hub.damaged[path] = {"other": data[:-1] + b"?", "shorter": data[:-1], "longer": data + b"?"}[change]
    error = refused("cp", "--recursive", "hf://datasets/me/pictures", tmp_path / "copy")
    assert path in error and "is damaged" in error
    hash = "SHA-256" if is_large else "Git hash"
    assert (f"its {hash} is" if change == "other" else "listed") in error
    assert files_of(tmp_path / "copy") == {name: data for name, data in files.items() if name != path}
    error = refused("cp", f"hf://datasets/me/pictures/{path}", tmp_path / "one")
    assert path in error and "is damaged" in error and not (tmp_path / "one").exists()
    if is_large and change != "other":
        assert path in refused("convert", f"hf://datasets/me/pictures/{path}", tmp_path / "converted", "--format", "indexed")


def test_images_are_packed_as_from_a_directory(hub: Hub, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    options = ("--format", "indexed", "--shards", "3", "--split", "train", "--seed", "5")
    run("pack", "hf://datasets/me/pictures/images", tmp_path / "packed", *options)
    shards = {path: data for path, data in files_of(tmp_path / "packed").items() if path.startswith("train")}
    assert shards == {path: data for path, data in files_of(packed["indexed"]).items() if path.startswith("train")}


def test_records_are_converted_as_from_a_directory(hub: Hub, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    run("convert", "hf://datasets/me/pictures", tmp_path / "back", "--format", "indexed")
    assert equal(epoch(tmp_path / "back"), epoch(packed["indexed"]))


def test_names_and_revisions_may_have_dots(hub: Hub, files: Files, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    repository = hub.repositories["me/pictures.small"] = Repository()
    repository.commit(files, "v1.0")
    repository.commit({path.replace("data/", "data.v2/"): data for path, data in files.items()}, "v2.0")
    for number, url in enumerate(("@v1.0", "@v2.0/data.v2")):
        run("convert", f"hf://datasets/me/pictures.small{url}", tmp_path / str(number), "--format", "indexed")
        assert equal(epoch(tmp_path / str(number)), epoch(packed["indexed"]))


def test_an_index_stays_at_its_commit(hub: Hub, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    repository = hub.repositories["me/pictures"]
    first = repository.branches["main"]
    run("index", "hf://datasets/me/pictures", "--output", tmp_path / "index")
    manifest = json.loads((tmp_path / "index" / "forebay.json").read_text())
    assert f"hf://datasets/me/pictures@{first}/" in json.dumps(manifest) + "/"
    expected = epoch(packed["indexed"])
    repository.commit({"README.md": b"# All is gone\n"})
    assert equal(epoch(tmp_path / "index"), expected)
    run("verify", tmp_path / "index")
    assert run("ls", "hf://datasets/me/pictures").split() == ["README.md"]
    # An index of a commit that the Hub no longer has is an error that says so.
    del repository.commits[first]
    with pytest.raises(forebay.Error, match="no such revision"):
        epoch(tmp_path / "index")


@pytest.mark.parametrize(("access", "says"), [("gated", "the repository is gated"), ("private", "or it is private")])
def test_files_without_access_are_not_called_damaged(hub: Hub, tmp_path: pathlib.Path, access: str, says: str) -> None:
    run("index", "hf://datasets/me/pictures", "--output", tmp_path / "index")
    hub.repositories["me/pictures"].access = access
    done = forebay_command("verify", tmp_path / "index")
    assert done.returncode == 1 and "damaged" not in done.stdout + done.stderr
    assert says in done.stderr and "HF_TOKEN" in done.stderr


def test_commands_for_datasets_say_how_to_make_one(hub: Hub, tmp_path: pathlib.Path) -> None:
    url = "hf://datasets/me/pictures"
    for command, stream in (("doctor", "stdout"), ("advise", "stderr")):
        done = forebay_command(command, url)
        said = getattr(done, stream)
        assert done.returncode == 1 and f"{url} has Parquet files, and no index" in said, said
        assert f"`forebay index {url} --output DIR`" in said and f"`forebay {command} DIR`" in said
    run("index", url, "--output", tmp_path / "index")
    assert "42 records" in forebay_command("doctor", tmp_path / "index").stdout
    assert "Advice for" in run("advise", tmp_path / "index", "--images-per-second", "100", "--run-time", "50ms")


def test_a_loader_reads_in_place(hub: Hub, packed: dict[str, pathlib.Path]) -> None:
    with pytest.warns(UserWarning, match="has no index"):
        found = epoch("hf://datasets/me/pictures@main")
    assert equal(found, epoch(packed["indexed"]))


def test_an_index_is_read_through_a_cache(hub: Hub, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    run("index", "hf://datasets/me/pictures", "--output", tmp_path / "index")
    expected = epoch(packed["indexed"])
    for is_first in (True, False):
        hub.asked.clear()
        assert equal(epoch(tmp_path / "index", storage_options={"cache_dir": str(tmp_path / "cached")}), expected)
        assert any("/cdn/" in line for line in hub.asked) == is_first


def test_ranges_of_a_file_share_a_redirect(hub: Hub, tmp_path: pathlib.Path) -> None:
    run("index", "hf://datasets/me/pictures", "--output", tmp_path / "index")
    ranges = [line for line in hub.asked if "/cdn/" in line]
    resolved = [line for line in hub.asked if "/resolve/" in line and ".parquet" in line]
    assert len(ranges) > 3 * len(resolved) > 0
    # An expired redirect is requested again.
    hub.asked.clear()
    hub.expires = True
    run("index", "hf://datasets/me/pictures", "--output", tmp_path / "again")
    assert len([line for line in hub.asked if "/resolve/" in line and ".parquet" in line]) > len(resolved)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "index")


@pytest.mark.parametrize(("status", "says"), [(403, "refused the signed address (status 403)"), (404, "does not have the file")])
def test_a_refused_redirect_is_named(hub: Hub, files: Files, tmp_path: pathlib.Path, status: int, says: str) -> None:
    hub.refuses = status
    path = next(path for path in files if path.endswith(".parquet"))
    error = refused("cp", f"hf://datasets/me/pictures/{path}", tmp_path / "x")
    assert f"127.0.0.1, where the Hub redirected to, {says}" in error and "fresh address" in error
    assert "HF_TOKEN" not in error and "gated" not in error and "credentials" not in error
    asked = [line for line in hub.asked if "/resolve/" in line]
    assert len(asked) == len([line for line in hub.asked if "/cdn/" in line]) == 4


@pytest.mark.parametrize("place", ["option", "variable", "file"])
def test_a_token_opens_private_and_gated_repositories(
    hub: Hub, files: Files, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for access in ("private", "gated"):
        hub.repositories[f"me/{access}"] = Repository(access)
        hub.repositories[f"me/{access}"].commit(files)
    private, gated = ("hf://datasets/me/private/README.md", "hf://datasets/me/gated/README.md")
    error = refused("cp", private, tmp_path / "x")
    assert "there is no such repository, or it is private" in error and "HF_TOKEN" in error
    error = refused("cp", gated, tmp_path / "x")
    assert "the repository is gated" in error and "accept its conditions" in error
    options = ["--storage-option", f"token={TOKEN}"] if place == "option" else []
    if place == "variable":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    if place == "file":
        (tmp_path / "huggingface").mkdir(exist_ok=True)
        (tmp_path / "huggingface" / "token").write_text(f"{TOKEN}\n")
    for number, url in enumerate((private, gated)):
        run("cp", url, tmp_path / str(number), *options)
        assert (tmp_path / str(number)).read_bytes() == files["README.md"]
        refused("cp", url, tmp_path / "x", "--anonymous", *options)


def test_a_push_is_read_back(
    hub: Hub, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    script = "import forebay, sys; print(forebay.hf.push(sys.argv[1], 'me/new', shards=int(sys.argv[2])))"

    def push(shards: int) -> subprocess.CompletedProcess[str]:
        # The endpoint is read when the package is imported.
        return subprocess.run([sys.executable, "-c", script, str(packed["indexed"]), str(shards)], capture_output=True, text=True)

    done = push(3)
    assert done.returncode == 1 and "huggingface_hub.errors." in done.stderr, done.stderr
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for shards in (3, 2):
        done = push(shards)
        assert done.returncode == 0, done.stderr
        url = done.stdout.strip()
        repository = hub.repositories["me/new"]
        assert url == f"hf://datasets/me/new@{repository.branches['main']}"
        names = [f"data/train-{shard:05}-of-{shards:05}.parquet" for shard in range(shards)]
        assert sorted(repository.commits[repository.branches["main"]]) == ["README.md", *names]
        run("convert", url, tmp_path / str(shards), "--format", "indexed")
        assert equal(epoch(tmp_path / str(shards)), epoch(packed["indexed"]))
    card = repository.commits[repository.branches["main"]]["README.md"].decode()
    assert "| train | 42 | 42 |" in card and "left out: none" in card
    assert 'datasets.load_dataset("me/new")' in card
    # A card and a table of the user's own stay.
    mine = {"README.md": b"# Mine\n", "data/mine.parquet": b"x"}
    repository.commit(repository.commits[repository.branches["main"]] | mine)
    assert push(2).returncode == 0
    assert mine.items() <= repository.commits[repository.branches["main"]].items()


def test_a_push_writes_parquet_alone() -> None:
    with pytest.raises(forebay.OptionError, match="writes Parquet files"):
        forebay.hf.push("packed", "me/new", format="indexed")
    pytest.importorskip("huggingface_hub")
    for name in ("new", "me/a/b"):
        with pytest.raises(forebay.OptionError, match="expected OWNER/NAME"):
            forebay.hf.push("packed", name)


def test_a_token_that_is_not_valid_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.strict = True
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    error = refused("ls", "hf://datasets/me/pictures")
    assert "the token is not valid" in error and "hf_expired" not in error
    assert "README.md" in run("ls", "hf://datasets/me/pictures", "--anonymous")


@pytest.mark.parametrize("place", ["header", "body"])
def test_a_token_that_is_repeated_is_not_shown(hub: Hub, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    hub.echoes = place
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    error = refused("ls", "hf://datasets/me/pictures")
    assert "no access with Bearer [token]" in error


def test_a_renamed_repository_is_found(hub: Hub, files: Files) -> None:
    hub.renamed["old/name"] = "me/pictures"
    assert sorted(run("ls", "--recursive", "hf://datasets/old/name").split()) == sorted(files)


def test_a_limit_is_waited_for(hub: Hub) -> None:
    hub.limited = 2
    assert "README.md" in run("ls", "hf://datasets/me/pictures")
    assert hub.limited == 0


def test_files_with_odd_names_are_left_out_with_the_reason(hub: Hub) -> None:
    hub.repositories["me/odd"] = Repository()
    hub.repositories["me/odd"].commit({"good.md": b"", "a\tb.md": b"", "c\nd.md": b""})
    done = forebay_command("ls", "hf://datasets/me/odd")
    assert done.stdout.split() == ["good.md"]
    assert done.stderr.count("has a tab, a line break or another control character") == 2, done.stderr
    assert "empty part" not in done.stderr


def test_a_listing_without_an_end_is_an_error(hub: Hub) -> None:
    hub.endless = True
    hub.page = 1000
    error = refused("ls", "hf://datasets/me/pictures")
    assert "cannot list hf://datasets/me/pictures: the listing does not end" in error


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hf://datasets/me/none", "there is no such repository"),
        ("hf://datasets/me/pictures@v9", "the repository has no such revision"),
        ("hf://datasets/me/empty", "hf://datasets/me/empty"),
        ("hf://datasets/me", "hf://datasets/OWNER/NAME"),
        ("hf://me/pictures", "hf://datasets/OWNER/NAME"),
        ("hf://datasets/me/pictures@..", "hf://datasets/OWNER/NAME"),
        ("hf://datasets/me/pictures/none", "no object of that name"),
    ],
)
def test_urls_that_cannot_work_say_why(hub: Hub, tmp_path: pathlib.Path, url: str, says: str) -> None:
    hub.repositories["me/empty"] = Repository()
    hub.repositories["me/empty"].commit({"README.md": b""})
    for command in (("inspect",), ("convert", tmp_path / "x")):
        assert says in refused(command[0], url, *command[1:])


def test_the_hub_is_not_written_to(hub: Hub, packed: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    target = "hf://datasets/me/pictures/new"
    for command in (("cp", tmp_path / "file", target), ("pack", packed["indexed"].parent / "images", target), ("rm", "hf://datasets/me/pictures/README.md")):
        assert "read only" in refused(*command)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda url: [{"type": "file", "path": "../../x", "size": 1, "oid": "0"}], None),
        (lambda url: {"no": "list"}, "not that of a Hugging Face Hub"),
        (lambda url: [{"type": "file", "path": "a", "size": -1}], "not that of a Hugging Face Hub"),
    ],
)
def test_answers_of_a_hostile_hub_are_refused(hub: Hub, tmp_path: pathlib.Path, spoil: Callable[[str], Any], says: str | None) -> None:
    hub.spoil = spoil
    if says is None:
        done = forebay_command("cp", "--recursive", "hf://datasets/me/pictures/images", tmp_path / "copy")
        assert files_of(tmp_path) == {} and done.returncode != 0
    else:
        assert says in refused("ls", "--recursive", "hf://datasets/me/pictures")
