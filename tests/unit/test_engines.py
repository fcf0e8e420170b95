"""The reference engine against arithmetic done here, and the sequential engine against the reference, bit for bit."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from flare.config import LearningConfig
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.engine.tensor_data import CHUNK
from flare.learning.flat import FlatModel
from flare.learning.job import Contrast, GradientJob, LocalRule, all_finite
from flare.learning.methods import METHODS, Round, make_method
from flare.learning.models import make_model
from flare.rng import stream
from tests.method_rounds import fitted
from tests.reducing import common, reduced, resolved
from tests.tiny import MODULES, job, tiny_data, tiny_module

ENGINES = {"reference": ReferenceEngine, "sequential": SequentialEngine}
BATCHED = partial(BatchedEngine, device="cpu")


def drift_like(weights, seed=0):
    return torch.from_numpy(0.1 * stream(seed, "drift").standard_normal(len(weights)).astype(np.float32))


def some_jobs(weights):
    """Every kind of rule, with different numbers of steps."""
    drift = drift_like(weights)
    rules = [
        LocalRule(0.1, 3),
        LocalRule(0.2, 1, mu=0.5),
        LocalRule(0.1, 4, drift=drift),
        LocalRule(0.3, 2, 0.1, drift),
    ]
    return [job(weights, rule, seed) for seed, rule in enumerate(rules)]


def bits(update):
    return update.delta.numpy().tobytes(), update.loss


@pytest.mark.parametrize("kind", list(MODULES))
def test_sequential_is_the_reference_bit_for_bit(kind):
    module, data = tiny_module(kind), tiny_data(num_test=CHUNK + 7)
    weights = FlatModel(module).flatten()
    jobs = some_jobs(weights)
    reference, sequential = ReferenceEngine(module, data), SequentialEngine(module, data)
    updates = reference.train(jobs)
    assert [bits(each) for each in sequential.train(jobs)] == [bits(each) for each in updates]
    moved = [weights + update.delta for update in updates]
    assert sequential.evaluate(moved) == reference.evaluate(moved)
    asked = [GradientJob(each, np.arange(3, 50)) for each in moved]
    pairs = zip(sequential.gradients(asked), reference.gradients(asked), strict=True)
    assert all(ours.numpy().tobytes() == theirs.numpy().tobytes() for ours, theirs in pairs)
    assert sequential.losses(asked) == reference.losses(asked)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_loss_is_the_mean_cross_entropy_over_the_samples_in_parts_too(engine):
    module, data = tiny_module("mlp"), tiny_data(num_train=CHUNK + 20)
    samples = np.arange(5, CHUNK + 15)
    (found,) = engine(module, data).losses([GradientJob(FlatModel(module).flatten(), samples)])
    with torch.no_grad():
        logits = module(torch.from_numpy(data.train_x[samples])).double().numpy()
    right = logits[np.arange(len(samples)), data.train_y[samples]]
    assert found == pytest.approx(np.mean(np.log(np.exp(logits).sum(axis=1)) - right), rel=1e-6)


def test_sequential_is_the_reference_on_the_papers_network():
    module = make_model("mnist-cnn", (1, 28, 28), 3, seed=0)
    data, weights = tiny_data((1, 28, 28)), FlatModel(module).flatten()
    jobs = some_jobs(weights)
    theirs = ReferenceEngine(module, data).train(jobs)
    assert [bits(each) for each in SequentialEngine(module, data).train(jobs)] == [bits(each) for each in theirs]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_depend_neither_on_workers_nor_on_threads(threads):
    module = make_model("mnist-cnn", (1, 28, 28), 3, seed=0)
    data, weights = tiny_data((1, 28, 28), num_test=CHUNK + 7), FlatModel(module).flatten()
    jobs = some_jobs(weights)
    theirs = ReferenceEngine(module, data)
    expected, scores = [bits(each) for each in theirs.train(jobs)], theirs.evaluate([weights])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for workers in (None, 1, 2, 5):
            engine = SequentialEngine(module, data, workers=workers)
            for _ in range(2):
                assert [bits(each) for each in engine.train(jobs)] == expected
            assert engine.evaluate([weights]) == scores
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_job_that_fails_leaves_the_engine_usable():
    module, data = tiny_module("cnn"), tiny_data()
    weights = FlatModel(module).flatten()
    jobs = some_jobs(weights)
    engine = SequentialEngine(module, data, workers=2)
    expected = [bits(each) for each in engine.train(jobs)]
    with pytest.raises(ValueError, match="starts from weights of shape"):
        engine.train([*jobs, job(weights[1:], LocalRule(0.1, 1), 0), *jobs])
    assert [bits(each) for each in engine.train(jobs)] == expected


@pytest.mark.parametrize("name", list(METHODS))
def test_sequential_is_the_reference_through_rounds_of_every_method(name):
    module, data, method = tiny_module("cnn"), tiny_data(), make_method(LearningConfig(method=name))
    method = fitted(method, module)

    def train(engine):
        weights = FlatModel(module).flatten()
        state = method.start(len(weights), 5)
        for number in range(3):
            draw = stream(number, "round")
            tau = draw.integers(1, 5, 5).astype(float)
            now = Round(weights, np.array([0, 2, 3]), tau, local_lr=0.1, global_lr=1.0)
            own = [GradientJob(weights, np.arange(i, 60, 5)) for i in now.selected]
            gradients = engine.gradients(own) if method.needs_gradients else []
            rules = method.rules(state, now, common(gradients))
            followed = [resolved(*each) for each in zip(rules, gradients or [None] * 3, strict=True)]
            updates = engine.train([job(weights, rule, seed) for seed, rule in enumerate(followed)])
            weights, state = reduced(method, state, now, rules, updates)
        return weights.numpy().tobytes()

    assert train(SequentialEngine(module, data)) == train(ReferenceEngine(module, data))


@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_local_update_follows_its_rule(engine):
    # Softmax regression has the gradient (p - onehot) x^T / batch: the steps are done again here, in float64.
    data = tiny_data((4,))
    module = make_model("logistic", (4,), 3, seed=0)
    weights = FlatModel(module).flatten()
    rule = LocalRule(0.3, 4, mu=0.7, drift=drift_like(weights))
    asked = job(weights, rule, seed=1)
    (update,) = ENGINES[engine](module, data).train([asked])

    start = weights.double().numpy()
    expected, losses = start.copy(), []
    for batch in asked.batches:
        x, onehot = data.train_x[batch].astype(float), np.eye(3)[data.train_y[batch]]
        logits = x @ expected[:12].reshape(3, 4).T + expected[12:]
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses.append(-np.log((chances * onehot).sum(axis=1)).mean())
        error = (chances - onehot) / len(batch)
        gradient = np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])
        expected -= rule.lr * (gradient + rule.drift.double().numpy() + rule.mu * (expected - start))
    assert update.delta.numpy() == pytest.approx(expected - start, abs=1e-6)
    assert update.loss == pytest.approx(np.mean(losses), rel=1e-6)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_answers_depend_neither_on_order_nor_on_company(engine):
    module, data = tiny_module("cnn"), tiny_data()
    jobs = some_jobs(FlatModel(module).flatten())
    together = [bits(each) for each in ENGINES[engine](module, data).train(jobs)]
    shared = ENGINES[engine](module, data)
    assert [bits(each) for each in reversed(shared.train(jobs[::-1]))] == together
    shared.evaluate([torch.ones_like(jobs[0].start)])
    assert [bits(shared.train([each])[0]) for each in jobs] == together


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_device_that_diverges_leaves_the_others_alone(engine):
    module, data = tiny_module("mlp"), tiny_data()
    good = some_jobs(FlatModel(module).flatten())
    bad = job(torch.full_like(good[0].start, torch.nan), LocalRule(0.1, 2), seed=0)
    updates = ENGINES[engine](module, data).train([good[0], bad, good[1]])
    assert updates[1].delta.isnan().all()
    assert np.isnan(updates[1].loss)
    alone = ENGINES[engine](module, data).train(good[:2])
    assert [bits(updates[0]), bits(updates[2])] == [bits(each) for each in alone]


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("kind", list(MODULES))
def test_gradients_are_the_mean_of_those_of_the_samples(engine, kind):
    module, data = tiny_module(kind), tiny_data()
    flat = FlatModel(module)
    weights, samples = flat.flatten(), np.array([5, 1, 17, 40])
    (gradient,) = ENGINES[engine](module, data).gradients([GradientJob(weights, samples)])
    each = []
    for sample in samples:
        at = weights.clone().requires_grad_()
        logits = functional_call(module, flat.views(at), (torch.from_numpy(data.train_x[sample : sample + 1]),))
        each.append(torch.autograd.grad(functional.cross_entropy(logits, torch.tensor([data.train_y[sample]])), at)[0])
    assert gradient.numpy() == pytest.approx(torch.stack(each).mean(dim=0).numpy(), abs=1e-6)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_gradients_over_more_samples_than_a_chunk(engine):
    module, data = make_model("logistic", (4,), 3, seed=0), tiny_data((4,))
    weights = FlatModel(module).flatten()
    samples = np.resize(np.arange(60), 2 * CHUNK + 60 - 2 * CHUNK % 60)  # every sample equally often
    ours = ENGINES[engine](module, data)
    many, once = ours.gradients([GradientJob(weights, samples), GradientJob(weights, np.arange(60))])
    assert many.numpy() == pytest.approx(once.numpy(), abs=1e-6)


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("num_test", [1, 30, CHUNK, CHUNK + 1])
def test_evaluate_against_a_count_by_hand(engine, num_test):
    # The weights make the logits (x_0, x_1, 0), whatever else is in the sample.
    data = tiny_data((4,), num_test=num_test)
    weights = torch.zeros(15)
    weights[0] = weights[5] = 1.0
    (score,) = ENGINES[engine](make_model("logistic", (4,), 3, seed=0), data).evaluate([weights])
    logits = np.column_stack([data.test_x[:, 0], data.test_x[:, 1], np.zeros(num_test)]).astype(float)
    right = sum(int(np.argmax(row)) == label for row, label in zip(logits, data.test_y, strict=True))
    assert score.accuracy == right / num_test
    own = logits[np.arange(num_test), data.test_y]
    assert score.loss == pytest.approx(np.mean(np.log(np.exp(logits).sum(axis=1)) - own), rel=1e-6)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_nothing_given_to_an_engine_is_written_to(engine):
    module, data = tiny_module("user"), tiny_data()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for array in (data.train_x, data.train_y, data.test_x, data.test_y):
        array.flags.writeable = False
    weights = FlatModel(module).flatten()
    jobs, kept, drift = some_jobs(weights), weights.clone(), drift_like(weights)
    ours = ENGINES[engine](module, data)
    first = ours.train(jobs)
    deltas = [update.delta.clone() for update in first]
    ours.gradients([GradientJob(weights, np.arange(9))])
    ours.evaluate([weights])
    ours.train(jobs)
    assert torch.equal(weights, kept)
    assert torch.equal(jobs[2].rule.drift, drift)
    assert all(torch.equal(update.delta, delta) for update, delta in zip(first, deltas, strict=True))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.training


class WorksInPlace(nn.Module):
    """A model that changes the samples that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x.sub_(0.5).mul_(2.0))


