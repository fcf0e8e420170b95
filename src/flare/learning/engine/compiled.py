"""A chain of layers compiled for GPUs: fused kernels, with our own matrix products between them.

A job's numbers must not depend, to the last bit, on how many jobs are stacked with it nor on what was computed before.
So the compiler makes one kernel for stacks of all heights (numbers of jobs), it does so from an example that always has
the same height, and it may not time two kernels to take the faster one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import Any, final

import torch
from torch import Tensor

from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.products import Gradient, Outer, Plain, Products
from flare.learning.engine.stack import Starts
from flare.learning.engine.terms import Anchors
from flare.learning.flat import FlatModel

_EXAMPLE_HEIGHT = 32  # jobs
_MAX_SHORTAGES = 3  # of memory, for the compiler's example; then there is no code
_WANTED = {"deterministic": True, "split_reductions": False}  # the compiler's options, as far as it knows them


def can_compile(device: torch.device) -> bool:
    """Whether there is a GPU and the compiler that PyTorch's packages for GPUs bring along (from version 2.6 on)."""
    return device.type == "cuda" and hasattr(torch.library, "triton_op") and find_spec("triton") is not None


@final
class CompiledProgram:
    """A `LayerProgram` whose passes are compiled at their first call."""

    def __init__(self, model: FlatModel, sample: Tensor, *, tf32: bool = False, own_products: bool = True) -> None:
        products: Products = Plain()
        self._moved: Callable[[Starts, Tensor, int], tuple[Tensor, Tensor]] = Starts.moved
        if own_products and can_compile(sample.device):
            from flare.learning.engine.kernels import TensorCores, moved  # needs Triton

            products, self._moved = TensorCores(tf32=tf32), moved
        program = LayerProgram(model, tuple(sample.shape), products)
        self.floats_per_sample = program.floats_per_sample
        self.width, self.arrange, self._gradients = program.width, program.arrange, program.gradients
        self._sizes = model.sizes
        self._forward, self._backward = _compile(program.forward), _compile(program.backward)
        self._logits, self._features = _compile(program.logits), _compile(program.features)
        self._norms = _compile(program.norms)
        self._learned: set[tuple[Any, ...]] = set()  # kinds of stacks that there is code for
        self._shortages: Counter[tuple[Any, ...]] = Counter()  # of memory, when there was to be code for a kind
        self._is_first = False  # whether the compiler is about to learn

    def gradient(
        self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, anchors: Anchors | None = None
    ) -> tuple[Tensor, list[Gradient]]:
        """Forward and back."""
        stacks = (weights, x, labels, shares, *(anchors or ()))
        losses, *factors = self._at_any_height("gradient", self._forward_and_back, *stacks)
        return losses, self._gradients(factors)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        (logits,) = self._at_any_height("logits", lambda *stacks: (self._logits(*stacks),), weights, x)
        return logits

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward to the last linear layer."""
        (features,) = self._at_any_height("features", lambda *stacks: (self._features(*stacks),), weights, x)
        return features

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """Compiled too: the order in which PyTorch's own sums add depends on the number of rows."""
        (norms,) = self._at_any_height("norms", lambda *stacks: (self._norms(stacks),), *gradients)
        return norms

    def moved(self, stack: Tensor, starts: Starts) -> tuple[Tensor, Tensor]:
        """In one pass, where there are kernels of our own."""
        return self._moved(starts, stack, sum(self._sizes))

    def _forward_and_back(
        self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, *anchors: Tensor
    ) -> tuple[Tensor, ...]:
        """Compiled as two functions. In one, the compiler would compute again on the way back what the layers keep."""
        logits, kept = self._forward(weights, x)
        if self._is_first:
            _mark(logits, *(tensor for keep in kept for tensor in keep))
        compared = (Anchors(*anchors),) if anchors else ()
        losses, factors = self._backward(weights, logits, kept, labels, shares, *compared)
        if self._is_first:
            self._try_out(weights, factors)
        return losses, *factors

    def _try_out(self, weights: Tensor, factors: Sequence[Tensor]) -> None:
        """Carry out gradients in both ways, also onto the weights, which are an example: what fails must fail here,
        where another program can take over."""
        parts = torch.split(weights[:, : sum(self._sizes)], self._sizes, dim=1)
        for part, gradient in zip(parts, self._gradients(factors), strict=True):
            if isinstance(gradient, Outer):
                gradient.made()
                gradient.add_to_(part, part[:, :1].clone())

    def _at_any_height(self, name: str, work: Callable[..., tuple[Tensor, ...]], *stacks: Tensor) -> tuple[Tensor, ...]:
        """What `work` answers for stacks of any number of jobs, their height, with code compiled once for all heights.

        The compiler learns from its first call. So the first call for stacks of these shapes is one of always the same
        height, with rows of these stacks as an example, and the answer is thrown away. Where memory runs out in it, the
        next call is the first one. And stacks of height one are doubled, since the compiler would make code of its own
        for them, with other roundings.
        """
        height = len(stacks[0])
        kind = (name, *(stack.shape[1:] for stack in stacks))
        if kind not in self._learned:
            try:
                self._learn(work, stacks)
            except torch.cuda.OutOfMemoryError as why:
                self._shortages[kind] += 1
                if self._shortages[kind] < _MAX_SHORTAGES:
                    raise
                words = f"memory for {_EXAMPLE_HEIGHT} jobs, the compiler's example, was short again and again"
                raise MemoryError(words) from why
            self._learned.add(kind)
        if height > 1:
            return work(*stacks)
        answers = work(*(torch.cat([stack, stack]) for stack in stacks))
        return tuple(answer[:1] for answer in answers)

    def _learn(self, work: Callable[..., tuple[Tensor, ...]], stacks: Sequence[Tensor]) -> None:
        """Let the compiler make code for stacks like these."""
        rows = torch.arange(_EXAMPLE_HEIGHT, device=stacks[0].device) % len(stacks[0])
        self._is_first = True
        try:
            with _first_time():
                work(*_mark(*(stack.index_select(0, rows) for stack in stacks)))
        finally:
            self._is_first = False


@contextmanager
def _first_time() -> Iterator[None]:
    """Let the compiler make as many variants as there are models and shapes, and silence its advice to use TF32."""
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with warnings.catch_warnings(), config.patch({limit: 1000}):
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        yield


def _mark(*stacks: Tensor) -> tuple[Tensor, ...]:
    """Tell the compiler that the first axis may have any length; the stacks, as they came."""
    for stack in stacks:
        torch._dynamo.mark_dynamic(stack, 0)
    return stacks


def _compile(method: Any) -> Callable[..., Any]:
    """A bound method, compiled. The code is a copy: the compiler keeps what it made with the code of a function, and
    would go through all that it made for other models at every call."""
    from torch._inductor import config

    known: dict[str, Any] = {name: value for name, value in _WANTED.items() if hasattr(config, name)}
    written = method.__func__
    copied = FunctionType(
        written.__code__.replace(), written.__globals__, written.__name__, written.__defaults__, written.__closure__
    )
    return torch.compile(MethodType(copied, method.__self__), dynamic=False, options=known)
