"""How often Flower looks for the parts of an answer that a node has announced and is still sending.

Flower's grid looks after 1 s, and each time waits twice as long, up to 10 s. An update that takes 8 s to come is then
found up to 7 s after it is there: as long as an upload again, and by chance. Nothing of the interface of Flower changes
that, so the default values of the function that waits are changed, in the process of the ServerApp.
"""

from __future__ import annotations

from flwr.supercore.inflatable import inflatable_utils

MIN_PAUSE_S = 0.5
"""Each look costs the SuperLink some milliseconds for every answer that is on its way."""


def look_every(pause_s: float) -> bool:
    """Look for announced answers in even pauses, of at least `MIN_PAUSE_S`, for as long as Flower would have; whether
    Flower can be told so: another version of it may go on as it does."""
    defaults = getattr(getattr(inflatable_utils, "pull_objects", None), "__kwdefaults__", None) or {}
    if not {"initial_backoff", "backoff_cap", "max_tries_per_object"} <= set(defaults):
        return False
    pause_s = max(MIN_PAUSE_S, pause_s)
    defaults.update(initial_backoff=pause_s, backoff_cap=pause_s, max_tries_per_object=None)  # its max_time still holds
    return True
