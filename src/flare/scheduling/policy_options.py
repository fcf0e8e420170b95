"""Options given to a policy: only those that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flare.scheduling.registry import Policy


def checked_options(chosen: Policy, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options for a policy; ValueError with the list of those it has where it has none of that name.

    What an option may be, the policy itself checks when it is asked for a round.
    """
    unknown = next((name for name in given if name not in chosen.options), None)
    if unknown is not None:
        known = ", ".join(chosen.options) or "none"
        raise ValueError(f"policy '{chosen.name}' has no option '{unknown}' (its options: {known})")
    return dict(given)
