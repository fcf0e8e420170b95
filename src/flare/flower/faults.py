"""What went wrong with a node: written into the round's record, and logged once for each node and reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from flare.text import one_line, without_numbers

log = logging.getLogger("flwr")  # Flower's own log, which its programs show
_LONGEST = 200  # characters of a reason: a node may say anything
_MAX_KINDS = 20  # reasons of one node in the log; the records have more
_MAX_RECORDED = 1000  # faults of a round in its record; the others are counted


@final
@dataclass
class Faults:
    """The faults of a run so far, and those of the round at hand."""

    device_of: Callable[[int], int | None] = lambda node: None  # which device a node is; None: that is not known
    _logged: dict[int, set[str]] = field(default_factory=dict)
    _now: list[dict[str, Any]] = field(default_factory=list)
    _more: int = 0

    def note(self, node: int, when: str, why: str) -> None:
        """A node failed `when` it was asked ("query"), trained ("train") or tested ("evaluate")."""
        reason = one_line(why[:_LONGEST])[:_LONGEST]
        if len(self._now) < _MAX_RECORDED:
            self._now.append({"node": str(node), "when": when, "why": reason})
        else:
            self._more += 1
        kind = without_numbers(reason)  # the same fault with other numbers is not news
        known = self._logged.setdefault(node, set())
        if kind not in known and len(known) < _MAX_KINDS:
            known.add(kind)
            device = self.device_of(node)
            who = f"node {node}" if device is None else f"device {device} (node {node})"
            log.warning("%s, %s: %s", who, when, reason)

    def take(self) -> list[dict[str, Any]]:
        """Those of this round, for its record; the next begins with none."""
        now, more = self._now, self._more
        self._now, self._more = [], 0
        return [*now, {"node": None, "when": "", "why": f"and {more} more"}] if more else now
