"""The Cell screen as a person uses it: a real browser, a real server, one of each for all tests."""

from __future__ import annotations

import csv
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Served
from tests.browser.looking import assert_readable

ANSWERS = "document.querySelector('#screen').dataset.answers"


@pytest.fixture
def cell(page: Any, served: Served) -> Any:
    """The screen as it opens, solved."""
    return opened(page, f"{served.address}/")


def opened(page: Any, address: str) -> Any:
    page.goto(address)
    page.wait_for_selector("#screen[data-answers]")
    return page


def solved_again(page: Any, act: Any) -> None:
    """Do something, and wait until the screen shows the answer to it."""
    before = int(page.evaluate(ANSWERS))
    act()
    until(page, f"Number({ANSWERS}) > {before}")


def until(page: Any, condition: str, limit_s: float = 10.0) -> None:
    """Wait until an expression is true; the page's policy forbids that the page itself is asked to."""
    end_s = time.monotonic() + limit_s
    while not page.evaluate(condition):
        assert time.monotonic() < end_s, condition
        page.wait_for_timeout(5)


def summary(page: Any) -> str:
    return str(page.locator(".summary").first.inner_text())


def senders(page: Any) -> set[str]:
    return set(page.locator(".gantt .row:not(.out) .name").all_text_contents())


