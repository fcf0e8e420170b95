"""The engine for GPUs: all devices of all runs are one stack of weights, shape (jobs, weights), stepped together.

The jobs are sorted by their number of steps, most first, so that those still at work in step j are the first rows of
the stack: a step is one pass over that prefix. The data lie on the device once; batches are gathered by index. A stack
is cut into chunks that fit the memory, and where memory runs out after all, the chunk is halved and tried again. Rules
with an ascent, a mask, a contrast, a pull or a drift are stacked with others that have the same of them, so that plain
rules pay nothing for them. Devices that hold a narrower model are stacked by its width, and computed with it
(`narrow`). What is large goes through the memory as seldom as can be: gradients of dense layers are added onto the
weights as they are made (`operations.Onto`), where no rule of the stack adds anything to them; updates and their
lengths come of one pass (`rows.moved`).

Answers. A job's numbers come from its own row alone: neither the company nor the chunk enters, nor does a neighbour
whose weights are no longer finite. By kernels of our own (`KernelProgram`), that holds to the last bit. By PyTorch's,
on a CPU, for modules that are no chain of known layers and once a kernel could not be used, the last bits may depend on
how many jobs are worked on at once, as a library of matrix products chooses its way of summing by that. The same calls
with the same `chunk` on the same machine give the same bits in either case. Against the reference, a maximum of two
numbers that are equal but for rounding may fall on the other one.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from flare.data.dataset import Dataset
from flare.learning.engine.base import Launched
from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.chunks import MAX_JOBS, Chunks
from flare.learning.engine.graphs import Samples, StepGraphs, largest_height
from flare.learning.engine.kernel_program import KernelProgram, TornError, has_kernels
from flare.learning.engine.narrow import NarrowModels
from flare.learning.engine.operations import Gradient, Onto, all_made
from flare.learning.engine.programs import Program, make_program
from flare.learning.engine.seams import Run, Seams
from flare.learning.engine.stack import Descent, Feed, Figures, Starts, Unread, batches_by_step, copy_into
from flare.learning.engine.step import Step
from flare.learning.engine.tensor_data import TensorData, data_on, onto
from flare.learning.flat import own_copy
from flare.learning.job import GradientJob, Job, Score, Update, check_jobs

ANY = TypeVar("ANY")
DONE = TypeVar("DONE")

_SAMPLES_AT_ONCE = 200  # of each job, for gradients over many samples
_TESTED_AT_ONCE = {"cpu": 100, "cuda": 1000}
_GRAPH_BYTES = 6 * 10**9  # for the graphs of a kind of steps, by an estimate of about twice what they hold, at most
_GRAPH_BYTES_SHARED = 3 * 10**9  # where others use the GPU, too
_MAX_GRAPH_KINDS = 8
_MIN_GRAPH_HEIGHT = 16  # jobs that there is room for at least
_PLAIN = (False,) * 5  # what a rule has that says nothing beyond its rate and steps: `kind` and `added`
_MAX_SHORTAGES = 3  # of memory when steps were recorded; then they are not any more


@final
class BatchedEngine:
    """Every job of a call at once, or as many as fit.

    chunk         how many jobs at once, at most; by the memory at hand where None
    own_kernels   whether passes are kernels of our own, compiled at the first call; where None, on a GPU with Triton
    tf32          whether matrix products may keep 10 bits of their factors on a GPU; faster, no longer float32

    `lanes` is how many engines with this model are at work on the device at the same time: memory is left to the
    others. Where it runs out, those `beside` give up their graphs, too. Less memory is kept for graphs where there are
    several lanes, or where the engine `shares_gpu` with other processes.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset | TensorData,
        *,
        device: str | torch.device,
        chunk: int | None = None,
        own_kernels: bool | None = None,
        tf32: bool = False,
    ) -> None:
        self._model = own_copy(module, device)
        self._data = data_on(device, dataset)
        self._device = self._data.device
        self._program = make_program(self._model, self._data.train_x[0])
        self._tf32 = tf32
        self._kernels: Program | None = None  # the program by kernels of our own
        self._graphs: dict[tuple[object, ...], StepGraphs] = {}
        self.lanes, self.beside, self.shares_gpu = 1, list[BatchedEngine](), False
        self._chunks = Chunks(self._device, chunk, self._bytes_in_lanes, self._make_room)
        self._records = self._device.type == "cuda"  # whether steps are recorded as graphs
        self._shortages = 0  # of memory, when they were
        sample_shape = tuple(self._data.train_x.shape[1:])
        wanted = has_kernels(self._device) if own_kernels is None else own_kernels
        self._like_this = partial(BatchedEngine, device=device, chunk=chunk, own_kernels=own_kernels, tf32=tf32)
        self._narrow = NarrowModels(self._model, sample_shape, self._with_model)
        if wanted and isinstance(self._program, LayerProgram):
            try:
                self._kernels = KernelProgram(self._model, sample_shape, tf32=tf32)
            except Exception as why:  # as of a Triton that is too old: it costs speed, not the run
                self._do_without_kernels(why)

    def _with_model(self, module: nn.Module) -> BatchedEngine:
        """An engine of a narrower model, with the same data and neighbours."""
        made = self._like_this(module, self._data)
        made.lanes, made.beside, made.shares_gpu = self.lanes, [self, *self.beside], self.shares_gpu
        return made

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Alg. 2, lines 7 to 13, for all jobs; deltas are on the engine's device."""
        return self.launch(jobs).read()

    def launch(self, jobs: Sequence[Job]) -> Launched:
        """The same, begun; a GPU is not waited for."""
        check_jobs(jobs, self._model)
        for i, batches in enumerate([job.batches for job in jobs]):
            if not isinstance(batches, np.ndarray) or batches.ndim != 2 or batches.size == 0:
                raise ValueError(f"job {i} has batches of shape {np.shape(batches)}: give (steps, samples) indices")
        begun = self._narrow.train(jobs, self.train_checked)
        return Launched(lambda: [unread.read() for unread in begun], under_way=self._device.type == "cuda")

    def train_checked(self, jobs: Sequence[Job], laid: Callable[[Tensor], Tensor] | None = None) -> list[Unread]:
        """Jobs that were checked, all with the whole model, with or without masks; `laid` makes the updates that are
        handed back of those in the rows of a stack. A GPU may still be at work on them."""
        rules, sizes = [job.rule for job in jobs], [job.batches.shape[1] for job in jobs]
        widths = {size: self._width(size) for size in set(sizes)}
        plain = {size: (width, *_PLAIN) for size, width in widths.items()}
        kinds = [
            plain[size] if rule.is_plain else (widths[size], *rule.kind, *rule.added)
            for rule, size in zip(rules, sizes, strict=True)
        ]
        return self._by_kind(jobs, kinds, [-rule.steps for rule in rules], partial(self._train, laid=laid))

    def gradients(self, jobs: Sequence[GradientJob]) -> list[Tensor]:
        """The gradient of each job's mean loss, on the engine's device."""
        return self._over_samples(jobs, self._gradients)

    def losses(self, jobs: Sequence[GradientJob]) -> list[float]:
        """Each job's mean loss."""
        return self._over_samples(jobs, self._losses)

    def _over_samples(
        self, jobs: Sequence[GradientJob], work: Callable[[Sequence[GradientJob], int], list[DONE]]
    ) -> list[DONE]:
        """Do `work` on jobs with many samples, a few of them at once."""
        counts = [len(job.samples) for job in jobs]
        if 0 in counts:
            raise ValueError(f"gradient job {counts.index(0)} has no samples: leave it out")
        kinds = [(self._width(min(count, _SAMPLES_AT_ONCE)),) for count in counts]
        return self._by_kind(jobs, kinds, [-count for count in counts], work)

    def evaluate(self, weights: Sequence[Tensor]) -> list[Score]:
        """Accuracy and loss on the test samples."""
        if len(self._data.test_y) == 0:
            raise ValueError("the data set has no test samples to evaluate on: give it test_x and test_y")
        width = min(_TESTED_AT_ONCE[self._device.type], len(self._data.test_y))
        return self._by_kind(weights, [(width,)] * len(weights), [0] * len(weights), self._evaluate)

    def _train(self, jobs: Sequence[Job], width: int, laid: Callable[[Tensor], Tensor] | None = None) -> list[Unread]:
        stack, starts = self._stack([job.start for job in jobs])
        samples, shares = batches_by_step([job.batches for job in jobs], width, self._data)
        seams = Seams.of(jobs, starts, lambda vectors: self._stack(vectors)[0], self._model.sizes, self._device)
        descent = Descent.of(jobs, starts, self._model.sizes, self._device, None if seams is None else seams.masks)
        sums = torch.zeros(len(jobs), 2, dtype=torch.float64, device=self._device)
        try:
            self._take_steps(Step(stack, sums, shares, descent, seams), width, samples)
        except TornError as why:
            self._do_without_kernels(why)
            return self._train(jobs, width, laid)
        moved, norms = self._run(lambda program: program.moved(stack, starts))
        figures = Figures(sums, norms, [job.rule.steps for job in jobs])
        deltas = list(moved if laid is None else laid(moved))  # while a GPU is still at work
        return [Unread(delta, figures, row) for row, delta in enumerate(deltas)]

    def _take_steps(self, step: Step, width: int, samples: Sequence[Samples]) -> None:
        """All steps of a stack: as graphs from where few enough jobs are at work, where there are graphs."""
        highest = self._max_graph_height(width)
        before = next((i for i, (count, _) in enumerate(samples) if count <= highest), len(samples))
        self._take_plain_steps(step, samples[:before])
        if before < len(samples) and not self._run_graphs(step, width, highest, samples[before:]):
            self._take_plain_steps(step, samples[before:])

    def _take_plain_steps(self, step: Step, samples: Sequence[Samples]) -> None:
        for count, indices in samples:
            step(self._loss_and_gradients, count, indices)

    def _run_graphs(self, step: Step, width: int, highest: int, samples: Sequence[Samples]) -> bool:
        """Take steps as graphs; False: none was taken. After that there are no graphs any more, but that memory may be
        short a few times."""
        try:
            self._graphs_for(step, width, highest, samples[0][0]).run(step, samples)
        except Exception as why:  # whatever recording may run into: it costs speed, not the run
            is_short = isinstance(why, torch.cuda.OutOfMemoryError)
            self._shortages += is_short
            if is_short:
                self._make_room()  # graphs among all else
            else:
                self.give_up_graphs()
            if not is_short or self._shortages == _MAX_SHORTAGES:
                words = f"steps could not be recorded as CUDA graphs and run without, slower: {why}"
                warnings.warn(words, stacklevel=2)
                self._records = False
            return False
        return True

    def _graphs_for(self, step: Step, width: int, highest: int, count: int) -> StepGraphs:
        """Those of steps of this kind with room for so many jobs, and up to twice as many: what they hold grows with
        it. Where there are many kinds, those that were used last are kept."""
        kind = (width, *step.kind)
        graphs = self._graphs.pop(kind, None)
        if graphs is None or graphs.max_height < count:
            graphs = None  # its memory is better used by the new ones
            if len(self._graphs) == _MAX_GRAPH_KINDS:
                del self._graphs[next(iter(self._graphs))]
            room = min(highest, max(_MIN_GRAPH_HEIGHT, 1 << (count - 1).bit_length()))
            graphs = StepGraphs(step, width, room, partial(self._loss_and_gradients, run=self._run_kernels))
        self._graphs[kind] = graphs
        return graphs

    def give_up_graphs(self) -> None:
        """Let go of the memory that graphs hold, also those of narrower models; they are recorded anew when needed."""
        self._graphs.clear()
        self._narrow.give_up_graphs()

    def _make_room(self) -> None:
        """Let go of what graphs hold, also those of the engines beside, when none of them is at work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for engine in (self, *self.beside):
            engine.give_up_graphs()

    def _max_graph_height(self, width: int) -> int:
        """The number of jobs up to which a step is a graph: as many as fit into the memory that is kept for them."""
        if self._kernels is None or not self._records:
            return 0
        most = _GRAPH_BYTES_SHARED if self.shares_gpu or self.lanes > 1 else _GRAPH_BYTES
        return largest_height(min(MAX_JOBS, most // self._bytes_for_a_job(width)))

    def _gradients(self, jobs: Sequence[GradientJob], width: int) -> list[Tensor]:
        stack, _ = self._stack([job.at for job in jobs])
        feed = Feed.of([job.samples for job in jobs], width, self._data)
        total = torch.zeros_like(stack)
        for count, indices, shares in feed.steps():
            _, gradients = self._loss_and_gradients(stack[:count], indices, shares)
            for sum_of, gradient in zip(self._parts(total[:count]), all_made(gradients), strict=True):
                sum_of += gradient.reshape(sum_of.shape)
        return list(total[:, : self._model.num_weights])

    def _losses(self, jobs: Sequence[GradientJob], width: int) -> list[float]:
        stack, _ = self._stack([job.at for job in jobs])
        feed = Feed.of([job.samples for job in jobs], width, self._data)
        total = torch.zeros(len(jobs), dtype=torch.float64, device=self._device)
        for count, indices, shares in feed.steps():
            x, y = self._run(partial(_batch, self._data, indices))
            logits = self._run(partial(_logits, stack[:count], x))  # (jobs, classes, samples)
            each = torch.log_softmax(logits, 1).gather(1, y.unsqueeze(1)).squeeze(1)
            total[:count] -= self._run(partial(_sums, torch.where(shares > 0.0, each, 0.0).double()))
        samples = onto(torch.tensor([len(job.samples) for job in jobs]), self._device)
        losses: list[float] = (total / samples).tolist()
        return losses

    def _evaluate(self, weights: Sequence[Tensor], width: int) -> list[Score]:
        stack, _ = self._stack(weights)
        right = torch.zeros(len(weights), dtype=torch.int64, device=self._device)
        loss = torch.zeros(len(weights), dtype=torch.float64, device=self._device)
        for x, y in zip(torch.split(self._data.test_x, width), torch.split(self._data.test_y, width), strict=True):
            x = self._program.arrange(_filled(x, width).unsqueeze(0))
            work = partial(_logits, stack, x.expand(len(weights), *x.shape[1:]).contiguous())
            logits = self._run(work)[:, :, : len(y)]  # (jobs, classes, samples)
            right += (logits.argmax(1) == y).sum(1)
            picked = y.expand(len(weights), 1, len(y))
            each = torch.log_softmax(logits, 1).gather(1, picked).squeeze(1)
            loss -= self._run(partial(_sums, each.double()))
        samples = len(self._data.test_y)
        of_jobs = torch.stack([right.double(), loss], dim=1).tolist()  # at once: to read is to wait for a GPU
        return [Score(r / samples, s / samples) for r, s in of_jobs]

    def _loss_and_gradients(
        self,
        stack: Tensor,
        indices: Tensor,
        shares: Tensor,
        seams: Seams | None = None,
        onto: Onto | None = None,
        run: Run | None = None,
    ) -> tuple[Tensor, list[Gradient]]:
        """Losses (jobs,) and the gradients by parameter of jobs with the weights `stack` on the samples `indices`; by
        `run`, where it is given, in place of `_run`."""
        run = self._run if run is None else run
        x, y = run(lambda program: program.batch(self._data, indices))
        if seams is not None:
            return seams.gradient(run, stack, x, y, shares, onto)
        return run(lambda program: program.gradient(stack, x, y, shares, None, onto))

    def _run(self, work: Callable[[Program], DONE]) -> DONE:
        """Let our own kernels do the work, where there are some and they can, or PyTorch."""
        if self._kernels is not None:
            try:
                return work(self._kernels)
            except (torch.cuda.OutOfMemoryError, TornError):
                raise
            except Exception as why:  # whatever compiling and launching may run into: it costs speed, not the run
                self._do_without_kernels(why)
        return work(self._program)

    def _do_without_kernels(self, why: Exception) -> None:
        warnings.warn(f"our own kernels could not be used; passes run without, slower: {why}", stacklevel=3)
        self._kernels = None
        self.give_up_graphs()  # they are of those kernels

    def _run_kernels(self, work: Callable[[Program], DONE]) -> DONE:
        """Let our own kernels do the work, or raise: what fails while it is recorded may be fine otherwise."""
        assert self._kernels is not None
        return work(self._kernels)

    def _width(self, samples: int) -> int:
        """How many places a batch of so many samples takes."""
        return (self._kernels or self._program).width(samples)

    def _bytes_for_a_job(self, width: int) -> int:
        return 4 * (7 * self._model.num_weights + width * (self._kernels or self._program).floats_per_sample)

    def _bytes_in_lanes(self, width: int) -> int:
        """What a job takes together with one of each engine that is at work at the same time."""
        return self.lanes * self._bytes_for_a_job(width)

    def _parts(self, stack: Tensor) -> tuple[Tensor, ...]:
        return torch.split(stack[:, : self._model.num_weights], self._model.sizes, dim=1)

    def _stack(self, vectors: Sequence[Tensor]) -> tuple[Tensor, Starts]:
        """A copy of the vectors as rows, and what it was made of; vectors of one run are moved once.

        Rows start at multiples of 256 bytes, as matrix products like it; the numbers too many are zero.
        """
        keys = list(map(id, vectors))
        distinct = dict(zip(keys, vectors, strict=True))
        for vector in distinct.values():
            if vector.shape != (self._model.num_weights,):
                shape = tuple(vector.shape)
                raise ValueError(f"weights have the shape {shape}; the model has {self._model.num_weights} in a row")
        place = {key: i for i, key in enumerate(distinct)}
        row_length = -(-self._model.num_weights // 64) * 64
        rows = torch.zeros(len(distinct), row_length, device=self._device)
        copy_into(rows, list(distinct.values()))
        index = np.fromiter(map(place.__getitem__, keys), np.int64, len(keys))
        starts = Starts(rows, onto(torch.from_numpy(index), self._device))
        return starts(), starts

    def _by_kind(
        self,
        items: Sequence[ANY],
        kinds: Sequence[tuple[int, ...]],
        order: Sequence[int],
        work: Callable[[Sequence[ANY], int], list[DONE]],
    ) -> list[DONE]:
        """Do `work` on items of one kind together, in the given order and in chunks; answers as the items came.

        A kind begins with the width of its batches.
        """
        sorted_items = sorted(range(len(items)), key=order.__getitem__)
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        if len(set(kinds)) == 1:
            groups[kinds[0]] = sorted_items
        else:
            for i in sorted_items:
                groups[kinds[i]].append(i)
        answers: dict[int, DONE] = {}
        with torch.no_grad(), _precision(self._device, self._tf32):
            for (width, *_), members in groups.items():
                done = self._chunks.run([items[i] for i in members], width, work)
                answers.update(zip(members, done, strict=True))
        return [answers[i] for i in range(len(items))]


def _batch(data: TensorData, indices: Tensor, program: Program) -> tuple[Tensor, Tensor]:
    return program.batch(data, indices)


def _logits(weights: Tensor, x: Tensor, program: Program) -> Tensor:
    return program.logits(weights, x)


def _sums(numbers: Tensor, program: Program) -> Tensor:
    return program.sums(numbers)


def _filled(x: Tensor, width: int) -> Tensor:
    """Samples, filled up to `width` of them with the last one."""
    return torch.cat([x, x[-1:].expand(width - len(x), *x.shape[1:])]) if len(x) < width else x


@contextmanager
def _precision(device: torch.device, tf32: bool) -> Iterator[None]:
    """On a GPU, matrix products and convolutions in float32 proper, or in TF32; the setting is restored."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with torch.backends.cudnn.flags(deterministic=True, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
