"""What a rule may say beyond plain steps: an ascent, a mask, a contrast. Numbers derived here, in every engine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.operations import Plain, all_made
from flare.learning.engine.programs import VmapProgram
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.engine.terms import Anchors, contrast_loss
from flare.learning.features import with_features
from flare.learning.flat import FlatModel
from flare.learning.job import Contrast, Job, LocalRule
from flare.rng import stream, torch_stream
from tests.tiny import MODULES, job, tiny_data, tiny_module

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
ENGINES = {
    "reference": ReferenceEngine,
    "sequential": SequentialEngine,
    "batched": lambda module, data: BatchedEngine(module, data, device="cpu"),
}
every_engine = pytest.mark.parametrize("engine", list(ENGINES))


def numbers(size: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(scale * stream(seed, "numbers").standard_normal(size).astype(np.float32))


def half_of(size: int) -> Tensor:
    return torch.arange(size) % 2 == 0


def every_kind_of_rule(size: int) -> list[LocalRule]:
    """Each of the three alone, all together with drift and pull, and two plain ones; unequal steps."""
    contrast = Contrast(numbers(size, 1, 0.3), mu=2.0, temperature=0.5)
    drift = numbers(size, 2, 0.01)
    return [
        LocalRule(0.1, 3),
        LocalRule(0.1, 2, ascent=0.3),
        LocalRule(0.1, 4, mask=half_of(size)),
        LocalRule(0.1, 3, contrast=contrast),
        LocalRule(0.05, 3, 0.2, drift, ascent=0.1, mask=1.5 * half_of(size), contrast=contrast),
        LocalRule(0.05, 2, 0.2, drift),
        LocalRule(0.2, 4, ascent=0.05),
        LocalRule(0.1, 1, contrast=replace(contrast, mu=0.5, temperature=2.0)),
    ]


def jobs_of(weights: Tensor) -> list[Job]:
    return [job(weights, rule, seed) for seed, rule in enumerate(every_kind_of_rule(len(weights)))]


def bits(update):
    return update.delta.numpy().tobytes(), update.loss, update.squared_loss


def apart(mine, theirs) -> float:
    return float((mine.delta - theirs.delta).norm() / theirs.delta.norm())


# ---- numbers derived here, in float64, on a network with four hidden units


class ByHand:
    """tanh(x W1^T + b1) W2^T + b2 with W1 (4, 3), W2 (2, 4), written out; weights are one vector."""

    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    size = 12 + 4 + 8 + 2
    start = numbers(size, 5, 0.7)
    data = Dataset(
        "by hand", numbers(60, 6).reshape(20, 3).numpy(), np.arange(20) % 2, np.zeros((0, 3)), np.zeros(0), 2
    )

    @staticmethod
    def features(w: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ w[:12].reshape(4, 3).T + w[12:16])

    @classmethod
    def cross_entropy(cls, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        logits = cls.features(w, x) @ w[16:24].reshape(2, 4).T + w[24:]
        chance = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
        return -torch.log(chance[torch.arange(len(y)), y]).mean()

    @classmethod
    def contrast(cls, w: Tensor, start: Tensor, rule: LocalRule, x: Tensor) -> Tensor:
        def e_to_cosine(a: Tensor, b: Tensor) -> Tensor:
            cosine = (a * b).sum(1) / ((a * a).sum(1).sqrt() * (b * b).sum(1).sqrt())
            return torch.exp(cosine / rule.contrast.temperature)

        z, z_start, z_previous = (cls.features(each, x) for each in (w, start, rule.contrast.previous.double()))
        near, far = e_to_cosine(z, z_start), e_to_cosine(z, z_previous)
        return -torch.log(near / (near + far)).mean()

    @classmethod
    def train(cls, asked: Job) -> tuple[Tensor, list[float]]:
        """The delta and the losses of the steps."""
        rule, start = asked.rule, asked.start.double()
        mask = torch.ones(cls.size).double() if rule.mask is None else rule.mask.double()
        w, losses = start, []
        for batch in asked.batches:
            x, y = torch.from_numpy(cls.data.train_x[batch]).double(), torch.from_numpy(cls.data.train_y[batch])

            def gradient(at: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
                at = at.detach().requires_grad_()
                total = cls.cross_entropy(mask * at, x, y)
                if rule.contrast is not None:
                    masked = replace(rule, contrast=replace(rule.contrast, previous=mask * rule.contrast.previous))
                    total = total + rule.contrast.mu * cls.contrast(mask * at, mask * start, masked, x)
                return torch.autograd.grad(total, at)[0]

            losses.append(cls.cross_entropy(mask * w, x, y).item())
            g = gradient(w)
            if rule.ascent:
                g = gradient(w + rule.ascent * g / g.square().sum().sqrt())
            step = g + rule.mu * (w - start) + (0.0 if rule.drift is None else rule.drift.double())
            w = w - rule.lr * step * (mask != 0)
        return w - start, losses


@every_engine
@pytest.mark.parametrize("which", range(8))
def test_every_kind_of_rule_gives_the_numbers_derived_by_hand(engine, which):
    rule = every_kind_of_rule(ByHand.size)[which]
    asked = job(ByHand.start, rule, seed=which, num_train=20)
    (update,) = ENGINES[engine](ByHand.module, ByHand.data).train([asked])
    delta, losses = ByHand.train(asked)
    assert update.delta.numpy() == pytest.approx(delta.numpy(), abs=1e-6)
    assert update.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert update.squared_loss == pytest.approx(np.mean(np.square(losses)), rel=1e-6)


def test_the_terms_are_large_enough_to_be_seen_in_these_numbers():
    rules = every_kind_of_rule(ByHand.size)
    for rule in (rules[1], rules[2], rules[3]):
        bare = LocalRule(rule.lr, rule.steps)
        with_term, without = (ByHand.train(job(ByHand.start, each, 0, num_train=20))[0] for each in (rule, bare))
        assert float((with_term - without).norm()) > 1e-3


# ---- a mask is a smaller network


class Divide(nn.Module):
    """HeteroFL's scaler: activations of a part of the channels, divided by that part while it trains."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return x / self.rate


