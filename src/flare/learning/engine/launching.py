# mypy: ignore-errors
"""Triton kernels, launched, or compiled before that, many at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import torch
import triton

from flare.shared_work import share

_rehearsed: ContextVar[list[object] | None] = ContextVar("rehearsed", default=None)
"""In a rehearsal: what Triton gave for the kernels that were started in it."""
_compiled: dict[tuple[object, ...], tuple[object, tuple[object, ...]] | None] = {}
"""Kernels by all that Triton compiles them for, each with its named arguments: types of tensors, whether they lie at a
multiple of 16 bytes, and all numbers, which are few. How many jobs there are is in the grid, for which no kernel is
compiled. None: only Triton can start it."""


def start(kernel, grid: tuple[int, ...], *arguments, **named) -> None:
    """Start a kernel on the device of its first argument, or only have it compiled where that is rehearsed."""
    device = arguments[0].device
    is_cuda = device.type == "cuda"
    with torch.cuda.device(device) if is_cuda and device.index != torch.cuda.current_device() else nullcontext():
        rehearsed = _rehearsed.get()
        if rehearsed is not None:
            _refuse_long(arguments)
            rehearsed.append(kernel.warmup(*arguments, grid=grid, **named))
        elif is_cuda:
            _start_compiled(kernel, grid, arguments, named)
        else:
            kernel[grid](*arguments, **named)


def _start_compiled(kernel, grid: tuple[int, ...], arguments, named) -> None:
    """Start a kernel as it was compiled before. Triton finds out anew at every launch which one that is, and takes
    several times as long for it as for the launch."""
    key = (kernel, arguments[0].device.index, *map(_compiled_for, arguments), *named, *named.values())
    known = _compiled.get(key)
    if known is not None:
        compiled, rest = known
        try:
            compiled[(*grid, 1, 1)[:3]](*arguments, *rest)
        except TypeError:  # of a version of Triton whose compiled kernels take other arguments
            _compiled[key] = None
        else:
            return
    compiled = kernel[grid](*arguments, **named)
    if key not in _compiled:
        _compiled[key] = (compiled, tuple(named[name] for name in kernel.arg_names[len(arguments) :]))


def _compiled_for(argument):
    """What a kernel is compiled for: of numbers where they lie, a multiple of 16 bytes or not; all else as it is."""
    return (argument.dtype, argument.data_ptr() % 16 == 0) if isinstance(argument, torch.Tensor) else argument


def _refuse_long(arguments) -> None:
    """Offsets within a job are numbers of 32 bits."""
    for each in arguments:
        if isinstance(each, torch.Tensor) and each[:1].numel() >= 2**31:
            raise ValueError(f"a job has {each[:1].numel():,} numbers in one place, more than kernels can count")


_COMPILERS = 4
"""Threads that compile kernels: most of that is Python's, one thread at a time. Other processes may have some, too."""
_C_COMPILERS = 16


@contextmanager
def rehearsal() -> Iterator[None]:
    """No kernel computes in it: those that are started are compiled at its end, several at a time, where Triton can do
    that. What cannot be compiled so is told when it is started in earnest. ValueError where a kernel could not count
    the numbers.

    Of processes that have the same kernels to compile at the same time, each compiles some, and finds those of the
    others in Triton's cache."""
    rehearsed: list[object] = []
    with ExitStack() as stack:
        stack.push(partial(_make_launchers, rehearsed))  # when all are compiled
        if hasattr(triton, "AsyncCompileMode"):
            waiting = _Waiting()
            stack.enter_context(triton.AsyncCompileMode(waiting, ignore_errors=True))  # waits for all at its end
            stack.push(waiting.end)
        before = _rehearsed.set(rehearsed)
        try:
            yield
        finally:
            _rehearsed.reset(before)


class _Waiting(Executor):
    """What Triton wants to be compiled, until all of it is known."""

    def __init__(self) -> None:
        self._asked: list[tuple[Future, object]] = []

    def submit(self, work, /, *given, **named) -> Future:
        """Done at the `end`."""
        self._asked.append((Future(), partial(work, *given, **named)))
        return self._asked[-1][0]

    def end(self, kind, *_) -> None:
        """Do all of it; answers and what goes wrong are in the futures, which Triton has marked by their kernels. After
        an error nothing is done any more. However this ends, nobody waits for a future in vain."""
        try:
            if kind is None:
                pieces = {_name("kernel", future._key): partial(_answer, future, work) for future, work in self._asked}
                share(pieces, _folder(), _COMPILERS)
        finally:
            for future, _ in self._asked:
                with suppress(InvalidStateError):
                    future.set_exception(CancelledError())


def _answer(future: Future, work) -> None:
    with suppress(InvalidStateError):  # nobody wants it any more
        try:
            future.set_result(work())
        except BaseException as why:
            future.set_exception(why)


def _make_launchers(rehearsed, kind, *_) -> None:
    """Have the programs in C made that start these kernels, all at once: Triton has a compiler make each at the first
    start of a kernel, one after the other, and finds them in its cache then. What goes wrong here, it tells there.
    After an error nothing is made."""
    if kind is not None:
        return
    with suppress(Exception):  # of a version of Triton that starts kernels in another way
        compiled = [each.result(ignore_errors=True) if hasattr(each, "result") else each for each in rehearsed]
        new = [each for each in compiled if each is not None and each.module is None]
        distinct = {tuple(map(str, each.src.signature.values())): each for each in new}  # what they are written from
        make = triton.runtime.driver.active.launcher_cls
        pieces = {
            _name("launcher", str(kind)): partial(make, each.src, each.metadata) for kind, each in distinct.items()
        }
        share(pieces, _folder(), _C_COMPILERS)


def _folder() -> Path:
    """Where processes tell one another what they are at: in Triton's cache."""
    return Path(triton.knobs.cache.dir, "flare")


def _name(kind: str, key: str) -> str:
    return f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def ceil_div(size: int, part: int) -> int:
    """How many parts it takes. Triton's own, which is also for kernels, takes longer than it should at every launch."""
    return -(-size // part)


def power_of_2(size: int) -> int:
    """The least one that is not smaller."""
    return 1 << (size - 1).bit_length()
