"""What a choice of bits costs in bits and in noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flare.rng import stream
from flare.uplink import Qsgd, keys, send
from flare.uplink.choices import measured_noise, normal_noise, payload_bits

CHOICES = [Qsgd(bits) for bits in (2, 3, 4, 6, 8, 16)]


def test_payloads_are_the_bits_that_are_sent() -> None:
    updates = torch.from_numpy(stream(0, "updates").normal(size=(3, 5_000)).astype(np.float32))
    for codec, bits in zip(CHOICES, payload_bits(CHOICES, 5_000), strict=True):
        assert 8 * send(codec, updates, keys(0, 0, range(3))).messages.shape[1] == bits


def test_measured_noise_is_what_sending_loses_in_the_mean() -> None:
    update = torch.from_numpy(stream(1, "updates").laplace(size=(1, 2_000)).astype(np.float32))
    stack = update.expand(80, -1).contiguous()
    for codec, stated in zip(CHOICES[:2], measured_noise(CHOICES[:2], update)[:, 0], strict=True):
        received = send(codec, stack, keys(0, 0, range(80))).received
        lost = float((received - stack).double().square().sum(1).mean() / update.double().square().sum())
        assert lost == pytest.approx(stated, rel=0.03)


@pytest.mark.parametrize("block", [2, 64, 1024])
def test_normal_noise_is_that_of_normal_updates(block: int) -> None:
    codecs = [Qsgd(codec.bits_per_weight, block) for codec in CHOICES]
    drawn = torch.from_numpy(stream(2, "updates").normal(size=(1, 1024 * 150)).astype(np.float32))
    expected = normal_noise(codecs, drawn.shape[1])
    assert expected == pytest.approx(measured_noise(codecs, drawn)[:, 0], rel=0.03)
    assert (np.diff(expected) < 0.0).all()


def test_no_noise_is_above_what_is_proven() -> None:
    for num_weights in (1, 2, 3, 100, 5_000):
        proven = [codec.variance(num_weights) for codec in CHOICES]
        assert (normal_noise(CHOICES, num_weights) <= np.array(proven)).all()
    assert (normal_noise(CHOICES, 1) == 0.0).all()  # the only entry is the largest, which is kept
