"""Server-sent events: the runs that changed since the last look, a line each, and those that are gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import final

from starlette.concurrency import run_in_threadpool

from flare.studio.run_index import RunIndex, RunLine

LOOK_EVERY_S = 0.8
MAX_LISTENERS = 64
_SAY_EVERY = 15  # looks without news until a line that only keeps the connection alive


@final
class RunEvents:
    """News of an index for any number of listeners; only while somebody listens are the folders looked at."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self.listeners = 0

    async def stream(self) -> AsyncIterator[bytes]:
        """Events for one listener, without end: first every run, then what changes."""
        self.listeners += 1
        try:
            told: dict[str, RunLine] | None = None
            quiet = 0
            while True:
                now = {line.id: line for line in await run_in_threadpool(self._index.lines)}
                news = difference(told, now)
                if news is not None:
                    yield f"data: {json.dumps(news, allow_nan=False, separators=(',', ':'))}\n\n".encode()
                quiet = 0 if news is not None else quiet + 1
                if quiet >= _SAY_EVERY:
                    quiet = 0
                    yield b": still here\n\n"
                told = now
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self.listeners -= 1


def difference(before: dict[str, RunLine] | None, now: dict[str, RunLine]) -> dict[str, object] | None:
    """What a listener who knows the runs `before` has to be told; None where that is nothing. None before: all."""
    known = before or {}
    changed = [line.as_json() for name, line in now.items() if known.get(name) != line]
    gone = [name for name in known if name not in now]
    if before is not None and not changed and not gone:
        return None
    return {"whole": before is None, "changed": changed, "gone": gone}
