"""How often Flower looks for the parts of an answer that a node has announced and is still sending.

Flower's grid looks after 1 s, and each time waits twice as long, up to 10 s. An update that takes 8 s to come is then
found up to 7 s after it is there: as long as an upload again, and by chance. Nothing of the interface of Flower changes
that, so the default values of the function that waits are changed, in the process of the ServerApp, while
`FlareStrategy.start` drives the rounds. A loop of Flower's own looks as Flower does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.supercore.inflatable import inflatable_utils

from flare.flower.faults import log

MIN_PAUSE_S = 0.5
"""Each look costs the SuperLink some milliseconds for every answer that is on its way."""


@contextmanager
def look_every(pause_s: float) -> Iterator[None]:
    """While it holds, announced answers are looked for in even pauses, of at least `MIN_PAUSE_S`, for as long as Flower
    would have; afterwards as before. A warning says where Flower, in another version, cannot be told so."""
    defaults = getattr(getattr(inflatable_utils, "pull_objects", None), "__kwdefaults__", None) or {}
    own = {
        name: defaults[name] for name in ("initial_backoff", "backoff_cap", "max_tries_per_object") if name in defaults
    }
    if len(own) < 3:
        log.warning(
            "this version of Flower cannot be told how often to look for announced answers: updates that take some "
            "seconds to come may be found several seconds late, and uplinks look slower than they are"
        )
        yield
        return
    pause_s = max(MIN_PAUSE_S, pause_s)
    defaults.update(initial_backoff=pause_s, backoff_cap=pause_s, max_tries_per_object=None)  # its max_time still holds
    try:
        yield
    finally:
        defaults.update(own)
