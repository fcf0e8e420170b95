"""The numbered equations of the paper: what each is, in our words, and how to count them again.

`EQUATIONS` is held against a count of the paper's LaTeX source where `FLARE_PAPER` names that file:

    FLARE_PAPER=/path/to/the/source.tex pytest tests/golden/test_errata_page.py
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple


class Equation(NamedTuple):
    """The label that the source gives an equation ("" for none), and words of which a citation must have one nearby."""

    label: str
    words: tuple[str, ...]


EQUATIONS = {
    1: Equation("loss func", ("F = Σ c_i f_i", "weights of the loss")),
    2: Equation("", ("local step",)),
    3: Equation("", ("FedAvg", "aggregation")),
    4: Equation("", ("computing time", "compute_s")),
    5: Equation("", ("uplink rate",)),
    6: Equation("", ("upload time",)),
    7: Equation("", ("latency limit",)),
    8: Equation("adjusted update", ("scaled local step",)),
    9: Equation("", ("FLARE's aggregation",)),
    10: Equation("approximation error", ("Theorem 1",)),
    11: Equation("overall problem", ("P1",)),
    12: Equation("", ("unbiased",)),
    13: Equation("", ("variance",)),
    14: Equation("", ("smoothness",)),
    15: Equation("BGD", ("dissimilarity", "Assumption 3")),
    16: Equation("one round error", ("Lemma 1",)),
    17: Equation("non-convex conv", ("Theorem 2",)),
    18: Equation("O-form", ("Corollary 1",)),
    19: Equation("P2", ("P2", "gamma")),
    20: Equation("solution of b", ("P3",)),
    21: Equation("optimal bandwidth", ("Theorem 3",)),
    22: Equation("optimal time", ("whole band",)),
    23: Equation("P4", ("P4",)),
    24: Equation("descent condition", ("Theorem 4", "Π_k")),
    25: Equation("P3", ("P5",)),  # sic: P5 bears the label "P3"
    26: Equation("App A 1", ("gradient bound",)),
    27: Equation("", ("proof of Theorem 1",)),
    28: Equation("overall 1", ("descent inequality",)),
    29: Equation("A1_", ("A_1",)),
    30: Equation("single bias 1", ("drift",)),
    31: Equation("B1_", ("B_1",)),
    32: Equation("A2_", ("A_2",)),
    33: Equation("extended BGD2", ("ρ", "rho")),
    34: Equation("septal terms cancel", ("Lemma 1, divided",)),
    35: Equation("septal terms cancel 2", ("κ for the sum",)),
    36: Equation("septal terms cancel 3", ("summed over the rounds",)),
    37: Equation("", ("end of the proof of Theorem 2",)),
    38: Equation("derivative", ("rate rises",)),
    39: Equation("", ("finish together",)),
    40: Equation("decline_", ("proof of Theorem 4",)),
}

_CITATION = re.compile(r"Eqs?\. \((\d+)[a-z]?\)((?:(?:,| and| to) \(\d+[a-z]?\))*)")
_NEAR = 100  # characters on either side of a citation


def citations(text: str) -> list[tuple[int, str]]:
    """Every equation cited in a text, as "Eq. (8)" or "Eqs. (8) and (9)", with the text around it on one line.

    Within the paragraph, and as far as the citation before and the one after: words about another do not count.
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        matches = list(_CITATION.finditer(line))
        ends, starts = [0, *(each.end() for each in matches)], [*(each.start() for each in matches), len(line)]
        for match, last, following in zip(matches, ends, starts[1:], strict=False):
            around = line[max(last, match.start() - _NEAR) : min(following, match.end() + _NEAR)]
            found += [(int(number), around) for number in re.findall(r"\((\d+)", match.group(0))]
    return found


def swapped(text: str) -> list[str]:
    """The text with two neighbouring citations of different equations exchanged, once for each pair of neighbours."""
    single = re.compile(r"Eq\. \(\d+[a-z]?\)")
    matches, texts = list(single.finditer(text)), []
    for one, other in itertools.pairwise(matches):
        if one.group() != other.group():
            between = text[one.end() : other.start()]
            texts.append(text[: one.start()] + other.group() + between + one.group() + text[other.end() :])
    return texts


def wrong(text: str) -> list[str]:
    """The citations of a text that have no word of the cited equation nearby."""
    return [
        f"Eq. ({number}), of which none of {EQUATIONS[number].words if number in EQUATIONS else ()} is near: {around}"
        for number, around in citations(text)
        if number not in EQUATIONS or not any(word in around for word in EQUATIONS[number].words)
    ]


_OUTER = ("equation", "align", "subequations")
_TOKEN = re.compile(
    r"\\(begin|end)\{(equation|align|subequations|aligned|array)\}|(\\\\)|(\\nonumber|\\notag)|\\label\{([^}]*)\}"
)


def counted(source: str) -> dict[int, list[str]]:
    """The number of every display equation of a LaTeX source, as LaTeX counts, with the labels inside it.

    `equation` and `subequations` take one number each, `align` one for each line that does not refuse it. No display
    of the paper takes more than one, which is checked: its labels then belong to that number.
    """
    text = re.sub(r"(?<!\\)%.*", "", source)
    found: dict[int, list[str]] = {}
    opened: list[str] = []
    lines, labels = [True], list[str]()  # of the outermost display: which lines are numbered
    for way, name, new_line, refused, label in _TOKEN.findall(text):
        if way == "begin":
            if not opened:
                lines, labels = [True], []
            opened.append(name)
        elif way == "end":
            assert opened.pop() == name
            if not opened:
                numbers = sum(lines) if name == "align" else 1
                assert numbers == 1, f"a display with {numbers} numbers"
                found[len(found) + 1] = labels
        elif opened and opened[0] in _OUTER:
            if new_line and opened == ["align"]:
                lines.append(True)
            elif refused:
                lines[-1] = False
            elif label:
                labels.append(label)
    return found
