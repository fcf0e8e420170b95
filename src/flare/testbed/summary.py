"""Predicted against measured, in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from flare.testbed.measured import Delivery, by_round, last_s
from flare.text import plural

MAX_ERROR = 0.05
"""The median error of an upload and of a round, less the overhead, is to be at most this."""
MAX_MISSED = 0.01
"""At most this share of the updates is to come after the deadline."""


@dataclass(frozen=True)
class Spread:
    """How a quantity is spread over deliveries or rounds."""

    median: float
    high: float  # 95 of 100 are below
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of the values that are known; infinite ones are."""
        known = np.array([each for each in values if not math.isnan(each)])
        if known.size == 0:
            return cls(math.nan, math.nan, math.nan)
        with np.errstate(invalid="ignore"):  # between infinite values NumPy finds nan
            high = float(np.quantile(known, 0.95))
        return cls(float(np.median(known)), math.inf if math.isnan(high) else high, float(known.max()))


@dataclass(frozen=True)
class PolicyResult:
    """A policy on the testbed; times are means over its rounds in which somebody was selected."""

    policy: str
    rounds: int  # in which somebody was selected
    scheduled: float  # devices a round
    in_time: float  # of these, whose update the server had by the deadline
    predicted_s: float  # how long a round lasts
    measured_s: float
    net_s: float  # less the overhead
    missed: int
    beyond_guard: int  # later than predicted by more than the guard
    updates: int
    incomplete: tuple[int, ...] = ()  # the rounds with an update that never came: these last infinitely long


@dataclass(frozen=True)
class Goal:
    """What was to be reached, what was, and whether that is enough; None: it was not tested."""

    what: str
    reached: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """Whether it was met, in a word or two."""
        return "not tested" if self.met is None else "yes" if self.met else "no"


@dataclass(frozen=True)
class Summary:
    """All numbers of a comparison. Errors are shares of what was predicted, without their sign."""

    policies: list[PolicyResult]
    errors: dict[str, Spread]
    overhead_s: dict[str, Spread]
    update_bytes: dict[str, float]  # medians, by what they are for
    goals: list[Goal]

    @property
    def incomplete(self) -> list[str]:
        """The rounds with an update that never came, by policy, in words."""
        return [
            f"{each.policy}: {plural(len(each.incomplete), 'round')} with an update that never came, which counts as "
            f"infinitely late ({', '.join(str(index + 1) for index in each.incomplete)})"
            for each in self.policies
            if each.incomplete
        ]


ERRORS: dict[str, Callable[[Delivery], float]] = {
    "computing": lambda each: abs(each.measured_compute_s / each.compute_s - 1.0),
    "upload": lambda each: abs(each.measured_upload_s / each.upload_s - 1.0),
    "upload, less the protocols' bytes": lambda each: abs(each.net_upload_s / each.upload_s - 1.0),
    "upload, less bytes and pauses": lambda each: abs((each.net_upload_s - each.link.pauses_s) / each.upload_s - 1.0),
    "finish": lambda each: abs(each.measured_finish_s / each.finish_s - 1.0),
    "finish, less the overhead": lambda each: abs(each.net_finish_s / each.finish_s - 1.0),
}
OVERHEAD: dict[str, Callable[[Delivery], float]] = {
    "delivery": lambda each: each.delivery_s,
    "hand-over": lambda each: each.hand_over_s,
    "protocols' bytes": lambda each: each.protocol_s,
    "fetch": lambda each: each.fetch_s,
    "all from the device's beginning on": lambda each: each.overhead_s,
    "pauses within the upload, not subtracted": lambda each: each.link.pauses_s,
}
ROUND, NET_ROUND = "round", "round, less the overhead"


def summarise(delivered: Mapping[str, Sequence[Delivery]]) -> Summary:
    """The numbers of a comparison, from what was delivered under each policy."""
    every = [each for those in delivered.values() for each in those]
    if not every:
        raise ValueError("no device was selected in any round; give a later deadline, or a smaller update")
    policies = [policy_result(policy, those) for policy, those in delivered.items() if those]
    errors = {name: Spread.of(_error(each, error) for each in every) for name, error in ERRORS.items()}
    rounds = [those for run in delivered.values() for those in by_round(run).values()]
    errors[ROUND] = Spread.of(_round_error(those, lambda each: each.measured_finish_s) for those in rounds)
    errors[NET_ROUND] = Spread.of(_round_error(those, lambda each: each.net_finish_s) for those in rounds)
    return Summary(
        policies,
        errors,
        {name: Spread.of(map(part, every)) for name, part in OVERHEAD.items()},
        _update_bytes(every),
        _goals(policies, errors),
    )


