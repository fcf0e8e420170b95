"""The batched engine gives the reference's answers, whatever the company, the chunk and the memory."""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.kernel_program import TornError
from flare.learning.engine.operations import Plain, all_made
from flare.learning.engine.programs import Program, VmapProgram, make_program
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.stack import Descent
from flare.learning.engine.tensor_data import TensorData
from flare.learning.flat import FlatModel
from flare.learning.job import GradientJob, Job, LocalRule, Update
from flare.learning.models import make_model
from flare.rng import stream, torch_stream
from tests import ready_python, tiny

ROOT = Path(__file__).resolve().parents[2]
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)]
MODELS = {"logistic": (12,), "mlp": (1, 4, 4), "mnist-cnn": (1, 28, 28), "cifar-cnn": (3, 32, 32)}


def random_data(shape: tuple[int, ...], samples: int = 60, test_samples: int = 30) -> Dataset:
    draw = stream(1, "data")
    return Dataset(
        name="random",
        train_x=draw.standard_normal((samples, *shape), dtype=np.float32),
        train_y=draw.integers(10, size=samples),
        test_x=draw.standard_normal((test_samples, *shape), dtype=np.float32),
        test_y=draw.integers(10, size=test_samples),
        num_classes=10,
    )


class TwoPaths(nn.Module):
    """No chain of layers: a layer that is used twice, a sum of two paths, a parameter of no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.outer = nn.Linear(12, 10)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.constant = nn.Parameter(torch.ones(12), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(torch.tanh(self.inner(x))))
        answer: Tensor = self.outer(self.scale * hidden + x + self.constant)
        return answer


def two_paths() -> nn.Module:
    with torch_stream(3, "module"):
        return TwoPaths()


def small(**options: object) -> tuple[BatchedEngine, ReferenceEngine, FlatModel]:
    """Engines on a multilayer perceptron of a few hundred weights."""
    data, module = random_data((6,)), make_model(lambda _, __: _perceptron(), (6,), 10, seed=2)
    return BatchedEngine(module, data, device="cpu", **options), ReferenceEngine(module, data), FlatModel(module)  # type: ignore[arg-type]


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 10))


def every_kind_of_job(model: FlatModel, num_samples: int, *, batch: int = 5) -> list[Job]:
    """FedAvg, FLARE's scaled rate, FedProx, SCAFFOLD's drift and all together; unequal steps, two runs' weights."""
    draw = stream(4, "jobs")
    starts = [model.flatten(), model.flatten() * 1.1]
    drift = torch.from_numpy(draw.standard_normal(model.num_weights, dtype=np.float32)) * 0.01
    rules = [
        LocalRule(lr=0.1, steps=1),
        LocalRule(lr=0.1 * 4 / 3, steps=3),
        LocalRule(lr=0.05, steps=4, mu=0.5),
        LocalRule(lr=0.05, steps=2, drift=drift),
        LocalRule(lr=0.02, steps=3, mu=0.3, drift=-drift),
    ]
    return [
        Job(starts[i % 2], rule, draw.integers(num_samples, size=(rule.steps, batch))) for i, rule in enumerate(rules)
    ]


