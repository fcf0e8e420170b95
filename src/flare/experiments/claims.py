"""Claims put to the test: an effect from paired seeds, its 95 % interval, and a verdict.

Seeds pair runs: two curves with the same seed see the same cell, the same data on the same devices and the same first
weights, so the difference of each pair is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from flare.report.curves import estimate
from flare.report.paired import seedwise
from flare.types import Floats

BEYOND = "not in the paper"
"""In the place of a number, for claims of ours."""


class Verdict(StrEnum):
    """What the seeds say of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "not decided"


@dataclass(frozen=True)
class Effect:
    """A mean over paired seeds with its 95 % t-interval; `count` seeds. With one or two the interval is everything."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "no run to tell by"
        if not math.isfinite(self.low):
            return f"{self.mean:+.3g} ({self.count} seed{'' if self.count == 1 else 's'}: no interval)"
        return f"{self.mean:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


@dataclass(frozen=True)
class Comparison:
    """One comparison: what is compared, its effect, its verdict, and how far the mean is on the claim's side."""

    what: str
    effect: Effect
    verdict: Verdict
    room: float


@dataclass(frozen=True)
class Claim:
    """A claim of the paper (or one of ours about it), the tests that it comes down to, and its verdict.

    `says` is the claim in our words, `paper` the number printed there, `measure` what the effect is and its unit,
    `depends` the open choice on which the verdict rests, if it rests on one.
    """

    name: str
    says: str
    paper: str
    measure: str
    tests: tuple[Comparison, ...]
    verdict: Verdict
    depends: str = ""

    @property
    def decided_by(self) -> Comparison:
        """The test that decides: the worst of the worst verdict."""
        return min((test for test in self.tests if test.verdict is self.verdict), key=lambda t: t.room)

    @property
    def effect(self) -> Effect:
        """That of the test that decides."""
        return self.decided_by.effect

    @property
    def held(self) -> str:
        """How many of its tests hold, of how many."""
        return f"{sum(test.verdict is Verdict.HOLDS for test in self.tests)} of {len(self.tests)}"


def paired(ours: Sequence[float], theirs: Sequence[float], scale: float = 1.0) -> Effect:
    """The effect of `ours` over `theirs`, seed by seed, times `scale`."""
    return effect_of(seedwise(ours, theirs, scale))


def effect_of(values: Sequence[float] | Floats) -> Effect:
    """The effect whose value for each seed is given."""
    mean = estimate(list(values))
    half = mean.half if math.isfinite(mean.half) else math.inf
    return Effect(mean.mean, mean.mean - half, mean.mean + half, mean.count)


def above(what: str, effect: Effect, level: float = 0.0) -> Comparison:
    """Holds where the whole interval lies above `level`, fails where it lies below."""
    verdict = Verdict.FAILS if effect.high < level else Verdict.UNDECIDED
    if effect.low > level:
        verdict = Verdict.HOLDS
    return Comparison(what, effect, verdict, effect.mean - level)


def within(what: str, effect: Effect, low: float, high: float) -> Comparison:
    """Holds where the whole interval lies between `low` and `high`, fails where it lies outside."""
    verdict = Verdict.FAILS if effect.high < low or effect.low > high else Verdict.UNDECIDED
    if low <= effect.low and effect.high <= high:
        verdict = Verdict.HOLDS
    return Comparison(what, effect, verdict, min(effect.mean - low, high - effect.mean))


def claim(
    name: str, says: str, tests: Sequence[Comparison], *, measure: str, paper: str = "", depends: str = ""
) -> Claim:
    """A claim that all of its tests must bear out."""
    if not tests:
        raise ValueError(f"claim {name} has no tests")
    return Claim(name, says, paper, measure, tuple(tests), joint([t.verdict for t in tests]), depends)


def joint(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of tests that must all hold: the worst of them."""
    if Verdict.FAILS in verdicts:
        return Verdict.FAILS
    return Verdict.UNDECIDED if Verdict.UNDECIDED in verdicts else Verdict.HOLDS
