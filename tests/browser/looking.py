"""What a person could not read or reach on a page."""

from pathlib import Path
from typing import Any

GOOD = {"faint": [], "unnamed": [], "wider": 0}
READABLE = "() =>" + (Path(__file__).parent / "readable.js").read_text().partition("() =>")[2]


def assert_readable(page: Any) -> None:
    """In windows of three widths every text has contrast, every control a name, and nothing is cut off at the side."""
    for width in (1280, 800, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for _ in range(30):  # it draws anew, and what is new may come in between
            found = page.evaluate(READABLE)
            if found == GOOD:
                break
            page.wait_for_timeout(100)
        assert found == GOOD, width
