"""Convolutions in oneDNN's arrangement give the bits of the plain module, and stand aside where they might not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flare.learning.engine.blocked import BlockedLogits
from flare.learning.flat import own_copy
from flare.learning.models import make_model
from tests.tiny import tiny_module

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")  # type: ignore[no-untyped-call]


def prepared(module: nn.Module) -> tuple[nn.Module, BlockedLogits, Tensor]:
    """The module with its parameters in one vector, its quick twin, and the vector."""
    model = own_copy(module, "cpu")
    weights = model.flatten()
    for parameter, view in zip(model.parameters, model.views(weights).values(), strict=True):
        parameter.data = view
    return model.module, BlockedLogits(model.module, weights), weights


def outcome(logits_of: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> list[bytes]:
    logits = logits_of(x)
    loss = functional.cross_entropy(logits, torch.arange(len(x)) % 3)
    found = [logits.detach(), *torch.autograd.grad(loss, list(module.parameters()))]
    return [each.numpy().tobytes() for each in found]


def images(batch: int, size: int) -> Tensor:
    """Some noise, some with large flat areas, in which many maxima are equal, some in few whole numbers."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 1, size, size, generator=draw)
    x[::3, :, : size // 2] = 0.0
    x[1::3] = x[1::3].round()
    return x


@needs_onednn
@pytest.mark.parametrize("batch", [1, 7, 40])
def test_the_papers_network_is_computed_in_blocks_to_the_bits_of_the_plain_module(batch: int) -> None:
    module, quick, weights = prepared(make_model("mnist-cnn", (1, 28, 28), 3, seed=0))
    x = images(batch, 28)
    for _ in range(2):  # the first call compares, the second does not
        assert outcome(quick, module, x) == outcome(module, module, x)
        weights -= 0.01 * weights.sign()  # as a step does, under the module
    with torch.inference_mode():
        assert torch.equal(quick(x), module(x))
    assert set(quick._same.values()) == {True}
    assert len(quick._same) == 2  # with gradients and without


def test_a_chain_of_other_layers_and_odd_sizes_gives_the_same_bits_too() -> None:
    for module in (
        tiny_module("cnn"),
        nn.Sequential(nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)),
    ):
        plain, quick, _ = prepared(module)
        x = images(5, 8)
        assert outcome(quick, plain, x) == outcome(plain, plain, x)


def test_where_a_bit_differs_the_plain_module_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    module, quick, _ = prepared(tiny_module("cnn"))
    x = images(5, 8)
    monkeypatch.setattr(quick, "_blocked", lambda x: module(x) * (1.0 + 2.0**-23))
    assert torch.equal(quick(x), module(x))
    assert quick._same == {((5, 1, 8, 8), True): False}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e20])
def test_what_may_not_be_finite_is_computed_by_the_plain_module(bad: float) -> None:
    module, quick, weights = prepared(tiny_module("cnn"))
    x = images(5, 8)
    quick(x)
    weights[3] = bad
    assert not quick._surely_finite(x)
    assert torch.equal(quick(x).nan_to_num(1.0), module(x).nan_to_num(1.0))
    assert torch.isnan(module(x)).any() or bad == 1e20
    weights[3], x[0, 0, 0, 0] = 0.0, bad
    assert torch.equal(quick(x).nan_to_num(1.0), module(x).nan_to_num(1.0))


def test_other_networks_are_left_alone() -> None:
    hooked = tiny_module("cnn")
    next(hooked.children()).register_forward_hook(lambda *_: None)
    overlapping = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(32, 3))
    for module in (tiny_module("mlp"), tiny_module("user"), hooked, overlapping, nn.Sequential(copy.deepcopy(hooked))):
        plain, quick, _ = prepared(module)
        assert quick._first == []
        assert torch.equal(quick(images(2, 8)), plain(images(2, 8)))
