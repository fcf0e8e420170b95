"""The page of results: what was asked, what came out, how sure it is. Every number on it is computed from the runs."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from flare.config import Config
from flare.experiments import FIGURES, rates, systems
from flare.experiments.claims import BEYOND, Claim, Comparison, Effect, Verdict
from flare.experiments.entry import entry
from flare.experiments.experiment import Results
from flare.experiments.reproduce import Reproduced, command
from flare.report.group_labels import PAPER_NAMES, PAPER_PAIRS

TITLE = "# The paper, put to the test"
_MARKS = {Verdict.HOLDS: "**holds**", Verdict.FAILS: "**fails**", Verdict.UNDECIDED: "not decided"}
_LEFT = {
    Verdict.HOLDS: "some of the gain remains",
    Verdict.FAILS: "nothing of the gain remains",
    Verdict.UNDECIDED: "it is not decided whether anything of the gain remains",
}


def page(made: Sequence[Reproduced], folder: str) -> str:
    """The page as Markdown, for experiments whose files are in `folder` beside it."""
    words = _words()
    parts = [TITLE, _head(made, words, folder), _facts(made, words), _setting(words), "## The figures of the paper"]
    parts += [section_of(one, folder) for one in made if one.experiment.name in FIGURES]
    parts.append("## Beyond the paper")
    parts += [section_of(one, folder) for one in made if one.experiment.name not in FIGURES]
    parts.append(words["open"])
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


@cache
def _words() -> dict[str, Any]:
    return tomllib.loads((files("flare.experiments") / "words.toml").read_text(encoding="utf-8"))


def verdict_line(claims: Sequence[Claim]) -> str:
    """How many of the paper's claims hold, in one line."""
    counts = Counter(claim.verdict for claim in claims if claim.paper != BEYOND)
    hold, fail, open_ = (counts[verdict] for verdict in (Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED))
    return f"Of {hold + fail + open_} claims of the paper, {hold} hold, {fail} fail and {open_} are not decided"


def _head(made: Sequence[Reproduced], words: dict[str, Any], folder: str) -> str:
    scale = made[0].results.scale
    lots = [one.results for one in made] + [one.first for one in made if one.first is not None]
    runs = {trial.key for lot in lots for trial in lot.trials}
    head: str = words["head"]
    return head.format(
        small=words["small"] if scale.quick else "",
        verdicts=verdict_line([claim for one in made for claim in one.claims]),
        seeds=len(scale.seeds),
        runs=len(runs),
        missing=_missing(made),
        command=command("all beyond", scale),
        folder=folder,
        names=_names(),
    )


def _missing(made: Sequence[Reproduced]) -> str:
    """How many runs of those that were asked for are not there."""
    number = sum(
        len(results.scale.seeds) - len(results.runs(panel, curve))
        for results in (one.results for one in made)
        for panel in results.panels
        for curve in results.curves(panel)
    )
    return f" {number:,} more are missing: their section says which." if number else ""


def _names() -> str:
    """What the paper's names in brackets mean."""
    pairs = {entry(method, policy).label: name for (method, policy), name in PAPER_PAIRS.items()}
    return "\n".join(f"- `{label}` ({name}): {PAPER_NAMES[name]}" for label, name in pairs.items())


def _facts(made: Sequence[Reproduced], words: dict[str, Any]) -> str:
    claims = {claim.name: claim for one in made for claim in one.claims}
    lines = []
    for fact in words["facts"]:
        if not all(name in claims for name in fact["claims"]):  # of an experiment that is not among these
            continue
        named = [claims[name] for name in fact["claims"]]
        shown = {f"n{k}": _numbers(claim.effect) for k, claim in enumerate(named)}
        shown |= {f"v{k}": claim.verdict.value for k, claim in enumerate(named)}
        shown |= {f"left{k}": _LEFT[claim.verdict] for k, claim in enumerate(named)}
        shown |= {f"held{k}": _held(claim) for k, claim in enumerate(named)}
        shown |= {f"rests{k}": claim.depends for k, claim in enumerate(named)}
        tests = {f"t{k}": {test.what: _Shown(test) for test in claim.tests} for k, claim in enumerate(named)}
        lines.append("- " + fact["says"].format(**shown, **tests).replace("\n", "\n  "))
    return "## In short\n\n" + "\n".join(lines)


