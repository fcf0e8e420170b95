"""Devices that hold a narrower model train as a really small one, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.narrow import _NarrowModel
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.flat import FlatModel
from flare.learning.job import Contrast, Job, LocalRule
from flare.learning.methods import HeteroFl, Round
from flare.learning.widths import Widths, narrowed, read_widths
from flare.rng import stream
from tests.tiny import job, tiny_data, tiny_module

ENGINES = {
    "reference": ReferenceEngine,
    "sequential": SequentialEngine,
    "batched": lambda module, data: BatchedEngine(module, data, device="cpu"),
}


class Divided(nn.Module):
    """A layer whose answer is divided by the rate: the authors' scaler behind it."""

    def __init__(self, layer: nn.Module, rate: float) -> None:
        super().__init__()
        self.layer, self.rate = layer, rate

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / self.rate


def trained_small(module: nn.Module, widths: Widths, rate: float, asked: Job, data: Dataset) -> tuple[Tensor, Tensor]:
    """The update of a small torch model with scalers, and its places in the whole one."""
    small = narrowed(module, widths, widths.at(rate))
    before = FlatModel(small).flatten()
    weighted = [i for i, layer in enumerate(small) if isinstance(layer, nn.Linear | nn.Conv2d)]
    scaled = nn.Sequential(*[Divided(each, rate) if i in weighted[:-1] else each for i, each in enumerate(small)])
    for batch in asked.batches:
        x, y = torch.from_numpy(data.train_x[batch]), torch.from_numpy(data.train_y[batch])
        gradients = torch.autograd.grad(functional.cross_entropy(scaled(x), y), list(small.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(small.parameters(), gradients, strict=True):
                parameter -= asked.rule.lr * gradient
    return FlatModel(small).flatten() - before, widths.numbers(widths.at(rate)) != 0.0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rate", [0.5, 0.3, 0.9, 0.1])
def test_a_device_trains_as_a_really_small_model_with_scalers(engine: str, rate: float) -> None:
    module, data = tiny_module("cnn"), tiny_data()
    widths = read_widths(module, (1, 8, 8))
    method, weights = HeteroFl((1.0, rate)).fitted(widths), FlatModel(module).flatten()
    now = Round(weights, np.array([1]), np.full(2, 4.0), local_lr=0.1, global_lr=1.0)
    (rule,) = method.rules({}, now, None)
    asked = job(weights, rule, seed=3)
    (update,) = ENGINES[engine](module, data).train([asked])
    moved, inside = trained_small(module, widths, rate, asked, data)
    assert update.delta.norm() > 0.1
    assert not update.delta[~inside].any()
    assert update.delta[inside].numpy() == pytest.approx(moved.numpy(), abs=2e-6)


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_vectors_of_a_narrower_model_are_laid_where_its_weights_are(kind: str) -> None:
    widths = read_widths(tiny_module(kind), (1, 8, 8))
    for rate in (1.0, 0.5, 0.1):
        outputs = widths.at(rate)
        places = widths.numbers(outputs).nonzero()[:, 0]
        stack = torch.arange(3.0 * (len(places) + 5)).view(3, -1)  # rows of a stack are longer than the model
        laid = widths.laid(outputs, stack[:, : len(places)])
        assert torch.equal(laid[:, places], stack[:, : len(places)])
        assert laid.count_nonzero() == stack[:, : len(places)].count_nonzero()  # zeros elsewhere


def test_narrower_models_keep_all_that_their_rules_have_in_the_batched_engine() -> None:
    module, data = tiny_module("cnn"), tiny_data()
    weights, widths = FlatModel(module).flatten(), read_widths(module, (1, 8, 8))
    draw = stream(0, "vectors")
    drift, previous = (torch.from_numpy(draw.standard_normal(len(weights)).astype(np.float32)) for _ in range(2))
    rules = [LocalRule(0.1, 3)]
    for rate, more in (
        (0.5, {}),
        (0.25, {"ascent": 0.1}),
        (0.5, {"mu": 0.3, "drift": 0.01 * drift}),
        (0.5, {"contrast": Contrast(0.3 * previous, mu=2.0)}),
    ):
        outputs = widths.at(rate)
        rules.append(LocalRule(0.1, 2, mask=widths.numbers(outputs, 1.0 / rate), widths=outputs, **more))
    jobs = [job(weights, rule, seed) for seed, rule in enumerate(rules)]
    mine, theirs = ENGINES["batched"](module, data).train(jobs), ReferenceEngine(module, data).train(jobs)
    for ours, wanted, rule in zip(mine, theirs, rules, strict=True):
        assert ours.delta.numpy() == pytest.approx(wanted.delta.numpy(), abs=2e-6)
        assert (ours.loss, ours.norm) == pytest.approx((wanted.loss, wanted.norm), rel=1e-5)
        assert rule.mask is None or not ours.delta[rule.mask == 0.0].any()


def test_rules_that_say_the_same_are_cut_once_and_others_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    module, data = tiny_module("cnn"), tiny_data()
    weights, widths = FlatModel(module).flatten(), read_widths(module, (1, 8, 8))
    halves = [widths.numbers(widths.at(0.5), scale) for scale in (2.0, 3.0)]
    said = [(0.1, 2, halves[0], 0.0, 0.0), (0.2, 2, halves[0], 0.0, 0.0), (0.1, 3, halves[0], 0.0, 0.0)]
    said += [(0.1, 2, halves[1], 0.0, 0.0), (0.1, 2, halves[0], 0.5, 0.0), (0.1, 2, halves[0], 0.0, 0.1)]
    rules = [
        LocalRule(lr, steps, mask=mask, widths=widths.at(0.5), mu=mu, ascent=ascent)
        for lr, steps, mask, mu, ascent in said * 2  # two of each
    ]
    starts = [weights, 1.1 * weights]
    jobs = [job(starts[i // len(said)], rule, i) for i, rule in enumerate(rules)]
    cut: list[LocalRule] = []
    cut_rule = _NarrowModel._cut_rule

    def counted(model: _NarrowModel, rule: LocalRule) -> LocalRule:
        cut.append(rule)
        return cut_rule(model, rule)

    monkeypatch.setattr(_NarrowModel, "_cut_rule", counted)
    mine, theirs = ENGINES["batched"](module, data).train(jobs), ReferenceEngine(module, data).train(jobs)
    assert len(cut) == len(said)
    for ours, wanted in zip(mine, theirs, strict=True):
        assert ours.delta.numpy() == pytest.approx(wanted.delta.numpy(), abs=2e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("own_kernels", [False, True])
def test_on_a_gpu_narrower_models_match_the_reference_and_have_their_bits_alone_and_in_company(
    own_kernels: bool,
) -> None:
    module, data = tiny_module("cnn"), tiny_data()
    weights, widths = FlatModel(module).flatten(), read_widths(module, (1, 8, 8))
    now = Round(weights, np.arange(4), np.array([3.0, 2.0, 4.0, 1.0]), local_lr=0.1, global_lr=1.0)
    rules = HeteroFl((1.0, 0.5, 0.25, 0.9)).fitted(widths).rules({}, now, None)
    jobs = [job(weights, rule, seed) for seed, rule in enumerate(rules)]
    engine, other = (BatchedEngine(module, data, device="cuda", own_kernels=own_kernels) for _ in range(2))
    mine, theirs = engine.train(jobs * 3), ReferenceEngine(module, data).train(jobs) * 3
    for ours, wanted in zip(mine, theirs, strict=True):
        assert float((ours.delta.cpu() - wanted.delta).norm() / wanted.delta.norm()) < 1e-4
        assert ours.loss == pytest.approx(wanted.loss, rel=1e-4)
    if own_kernels:
        alone = [other.train([each])[0] for each in jobs] * 3
        assert all(torch.equal(ours.delta, wanted.delta) for ours, wanted in zip(mine, alone, strict=True))
        assert all(each._kernels is not None for each in (engine, other))  # they did not fall back


def test_a_batched_engine_refuses_widths_that_the_mask_does_not_mark() -> None:
    module, data = tiny_module("mlp"), tiny_data()
    weights, widths = FlatModel(module).flatten(), read_widths(module, (1, 8, 8))
    engine = ENGINES["batched"](module, data)
    for outputs, words in (((4, 3), "does not mark"), ((5,), "the model's own are"), ((5, 2), "the model's own are")):
        rule = LocalRule(0.1, 1, mask=widths.numbers((5, 3)), widths=outputs)
        with pytest.raises(ValueError, match=words):
            engine.train([job(weights, rule, 0)])
    with pytest.raises(ValueError, match="widths of a narrower model and no mask"):
        engine.train([job(weights, LocalRule(0.1, 1, widths=(5, 3)), 0)])
