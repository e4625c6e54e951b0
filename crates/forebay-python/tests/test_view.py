"""`Dataset.view`: a page or a contact sheet for a notebook, and when the page ends."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request

import pytest

import forebay
from conftest import Packed


def has_ended(url: str) -> bool:
    """Waits until nothing listens at an address any more."""
    host, port = re.findall(r"http://(.*):(\d+)/", url)[0]
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except ConnectionRefusedError:
            return True
    return False


def test_a_notebook_shows_the_page_until_it_is_closed(packed: Packed) -> None:
    with forebay.open(packed["indexed"]).view(height=500) as view:
        assert view.url is not None and view.url.startswith("http://127.0.0.1:") and view.url in repr(view)
        with urllib.request.urlopen(view.url, timeout=60) as page:
            assert b"forebay view" in page.read()
            assert "frame-ancestors http://localhost:*" in page.headers["content-security-policy"]
        shown = view._repr_html_()
        assert shown is not None and f'<iframe src="{view.url}" width="100%" height="500"' in shown
        assert view._repr_png_() is None
    assert has_ended(view.url)
    view.close()


def columns_and_rows(sheet: forebay.View) -> tuple[float, float]:
    """The columns and rows of a sheet, by its size."""
    picture = sheet._repr_png_()
    assert picture is not None and picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    return (width - 10) / 234, (height - 10) / 300


def test_a_contact_sheet_is_a_picture(packed: Packed) -> None:
    dataset = forebay.open(packed["tfrecord"])
    train = dataset.split("train")
    sheet = train.view(contact_sheet=True)
    assert columns_and_rows(sheet) == (7, 6)
    for chosen, places in [
        (dataset.view(contact_sheet=True, class_=train.classes[:2]), (7, 4)),
        (dataset.view(contact_sheet=True, indices=[30, 2, 7]), (3, 1)),
        (train[5:10].view(contact_sheet=True), (5, 1)),
        (train[::-2].view(contact_sheet=True), (7, 3)),
    ]:
        assert columns_and_rows(chosen) == places
    with pytest.raises(forebay.CommandError, match='has no class "cat"'):
        dataset.view(contact_sheet=True, class_="cat")
    with pytest.raises(forebay.OptionError, match="indices 42: there are 42 records"):
        dataset.view(contact_sheet=True, indices=42)
    with pytest.raises(forebay.OptionError, match="expected records of one split"):
        train[5:5].view(contact_sheet=True)
    assert sheet.url is None and sheet._repr_html_() is None
    assert repr(sheet) == "<forebay.View: a contact sheet>"
    sheet.close()


def test_the_page_ends_with_its_process(packed: Packed) -> None:
    code = "import forebay, os, sys\nprint(forebay.open(sys.argv[1]).view().url, flush=True)\nos.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", code, packed["indexed"]], capture_output=True, text=True, timeout=120)
    assert has_ended(done.stdout.strip()), done.stderr


def test_options_and_failures_are_named(packed: Packed) -> None:
    dataset = forebay.open(packed["indexed"])
    with pytest.raises(forebay.OptionError, match="option height is 5: expected 100 or more"):
        dataset.view(height=5)
    with pytest.raises(forebay.UnknownOptionError, match="jobs: view has no such option; it has .*listen"):
        dataset.view(jobs=3)
    with pytest.raises(forebay.CommandError, match="invalid value 'nowhere' for '--listen"):
        dataset.view(listen="nowhere")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(forebay.CommandError, match=address) as failed:
            dataset.view(listen=address)
    assert (failed.value.command, failed.value.exit_code) == ("view", 1)
