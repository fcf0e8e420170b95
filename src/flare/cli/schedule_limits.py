"""Who must send, who must not, and how many may: as `flare schedule` is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flare.scheduling import RoundProblem, checks
from flare.scheduling.known_round import devices_named


def limited(
    problem: RoundProblem, names: list[str], *, must: list[str] | None, never: list[str] | None, max_devices: Any
) -> RoundProblem:
    """The round with what `--must`, `--never` and `--max-devices` say; ValueError where they contradict themselves."""
    forced, banned = _listed("--must", must, names), _listed("--never", never, names)
    both = [device for device in forced if device in banned]
    if both:
        raise ValueError(f"device {names[both[0]]!r:.80} is in --must and in --never; leave it in one of them")
    limit = checks.limit(max_devices)
    if limit is not None and len(forced) > limit:
        raise ValueError(f"--must lists {len(forced)} devices, and --max-devices is {limit}; raise it, or list fewer")
    return replace(problem, must=np.array(forced, np.intp), never=np.array(banned, np.intp), max_devices=limit)


def one_limit(max_devices: int | None, options: dict[str, dict[str, Any]]) -> Any:
    """How many devices may send at most, from `--max-devices` or from the options, which lose it: it is the round's,
    the same for all policies."""
    limits = [own.pop("max_devices") for own in options.values() if "max_devices" in own]
    limits = [limit for limit in (max_devices, *limits) if limit is not None]
    different = sorted({str(limit) for limit in limits})
    if len(different) > 1:
        raise ValueError(f"max_devices is given as {' and as '.join(different):.80}; give it once")
    return limits[0] if limits else None


def _listed(option: str, given: list[str] | None, names: list[str]) -> list[int]:
    """The devices that an option, given once or more often, lists with commas between."""
    return devices_named([one.strip() for text in given or () for one in text.split(",")], names, option)