def apart(mine: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[float]:
    pairs = zip(mine, wanted, strict=True)
    return [float((a.cpu() - b.cpu()).norm() / b.cpu().norm()) for a, b in pairs]


def deltas(updates: Sequence[Update]) -> list[Tensor]:
    return [update.delta for update in updates]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_every_rule_matches_the_reference(name: str, device: str) -> None:
    data = random_data(MODELS[name])
    module = make_model(name, MODELS[name], 10, seed=0)
    jobs = every_kind_of_job(FlatModel(module), 60)
    engine = BatchedEngine(module, data, device=device, own_kernels=False)
    assert isinstance(engine._program, LayerProgram)
    mine, wanted = engine.train(jobs), ReferenceEngine(module, data).train(jobs)
    errors = apart(deltas(mine), deltas(wanted))
    assert statistics.median(errors) < 1e-5
    # Where two places of a window are equal but for rounding, an engine may take either for the maximum.
    assert max(errors) < (5e-2 if name.endswith("cnn") else 1e-5)
    assert [u.loss for u in mine] == pytest.approx([u.loss for u in wanted], rel=1e-3 if name.endswith("cnn") else 1e-5)


@pytest.mark.parametrize("extra", ["nothing", "drift", "starts", "outside"])
def test_gradients_go_onto_weights_where_no_rule_adds_anything_to_them(extra: str) -> None:
    draw = torch.Generator().manual_seed(1)
    jobs, sizes = 3, [6, 4 * 5, 2]

    def numbers(*shape: int) -> Tensor:
        return torch.randn(jobs, *shape, generator=draw)

    stack, dy, x = numbers(64), numbers(4, 7), numbers(5, 7)
    given = {"drift": numbers(28), "starts": numbers(64), "outside": numbers(28) > 0.0}
    extras = [given[name] if name == extra else None for name in ("starts", "drift", "outside")]
    descent = Descent(sizes, numbers(1), numbers(1), *extras)
    first, last = numbers(6), numbers(2)
    product = torch.stack([each @ other.T for each, other in zip(dy, x, strict=True)])
    by_numbers = stack.clone()
    descent(by_numbers[:2], [first[:2], product[:2], last[:2]])
    assert (by_numbers[:2, 6:26] != stack[:2, 6:26]).any()
    assert torch.equal(by_numbers[2], stack[2])
    assert torch.equal(by_numbers[:, 28:], stack[:, 28:])
    on_the_way = stack.clone()
    onto = descent.onto(on_the_way[:2])
    assert (onto is None) == (extra != "nothing")
    if onto is not None:
        target = onto.weights[:, 6:26].view(2, 4, 5)
        dx, gradient = Plain().dense_back(target, dy[:2], x[:2], onto._replace(weights=target), to_input=True)
        torch.testing.assert_close(dx, stack[:2, 6:26].view(2, 4, 5).transpose(1, 2) @ dy[:2])
        descent(on_the_way[:2], [first[:2], gradient, last[:2]])
        torch.testing.assert_close(on_the_way, by_numbers)


class FailsLate:
    """A program whose second gradient fails when parts of it have gone onto the weights."""

    def __init__(self, program: Program) -> None:
        self._program, self.asked = program, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def gradient(self, *given: Any) -> Any:
        self.asked += 1
        answer = self._program.gradient(*given)
        if self.asked == 2:
            assert given[-1] is not None
            raise TornError("weights were changed in part: says the test")
        return answer


def test_where_a_pass_fails_after_it_has_changed_weights_all_steps_are_taken_anew() -> None:
    module, data = tiny.tiny_module("mlp"), tiny.tiny_data()
    weights = FlatModel(module).flatten()
    jobs = [tiny.job(weights, LocalRule(0.1, steps), seed) for seed, steps in enumerate((4, 3, 4))]
    wanted = BatchedEngine(module, data, device="cpu").train(jobs)
    engine = BatchedEngine(module, data, device="cpu")
    engine._kernels = failing = FailsLate(engine._program)
    with pytest.warns(UserWarning, match="our own kernels could not be used.*says the test"):
        got = engine.train(jobs)
    assert (failing.asked, engine._kernels) == (2, None)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine.delta, theirs.delta)
        assert mine.loss == theirs.loss