class WorksOnACopy(WorksInPlace):
    def forward(self, x):
        return super().forward(x.clone())


IN_PLACE = {
    "forward": (WorksInPlace, WorksOnACopy),
    "layer": (
        lambda: nn.Sequential(nn.Flatten(), nn.Threshold(0.3, -1.0, inplace=True), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Flatten(), nn.Threshold(0.3, -1.0), nn.Linear(4, 3)),
    ),
}


@pytest.mark.parametrize("kind", list(IN_PLACE))
@pytest.mark.parametrize("engine", [*ENGINES.values(), BATCHED], ids=[*ENGINES, "batched"])
def test_a_model_that_works_in_place_leaves_the_samples_as_they_are(engine, kind):
    """Others train and are tested on them; and a term that needs features passes the same batch through it thrice."""
    data = tiny_data((4,), num_test=30)
    before = [each.tobytes() for each in (data.train_x, data.test_x)]
    modules = [make() for make in IN_PLACE[kind]]
    modules[0].load_state_dict(modules[1].state_dict())
    weights = FlatModel(modules[0]).flatten()
    contrast = Contrast(2.0 * weights, mu=1.0)
    rules = [LocalRule(0.1, 3), LocalRule(0.1, 2, ascent=0.1), LocalRule(0.1, 2, contrast=contrast)]
    jobs, asked = [job(weights, rule, seed) for seed, rule in enumerate(rules)], [GradientJob(weights, np.arange(50))]

    def answers(module):
        ours = engine(module, data)
        scores = [ours.evaluate([weights]), ours.evaluate([weights])]
        assert scores[0] == scores[1]
        return scores, [bits(each) for each in ours.train(jobs)], ours.losses(asked), ours.gradients(asked)[0].tolist()

    assert answers(modules[0]) == answers(modules[1])
    assert [each.tobytes() for each in (data.train_x, data.test_x)] == before


