"""Means of vectors of many runs, all of which a GPU takes at once.

A mean adds one vector after the other: few numbers, for which a GPU waits longer than it computes. Of runs in lockstep
the vectors of a round are all there when the first of them is to be added. So they are only noted, and all sums are
made by one kernel when the first mean is asked for, in the order and to the bits of `RunningMean`. Until then they are
held, and nobody may change them: this is for FLARE's own methods, whose reducers do not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import final

import torch
from torch import Tensor

from flare.learning.aggregate import Mean, RunningMean

Adder = Callable[[Sequence[Sequence[Tensor]]], list[Tensor]]
"""The sum of each group of vectors, in float64."""
_MAX_BYTES = 2**29
"""Of sums that are made at once, where that of a single mean does not need more."""
_FAILED: set[Adder] = set()
"""What could not make sums in this process once: it is not tried again."""


@final
class MeansTogether:
    """Gives out means that are taken together.

    kept   the vectors that nobody changes as long as means are taken; others, as what a method makes of them, are
           added as they come, so that they can be forgotten
    add    makes the sums; where None, a kernel does it of vectors that lie on a GPU with Triton, and nothing else does
    """

    def __init__(self, kept: Iterable[Tensor], add: Adder | None = None) -> None:
        self._add = _by_kernel if add is None else add
        noted = () if self._add in _FAILED else kept
        self._kept = {id(vector): vector for vector in noted if add is not None or _is_for_kernel(vector)}
        self._means: list[_Mean] = []

    @property
    def new_mean(self) -> Callable[[], Mean]:
        """What makes a mean: a plain one where nothing is kept, as on a CPU."""
        return self.new if self._kept else RunningMean

    def new(self) -> _Mean:
        """One more mean."""
        self._means.append(_Mean(self))
        return self._means[-1]

    def keeps(self, vector: Tensor) -> bool:
        """Whether a vector need not be added yet."""
        return id(vector) in self._kept

    def add_up(self, wanted: _Mean) -> None:
        """Make the sum of this mean, and those of means that come after it."""
        after = (mean for mean in self._means[self._means.index(wanted) :] if mean.noted)
        length = len(wanted.noted[0])
        alike = [mean for mean in after if len(mean.noted[0]) == length]
        some = alike[: max(1, _MAX_BYTES // (8 * max(1, length)))]
        sums = self._sums([mean.noted for mean in some])
        if sums is None:
            wanted.add_noted()
            return
        for mean, total in zip(some, sums, strict=True):
            mean.take(total)

    def forget(self, ended: _Mean) -> None:
        """A mean that was asked for needs no memory here any more."""
        self._means.remove(ended)

    def _sums(self, groups: Sequence[Sequence[Tensor]]) -> list[Tensor] | None:
        """The sum of each group; None where that cannot be, or there is no memory for all of them at once."""
        try:
            return None if self._add in _FAILED else self._add(groups)
        except torch.cuda.OutOfMemoryError:
            return None
        except Exception as why:  # whatever compiling and launching may run into: it costs speed, not the run
            warnings.warn(f"updates could not be added up together and are one by one, slower: {why}", stacklevel=2)
            _FAILED.add(self._add)
            return None


@final
class _Mean:
    """As `RunningMean`. Vectors that are kept are noted, and added before anything else is."""

    def __init__(self, among: MeansTogether) -> None:
        self._among = among
        self._running = RunningMean()
        self.noted: list[Tensor] = []

    def add(self, vector: Tensor, device: int = -1) -> None:
        """Take in one more vector of shape (weights,); whose it is does not matter here."""
        if self._running.count == 0 and self._among.keeps(vector):
            self.noted.append(vector)
            return
        self.add_noted()
        self._running.add(vector)

    def end(self) -> Tensor:
        """The mean of the vectors added, in float64, shape (weights,). Call it once."""
        if self.noted:
            self._among.add_up(self)
        self._among.forget(self)
        running, self._running = self._running, RunningMean()  # the sum is the caller's alone
        return running.end()

    def add_noted(self) -> None:
        """Add what is noted, one after the other."""
        for vector in self.noted:
            self._running.add(vector)
        self.noted = []

    def take(self, total: Tensor) -> None:
        """Take in the sum of what is noted."""
        self._running = RunningMean(total, len(self.noted))
        self.noted = []


def _is_for_kernel(vector: Tensor) -> bool:
    if not vector.is_cuda or not _has_triton():
        return False
    return vector.dtype == torch.float32 and vector.dim() == 1 and vector.is_contiguous() and vector.numel() > 0


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _by_kernel(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    from flare.learning.adding import sums_of  # here: it needs Triton

    sums: list[Tensor] = sums_of(groups)
    return sums
