"""The guard: what schedules leave free of a deadline, for what no model of the radio holds (protocols, polling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, final

from flare.types import Floats
from flare.units import parse

TIMES = TypeVar("TIMES", float, Floats)

MAX_GUARD_SHARE = 0.95
"""The greatest share of a deadline that can be left free."""


@final
@dataclass(frozen=True)
class Guard:
    """A share of the deadline, and a time."""

    share: float = 0.0
    time_s: float = 0.0

    @classmethod
    def of(cls, told: float | str) -> Guard:
        """As `wireless.guard` says it: a share, or a time such as "300ms"."""
        return cls(time_s=parse(told, "time")) if isinstance(told, str) else cls(share=told)

    def __bool__(self) -> bool:
        return self.share > 0.0 or self.time_s > 0.0

    def left_of(self, deadline_s: float) -> float:
        """When schedules have everybody finish, for this deadline: 0 or less where no time is left."""
        return deadline_s * (1.0 - self.share) - self.time_s

    def deadline_s(self, left_s: TIMES) -> TIMES:
        """The deadline of which so much is left, or several."""
        return (left_s + self.time_s) / (1.0 - self.share)


NO_GUARD = Guard()
