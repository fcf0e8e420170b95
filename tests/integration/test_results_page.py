"""The page of results and the README say what the numbers beside them say, and the numbers are of the full set."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flare.experiments import EXPERIMENTS
from flare.experiments.claims import BEYOND

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text()
FILES = {name: json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text()) for name in EXPERIMENTS}
CLAIMS = {claim["name"]: claim for one in FILES.values() for claim in one["claims"]}
ROW = re.compile(r"^\| .*\(`([a-z0-9.-]+)`\).*\|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE)


def numbers(cell: str) -> list[float]:
    """The effect and its interval, which stand before the measure in brackets."""
    return [float(text) for text in re.findall(r"[+-]\d[\d.e+-]*", cell.split(" (")[0].replace("−", "-"))]


def test_every_claim_has_its_row_with_its_numbers_and_verdict() -> None:
    rows = {name: cells for name, *cells in ROW.findall(PAGE)}
    assert set(rows) == set(CLAIMS)
    for name, (measured, held, verdict) in rows.items():
        claim: dict[str, Any] = CLAIMS[name]
        effect = claim["effect"]
        assert verdict.strip().strip("*") == claim["verdict"], name
        assert held.strip() == f"{sum(t['verdict'] == 'holds' for t in claim['tests'])} of {len(claim['tests'])}"
        if effect["mean"] is not None:
            expected = [effect["mean"], effect["low"], effect["high"]]
            assert numbers(measured) == pytest.approx(expected, rel=6e-3), name


def test_the_verdicts_are_counted_on_the_page_and_in_the_readme() -> None:
    counts = Counter(claim["verdict"] for claim in CLAIMS.values() if claim["paper"] != BEYOND)
    line = (
        f"Of {sum(counts.values())} claims of the paper, {counts['holds']} hold, {counts['fails']} fail and "
        f"{counts['not decided']} are not decided"
    )
    assert line in PAGE
    assert line in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_the_full_set_has_five_seeds_and_pictures_of_a_decent_size(name: str) -> None:
    one = FILES[name]
    assert len(one["seeds"]) >= 5
    assert not one["quick"]
    assert f"`{one['command']}`" in PAGE
    for curves in one["panels"].values():
        assert all(curve["seeds"] >= 5 for curve in curves.values())
    pictures = list((ROOT / "docs" / "results" / "figures").glob(f"{name}*.png"))
    assert pictures
    assert all(path.stat().st_size <= 200_000 for path in pictures)
