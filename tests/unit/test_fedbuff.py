"""FedBuff by hand: what updates count by their age, and how many are heard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flare.config import Config, LearningConfig, override
from flare.learning.job import Update
from flare.learning.methods import FedBuff, make_method
from flare.rounds import BaseStation
from tests.method_rounds import NOW
from tests.reducing import reduced

UPDATES = [Update(torch.tensor([0.5]), 0.0), Update(torch.tensor([4.0]), 0.0)]


def step(method: FedBuff, *, age: list[float] | None, global_lr: float = 1.0) -> float:
    """From the weight 1, by the updates 0.5 of device 0, which did 1 step, and 4 of device 1, which did 2."""
    now = replace(NOW, age=None if age is None else np.array(age), global_lr=global_lr)
    state = method.start(1, 4)
    weights, _ = reduced(method, state, now, method.rules(state, now, None), UPDATES)
    return float(weights)


def test_old_updates_count_for_less_by_hand() -> None:
    assert step(FedBuff(), age=None) == 1.0 + (0.5 + 4.0) / 2.0
    assert step(FedBuff(), age=[0.0, 3.0, 9.0, 9.0]) == 1.0 + (0.5 + 4.0 / 2.0) / 2.0  # s(3) = 1/2
    assert step(FedBuff(), age=[8.0, 0.0, 0.0, 0.0]) == pytest.approx(1.0 + (0.5 / 3.0 + 4.0) / 2.0, rel=1e-7)


def test_the_global_rate_scales_the_step_by_hand() -> None:
    assert step(FedBuff(), age=[0.0, 3.0, 0.0, 0.0], global_lr=2.0) == 1.0 + 2.0 * (0.5 + 4.0 / 2.0) / 2.0


def test_an_inner_method_says_what_the_mean_is_taken_of_by_hand() -> None:
    # FedNova: tau_eff = mean(1, 2) = 1.5 times the mean of 0.5 / 1 and (4 / 2) / 2
    assert step(FedBuff(inner="fednova"), age=[0.0, 3.0, 0.0, 0.0]) == 1.0 + 1.5 * (0.5 + 1.0) / 2.0


def test_the_buffer_limits_how_many_are_heard_and_a_smaller_limit_of_the_settings_counts() -> None:
    def limit(*settings: str) -> int | None:
        config = override(Config(), ["learning.method=fedbuff", *settings])
        return BaseStation(config, make_method(config.learning), 10).max_devices

    assert limit() == 10
    assert limit("learning.options.buffer=4") == 4
    assert limit("learning.options.buffer=4", "scheduling.options.max_devices=3") == 3
    assert limit("learning.options.buffer=4", "scheduling.options.max_devices=7") == 4


def test_it_is_asynchronous_and_sends_what_its_inner_method_sends() -> None:
    method = make_method(LearningConfig(method="fedbuff"))
    assert method.asynchronous
    assert not make_method(LearningConfig(method="fedavgm")).asynchronous
    assert FedBuff(inner="fedsam").step_cost == 2.0