def policy_result(policy: str, delivered: Sequence[Delivery]) -> PolicyResult:
    """How a policy did."""
    rounds = list(by_round(delivered).values())
    missed = sum(each.missed for each in delivered)

    def mean_of_last(finish: Callable[[Delivery], float]) -> float:
        return float(np.mean([last_s(those, finish) for those in rounds]))

    return PolicyResult(
        policy,
        rounds=len(rounds),
        scheduled=len(delivered) / len(rounds),
        in_time=(len(delivered) - missed) / len(rounds),
        predicted_s=float(np.mean([max(each.finish_s for each in those) for those in rounds])),
        measured_s=mean_of_last(lambda each: each.measured_finish_s),
        net_s=mean_of_last(lambda each: each.net_finish_s),
        missed=missed,
        beyond_guard=sum(each.beyond_guard for each in delivered),
        updates=len(delivered),
        incomplete=tuple(index for index, those in by_round(delivered).items() if not all(each.came for each in those)),
    )


def _error(each: Delivery, error: Callable[[Delivery], float]) -> float:
    """An error of a delivery; infinite where it is not known because the update never came."""
    value = error(each)
    return math.inf if math.isnan(value) and not each.came else value


def _round_error(those: Sequence[Delivery], finish: Callable[[Delivery], float]) -> float:
    """How far the last device's measured finish is from its prediction."""
    return abs(last_s(those, finish) / max(each.finish_s for each in those) - 1.0)


def _update_bytes(every: Sequence[Delivery]) -> dict[str, float]:
    """What a device sends for one update, in the median, by what it is for."""
    seen = [each for each in every if each.link.frames]

    def median(of: Callable[[Delivery], float]) -> float:
        return float(np.median([of(each) for each in seen])) if seen else math.nan

    return {
        "the update itself": median(lambda each: each.payload_bits / 8.0),
        "headers of Ethernet, IP and TCP": median(lambda each: each.link.frame_bytes - each.link.tcp_bytes),
        "TLS, HTTP and Flower within the upload": median(lambda each: each.link.tcp_bytes - each.payload_bits / 8.0),
        "Flower's other messages, before and after": median(lambda each: each.link.other_bytes),
    }


def as_predicted(pairs: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Of all twos of (predicted, measured) whose predictions differ: how many are ordered as predicted, and how many
    there are."""
    told = [(a, b) for a, b in combinations(pairs, 2) if a[0] != b[0]]
    return sum((a[0] - b[0]) * (a[1] - b[1]) >= 0.0 for a, b in told), len(told)


def _goals(policies: Sequence[PolicyResult], errors: Mapping[str, Spread]) -> list[Goal]:
    goals = []
    for what, error in (
        ("an upload, less the protocols' bytes,", errors["upload, less the protocols' bytes"]),
        ("a round, less the overhead,", errors[NET_ROUND]),
    ):
        told = f"median error of {what} at most {MAX_ERROR:.0%}"
        goals.append(Goal(told, f"{error.median:.1%}", error.median <= MAX_ERROR))
    for what, pairs in (
        ("latency", [(each.predicted_s, each.net_s) for each in policies]),
        ("devices served", [(each.scheduled, each.in_time) for each in policies]),
    ):
        right, of = as_predicted(pairs)
        met = right == of if of else None
        goals.append(Goal(f"policies ordered by {what} as predicted", f"{right} of {of} pairs", met))
    missed, updates = sum(each.missed for each in policies), sum(each.updates for each in policies)
    what = f"deadlines missed, counted from the model's arrival, at most {MAX_MISSED:.0%}"
    goals.append(Goal(what, f"{missed} of {updates} ({missed / updates:.1%})", missed <= MAX_MISSED * updates))
    beyond = sum(each.beyond_guard for each in policies)
    what = f"updates later than the guard allows at most {MAX_MISSED:.0%}"
    goals.append(Goal(what, f"{beyond} of {updates} ({beyond / updates:.1%})", beyond <= MAX_MISSED * updates))
    return goals
