"""Computing for requests: in threads, few at once, and never so long that nobody waits any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from flare.studio.answers import FieldError
from flare.studio.settings import Limits

T = TypeVar("T")


class Worker:
    """Computes what requests ask for."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places: CapacityLimiter | None = None

    async def compute(self, work: Callable[[], T]) -> T:
        """What `work` returns. An answer that takes too long is given up with status 503; the thread ends by itself."""
        if self._places is None:  # here, because it belongs to the loop that runs now
            self._places = CapacityLimiter(self._limits.max_at_once)
        with anyio.move_on_after(self._limits.max_seconds) as patience:
            return await to_thread.run_sync(work, limiter=self._places, abandon_on_cancel=True)
        assert patience.cancelled_caught
        seconds = f"{self._limits.max_seconds:g} s"
        raise FieldError("", f"this takes longer than {seconds}; ask for fewer devices, or another policy", 503)