def wide_and_small(rate: float) -> tuple[nn.Sequential, nn.Sequential, Tensor]:
    """A network, that of the leading share `rate` of its channels with scalers, and the mask that says the same."""

    def build(share: float, scaler: nn.Module) -> nn.Sequential:
        channels, hidden = int(4 * share), int(8 * share)
        first, second = nn.Conv2d(1, channels, 3), nn.Linear(36 * channels, hidden)
        return nn.Sequential(first, scaler, nn.ReLU(), nn.Flatten(), second, scaler, nn.ReLU(), nn.Linear(hidden, 3))

    with torch_stream(0, "wide"):
        wide, small = build(1.0, nn.Identity()), build(rate, Divide(rate))
    masks = []
    for name, big in wide.named_parameters():
        part = small.get_parameter(name)
        corner = tuple(slice(0, length) for length in part.shape)
        mask = torch.zeros_like(big)
        mask[corner] = 1.0 if name.startswith("7.") else 1.0 / rate
        part.data.copy_(big.detach()[corner])
        masks.append(mask.reshape(-1))
    return wide, small, torch.cat(masks)


@every_engine
def test_a_mask_trains_heterofls_smaller_network(engine):
    rate, data = 0.5, tiny_data()
    wide, small, mask = wide_and_small(rate)
    asked = job(FlatModel(wide).flatten(), LocalRule(0.1, 4, mask=mask), seed=3)
    (update,) = ENGINES[engine](wide, data).train([asked])
    before = FlatModel(small).flatten()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    for batch in asked.batches:
        optimizer.zero_grad()
        x, y = torch.from_numpy(data.train_x[batch]), torch.from_numpy(data.train_y[batch])
        functional.cross_entropy(small(x), y).backward()
        optimizer.step()
    moved = FlatModel(small).flatten() - before
    assert len(moved) < len(mask) / 2
    assert update.delta[mask != 0].numpy() == pytest.approx(moved.numpy(), abs=1e-6)
    assert not update.delta[mask == 0].any()
    assert update.delta.norm() > 0.1


@every_engine
def test_weights_outside_the_mask_count_for_nothing_and_stay(engine):
    module, data = tiny_module("mlp"), tiny_data()
    weights = FlatModel(module).flatten()
    inside = half_of(len(weights))
    rule = LocalRule(0.1, 3, 0.3, numbers(len(weights), 1), ascent=0.2, mask=inside)
    other = torch.where(inside, weights, 7.0)
    one, two = ENGINES[engine](module, data).train([job(each, rule, 0) for each in (weights, other)])
    assert not one.delta[~inside].any()
    assert one.delta[inside].all()
    assert torch.equal(one.delta, two.delta)
    assert one.loss == two.loss