@pytest.mark.parametrize("device", DEVICES)
def test_a_module_that_is_no_chain_of_layers_goes_through_vmap(device: str) -> None:
    data, module = random_data((12,)), two_paths()
    jobs = every_kind_of_job(FlatModel(module), 60)
    engine = BatchedEngine(module, data, device=device, own_kernels=False)
    assert isinstance(engine._program, VmapProgram)
    reference = ReferenceEngine(module, data)
    mine, wanted = engine.train(jobs), reference.train(jobs)
    assert max(apart(deltas(mine), deltas(wanted))) < 1e-5
    assert [u.loss for u in mine] == pytest.approx([u.loss for u in wanted], rel=1e-5)
    points = [GradientJob(jobs[0].start, np.arange(7)), GradientJob(jobs[1].start, np.arange(40))]
    assert max(apart(engine.gradients(points), reference.gradients(points))) < 1e-5
    assert engine.evaluate([jobs[1].start])[0].loss == pytest.approx(reference.evaluate([jobs[1].start])[0].loss)


SQUASH = nn.Tanh()
CHAINS = {
    "a layer without weights used twice": (
        nn.Sequential(nn.Flatten(), nn.Linear(8, 5), SQUASH, nn.Linear(5, 5), SQUASH),
        (2, 4),
    ),
    "stride and padding": (
        nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 2), bias=False), nn.Flatten()),
        (2, 10, 13),
    ),
    "edges left over by the maximum": (
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.Flatten()),
        (1, 7, 9),
    ),
    "mean, tanh, nested": (
        nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh()), nn.Identity(), nn.AvgPool2d((2, 3)), nn.Flatten()),
        (1, 7, 9),
    ),
    "maximum before and after": (
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.MaxPool2d((1, 2)), nn.ReLU(), nn.Flatten()),
        (2, 8, 8),
    ),
    "hidden layers without bias": (nn.Sequential(nn.Flatten(), nn.Linear(8, 5, bias=False), nn.ReLU()), (2, 4)),
}


@pytest.mark.parametrize("whole_numbers", [False, True], ids=["generic", "many ties"])
@pytest.mark.parametrize("chain", CHAINS)
def test_own_layers_are_exact_in_double_precision(chain: str, whole_numbers: bool) -> None:
    """Against autograd. Whole numbers make ties of maxima and zeros of ReLU, on which both must decide alike."""
    body, shape = CHAINS[chain]
    features = body(torch.zeros(1, *shape)).shape[1]
    module = nn.Sequential(body, nn.Linear(features, 4))
    model, draw, jobs, samples = FlatModel(module), stream(5, chain), 3, 6
    program = LayerProgram(model, shape)

    def values(*size: int) -> Tensor:
        drawn = draw.integers(-2, 3, size=size) if whole_numbers else draw.standard_normal(size)
        return torch.from_numpy(drawn).double()

    weights, x = values(jobs, model.num_weights + 3), values(jobs, samples, *shape)  # rows may be longer than needed
    parameters = list(model.views(weights[:, : model.num_weights]).values())
    labels = torch.from_numpy(draw.integers(4, size=(jobs, samples)))
    shares = torch.full((jobs, samples), 1.0 / samples, dtype=torch.float64)
    losses, gradients = program.gradient(weights, program.arrange(x), labels, shares)
    numbers = all_made(gradients)
    for job in range(jobs):
        own = [each[job].clone().requires_grad_() for each in parameters]
        logits = functional_call(module, dict(zip(model.names, own, strict=True)), (x[job],))
        loss = functional.cross_entropy(logits, labels[job])
        assert losses[job].item() == pytest.approx(loss.item(), rel=1e-12)
        for mine, wanted in zip(numbers, torch.autograd.grad(loss, own), strict=True):
            torch.testing.assert_close(mine[job].reshape(wanted.shape), wanted, rtol=1e-10, atol=1e-12)


