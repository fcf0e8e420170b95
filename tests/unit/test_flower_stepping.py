"""Steps of nodes with gradients from uphill, and with features compared with those of their own last model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from torch import Tensor, nn
from torch.nn import functional

from flare.flower import client_app, trained_arrays
from flare.flower.arrays import Layout
from flare.flower.stepping import Work
from flare.learning.engine.terms import contrast_loss
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
    from flare.flower import sgd_step

    app = client_app(
        model=lambda _: network(), batches=batches, train_step=(lambda *given: sgd_step(*given)) if own else None
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
