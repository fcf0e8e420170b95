"""The widths of models: what narrower ones hold and cost, derived by hand, and what cannot be followed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flare.learning.flat import FlatModel
from flare.learning.models import make_model
from flare.learning.widths import Weighted, Widths, narrowed, read_widths
from tests.tiny import Residual, tiny_module

SMALL = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
"""On samples of 2 x 4 x 4: four channels of 4 x 4, then of 2 x 2, then three classes."""


def test_the_widths_of_a_small_network_by_hand() -> None:
    widths = read_widths(SMALL, (2, 4, 4))
    assert widths.layers == (Weighted(2, 9, 4, 16, True), Weighted(4, 4, 3, 1, True))
    assert widths.whole == (4, 3)
    assert (widths.at(1.0), widths.at(0.5), widths.at(0.3), widths.at(0.01)) == ((4, 3), (2, 3), (2, 3), (1, 3))
    # half of the channels: (2 x 18 + 2) + (3 x 8 + 3) of (4 x 18 + 4) + (3 x 16 + 3) weights
    assert (widths.num_weights((2, 3)), widths.num_weights(widths.whole)) == (38 + 27, 76 + 51)
    # multiply-adds: 16 places x 18 x 2 channels, and 8 x 3; of 16 x 18 x 4 and 16 x 3
    assert widths.work((2, 3)) == (576 + 24) / (1152 + 48) == 0.5
    assert widths.work(widths.whole) == 1.0


def test_the_mask_of_a_small_network_by_hand() -> None:
    mask = read_widths(SMALL, (2, 4, 4)).numbers((1, 3), scale=4.0)
    by_name = FlatModel(SMALL).views(mask)
    assert by_name["0.weight"][0].tolist() == torch.full((2, 3, 3), 4.0).tolist()
    assert not by_name["0.weight"][1:].any()
    assert by_name["0.bias"].tolist() == [4.0, 0.0, 0.0, 0.0]
    # the first channel is the first four of the sixteen places; the classes are all there, without the scale
    assert by_name["4.weight"].tolist() == [[1.0] * 4 + [0.0] * 12] * 3
    assert by_name["4.bias"].tolist() == [1.0, 1.0, 1.0]


def test_rates_are_rounded_up_but_not_by_rounding_errors() -> None:
    widths = Widths((Weighted(1, 1, 100, 1, True), Weighted(100, 1, 7, 1, True)))
    assert 0.07 * 100 > 7.0  # in floating point
    assert [widths.at(rate)[0] for rate in (0.07, 0.071, 1.0 / 3.0, 0.0625)] == [7, 8, 34, 7]


@pytest.mark.parametrize(
    ("name", "shape", "half"),
    [
        ("mlp", (1, 8, 8), (100, 10)),
        ("mnist-cnn", (1, 28, 28), (8, 16, 286, 10)),
        ("cifar-cnn", (3, 32, 32), (16, 32, 604, 10)),
        ("logistic", (4,), (10,)),
    ],
)
def test_the_narrower_model_is_the_corner_of_every_layer(
    name: str, shape: tuple[int, ...], half: tuple[int, ...]
) -> None:
    module = make_model(name, shape, 10, seed=0)
    widths = read_widths(module, shape)
    assert widths.at(0.5) == half
    small = narrowed(module, widths, half)
    inside = widths.numbers(half) != 0.0
    assert torch.equal(FlatModel(small).flatten(), FlatModel(module).flatten()[inside])
    assert FlatModel(small).num_weights == widths.num_weights(half)
    assert small(torch.zeros(2, *shape)).shape == (2, 10)
    assert read_widths(small, shape).whole == half
    assert Widths.from_json(widths.to_json()) == widths


def conv(**more: int) -> nn.Conv2d:
    return nn.Conv2d(2, 2, 1, **more)


def twice() -> nn.Sequential:
    layer = nn.Linear(2, 2)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)


def frozen() -> nn.Sequential:
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].bias.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Residual(), r"the model \(Residual\) is none whose channels are known to stay apart"),
        (nn.Sequential(conv(), nn.GroupNorm(1, 2), nn.Flatten()), r"layer '1' \(GroupNorm\) is none whose"),
        (nn.Sequential(conv(groups=2), nn.Flatten()), r"layer '0' \(Conv2d\) has groups"),
        (nn.Sequential(nn.Linear(1, 2), nn.Flatten()), r"layer '0' \(Linear\) is not given one axis of features"),
        (nn.Sequential(nn.Flatten(2), nn.Linear(1, 2)), r"layer '0' \(Flatten\) flattens only some"),
        (nn.Sequential(nn.Flatten(0, 1), conv()), r"layer '0' \(Flatten\) flattens only some"),
        (twice(), "stands in it twice, or some of its parameters are not trained"),
        (frozen(), "stands in it twice, or some of its parameters are not trained"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_layer_and_the_reason(module: nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_widths(module, (2, 1, 1))


def test_a_hook_may_do_anything() -> None:
    module = tiny_module("mlp")
    module[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"layer '1' \(Linear\) has hooks"):
        read_widths(module, (1, 8, 8))


@pytest.mark.parametrize(
    "told",
    [
        *(None, [], {}, [1], [{"inputs": 1}]),
        [{"inputs": 1, "spread": 1, "outputs": 0, "places": 1, "bias": True}],
        [{"inputs": 1, "spread": 1.5, "outputs": 1, "places": 1, "bias": True}],
        [{"inputs": 2**30, "spread": 1, "outputs": 2**30, "places": 1, "bias": True}],
    ],
)
def test_widths_that_a_file_cannot_mean_are_refused(told: object) -> None:
    with pytest.raises(ValueError, match="widths"):
        Widths.from_json(told)
