"""Steps of nodes with gradients from uphill, and with features compared with those of their own last model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from torch import Tensor, nn
from torch.nn import functional

from flare.data import from_arrays
from flare.flower import client_app, sgd_step, trained_arrays
from flare.flower.arrays import Layout
from flare.flower.stepping import Work, mean_cross_entropy, method_step
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.terms import contrast_loss
from flare.learning.flat import FlatModel
from flare.learning.job import Contrast, Job, LocalRule
from tests.fleets import node_context, node_identity
from tests.unit.test_flower_client import message, work

__all__ = ["node_identity"]  # a fixture
pytestmark = pytest.mark.usefixtures("node_identity")
LR, RHO, MU, TEMPERATURE = 0.5, 0.25, 2.0, 0.5


def half_square(module: nn.Module, batch: float) -> Tensor:
    """(w - batch)^2 / 2."""
    (weight,) = module.parameters()
    return ((weight - batch) ** 2).sum() / 2


def own_step(module: nn.Module, batch: float, lr: float) -> float:
    """A step of a user's own on the same."""
    (weight,) = module.parameters()
    weight.data -= lr * (weight.data - batch)
    return -7.0


@pytest.mark.parametrize("train_step", [None, own_step], ids=["by loss_of", "a step of the user's"])
def test_a_gradient_is_taken_uphill_and_counts_from_where_the_weights_are(train_step: Any) -> None:
    # w 0, target 1: the gradient is -1, uphill is -1/4, the gradient there -5/4; then w 5/8, uphill 3/8, there -5/8
    start = ArrayRecord({"weight": Array(np.zeros((1, 1), dtype=np.float32))})
    app = client_app(
        model=lambda _: nn.Linear(1, 1, bias=False),
        batches=lambda *_: [1.0] * 2,
        train_step=train_step,
        loss_of=half_square,
    )
    asked = work(steps=2, lr=LR, ascent=RHO, share_loss=True)
    answer = app(message("train", {"arrays": start, "config": asked}), node_context())
    assert answer.content.array_records["arrays"]["weight"].numpy().item() == pytest.approx(5 / 8 + 5 / 16, rel=1e-6)
    told = answer.content.metric_records["metrics"]["loss"]
    assert told == pytest.approx((1 / 2 + (3 / 8) ** 2 / 2) / 2, rel=1e-6)  # at the weights, not uphill


def test_where_the_gradient_is_zero_it_is_taken_there() -> None:
    start = ArrayRecord({"weight": Array(np.ones((1, 1), dtype=np.float32))})
    app = client_app(model=lambda _: nn.Linear(1, 1, bias=False), batches=lambda *_: [1.0], loss_of=half_square)
    asked = work(steps=1, lr=LR, ascent=RHO)
    answer = app(message("train", {"arrays": start, "config": asked}), node_context())
    assert answer.content.array_records["arrays"]["weight"].numpy().item() == 0.0


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batches(_: Context, asked: Work) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(asked.round)
    return [(torch.randn(5, 3, generator=draw), torch.randint(2, (5,), generator=draw)) for _ in range(asked.steps)]


def features(weights: list[Tensor], x: Tensor) -> Tensor:
    return torch.tanh(functional.linear(x, weights[0], weights[1]))


def by_the_whole_loss(start: list[Tensor], previous: list[Tensor] | None, asked: Work) -> list[Tensor]:
    """The weights after the steps, each along the gradient of the loss with its second term."""
    weights = [each.clone().requires_grad_() for each in start]
    for x, y in batches(node_context(), asked):
        z = features(weights, x)
        loss = functional.cross_entropy(functional.linear(z, weights[2], weights[3]), y)
        if previous is not None:
            term = contrast_loss(z, features(start, x), features(previous, x), TEMPERATURE)
            loss = loss + MU * term.mean()
        gradients = torch.autograd.grad(loss, weights)
        weights = [(w - LR * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)]
    return [each.detach() for each in weights]


def moon(round_: int) -> ConfigRecord:
    return work(round=round_, steps=3, lr=LR, contrast=MU, temperature=TEMPERATURE, keeps_model=True)


