"""Steps of few jobs as CUDA graphs: recorded once, and then launched as one.

A step is many kernels. With few jobs each is over before the next is launched, and the GPU waits for the program. A
graph is bound to the memory in which it was recorded: the rows are copied there, step by step, and each row is copied
back when it has done its last one. There is a graph for every height (number of jobs), rounded up; what the rows too
many compute is never read. The kernels are those that would have run without the graph, so that not a bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import final

import torch
from torch import Tensor

from flare.learning.engine.step import Gradients, Step

Samples = tuple[int, Tensor]
"""The jobs at work in a step, and their samples, (jobs, width)."""


def rounded_height(count: int) -> int:
    """At most an eighth more, and at least 2."""
    unit = max(2, 1 << max(0, count.bit_length() - 4))
    return -(-count // unit) * unit


def largest_height(limit: int) -> int:
    """The largest height up to a limit that is not rounded further up; 0: there is none."""
    return next((height for height in range(limit, 1, -1) if rounded_height(height) == height), 0)


@final
class CudaRecorder:
    """Records work as CUDA graphs that share a pool of memory, or, after memory ran out, some of them another: none is
    launched while another is at work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._give_back_memory()  # what is kept for later is not there for the graphs, nor for other processes

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that does the work again, in the same memory; it is done once here, too."""
        with torch.cuda.device(self._device):
            work()  # loads what is loaded at a first call
            try:
                return self._recorded(work)
            except torch.cuda.OutOfMemoryError:
                pass  # outside, nothing holds the memory of the attempt any more
            self._give_back_memory()
            self._pool = torch.cuda.graph_pool_handle()  # the pool of an attempt that failed cannot be used again
            return self._recorded(work)

    def _give_back_memory(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def _recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """As by `torch.cuda.graph`, but that it neither waits for the GPU nor gives back memory before each graph: what
        is given back is asked for again at once, and takes longer than to record."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._beside):
            graph.capture_begin(pool=self._pool)
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # what went wrong counts, not that nothing was recorded
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay


@final
class StepGraphs:
    """The graphs of steps of one kind with batches of one width, at most `max_height` jobs high."""

    def __init__(
        self,
        example: Step,
        width: int,
        max_height: int,
        gradients_of: Gradients,
        record: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
    ) -> None:
        device = example.weights.device
        self.max_height = max_height
        self._gradients_of = gradients_of
        self._record = CudaRecorder(device) if record is None else record
        self._own = example.blank(max_height)
        self._indices = torch.zeros(max_height, width, dtype=torch.int64, device=device)
        self._graphs: dict[int, Callable[[], None]] = {}

    def run(self, step: Step, samples: Sequence[Samples]) -> None:
        """Take all steps that are left, of which there is at least one. Where it raises, none was taken."""
        counts = [count for count, _ in samples]
        graphs = [self._graph(rounded_height(count)) for count in counts]
        for own, given in zip(self._own.tensors(), step.tensors(), strict=True):
            own[: counts[0]].copy_(given[: counts[0]])
        for graph, (count, indices), after in zip(graphs, samples, [*counts[1:], 0], strict=True):
            self._indices[:count].copy_(indices)
            graph()
            if after < count:
                step.weights[after:count].copy_(self._own.weights[after:count])
                step.sums[after:count].copy_(self._own.sums[after:count])

    def _graph(self, height: int) -> Callable[[], None]:
        """That of a height; recorded when it is first asked for."""
        if height not in self._graphs:
            self._graphs[height] = self._record(partial(self._own, self._gradients_of, height, self._indices[:height]))
        return self._graphs[height]
