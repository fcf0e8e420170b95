from __future__ import annotations

import json

import pytest

from flare.text import csv_text, cut, did_you_mean, json_text, nearest, printable

HOSTILE = ["\x1b[2Jgone", "two\nlines", "bell\x07", "csi\x9b31m", "turned\u202etxt", "half\udc80", "tab\there", "\x7f"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_cannot_be_seen_is_written_as_an_escape(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text) != text


@pytest.mark.parametrize("text", ["phone 7", "Gerät", "設備", "a[b]", "100 %", "📱", ""])
def test_what_can_be_seen_stays(text: str) -> None:
    assert printable(text) == text
    assert csv_text(text) == text


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_formula_is_text_in_a_csv_cell(text: str) -> None:
    assert csv_text(text) == "'" + printable(text)


@pytest.mark.parametrize("text", [*HOSTILE, "=1", "𝄞\U000e0001"])
def test_json_stays_exact_and_shows_nothing_invisible(text: str) -> None:
    document = json_text(json.dumps({"name": text}, ensure_ascii=False, indent=2))
    assert json.loads(document) == {"name": text}
    assert document.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [("abcdef", 6, "abcdef"), ("abcdef", 5, "ab…ef"), ("abcdef", 4, "ab…f"), ("abcdef", 2, "a…"), ("abc", 1, "…")],
)
def test_a_long_text_keeps_its_ends(text: str, limit: int, short: str) -> None:
    assert cut(text, limit) == short
    assert len(short) <= limit


def test_the_nearest_name() -> None:
    known = {"exact": 1, "greedy": 2}
    assert nearest("exakt", known) == "exact"
    assert nearest("exakt", known, min_ratio=0.9) is None
    assert nearest("zzz", known) is None
    assert did_you_mean("gredy", known) == "; did you mean 'greedy'?"
    assert did_you_mean("zzz", known) == "."
