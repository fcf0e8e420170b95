"""The report as a reader sees it: opened from disk in a browser, wide and narrow."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flare.report.run_report import read_runs, write_page
from tests.chromium import CHROMIUM
from tests.made_up_runs import settings, write_run

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]  # fmt: skip
# Added to a copy of the page: what the browser made of it, as JSON in an attribute.
PROBE = """<script>addEventListener("load", () => {
  const box = (each) => { const b = each.getBoundingClientRect(); return [each.id, b.width, b.height] };
  document.body.dataset.seen = JSON.stringify({
    pictures: [...document.querySelectorAll("figure > svg")].map(box),
    marks: [...document.querySelectorAll("figure > svg")].map((svg) => svg.querySelectorAll("path, use, image").length),
    images: [...document.querySelectorAll("image")].map(box),
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
    page: [document.documentElement.scrollWidth, innerWidth],
  });
});</script>"""


def seen(page: Path, tmp_path: Path, width: int) -> dict[str, Any]:
    """What is on the page in a window of that width."""
    probe = tmp_path / f"probe-{width}.html"
    probe.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / f'browser-{width}'}", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stderr
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install it to see the report in a browser")
def test_every_picture_is_seen_and_nothing_is_fetched(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{policy}-{seed}", settings(policy, seed=seed), rounds=20, infeasible={3})
        for policy in ("greedy", "exact", "dm")
        for seed in range(2)
    ]
    page = tmp_path / "report.html"
    write_page(read_runs(folders), page)
    for width in (1200, 500):
        found = seen(page, tmp_path, width)
        assert len(found["pictures"]) == 17
        for name, wide, high in found["pictures"]:
            assert wide > 0.3 * width, name
            assert high > 50, name
        assert all(wide > 0 and high > 0 for _, wide, high in found["images"])
        assert found["images"]
        assert min(found["marks"]) > 10
        assert found["fetched"] == []
        needed, given = found["page"]
        assert needed <= given  # nothing but wide tables, in their own frame, needs scrolling sideways
    dom = page.read_text(encoding="utf-8")
    assert not re.search(r"https?:|src=|@import|<script|<link", dom)