def test_the_weights_of_one_job_lie_as_those_of_many() -> None:
    """Kernels are compiled for where they lie."""
    model = FlatModel(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)))
    program, stack = LayerProgram(model, (2, 4, 4)), torch.arange(3.0 * 192).reshape(3, 192)
    many, one = program._parameters(stack), program._parameters(stack[1:2])
    for place, wanted in enumerate(model.views(stack[:, : model.num_weights]).values()):
        ours, alone = many[place], one[place]
        assert ours is not None
        assert alone is not None
        assert torch.equal(ours.reshape(wanted.shape), wanted)
        assert torch.equal(alone[0], ours[1])
        assert alone.stride() == ours.stride()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)),
        nn.Sequential(nn.Conv2d(2, 4, 3, dilation=1, padding="same"), nn.Flatten(), nn.Linear(64, 3)),
        nn.Sequential(nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(18, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(24, 3)),
        nn.Sequential(nn.Flatten(), nn.GELU(), nn.Linear(32, 3)),
    ],
)
def test_layers_that_are_not_known_leave_the_chain_to_vmap(module: nn.Module) -> None:
    assert isinstance(make_program(FlatModel(module), torch.zeros(2, 4, 4)), VmapProgram)


def test_a_layer_that_stands_twice_in_a_chain_leaves_it_to_vmap() -> None:
    same = nn.Linear(6, 6)
    assert isinstance(make_program(FlatModel(nn.Sequential(same, nn.Tanh(), same)), torch.zeros(6)), VmapProgram)


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_the_chunk_does_not_matter(chunk: int) -> None:
    engine, reference, model = small(chunk=chunk)
    jobs = every_kind_of_job(model, 60)
    assert max(apart(deltas(engine.train(jobs)), deltas(reference.train(jobs)))) < 1e-5
    points = [GradientJob(job.start, np.arange(3 + 4 * i)) for i, job in enumerate(jobs)]
    assert max(apart(engine.gradients(points), reference.gradients(points))) < 1e-5
    assert engine.losses(points) == pytest.approx(reference.losses(points), rel=1e-6)
    scores = zip(
        engine.evaluate([job.start for job in jobs]), reference.evaluate([job.start for job in jobs]), strict=True
    )
    for mine, wanted in scores:
        assert mine.accuracy == wanted.accuracy
        assert mine.loss == pytest.approx(wanted.loss, rel=1e-6)


def test_batches_of_different_sizes_train_together() -> None:
    """Also sizes that do not fill the width: what fills up the batch must not count."""
    engine, reference, model = small()
    draw = stream(6, "jobs")
    sizes = [1, 2, 3, 4, 5, 17, 1, 40]
    jobs = [Job(model.flatten(), LocalRule(0.1, 2), draw.integers(60, size=(2, size))) for size in sizes]
    mine, wanted = engine.train(jobs), reference.train(jobs)
    assert max(apart(deltas(mine), deltas(wanted))) < 1e-5
    assert [u.loss for u in mine] == pytest.approx([u.loss for u in wanted], rel=1e-5)


def test_gradients_and_losses_over_more_samples_than_pass_at_once() -> None:
    engine, reference, model = small()
    draw = stream(7, "samples")
    points = [GradientJob(model.flatten(), draw.integers(60, size=size)) for size in (450, 3, 200, 201)]
    assert max(apart(engine.gradients(points), reference.gradients(points))) < 1e-5
    assert engine.losses(points) == pytest.approx(reference.losses(points), rel=1e-6)


def test_tests_over_more_samples_than_pass_at_once() -> None:
    data, module = random_data((6,), test_samples=430), _perceptron()
    weights = [FlatModel(module).flatten(), -FlatModel(module).flatten()]
    mine = BatchedEngine(module, data, device="cpu").evaluate(weights)
    for score, wanted in zip(mine, ReferenceEngine(module, data).evaluate(weights), strict=True):
        assert score.accuracy == wanted.accuracy
        assert score.loss == pytest.approx(wanted.loss, rel=1e-6)


def test_only_devices_still_at_work_are_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, model = small()
    rows, gradient = [], engine._program.gradient
    jobs = [replace(job, rule=LocalRule(0.1, job.rule.steps)) for job in every_kind_of_job(model, 60)]

    def counted(weights: Tensor, *arguments: Tensor) -> tuple[Tensor, list[Tensor]]:
        rows.append(len(weights))
        return gradient(weights, *arguments)

    monkeypatch.setattr(engine._program, "gradient", counted)
    engine.train(jobs)
    assert rows == [5, 4, 3, 1]  # of steps 1, 3, 4, 2, 3