# ---- the engines against one another


@pytest.mark.parametrize("kind", list(MODULES))
def test_sequential_is_the_reference_bit_for_bit(kind):
    module, data = tiny_module(kind), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())
    theirs = [bits(each) for each in ReferenceEngine(module, data).train(jobs)]
    engine = SequentialEngine(module, data)
    assert [bits(each) for each in engine.train(jobs)] == theirs
    assert [bits(each) for each in reversed(engine.train(jobs[::-1]))] == theirs  # nothing is left over from a rule


@pytest.mark.parametrize("kind", list(MODULES))
@pytest.mark.parametrize("chunk", [None, 3])
def test_batched_matches_the_reference_with_all_kinds_in_one_call(kind, chunk):
    module, data = tiny_module(kind), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten()) * 2
    engine = BatchedEngine(module, data, device="cpu", chunk=chunk)
    assert isinstance(engine._program, VmapProgram if kind == "user" else LayerProgram)
    mine, theirs = engine.train(jobs), ReferenceEngine(module, data).train(jobs)
    assert max(apart(a, b) for a, b in zip(mine, theirs, strict=True)) < 1e-5
    assert [u.loss for u in mine] == pytest.approx([u.loss for u in theirs], rel=1e-5)
    assert [u.squared_loss for u in mine] == pytest.approx([u.squared_loss for u in theirs], rel=1e-5)


@pytest.mark.parametrize("kind", list(MODULES))
def test_plain_rules_are_answered_as_ever_beside_others(kind):
    """In `batched`, as many plain jobs as there are: they have a stack of their own."""
    module, data = tiny_module(kind), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())
    plain = [each for each in jobs if not any(each.rule.kind)]
    engine = BatchedEngine(module, data, device="cpu")
    alone = [bits(each) for each in engine.train(plain)]
    together = engine.train(jobs)
    assert [bits(u) for u, each in zip(together, jobs, strict=True) if not any(each.rule.kind)] == alone


def test_plain_rules_need_no_more_passes_than_ever(monkeypatch):
    module, data = tiny_module("mlp"), tiny_data()
    engine, weights = BatchedEngine(module, data, device="cpu"), FlatModel(module).flatten()
    asked, gradient = [], engine._program.gradient

    def seen(*arguments):
        asked.append(arguments[4])
        return gradient(*arguments)

    for name in ("features", "norms"):
        monkeypatch.setattr(engine._program, name, None)
    monkeypatch.setattr(engine._program, "gradient", seen)
    engine.train([job(weights, LocalRule(0.1, 3, 0.2, numbers(len(weights), 1)), seed) for seed in range(4)])
    assert asked == [None] * 3  # once a step, without anchors


def test_gradients_of_plain_rules_are_never_written_down_for_the_sake_of_others(monkeypatch):
    """Those of dense layers are added onto the weights as they are made, also beside FedProx and SCAFFOLD."""
    module, data = tiny_module("mlp"), tiny_data()
    engine, weights = BatchedEngine(module, data, device="cpu"), FlatModel(module).flatten()
    added, written = [], []
    back = Plain.dense_back

    def seen(self, weight, dy, x, onto, *, to_input):
        (written if onto is None else added).append(len(dy))
        return back(self, weight, dy, x, onto, to_input=to_input)

    monkeypatch.setattr(Plain, "dense_back", seen)
    drift = numbers(len(weights), 1)
    rules = [LocalRule(0.1, 1), LocalRule(0.1, 1, mu=0.2), LocalRule(0.1, 1, drift=drift), LocalRule(0.2, 1)]
    rules += [LocalRule(0.1, 1, mu=0.2, drift=drift), LocalRule(0.3, 1)]
    engine.train([job(weights, rule, seed) for seed, rule in enumerate(rules)])
    layers = sum(isinstance(layer, torch.nn.Linear) for layer in module)
    assert added == [3] * layers  # the three plain ones
    assert written == [1] * (3 * layers)  # and the others, each kind by itself


