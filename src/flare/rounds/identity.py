"""What of a run is a user's own code: its policy and its method, by a checksum of their source text."""

from __future__ import annotations

import hashlib
import inspect

from flare.rounds.base_station import BaseStation
from flare.scheduling import get_policy

_DIGITS = 16  # of a checksum


def code_identity(station: BaseStation) -> dict[str, str]:
    """The method and the policy of a run, in words that change with the code of a user's own."""
    learning, scheduling = station.config.learning, station.config.scheduling
    return {
        "method": _words(learning.method, type(station.method)),
        "policy": _words(scheduling.policy, get_policy(scheduling.policy).function),
    }


def _words(name: str, code: object) -> str:
    """The name, and of a user's own code the checksum of its source text; what is flare's has the version of flare."""
    if getattr(code, "__module__", "").split(".")[0] == "flare":
        return name
    try:
        source = inspect.getsource(code)  # type: ignore[arg-type]
    except (OSError, TypeError):  # typed into a console: there is no text to compare
        return f"{name} (own code, no source)"
    return f"{name} (own code {hashlib.sha256(source.encode()).hexdigest()[:_DIGITS]})"
