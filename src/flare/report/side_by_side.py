"""Jobs that leave files and nothing else, done side by side in processes that are forked from this one: branches.

A branch begins with all that this process has in memory: nothing is imported anew, and nothing is handed over.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from flare.pools import num_cores

if TYPE_CHECKING:  # Windows has none
    from multiprocessing.context import ForkProcess

Job = Callable[[], None]

_PATIENCE_S = 120.0
"""For a branch to come to its end. It inherits locks that threads of this process may hold, and could wait for ever."""
_TO_TIDY_S = 1.0
"""For a branch that is told to end, to remove what it had begun to write."""
_is_alone = False
"""Whether this process is to do all by itself: it is a branch, or does a job once more that went wrong in one."""


def side_by_side(jobs: Sequence[Job]) -> None:
    """Do all jobs, as many at once as there are processors, one after the other where branches cannot be: also in a
    branch, so that none is left behind where one is killed. Whatever goes wrong with a job in its branch, it is done
    here once more, and raises what it raises."""
    at_once = min(len(jobs), num_cores())
    if at_once < 2 or not _can_branch():
        for job in jobs:
            job()
        return
    waiting, going, failed = list(reversed(jobs)), dict["ForkProcess", tuple[Job, float]](), list[Job]()
    try:
        while waiting or going:
            while waiting and len(going) < at_once:
                job = waiting.pop()
                branch = _branch(job)
                if branch is None:
                    failed.append(job)
                else:
                    going[branch] = job, time.monotonic() + _PATIENCE_S
            if going:
                first_s = min(end_s for _, end_s in going.values())
                wait([branch.sentinel for branch in going], timeout=max(0.0, first_s - time.monotonic()))
            failed += _ended(going)
    finally:
        for branch in going:
            _end(branch)
    _once_more(failed)


def _once_more(failed: Sequence[Job]) -> None:
    """Do jobs that went wrong in their branches, without branches: these would go wrong again, each after a while."""
    global _is_alone
    _is_alone = True
    try:
        for job in failed:
            job()
    finally:
        _is_alone = False


def _ended(going: dict[ForkProcess, tuple[Job, float]]) -> list[Job]:
    """Take out the branches that have ended, or have had enough time; the jobs of those that failed."""
    now = time.monotonic()
    over = [branch for branch, (_, end_s) in going.items() if branch.exitcode is not None or now >= end_s]
    failed = []
    for branch in over:
        job, _ = going.pop(branch)
        if branch.exitcode != 0:
            _end(branch)
            failed.append(job)
    return failed


def _end(branch: ForkProcess) -> None:
    """End a branch, which removes what it had begun to write, if it still can."""
    branch.terminate()
    branch.join(_TO_TIDY_S)
    branch.kill()
    branch.join()


def _can_branch() -> bool:
    """Whether processes may branch off: not while this process is to do all by itself, not while it uses a GPU, which
    cannot be had in two, not from a process of a pool that may have none of its own, and elsewhere than on Linux
    libraries of the system may not work in them."""
    torch = sys.modules.get("torch")
    uses_gpu = torch is not None and torch.cuda.is_initialized()
    may = not multiprocessing.current_process().daemon
    return sys.platform == "linux" and may and not _is_alone and not uses_gpu


def _branch(job: Job) -> ForkProcess | None:
    """A process that does a job; None where the system has none left."""
    made = multiprocessing.get_context("fork").Process(target=_do, args=(job,))
    with warnings.catch_warnings(), suppress(OSError):
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: of locks; there is patience
        made.start()
        return made
    return None


# --- in a branch ------------------------------------------------------------------------------------------------


def _do(job: Job) -> None:
    """Do a job and end, without what a process does at its end otherwise: that is for the one that it came from."""
    global _is_alone
    _is_alone = True
    gc.disable()  # what it inherited is not its own to let go of
    code = 1
    with suppress(BaseException):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what it writes is tidied up
        job()
        code = 0
    os._exit(code)
