import copy

import pytest
import torch
from torch import nn

from flare.learning.flat import FlatModel, own_copy, update_bits
from flare.learning.models import MODELS, check_output, make_model
from flare.rng import stream, torch_stream
from tests.tiny import Residual, tiny_module


@pytest.mark.parametrize(
    ("name", "shape", "paper_bits"), [("mnist-cnn", (1, 28, 28), 1e7), ("cifar-cnn", (3, 32, 32), 6.4e7)]
)
def test_the_networks_for_images_have_the_papers_size(name, shape, paper_bits):
    # mnist-cnn: 16 (25 + 1) + 32 (16 * 25 + 1) + 572 (32 * 4 * 4 + 1) + 10 (572 + 1) = 312,414 weights.
    bits = update_bits(FlatModel(make_model(name, shape, 10, seed=0)).num_weights)
    assert abs(bits - paper_bits) <= 0.05 * paper_bits


def test_the_networks_for_images_are_plain_sequences_of_common_layers():
    common = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)
    for name in ("mnist-cnn", "cifar-cnn"):
        model = make_model(name, (3, 32, 32), 10, seed=0)
        assert type(model) is nn.Sequential
        assert all(type(layer) in common for layer in model)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), (2, 3, 5)])
@pytest.mark.parametrize("name", ["mlp", "logistic"])
def test_mlp_and_logistic_take_any_shape(name, shape):
    model = make_model(name, shape, 4, seed=0)
    assert model(torch.zeros(5, *shape)).shape == (5, 4)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 40)])
def test_the_networks_for_images_take_every_size_from_sixteen_pixels(shape):
    for name in ("mnist-cnn", "cifar-cnn"):
        assert make_model(name, shape, 4, seed=0)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,), (1, 15, 28)])
def test_samples_too_small_for_the_convolutions_are_refused(shape):
    with pytest.raises(ValueError, match=r"mnist-cnn needs images .* at least 16 x 16 pixels.*take mlp or logistic"):
        make_model("mnist-cnn", shape, 10, seed=0)


@pytest.mark.parametrize("name", list(MODELS))
def test_the_seed_alone_fixes_the_initial_weights(name):
    def weights(seed):
        return FlatModel(make_model(name, (3, 20, 20), 10, seed=seed)).flatten()

    first = weights(1)
    torch.rand(3)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


@pytest.mark.filterwarnings("ignore:Lazy")
class Draws(nn.Module):
    """A layer that is never the same."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how, self.asked = nn.Linear(4, 3), how, 0

    def forward(self, x):
        self.asked += 1
        return self.how(self.layer(x), self.asked)


def test_models_whose_forward_draws_or_remembers_are_refused():
    for how in (lambda y, _: nn.functional.dropout(y, 0.5), lambda y, asked: y + asked):
        with pytest.raises(ValueError, match="draws random numbers or answers the same samples otherwise"):
            check_output(Draws(how), (4,), 3)
    check_output(Draws(lambda y, _: y), (4,), 3)


def test_lazy_layers_get_their_weights_from_the_seed_too():
    def lazy(sample_shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

    first, second = (FlatModel(make_model(lazy, (4,), 3, seed=1)) for _ in range(2))
    assert first.num_weights == 15
    assert torch.equal(first.flatten(), second.flatten())


def test_torchs_generator_is_neither_read_nor_changed_by_a_stream():
    before = torch.get_rng_state()
    with torch_stream(3, "model"):
        drawn = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    with torch_stream(3, "model"):
        assert torch.equal(torch.rand(4), drawn)
    with torch_stream(3, "other"):
        assert not torch.equal(torch.rand(4), drawn)
    assert stream(3, "model").random() == stream(3, "model").random()


def test_unknown_models_and_models_of_the_wrong_kind_are_refused():
    with pytest.raises(ValueError, match=r"no model 'mnist-cn'; did you mean 'mnist-cnn'.*logistic, mlp"):
        make_model("mnist-cn", (1, 28, 28), 10, seed=0)
    with pytest.raises(ValueError, match="already built; give a function"):
        make_model(nn.Linear(3, 2), (3,), 2, seed=0)
    with pytest.raises(ValueError, match=r"answers \(2, 5\).*must answer \(2, 2\)"):
        make_model(lambda shape, classes: nn.Linear(3, 5), (3,), 2, seed=0)
    with pytest.raises(ValueError, match="returned int, not"):
        make_model(lambda shape, classes: 3, (3,), 2, seed=0)


def test_flat_weights_leave_out_what_is_not_trained():
    flat = FlatModel(tiny_module("user"))
    # scale 1, unused 2, enter 65 * 7, shared 8 * 7, norm 14, leave 7 * 3 without its frozen bias.
    assert flat.num_weights == 1 + 2 + 455 + 56 + 14 + 21
    assert "leave.bias" not in flat.names


@pytest.mark.parametrize("leading", [(), (4,), (2, 3)])
def test_views_share_memory_and_keep_leading_axes(leading):
    flat = FlatModel(tiny_module("user"))
    vectors = torch.arange(flat.num_weights, dtype=torch.float32).expand(*leading, -1).clone()
    views = flat.views(vectors)
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        name: leading + shape for name, shape in zip(flat.names, flat.shapes, strict=True)
    }
    views["enter.weight"].zero_()
    assert (vectors == 0.0).sum() == 448 * max(1, vectors.numel() // flat.num_weights) + vectors[..., 0].numel()


def test_views_of_the_flat_vector_are_the_parameters():
    module = tiny_module("user")
    flat = FlatModel(module)
    views = flat.views(flat.flatten())
    assert all(torch.equal(views[name], dict(module.named_parameters())[name]) for name in flat.names)


def test_an_engines_copy_leaves_the_callers_module_alone():
    module = Residual()
    before = copy.deepcopy(module.state_dict())
    mine = own_copy(module, "cpu")
    mine.parameters[0].data.fill_(9.0)
    assert module.training
    assert not mine.module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)])
@pytest.mark.parametrize("on_node", [False, True])
def test_layers_with_running_statistics_are_refused(layer, on_node):
    with pytest.raises(ValueError, match=r"layer '1' .*use torch.nn.GroupNorm.*track_running_stats=False"):
        FlatModel(nn.Sequential(nn.Conv2d(1, 3, 1), layer), on_node=on_node)


def test_normalising_by_the_batch_at_hand_is_for_nodes_alone():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(
        ValueError, match=r"layer '1' \(BatchNorm1d\) normalises by the batch at hand.*use torch.nn.Group"
    ):
        FlatModel(module)
    assert FlatModel(module, on_node=True).num_weights == 9 + 6


def test_dropout_is_refused_unless_it_drops_nothing():
    with pytest.raises(ValueError, match=r"layer '1' \(Dropout\) draws random numbers.*set its p to 0"):
        FlatModel(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))
    assert FlatModel(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))).num_weights == 12
    assert FlatModel(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), on_node=True).num_weights == 12


@pytest.mark.filterwarnings("ignore:Lazy")
def test_parameters_that_cannot_be_sent_as_float32_are_refused():
    with pytest.raises(ValueError, match=r"parameter 'weight' is float64.*\.float\(\)"):
        FlatModel(nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="nothing to train"):
        FlatModel(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match="'weight' has no shape yet"):
        FlatModel(nn.LazyLinear(2))
