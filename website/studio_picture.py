"""Draw docs/studio.gif: somebody drags a device across the cell, then moves the deadline, then compares two policies.

Run `python website/studio_picture.py`; it needs Chromium and the extras of the tests.
"""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PORT = 8790
WINDOW = {"width": 1280, "height": 800}
WIDTH = 900  # of the picture, in pixels
STEP_MS, STAY_MS = 120, 1400
DEVICE = 18


def frames(page: Any) -> list[tuple[Image.Image, int]]:
    """Each picture of the page, and for how long it is shown, in milliseconds."""
    made: list[tuple[Image.Image, int]] = []

    def shoot(stay_ms: int = STEP_MS) -> None:
        page.wait_for_timeout(120)
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        made.append((shot.resize((WIDTH, WIDTH * shot.height // shot.width), Image.Resampling.LANCZOS), stay_ms))

    shoot(STAY_MS)
    place = page.locator(f"g.device[data-device='{DEVICE}']").bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(1, 17):
        part = step / 16
        page.mouse.move(x + 210 * part, y - 60 * math.sin(math.pi * part) + 30 * part)
        shoot()
    page.mouse.up()
    shoot(STAY_MS)
    deadline = page.get_by_role("slider", name="Deadline")
    deadline.focus()
    for _ in range(14):
        for _ in range(2):
            page.keyboard.press("ArrowLeft")
        shoot()
    shoot(STAY_MS)
    page.get_by_role("button", name="Compare").click()
    shoot(2 * STAY_MS)
    return made


def main() -> None:
    """Serve a studio, take the pictures, write the file."""
    server = subprocess.Popen([sys.executable, "-m", "flare", "studio", "--no-browser", "--port", str(PORT)], cwd=ROOT)
    try:
        address = f"http://127.0.0.1:{PORT}/"
        for _ in range(100):
            try:
                urlopen(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.3)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=WINDOW, color_scheme="light")
            page.goto(address)
            page.wait_for_selector("g[data-device]")
            pictures, stays = zip(*frames(page), strict=True)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    palette = pictures[0].quantize(96, dither=Image.Dither.NONE)
    first, *others = (each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures)
    target = ROOT / "docs" / "studio.gif"
    first.save(target, save_all=True, append_images=others, duration=list(stays), loop=0, optimize=True)
    print(f"{target}: {len(pictures)} pictures, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