@every_engine
@pytest.mark.parametrize("kind", list(MODULES))
def test_an_ascent_of_zero_a_mask_of_ones_and_a_mu_of_zero_change_no_bit(engine, kind):
    module, data = tiny_module(kind), tiny_data()
    weights = FlatModel(module).flatten()
    rule = LocalRule(0.1, 3, 0.2, numbers(len(weights), 1))
    neutral = [
        replace(rule, ascent=0.0),
        replace(rule, mask=torch.ones_like(weights)),
        replace(rule, mask=torch.ones_like(weights).bool()),
        replace(rule, contrast=Contrast(-weights, mu=0.0)),
    ]
    ours = ENGINES[engine](module, data)
    (plain,) = ours.train([job(weights, rule, 0)])
    for each in neutral:
        assert bits(ours.train([job(weights, each, 0)])[0]) == bits(plain)


@every_engine
@pytest.mark.parametrize("kind", list(MODULES))
def test_the_start_as_the_last_model_makes_the_contrast_a_constant(engine, kind):
    module, data = tiny_module(kind), tiny_data()
    weights = FlatModel(module).flatten()
    rule = LocalRule(0.1, 3)
    contrast = replace(rule, contrast=Contrast(weights, mu=5.0))
    ours = ENGINES[engine](module, data)
    (plain,), (same,) = (ours.train([job(weights, each, 0)]) for each in (rule, contrast))
    assert apart(same, plain) < 1e-6


@every_engine
def test_nothing_in_a_rule_is_written_to(engine):
    module, data = tiny_module("cnn"), tiny_data()
    weights = FlatModel(module).flatten()
    jobs, twins = jobs_of(weights), jobs_of(weights.clone())
    ENGINES[engine](module, data).train(jobs)
    for mine, twin in zip(jobs, twins, strict=True):
        assert torch.equal(mine.start, twin.start)
        for name in ("drift", "mask"):
            kept, fresh = getattr(mine.rule, name), getattr(twin.rule, name)
            assert kept is fresh is None or torch.equal(kept, fresh)
        if mine.rule.contrast is not None:
            assert torch.equal(mine.rule.contrast.previous, twin.rule.contrast.previous)


@every_engine
def test_a_device_that_diverges_leaves_the_others_of_its_kind_alone(engine):
    module, data = tiny_module("mlp"), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())
    wild = [replace(each, start=torch.full_like(each.start, torch.nan)) for each in jobs]
    ours = ENGINES[engine](module, data)
    calm = [bits(each) for each in ours.train([each for pair in zip(jobs, jobs, strict=True) for each in pair])]
    mixed = ours.train([each for pair in zip(jobs, wild, strict=True) for each in pair])
    assert [bits(each) for each in mixed[::2]] == calm[::2]
    assert all(math.isnan(update.loss) for update in mixed[1::2])


@every_engine
def test_where_the_gradient_is_zero_an_ascent_leads_nowhere(engine):
    # Logits of (1000, 0, 0) whatever the sample: the chance of class 0 is 1 in float32, and the gradient there is 0.
    data = tiny_data((4,))
    module = nn.Linear(4, 3)
    weights = torch.zeros(15)
    weights[12] = 1000.0
    own = np.flatnonzero(data.train_y == 0)[:6].reshape(2, 3)
    (update,) = ENGINES[engine](module, data).train([Job(weights, LocalRule(0.1, 2, ascent=0.5), own)])
    assert torch.equal(update.delta, torch.zeros(15))
    assert update.loss == 0.0


# ---- features


def test_features_are_what_the_last_linear_layer_is_given():
    module = tiny_module("user")
    x = torch.from_numpy(tiny_data().test_x)
    answer, z = with_features(module, module, x)
    assert z.shape == (30, 7)
    assert torch.equal(module.leave(z), answer)
    assert not module.leave._forward_pre_hooks


def test_the_gradient_of_the_contrast_written_by_hand_is_exact_in_double_precision():
    module, draw = tiny_module("cnn"), stream(5, "contrast")
    model, jobs, samples = FlatModel(module), 3, 6
    program = LayerProgram(model, (1, 8, 8))
    weights, start, previous = (torch.from_numpy(draw.standard_normal((jobs, model.num_weights))) for _ in range(3))
    x = torch.from_numpy(draw.standard_normal((jobs, samples, 1, 8, 8)))
    labels = torch.from_numpy(draw.integers(3, size=(jobs, samples)))
    shares = torch.from_numpy(draw.random((jobs, samples)))
    mu, temperature = torch.tensor([0.5, 3.0, 1.0]).double(), torch.tensor([0.5, 0.2, 2.0]).double()
    arranged = program.arrange(x)
    anchors = Anchors(program.features(start, arranged), program.features(previous, arranged), mu, temperature)
    losses, gradients = program.gradient(weights, arranged, labels, shares, anchors)
    gradients = all_made(gradients)
    for i in range(jobs):

        def call(w, i=i):
            return with_features(module, lambda x: torch.func.functional_call(module, model.views(w), (x,)), x[i])

        at = weights[i].clone().requires_grad_()
        logits, z = call(at)
        loss = (functional.cross_entropy(logits, labels[i], reduction="none") * shares[i]).sum()
        term = contrast_loss(z, call(start[i])[1].detach(), call(previous[i])[1].detach(), float(temperature[i]))
        (wanted,) = torch.autograd.grad(loss + mu[i] * (term * shares[i]).sum(), at)
        assert losses[i].item() == pytest.approx(loss.item(), rel=1e-12)
        mine = torch.cat([each[i].reshape(-1) for each in gradients])
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-11)