def middle(page: Any, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_it_opens_with_the_picture_of_the_readme(cell: Any) -> None:
    assert re.sub(r"\s+", " ", summary(cell)).startswith(
        "12 of 40 send 0.2736 objective proven optimal, gap 0 ends 901 ms of 1 s"
    )
    assert cell.locator(".map .device").count() == 40
    assert (
        cell.locator(".map .device.sends").count() == len(senders(cell)) == cell.locator(".band .share").count() == 12
    )
    assert cell.locator("#status").inner_text().split()[0] == "exact"


def test_dragging_a_device_away_takes_it_out_and_says_what_would_bring_it_in(cell: Any) -> None:
    name = "22"
    assert name in senders(cell)
    x, y = middle(cell, f".map .device[data-device='{name}']")
    left, _ = middle(cell, ".map")
    cell.mouse.move(x, y)
    cell.mouse.down()
    solved_again(cell, lambda: cell.mouse.move(x + 30, y + 10))
    assert "21" in senders(cell)
    solved_again(cell, lambda: cell.mouse.move(2 * left, y, steps=2))
    cell.mouse.up()
    cell.get_by_label("Power, typed").fill("-25 dBm")
    solved_again(cell, lambda: cell.keyboard.press("Enter"))
    until(cell, "!document.querySelector(\".map .device[data-device='22']\").classList.contains('sends')")
    told = cell.locator(".inspector .verdict").inner_text()
    assert "channel too weak" in told
    assert "more time" in told
    assert name not in senders(cell)
    solved_again(cell, lambda: cell.get_by_role("button", name="Undo its changes").click())
    assert name in senders(cell)


def test_hovering_a_device_lights_its_bar_its_share_and_its_row(cell: Any) -> None:
    cell.locator(".gantt .row[data-device='35']").hover()
    lit = cell.locator(".lit")
    tags = {
        one.evaluate("node => node.closest('.map, .gantt, .band, table').tagName + node.tagName") for one in lit.all()
    }
    assert {"svgline", "svgg", "TABLETR"} <= tags
    assert all(one.get_attribute("data-device") == "35" for one in lit.all())
    assert "Device 35" in cell.get_by_role("tooltip").inner_text()
    cell.mouse.move(2, 2)
    assert lit.count() == 0


def test_sliders_policies_rounds_and_two_policies_side_by_side(cell: Any) -> None:
    band = cell.get_by_label("Band, typed")
    band.fill("20 MHz")
    solved_again(cell, lambda: band.press("Enter"))
    assert cell.locator(".band .tick.end").text_content() == "20 MHz"
    slider = cell.get_by_role("slider", name="Gamma")
    solved_again(cell, lambda: slider.press("End"))
    assert slider.get_attribute("aria-valuetext") == "1000"
    deadline = cell.get_by_label("Deadline, typed")
    deadline.fill("soon")
    deadline.press("Enter")
    assert "with its unit" in cell.locator(".slider .field-error", has_text="unit").inner_text()
    deadline.fill("1 s")
    deadline.press("Enter")
    solved_again(cell, lambda: cell.get_by_role("button", name="+ Compare").click())
    solved_again(cell, lambda: cell.get_by_label("Second policy", exact=True).select_option("cp"))
    first, second = cell.locator(".result").all()
    heights = [
        [row.get_attribute("data-device") for row in one.locator(".gantt .row").all()] for one in (first, second)
    ]
    assert heights[0] == heights[1]  # the same device at the same height
    assert "gap" in second.locator(".proof").inner_text()
    solved_again(cell, lambda: cell.get_by_label("Next round").click())
    assert "round 1" in cell.locator(".what").inner_text()
    solved_again(cell, lambda: cell.get_by_role("button", name="Play").click())
    cell.get_by_role("button", name="Pause").click()
    assert int(cell.get_by_role("spinbutton", name="Round").input_value()) >= 2


SLOW_ROUNDS = """() => {
  const ask = window.fetch, every = window.setInterval, late = { 1: 150, 3: 400 };
  window.setInterval = (act, ms) => every(act, ms / 10);
  window.asked = [];
  window.fetch = async (path, options) => {
    const round = /rounds\\/(\\d+)$/.exec(path)?.[1];
    if (round !== undefined) window.asked.push(round);
    const answer = await ask(path, options);
    await new Promise((resolve) => setTimeout(resolve, late[round] ?? 0));
    return answer;
  };
}"""


def test_of_two_rounds_of_a_run_the_one_asked_for_last_is_shown(page: Any, served: Served) -> None:
    scene = {"wireless": {}, "policies": [{"policy": "exact"}]}
    view = page.request.post(f"{served.address}/api/cell", data=scene).json()["views"][0]
    page.route("**/api/runs/some/rounds/*", lambda route: route.fulfill(json=view))
    opened(page, f"{served.address}/#/cell?run=some&round=0")
    page.evaluate(SLOW_ROUNDS)
    field = page.get_by_role("spinbutton", name="Round")
    for number in ("1", "2"):
        field.fill(number)
        field.press("Enter")
    page.wait_for_timeout(300)
    page.get_by_role("button", name="Play").click()
    page.wait_for_timeout(300)  # ticks of the clock, in which round 3 is not there yet
    assert page.evaluate("window.asked") == ["1", "2", "3"]


def test_all_of_it_works_by_keyboard_alone(cell: Any) -> None:
    names = set()
    for _ in range(60):
        cell.keyboard.press("Tab")
        name = cell.evaluate(
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.labels?.[0]?.textContent "
            "?? document.activeElement.textContent"
        )
        names.add(name)
        if name and name.startswith("The cell from above"):
            cell.keyboard.press("n")
            solved_again(cell, lambda: [cell.keyboard.press("+") for _ in range(9)])
            solved_again(cell, lambda: cell.keyboard.press("ArrowLeft"))
            assert cell.locator(".map .device.selected").get_attribute("data-device") == "0"
        if name == "Next round":
            solved_again(cell, lambda: cell.keyboard.press("Enter"))
            break
    assert {"Cell", "Runs", "New run", "Load a file", "Copy link", "Band", "Gamma", "Policy", "Seed"} <= names
    assert "round 1, 1 changed" in cell.locator(".what").inner_text()


def test_files_go_out_and_come_in_and_a_link_opens_the_same_view(cell: Any, served: Served, tmp_path: Path) -> None:
    def saved(item: str) -> Path:
        cell.locator(".menu > summary").click()
        with cell.expect_download() as coming:
            cell.get_by_role("button", name=item).click()
        path = tmp_path / coming.value.suggested_filename
        coming.value.save_as(path)
        return path

    solved_again(cell, lambda: cell.get_by_role("slider", name="Payload").press("ArrowRight"))
    shown = summary(cell)
    rows = list(csv.DictReader(saved("Schedule, CSV").read_text().splitlines()))
    assert {row["device"] for row in rows if row["selected"] == "true"} == senders(cell)
    assert json.loads(saved("All of it, JSON").read_text())["views"][0]["num_selected"] == len(senders(cell))
    assert saved("Picture, PNG").read_bytes().startswith(b"\x89PNG")
    picture = saved("Picture, SVG").read_text()
    assert "proven optimal" in picture
    assert "var(" not in picture
    devices = saved("Devices, CSV")
    cell.get_by_role("button", name="Copy link").click()
    until(cell, "location.hash.startsWith('#/cell?view=')")
    link = cell.evaluate("location.href")
    solved_again(cell, lambda: cell.locator("input[type=file]").set_input_files(devices))
    assert "devices.csv" in cell.locator(".what").inner_text()
    assert summary(cell) == shown  # the same devices, band and deadline
    cell.goto("about:blank")
    cell.goto(link)
    cell.wait_for_selector(".result .summary strong")
    assert summary(cell) == shown


def test_names_stay_text_wherever_they_are_shown(cell: Any, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.csv"
    name = "<img src=x onerror=alert(1)>"
    hostile.write_text(f'name,tau,compute_s,snr_hz\n"{name}",3,0.01,1e9\n"=1+1",2,0.02,1e9\n')
    solved_again(cell, lambda: cell.locator("input[type=file]").set_input_files(hostile))
    cell.locator(".gantt .row").first.hover()
    assert cell.locator("#screen img").count() == 0
    assert name in cell.get_by_role("tooltip").inner_text() or "=1+1" in cell.get_by_role("tooltip").inner_text()
    broken = tmp_path / "broken.csv"
    broken.write_text("tau,compute_s\n1,<b>\n")
    cell.locator("input[type=file]").set_input_files(broken)
    cell.wait_for_selector(".cell-bar .error:not([hidden])")
    assert "give 'snr_hz' instead" in cell.locator(".cell-bar .error").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_dark_and_light_wide_and_narrow_all_can_be_read_and_has_a_name(
    page: Any, served: Served, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(page, f"{served.address}/")
    page.locator(".map .device.waits").first.click()
    assert_readable(page)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    other = "light" if scheme == "dark" else "dark"
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == other
