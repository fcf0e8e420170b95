"""Which nodes of a large fleet are asked in a round, and which test the model.

Where `fleet.ask` is less than the nodes that are connected and free, so many of them are drawn at random, or those that
have not been asked for longest, the ones that were never asked first and equals at random. The draws depend on the
seed, the round and the nodes alone: a run that is continued asks the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from flare.config import LONGEST_UNSEEN, Config
from flare.flower.faults import Faults
from flare.flower.fleet import Fleet
from flare.flower.resources import Resources
from flare.rng import stream

NEVER = -1


@final
@dataclass
class Asking:
    """When each node was last asked, in rounds."""

    last_asked: dict[int, int] = field(default_factory=dict)

    def chosen(self, config: Config, index: int, nodes: Collection[int], fleet: Fleet) -> list[int]:
        """Those of the free nodes to ask in round `index`, all of them where they are few; counted as asked now."""
        count = config.fleet.ask or len(nodes)
        if count >= len(nodes):
            return list(nodes)
        order = _drawn(config.seed, "ask", index, nodes, fleet)
        if config.fleet.ask_by == LONGEST_UNSEEN:
            order.sort(key=lambda node: self.last_asked.get(node, NEVER))
        chosen = order[:count]
        self.last_asked.update(dict.fromkeys(chosen, index))
        return chosen

    def to_numbers(self) -> dict[str, int]:
        """For a checkpoint."""
        return {str(node): index for node, index in self.last_asked.items()}

    def restore(self, numbers: Any) -> None:
        """From a checkpoint; ValueError where it does not say who was asked."""
        try:
            self.last_asked = {int(node): int(index) for node, index in numbers.items()}
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"what it says of the nodes that were asked cannot be read ({error})") from None


def drawn_to_test(config: Config, index: int, nodes: Collection[int], fleet: Fleet) -> list[int]:
    """The nodes that test the model after round `index`: the share of them that the settings say, one at least."""
    count = math.ceil(config.fleet.evaluate_share * len(nodes))
    return _drawn(config.seed, "test", index, nodes, fleet)[:count]


def without_taken(
    said: Mapping[int, Resources], fleet: Fleet, silent: Iterable[int], faults: Faults
) -> dict[int, Resources]:
    """What nodes said, but for those that claim the device of a node that is connected and was not asked: it cannot
    have given its device up."""
    taken = {fleet.device_of[node]: node for node in silent if node in fleet.device_of}
    kept = {}
    for node, each in said.items():
        if each.device is not None and each.device in taken:
            faults.note(node, "query", f"claims device {each.device}, which is node {taken[each.device]}")
        else:
            kept[node] = each
    return kept


def _drawn(seed: int, what: str, index: int, nodes: Collection[int], fleet: Fleet) -> list[int]:
    """The nodes in a random order, which goes by their devices where they are known."""
    ordered = sorted(nodes, key=lambda node: (fleet.device_of.get(node, math.inf), node))
    return [ordered[place] for place in stream(seed, what, index).permutation(len(ordered)).tolist()]