@dataclass(frozen=True)
class _Shown:
    """A test as sentences name it: {t0[what].n} for its numbers, {t0[what].v} for its verdict."""

    test: Comparison

    @property
    def n(self) -> str:
        return _numbers(self.test.effect)

    @property
    def v(self) -> str:
        return self.test.verdict.value


def _held(one: Claim) -> str:
    """How many tests hold; of one or two that do not, which and by how much, and of more the one that decided."""
    missed = [test for test in one.tests if test.verdict is not Verdict.HOLDS]
    named = missed if len(missed) <= 2 else [one.decided_by]
    but = " and not ".join(f"“{test.what}” ({_numbers(test.effect)})" for test in named)
    return f"{one.held} tests hold" + (f", but not {but}" if missed else "")


def _setting(words: dict[str, Any]) -> str:
    wireless = Config().wireless
    text: str = words["setting"]
    return text.format(
        **vars(wireless),
        gamma=Config().scheduling.gamma,
        total_bandwidth_mhz=wireless.total_bandwidth_hz / 1e6,
        cpu_min_ghz=wireless.cpu_min_hz / 1e9,
        cpu_max_ghz=wireless.cpu_max_hz / 1e9,
    )


def section_of(one: Reproduced, folder: str) -> str:
    """The section of an experiment, whose files are in `folder` beside the page."""
    words, name = _words(), one.experiment.name
    pictures = words["pictures"][name].items()
    parts = [
        f"### {one.experiment.title}",
        f"`{command(name, one.results.scale)}`",
        words["about"][name],
        "\n\n".join(f"![{caption}]({folder}/figures/{stem}.png)" for stem, caption in pictures),
        _TABLES[name](one.results) if name in _TABLES else "",
        _claims_table(one.claims),
    ]
    return "\n\n".join(part for part in parts if part)


def _claims_table(claims: Sequence[Claim]) -> str:
    lines = ["| claim | printed | measured | of its tests hold | verdict |", "| --- | --- | --- | ---: | --- |"]
    lines += [claim_row(one) for one in claims]
    return "\n".join(lines)


def claim_row(one: Claim) -> str:
    """A claim as a line of a table."""
    rests = f" Rests on {one.depends}." if one.depends else ""
    printed = "ours" if one.paper == BEYOND else one.paper or "–"
    decided = f"; decided by “{one.decided_by.what}”" if len(one.tests) > 1 else ""
    measured = f"{_numbers(one.effect)} ({one.measure}{decided})"
    says = f"{one.says} (`{one.name}`).{rests}"
    return f"| {says} | {printed} | {measured} | {one.held} | {_MARKS[one.verdict]} |"


def _rates_table(results: Results) -> str:
    lines = ["| data | method | best rate | accuracy there | breaks at |", "| --- | --- | ---: | ---: | ---: |"]
    for at, method, rate, accuracy, limit in rates.rows(results):
        broken = "–" if math.isnan(limit) else f"{limit:g}"
        lines.append(f"| {at.split(' MNIST')[0]} | {method} | {rate:g} | {accuracy:.2f} % | {broken} |")
    return "\n".join(lines)


_TABLES: dict[str, Callable[[Results], str]] = {
    "rates": _rates_table,
    **{one.name: systems.survey for one in systems.EXPERIMENTS},
}
"""Experiments whose numbers stand in a table of their own."""


def _numbers(effect: Effect) -> str:
    """The effect with its interval, with a proper minus."""
    return str(effect).replace("-", "−")