def ends(app: Any, start: ArrayRecord, asked: ConfigRecord, here: Context) -> Tensor:
    """The model with which a node ends."""
    answer = app(message("train", {"arrays": start, "config": asked}), here)
    layout = Layout(start)
    return layout.flatten(start) + layout.flatten(answer.content.array_records["arrays"])


@pytest.mark.parametrize("own", [False, True], ids=["by loss_of", "a step of the user's"])
def test_features_are_compared_with_those_of_the_start_and_of_the_model_of_the_round_before(own: bool) -> None:
    app = client_app(
        model=lambda _: network(),
        batches=batches,
        train_step=(lambda *given: sgd_step(*given)) if own else None,
        loss_of=mean_cross_entropy,
    )
    here, first = node_context(), [each.detach() for each in network().parameters()]
    start = trained_arrays(network())
    wanted = by_the_whole_loss(first, None, Work(**dict(moon(2))))
    got = ends(app, start, moon(2), here)  # it has no model of its own yet
    assert torch.allclose(got, torch.cat([each.flatten() for each in wanted]), atol=1e-6)
    moved = [each + 0.1 for each in first]
    later = ArrayRecord({name: Array(part.numpy()) for name, part in zip(start, moved, strict=True)})
    asked = Work(**dict(moon(5)))
    compared = torch.cat([each.flatten() for each in by_the_whole_loss(moved, wanted, asked)])
    plain = torch.cat([each.flatten() for each in by_the_whole_loss(moved, None, asked)])
    assert not torch.allclose(compared, plain, atol=1e-3)
    assert torch.allclose(ends(app, later, moon(5), here), compared, atol=1e-6)
    # A server that was started again asks once more; the model that the node keeps now is that of the same round.
    assert torch.allclose(ends(app, later, moon(5), here), compared, atol=1e-6)


def test_a_node_that_lost_its_own_model_steps_without_the_term_and_others_keep_none() -> None:
    app, start = client_app(model=lambda _: network(), batches=batches), trained_arrays(network())
    plain = ends(app, start, work(round=4, steps=3, lr=LR), node_context())
    assert torch.equal(ends(app, start, moon(4), node_context()), plain)
    here = node_context()
    ends(app, start, work(round=4, steps=3, lr=LR), here)
    assert not [name for name in here.state if name.startswith("flare.own")]


def test_a_model_that_is_no_number_any_more_is_not_kept() -> None:
    """One bad batch would otherwise keep the node out for good."""
    bad = [True]

    def some(here: Context, asked: Work) -> list[tuple[Tensor, Tensor]]:
        found = batches(here, asked)
        return [(x * float("nan"), y) for x, y in found] if bad[0] else found

    app, here, start = client_app(model=lambda _: network(), batches=some), node_context(), trained_arrays(network())
    assert ends(app, start, moon(1), here).isnan().any()
    bad[0] = False
    assert ends(app, start, moon(2), here).isfinite().all()
    assert ends(app, start, moon(3), here).isfinite().all()


@pytest.mark.parametrize("own", [False, True])
def test_features_that_depend_on_no_trained_weight_add_nothing(own: bool) -> None:
    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(3, 2))

    app = client_app(
        model=lambda _: model(), batches=batches, train_step=sgd_step if own else None, loss_of=mean_cross_entropy
    )
    here, start = node_context(), trained_arrays(model())
    ends(app, start, moon(1), here)
    plain = ends(app, start, work(round=2, steps=3, lr=LR), node_context())
    assert torch.allclose(ends(app, start, moon(2), here), plain, atol=1e-6)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("changes", [{"ascent": RHO, "mu": 0.3}, {"ascent": RHO, "contrast": MU}, {"contrast": MU}])
