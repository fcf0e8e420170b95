"""The New run screen as a person uses it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import PATIENCE_MS
from tests.browser.looking import assert_readable
from tests.studio_runs import written

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect


def test_wrong_values_say_so_beside_the_field_and_the_command_follows(page: Any, served: Any) -> None:
    page.goto(f"{served.address}/#/new")
    command, start = page.locator(".command code"), page.get_by_role("button", name="Start")
    expect(command).to_contain_text("flare run --out")
    devices = page.get_by_label("num_devices")
    devices.fill("many")
    field = page.locator(".field", has=devices)
    expect(field).to_contain_text("must be a whole number, at least 1")
    expect(start).to_be_disabled()
    devices.fill("7")
    expect(start).to_be_enabled()
    expect(command).to_contain_text("--set wireless.num_devices=7")
    page.get_by_label("policy", exact=True).select_option("ps")
    page.get_by_label("ps: num_selected").fill("3")
    expect(command).to_contain_text("--set scheduling.options.num_selected=3")
    page.get_by_role("button", name="Add a pair to compare").click()
    page.get_by_label("seeds").fill("3")
    expect(command).to_contain_text("flare compare --entry flare:ps --seeds 3")
    page.get_by_label("Own settings of pair 1").fill("learning.local_lr=-1")
    expect(page.locator("#entries-wrong")).to_contain_text("learning.local_lr")
    page.get_by_label("Own settings of pair 1").fill("learning.local_lr=0.1")
    expect(command).to_contain_text("flare compare --entry flare:ps,learning.local_lr=0.1 --seeds 3")
    page.get_by_label("seeds").fill("1001")
    expect(page.locator(".field", has=page.get_by_label("seeds"))).to_contain_text(
        "must be a whole number, from 1 to 1000"
    )
    page.get_by_role("button", name="All settings").click()
    page.get_by_label("setting", exact=True).fill("learning.lr=1")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator("#other-wrong")).to_contain_text("learning.local_lr or learning.global_lr")


def test_a_run_lends_its_settings_to_another(page: Any, served: Any) -> None:
    written(served.folder / "lent", 2)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served.address}/#/runs?run=lent")
    page.get_by_role("button", name="New run like this").click()
    expect(page.get_by_label("num_devices")).to_have_value("4")
    expect(page.locator(".command code")).to_contain_text("--set run.rounds=1000")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_dark_and_light_wide_and_narrow_all_can_be_read(page: Any, served: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{served.address}/#/new")
    page.get_by_role("button", name="All settings").click()
    page.get_by_label("num_devices").fill("x")
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    assert_readable(page)


@pytest.fixture
def patient() -> Iterator[None]:
    """A process that imports torch takes its time, on a busy machine a long one."""
    expect.set_options(timeout=60_000)
    yield
    expect.set_options(timeout=PATIENCE_MS)


@pytest.mark.waits(seconds=12)
def test_start_stop_resume(page: Any, served: Any, patient: None) -> None:
    page.goto(f"{served.address}/#/new")
    page.get_by_label("rounds", exact=True).fill("1000000")
    page.get_by_label("num_devices").fill("4")
    page.get_by_label("model", exact=True).select_option("logistic")
    page.get_by_label("Folder of the run").fill("started")
    expect(page.locator(".command code")).to_contain_text("--out started")
    page.get_by_role("button", name="Start", exact=True).click()
    try:
        page.get_by_role("link", name="Show").first.click()
        row = page.get_by_role("listbox", name="Runs").get_by_role("option").filter(has_text="started")
        expect(row).to_contain_text(re.compile(r"[1-9][0-9]* / 1,000,000"))
        page.get_by_role("button", name="Stop").click()
        expect(row).to_contain_text("interrupted")
        page.get_by_role("button", name="Resume").click()
        expect(row).to_contain_text("running")
        page.get_by_role("button", name="Stop").click()
        expect(row).to_contain_text("interrupted")
    finally:
        for _ in range(2):  # the second time it is ended at once
            page.request.post(f"{served.address}/api/runs/stop", data={"run": "started"})


def test_that_a_run_is_started_is_said_beside_start(page: Any, served: Any) -> None:
    page.route("**/api/new-run/start", lambda route: route.fulfill(json={"run": "runs/mine"}))
    page.goto(f"{served.address}/#/new")
    page.get_by_role("button", name="Start", exact=True).click()
    said = page.get_by_label("Command", exact=True).get_by_text("runs/mine is started; it appears among the runs")
    expect(said).to_be_in_viewport()
