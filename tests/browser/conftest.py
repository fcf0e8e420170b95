"""One studio and one browser for all tests of a process; where there is no Chromium, they are skipped with a word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import CHROMIUM

REFUSED = "status of 422"  # what Chromium says of an answer that tells the user what is wrong with an input
PATIENCE_MS = 30_000  # on a busy machine all takes its time
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


@dataclass
class Served:
    """A studio that is being served, and its folder."""

    address: str
    folder: Path


@dataclass
class Watched:
    """What a page did that a user does not see: errors in its console, and requests to other hosts."""

    address: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _heard(self, message: Any) -> None:
        if message.type == "error" and REFUSED not in message.text:
            self.errors.append(message.text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:", "about:")):
            self.elsewhere.append(url)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("uvicorn", reason="the extra studio is not installed")
    from tests.studio_client import served as serving

    folder = tmp_path_factory.mktemp("studio")
    with serving(folder) as studio:
        yield Served(f"http://127.0.0.1:{studio.port}", folder)


@pytest.fixture(scope="module")  # while it is there an event loop runs, beside which other tests could run none
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install it to see the studio in a browser")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    api.expect.set_options(timeout=PATIENCE_MS)
    with api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(served: Served, browser: Any) -> Iterator[Any]:
    """A page of its own in a window of 1280 x 800; whatever the test did, it has asked nobody else, and its console has
    no error."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    watched = Watched(served.address)
    watched.watch(opened)
    yield opened
    context.close()
    assert watched.errors == []
    assert watched.elsewhere == []