def test_all_that_a_rule_may_ask_for_together_is_what_the_simulator_does(changes: dict[str, float], own: bool) -> None:
    asked = Work(**dict(work(steps=3, lr=LR, temperature=TEMPERATURE, **changes)))
    module, begins = network(), FlatModel(network()).flatten()
    draw = torch.Generator().manual_seed(8)
    previous = begins + 0.3 * torch.randn(len(begins), generator=draw)
    drift = 0.1 * torch.randn(len(begins), generator=draw)
    given = batches(node_context(), asked)
    x, y = (torch.cat([batch[part] for batch in given]) for part in (0, 1))
    data = from_arrays(x.numpy(), y.numpy(), x.numpy(), y.numpy(), num_classes=2)
    contrast = Contrast(previous, MU, TEMPERATURE) if "contrast" in changes else None
    rule = LocalRule(LR, 3, asked.mu, drift, ascent=asked.ascent, contrast=contrast)
    (wanted,) = ReferenceEngine(network(), data).train([Job(begins, rule, np.arange(15).reshape(3, 5))])
    step = method_step(
        sgd_step if own else None, mean_cross_entropy, module, asked, drift, None if contrast is None else previous
    )
    losses = [step(batch) for batch in given]
    assert torch.allclose(FlatModel(module).flatten() - begins, wanted.delta, atol=2e-6)
    assert np.mean(losses) == pytest.approx(wanted.loss, rel=1e-5)


@pytest.mark.parametrize("own", [False, True])
def test_all_passes_of_a_step_leave_out_the_same(own: bool) -> None:
    """With dropout; and the next step draws on."""
    seen: list[Tensor] = []
    module = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 2))
    module[1].register_forward_hook(lambda _, __, out: seen.append(out.detach() != 0.0))
    asked = Work(**dict(work(steps=2, lr=0.0, ascent=1e-9, contrast=MU, temperature=TEMPERATURE)))
    previous = FlatModel(module, on_node=True).flatten()
    step = method_step(sgd_step if own else None, mean_cross_entropy, module, asked, None, previous)
    first = batches(node_context(), asked)[0]
    step(first)
    passes = list(seen)
    assert len(passes) > 5
    assert all(torch.equal(each, passes[0]) for each in passes)
    step(first)
    assert not torch.equal(seen[len(passes)], passes[0])


@pytest.mark.parametrize("changes", [{}, {"mu": 0.1}, {"ascent": RHO}])
def test_a_loss_without_a_gradient_is_an_error_and_no_step_of_zero(changes: dict[str, float]) -> None:
    def loss_of(module: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            return mean_cross_entropy(module, batch)

    asked = Work(**dict(work(steps=1, **changes)))
    step = method_step(None, loss_of, network(), asked, None, None)
    with pytest.raises(RuntimeError, match="does not require grad"):
        step(batches(node_context(), asked)[0])


def test_gradients_of_sparse_embeddings_are_taken_too() -> None:
    module = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2))
    batch = (torch.tensor([[0, 1], [2, 5]]), torch.tensor([0, 1]))
    asked = Work(**dict(work(steps=1, lr=LR, ascent=RHO)))
    step = method_step(None, mean_cross_entropy, module, asked, None, None)
    assert step(batch) > step(batch)


@pytest.mark.parametrize("changes", [{"ascent": RHO}, {"keeps_model": True}])
def test_beside_an_own_step_the_loss_is_to_be_given(changes: dict[str, Any]) -> None:
    app = client_app(model=lambda _: network(), batches=batches, train_step=own_step)
    with pytest.raises(ValueError, match="give client_app loss_of"):
        ends(app, trained_arrays(network()), work(steps=1, **changes), node_context())


def test_a_model_without_a_linear_layer_is_told_so_in_its_first_round() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten())
    app = client_app(model=lambda _: model, batches=batches)
    with pytest.raises(ValueError, match=r"has no nn.Linear"):
        ends(app, trained_arrays(model), moon(1), node_context())


def test_a_model_that_does_not_call_its_last_linear_layer_is_told_so() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x)
            return out

    app, here = client_app(model=lambda _: Odd(), batches=batches), node_context()
    start = trained_arrays(Odd())
    ends(app, start, moon(1), here)
    with pytest.raises(ValueError, match=r"does not call the last nn.Linear"):
        ends(app, start, moon(2), here)
