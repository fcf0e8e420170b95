"""Work cut into chunks that fit the memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import TypeVar, final

import torch

ANY = TypeVar("ANY")
DONE = TypeVar("DONE")

MAX_JOBS = 512
"""More at once are no faster; and on any GPU that has the memory for them, chunks are the same."""
_JOBS_ON_CPU = 16


@final
class Chunks:
    """Hands jobs to work in chunks, of half the size where memory has run out.

    max_jobs        how many jobs in a chunk at most; by the memory at hand where None
    bytes_for_job   about how much memory a job takes, by the width of its batches
    give_up         lets go of memory that work holds for later; called where memory has run out
    """

    def __init__(
        self,
        device: torch.device,
        max_jobs: int | None,
        bytes_for_job: Callable[[int], int],
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        if max_jobs is not None and max_jobs < 1:
            raise ValueError(f"chunk is {max_jobs}: at least one job must be worked on at a time")
        self._device, self._max_jobs, self._bytes_for_job = device, max_jobs, bytes_for_job
        self._give_up = give_up
        self._limits: dict[int, int] = {}  # width of a batch -> jobs that fitted after memory had run out
        self._fitted: dict[int, int] = {}  # width of a batch -> jobs that were worked on at once: the most so far

    def run(self, items: Sequence[ANY], width: int, work: Callable[[Sequence[ANY], int], list[DONE]]) -> list[DONE]:
        """Do `work` on as many items at once as fit; it must leave nothing behind where it fails."""
        done: list[DONE] = []
        chunk = min(self._fitting(width, len(items)), self._limits.get(width, MAX_JOBS))
        gave_up = False
        while len(done) < len(items):
            left = len(items) - len(done)
            size = math.ceil(left / math.ceil(left / chunk))  # chunks of about equal size
            answers = _unless_memory_runs_out(work, items[len(done) : len(done) + size], width)
            if answers is not None:
                done += answers
                self._fitted[width] = max(size, self._fitted.get(width, 0))
                continue
            if size == 1 and gave_up:
                raise MemoryError(
                    f"a single job with batches of {width} samples does not fit into the memory of {self._device}: "
                    "take smaller batches or a smaller model, or free memory that other programs hold"
                )
            self._give_up()
            gave_up = True
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            chunk = self._limits[width] = max(1, size // 2)
        return done

    def _fitting(self, width: int, wanted: int) -> int:
        """How many jobs with batches of `width` samples fit into the memory at hand. It takes a GPU a while to say how
        much it has: where as many as are wanted have fitted before, it is not asked."""
        if self._max_jobs is not None:
            return self._max_jobs
        if wanted <= self._fitted.get(width, 0):
            return wanted
        if self._device.type != "cuda":
            return _JOBS_ON_CPU
        free = torch.cuda.mem_get_info(self._device)[0]
        free += torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return max(1, min(MAX_JOBS, int(0.8 * free) // self._bytes_for_job(width)))


def _unless_memory_runs_out(
    work: Callable[[Sequence[ANY], int], list[DONE]], items: Sequence[ANY], width: int
) -> list[DONE] | None:
    """The answers, or None: outside the `except`, nothing holds the memory of the attempt any more."""
    try:
        return work(items, width)
    except torch.cuda.OutOfMemoryError:
        return None