@pytest.mark.parametrize("engine", [*ENGINES.values(), BATCHED], ids=[*ENGINES, "batched"])
def test_gradients_are_taken_where_others_have_turned_them_off(engine):
    """As a policy of a user's own may have done, or who calls `flare.run`."""
    module, data = tiny_module("mlp"), tiny_data()
    weights = FlatModel(module).flatten()
    jobs = some_jobs(weights)
    there = [bits(each) for each in engine(module, data).train(jobs)]
    with torch.no_grad():
        ours = engine(module, data)
        assert [bits(each) for each in ours.train(jobs)] == there
        assert all(bool(each.any()) for each in ours.gradients([GradientJob(weights, np.arange(50))]))
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("engine", list(ENGINES))
def test_jobs_that_cannot_be_done_are_refused(engine):
    module = tiny_module("mlp")
    ours = ENGINES[engine](module, tiny_data())
    fine = job(FlatModel(module).flatten(), LocalRule(0.1, 3), seed=0)
    with pytest.raises(ValueError, match="asks for 2 steps and has 3 batches"):
        ours.train([type(fine)(fine.start, LocalRule(0.1, 2), fine.batches)])
    with pytest.raises(ValueError, match=r"weights of shape \(5,\); the model has 683"):
        ours.train([type(fine)(torch.zeros(5), fine.rule, fine.batches)])
    with pytest.raises(ValueError, match="no test samples"):
        ENGINES[engine](module, tiny_data(num_test=0)).evaluate([fine.start])


@pytest.mark.parametrize(
    ("weights", "finite"),
    [([1.0, -2.0], True), ([3e38, 3e38], True), ([math.nan, 1.0], False), ([math.inf, -math.inf], False)],
)
def test_weights_are_finite_also_where_their_sum_is_not(weights, finite):
    assert all_finite(torch.tensor(weights)) is finite