class DeclaredLast(nn.Module):
    """The layer declared last is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(64, 3)
        self.idle = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.used(x.flatten(1))
        return answer


@every_engine
def test_models_without_features_are_refused_where_a_contrast_asks_for_them(engine):
    no_linear = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    for module, words in ((no_linear, "Sequential has no nn.Linear"), (DeclaredLast(), "does not call the last")):
        weights = FlatModel(module).flatten()
        ours = ENGINES[engine](module, tiny_data())
        with pytest.raises(ValueError, match=words):
            ours.train([job(weights, LocalRule(0.1, 1, contrast=Contrast(weights, 1.0)), 0)])
        assert ours.train([job(weights, LocalRule(0.1, 1), 0)])[0].delta.any()  # without one it trains


# ---- refusals and GPUs


@every_engine
def test_rules_that_cannot_be_followed_are_refused_with_words(engine):
    module = tiny_module("mlp")
    weights = FlatModel(module).flatten()
    ours = ENGINES[engine](module, tiny_data())
    for rule, words in (
        (LocalRule(0.1, 1, drift=torch.zeros(3)), r"the drift of a job's rule has the shape \(3,\).*\(683,\)"),
        (LocalRule(0.1, 1, mask=torch.ones(683, 1)), r"the mask of a job's rule has the shape \(683, 1\)"),
        (LocalRule(0.1, 1, contrast=Contrast(weights[1:], 1.0)), r"the contrast.previous of .* shape \(682,\)"),
        (LocalRule(0.1, 1, contrast=Contrast(weights, 1.0, 0.0)), "temperature 0.0; it must be > 0"),
        (LocalRule(0.1, 1, contrast=Contrast(weights, 1.0, math.nan)), "temperature nan"),
        (LocalRule(0.1, 1, ascent=-0.1), "ascent of a job's rule is -0.1; it is a distance"),
        (LocalRule(0.1, 1, ascent=math.nan), "ascent of a job's rule is nan"),
        (LocalRule(0.1, 1, drift=weights, subtract_own_gradient=True), "still says subtract_own_gradient"),
    ):
        with pytest.raises(ValueError, match=words):
            ours.train([job(weights, rule, 0)])


@NEEDS_CUDA
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("own_kernels", [False, True])
@pytest.mark.parametrize("kind", list(MODULES))
def test_on_a_gpu_every_kind_of_rule_matches_the_reference(kind, own_kernels):
    module, data = tiny_module(kind), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten()) * 2
    engine = BatchedEngine(module, data, device="cuda", own_kernels=own_kernels)
    mine, theirs = engine.train(jobs), ReferenceEngine(module, data).train(jobs)
    assert (engine._kernels is not None) == (own_kernels and kind != "user")  # it did not fall back
    for a, b in zip(mine, theirs, strict=True):
        assert apart(replace(a, delta=a.delta.cpu()), b) < 1e-4
        assert a.loss == pytest.approx(b.loss, rel=1e-4)


@NEEDS_CUDA
@pytest.mark.filterwarnings("default")
def test_on_a_gpu_own_kernels_give_every_kind_of_rule_the_same_bits_alone_and_in_company():
    module, data = tiny_module("cnn"), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())
    engine, other = (BatchedEngine(module, data, device="cuda", own_kernels=True) for _ in range(2))
    alone = [other.train([each])[0] for each in jobs]
    for mine, wanted in zip(engine.train(jobs * 5), alone * 5, strict=True):
        assert torch.equal(mine.delta, wanted.delta)
        assert mine.loss == wanted.loss
    assert engine._kernels is not None  # it did not fall back
    assert other._kernels is not None
