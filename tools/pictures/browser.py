"""A headless Chromium that is controlled over pipes, with the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any

NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell",
    "chromium-headless-shell", "headless_shell",
)
ARGUMENTS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)


def find() -> str | None:
    """The browser that FOREBAY_CHROMIUM names, one on the PATH, or one that playwright has downloaded."""
    if named := os.environ.get("FOREBAY_CHROMIUM"):
        return named
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    downloads = pathlib.Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", pathlib.Path.home() / ".cache/ms-playwright"))
    programs = (path for name in NAMES for path in sorted(downloads.glob(f"*chromium*/*/{name}")))
    return next((os.fspath(path) for path in programs), None)


class Page:
    """A page in its own browser process. Use it as a context manager."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The browser expects its pipes at descriptors 3 and 4, which a shell can set up.
        shell = ["sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', program]
        self.child = subprocess.Popen([*shell, *ARGUMENTS, f"--user-data-dir={self.profile.name}", "about:blank"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
        self.calls, self.session, self.unread = 0, None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.terminate()
        self.child.wait()
        self.profile.cleanup()

    def call(self, method: str, **params: Any) -> Any:
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": params} | ({"sessionId": self.session} if self.session else {})
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.unread:
                read = self.child.stdout.read(1 << 16)
                if not read:
                    raise RuntimeError(f"the browser ended in {method}")
                self.unread += read
            said, _, self.unread = self.unread.partition(b"\0")
            answer = json.loads(said)
            if answer.get("id") == self.calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def go(self, url: str, width: int, height: int, scheme: str = "light", still: bool = True) -> None:
        """Opens a page in a window of this size; `still` asks for less motion."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        motion = "reduce" if still else "no-preference"
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion},
        ])
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)["result"].get("value")

    def wait(self, script: str, seconds: float = 60) -> None:
        """Waits until a script gives true."""
        end = time.monotonic() + seconds
        while self.value(script) is not True:
            if time.monotonic() > end:
                raise RuntimeError(f"not within {seconds} s: {script}")
            time.sleep(0.2)

    def screenshot(self, whole: bool = False) -> bytes:
        """The window as PNG, or the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])
