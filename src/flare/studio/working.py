"""Computing for requests: in threads, few at once, and never so long that nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from flare.studio.answers import FieldError
from flare.studio.settings import Limits

T = TypeVar("T")


class Worker:
    """Computes what requests ask for, in as many threads as may compute at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.max_at_once, "flare-studio")

    async def compute(self, work: Callable[[], T]) -> T:
        """What `work` returns. An answer that takes too long is given up with status 503; the thread ends by itself,
        and only then computes for another request."""
        answer = asyncio.wrap_future(self._threads.submit(work))
        try:
            done, _ = await asyncio.wait({answer}, timeout=self._limits.max_seconds)
        finally:
            answer.cancel()  # work that has not begun never does; an answer that is there stays
        if done:
            return answer.result()
        late = f"this takes longer than {self._limits.max_seconds:g} s, or has to wait for others"
        raise FieldError("", f"{late}; ask for fewer devices, another policy, or again later", 503)