def run_out_of_memory_above(
    engine: BatchedEngine, max_jobs: int, monkeypatch: pytest.MonkeyPatch, *, after_calls: int = 0
) -> list[int]:
    """Let the engine's passes fail for more than so many jobs; the list fills with the sizes that failed."""
    failed: list[int] = []
    gradient, calls = engine._program.gradient, iter(range(10_000))

    def scarce(weights: Tensor, *arguments: Tensor) -> tuple[Tensor, list[Tensor]]:
        if len(weights) > max_jobs and next(calls) >= after_calls:
            failed.append(len(weights))
            raise torch.cuda.OutOfMemoryError("out of memory, says the test")
        return gradient(weights, *arguments)

    monkeypatch.setattr(engine._program, "gradient", scarce)
    return failed


@pytest.mark.parametrize("after_calls", [0, 2], ids=["at once", "in the third step"])
def test_where_memory_runs_out_the_chunk_is_halved(monkeypatch: pytest.MonkeyPatch, after_calls: int) -> None:
    engine, reference, model = small()
    jobs = [job for _ in range(9) for job in every_kind_of_job(model, 60)]
    failed = run_out_of_memory_above(engine, 4, monkeypatch, after_calls=after_calls)
    assert max(apart(deltas(engine.train(jobs)), deltas(reference.train(jobs)))) < 1e-5
    assert failed
    failed.clear()
    engine.train(jobs)
    assert not failed  # the engine remembers what fitted


def test_a_single_job_that_does_not_fit_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, model = small()
    run_out_of_memory_above(engine, 0, monkeypatch)
    with pytest.raises(MemoryError, match="a single job with batches of 8 samples does not fit"):
        engine.train(every_kind_of_job(model, 60))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chain", [True, False], ids=["own layers", "vmap"])
def test_a_job_that_diverges_leaves_its_neighbours_alone(chain: bool, device: str) -> None:
    module = _perceptron() if chain else two_paths()
    data = random_data((6,) if chain else (12,))
    engine, model = BatchedEngine(module, data, device=device, own_kernels=False), FlatModel(module)
    jobs = every_kind_of_job(model, 60)
    wild = Job(torch.full_like(jobs[1].start, torch.nan), jobs[1].rule, jobs[1].batches)
    too_fast = Job(jobs[2].start, LocalRule(lr=1e38, steps=4, mu=0.5), jobs[2].batches)
    calm, mixed = engine.train(jobs), engine.train([jobs[0], wild, too_fast, *jobs[3:]])
    for i in (0, 3, 4):
        assert torch.equal(mixed[i].delta, calm[i].delta)
        assert mixed[i].loss == calm[i].loss
    assert not mixed[1].delta.isfinite().any()
    assert not mixed[2].delta.isfinite().all()
    mixed_scores, calm_scores = engine.evaluate([wild.start, jobs[0].start]), engine.evaluate([jobs[0].start] * 2)
    assert mixed_scores[1] == calm_scores[1]
    assert np.isnan(mixed_scores[0].loss)


def test_nan_in_a_window_is_its_maximum() -> None:
    module = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 10))
    x = torch.arange(16.0).reshape(1, 1, 1, 4, 4)
    x[..., 0, 1] = x[..., 3, 3] = torch.nan
    program = LayerProgram(FlatModel(module), (1, 4, 4))
    pooled, _ = program.layers[0].forward(None, program.arrange(x))
    torch.testing.assert_close(pooled[0, :, :, :, 0], functional.max_pool2d(x[0, 0], 2), equal_nan=True)


