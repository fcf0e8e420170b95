"""Work cut into chunks that fit the memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import TypeVar, final

import torch

ANY = TypeVar("ANY")
DONE = TypeVar("DONE")

_MAX_JOBS = 512  # more at once are no faster; and on any GPU that has the memory for them, chunks are the same
_JOBS_ON_CPU = 16


@final
class Chunks:
    """Hands jobs to work in chunks, of half the size where memory has run out.

    max_jobs        how many jobs in a chunk at most; by the memory at hand where None
    bytes_for_job   about how much memory a job takes, by the width of its batches
    """

    def __init__(self, device: torch.device, max_jobs: int | None, bytes_for_job: Callable[[int], int]) -> None:
        if max_jobs is not None and max_jobs < 1:
            raise ValueError(f"chunk is {max_jobs}: at least one job must be worked on at a time")
        self._device, self._max_jobs, self._bytes_for_job = device, max_jobs, bytes_for_job
        self._limits: dict[int, int] = {}  # width of a batch -> jobs that fitted after memory had run out

    def run(self, items: Sequence[ANY], width: int, work: Callable[[Sequence[ANY], int], list[DONE]]) -> list[DONE]:
        """Do `work` on as many items at once as fit; it must leave nothing behind where it fails."""
        done: list[DONE] = []
        chunk = min(self._fitting(width), self._limits.get(width, _MAX_JOBS))
        while len(done) < len(items):
            left = len(items) - len(done)
            size = math.ceil(left / math.ceil(left / chunk))  # chunks of about equal size
            answers = _unless_memory_runs_out(work, items[len(done) : len(done) + size], width)
            if answers is not None:
                done += answers
                continue
            if size == 1:
                raise MemoryError(
                    f"a single job with batches of {width} samples does not fit into the memory of {self._device}: "
                    "take smaller batches or a smaller model, or free memory that other programs hold"
                )
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            chunk = self._limits[width] = size // 2
        return done

    def _fitting(self, width: int) -> int:
        """How many jobs with batches of `width` samples fit into the memory at hand."""
        if self._max_jobs is not None:
            return self._max_jobs
        if self._device.type != "cuda":
            return _JOBS_ON_CPU
        free = torch.cuda.mem_get_info(self._device)[0]
        free += torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return max(1, min(_MAX_JOBS, int(0.8 * free) // self._bytes_for_job(width)))


def _unless_memory_runs_out(
    work: Callable[[Sequence[ANY], int], list[DONE]], items: Sequence[ANY], width: int
) -> list[DONE] | None:
    """The answers, or None: outside the `except`, nothing holds the memory of the attempt any more."""
    try:
        return work(items, width)
    except torch.cuda.OutOfMemoryError:
        return None
