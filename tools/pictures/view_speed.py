#!/usr/bin/env python3
"""Measures the page of `forebay view` with many samples: `tools/pictures/view_speed.py FOREBAY [SOURCE]`.

SOURCE is a generated dataset of a million samples by default. Prints how long the index and the first page take, how long
frames take while the grid scrolls, how long jumps and queries take, and how much memory the program and the page hold. The
program reads samples in the background meanwhile. Needs Chromium: FOREBAY_CHROMIUM names one.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
import urllib.request

import browser

SOURCE = "synthetic://imagenet?records=1000000&pictures=1024"
SHOWN = "(() => { const tiles = [...document.querySelectorAll('.tile')].filter((tile) => { const box = tile.getBoundingClientRect(); \
         const grid = document.getElementById('grid').getBoundingClientRect(); return box.top < grid.bottom && box.bottom > grid.top; }); \
         return tiles.length > 5 && tiles.every((tile) => tile.querySelector('img')?.naturalWidth > 0); })()"
SCROLL = """
new Promise((done) => {
  const grid = document.getElementById('grid'), gaps = [];
  let before = performance.now(), left = 300;
  const step = (now) => {
    gaps.push(now - before);
    before = now;
    grid.scrollTop += 300;
    if (left-- > 0) requestAnimationFrame(step);
    else { gaps.sort((a, b) => a - b); done([gaps[150], gaps[297], gaps[300]].map((ms) => ms.toFixed(1)).join(', ')); }
  };
  requestAnimationFrame(step);
})"""


def memory(process: int, name: str) -> str:
    """A line of the status of a process, in MiB."""
    status = pathlib.Path(f"/proc/{process}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(name))
    return f"{int(line.split()[1]) // 1024} MiB"


def until(page: browser.Page, script: str) -> float:
    """Milliseconds until a script gives true, looked at in each frame of the page."""
    waiting = f"new Promise((done) => {{ const begin = performance.now(); const look = () => (({script}) ? \
                done(performance.now() - begin) : requestAnimationFrame(look)); look(); }})"
    return float(page.value(waiting))


def main() -> None:
    program, source = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else SOURCE
    begin = time.monotonic()
    viewer = subprocess.Popen([program, "view", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert viewer.stdout
        url = viewer.stdout.readline().strip()
        print(f"opened: {time.monotonic() - begin:.2f} s")
        while b'"indexed":true' not in urllib.request.urlopen(url + "api/progress").read():
            time.sleep(0.005)
        print(f"index read: {time.monotonic() - begin:.2f} s, RSS {memory(viewer.pid, 'VmRSS')}")
        chromium = browser.find()
        if chromium is None:
            sys.exit("no Chromium was found: FOREBAY_CHROMIUM names one")
        with browser.Page(chromium) as page:
            page.go("about:blank", 1280, 900)
            page.go(url, 1280, 900)
            page.wait("document.readyState === 'complete'")
            page.wait(SHOWN)
            entries = "performance.getEntriesByType('resource').filter((one) => one.name.includes('picture/thumbnail'))"
            print("first page, from navigation to its last picture: "
                  f"{page.value(f'Math.max(...{entries}.slice(0, 24).map((one) => one.responseEnd))'):.0f} ms")
            print(f"300 frames of scrolling, median, 99th and longest gap: {page.value(SCROLL)} ms")
            jumps = []
            for place in (0.9, 0.1, 0.5, 1.0, 0.0, 0.73):
                page.value(f"scroller.to(scroller.room * {place}), 1")
                jumps.append(until(page, SHOWN))
            print("jumps, until all pictures are there: " + ", ".join(f"{ms:.0f}" for ms in jumps) + " ms")
            for query in ("sort=bytes&descending=true", "sort=suspicious", "key=00123", "class=7&sort=pixels", "reasons=4"):
                asked = f"(async () => {{ const begin = performance.now(); await ask('api/records?again=true&{query}'); \
                          return performance.now() - begin; }})()"
                print(f"{query}: {page.value(asked):.0f} ms")
            heap = page.value("performance.memory.usedJSHeapSize") / 2**20
            print(f"page: {heap:.0f} MiB of JavaScript, {page.value('document.querySelectorAll(`*`).length')} nodes")
            print(page.value("document.getElementById('state').textContent"))
        print(f"program: RSS {memory(viewer.pid, 'VmRSS')}, highest {memory(viewer.pid, 'VmHWM')}")
    finally:
        viewer.terminate()
        viewer.wait()


if __name__ == "__main__":
    main()