def test_mu_of_zero_is_plain_descent_to_the_last_bit_also_beside_a_mu() -> None:
    engine, _, model = small()
    plain = every_kind_of_job(model, 60)[0]
    pulled = Job(plain.start, LocalRule(lr=0.1, steps=1, mu=0.4, drift=torch.ones(model.num_weights)), plain.batches)
    together, alone = engine.train([plain, pulled])[0], engine.train([plain, plain])[0]
    assert torch.equal(together.delta, alone.delta)


def test_jobs_are_not_written_to_and_the_module_is_left_alone() -> None:
    module = _perceptron()
    engine, model = BatchedEngine(module, random_data((6,)), device="cpu"), FlatModel(module)
    before = model.flatten()
    jobs = every_kind_of_job(model, 60)
    copies = [(job.start.clone(), job.batches.copy(), job.rule.drift) for job in jobs]
    engine.train(jobs)
    for job, (start, batches, drift) in zip(jobs, copies, strict=True):
        assert torch.equal(job.start, start)
        assert np.array_equal(job.batches, batches)
        assert job.rule.drift is drift
    assert torch.equal(model.flatten(), before)
    assert engine.train([]) == [] == engine.gradients([]) == engine.losses([]) == engine.evaluate([])


def test_the_width_of_a_batch_wastes_little() -> None:
    program = make_program(FlatModel(_perceptron()), torch.zeros(6))
    for size in range(1, 2000):
        assert program.width(size) % 4 == 0
        assert size <= program.width(size) <= max(size + 3, 1.25 * size)
    assert program.width(40) == 40


def test_kernels_that_fail_cost_speed_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, reference, model = small()

    class Broken:
        def width(self, samples: int) -> int:
            return samples

        def batch(self, data: TensorData, indices: Tensor) -> tuple[Tensor, Tensor]:
            return engine._program.batch(data, indices)

        def gradient(self, *_: object) -> None:
            raise RuntimeError("no kernels, says the test")

    monkeypatch.setattr(engine, "_kernels", Broken())
    jobs = every_kind_of_job(model, 60) * 2
    with pytest.warns(UserWarning, match="no kernels, says the test"):
        mine = engine.train(jobs)
    assert max(apart(deltas(mine), deltas(reference.train(jobs)))) < 1e-5


