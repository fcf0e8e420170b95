"""What a person could not read or reach on a page."""

from pathlib import Path
from typing import Any

READABLE = "() =>" + (Path(__file__).parent / "readable.js").read_text().partition("() =>")[2]


def assert_readable(page: Any) -> None:
    """In windows of three widths every text has contrast, every control a name, and nothing is cut off at the side."""
    for width in (1280, 800, 390):
        page.set_viewport_size({"width": width, "height": 844})
        found = page.evaluate(READABLE)
        assert found == {"faint": [], "unnamed": [], "wider": 0}, width
