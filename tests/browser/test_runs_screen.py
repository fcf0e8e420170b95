"""The Runs screen as a person uses it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flare.records import RunFolder
from tests.browser.looking import assert_readable
from tests.studio_runs import CONFIG, comparison, record, written

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect
WIDE = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def compared(served: Any) -> Path:
    return comparison(served.folder / "compared")


def rows(page: Any) -> Any:
    return page.get_by_role("listbox", name="Runs").get_by_role("option")


def test_tick_a_comparison_look_at_its_curves_and_at_a_round(page: Any, served: Any, compared: Path) -> None:
    page.goto(f"{served.address}/#/runs")
    page.get_by_role("button", name="Untick all").click()
    rows(page).filter(has_text="comparison, 6").click()
    legend = page.locator(".curve-legend li")
    expect(legend).to_have_count(2)
    expect(legend.first).to_contain_text("3 seeds")
    table = page.get_by_role("region", name="Comparison of groups")
    expect(table.get_by_role("img")).to_have_accessible_name(re.compile("95 % interval"))
    expect(table.get_by_role("row")).to_have_count(3)
    box = page.locator(".chart .u-over").bounding_box()
    page.mouse.move(box["x"] + 0.99 * box["width"], box["y"] + 0.3 * box["height"])
    expect(page.locator(".runs-round h2")).to_contain_text("Round 6 of 6")
    page.get_by_role("button", name="Round before").click()
    expect(page.locator(".runs-round h2")).to_contain_text("Round 5 of 6")
    expect(page.locator(".round-map svg.map")).to_have_accessible_name(re.compile("of 6 devices send"))
    page.get_by_role("button", name="Time", exact=True).click()
    expect(page.locator(".runs-compare h2")).to_contain_text("of simulated time")
    assert "x=time" in page.url


def test_nothing_can_be_unticked_before_the_runs_are_known(page: Any, served: Any, compared: Path) -> None:
    asked: list[Any] = []
    page.route("**/api/runs", lambda route: asked.append(route))
    page.goto(f"{served.address}/#/runs")
    untick = page.get_by_role("button", name="Untick all")
    expect(page.get_by_role("listbox", name="Runs")).to_be_visible()
    expect(untick).to_be_hidden()
    while not asked:
        page.wait_for_timeout(20)
    asked.pop().continue_()
    expect(untick).to_be_visible()


def test_a_run_that_goes_on_grows_and_can_be_paused(page: Any, served: Any) -> None:
    with RunFolder.create(served.folder / "live" / "growing", CONFIG) as folder:
        folder.append(record(0).to_json())
        page.goto(f"{served.address}/#/runs?run=live/growing&metric=train_loss")
        row = rows(page).filter(has_text="growing")
        expect(row).to_contain_text("1 / 1,000")
        expect(row).to_contain_text("running")
        for index in range(1, 4):
            folder.append(record(index).to_json())
        expect(row).to_contain_text("4 / 1,000")
        expect(page.locator(".runs-round h2")).to_contain_text("of 4")
        page.get_by_role("button", name="Live").click()
        folder.append(record(4).to_json())
        page.wait_for_timeout(1200)
        expect(row).to_contain_text("4 / 1,000")
        page.get_by_role("button", name="Paused").click()
        expect(row).to_contain_text("5 / 1,000")
        expect(page.locator(".runs-round h2")).to_contain_text("of 5")


def test_a_refusal_to_tell_news_is_shown(page: Any, served: Any, compared: Path) -> None:
    told = {"status": 422, "json": {"error": {"field": "", "message": "no news for <b>you</b>"}}}
    page.route("**/api/events", lambda route: route.fulfill(**told))
    page.goto(f"{served.address}/#/runs?run=compared")
    expect(page.get_by_role("alert")).to_have_text("Runs are not shown as they grow: no news for <b>you</b>")
    expect(page.get_by_role("button", name="Not live")).to_be_visible()


def test_a_list_that_is_left_asks_for_nothing_more(page: Any, served: Any) -> None:
    page.goto(f"{served.address}/#/new")
    made = """async ({ stops }) => {
      const { list } = await import("/static/js/runs/list.js");
      const root = document.body.appendChild(document.createElement("div"));
      let asked = 0;
      const made = list(root, { onPick() {}, needSparklines() { asked += 1; } });
      const rounds = { rounds: 1, planned_rounds: 1, progress: 1, changed: 0 };
      const line = { id: "a", name: "a", group: "", state: "finished", ...rounds };
      const seen = new Promise((resolve) => new IntersectionObserver(resolve).observe(root));
      made.show(new Map([["a", line]]));
      await seen;
      if (stops) made.stop();
      await new Promise((resolve) => setTimeout(resolve, 150));
      root.remove();
      return asked;
    }"""
    assert page.evaluate(made, {"stops": False}) == 1
    assert page.evaluate(made, {"stops": True}) == 0


def test_everything_is_reached_with_the_keyboard(page: Any, served: Any, compared: Path) -> None:
    page.goto(f"{served.address}/#/runs?run=compared/flare-exact-seed0")
    expect(page.locator('.run-row[aria-selected="true"]')).to_have_count(1)  # keys do nothing before there are rows
    page.get_by_label("Find runs").fill("compared")
    page.get_by_role("listbox", name="Runs").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator('.run-row[aria-selected="true"]')).to_have_count(6)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(page.locator('.run-row[aria-selected="true"]')).to_have_count(5)
    page.get_by_role("slider", name="Round").focus()
    page.keyboard.press("End")
    expect(page.locator(".runs-round h2")).to_contain_text("Round 6 of 6")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_dark_and_light_wide_and_narrow_all_can_be_read(page: Any, served: Any, compared: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{served.address}/#/runs?run=compared")
    expect(page.get_by_role("region", name="Comparison of groups").get_by_role("row")).to_have_count(3)
    expect(page.locator(".round-map svg.map")).to_be_visible()
    assert_readable(page)


def test_names_are_text_and_a_phone_shows_all(page: Any, served: Any) -> None:
    name = "<img src=x onerror=alert(1)>"
    written(served.folder / "odd" / name, 3)
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    page.goto(f"{served.address}/#/runs")
    page.get_by_label("Find runs").fill("onerror")
    rows(page).filter(has_text=name).click()
    expect(page.locator(".run-title")).to_have_text(f"odd/{name}")
    assert page.locator("img[src='x']").count() == 0
    assert page.evaluate(WIDE) <= 0


def test_runs_of_different_lengths_are_compared_within_a_phone(page: Any, served: Any) -> None:
    other = replace(CONFIG, learning=replace(CONFIG.learning, method="fedavg"))
    written(served.folder / "uneven" / "a", 4)
    written(served.folder / "uneven" / "b", 8, config=other)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served.address}/#/runs?run=uneven/a&run=uneven/b")
    expect(page.locator(".runs-compare")).to_contain_text("Compared after 4 rounds, where")
    assert page.evaluate(WIDE) <= 0


def test_zooming_moves_nothing(page: Any, served: Any, compared: Path) -> None:
    page.goto(f"{served.address}/#/runs?run=compared/flare-exact-seed0&x=time")
    plot, out = page.locator(".chart .u-over"), page.get_by_role("button", name="Zoom out")
    expect(plot).to_be_visible()
    expect(out).to_be_hidden()
    box, legend = plot.bounding_box(), page.locator(".curve-legend").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 40, steps=4)
    page.mouse.up()
    expect(out).to_be_visible()
    assert (plot.bounding_box(), page.locator(".curve-legend").bounding_box()) == (box, legend)