def test_where_kernels_cannot_even_be_imported_pytorch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a Triton that is too old."""

    def failing(*_: object, **__: object) -> None:
        raise TypeError("says the test")

    monkeypatch.setattr("flare.learning.engine.batched.KernelProgram", failing)
    module, data = tiny.tiny_module("cnn"), tiny.tiny_data()
    with pytest.warns(UserWarning, match="our own kernels could not be used.*says the test"):
        engine = BatchedEngine(module, data, device="cpu", own_kernels=True)
    own = tiny.job(FlatModel(module).flatten(), LocalRule(0.1, 2), 0)
    assert max(apart(deltas(engine.train([own])), deltas(ReferenceEngine(module, data).train([own])))) < 1e-5


def test_the_maximum_of_a_window_of_many_places_is_learned_from() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(18), nn.Flatten(), nn.Linear(2, 10))
    data = random_data((1, 20, 20))
    own = tiny.job(FlatModel(module).flatten(), LocalRule(0.1, 2), 0)
    engine, reference = BatchedEngine(module, data, device="cpu"), ReferenceEngine(module, data)
    assert max(apart(deltas(engine.train([own])), deltas(reference.train([own])))) < 1e-5


def test_a_job_is_refused_also_where_others_share_its_start_and_rule() -> None:
    module, data = tiny.tiny_module("mlp"), tiny.tiny_data()
    start, rule, uphill = FlatModel(module).flatten(), LocalRule(0.1, 2), LocalRule(0.1, 2, ascent=0.1)
    sound = [tiny.job(start, each, 0) for each in (rule, uphill)]
    engine = BatchedEngine(module, data, device="cpu")
    for job, words in (
        (replace(sound[0], batches=sound[0].batches[:1]), "asks for 2 steps and has 1 batches"),
        (replace(sound[1], batches=sound[1].batches[:1]), "asks for 2 steps and has 1 batches"),
        (replace(sound[0], start=start[1:]), r"starts from weights of shape \(682,\)"),
        (replace(sound[1], rule=replace(uphill, ascent=-1.0)), "ascent of a job's rule is -1.0"),
        (replace(sound[1], rule=replace(rule, subtract_own_gradient=True)), "still says subtract_own_gradient"),
        (replace(sound[0], batches=sound[0].batches[:, 0]), r"job 2 has batches of shape \(2,\)"),
        (replace(sound[0], batches=np.array([[1], [60]])), "asks for training sample 60: there are 0 to 59"),
    ):
        with pytest.raises(ValueError, match=words):
            engine.train([*sound, job])


def test_bad_input_is_refused_with_a_word_on_it() -> None:
    engine, _, model = small()
    start, batches = model.flatten(), np.zeros((2, 4), dtype=np.int64)
    with pytest.raises(ValueError, match="chunk is 0"):
        small(chunk=0)
    with pytest.raises(ValueError, match="3 steps and has 2 batches"):
        engine.train([Job(start, LocalRule(0.1, 3), batches)])
    with pytest.raises(ValueError, match=r"job 0 has batches of shape \(2, 0\)"):
        engine.train([Job(start, LocalRule(0.1, 2), batches[:, :0])])
    with pytest.raises(ValueError, match="training sample 60: there are 0 to 59"):
        engine.train([Job(start, LocalRule(0.1, 2), batches + 60)])
    with pytest.raises(ValueError, match="training sample -1"):
        engine.gradients([GradientJob(start, np.array([3, -1]))])
    with pytest.raises(ValueError, match="gradient job 0 has no samples"):
        engine.gradients([GradientJob(start, np.array([], dtype=np.int64))])
    with pytest.raises(ValueError, match=r"weights have the shape \(1,\)"):
        engine.evaluate([start[:1]])


@NEEDS_CUDA
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("own_kernels", [False, True])
def test_on_a_gpu_two_calls_give_the_same_bits_with_own_kernels_or_without(own_kernels: bool) -> None:
    data, module = random_data(MODELS["mnist-cnn"]), make_model("mnist-cnn", MODELS["mnist-cnn"], 10, seed=0)
    engine = BatchedEngine(module, data, device="cuda", own_kernels=own_kernels)
    jobs = every_kind_of_job(FlatModel(module), 60) * 4
    precision = torch.get_float32_matmul_precision()
    first, second = engine.train(jobs), engine.train(jobs)
    assert torch.get_float32_matmul_precision() == precision
    assert (engine._kernels is not None) == own_kernels  # it did not fall back
    assert all(torch.equal(a.delta, b.delta) and a.loss == b.loss for a, b in zip(first, second, strict=True))
    wanted = ReferenceEngine(module, data).train(jobs)
    assert statistics.median(apart(deltas(first), deltas(wanted))) < 1e-5


@NEEDS_CUDA
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["mlp", "mnist-cnn"])
def test_on_a_gpu_own_kernels_give_the_same_bits_alone_and_in_company(name: str) -> None:
    data, module = random_data(MODELS[name]), make_model(name, MODELS[name], 10, seed=0)
    engine, other = (BatchedEngine(module, data, device="cuda", own_kernels=True) for _ in range(2))
    jobs = every_kind_of_job(FlatModel(module), 60)
    points = [GradientJob(job.start, np.arange(20)) for job in jobs]
    alone = [other.train([job])[0] for job in jobs]
    for mine, wanted in zip(engine.train(jobs * 7), alone * 7, strict=True):
        assert torch.equal(mine.delta, wanted.delta)
        assert mine.loss == wanted.loss
    for got, point in zip(engine.gradients(points), points, strict=True):
        assert torch.equal(got, other.gradients([point])[0])
    assert engine.losses(points) == [other.losses([point])[0] for point in points]
    weights = [job.start for job in jobs]
    assert engine.evaluate(weights) == [other.evaluate([each])[0] for each in weights]
    assert engine._kernels is not None  # it did not fall back
    assert other._kernels is not None


@NEEDS_CUDA
def test_on_a_gpu_nobody_waits_before_all_jobs_are_under_way() -> None:
    data, module = random_data(MODELS["mnist-cnn"]), make_model("mnist-cnn", MODELS["mnist-cnn"], 10, seed=0)
    engine = BatchedEngine(module, data, device="cuda", chunk=5)
    jobs = [replace(job, start=job.start.cuda()) for job in every_kind_of_job(FlatModel(module), 60) * 3]
    jobs = [replace(job, rule=job.rule.on(torch.device("cuda"))) for job in jobs]
    wanted = engine.train(jobs)  # compiles and records what there is
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that it may miss some
        torch.cuda.set_sync_debug_mode("error")
    try:
        launched = engine.launch(jobs)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    updates = launched.read()
    assert all(torch.equal(a.delta, b.delta) and a.loss == b.loss for a, b in zip(updates, wanted, strict=True))


@NEEDS_CUDA
@pytest.mark.parametrize(("rows", "columns", "depth"), [(16, 16, 16), (33, 70, 41), (572, 40, 512), (20, 30, 5000)])
@pytest.mark.parametrize("across", [False, True], ids=["as it lies", "transposed"])
def test_on_a_gpu_our_products_have_the_accuracy_of_float32(rows: int, columns: int, depth: int, across: bool) -> None:
    kernels = pytest.importorskip("flare.learning.engine.kernels", reason="Triton is not installed")
    draw = stream(8, "product", rows)
    a = torch.from_numpy(draw.standard_normal((3, rows, depth), dtype=np.float32)).cuda()
    b = torch.from_numpy(draw.standard_normal((3, depth, columns), dtype=np.float32)).cuda()
    if across:
        a, b = a.transpose(1, 2).contiguous().transpose(1, 2), b.transpose(1, 2).contiguous().transpose(1, 2)
    exact = torch.bmm(a.double(), b.double())
    assert float((kernels.TensorCores().multiply(a, b) - exact).norm() / exact.norm()) < 2e-6


@NEEDS_CUDA
@pytest.mark.parametrize("shape", [(1, 28, 28, 40), (16, 12, 12, 40), (3, 9, 8, 4)])
def test_on_a_gpu_our_windows_have_the_accuracy_of_float32(shape: tuple[int, ...]) -> None:
    kernels = pytest.importorskip("flare.learning.engine.kernels", reason="Triton is not installed")
    draw, kernel, step = stream(9, "windows", shape[0]), (5, 4), (1, 1)
    places = (shape[1] - 4) * (shape[2] - 3) * shape[3]
    x, weight, dy = (
        torch.from_numpy(draw.standard_normal((2, *size), dtype=np.float32)).cuda()
        for size in (shape, (20, shape[0] * 20), (20, places))
    )
    ours, plain = kernels.TensorCores(), Plain()
    exact = plain.multiply_windows(weight.double(), x.double(), kernel, step)
    assert float((ours.multiply_windows(weight, x, kernel, step) - exact).norm() / exact.norm()) < 2e-6
    exact = plain.window_gradient(dy.double(), x.double(), kernel, step)
    assert float((ours.window_gradient(dy, x, kernel, step) - exact).norm() / exact.norm()) < 2e-6


def test_the_benchmark_writes_numbers_and_a_page(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/engine.py", "--quick", "--models", "mnist-cnn", "--out", str(tmp_path)]
    done = ready_python.run(command, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "engine.json").read_text())
    assert not results["errors"]
    assert {row["variant"] for row in results["rows"]} == {"grouped", "plain"}
    assert all(row["ms_per_device_step"] > 0.0 for row in results["rows"])
    assert results["deviation"]["mnist-cnn, plain"]["median"] < 1e-5
    assert "| against grouped |" in (tmp_path / "engine.md").read_text()
