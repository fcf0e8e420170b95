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
from tests.made_up_outcomes import filled, made_up

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


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "bounds"])
def test_the_claims_recorded_are_those_that_the_code_makes(name: str) -> None:
    said = ("name", "says", "paper", "measure")
    made = EXPERIMENTS[name].claims(filled(EXPERIMENTS[name], lambda trial: made_up(), seeds=2))
    recorded = [tuple(claim[each] for each in said) for claim in FILES[name]["claims"]]
    assert recorded == [tuple(getattr(claim, each) for each in said) for claim in made]
    assert [len(claim["tests"]) for claim in FILES[name]["claims"]] == [len(claim.tests) for claim in made]


def test_a_verdict_that_rests_on_the_reading_of_fedavg_says_so() -> None:
    for name, other in [(name, CLAIMS[f"{name}-tau-i"]) for name in CLAIMS if f"{name}-tau-i" in CLAIMS]:
        claim = CLAIMS[name]
        assert claim["paper"].startswith("up to ")
        assert other["paper"] == BEYOND
        assert all("FedAvg (3 steps)" in test["what"] for test in claim["tests"])
        assert bool(claim["depends"]) == (claim["verdict"] != other["verdict"])


def test_what_the_paper_tells_is_not_said_to_be_missing() -> None:
    missing = " ".join(PAGE.split("## What the paper does not tell")[1].split())
    assert "The channel's reference gain and any fading (the path-loss exponent, a line of sight and" in missing
    for told in ("The channel law", "how CPU speeds and steps are drawn", "the split of the data", "notation.md"):
        assert told not in missing
    short = PAGE.split("## In short")[1].split("## Setting")[0]
    (deadline,) = [line for line in short.split("\n- ") if "the best deadline on non-i.i.d. data is 0.6 s" in line]
    assert "are ours" in deadline
    assert "Theory" not in deadline


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
